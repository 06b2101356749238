"""`ps.mix`, concat, zip and interleave: several inputs combined by a rule."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from math import fsum
from operator import is_
from typing import Any, Self, cast

from ...errors import ConfigError
from ...types import Ints, Json, Path
from ..base.cursors import parse_cursor_int, parse_cursor_list
from ..base.shown import Shown, attempt, counted, format_call, format_percent, shorten_name
from ..mixing import Exhausted, event_from_json
from ..mixing.rules import By, ByWeight, Drawing, Draws, Rule, Weighted, caps_of
from ..packing import LengthPlan
from ..streams.lane_positions import LaneAssignment
from .mix_history import History, MixtureOp, compile_history, find_integer_cache, mixture_op
from .mix_op import MixOp
from .mix_stream import MixStreamOp
from .op import Op
from .paths import Migration
from .read import is_counter
from .seek import BlockMeter
from .step import Builder, ShowTree, Step, first_reason, iter_steps
from .tally import Tally, Uncountable

_LONG_RUN = 1 << 40  # draws after which the shares of an endless mixture are close to their limits
_ADDED_UP = 1 << 22  # samples of passes that are added up one by one to count these draws


@dataclass(frozen=True)
class Mix(Step):
    """Combine several inputs by a rule."""

    inputs: tuple[Step, ...]
    names: tuple[str, ...]
    rule: Rule
    loss_weights: tuple[tuple[str, float], ...] = ()
    """Weights of losses by input, for the training loop; the order does not depend on them."""

    @property
    def children(self) -> tuple[Step, ...]:
        return self.inputs

    def with_children(self, children: tuple[Step, ...], /) -> Self:
        return replace(self, inputs=children)

    def child_paths(self, path: Path) -> list[tuple[Step, Path]]:
        places = self.names if self.rule.named else range(len(self.inputs))
        return [(child, (*path, place)) for child, place in zip(self.inputs, places, strict=True)]

    @property
    def weighted(self) -> Weighted | None:
        """The rule of a mixture by weight."""
        return self.rule if isinstance(self.rule, Weighted) else None

    @cached_property
    def _counted(self) -> Step | None:
        """The stream that a zip numbers."""
        if self.rule.paired and len(self.inputs) == 2 and is_counter(self.inputs[0]):
            return self.inputs[1]
        return None

    # ------------------------------------------------------------ description

    def describe(self) -> dict[str, Json]:
        return self.rule.describe()

    def describe_inputs(self, describe: Callable[[Step], Json]) -> dict[str, Json]:
        inputs = zip(self.names, self.inputs, strict=True)
        return {"of": {name: describe(child) for name, child in inputs}}

    def with_saved_lengths(self, saved: Any) -> Step:
        inputs = tuple(
            child.with_saved_lengths(saved["of"][name])
            for name, child in zip(self.names, self.inputs, strict=True)
        )
        rule = self.rule
        if isinstance(rule, Weighted) and rule.lengths is not None:
            lengths = tuple((name, float(saved["lengths"][name])) for name in self.names)
            rule = replace(rule, lengths=lengths)
        if isinstance(rule, Weighted) and rule.point_lengths is not None:
            points = tuple((name, float(saved["point_lengths"][name])) for name in self.names)
            rule = replace(rule, point_lengths=points)
        if isinstance(rule, Weighted) and rule.one_source_per == "global_step":
            rule = replace(rule, global_step=saved["global_step"])
        return replace(self, inputs=inputs, rule=rule)

    def show_root(self, name: str, lines: int, show_tree: ShowTree) -> Shown:
        rule = self._write_rule()
        text = f"{shorten_name(name)}: {rule}" if name else rule
        return Shown(text, self._show_inputs(lines, show_tree))

    def _show_inputs(self, lines: int, show_tree: ShowTree) -> tuple[Shown, ...]:
        """Show the inputs with the largest weights, and the number of others."""
        first, last = attempt(partial(self.rule.shares, self.names), ({}, {}))
        inputs = list(zip(self.names, self.inputs, strict=False))
        if first:
            inputs.sort(key=lambda entry: -max(first[entry[0]], last[entry[0]]))
        largest = inputs if len(inputs) <= lines else inputs[: max(0, lines - 1)]
        shown, spare = list[Shown](), lines - len(largest) - (len(largest) < len(inputs))
        shares = [_format_share(first[name], last[name]) if first else "" for name, _ in largest]
        width = max(map(len, shares), default=0)
        for share, (name, child) in zip(shares, largest, strict=True):
            tree = show_tree(child, name if self.rule.keyed_by_name else "", 1 + spare)
            spare -= tree.count_lines() - 1
            text = f"{share:>{width}}  {tree.text}" if share else tree.text
            shown.append(Shown(text, tree.below))
        if rest := inputs[len(largest) :]:
            together = sum(first[name] for name, _ in rest) if first else 0
            share = f", {format_percent(together)} together" if first else ""
            shown.append(Shown(f"... {len(rest)} more{share}"))
        return tuple(shown) if lines > 0 else ()

    def _write_rule(self) -> str:
        """Return the rule as users write it."""
        inputs = counted(len(self.inputs), "input")
        return format_call(self.rule.METHOD, inputs, **self.rule.options())

    # ------------------------------------------------------------ facts

    def keeps_stretches(self, rows: int, repeated: bool) -> bool:
        return rule_by_step(self) is not None

    @cached_property
    def reason_not_indexed(self) -> str | None:
        return self.rule.unindexed or first_reason(self.inputs)

    @cached_property
    def is_endless(self) -> bool:
        if self._counted is not None:
            return self._counted.is_endless
        return self.rule.endless(self.names, [child.is_endless for child in self.inputs])

    @cached_property
    def lengths_known(self) -> bool:
        return self.rule.shares_known and all(child.lengths_known for child in self.inputs)

    @cached_property
    def token_counter(self) -> tuple[str, str] | None:
        counters = {child.token_counter for child in self.inputs}
        return counters.pop() if len(counters) == 1 else None

    def mean_tokens(self) -> float | None:
        # By how often each input is drawn from: in a pass, or in the long run.
        if not self.rule.shares_known or self.reason_not_indexed is not None:
            return None
        builder = Builder(self)
        sizes = tuple(op.size for op in self._bind_inputs(builder, 0, ()))
        mixture = self.history(builder, ()).present if self.weighted else None
        schedule = mixture or self.rule.schedule(sizes)
        draws = _count_draws(schedule).tolist()
        tokens = list[float]()
        for child, count in zip(self.inputs, draws, strict=True):
            mean = child.mean_tokens() if count else 0.0
            if mean is None:
                return None
            tokens.append(count * mean)
        return fsum(tokens) / max(1, sum(draws))

    def token_sources(self, path: Path, complete: bool = False) -> Iterator[tuple[str, object]]:
        weights = self.weighted and self.weighted.weights
        weights = dict(weights) if isinstance(weights, tuple) else {}
        for (child, place), name in zip(self.child_paths(path), self.names, strict=True):
            if weights.get(name, 1) or not complete:
                yield from child.token_sources(place, complete)

    @cached_property
    def has_exclusions(self) -> bool:
        return self.weighted is None and super().has_exclusions

    # ------------------------------------------------------------ randomness

    @cached_property
    def source_names(self) -> tuple[str, ...]:
        if self.rule.keyed_by_name:
            return self.names
        inputs = self.inputs if self._counted is None else (self._counted,)
        return tuple(name for child in inputs for name in child.source_names)

    @cached_property
    def step_names(self) -> frozenset[str]:
        return frozenset() if self.rule.keyed_by_name else super().step_names

    @cached_property
    def unnamed_steps(self) -> Mapping[str, int]:
        return {} if self.rule.keyed_by_name else super().unnamed_steps

    def seeded(self, seed: int) -> Step:
        # A mixture has a seed, which its inputs use.
        return self if self.weighted else super().seeded(seed)

    def _seed_of_inputs(self, seed: int) -> int:
        return self.weighted.seed if self.weighted else seed

    # ------------------------------------------------------------ compilation

    def ordered_sources(self, builder: Builder, path: Path) -> frozenset[str]:
        return frozenset() if self.weighted else super().ordered_sources(builder, path)

    def collect(self, builder: Builder, seed: int, path: Path) -> None:
        if self.weighted:
            builder.mixtures[path] = self, seed
        super().collect(builder, self._seed_of_inputs(seed), path)

    def bind(self, builder: Builder, seed: int, path: Path) -> Op:
        if self.weighted and builder.present is not None:
            return builder.present.op(self, seed, path)
        rule, inputs = self.rule, self._bind_inputs(builder, seed, path)
        if rule.unindexed or not all(op.indexed for op in inputs):
            return MixStreamOp(
                inputs,
                self.names,
                partial(self.draws, path),
                at=path if self.weighted else None,
                paired=rule.paired,
                endless=self.is_endless,
            )
        leaves = len(builder.leaves)
        if self.weighted:
            history = self.history(builder, path)
            if (change := self.weighted.draw_change) is not None:
                return MixOp(inputs, change.apply_to(history.mixture), leaves, path)
            with_rows = partial(self.input_with_rows, builder, path)
            return mixture_op(history, inputs, leaves, path, with_rows)
        schedule, at = rule.schedule(tuple(op.size for op in inputs)), path if rule.named else None
        return MixOp(inputs, schedule, leaves, at, rule.counts_passes)

    def _bind_inputs(self, builder: Builder, seed: int, path: Path) -> tuple[Op, ...]:
        seed = self._seed_of_inputs(seed)
        self._divide_row_lengths(builder, path)
        return tuple(builder.op(child, seed, place) for child, place in self.child_paths(path))

    def _divide_row_lengths(self, builder: Builder, path: Path) -> None:
        """Give packed inputs the lengths of their rows, where those of the mixture are planned."""
        plan = find_length_plan(self) if self.weighted else None
        if plan is None or plan.rows is None:
            return
        rule = cast(Weighted, self.rule)
        if rule.lengths is not None:
            raise ConfigError(
                "pack(Schedule(...)) of each input of a mixture: all rows of a step have one "
                "length, so their tokens are no weights; leave out unit='tokens', in the schedule "
                "too"
            )
        earlier, endless = builder.earlier_lengths.get(path), (None,) * len(self.names)
        eras = compile_history(rule, self.names, endless, path).eras
        counts = list[list[tuple[int, int]]]()
        for row, length in plan.find_earlier() if earlier is None else earlier:
            era = [era for era in eras if not era.epoch and era.place <= row][-1]
            counts.append([(count, length) for count in era.mixture.counts(row).tolist()])
        for (_, place), *rows in zip(self.child_paths(path), *counts, strict=True):
            builder.earlier_lengths[place] = tuple(rows)

    def input_named(self, path: Path, name: str) -> tuple[Step, int, Path]:
        """Return an input of a weighted mixture, the seed in force there, and its path."""
        child, place = self.child_paths(path)[self.names.index(name)]
        return child, self._seed_of_inputs(0), place

    def input_with_rows(
        self, builder: Builder, path: Path, name: str, rows: Mapping[str, int]
    ) -> Op | None:
        """Return an input of a weighted mixture over sources with these numbers of rows.

        Return None if the input has none of these sources. Mixtures in it are the present ones. No
        sample of these sources is excluded.
        """
        if name not in self.names:
            return None
        child, seed, place = self.input_named(path, name)
        if child.ordered_sources(builder, place).isdisjoint(rows):
            return None
        return builder.with_rows(rows).op(child, seed, place)

    def history(self, builder: Builder, path: Path) -> History:
        """Return the mixture of a mix by weight, with its changes."""
        if self.reason_not_indexed is not None:
            return self.stream_history(path)
        rule, inputs = cast(Weighted, self.rule), self._bind_inputs(builder, 0, path)
        lengths = None
        if rule.clock:
            by_loss = rule.unit == "loss_tokens"
            lengths = builder.loss_lengths if by_loss else builder.lengths.count_by(rule.sizer)
        meters = lengths and tuple(BlockMeter(op, lengths) for op in inputs)
        sizes = tuple(op.size for op in inputs)
        cache = find_integer_cache(inputs, lengths) if lengths and rule.unit == "tokens" else None
        return compile_history(rule, self.names, sizes, path, self.inputs, meters, cache)

    def stream_history(self, path: Path, rule: Weighted | None = None) -> History:
        """Return the mixture of a mix of streams by weight, with its changes."""
        rule = rule or cast(Weighted, self.rule)
        return compile_history(rule, self.names, (None,) * len(self.names), path)

    def draws(self, path: Path, lane: int = 0, lanes: int = 1) -> Draws:
        """Return the rule of a mix of streams at run time, as a lane has it."""
        share, rule = LaneAssignment(lane, lanes, mixed=True), self.rule
        if not isinstance(rule, Weighted):
            return rule.draws(len(self.inputs), share)
        if rule.unit != "samples":
            raise ConfigError(
                f"mix(unit={rule.unit!r}) needs inputs with random access, to know their lengths; filter "
                "before writing the data, or weight by samples"
            )
        if rule.stretch > 1 and (rule.stop != "restart" or rule.max_epochs is not None):
            raise ConfigError(
                f"mix(one_source_per={rule.one_source_per!r}): an input has no random access, so "
                "where it ends is not known beforehand; use stop='restart' without max_epochs"
            )
        key = self.names, path  # a key of its own, beside the mixture of indexed inputs
        if key not in rule.compiled:
            restarting = replace(rule, max_epochs=None, stop="restart")
            vars(restarting)["changed"] = rule.changed.setdefault("streams", {})
            rule.compiled[key] = self.stream_history(path, restarting).present
        passes = (0,) * len(self.inputs)
        return ByWeight(rule.compiled[key], share, rule.stop, caps_of(rule, self.names), passes)

    # ------------------------------------------------------------ cursors

    def _migrate(self, cursor: Json, at: Migration) -> Json:
        position, draws, drawn, inputs = parse_cursor_list(cursor, 4)
        places = dict(enumerate(range(len(inputs))))
        if at.path in at.names:
            former = list(at.names[at.path])
            places = {i: former.index(name) for i, name in enumerate(self.names) if name in former}
            run_position = parse_cursor_int(position) * at.lanes
            draws = self._migrate_draws(former, run_position, draws, drawn)
            drawn = [drawn[places[i]] if i in places else 0 for i in range(len(self.inputs))]
        moved = list[Json]()
        first = at.epoch * self.draws(at.path).per_pass, None
        for i, (child, path) in enumerate(self.child_paths(at.path)):
            done, inner = inputs[places[i]] if i in places else first
            below = at._replace(epoch=parse_cursor_int(done), path=path)
            moved.append([done, child.migrate_cursor(inner, below)])
        return [position, draws, drawn, moved]

    def _migrate_draws(self, former: list[str], position: int, saved: Any, drawn: Any) -> Json:
        """Return the draws of a mixture that continues where another one was at a position."""
        passes, over, events = parse_cursor_list(saved, 3)
        counts = {
            name: parse_cursor_int(count)
            for name, count in zip(former, drawn, strict=True)
            if name in self.names
        }
        ended = [
            event
            for event in map(event_from_json, events)
            if isinstance(event, Exhausted) and event.source in counts
        ]
        log = [Exhausted(position, event.source, event.count) for event in ended]
        passes_by_name = dict(zip(former, passes, strict=True))
        added = [name for name in self.names if name not in counts]
        return [
            [passes_by_name.get(name, 0) for name in self.names],
            bool(over) and not added,
            [event.to_json() for event in log],
        ]


def _count_draws(schedule: Drawing, length: int = _LONG_RUN) -> Ints:
    """Count the draws of each input in a pass, or in a long run of an endless mixture."""
    try:
        with Tally(0, most=_ADDED_UP if schedule.size is None else None).limited():
            return schedule.counts(length if schedule.size is None else schedule.size)
    except Uncountable:  # the passes of an input differ: a shorter run has similar shares
        return _count_draws(schedule, length >> 4)


def _format_share(first: float, last: float) -> str:
    if first == last:
        return format_percent(first)
    return f"{format_percent(first)} to {format_percent(last)}"


def find_mixtures(step: Step) -> dict[Path, Mix]:
    """Return the mixtures by weight in a tree, by path."""
    return {path: mix for mix, path in iter_steps(step) if isinstance(mix, Mix) and mix.weighted}


def rule_by_step(step: Step) -> Weighted | None:
    """Return the rule of a mixture of one source in each global step; None for other steps."""
    rule = step.weighted if isinstance(step, Mix) else None
    return rule if rule is not None and rule.one_source_per == "global_step" else None


def with_rule_by_step(step: Step, rows: int) -> Step:
    """Return a step with the rows of a global step, if it is a mixture that counts with them."""
    rule = rule_by_step(step)
    if not isinstance(step, Mix) or rule is None or rule.global_step == rows:
        return step
    return replace(step, rule=replace(rule, global_step=rows))


def mixture_below_functions(tree: Step) -> Mix | None:
    """Return the mixture of a tree that has only functions above it, if there is one."""
    while tree.keeps_positions:
        (tree,) = tree.children
    return tree if isinstance(tree, Mix) else None


def mixture_in_line(tree: Step) -> Mix | None:
    """Return the mixture of a tree that has only steps over one input above it, if there is one."""
    while tree.only_input is not None:
        tree = tree.only_input
    return tree if isinstance(tree, Mix) else None


def find_length_plan(step: Step) -> LengthPlan | None:
    """Return the plan of the row lengths of a tree with maps and mixtures by weight above it."""
    while step.children and (isinstance(step, Mix) or step.is_elementwise):
        step = step.children[0]
    return getattr(getattr(step, "fold", None), "plan", None)


def has_custom_rule(step: Step) -> bool:
    """Return whether a tree has a mixture that a rule of a user draws from."""
    return any(isinstance(mix, Mix) and isinstance(mix.rule, By) for mix, _ in iter_steps(step))


def replace_rules(
    step: Step,
    change: Callable[[Path, Weighted, int | None], Weighted],
    epoch: int | None,
    path: Path = (),
) -> Step:
    """Return the tree with other rules of its mixtures by weight.

    Args:
        step: the tree.
        change: returns the rule of the mixture at a path, in a pass of the mixture.
        epoch: the pass of the run.
        path: the path of the tree.
    """
    # Below a mix, and below a slice or a repeat of an indexed input, passes are counted apart.
    counted_apart = step.reason_not_indexed is None and not step.keeps_passes
    below = None if isinstance(step, Mix) or counted_apart else epoch
    children = tuple(
        replace_rules(child, change, below, place) for child, place in step.child_paths(path)
    )
    if not all(map(is_, children, step.children)):
        step = step.with_children(children)
    if not isinstance(step, Mix) or step.weighted is None:
        return step
    rule = change(path, step.weighted, epoch)
    return step if rule is step.rule else replace(step, rule=rule)


def bind_mixtures(builder: Builder) -> dict[Path, MixtureOp]:
    """Return the ops of the indexed mixtures by weight, by path."""
    return {
        path: cast(MixtureOp, builder.op(mix, seed, path))
        for path, (mix, seed) in builder.mixtures.items()
        if mix.reason_not_indexed is None
    }


def find_histories(builder: Builder, indexed: bool) -> dict[Path, History]:
    """Return the mixtures by weight with their changes, by path: indexed ones, or the others."""
    return {
        path: mix.history(builder, path)
        for path, (mix, _) in builder.mixtures.items()
        if isinstance(mix, Mix) and (mix.reason_not_indexed is None) == indexed
    }
