"""dolma's mixer: streams of documents, filtered by the attributes of taggers."""

from __future__ import annotations

from pathlib import Path

from ...mixture_files import MixtureFile, SourceEntry
from ...mixture_files.reading import MixtureNode
from .account import Account, nothing
from .locations import Names
from .trainers import put_together

_RUNNING = ("processes", "work_dir", "dryrun", "experiment", "debug", "ring_size", "batch_size")
_BY_ATTRIBUTE = (
    "documents are dropped or changed by attribute files: run the mixer, and read its output"
)


def is_mine(tree: MixtureNode) -> bool:
    streams = tree.value.get("streams") if isinstance(tree.value, dict) else None
    if streams is None or not isinstance(streams.value, tuple) or not streams.value:
        return False
    return all(isinstance(item.value, dict) and "documents" in item.value for item in streams.value)


def convert(tree: MixtureNode, account: Account) -> MixtureFile:
    """Convert the streams: every document once, including those that the mixer would drop.

    That difference is reported.
    """
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
            output.note("discard_fields", "rows keep all fields: name the columns to read")
            output.pass_over("path", "max_size_in_bytes")
        if not paths:
            stream.drop("documents is empty: its share is lost")
        else:
            sources.append(SourceEntry(name, paths, format="jsonl"))
    if not sources:
        raise nothing(Path(tree.file), "dolma")
    combined, options = put_together(sources, 1)
    return MixtureFile(combined, **options)
