"""Convert the tree of a mixture file to its description; note every problem, raise none."""

from __future__ import annotations

import os.path
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

from ..arguments import join_first, suggest_names
from ..engine.base.step_plan import parse_number_plan
from ..engine.packing import LengthPlan, Packing
from ..errors import ConfigError
from ..schedule import Schedule
from ..sources.partition import check_parts
from ..sources.select import normalize_selection
from ..stores import is_remote, parse_location, resolve_beside
from ..text.chat import is_template_file
from .keys import MIXTURE, NESTED_MIXTURE_SECTION, SOURCE_SECTION
from .kinds import INVALID, format_node, parse_number
from .model import (
    END_TOKENS,
    SHARE_KEYS,
    Batching,
    Chatting,
    MixtureFile,
    Partitioning,
    Scheduling,
    Shuffling,
    SourceEntry,
    Splitting,
    Stage,
    Tokenizing,
)
from .reading import (
    MixtureNode,
    ProblemLog,
    has_include_cycle,
    join_key,
    read_included,
    resolve_included,
)
from .stages import compute_stage_ends, find_stage_unit

_KNOWN_SOURCE_KEYS = {"", *(key.name for key in SOURCE_SECTION.keys)}
_HUB_NAME = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")  # name of a tokenizer on the Hugging Face hub
_FILE_SOURCE_KEYS = (
    "format",
    "columns",
    "dtype",
    "eos",
    "where",
    "slice",
    "partition_by",
    "unique_fraction",
    "shuffle",
    "tokenize",
    "chat",
    "label",
)
_PARTITION_KEYS = ("min_size", "rest", "only", "input", "mix")


def _replace_texts(token: Any) -> Any:
    """Return a token, or tokens by feature, with an id in place of texts and true."""
    if isinstance(token, Mapping):
        tokens = cast("Mapping[str, Any]", token)
        return {name: _replace_texts(value) for name, value in tokens.items()}
    return 0 if isinstance(token, str | bool) else token


def check_packing(options: Mapping[str, Any], lengths: Iterable[int] = ()) -> None:
    """Raise `ConfigError` for options of `pack` that contradict each other.

    Args:
        options: the options of a file.
        lengths: the row lengths of later stages.
    """
    texts: dict[str, Any] = {
        name: _replace_texts(options[name]) for name in END_TOKENS if name in options
    }
    length = options["length"]
    numbers = length.numbers or () if isinstance(length, Schedule) else ((0, length),)
    points = (*numbers, *enumerate(lengths, 1))
    texts["length"] = int(points[-1][1])
    packing = Packing(**{**options, **texts})
    if len(points) > 1 or isinstance(length, Schedule):
        packing.plan_fold(LengthPlan(tuple((at, int(number)) for at, number in points)))


def parse_mixture(path: str | Path, notes: ProblemLog) -> MixtureFile | None:
    """Read the description of a file as far as possible; add its problems to `notes`."""
    path = parse_location(path)
    tree = read_included(path, notes)
    return None if tree is None else parse_tree(tree, path, notes)


def parse_tree(tree: MixtureNode, path: Path, notes: ProblemLog) -> MixtureFile | None:
    """Return the description of a tree that was read from a file, or would be written to one."""
    return _MixtureChecker(notes).mixture(tree, "", (path.resolve(),))


def _parse_position(name: str) -> float:
    """Return a point of a table; whole numbers are integers."""
    number = cast("float", parse_number(name))
    return int(number) if number == int(number) else number


@dataclass
class _MixtureChecker:
    """Checks the parts of a mixture; every problem goes to `notes`."""

    notes: ProblemLog

    def mixture(
        self, tree: MixtureNode, at: str, chain: tuple[Path, ...], nested: bool = False
    ) -> MixtureFile | None:
        given = (NESTED_MIXTURE_SECTION if nested else MIXTURE).read(tree, at, self.notes)
        if given is INVALID:
            return None
        marks = {"": tree, **cast("dict[str, MixtureNode]", tree.value)}
        source_nodes = cast("dict[str, MixtureNode]", given.pop("sources", {}))
        entries = [
            self.source(name, node, join_key(at, f"sources.{name}"), chain)
            for name, node in source_nodes.items()
        ]
        given.pop("include", None)
        # The parser noted duplicate names; the description keeps the first of them.
        model = MixtureFile(
            sources=tuple(source for source in entries if source is not None),
            stages=tuple(Stage(**stage) for stage in given.pop("stages", ())),
            schedule=self.schedule(given.pop("schedule", None), marks.get("schedule")),
            shuffle=self.shuffle(given.pop("shuffle", None), tree, join_key(at, "shuffle")),
            tokenize=self.tokenize(given.pop("tokenize", None), marks.get("tokenize")),
            chat=self.chat(given.pop("chat", None), marks, join_key(at, "chat")),
            split=self.split(given.pop("split", None)),
            horizon=self.horizon(given.pop("horizon", None), marks.get("horizon")),
            batch=self.batch(given.pop("batch", None), given.pop("global_batch_size", None), marks),
            pack=self.pack(given.pop("pack", None), marks.get("pack"), join_key(at, "pack")),
            cache=self.cache(given.pop("cache", None), marks.get("cache"), join_key(at, "cache")),
            exclude=self.exclude(given.pop("exclude", None), marks.get("exclude")),
            marks=marks,
            **given,
        )
        self.shares(model, at)
        return model

    def source(
        self, name: str, node: MixtureNode, at: str, chain: tuple[Path, ...]
    ) -> SourceEntry | None:
        given = SOURCE_SECTION.read(node, at, self.notes)
        if given is INVALID:
            return None
        marks = {"": node, **cast("dict[str, MixtureNode]", node.value)}
        error = self.notes.error
        if not name or name.startswith("+") or "/" in name:
            error(node, at, "a source name must not be empty, contain '/' or begin with '+'")
        if sum(key in marks for key in SHARE_KEYS) > 1:
            error(
                node,
                at,
                f"give only one of {', '.join(SHARE_KEYS)}: each defines the share of the source",
            )
        if ("path" in marks) == ("mixture" in marks):
            error(node, at, "give either path (files) or mixture (a nested mixture)")
        inner = None
        if "mixture" in given:
            for key in (key for key in _FILE_SOURCE_KEYS if key in marks):
                error(
                    marks[key],
                    join_key(at, key),
                    f"{key} applies to sources of files; move it into the nested mixture",
                )
            inner = self.inner(given.pop("mixture"), join_key(at, "mixture"), chain)
        start, stop = given.get("start"), given.get("stop")
        if stop is not None and stop <= (start or 0):
            error(
                marks["stop"],
                join_key(at, "stop"),
                f"it stops at {stop} and starts at {start or 0}, so it is never read",
            )
        if len(set(given.get("columns", ()))) != len(given.get("columns", ())):
            error(marks["columns"], join_key(at, "columns"), "a column is named twice")
        if "where" in given:
            self.where(given["where"], marks["where"], join_key(at, "where"))
        bounds = given.get("slice")
        if (
            bounds
            and len(bounds) == 3
            and bounds[2] is not None
            and (isinstance(bounds[2], str) or bounds[2] < 1)
        ):
            error(
                marks["slice"],
                join_key(at, "slice"),
                f"the step must be a whole number of at least 1, not {bounds[2]}",
            )
            del given["slice"]
        partition = self.partition(given, marks, at)
        if "path" in given:
            paths = tuple(resolve_beside(marks["path"].file, path) for path in given.pop("path"))
            if all(
                self.notes.permits_path(path, marks["path"], join_key(at, "path")) for path in paths
            ):
                given["path"] = paths
        shuffle = self.shuffle(given.pop("shuffle", None), node, join_key(at, "shuffle"))
        tokenize = self.tokenize(given.pop("tokenize", None), marks.get("tokenize"))
        chat = self.chat(given.pop("chat", None), marks, join_key(at, "chat"))
        split = given.pop("split", None)
        if isinstance(split, dict):
            if inner is not None:
                error(
                    marks["split"],
                    join_key(at, "split"),
                    "split applies to sources of files; move it into the nested mixture",
                )
            split = self.split(cast("dict[str, Any]", split))
        given |= {"split": split, "partition": partition}
        return SourceEntry(
            name, shuffle=shuffle, tokenize=tokenize, chat=chat, mixture=inner, marks=marks, **given
        )

    def inner(self, node: MixtureNode, at: str, chain: tuple[Path, ...]) -> MixtureFile | None:
        """Read a nested mixture: its settings, or a file."""
        if isinstance(node.value, dict):
            return self.mixture(node, at, chain, nested=True)
        if not isinstance(node.value, str):
            self.notes.error(
                node,
                at,
                f"expected a mixture file or the settings of a mixture, not {format_node(node)}",
            )
            return None
        if (path := resolve_included(node, at, self.notes)) is None or has_include_cycle(
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

    def numbers(self, given: Any, node: MixtureNode | None, at: str) -> Any:
        """Return a number, or the schedule of a table of numbers; None for an invalid one."""
        if node is None or not isinstance(given, dict):
            return given
        table = cast("dict[str, Any]", given)
        if "points" not in table:
            return None
        points = {parse_number(name): number for name, number in table["points"].items()}
        if len(points) < len(table["points"]):
            names = ", ".join(table["points"])
            message = f"two points are one position ({names}): keep one of them"
            self.notes.error(node, join_key(at, "points"), message)
            return None
        try:
            schedule = Schedule(cast("Any", points), unit=table.get("unit", "steps"))
            parse_number_plan(schedule, at, "{0: 512, 10_000: 8192}")
        except ConfigError as error:
            message = str(error).removeprefix(f"{at}: ")
            self.notes.error(node, join_key(at, "points"), message)
            return None
        return schedule

    def batch(
        self, given: Any, global_size: Any, marks: Mapping[str, MixtureNode]
    ) -> Batching | None:
        global_size = self.numbers(global_size, marks.get("global_batch_size"), "global_batch_size")
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
                    "global_batch_size already sets the rows of all ranks: remove this key",
                )
                return None
        return Batching(global_size, over_ranks=True, **given)

    def pack(
        self, given: dict[str, Any] | None, node: MixtureNode | None, at: str
    ) -> dict[str, Any] | None:
        """Return the options of packing, and report those that contradict each other."""
        if not given or node is None or "length" not in given:
            return None
        children = cast("dict[str, MixtureNode]", node.value)
        length = self.numbers(given["length"], children["length"], join_key(at, "length"))
        if length is None:
            return None
        given = {**given, "length": length}
        try:
            check_packing(given)
        except ConfigError as error:
            message = re.sub(r"^pack(\(Schedule\(...\)\) is)?:? ?", "", str(error))
            named = [name for name in children if re.search(rf"\b{name}\b", message)]
            mark = min(named, key=message.index, default="")
            self.notes.error(children.get(mark, node), join_key(at, mark) if mark else at, message)
        return given

    def where(self, given: dict[str, Any], node: MixtureNode, at: str) -> None:
        """Report conditions that no value can be compared with."""
        for column, condition in given.items():
            child = cast("dict[str, MixtureNode]", node.value)[column]
            if isinstance(child.value, dict) and len(child.value) != len(condition):
                continue  # a part of it is a problem already
            try:
                normalize_selection({column: condition})
            except ConfigError as error:
                message = str(error).removeprefix("where: ")
                self.notes.error(child, join_key(at, column), message)

    def partition(
        self, given: dict[str, Any], marks: Mapping[str, MixtureNode], at: str
    ) -> Partitioning | None:
        """Take the settings of a partition from those of a source."""
        error, columns = self.notes.error, given.pop("partition_by", None)
        options: dict[str, Any] = {key: given.pop(key) for key in _PARTITION_KEYS if key in given}
        if columns is None:
            for key in () if "partition_by" in marks else options:
                error(marks[key], join_key(at, key), f"{key} needs partition_by")
            return None
        if len(set(columns)) < len(columns):
            error(marks["partition_by"], join_key(at, "partition_by"), "a column is named twice")
        parts = cast("dict[str, Any]", options.pop("mix", {}))
        settings = Partitioning(columns, **options, **parts)
        chosen, rest, only = settings.input, settings.rest, settings.only
        try:
            check_parts(settings.min_size, rest, only)
        except ConfigError as problem:
            key = next((key for key in ("rest", "only") if f"({key}=" in str(problem)), "only")
            error(marks[key], join_key(at, key), str(problem).partition(": ")[2])
        if chosen is not None and parts:
            error(marks["mix"], join_key(at, "mix"), "input reads one part: remove one of them")
        if chosen is not None and only is not None and chosen not in (*only, rest):
            known = f"{suggest_names(chosen, only) or f'; there are {join_first(only)}'}"
            error(marks["input"], join_key(at, "input"), f"only has no {chosen!r}{known}")
        if chosen is None and "max_epochs" in marks:
            message = "the parts repeat by themselves: give mix: {max_epochs: N}"
            error(marks["max_epochs"], join_key(at, "max_epochs"), message)
        if settings.weights is not None and settings.temperature is not None:
            message = "temperature derives the weights from sizes: remove one of them"
            error(marks["mix"], join_key(at, "mix"), message)
        elif settings.weights is not None and not any(settings.weights.values()):
            error(marks["mix"], join_key(at, "mix.weights"), "all weights are 0")
        return settings

    def shuffle(self, given: Any, node: MixtureNode, at: str) -> Shuffling | None:
        if given is None or isinstance(given, str):
            return Shuffling(given) if given else None
        if ("rows" in given) != ("window" in given):
            self.notes.error(node, at, "a block shuffle needs both rows and window")
            return None
        if "rows" in given and "buckets" in given:
            self.notes.error(node, at, "give either rows and window, or buckets")
            return None
        return Shuffling(
            "block" if "rows" in given else "buckets" if "buckets" in given else "full", **given
        )

    def cache(self, path: str | None, node: MixtureNode | None, at: str) -> str | None:
        """Return the cache folder, which is local even if the file is in a store."""
        if (
            path is None
            or node is None
            or not self.notes.permits("cache", node, at, "keep a cache on this machine")
        ):
            return None
        return path if is_remote(node.file) else resolve_beside(node.file, path)

    def exclude(self, path: str | None, node: MixtureNode | None) -> str | None:
        if path is None or node is None:
            return None
        absolute = resolve_beside(node.file, path)
        return absolute if self.notes.permits_path(absolute, node, "exclude") else None

    def tokenize(self, given: Any, node: MixtureNode | None) -> Tokenizing | Literal["none"] | None:
        if given == "none":
            return "none"
        if not given or node is None or "tokenizer" not in given:
            return None
        tokenizer = self.tokenizer(given["tokenizer"], node, "tokenize.tokenizer")
        settings: dict[str, Any] = {**given, "tokenizer": tokenizer}
        return None if tokenizer is None else Tokenizing(**settings)

    def chat(self, given: Any, marks: Mapping[str, MixtureNode], at: str) -> Chatting | None:
        if given is None or given is INVALID:
            return None
        node, children = marks["chat"], cast("dict[str, MixtureNode]", marks["chat"].value)
        if "tokenize" in marks:
            self.notes.error(
                node, at, "tokenize already makes the tokens: remove one of tokenize and chat"
            )
        if "tokenizer" not in given:
            return None
        tokenizer = self.tokenizer(
            given["tokenizer"], children["tokenizer"], join_key(at, "tokenizer")
        )
        settings: dict[str, Any] = {**given, "tokenizer": tokenizer}
        template = given.get("template")
        if template is not None and is_template_file(template):
            mark = children["template"]
            settings["template"] = resolve_beside(mark.file, template)
            if not self.notes.permits_path(settings["template"], mark, join_key(at, "template")):
                return None
        if given.get("allowed_special") == ("all",):
            settings["allowed_special"] = "all"
        return None if tokenizer is None else Chatting(**settings)

    def tokenizer(self, name: str, node: MixtureNode, at: str) -> str | None:
        """Return the path of a tokenizer, or its name on a hub; None if it is not permitted."""
        absolute = resolve_beside(node.file, name)
        on_hub = _HUB_NAME.fullmatch(name) and not os.path.exists(name)
        is_named_file = absolute.endswith((".json", ".model"))
        requested = absolute if is_named_file else name
        if not on_hub and not self.notes.permits_path(requested, node, at):
            return None
        # In a store, the suffix decides between file and hub name: no request is sent.
        is_file = is_named_file or (not is_remote(absolute) and os.path.exists(absolute))
        return absolute if is_file else name

    def split(self, given: dict[str, Any] | None) -> Splitting | None:
        return Splitting(**given) if given and "held_out" in given else None

    def schedule(self, given: Any, node: MixtureNode | None) -> Scheduling | None:
        if given is None or node is None:
            return None
        if len(rules := given.get("interpolation", ())) < 2:
            given["interpolation"] = rules[0] if rules else "step"
        points, is_share = dict[float, Any](), given.get("unit") == "fraction"
        for name, weights in given.pop("points", {}).items():
            position = _parse_position(name)
            if (position > 1) if is_share else (position != int(position)):
                expected = "a fraction from 0 to 1" if is_share else "a whole number"
                children = cast("dict[str, MixtureNode]", node.value)
                self.notes.error(
                    children["points"], f"schedule.points.{name}", f"expected {expected}"
                )
                return None
            points.setdefault(position, weights)
        return Scheduling(points=tuple(sorted(points.items(), key=lambda point: point[0])), **given)

    def horizon(self, given: Any, node: MixtureNode | None) -> tuple[str, float] | None:
        if not given or node is None:
            return None
        if len(given) > 1:
            self.notes.error(node, "horizon", f"give one unit, not {', '.join(given)}")
        return next(iter(given.items()))

    # ------------------------------------------------------------ shares

    def shares(self, model: MixtureFile, at: str) -> None:
        """Check that weights, amounts, schedule and temperature do not contradict each other."""
        error, marks = self.notes.error, model.marks
        self.groups(model, at)
        before = len(self.notes.problems)
        self.stages(model, at)
        if model.changes_sizes:
            self.step_sizes(model, before)
        given = [(source, key) for source in model.sources for key in source.shares]
        points = model.schedule.points if model.schedule else ()
        if model.temperature is not None and points:
            error(
                marks["temperature"],
                join_key(at, "temperature"),
                "the schedule defines the weights: remove one of them",
            )
        if points or model.temperature is not None:
            reason = (
                "the schedule defines the weights"
                if points
                else "temperature derives the weights from sizes"
            )
            for source, key in given:
                error(
                    source.marks[key],
                    join_key(at, f"sources.{source.name}.{key}"),
                    f"{reason}: remove one of them",
                )
        elif given and len(given) < len(model.sources) and not model.weighs_in_stages:
            grouped = {source.group for source, _ in given}
            for source in model.sources:
                if (
                    not source.shares
                    and source.group in grouped
                    and not set(source.marks) - _KNOWN_SOURCE_KEYS
                ):
                    error(
                        source.marks[""],
                        join_key(at, f"sources.{source.name}"),
                        "the source has no weight, but others have one: give all sources one, or none",
                    )
        elif (
            model.sources
            and not model.weighs_in_stages
            and all(source.zero for source in model.sources)
        ):
            error(marks.get("sources", marks[""]), join_key(at, "sources"), "all weights are 0")
        if points:
            self.points(model, dict(points), at)
        kinds = {
            "weight" if key == "weight" else "amount"
            for source, key in given
            if len(source.shares) == 1
        }
        if len(kinds) == 2 and not model.has_length:
            error(
                marks[""],
                join_key(at, "horizon"),
                "some sources have a weight, others an amount: add a horizon",
            )

    def groups(self, model: MixtureFile, at: str) -> None:
        groups, error = model.groups or {}, self.notes.error
        for source in model.sources:
            here = join_key(at, f"sources.{source.name}")
            if source.group is not None and source.group not in groups:
                known = suggest_names(source.group, groups) or (
                    f"; there are {', '.join(groups)}" if groups else ": add groups"
                )
                error(
                    source.marks["group"],
                    f"{here}.group",
                    f"there is no group {source.group!r}{known}",
                )
            for key in ("tokens", "epochs") if model.groups or model.weighs_in_stages else ():
                if key in source.marks:
                    error(
                        source.marks[key],
                        f"{here}.{key}",
                        "groups and stages take no amounts: give weights",
                    )
        for name in groups:
            here, mark = (
                join_key(at, f"groups.{name}"),
                cast("dict[str, MixtureNode]", model.marks["groups"].value)[name],
            )
            if name in model.names:
                error(mark, here, f"{name!r} is also the name of a source: rename the group")
            elif not any(source.group == name for source in model.sources):
                error(
                    mark,
                    here,
                    f"the group has no source: set group: {name} on a source, or remove the group",
                )
        for name in model.group_max_epochs or {}:
            if name not in groups:
                mark = cast("dict[str, MixtureNode]", model.marks["group_max_epochs"].value)[name]
                known = suggest_names(name, groups) or (
                    f"; there are {', '.join(groups)}" if groups else ": add groups"
                )
                error(
                    mark,
                    join_key(at, f"group_max_epochs.{name}"),
                    f"there is no group {name!r}{known}",
                )
        if groups and model.schedule and model.schedule.points:
            error(
                model.marks["groups"],
                join_key(at, "groups"),
                "the schedule defines the weights: remove one of them",
            )

    def stages(self, model: MixtureFile, at: str) -> None:
        if not model.stages:
            return
        error, node = self.notes.error, model.marks["stages"]
        nodes = node.value if isinstance(node.value, tuple) else ()
        if model.weighs_in_stages and model.schedule is not None:
            error(
                model.marks["schedule"],
                join_key(at, "schedule"),
                "the stages define the weights: remove one of them",
            )
        for source in model.sources if model.weighs_in_stages else ():
            for key in ("start", "stop"):
                if key in source.marks:
                    error(
                        source.marks[key],
                        join_key(at, f"sources.{source.name}.{key}"),
                        "stages and start/stop exclude each other: express it with stages",
                    )
        known = {*model.names, *(model.groups or ())}
        before = len(self.notes.problems)
        for number, (stage, mark) in enumerate(zip(model.stages, nodes, strict=True)):
            here = join_key(at, f"stages[{number}]")
            for name in sorted(set(stage.weights) - known):
                error(
                    mark,
                    f"{here}.weights.{name}",
                    f"there is no source or group {name!r}{suggest_names(name, known)}",
                )
            if stage.until is None and number + 1 < len(nodes):
                error(mark, here, "until is missing: only the last stage may omit it")
            if stage.until is not None and stage.until.unit == "percent" and model.horizon is None:
                error(
                    mark,
                    f"{here}.until",
                    "a percentage needs a horizon: add one to the file",
                )
        if model.changes_sizes or len(self.notes.problems) > before:
            return
        try:
            if model.horizon is not None and not model.has_length:
                find_stage_unit(model, "samples")  # how many depends on the data
            else:
                compute_stage_ends(model, model.run)
        except ConfigError as problem:
            error(node, join_key(at, "stages"), str(problem))

    def step_sizes(self, model: MixtureFile, before: int) -> None:
        """Check row lengths and global batches that change during the run.

        Steps are not planned if there are more than `before` problems.
        """
        error, marks = self.notes.error, model.marks
        nodes = marks["stages"].value if model.stages else ()
        lengths = [stage.length for stage in model.stages if stage.length is not None]
        for number, stage in enumerate(model.stages):
            children = cast("dict[str, MixtureNode]", cast("Any", nodes)[number].value)
            here = f"stages[{number}]"
            if stage.length is not None and "pack" not in marks:
                message = "the file packs no rows: add pack, with the length before this stage"
                error(children["length"], f"{here}.length", message)
            elif stage.length is not None and model.pack is not None:
                try:
                    check_packing(model.pack, [stage.length])
                except ConfigError as problem:
                    message = re.sub(r"^pack\(Schedule\(...\)\) is", "it is", str(problem))
                    error(children["length"], f"{here}.length", message)
            if stage.global_batch_size is not None and not (
                "global_batch_size" in marks and model.batch
            ):
                message = "the file has no global_batch_size, for the steps before: add one"
                error(children["global_batch_size"], f"{here}.global_batch_size", message)
        size = None if model.batch is None else model.batch.size
        if isinstance(size, Schedule) and size.unit == "tokens" and "pack" not in marks:
            message = "points in tokens count the tokens of packed rows: add pack, or give steps"
            error(marks["global_batch_size"], "global_batch_size.unit", message)
        if model.stop not in (None, "restart"):
            error(
                marks["stop"],
                "stop",
                "row lengths and batches that change need a mixture without an end: remove stop, "
                "and give the run a horizon",
            )
        if model.pack and model.horizon and model.horizon[0] in ("samples", "epochs"):
            error(
                marks["horizon"],
                "horizon",
                f"{model.horizon[0]} are counted before packing, and no number of steps: with row "
                "lengths or batches that change, give steps or tokens",
            )
        if lengths or (model.pack and isinstance(model.pack["length"], Schedule)):
            for source in model.sources:
                how = None if source.mixture else source.encoding(model)
                if isinstance(how, Tokenizing) and not how.counted:
                    mark = source.marks if source.tokenize else marks
                    error(
                        mark.get("tokenize", marks[""]),
                        f"sources.{source.name}.tokenize" if source.tokenize else "tokenize",
                        "row lengths that change are planned from known lengths: add 'counted: "
                        "true'",
                    )
            if model.one_source_per not in (None, 1):
                message = (
                    "one_source_per packs each source by itself, and row lengths that change need "
                    "sources without an end: leave it out, or write the pipeline in Python, with "
                    ".repeat() on each source"
                )
                error(marks["one_source_per"], "one_source_per", message)
        batches = isinstance(size, Schedule) or any(s.global_batch_size for s in model.stages)
        if batches and model.one_source_per == "global_step":
            message = (
                "each step draws from one source, and the steps change: give the rows as a number"
            )
            error(marks["one_source_per"], "one_source_per", message)
        if len(self.notes.problems) > before:
            return
        try:
            _ = model.equal_steps, model.stage_ends
        except ConfigError as problem:
            key = "stages" if model.stages else "pack" if model.pack else "global_batch_size"
            error(marks.get(key, marks[""]), key, str(problem))

    def points(
        self, model: MixtureFile, weights: Mapping[float, Mapping[str, float]], at: str
    ) -> None:
        points = cast(
            "dict[str, MixtureNode]",
            cast("dict[str, MixtureNode]", model.marks["schedule"].value)["points"].value,
        )
        names = dict[float, str]()
        for name, node in points.items():
            position = _parse_position(name)
            if (first := names.setdefault(position, name)) != name:
                self.notes.error(
                    node,
                    join_key(at, f"schedule.points.{name}"),
                    f"{first} and {name} are one position: keep one of them",
                )
            else:
                self.point(model, name, node, weights[position], at)

    def point(
        self,
        model: MixtureFile,
        name: str,
        node: MixtureNode,
        weights: Mapping[str, float],
        at: str,
    ) -> None:
        here, mark = (
            join_key(at, f"schedule.points.{name}"),
            cast("dict[str, MixtureNode]", node.value),
        )
        for source in weights:
            if source not in model.names:
                self.notes.error(
                    mark[source],
                    join_key(here, source),
                    f"there is no source {source!r}{suggest_names(source, model.names)}",
                )
        if missing := [source for source in model.names if source not in weights]:
            self.notes.error(
                node, here, f"a point must name every source; missing: {', '.join(missing[:5])}"
            )
        if not any(weights.values()):
            self.notes.error(node, here, "all weights of this point are 0")
