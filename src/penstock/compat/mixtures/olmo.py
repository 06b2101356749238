"""OLMo-core source mixtures: a list of sources with target ratios, alone or as `source_list`."""

from __future__ import annotations

from pathlib import Path

from ...mixture_files import MixtureFile, SourceEntry
from ...mixture_files.reading import Node
from .parts import Left, Names, Part, nothing, parts_of, remote


def is_mine(tree: Node) -> bool:
    return _sources(tree) is not None


def _sources(tree: Node) -> tuple[Node, Node] | None:
    """The mapping that holds the list, and the list."""
    value = tree.value
    inner = value.get("source_list") if isinstance(value, dict) else None
    for holder in (tree, inner):
        items = holder.value.get("sources") if holder is not None and isinstance(holder.value, dict) else None
        if items is not None and isinstance(items.value, tuple) and items.value:
            first = items.value[0].value
            if holder is not None and isinstance(first, dict) and "target_ratio" in first:
                return holder, items
    return None


def convert(tree: Node, left: Left) -> MixtureFile:
    """The mixture; ratios are shares of tokens."""
    found = _sources(tree)
    assert found is not None
    top = Part(tree, "", left, {"sources", "source_list"})
    names, sources = Names(), list[SourceEntry]()
    for item in parts_of(found[1], "sources" if found[0] is tree else "source_list.sources", left):
        paths, ratio = item.texts("paths"), item.number("target_ratio")
        times, fraction = item.number("max_repetition_ratio"), item.number("max_source_fraction")
        name = names.of(item.text("source_name") or "source")
        if fraction not in (None, 1):
            item.leave("max_source_fraction", "it is kept as part of the cap; which documents are used is not fixed")
        if any(path.endswith(".npy") for path in paths):
            item.leave(
                "paths", "token files (.npy) have no format name: open them with ps.from_tokens, or convert them"
            )
        else:
            remote(item, "paths", paths)
        item.rest()
        if not paths:
            left.note(item.node, item.at, "it names no files")
            continue
        cap = (1 if times is None else times) * (1 if fraction is None else fraction)
        files = tuple(item.path(path) for path in paths)
        sources.append(SourceEntry(name, files, weight=1 if ratio is None else ratio, max_epochs=cap or None))
    if not sources:
        raise nothing(Path(tree.file), "OLMo-core")
    tokens = top.count("requested_tokens")
    top.rest()
    return MixtureFile(tuple(sources), unit="tokens", horizon=None if tokens is None else ("tokens", tokens))
