"""lingua: the `data.sources` of a training file, folders of JSON lines with weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ...mixture_files import MixtureFile, SourceEntry, Tokenizing
from ...mixture_files.reading import MixtureNode
from .account import Account, Reasons, Section, nothing
from .locations import Names
from .trainers import per_rank_batch, settle_ranks

_ORDER = (
    "documents are drawn in a shuffled order here; lingua reads files in their order, and shuffles in "
    "a buffer"
)
_DATA_NOTED: Reasons = {
    _ORDER: ("prefetch_size",),
    "rows have seq_len tokens: a model with several targets needs more": ("n_views",),
}
_DATA_REPORTED: Reasons = {"it changes the tokens of texts: tokenize in Python": ("regex",)}
_HARMLESS = frozenset(
    "name dump_dir gc_collect_freq probe_freq optim model env checkpoint profiling logging eval "
    "async_eval_gpus model_type setup".split()
)


def is_mine(tree: MixtureNode) -> bool:
    value = tree.value if isinstance(tree.value, dict) else {}
    data = value.get("data")
    return (
        data is not None
        and isinstance(data.value, dict)
        and {"root_dir", "sources", "seq_len"} <= data.value.keys()
    )


def convert(tree: MixtureNode, account: Account) -> MixtureFile:
    """Convert the sources: shares of documents, whose tokens are joined and cut into rows."""
    top = account.open(tree)
    data = top.part("data")
    assert data is not None
    sources = _sources(data)
    if not sources:
        raise nothing(Path(tree.file), "lingua")
    tokenize = _tokenizing(data)
    row_length, accumulation = data.count("seq_len") or 2048, top.count("grad_acc_steps") or 1
    ends = {end: True for end in ("bos", "eos") if data.flag(f"add_{end}", True)}
    size = (data.count("batch_size") or 2) * accumulation
    batch = per_rank_batch(size, data, "batch_size")
    steps, seed = top.count("steps") or 1000, data.integer("seed", 42)
    top.note("seed", "it seeds the model: data.seed seeds the order")
    data.settle(("load_async",), _DATA_REPORTED, _DATA_NOTED, {"n_views": 2})
    if isinstance(top.peek("distributed"), dict) and (part := top.part("distributed")) is not None:
        settle_ranks(part, ("tp_size", "dp_replicate", "dp_shard"))
        part.pass_over(
            *(key for key in part.table if key not in ("tp_size", "dp_replicate", "dp_shard"))
        )
    top.settle(_HARMLESS)
    return MixtureFile(
        sources,
        seed=seed,
        tokenize=tokenize,
        pack={"length": row_length, **ends},
        horizon=("steps", steps),
        batch=batch,
    )


def _sources(data: Section) -> tuple[SourceEntry, ...]:
    """Return the folders below `root_dir` with their weights."""
    root, part, names = data.text("root_dir") or "", data.part("sources"), Names()
    if part is None:
        return ()
    sources = list[SourceEntry]()
    for folder in part.table:
        name, weight = names.of(folder), part.weight(folder)
        paths = part.local(folder, name, [f"{root.rstrip('/')}/{folder}/*.chunk.*.jsonl"])
        sources.append(SourceEntry(name, paths, format="jsonl", weight=weight))
    return tuple(sources)


def _tokenizing(data: Section) -> Tokenizing | None:
    """Return the tokenizer: a model of sentencepiece; others are reported."""
    part = data.part("tokenizer") if isinstance(data.peek("tokenizer"), dict) else None
    kind: Any = part.peek("name") if part is not None else "bytes"
    if part is None or kind != "sp":
        reason = f"a tokenizer of the kind {kind!r} is no file that a mixture file can name"
        if part is None:
            data.account.report(data.node, data.key_path, f"tokenizer is missing: {reason}")
        else:
            part.report("name", f"{reason}: give a tokenizer.json")
            part.pass_over("path")
        return None
    part.get("name")
    return Tokenizing(part.path(part.text("path") or ""))
