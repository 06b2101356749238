"""Levanter's data section: `configs` (or `components`) with `train_weights`.

It is a separate file, or part of a training config.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from ...engine.mixing import Stop
from ...mixture_files import Chatting, MixtureFile, Scheduling, Shuffling, SourceEntry, Tokenizing
from ...mixture_files.reading import MixtureNode, join_key
from .account import EVALUATION, NO_COUNTERPART, Account, Reasons, Section, nothing
from .locations import Hub, Names
from .settings import CHECKPOINTS, MODEL, OPTIMIZER, TRACKING
from .trainers import SHARED_RANKS, shared

_STOPS = ("restart", "first_exhausted", "all_exhausted")
_SECTIONS = (
    ("configs", "train_weights"),
    ("components", "train_weights"),
    ("supervised_data", "mixture_weights"),
)


_DATA_HARMLESS = frozenset("cache_dir cache_options tags auto_build_caches num_workers".split())
_REPORTED: Reasons = {NO_COUNTERPART: ("block_cross_document_attention", "chat_template")}
_NOTED: Reasons = {
    "the permutation differs from Levanter's": ("permutation_type",),
    EVALUATION: (
        "validation_urls",
        "max_eval_batches",
        "steps_per_eval",
        "per_device_eval_parallelism",
    ),
}
_MESH = (
    "model_axis_size", "tensor_parallel_axes", "fsdp_axis", "batch_axis", "replica_ici_axis_size",
    "replica_dcn_axis_size", "mesh", "axis_resources", "parameter_axis_resources",
)  # fmt: skip
_TRAINER_HARMLESS = (
    TRACKING
    | OPTIMIZER
    | CHECKPOINTS
    | frozenset(
        "mp id log_dir run_base_dir per_device_parallelism distributed ray "
        "require_accelerator jax_config jax_compilation_cache_dir backend_init_timeout "
        "use_explicit_mesh_axes quantization watch crash_on_nan crash_on_inf "
        "shutdown_at_exit log_jaxprs log_xla_hlo".split()
    )
)
_TRAINER_REPORTED: Reasons = {
    "the position of another run is not carried over": (
        "initialize_from",
        "skip_steps",
        "load_checkpoint_path",
        "load_checkpoint",
    ),
    "the number of passes is lost: set horizon": ("epochs",),
}
_TOP_HARMLESS = (
    TRACKING | OPTIMIZER | CHECKPOINTS | frozenset("z_loss_weight log_entropy out_dir".split())
)


def is_mine(tree: MixtureNode) -> bool:
    return _data(tree) is not None


def _data(tree: MixtureNode) -> MixtureNode | None:
    """Return the data mapping: the file itself, or its `data`."""
    top = tree.value if isinstance(tree.value, dict) else {}
    for node in (tree, top.get("data")):
        value = node.value if node is not None else None
        if not isinstance(value, dict):
            continue
        is_mixture = any(names in value and weights in value for names, weights in _SECTIONS)
        is_single = (
            "cache_dir" in value or "tokenizer" in value or (node is not tree and "trainer" in top)
        )
        if is_mixture or (is_single and ("train_urls" in value or _is_hub(value))):
            return node
    return None


def _is_hub(value: Mapping[str, MixtureNode]) -> bool:
    return "id" in value and isinstance(value["id"].value, str)


def convert(tree: MixtureNode, account: Account) -> MixtureFile:
    """Convert the mixture; weights are shares of sequences in Levanter, of tokens here.

    Levanter's sequences all have one length.
    """
    data_node = _data(tree)
    assert data_node is not None
    top = account.open(tree)
    data = top if data_node is tree else top.part("data")
    assert data is not None
    tokenizer = data.text("tokenizer")
    if tokenizer is None and not data.has("supervised_data"):
        tokenizer = "gpt2"
        account.note(data_node, data.key_path, "tokenizer is missing: Levanter's default is gpt2")
    schedule, entries = None, list[SourceEntry]()
    section, weights = next(
        ((names, weights) for names, weights in _SECTIONS if data.has(names)), (None, None)
    )
    if section is not None and weights is not None:
        entries, schedule = _components(data, section, weights, tokenizer)
    elif (single := _source(Names().of(_default_name(data)), data, tokenizer, True)) is not None:
        entries = [single]
    if not entries:
        raise nothing(Path(tree.file), "Levanter")
    stop = data.text("stop_strategy")
    if stop is not None and stop not in _STOPS:
        data.report("stop_strategy", f"{stop!r} is not a stop rule of a mixture file")
        stop = None
    if len(entries) == 1:
        data.pass_over("mixture_block_size")
    block = data.count("mixture_block_size") or 2048 if len(entries) > 1 else None
    shuffle, eos = _shuffle(data), data.get("enforce_eos", True)
    options = _training(top, data, bool(tokenizer), bool(eos))
    has_chats = entries[0].chat is not None
    if has_chats and "pack" in options:
        length = options["pack"]["length"]
        options["pack"] = {"length": length, "method": "first_fit", "long": "truncate"}
    data.report(
        "max_train_batches",
        "it limits the rows of a source, counted in batches: set max_epochs",
    )
    data.report("num_validation_sequences", "it counts held-out rows in packed rows: set split")
    data.settle(_DATA_HARMLESS, _REPORTED, _NOTED)
    if "pack" in options:
        account.note(
            data.node,
            data.key_path,
            "documents are shuffled, mixed and then split; Levanter splits sources, then mixes",
        )
    if schedule and "batch" not in options:
        data.report(
            str(weights),
            "its points are training steps: set batch, or they count samples",
        )
    return MixtureFile(
        tuple(entries),
        unit="tokens" if tokenizer else None,
        stop=cast("Stop | None", stop),
        block_size=block,
        shuffle=shuffle,
        tokenize=None if tokenizer is None or has_chats else Tokenizing(tokenizer),
        schedule=schedule,
        **options,
    )


def _default_name(data: Section) -> str:
    setting = data.text("id")
    return Hub(setting, data.text("name")).source_name if setting else "train"


def _components(
    data: Section, section: str, weights: str, tokenizer: str | None
) -> tuple[list[SourceEntry], Scheduling | None]:
    names, sources = Names(), dict[str, SourceEntry]()
    weighted_names = _weighted(data.table[weights]) if data.has(weights) else set[str]()
    if (components := data.part(section)) is None:
        return [], None
    for name in components.table.keys() - weighted_names:
        components.note(name, "without a weight it is for evaluation")
    parts = {name: components.part(name) for name in components.table if name in weighted_names}
    items = {name: item for name, item in parts.items() if item is not None}
    among_chats = all(map(_is_chat, items.values()))  # packed rows have chats, or texts
    for name, item in items.items():
        if (source := _source(names.of(name), item, tokenizer, among_chats)) is not None:
            sources[name] = source
    shares, schedule = _weights(
        data, weights, {name: source.name for name, source in sources.items()}
    )
    entries = [
        source if schedule else replace(source, weight=shares.get(source.name, 0))
        for source in sources.values()
    ]
    return entries, schedule


def _weighted(node: MixtureNode) -> set[str]:
    """Return the names with a weight above 0 at any step."""
    rows = (
        [
            pair.value[1]
            for pair in node.value
            if isinstance(pair.value, tuple) and len(pair.value) == 2
        ]
        if isinstance(node.value, tuple)
        else [node]
    )
    return {
        name
        for row in rows
        if isinstance(row.value, dict)
        for name, weight in row.value.items()
        if weight.value
    }


def _source(
    name: str, item: Section, tokenizer: str | None, among_chats: bool
) -> SourceEntry | None:
    inner = item.part("source") or item
    inner.pass_over("type")
    urls, hub, format_section = inner.texts("train_urls"), inner.text("id"), item.part("format")
    key = inner.text("text_key") or (format_section.text("text_key") if format_section else None)
    chat = None
    if format_section is not None:
        kind = format_section.text("type")
        if kind == "chat" and tokenizer is not None and among_chats:
            chat = _chat(format_section, tokenizer)
        elif kind not in (None, "text"):
            format_section.report(
                "type", f"a mixture file tokenizes plain text, or chats alone, and here not {kind}"
            )
    if not urls and not hub:
        item.drop("training files are missing, so its share is lost: name train_urls or id")
        return None
    if urls:
        paths = inner.local("train_urls", name, urls)
    else:
        paths = inner.dataset("id", name, Hub(str(hub), inner.text("name")), "name", "splits")
        inner.pass_over("plaintext", "stream")
        inner.report("splits", "the selection of splits is lost: name the files with files")
    for section in (inner, item):
        section.settle(("cache_dir", "tags"), noted={EVALUATION: ("validation_urls",)})
    tokenize = Tokenizing(tokenizer, key) if tokenizer and key not in (None, "text") else None
    return SourceEntry(name, paths, tokenize=tokenize, chat=chat)


def _chat(section: Section, tokenizer: str) -> Chatting:
    """Return the chat of a dataset of conversations."""
    field, template = section.text("messages_field") or "messages", section.text("chat_template")
    learns_answers = section.flag("mask_user_turns", True)
    section.report("system_prompt", "it is no field of the data: write it into the messages")
    section.report("single_turn", "it changes the rows: map them in Python")
    section.report("chat_template_kwargs", "each row has values for the template in this field")
    section.pass_over("pack")
    return Chatting(
        tokenizer,
        format="messages",
        template=template,
        train_on="assistant" if learns_answers else "all",
        fields=None if field == "messages" else {"messages": field},
    )


def _is_chat(item: Section) -> bool:
    """Return whether a dataset has conversations."""
    form = item.peek("format")
    return isinstance(form, dict) and cast("dict[str, Any]", form).get("type") == "chat"


def _weights(
    data: Section, key: str, names: Mapping[str, str]
) -> tuple[dict[str, float], Scheduling | None]:
    """Return constant weights, or a schedule of them."""
    if not data.has(key):
        return {}, None
    setting = data.table[key]
    if isinstance(setting.value, dict):
        part = data.part(key)
        return ({} if part is None else _row(part, names)), None
    data.get(key)
    points = list[tuple[int, dict[str, float]]]()
    for number, item in enumerate(setting.value if isinstance(setting.value, tuple) else ()):
        key_path = join_key(data.key_path, f"{key}[{number}]")
        pair = item.value if isinstance(item.value, tuple) else ()
        if (
            len(pair) != 2
            or not isinstance(pair[0].value, int)
            or not isinstance(pair[1].value, dict)
        ):
            data.account.report(item, key_path, "expected a step and its weights")
            continue
        points.append(
            (pair[0].value, _row(Section(pair[1], f"{key_path}[1]", data.account), names))
        )
    return {}, Scheduling("steps", "step", tuple(points)) if points else None


def _row(part: Section, names: Mapping[str, str]) -> dict[str, float]:
    """Return a weight for each source; `names` maps names of the file to source names."""
    for name in part.table:
        if name not in names and part.weight(name):
            part.report_at(name, "its source is lost, and the others share its weight")
    return {
        source_name: part.weight(name) if name in part.table else 0
        for name, source_name in names.items()
    }


def _shuffle(data: Section) -> Shuffling | None:
    """Return the order within sources; without a setting, the stored order."""
    if isinstance(data.peek("shuffle"), dict) and (setting := data.part("shuffle")) is not None:
        rows, window = setting.count("io_block_size"), setting.count("window_blocks")
        if rows and window:
            return Shuffling("block", rows, window)
        data.report(
            "shuffle",
            "io_block_size or window_blocks is missing: sources are shuffled fully",
        )
        return None
    value = data.get("shuffle")
    if value in (None, False, 0):
        return Shuffling("none")
    if value is not True:
        data.report("shuffle", "an era shuffle has no counterpart: sources are shuffled fully")
    return None


def _training(top: Section, data: Section, tokenized: bool, eos: bool) -> dict[str, Any]:
    """Return row length, batch and horizon of a training config."""
    if data is top and "trainer" not in data.table:
        return {}
    options: dict[str, Any] = {}
    model, trainer = top.part("model"), top.part("trainer")
    length = (
        top.count("train_seq_len")
        or top.count("max_seq_len")
        or (model.count("max_seq_len") or model.count("seq_len") if model else None)
    )
    if length:
        ends = {"bos": True, "eos": eos} if tokenized else {}
        options["pack"] = {
            "length": length,
            **{name: True for name, enabled in ends.items() if enabled},
        }
    elif model:
        top.report("model", "the row length is missing: set pack with the length of the model")
    top.report(
        "epoch", "the run ends after this number of passes: set horizon with epochs"
    ) if top.get("epoch") else None
    if trainer is not None:
        if isinstance(trainer.peek("train_batch_size"), list):
            trainer.report(
                "train_batch_size", "growing batches have no counterpart in a mixture file"
            )
        else:
            size = trainer.count("train_batch_size") or 512  # the defaults are Levanter's
            options["batch"] = shared(size, trainer, "train_batch_size", drop_remainder=True)
        options["horizon"] = ("steps", trainer.count("num_train_steps") or 400_000)
        if top.has("data_seed"):
            trainer.pass_over("seed")
        seed = top.integer("data_seed") if top.has("data_seed") else trainer.integer("seed")
        options |= {} if seed is None else {"seed": seed}
        trainer.settle(_TRAINER_HARMLESS, _TRAINER_REPORTED, {**_NOTED, SHARED_RANKS: _MESH})
    if model is not None:
        model.settle(MODEL, {"another key sets the row length": ("max_seq_len", "seq_len")})
    top.settle(_TOP_HARMLESS, noted={EVALUATION: ("eval_harness", "eval_harness_steps")})
    return options
