"""Nemotron: a blend of datasets (`.json`), and the preparation of data that names it (`blend_path`)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from ...errors import ConfigError
from ...mixture_files import Chatting, MixtureFile, SourceEntry, Tokenizing
from ...mixture_files.reading import MixtureNode, ProblemLog, read_file
from .account import EVALUATION, Account, Reasons, Section, nothing
from .locations import Hub, Names
from .trainers import NO_TOKENIZER

_SCHEMES = ("hf://", "s3://", "gs://", "/")
_METHODS = {
    "first_fit_decreasing": "best_fit",
    "first_fit_shuffle": "first_fit",
    "concatenative": "concat_split",
}
_UNTOKENIZED = (
    "weights are shares of tokens, and this file names no tokenizer: convert the file of the data "
    "preparation with its blend_path"
)
_REPORTED: Reasons = {
    "documents are selected by their contents: filter them first": (
        "used_in_filter", "min_doc_chars", "sample", "vocab_filters",
    ),
    "longer documents are truncated": ("max_doc_tokens",),
}  # fmt: skip
_NOTED: Reasons = {
    EVALUATION: ("valid_ratio", "test_ratio", "valid_shards", "test_shards"),
    "it seeds the selection and packing of the preparation": ("sample_seed",),
}
_HARMLESS = frozenset(
    "run output_dir num_shards parquet_row_group_size parquet_compression force config_name plan "
    "download tokenization observability used_in_field train_ratio text_field messages_field tools_field "
    "dtype console_mode simple_log_interval_sec max_concurrent_downloads wait_poll_interval".split()
)


def is_mine(tree: MixtureNode) -> bool:
    value = tree.value if isinstance(tree.value, dict) else {}
    if "blend_path" in value:
        return True
    lists = [value[key].value for key in ("datasets", "train") if key in value]
    items = lists[0] if lists and isinstance(lists[0], tuple) else ()
    return bool(items) and all(
        isinstance(item.value, dict)
        and {"name", "path"} <= item.value.keys()
        and str(item.value["path"].value).startswith(_SCHEMES)
        for item in items
    )


def convert(tree: MixtureNode, account: Account) -> MixtureFile:
    """Convert a blend; with the preparation that names it, its texts become tokens or chats."""
    top = account.open(tree)
    if not top.has("blend_path"):
        sources = _sources(top, Names(), None)
        key = "datasets" if top.has("datasets") else "train"
        top.report(key, _UNTOKENIZED) if len(sources) > 1 else None
        top.pass_over(*(name for name in top.table if name.startswith("_")))
        return MixtureFile(tuple(sources), shuffle=None)
    part = top.part("tokenizer") if isinstance(top.peek("tokenizer"), dict) else None
    tokenizer = part.text("model") if part is not None else None
    blend = account.open(_read_blend(top))
    blend.pass_over(*(name for name in blend.table if name.startswith("_")))
    chats, length = top.has("pack_size"), top.count("pack_size")
    sources = _sources(blend, Names(), None if chats else tokenizer)
    if not sources:
        raise nothing(Path(tree.file), "Nemotron")
    pack: dict[str, Any] | None = None
    ends = [end for end in ("bos", "eos") if part is not None and part.flag(f"add_{end}")]
    seed = top.integer("seed") if top.has("seed") else top.integer("sample_seed")
    top.pass_over("seed")
    if chats and length is not None:
        method = str(top.get("algorithm") or "first_fit_shuffle")
        pack = {"length": length, "method": _METHODS.get(method, "first_fit")}
        sources = [replace(source, chat=_chat(top, tokenizer, length)) for source in sources]
    elif part is not None:
        for end in ends:
            part.report(
                f"add_{end}",
                "documents have it in packed rows alone: add pack with the row length of training",
            )
    top.settle(_HARMLESS, _REPORTED, _NOTED)
    if tokenizer is None:
        account.note(tree, "", NO_TOKENIZER)
    unit = "tokens" if tokenizer is not None else None
    return MixtureFile(tuple(sources), seed=seed, unit=unit, pack=pack)


def _read_blend(top: Section) -> MixtureNode:
    """Return the blend that `blend_path` names, below the folder where the tool starts."""
    named = (top.text("blend_path") or "").rpartition("}")[2].lstrip("/")
    for folder in (top.folder, *top.folder.parents):
        for path in (folder / named, folder / Path(named).name):
            if (
                path.is_file()
                and (tree := read_file(path, ProblemLog(), variables=False)) is not None
            ):
                return tree
    raise ConfigError(
        f"{top.node.file}: blend_path: the file {named!r} is missing beside it and in the folders above: "
        "name its path"
    )


def _sources(blend: Section, names: Names, tokenizer: str | None) -> list[SourceEntry]:
    """Return the datasets of a blend for training, with their weights."""
    sources = list[SourceEntry]()
    for item in blend.parts("datasets" if blend.has("datasets") else "train"):
        name, path = names.of(item.text("name") or "data"), item.text("path") or ""
        hub = Hub(path.removeprefix("hf://"), item.text("subset"), item.text("split") or "train")
        local = [] if path.startswith("hf://") else [path]
        paths = item.dataset("path", name, hub, "subset", "split", local)
        given, field = item.number("weight"), item.text("text_field") or "text"
        encoding = Tokenizing(tokenizer, field) if tokenizer is not None else None
        item.pass_over("category", "description")
        weight = 1.0 if given is None else given
        sources.append(SourceEntry(name, paths, weight=weight, tokenize=encoding))
    blend.settle(noted={EVALUATION: ("valid", "test")})
    return sources


def _chat(top: Section, tokenizer: str | None, length: int) -> Chatting | None:
    """Return the chat of a preparation that packs conversations."""
    template: Any = top.peek("chat_template")
    if tokenizer is None:
        return None
    if isinstance(template, str) and "{" not in template:
        path = top.path(template)
        template = path if Path(path).is_file() else None
        if template is None:
            top.report("chat_template", "this template is a file of the tool: give chat its path")
    if template is not None:
        top.get("chat_template")
    names = {"messages": top.text("messages_field"), "tools": top.text("tools_field")}
    fields = {name: text for name, text in names.items() if text and text != name}
    return Chatting(
        tokenizer,
        format="messages",
        template=template,
        fields=fields or None,
        max_length=length,
        truncate="right",
    )
