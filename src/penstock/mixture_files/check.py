"""From the tree of a file to its description, with everything that is wrong in it noted and nothing
raised."""

from __future__ import annotations

import os.path
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from ..engine.base.hints import near
from ..stores import beside, is_remote, located
from .keys import MIXTURE, NESTED, SOURCE
from .kinds import BAD, shown
from .model import (
    SHARES,
    Batching,
    MixtureFile,
    Scheduling,
    Shuffling,
    SourceEntry,
    Splitting,
    Stage,
    Tokenising,
)
from .reading import Node, Notes, cycle, dotted, named, read_included, scalar_of

_KNOWN = {"", *(key.name for key in SOURCE.keys)}
_HUB = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")  # a name on the hub
_FILES_ONLY = (
    "format",
    "columns",
    "dtype",
    "eos",
    "where",
    "slice",
    "shuffle",
    "tokenise",
    "label",
)


def parse(path: str | Path, notes: Notes) -> MixtureFile | None:
    """The description of a file, as far as it could be read; what is wrong goes to `notes`."""
    path = located(path)
    tree = read_included(path, notes)
    return None if tree is None else parsed(tree, path, notes)


def parsed(tree: Node, path: Path, notes: Notes) -> MixtureFile | None:
    """The description of what was read of a file, or would stand in it."""
    return _Check(notes).mixture(tree, "", (path.resolve(),))


@dataclass
class _Check:
    notes: Notes

    def mixture(
        self, tree: Node, at: str, chain: tuple[Path, ...], nested: bool = False
    ) -> MixtureFile | None:
        given = (NESTED if nested else MIXTURE).read(tree, at, self.notes)
        if given is BAD:
            return None
        marks = {"": tree, **cast("dict[str, Node]", tree.value)}
        table = cast("dict[str, Node]", given.pop("sources", {}))
        found = [
            self.source(name, node, dotted(at, f"sources.{name}"), chain)
            for name, node in table.items()
        ]
        given.pop("include", None)
        # A name twice was noted when the file was read; the description has the first.
        model = MixtureFile(
            sources=tuple(source for source in found if source is not None),
            stages=tuple(Stage(**stage) for stage in given.pop("stages", ())),
            schedule=self.schedule(given.pop("schedule", None)),
            shuffle=self.shuffle(given.pop("shuffle", None), tree, dotted(at, "shuffle")),
            tokenise=self.tokenise(given.pop("tokenise", None), marks.get("tokenise")),
            split=self.split(given.pop("split", None)),
            horizon=self.horizon(given.pop("horizon", None), marks.get("horizon")),
            batch=self.batch(given.pop("batch", None), given.pop("global_batch_size", None), marks),
            pack=pack if "length" in (pack := given.pop("pack", {})) else None,
            cache=self.cache(given.pop("cache", None), marks.get("cache"), dotted(at, "cache")),
            exclude=self.exclude(given.pop("exclude", None), marks.get("exclude")),
            marks=marks,
            **given,
        )
        self.shares(model, at)
        return model

    def source(self, name: str, node: Node, at: str, chain: tuple[Path, ...]) -> SourceEntry | None:
        given = SOURCE.read(node, at, self.notes)
        if given is BAD:
            return None
        marks = {"": node, **cast("dict[str, Node]", node.value)}
        error = self.notes.error
        if not name or name.startswith("+") or "/" in name:
            error(node, at, "a name is a text without '/', and does not begin with '+'")
        if sum(key in marks for key in SHARES) > 1:
            error(node, at, f"give one of {', '.join(SHARES)}: each says the share of the source")
        if ("path" in marks) == ("mixture" in marks):
            error(node, at, "give one of path (files) and mixture (a mixture of its own)")
        inner = None
        if "mixture" in given:
            for key in (key for key in _FILES_ONLY if key in marks):
                error(
                    marks[key],
                    dotted(at, key),
                    f"{key} is for sources of files; give it inside the mixture",
                )
            inner = self.inner(given.pop("mixture"), dotted(at, "mixture"), chain)
        start, stop = given.get("start"), given.get("stop")
        if stop is not None and stop <= (start or 0):
            error(
                marks["stop"],
                dotted(at, "stop"),
                f"it stops at {stop} and starts at {start or 0}: never seen",
            )
        if len(set(given.get("columns", ()))) != len(given.get("columns", ())):
            error(marks["columns"], dotted(at, "columns"), "a column is named twice")
        bounds = given.get("slice")
        if (
            bounds
            and len(bounds) == 3
            and bounds[2] is not None
            and (isinstance(bounds[2], str) or bounds[2] < 1)
        ):
            error(
                marks["slice"],
                dotted(at, "slice"),
                f"the step is a number of at least 1, not {bounds[2]}",
            )
            del given["slice"]
        if "path" in given:
            paths = tuple(beside(marks["path"].file, path) for path in given.pop("path"))
            if all(
                self.notes.permits_path(path, marks["path"], dotted(at, "path")) for path in paths
            ):
                given["path"] = paths
        shuffle = self.shuffle(given.pop("shuffle", None), node, dotted(at, "shuffle"))
        tokenise = self.tokenise(given.pop("tokenise", None), marks.get("tokenise"))
        split = given.pop("split", None)
        if isinstance(split, dict):
            if inner is not None:
                error(
                    marks["split"],
                    dotted(at, "split"),
                    "split is for sources of files; give it inside the mixture",
                )
            split = self.split(cast("dict[str, Any]", split))
        given |= {"split": split}
        return SourceEntry(
            name, shuffle=shuffle, tokenise=tokenise, mixture=inner, marks=marks, **given
        )

    def inner(self, node: Node, at: str, chain: tuple[Path, ...]) -> MixtureFile | None:
        """A mixture in a mixture: settings right here, or a file."""
        if isinstance(node.value, dict):
            return self.mixture(node, at, chain, nested=True)
        if not isinstance(node.value, str):
            self.notes.error(
                node, at, f"a mixture file, or the settings of a mixture, not {shown(node)}"
            )
            return None
        if (path := named(node, at, self.notes)) is None or cycle(
            path, chain, node, at, self.notes
        ):
            return None
        tree = read_included(path, self.notes)
        if tree is None:
            return None
        model = self.mixture(tree, "", (*chain, path.resolve()))
        for key in ("pack", "batch", "global_batch_size", "horizon", "stages", "exclude"):
            if model is not None and key in model.marks:
                self.notes.error(
                    node, at, f"{path.name} has {key}, which only the outermost mixture may have"
                )
        return model

    # ------------------------------------------------------------ settings

    def batch(
        self, given: Any, global_size: int | None, marks: Mapping[str, Node]
    ) -> Batching | None:
        if given is None:
            return None if global_size is None else Batching(global_size, over_ranks=True)
        if global_size is None:
            if "size" not in given:
                self.notes.error(
                    marks["batch"], "batch", "give size, or global_batch_size beside batch"
                )
                return None
            return Batching(**given)
        for key in ("size", "ranks"):
            if key in given:
                self.notes.error(
                    marks["batch"],
                    f"batch.{key}",
                    "global_batch_size says what all ranks take together: leave this out",
                )
                return None
        return Batching(global_size, over_ranks=True, **given)

    def shuffle(self, given: Any, node: Node, at: str) -> Shuffling | None:
        if given is None or isinstance(given, str):
            return Shuffling(given) if given else None
        if ("rows" in given) != ("window" in given):
            self.notes.error(node, at, "a block shuffle needs both rows and window")
            return None
        if "rows" in given and "buckets" in given:
            self.notes.error(node, at, "rows and window, or buckets: give one of them")
            return None
        return Shuffling(
            "block" if "rows" in given else "buckets" if "buckets" in given else "full", **given
        )

    def cache(self, path: str | None, node: Node | None, at: str) -> str | None:
        """The folder of this machine that a file names, also where the file lies in a store."""
        if (
            path is None
            or node is None
            or not self.notes.permits("cache", node, at, "keep a cache on this machine")
        ):
            return None
        return path if is_remote(node.file) else beside(node.file, path)

    def exclude(self, path: str | None, node: Node | None) -> str | None:
        if path is None or node is None:
            return None
        there = beside(node.file, path)
        return there if self.notes.permits_path(there, node, "exclude") else None

    def tokenise(self, given: Any, node: Node | None) -> Tokenising | None:
        if not given or node is None or "tokenizer" not in given:
            return None
        there = beside(node.file, given["tokenizer"])
        on_hub = _HUB.fullmatch(given["tokenizer"]) and not os.path.exists(given["tokenizer"])
        asked = there if there.endswith(".json") else given["tokenizer"]
        if not on_hub and not self.notes.permits_path(asked, node, "tokenise.tokenizer"):
            return None
        # Of a store a file is meant, by its ending: names on the hub are not asked for there.
        meant = there.endswith(".json") if is_remote(there) else os.path.exists(there)
        settings: dict[str, Any] = {**given, "tokenizer": there if meant else given["tokenizer"]}
        return Tokenising(**settings)

    def split(self, given: dict[str, Any] | None) -> Splitting | None:
        return Splitting(**given) if given and "held_out" in given else None

    def schedule(self, given: Any) -> Scheduling | None:
        if given is None:
            return None
        if len(laws := given.get("interpolation", ())) < 2:
            given["interpolation"] = laws[0] if laws else "step"
        points = {
            int(cast(float, scalar_of(place))): weights
            for place, weights in given.pop("points", {}).items()
        }
        return Scheduling(points=tuple(sorted(points.items(), key=lambda point: point[0])), **given)

    def horizon(self, given: Any, node: Node | None) -> tuple[str, float] | None:
        if not given or node is None:
            return None
        if len(given) > 1:
            self.notes.error(node, "horizon", f"give one unit, not {', '.join(given)}")
        return next(iter(given.items()))

    # ------------------------------------------------------------ shares

    def shares(self, model: MixtureFile, at: str) -> None:
        """What weights, amounts, schedule and temperature may not say together."""
        error, marks = self.notes.error, model.marks
        self.groups(model, at)
        self.stages(model, at)
        given = [(source, key) for source in model.sources for key in source.shares]
        points = model.schedule.points if model.schedule else ()
        if model.temperature is not None and points:
            error(
                marks["temperature"],
                dotted(at, "temperature"),
                "a schedule gives the weights: leave one of them out",
            )
        if points or model.temperature is not None:
            by = (
                "the schedule gives the weights"
                if points
                else "temperature makes the weights from the sizes"
            )
            for source, key in given:
                error(
                    source.marks[key],
                    dotted(at, f"sources.{source.name}.{key}"),
                    f"{by}: leave one of them out",
                )
        elif given and len(given) < len(model.sources) and not model.stages:
            grouped = {source.group for source, _ in given}
            for source in model.sources:
                if not source.shares and source.group in grouped and not set(source.marks) - _KNOWN:
                    error(
                        source.marks[""],
                        dotted(at, f"sources.{source.name}"),
                        "no weight, where others have one",
                    )
        elif model.sources and not model.stages and all(source.zero for source in model.sources):
            error(marks.get("sources", marks[""]), dotted(at, "sources"), "all weights are 0")
        if points:
            self.points(model, dict(points), at)
        kinds = {
            "weight" if key == "weight" else "amount"
            for source, key in given
            if len(source.shares) == 1
        }
        if len(kinds) == 2 and model.run is None:
            error(
                marks[""],
                dotted(at, "horizon"),
                "some sources have a weight, some an amount: say the horizon too",
            )

    def groups(self, model: MixtureFile, at: str) -> None:
        groups, error = model.groups or {}, self.notes.error
        for source in model.sources:
            here = dotted(at, f"sources.{source.name}")
            if source.group is not None and source.group not in groups:
                known = near(source.group, groups) or (
                    f"; there are {', '.join(groups)}" if groups else ": say groups"
                )
                error(
                    source.marks["group"],
                    f"{here}.group",
                    f"there is no group {source.group!r}{known}",
                )
            for key in ("tokens", "epochs") if model.groups or model.stages else ():
                if key in source.marks:
                    error(
                        source.marks[key],
                        f"{here}.{key}",
                        "groups and stages have no amounts: say weights",
                    )
        for name in groups:
            here, mark = (
                dotted(at, f"groups.{name}"),
                cast("dict[str, Node]", model.marks["groups"].value)[name],
            )
            if name in model.names:
                error(mark, here, f"{name!r} is a source, too: give the group another name")
            elif not any(source.group == name for source in model.sources):
                error(mark, here, f"no source says group: {name}")
        for name in model.group_max_epochs or {}:
            if name not in groups:
                mark = cast("dict[str, Node]", model.marks["group_max_epochs"].value)[name]
                known = near(name, groups) or (
                    f"; there are {', '.join(groups)}" if groups else ": say groups"
                )
                error(
                    mark,
                    dotted(at, f"group_max_epochs.{name}"),
                    f"there is no group {name!r}{known}",
                )
        if groups and model.schedule and model.schedule.points:
            error(
                model.marks["groups"],
                dotted(at, "groups"),
                "the schedule gives the weights: leave one of them out",
            )

    def stages(self, model: MixtureFile, at: str) -> None:
        if not model.stages:
            return
        error, node = self.notes.error, model.marks["stages"]
        nodes = node.value if isinstance(node.value, tuple) else ()
        if model.schedule is not None:
            error(
                model.marks["schedule"],
                dotted(at, "schedule"),
                "the stages give the weights: leave one of them out",
            )
        for source in model.sources:
            for key in ("start", "stop"):
                if key in source.marks:
                    error(
                        source.marks[key],
                        dotted(at, f"sources.{source.name}.{key}"),
                        "say it by the stages",
                    )
        known = {*model.names, *(model.groups or ())}
        for number, (stage, mark) in enumerate(zip(model.stages, nodes, strict=True)):
            here = dotted(at, f"stages[{number}]")
            for name in sorted(set(stage.weights) - known):
                error(
                    mark,
                    f"{here}.weights.{name}",
                    f"there is no source or group {name!r}{near(name, known)}",
                )
            if stage.until is None and number + 1 < len(nodes):
                error(
                    mark, here, "say until where it goes on: only the last stage may leave that out"
                )
            if stage.until is not None and stage.until.unit == "percent" and model.horizon is None:
                error(
                    mark,
                    f"{here}.until",
                    "a percentage of the run needs a horizon: say how long the run is",
                )

    def points(
        self, model: MixtureFile, weights: Mapping[int, Mapping[str, float]], at: str
    ) -> None:
        points = cast(
            "dict[str, Node]",
            cast("dict[str, Node]", model.marks["schedule"].value)["points"].value,
        )
        for name, node in points.items():
            place = int(cast(float, scalar_of(name)))
            self.point(model, name, node, weights[place], at)

    def point(
        self, model: MixtureFile, name: str, node: Node, weights: Mapping[str, float], at: str
    ) -> None:
        here, mark = dotted(at, f"schedule.points.{name}"), cast("dict[str, Node]", node.value)
        for source in weights:
            if source not in model.names:
                self.notes.error(
                    mark[source],
                    dotted(here, source),
                    f"there is no source {source!r}{near(source, model.names)}",
                )
        if missing := [source for source in model.names if source not in weights]:
            self.notes.error(
                node, here, f"every point names every source; missing: {', '.join(missing[:5])}"
            )
        if not any(weights.values()):
            self.notes.error(node, here, "all weights are 0 here")
