"""Write the tokens and loss masks of a mixture file's sources as a token store."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..arguments import check_choice
from ..engine.runtime.executors import ExecutorName
from ..errors import ConfigError, convert_storage_errors
from ..stores import display_path
from ..stores.urls import require_local
from ..writing.shard import WrittenFile, counts_of
from ..writing.shards import write_shards
from .build import END_TOKENS, expand_partitions, open_in_order, resolve_token
from .model import SPLIT_PARTS, Chatting, MixtureFile, SourceEntry, SplitPart
from .write import write

MIXTURE_NAME = "mixture.yaml"
"""Name of the mixture file in a store, which reads its tokens."""

_SOURCE_SETTINGS = (
    "format", "columns", "lengths", "dtype", "eos", "split", "where", "slice", "partition",
    "unique_fraction", "tokenize", "chat"
)  # fmt: skip


@dataclass(frozen=True)
class TokenizedSource:
    """Counts of a source of a token store.

    Attributes:
        folder: the folder of its shards, which `ps.read` opens.
        documents: samples that were written.
        tokens: tokens of these.
        trained: tokens that are learned; all of texts.
        dropped: samples that were dropped, by reason: "too_long" or "untrained".
        files: the number of files.
        bytes: their size.
    """

    folder: Path
    documents: int
    tokens: int
    trained: int
    dropped: Mapping[str, int]
    files: int
    bytes: int


def tokenize(
    model: MixtureFile,
    folder: str | Path,
    part: SplitPart = "train",
    *,
    shard: int = 10_000,
    max_bytes: int = 1 << 30,
    executor: ExecutorName = "inline",
    workers: int | None = None,
) -> dict[str, TokenizedSource]:
    """Write the tokens of each source with `tokenize` or `chat` into a folder of its own.

    `ps.read(folder / name)` gives the tokens of a source, with loss masks for chats, and knows their
    lengths. `ps.load(folder / "mixture.yaml")` gives the mixture over these sources.

    A call after a crash resumes with the missing shards. The bytes do not depend on the workers, or
    on the number of attempts.

    Args:
        model: a description, as from `read_model`.
        folder: the folder of the store.
        part: "held_out" writes the samples that `split` holds out of the run.
        shard: samples per shard, before any are dropped.
        max_bytes: a larger shard is cut into several files.
        executor: "inline", "threads", "processes" or "ray".
        workers: their number; by default one per core.

    Returns:
        The counts of each source by its full name.

    Raises:
        ConfigError: if no source makes tokens, or the folder holds other tokens.
        DataError: for a sample that cannot be encoded; it names the sample.
    """
    check_choice(part, SPLIT_PARTS, "tokenize(part={})")
    store = require_local(folder).absolute()
    if part == "held_out" and not (model := model.held_out()).sources:
        raise ConfigError("nothing is held out; add a split, such as split: {held_out: 1%}")
    model = expand_partitions(model)
    sources = dict(open_in_order(model))
    if not sources:
        raise ConfigError("no source makes tokens: add tokenize or chat to the file")
    stored = _describe_store(model, store, "")
    results = dict[str, TokenizedSource]()
    for name, dataset in sources.items():
        target = store / _folder_of(name)
        with convert_storage_errors(target):
            target.mkdir(parents=True, exist_ok=True)
        shards = write_shards(
            dataset, target, "arrow", shard, max_bytes, executor, workers, has_tokens=True
        )
        results[name] = _count(target, [file for files in shards for file in files])
    write(stored, store / MIXTURE_NAME)
    return results


def _count(folder: Path, files: Collection[WrittenFile]) -> TokenizedSource:
    counts, dropped = [counts_of(file) for file in files], Counter[str]()
    for count in counts:
        dropped.update(count["dropped"])
    return TokenizedSource(
        folder,
        sum(file["samples"] for file in files),
        sum(count["tokens"] for count in counts),
        sum(count["trained"] for count in counts),
        dict(sorted(dropped.items())),
        len(files),
        sum(file["bytes"] for file in files),
    )


def _folder_of(name: str) -> str:
    """Return the folder of a source, which never leads out of the store."""
    parts = name.split("/")
    return "/".join(
        part.replace(".", "%2E") if part.startswith(".") or part == MIXTURE_NAME else part
        for part in parts
    )


def _describe_store(model: MixtureFile, store: Path, above: str) -> MixtureFile:
    """Return the mixture over the tokens; sources that make none stay as they are."""
    sources = [_describe_source(source, model, store, above) for source in model.sources]
    pack: Any = None if model.pack is None else dict(model.pack)
    for option in END_TOKENS if pack else ():
        if option in pack:
            pack[option] = resolve_token(pack[option], model, option)
    if pack and pack.get("method") == "best_fit" and _has_chats(model):
        # Rows of known lengths would be packed in windows, which cut some chats.
        if not {"overflow", "rows"} & pack.keys():
            pack["overflow"] = "never"
    settings: dict[str, Any] = dict.fromkeys(("tokenize", "chat", "split", "exclude"))
    return replace(model, sources=tuple(sources), pack=pack, **settings)


def _has_chats(model: MixtureFile) -> bool:
    return any(
        _has_chats(source.mixture.inside(model))
        if source.mixture is not None
        else isinstance(source.encoding(model), Chatting)
        for source in model.sources
    )


def _describe_source(
    source: SourceEntry, model: MixtureFile, store: Path, above: str
) -> SourceEntry:
    name = f"{above}{source.name}"
    if source.mixture is not None:
        inner = _describe_store(source.mixture.inside(model), store, f"{name}/")
        return replace(source, mixture=inner)
    if source.encoding(model) is None:
        if model.exclude is not None:
            raise ConfigError(
                f"the source {display_path(name)} makes no tokens, and exclude may leave out its rows: "
                "add tokenize or chat to it, or remove exclude"
            )
        return replace(source, split=source.split or model.split)
    settings: dict[str, Any] = dict.fromkeys(_SOURCE_SETTINGS)
    return replace(source, path=(str(store / _folder_of(name)),), **settings)
