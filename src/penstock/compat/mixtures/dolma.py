"""dolma's mixer: streams of documents that are put together, filtered by attributes that taggers wrote."""

from __future__ import annotations

from pathlib import Path

from ...mixture_files import MixtureFile, SourceEntry
from ...mixture_files.reading import Node
from .parts import Left, Names, Part, nothing
from .trainers import whole

_RUNNING = ("processes", "work_dir", "dryrun", "experiment", "debug", "ring_size", "batch_size")
_BY_ATTRIBUTE = (
    "documents are dropped or changed by attributes that lie beside them: run the mixer, and read its output"
)


def is_mine(tree: Node) -> bool:
    streams = tree.value.get("streams") if isinstance(tree.value, dict) else None
    if streams is None or not isinstance(streams.value, tuple) or not streams.value:
        return False
    return all(isinstance(one.value, dict) and "documents" in one.value for one in streams.value)


def convert(tree: Node, left: Left) -> MixtureFile:
    """Every document of every stream once; those that the mixer would drop as well, and that is said."""
    top, names, sources = Part(tree, "", left), Names(), list[SourceEntry]()
    top.skip(*_RUNNING)
    for stream in top.parts("streams"):
        name = names.of(stream.text("name") or "stream")
        paths = stream.local("documents", name, stream.texts("documents"))
        for key in ("filter", "filterer", "span_replacement"):
            stream.leave(key, _BY_ATTRIBUTE)
        stream.skip("attributes", "compression")
        if (output := stream.part("output")) is not None:
            output.leave("min_text_length", "short documents are dropped: run the mixer, and read its output")
            output.say("discard_fields", "nothing is dropped of a row: name the columns that are read")
            output.skip("path", "max_size_in_bytes")
            output.rest()
        stream.rest()
        if paths:
            sources.append(SourceEntry(name, paths, format="jsonl"))
    top.rest()
    if not sources:
        raise nothing(Path(tree.file), "dolma")
    put, how = whole(sources, 1)
    return MixtureFile(put, **how)
