"""Megatron-Energon metadatasets: v1 and v2, nested and epochized blends."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, cast

from ...mixture_files import MixtureFile, SourceEntry
from ...mixture_files.reading import MixtureNode, ProblemLog, read_file
from .account import Account, Section, nothing
from .locations import Names, name_of_path

_PERCENT = re.compile(r"[0-9]+([.][0-9]*)? *%")
PART_OF_A_BLEND = "a subset of a whole blend has no counterpart: name it at each dataset"
_HEADER = ("__module__", "__class__")


def is_mine(tree: MixtureNode) -> bool:
    value = tree.value
    return (
        isinstance(value, dict)
        and "splits" in value
        and ("__class__" in value or "__module__" in value)
    )


def convert(
    tree: MixtureNode, account: Account, pick: str = "train", parents: tuple[Path, ...] = ()
) -> MixtureFile:
    """Convert the mixture of one split, and note the other splits."""
    split = pick
    top = account.open(tree)
    splits = top.part("splits")
    top.pass_over(*_HEADER)
    chosen = splits.part(split) if splits else None
    file = Path(tree.file)
    if splits is None or chosen is None:
        known = ", ".join(splits.table) if splits else "none"
        raise nothing(file, f"Energon (it has no split {split!r}, but {known})")
    for other in splits.table:
        if not isinstance(splits.peek(other), dict):
            splits.report_at(other, "this is not a split")
        elif other != split:
            splits.note(other, f"another split: convert it separately with pick={other!r}")
    chain = (*parents, file.resolve())
    model = _mixture(chosen, split, account, chain)
    if not model.sources:
        raise nothing(file, "Energon")
    return model


def _mixture(part: Section, split: str, account: Account, chain: tuple[Path, ...]) -> MixtureFile:
    names, sources = Names(), list[SourceEntry]()
    epochised = "blend_epochized" in part.table
    key = next((key for key in ("blend", "blend_epochized", "datasets") if key in part.table), None)
    if key is None:
        entry = _entry(part, split, names, account, chain, {})
        return MixtureFile(() if entry is None else (entry,))
    part.pass_over("__module__", "__class__")
    for item in part.parts(key):
        if epochised:
            times = item.number("repetitions")
            share: dict[str, Any] = dict.fromkeys(
                ("epochs", "max_epochs"), 1 if times is None else times
            )
        else:
            weight = item.number("weight")
            share = {"weight": 1 if weight is None else weight}
        if (source := _entry(item, split, names, account, chain, share)) is not None:
            sources.append(source)
    part.report("subset", PART_OF_A_BLEND)
    return MixtureFile(tuple(sources))


def _entry(
    item: Section,
    split: str,
    names: Names,
    account: Account,
    chain: tuple[Path, ...],
    share: dict[str, Any],
) -> SourceEntry | None:
    entry_split = item.text("split_part") or split
    if any(key in item.table for key in ("blend", "blend_epochized", "datasets")):
        return SourceEntry(
            names.of("blend"), mixture=_mixture(item, entry_split, account, chain), **share
        )
    if not item.has("path"):
        reason = "joined datasets have no counterpart in a mixture file, so its share is lost: join them first"
        item.report("join", reason) if item.has("join") else item.drop(
            "path is missing: its share is lost"
        )
        return None
    setting = item.text("path") or ""
    name = names.of(name_of_path(setting))
    if setting.endswith((".yaml", ".yml")):
        item.report("subset", PART_OF_A_BLEND)
        mixture = _file(item, Path(item.path(setting)), entry_split, account, chain)
        return None if mixture is None else SourceEntry(name, mixture=mixture, **share)
    bounds = _subset(item)
    paths = item.local("path", name, [setting])
    prepared = not paths[0].endswith((".jsonl", ".json"))
    if not prepared:
        item.report("split_part", "files have no splits: name the file of this split")
    return SourceEntry(name, paths, split=entry_split if prepared else None, slice=bounds, **share)


def _file(
    item: Section, path: Path, split: str, account: Account, chain: tuple[Path, ...]
) -> MixtureFile | None:
    if path.resolve() in chain:
        item.report("path", "the files include each other in a cycle")
        return None
    notes = ProblemLog()
    tree = read_file(path, notes, variables=False)
    if tree is None or not is_mine(tree):
        item.report("path", "the file is missing, or is not a metadataset")
        return None
    return convert(tree, account, split, chain)


def _subset(item: Section) -> tuple[int | str | None, ...] | None:
    """Convert a range to a slice, in rows or in percent."""
    part = item.part("subset")
    bounds = part.get("range") if part else None
    if bounds in (None, ["0%", "100%"]):
        return None
    setting = cast("list[Any]", bounds) if isinstance(bounds, list) else []
    ends = [None if bound == "end" else bound for bound in setting]
    if len(ends) == 2 and all(
        end is None or isinstance(end, int) or _PERCENT.fullmatch(str(end)) for end in ends
    ):
        return tuple(ends)
    item.report("subset", f"{bounds!r} is not a range of rows or percent")
    return None
