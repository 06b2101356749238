"""dolma's mixer: streams of documents that are put together, filtered by attributes that taggers
wrote."""

from __future__ import annotations

from pathlib import Path

from ...mixture_files import MixtureFile, SourceEntry
from ...mixture_files.reading import Node
from .account import Account, nothing
from .places import Names
from .trainers import put_together

_RUNNING = ("processes", "work_dir", "dryrun", "experiment", "debug", "ring_size", "batch_size")
_BY_ATTRIBUTE = (
    "documents are dropped or changed by attributes that lie beside them: run the mixer, and read "
    "its output"
)


def is_mine(tree: Node) -> bool:
    streams = tree.value.get("streams") if isinstance(tree.value, dict) else None
    if streams is None or not isinstance(streams.value, tuple) or not streams.value:
        return False
    return all(isinstance(one.value, dict) and "documents" in one.value for one in streams.value)


def convert(tree: Node, account: Account) -> MixtureFile:
    """Every document of every stream once; those that the mixer would drop as well, and that is
    said."""
    top, names, sources = account.open(tree), Names(), list[SourceEntry]()
    top.pass_over(*_RUNNING)
    for stream in top.parts("streams"):
        name = names.of(stream.text("name") or "stream")
        paths = stream.local("documents", name, stream.texts("documents"))
        for key in ("filter", "filterer", "span_replacement"):
            stream.report(key, _BY_ATTRIBUTE)
        stream.pass_over("attributes", "compression")
        if (output := stream.part("output")) is not None:
            output.report(
                "min_text_length", "short documents are dropped: run the mixer, and read its output"
            )
            output.note(
                "discard_fields", "nothing is dropped of a row: name the columns that are read"
            )
            output.pass_over("path", "max_size_in_bytes")
        if not paths:
            stream.drop("it names no documents: its share is lost")
        else:
            sources.append(SourceEntry(name, paths, format="jsonl"))
    if not sources:
        raise nothing(Path(tree.file), "dolma")
    put, how = put_together(sources, 1)
    return MixtureFile(put, **how)
