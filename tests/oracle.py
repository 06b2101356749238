"""Models of pipelines and of runs with changes, by plain list operations: what docs/semantics.md says.

It uses nothing of the library. `passes(d, k, orders)` yields the samples of pass `k` of a
description `d` (nested tuples). The order of a random step is not documented and has no model.
`orders(d, k)` returns it: positions in the pass of the input, or (input, position) for a mixture.
`allowed_orders.allowed` checks that it keeps the documented guarantees.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from fractions import Fraction
from itertools import count, islice
from math import ceil, inf
from typing import Any

INDEXED = {"seq", "tokens", "map", "map_batched", "map_with_index", "random_map", "shuffle", "window", "repeat", "repeat_each", "slice", "select",
           "shard", "limit", "skip", "concat", "zip", "batch", "with_source", "seed", "mix"}  # fmt: skip


def children(d):
    return (
        [c for _, c in d[1]]
        if d[0] == "mix"
        else list(d[1])
        if d[0] in ("concat", "zip")
        else [d[1]]
    )


def leaf(d):
    return d[0] in ("seq", "iterable", "tokens")


def lengths_known(d):
    """Documents of a token store under steps that only order them."""
    orders = (
        "shuffle",
        "window",
        "repeat",
        "repeat_each",
        "slice",
        "select",
        "shard",
        "limit",
        "skip",
        "concat",
        "seed",
        "mix",
    )
    return d[0] == "tokens" or (d[0] in orders and all(map(lengths_known, children(d))))


def indexed(d):
    if d[0] == "pack":
        return lengths_known(d[1])
    return d[0] in INDEXED and (leaf(d) or all(map(indexed, children(d))))


def endless(d):
    match d:
        case ("seq" | "iterable" | "tokens" | "slice" | "select" | "shard" | "limit", *_):
            return False
        case ("repeat", _, None, _):
            return True
        case ("zip", inputs):
            return all(map(endless, inputs))
        case ("mix", inputs, weights, _, stop, caps, _):
            drawn = [endless(c) for (_, c), w in zip(inputs, weights, strict=True) if w]
            return any(drawn) or (stop == "restart" and caps is None)
        case _:
            return any(map(endless, children(d)))


def again(d):
    """Return true if a second pass is defined: not for draws from an endless pass, for example."""
    if d[0] == "mix" and d[4] == "all_exhausted_oversample" and not indexed(d):
        return False
    if (
        leaf(d)
        or d[0] in ("slice", "select", "shard", "limit")
        or (d[0] == "skip" and indexed(d) and not endless(d))
    ):
        return True
    return not endless(d) and all(map(again, children(d)))


def passes(d, k, orders):
    def below(j=k):
        return passes(d[1], j, orders)

    match d:
        case ("seq" | "iterable", values, _):
            yield from values
        case ("tokens", sizes, _):
            for i in range(len(sizes)):
                yield list(range(1 + sum(sizes[:i]), 1 + sum(sizes[: i + 1])))
        case ("map", _, fn):
            yield from map(fn, below())
        case ("map_batched", _, fn, _):
            yield from (fn([x])[0] for x in below())
        case ("skip_map", _, fn):
            for x in below():
                try:
                    yield fn(x)
                except Exception as error:
                    if type(error).__name__ != "Skip":
                        raise
        case ("map_with_index", _, fn):
            yield from (fn(i, x) for i, x in enumerate(below()))
        case ("random_map", _, fn):
            yield from (fn(x, None) for x in below())
        case ("filter", _, fn):
            yield from filter(fn, below())
        case ("flat_map", _, fn):
            yield from (y for x in below() for y in fn(x))
        case ("repeat", _, n, again):
            for j in range(n * k, n * k + n) if n is not None else count():
                yield from below(j if again else 0)
        case ("repeat_each", _, n):
            yield from (x for x in below() for _ in range(n))
        case ("slice", child, a, b, c):
            yield from islice(below(0), a, b, c) if endless(child) else list(below(0))[a:b:c]
        case ("shard", _, i, n):
            yield from list(below(0))[i::n]
        case ("stride", _, i, n):  # lane `i` of `n`: the same places, but in every pass
            yield from list(below())[i::n]
        case ("select", _, places):
            yield from map(list(below(0)).__getitem__, places)
        case ("skip", child, n):
            yield from islice(
                below(0) if indexed(child) and not endless(child) else below(), n, None
            )
        case ("limit", _, n):
            yield from islice(below(0), n)
        case ("concat", inputs):
            for c in inputs:
                yield from passes(c, k, orders)
        case ("zip", inputs):
            yield from zip(*(passes(c, k, orders) for c in inputs), strict=False)
        case ("batch", _, n, drop):
            yield from rows(below(), n, drop)
        case ("rebatch", _, n, drop):
            yield from rows((row for group in below() for row in group), n, drop)
        case ("bucket_by_length", _, bounds, n, size):
            yield from grouped(below(), bounds, n, size)
        case ("batch_by_tokens", _, most, size):
            yield from by_tokens(below(), most, size)
        case ("pack", _, length, "concat_split", multiple):
            yield from end_to_end(below(), length, multiple)
        case ("with_source", _):
            name = source_name(d)
            yield from (
                {**x, "__source__": name, "__epoch__": k, "__index__": i}
                for i, x in enumerate(below())
            )
        case ("seed", _, _):
            yield from below()
        case ("shuffle" | "shuffle_buffer", _, _) | ("window", _, _, _):
            seen, rest = [], below()
            for i in orders(d, k):
                seen.extend(islice(rest, max(0, i + 1 - len(seen))))
                yield seen[i]
        case ("mix", inputs, *_):
            yield from mixed(d, dict(inputs), k, orders)
        case _:
            raise ValueError(f"no model of {d[0]!r} {d[2:]}")


def mixed(d, inputs, k, orders):
    if indexed(d) or d[4] != "restart" or d[5] is None:
        begun = Counter(name for j in range(k) for name, i in orders(d, j) if i == 0)
    else:  # woven: every input begins at a pass that none has reached
        caps = (
            [d[5]] if isinstance(d[5], int | float) else d[5]
        )  # one for all inputs, or one for each
        begun = Counter({name: k * max(map(ceil, caps)) for name in inputs})
    now = {}
    for name, i in orders(d, k):
        if i == 0:
            now[name] = passes(inputs[name], begun[name], orders)
            begun[name] += 1
        yield next(now[name])


def rows(samples, n, drop):
    group = []
    for x in samples:
        group.append(x)
        if len(group) == n:
            yield group
            group = []
    if group and not drop:
        yield group


def grouped(samples, bounds, n, size):
    open_ = [[] for _ in range(len(bounds) + 1)]
    for x in samples:
        bucket = bisect_left(bounds, size(x))
        open_[bucket].append(x)
        if len(open_[bucket]) == n:
            yield open_[bucket]
            open_[bucket] = []
    yield from (group for group in open_ if group)


def by_tokens(samples, most, size):
    group = []
    for x in samples:
        if group and sum(map(size, group)) + size(x) > most:
            yield group
            group = []
        group.append(x)
    if group:
        yield group


def end_to_end(documents, length, multiple=1):
    nothing = (0, None, 0)
    cells = (
        cell
        for number, doc in enumerate(documents)
        for cell in [
            *((t, number, place) for place, t in enumerate(tokens(doc))),
            *[nothing] * (-len(tokens(doc)) % multiple),
        ]
    )
    for row in rows(cells, length, False):
        segment = {
            number: s
            for s, number in enumerate(dict.fromkeys(n for _, n, _ in row if n is not None), 1)
        }
        row = [*row, *[nothing] * (length - len(row))]
        yield {"tokens": [int(t) for t, _, _ in row], "positions": [p for _, _, p in row],
               "segment_ids": [segment.get(n, 0) for _, n, _ in row]}  # fmt: skip


def tokens(document):
    return document["tokens"] if isinstance(document, dict) else document


def source_name(d):
    return d[2] if leaf(d) else source_name(d[1])


# ---------------------------------------------------------------- runs with changes


Key = tuple[str, int, int]
"""A draw: source, epoch and index."""


class Draws:
    """The draws from one input over all passes: its samples in their order, without excluded ones."""

    def __init__(self, size: int, order_of: Callable[[int], Sequence[int]]) -> None:
        """`order_of(k)` gives the indices of pass `k`."""
        self.size, self.order_of = size, order_of
        self.position = self.number = 0
        self.excluded = set[int]()

    def next(self) -> tuple[int, int]:
        """Return epoch and index of the next draw."""
        index, epoch = None, 0
        while index is None or index in self.excluded:
            epoch, place = divmod(self.position, self.size)
            index = self.order_of(epoch)[place]
            self.position += 1
        self.number += 1
        return epoch, index

    def begin_pass(self) -> None:
        """Go to the first draw of a pass; what is left of the one before is not drawn."""
        while self.number % self.size:
            self.next()


class MixtureModel:
    """A mixture whose draws are made one by one, and which is changed between two of them.

    The order of the inputs is random, so `draw` receives the input. It returns the sample of that draw,
    and checks that the counts follow the weights.
    """

    def __init__(
        self,
        inputs: dict[str, Draws],
        weights: dict[str, int],
        stop: str = "restart",
        caps: dict[str, float] | None = None,
    ) -> None:
        self.inputs, self.weights, self.stop, self.caps = inputs, weights, stop, caps
        self.surplus = {name: Fraction(0) for name in inputs}
        self.begin_pass()

    def begin_pass(self) -> None:
        for name, draws in self.inputs.items():
            draws.begin_pass()
            self.surplus[name] = Fraction(0)
        self.in_pass = dict.fromkeys(self.inputs, 0)

    def most(self, name: str) -> float:
        """Return how many draws of an input a pass takes at most."""
        size = self.inputs[name].size
        if self.caps:
            return int(self.caps[name] * size)
        return inf if self.stop == "restart" else size

    def active(self) -> list[str]:
        """Return the inputs that share the next draws."""
        drawn = [name for name in self.inputs if self.weights[name]]
        if self.stop == "first_exhausted":
            return drawn
        return [name for name in drawn if self.in_pass[name] < self.most(name)]

    def is_over(self) -> bool:
        """Return true if a pass may end here."""
        if self.stop == "first_exhausted":
            return any(self.in_pass[name] >= self.most(name) for name in self.active())
        return not self.active()

    def draw(self, name: str, check: bool = True) -> Key:
        active = self.active()
        assert name in active, f"{name} is drawn beyond its share of a pass"
        assert self.in_pass[name] < self.most(name), f"{name} begins a second pass"
        total = sum(self.weights[each] for each in active)
        for each in active:
            self.surplus[each] -= Fraction(self.weights[each], total)
        self.surplus[name] += 1
        self.in_pass[name] += 1
        self.share_surplus()
        if check:
            self.check_shares()
        epoch, index = self.inputs[name].next()
        return name, epoch, index

    def check_shares(self) -> None:
        wrong = {each: float(n) for each, n in self.surplus.items() if abs(n) > 2}
        assert not wrong, f"counts differ from their shares by {wrong}"

    def share_surplus(self) -> None:
        """Give the surplus or deficit of inputs that are no longer drawn to the others, by weight."""
        active = self.active()
        total = sum(self.weights[each] for each in active)
        for name in {*self.surplus} - {*active}:
            rest = self.surplus.pop(name)
            if name in self.inputs:
                self.surplus[name] = Fraction(0)
            for each in active:
                self.surplus[each] += rest * Fraction(self.weights[each], total)

    def set_weights(self, weights: dict[str, int]) -> None:
        self.weights = weights
        self.share_surplus()

    def exclude(self, samples: Iterable[tuple[str, int]]) -> None:
        for name, index in samples:
            self.inputs[name].excluded.add(index)

    def adopt(self, inputs: dict[str, Draws], weights: dict[str, int], carry: bool = True) -> None:
        """Continue with other inputs. Those that both have go on at their next draw.

        Args:
            inputs: the inputs of the new pipeline.
            weights: its weights.
            carry: deficits and surplus count on.
        """
        for name, draws in inputs.items():
            if (before := self.inputs.get(name)) is not None:
                epoch, place = divmod(before.position, before.size)
                draws.position = epoch * draws.size + place
                draws.number = before.number
                draws.excluded = before.excluded
            self.surplus.setdefault(name, Fraction(0))
            self.in_pass.setdefault(name, 0)
        self.inputs, self.weights = inputs, weights
        self.share_surplus()


class SampleRows:
    """Rows that are one draw each. Bad samples are replaced by others of their source."""

    def __init__(
        self, mixture: MixtureModel, bad: Mapping[str, Container[int]] | None = None
    ) -> None:
        self.mixture, self.bad = mixture, bad or {}
        self.replaced = dict[Key, Key]()

    def change(self, change: Callable[[], None]) -> None:
        change()

    def check(self, row: Sequence[Key]) -> None:
        """Check the next row of the run against the draws."""
        (found,) = row
        due = self.mixture.draw(found[0])
        if due[2] in self.bad.get(due[0], ()):
            assert found[2] not in self.bad[due[0]], "a bad sample is delivered"
            due = self.replaced.setdefault(due, found)
        assert found == due

    def end_pass(self) -> None:
        assert self.mixture.is_over(), "a pass ends too early"
        self.mixture.begin_pass()


class ConcatRows:
    """Rows of documents end to end. A row is a list of tokens: source, epoch, index, place."""

    def __init__(self, mixture: MixtureModel, length: int, sizes: dict[str, list[int]]) -> None:
        self.mixture, self.length, self.sizes = mixture, length, sizes
        self.begun = list[tuple[str, int, int, int]]()

    def change(self, change: Callable[[], None]) -> None:
        change()

    def check(self, row: Sequence[tuple[str, int, int, int]]) -> None:
        taken = list[tuple[str, int, int, int]]()
        while len(taken) < len(row):
            if not self.begun:
                source, epoch, index = self.mixture.draw(row[len(taken)][0])
                size = self.sizes[source][index]
                self.begun = [(source, epoch, index, place) for place in range(size)]
            room = len(row) - len(taken)
            taken, self.begun = taken + self.begun[:room], self.begun[room:]
        assert [*row] == taken and len(row) <= self.length
        assert len(row) == self.length or not self.begun

    def end_pass(self) -> None:
        assert not self.begun and self.mixture.is_over(), "a pass ends too early"
        self.mixture.begin_pass()


class WindowRows:
    """Rows of whole documents in windows: which documents a window holds is checked at its end.

    The order of documents in a window is random, so each input is checked by itself.
    """

    def __init__(
        self, mixture: MixtureModel, length: int, rows: int, sizes: dict[str, list[int]]
    ) -> None:
        self.mixture, self.length, self.rows, self.sizes = mixture, length, rows, sizes
        self.window, self.tokens = 0, 0
        self.open = list[Sequence[tuple[str, int, int, int]]]()
        self.begun = dict[str, list[tuple[str, int, int, int]]]()
        self.waiting = list[Callable[[], None]]()

    def change(self, change: Callable[[], None]) -> None:
        """Make a change at the next window."""
        if self.open:
            self.waiting.append(change)
        else:
            change()

    def check(self, row: Sequence[tuple[str, int, int, int]]) -> None:
        assert len(row) <= self.length
        self.open.append(row)
        if len(self.open) == self.rows:
            self.check_window()

    def check_window(self) -> None:
        tokens = [token for row in self.open for token in row]
        for source in sorted({source for source, *_ in tokens}):
            taken = sorted(token for token in tokens if token[0] == source)
            due = self.begun.pop(source, [])
            while len(due) < len(taken):
                _, epoch, index = self.mixture.draw(source, check=False)
                due += [(source, epoch, index, i) for i in range(self.sizes[source][index])]
            assert taken == sorted(due[: len(taken)]), "a window holds other documents"
            if rest := due[len(taken) :]:
                self.begun[source] = rest
        self.mixture.check_shares()
        self.window, self.tokens = self.window + 1, self.tokens + len(tokens)
        span = (self.rows - 1) * self.length + 1
        assert self.window * span <= self.tokens < self.window * span + self.length
        self.open = []
        for change in self.waiting:
            change()
        self.waiting = []


def global_steps(
    rows: Sequence[Any], first: Sequence[Any], size: int, remainder: str, short: bool
) -> list[list[Any]]:
    """The rows of the global steps of what is left of a pass.

    Args:
        rows: the rows that are left.
        first: the rows at the beginning of the pass.
        size: rows of a step.
        remainder: `"drop"`, `"pad"` or `"keep"`.
        short: a short last step is given whatever `remainder` says.
    """
    steps = [[*rows[i : i + size]] for i in range(0, len(rows), size)]
    if steps and len(steps[-1]) < size:
        if remainder == "pad":
            steps[-1] += [first[i % len(first)] for i in range(size - len(steps[-1]))]
        elif remainder == "drop" and not short:
            steps.pop()
    return steps
