"""Random trees, described before they are built, so that a test can build one again in another way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import count, islice
from typing import Any, Literal, cast

import numpy as np
from hypothesis import assume
from hypothesis import strategies as st

import penstock as ps
from example_counts import done
from helpers import numbers
from penstock.engine.grouping import BatchByTokens
from penstock.engine.plan import Plan

Key = tuple[str, int, int]

Tree = tuple[Any, ...]
"""`("numbers" | "spoiled" | "documents" | "texts" | "stream", n, name)`, `("concat" | "zip" | "interleave", trees)`,
`("mix", {name: (tree, weight)}, late, options)` with tuples for mappings, or a step: (method, tree, arguments, options)."""

Draw = Callable[[Any], Any]


class Spoiled:
    """Numbers every fifth of which cannot be read."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, i: int) -> int:
        if bad(i):
            raise ValueError(f"cannot read {i}")
        return i


def bad(index: int) -> bool:
    return index % 5 == 3


@contextmanager
def packable() -> Iterator[None]:
    """Skip trees with passes that do not fit into the rows of the first: packing raises an error."""
    try:
        yield
    except ps.DataError as error:
        assume("pack passes that hold the same documents" not in str(error))
        raise


def documents(n: int, name: str, most: int = 9) -> ps.Dataset:
    """Documents of 1 to `most` tokens; each token says which document it is of."""
    sizes = 1 + np.arange(n) * 7 % most
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])
    return ps.from_tokens(np.repeat(np.arange(n), sizes), offsets, name=name)


class Texts:
    """The documents as texts with counted tokens."""

    counted = "words"

    def __init__(self, n: int) -> None:
        self.sizes = 1 + np.arange(n) * 7 % 9

    def __len__(self) -> int:
        return len(self.sizes)

    def lengths(self) -> Any:
        return self.sizes

    def __getitem__(self, i: int) -> str:
        return f"{i} " * int(self.sizes[i])


def words(text: str) -> Any:
    """Makes tokens of such a text, as many as were counted."""
    return np.array(text.split(), dtype=np.int64)


cast("Any", words).counted = Texts.counted


# ---------------------------------------------------------------- from a description


class Interrupt(BaseException):
    """Like KeyboardInterrupt, but one that a test runner survives."""


class Fuse:
    """A fuse that the functions of a tree call: the n-th call after `set` raises."""

    def __init__(self) -> None:
        self.set(0, None)

    def __reduce__(self) -> Any:
        return Fuse, ()  # in another process nobody sets it

    def set(self, calls: int, error: BaseException | None) -> None:
        self.now = calls, error, count(1)  # one thing, since calls may be under way

    def __call__(self, x: Any) -> Any:
        last, error, calls = self.now
        if (
            next(calls) == last and error is not None
        ):  # several threads may call, only one is the n-th
            raise error
        return x


fuse = Fuse()


def fused(x: Any) -> Any:
    return fuse(x)


def noisy(x: Any, rng: np.random.Generator) -> tuple[Any, int]:
    return x, int(rng.integers(1000))


def build(tree: Tree, use: Callable[[ps.Dataset], ps.Dataset] = lambda ds: ds) -> ps.Dataset:
    """The dataset of a description. Each dataset on the way is what `use` returns for it."""
    return use(_built(tree, use))


def _built(tree: Tree, use: Callable[[ps.Dataset], ps.Dataset]) -> ps.Dataset:
    match tree:
        case ("numbers", n, name):
            return numbers(n, name)
        case ("spoiled", n, name):
            return ps.from_sequence(Spoiled(n), name=name)
        case ("documents", n, name):
            return documents(n, name)
        case ("texts", n, name):
            return ps.from_sequence(Texts(n), name=name)
        case ("stream", n, name):
            return ps.from_iterable(partial(range, n), name=name)
        case ("concat" | "zip" | "interleave" as kind, flows):
            first, *rest = (build(flow, use) for flow in flows)
            return getattr(first, kind)(*rest)
        case ("mix", inputs, late, options):
            weights: Any = {name: weight for name, _, weight in inputs}
            if late:
                weights = ps.Schedule([(0, weights), (late, dict.fromkeys(weights, 1))], "linear")
            return ps.mix(
                {name: build(flow, use) for name, flow, _ in inputs},
                weights,
                seed=2,
                **dict(options),
            )
        case (method, flow, args, options):
            return getattr(build(flow, use), method)(*args, **dict(options))
    raise AssertionError(tree)


def show(tree: Tree) -> str:
    """A description as code."""
    match tree:
        case ("numbers" | "spoiled" | "documents" | "texts" | "stream" as kind, n, name):
            return f"{kind}({n}, {name!r})"
        case ("concat" | "zip" | "interleave" as kind, flows):
            first, *rest = map(show, flows)
            return f"{first}.{kind}({', '.join(rest)})"
        case ("mix", inputs, late, options):
            weights: Any = {name: weight for name, _, weight in inputs}
            law = (
                f"Schedule([(0, {weights}), ({late}, {dict.fromkeys(weights, 1)})], 'linear')"
                if late
                else weights
            )
            flows = ", ".join(f"{name!r}: {show(flow)}" for name, flow, _ in inputs)
            return f"mix({{{flows}}}, {law}, seed=2, {', '.join(f'{k}={v!r}' for k, v in options)})"
        case (method, flow, args, options):
            said = [getattr(arg, "__name__", None) or repr(arg) for arg in args]
            said += [f"{k}={getattr(v, '__name__', None) or repr(v)}" for k, v in options]
            return f"{show(flow)}.{method}({', '.join(said)})"
    raise AssertionError(tree)


def changed(tree: Tree, change: Callable[[Tree], Tree]) -> Tree:
    """The description with a change made to every part of it, from below."""
    match tree:
        case ("numbers" | "spoiled" | "documents" | "texts" | "stream", *_):
            return change(tree)
        case ("concat" | "zip" | "interleave" as kind, flows):
            return change((kind, tuple(changed(flow, change) for flow in flows)))
        case ("mix", inputs, late, options):
            inner = tuple((name, changed(flow, change), weight) for name, flow, weight in inputs)
            return change(("mix", inner, late, options))
        case (method, flow, args, options):
            return change((method, changed(flow, change), args, options))
    raise AssertionError(tree)


def inserted(tree: Tree, number: int, step: Callable[[Tree], Tree]) -> Tree:
    """The description with one more step above the part of this number, counted from below and over again."""
    parts, place = count(), count()
    changed(tree, lambda part: (next(parts), part)[1])
    number %= next(parts)
    return changed(tree, lambda part: step(part) if next(place) == number else part)


def other_order(tree: Tree) -> Tree:
    """The names of every mixture written in the opposite order."""
    return changed(
        tree, lambda part: ("mix", part[1][::-1], *part[2:]) if part[0] == "mix" else part
    )


def begun(plan: Any, stop: int, start: int = 0) -> dict[str, int]:
    """Count the samples of each source that begin in a range, not later parts of cut samples."""
    found = plan.at(slice(start, stop))
    first = found.source if found.start is None else found.source[found.start == 0]
    return dict(
        zip(plan.sources, np.bincount(first, minlength=len(plan.sources)).tolist(), strict=True)
    )


# ---------------------------------------------------------------- at random


@dataclass(frozen=True)
class Grown:
    """A description that grows, and what it gives so far."""

    tree: Tree
    ds: ps.Dataset

    def is_empty(self) -> bool:
        """Return whether it is known to give nothing: such a flow is neither mixed nor repeated for ever."""
        return (
            self.ds.tree.reason_not_indexed is None
            and not self.ds.tree.is_endless
            and len(self.ds) == 0
        )

    def then(self, method: str, *args: Any, **options: Any) -> Grown:
        return Grown(
            (method, self.tree, args, tuple(options.items())),
            getattr(self.ds, method)(*args, **options),
        )

    def then_random(self, draw: Draw, method: str, *args: Any, **options: Any) -> Grown:
        """Add a random step, which has a name in one of three cases."""
        name = draw(
            st.sampled_from([None, None, *sorted({"x", "y", "z"} - self.ds.tree.step_names)[:1]])
        )
        return self.then(method, *args, **options, **({} if name is None else {"name": name}))


def trained(ds: ps.Dataset) -> ps.Dataset:
    return ds.split("40%", seed=1)[0]


def held_out(ds: ps.Dataset) -> ps.Dataset:
    return ds.split("40%", seed=1)[1]


def without_first(ds: ps.Dataset) -> ps.Dataset:
    """The rest of a partition: all samples of other values than the first."""
    with suppress(ValueError):  # a sample cannot be read
        return ds.partition_by("value", only=[str(ds[0])], rest="rest").get("rest", ds)
    return ds


def of(tree: Tree) -> Grown:
    return Grown(tree, build(tree))


Pack = Literal["documents", "texts", ""]
"""Rows to pack: documents of known lengths, or texts that are counted first and tokenized after
mixing; "" packs none."""


def ordered(draw: Draw, name: str, pack: Pack) -> Grown:
    """One source under some orders, with a length."""
    kind = pack or ("documents" if draw(st.integers(0, 4)) == 0 else "numbers")
    steps = draw(st.integers(0, 3))
    tokenized = -1
    if kind == "documents" and draw(st.integers(0, 4)) == 0:
        kind, tokenized = "texts", draw(st.integers(0, steps))
    flow = of((kind, draw(st.integers(1, 12)), name))
    for step in range(steps + 1):
        if step == tokenized:
            flow = flow.then("map", words)
        if step == steps:
            break
        n = len(flow.ds)
        match draw(
            st.sampled_from(
                [
                    "shuffle",
                    "block",
                    "window",
                    "slice",
                    "select",
                    "shard",
                    "split",
                    "part",
                    "repeat",
                    "replay",
                    "each",
                ]
            )
        ):
            case "shuffle":
                buckets = draw(st.sampled_from([None, None, 2, 5]))
                flow = flow.then_random(
                    draw, "shuffle", seed=draw(st.sampled_from([None, 0, 1])), buckets=buckets
                )
            case "block":
                flow = flow.then_random(
                    draw,
                    "shuffle",
                    seed=1,
                    block=(draw(st.integers(1, 3)), draw(st.integers(1, 3))),
                )
            case "window":
                flow = flow.then_random(draw, "shuffle", seed=1, window=draw(st.integers(1, 5)))
            case "slice" if n > 1:
                start, step = draw(st.integers(0, n - 1)), draw(st.sampled_from([1, 1, 2, -1]))
                flow = flow.then(
                    "slice", start, None if step < 0 else draw(st.integers(start + 1, n)), step
                )
            case "select":
                flow = flow.then(
                    "select", draw(st.lists(st.integers(-n, n - 1), min_size=1, max_size=9))
                )
            case "shard" if n > 1:
                flow = flow.then("shard", draw(st.integers(0, 1)), 2)
            case "split" if n > 3:
                flow = flow.then("pipe", draw(st.sampled_from([trained, held_out])))
            case "part" if kind == "numbers":
                flow = flow.then("pipe", without_first)
            case "repeat" if n < 30:
                flow = flow.then("repeat", draw(st.integers(1, 3)))
            case "each" if n < 30:
                flow = flow.then("repeat_each", draw(st.integers(1, 3)))
            case "replay" if n < 30:
                flow = flow.then("repeat", draw(st.integers(1, 3)), reshuffle=False)
    return flow


STOPS = ["restart", "first_exhausted", "all_exhausted", "all_exhausted_oversample"]


def woven(
    draw: Draw,
    name: str = "",
    pack: Pack = "",
    depth: int = 0,
    kinds: Any = ("mix", "mix", "concat", "zip"),
) -> Grown:
    """Some sources in one."""
    flows = dict[str, Grown]()
    for letter in "abc"[: draw(st.integers(1, 3))]:
        deeper = depth < 2 and draw(st.integers(0, 3)) == 0
        flow = (
            woven(draw, name + letter, pack, depth + 1)
            if deeper
            else ordered(draw, name + letter, pack)
        )
        if flow.ds._size is None:
            flow = flow.then("limit", draw(st.integers(1, 20)))
        flows[letter] = flow
    kind = draw(st.sampled_from(kinds))
    if kind == "concat" or (kind == "zip" and not pack):
        return of((kind, tuple(flow.tree for flow in flows.values())))
    return mixed(draw, flows, pack)


def mixed(draw: Draw, flows: dict[str, Grown], pack: Pack) -> Grown:
    """A mixture of any law."""
    options: dict[str, Any] = {
        "stop": draw(st.sampled_from(STOPS)),
        "block_size": draw(st.sampled_from([1, 1, 3, 8])),
    }
    if min(len(flow.ds) for flow in flows.values()) > 1:
        options["max_epochs"] = draw(st.sampled_from([None, 1, 1.5]))
    if pack and draw(st.booleans()):
        options["unit"] = "tokens"
    if not pack and min(len(flow.ds) for flow in flows.values()) > 2:
        options["one_source_per"] = draw(st.sampled_from([1, 1, 2, 3]))
    late = draw(st.sampled_from([0, 0, 7, 20]))
    inputs = tuple(
        (name, flow.tree, draw(st.sampled_from([1, 2, 5]))) for name, flow in flows.items()
    )
    fraction = draw(st.sampled_from([None, None, None, "50%", 0.7]))
    with suppress(ps.ConfigError):  # an input is a mixture, or too small
        return of(("mix", inputs, late, tuple({**options, "unique_fraction": fraction}.items())))
    with suppress(ps.ConfigError):  # an input has fewer draws than `one_source_per`
        return of(("mix", inputs, late, tuple(options.items())))
    options.pop("one_source_per")
    return of(("mix", inputs, late, tuple(options.items())))


PACKS: list[tuple[str, dict[str, Any]]] = [
    ("concat_split", {}),
    ("concat_split", {}),
    ("first_fit", {}),
    ("best_fit", {"window": 1000}),
    ("best_fit", {}),
    ("best_fit", {"rows": 4}),
    ("best_fit", {"rows": 5, "long": "truncate"}),
    ("concat_split", {"pad_to_multiple": 2, "bos": 98}),
    ("first_fit", {"pad_to_multiple": 3}),
    ("best_fit", {"rows": 4, "pad_to_multiple": 2, "eos": 99}),
    ("concat_split", {"group_by": "__source__", "rows": 30}),
    ("best_fit", {"group_by": "__source__", "rows": 30}),
    ("first_fit", {"group_by": "__source__"}),
]


def grown(draw: Draw, kinds: Any = ("mix", "mix", "concat", "zip")) -> Grown:
    """Any tree that a plan can be asked of."""
    pack: Pack = draw(st.sampled_from([*[""] * 12, *["documents"] * 3, "texts"]))
    flow = woven(draw, "", pack, kinds=kinds)
    if pack == "texts":
        flow = flow.then("map", words)
    if pack:
        method, options = draw(st.sampled_from(PACKS))
        if draw(st.integers(0, 3)) == 0:
            return flow
        planned = method == "first_fit" or "window" in options
        if flow.ds._size is None and (planned or draw(st.integers(0, 2)) == 0):
            flow = flow.then("limit", draw(st.integers(1, 30)))
        multiple = options.get("pad_to_multiple", 1)
        flow = flow.then_random(
            draw, "pack", draw(st.integers(4, 12)) // multiple * multiple, method, **options
        )
    for _ in range(draw(st.integers(0, 2))):
        size = flow.ds._size
        steps = [
            "shuffle",
            "slice",
            "select",
            "skip",
            "batch",
            "drop",
            "repeat",
            "each",
            "map",
            "random",
        ]
        match draw(st.sampled_from(steps)):
            case "shuffle" if size:
                flow = flow.then_random(
                    draw, "shuffle", seed=4, buckets=draw(st.sampled_from([None, 1, 3]))
                )
            case "slice" if size is None or size > 2:
                flow = flow.then("slice", 1, min(size or 20, 20))
            case "select" if size:
                flow = flow.then(
                    "select", draw(st.lists(st.integers(-size, size - 1), min_size=1, max_size=9))
                )
            case "skip" if size is None or size > 2:
                flow = flow.then("skip", draw(st.integers(0, 2)))
            case "batch":
                flow = flow.then("batch", draw(st.integers(1, 4)), collate=list)
            case "drop":
                flow = flow.then(
                    "batch", draw(st.integers(1, 4)), drop_remainder=True, collate=list
                )
            case "repeat" if size:
                flow = flow.then("repeat")
            case "each" if size is None or size < 60:
                flow = flow.then("repeat_each", draw(st.integers(1, 3)))
            case "map":
                flow = flow.then("map", fused)
            case "random":
                flow = flow.then_random(draw, "random_map", noisy)
    return flow


@st.composite
def described(draw: st.DrawFn) -> Tree:
    """The description of any tree that a plan can be asked of."""
    done["trees"] += 1
    return grown(draw).tree


def trees() -> st.SearchStrategy[ps.Dataset]:
    """Any tree that a plan can be asked of."""
    return described().map(build)


# ---------------------------------------------------------------- streams at random


def total(x: Any) -> int:
    """A number that stands for any sample."""
    if isinstance(x, dict):
        return total(list(x.values()))
    if isinstance(x, list | tuple | np.ndarray):
        return sum(map(total, x))
    return len(x) if isinstance(x, str) else int(x)


def odd(x: Any) -> bool:
    return total(x) % 2 == 1


def few(x: Any) -> bool:
    return total(x) % 5 != 0


def spread(x: Any) -> list[Any]:
    return [(x, j) for j in range(total(x) % 3)]


def refuse_thirds(x: Any) -> Any:
    if total(x) % 3 == 0:
        raise ps.Skip
    return x


def tokens(x: Any) -> Any:
    """A document of one to seven tokens."""
    return np.arange(1 + total(x) % 7) + 10 * (total(x) % 100) + 1


def features(x: Any) -> dict[str, Any]:
    return {"ask": tokens(x), "say": tokens(x)[:3]}


def weight(x: Any) -> int:
    return 1 + total(x) % 7


def joined(x: Any) -> tuple[int, ...]:
    return (total(x),)


def labelled(i: int, x: Any) -> tuple[int, Any]:
    return int(i), x


def named(x: Any, source: str, epoch: int, index: int) -> tuple[Any, str, int, int]:
    return x, source, epoch, index


STREAMED = [
    "filter", "may_skip", "flat", "pack", "pack_features", "buffer", "window", "buckets", "by_tokens", "fold",
    "rebatch", "limit", "skip", "repeat", "batch", "map", "index", "random", "source", "seed", "for_ever",
]  # fmt: skip


def streamed(draw: Draw) -> Grown:
    """Any tree with steps whose yield depends on the data, at any place, and indexed steps among them."""
    names = iter("abcdefgh")
    flow = _stream(draw, names)
    if draw(st.booleans()):
        others = [_stream(draw, names) for _ in range(draw(st.integers(0, 2)))]
        kind, flows = draw(st.sampled_from(["mix", "interleave", "concat", "zip"])), [flow, *others]
        if kind == "mix":
            stop = draw(st.sampled_from(["all_exhausted", "first_exhausted", "restart"]))
            full = [each for each in flows if not each.is_empty()] or [
                of(("numbers", 5, next(names)))
            ]
            inputs = tuple(
                (f"m{i}", each.tree, draw(st.integers(1, 3))) for i, each in enumerate(full)
            )
            flow = of(("mix", inputs, 0, (("stop", stop),)))
        else:
            if kind == "concat":  # no input follows an endless one
                flows.sort(key=lambda each: each.ds.tree.is_endless)
                *first, last = flows
                flows = [
                    each.then("limit", 9) if each.ds.tree.is_endless else each for each in first
                ] + [last]
            flow = of((kind, tuple(each.tree for each in flows)))
    for _ in range(draw(st.integers(0, 3))):
        flow = _step(draw, flow)
    return flow


def _stream(draw: Draw, names: Any) -> Grown:
    flow = of(
        (
            draw(st.sampled_from(["stream", "numbers", "numbers", "documents"])),
            draw(st.integers(3, 14)),
            next(names),
        )
    )
    if flow.tree[0] == "numbers" and draw(st.booleans()):
        flow = flow.then("shuffle")
    for _ in range(draw(st.integers(0, 2))):
        flow = _step(draw, flow)
    return flow


def _step(draw: Draw, flow: Grown) -> Grown:
    match draw(st.sampled_from(STREAMED)):
        case "filter":
            return flow.then("filter", draw(st.sampled_from([odd, few])))
        case "may_skip":
            return flow.then("map", refuse_thirds, may_skip=True)
        case "flat":
            return flow.then("flat_map", spread)
        case "pack":
            method = draw(st.sampled_from(["concat_split", "first_fit", "best_fit"]))
            return flow.then("map", tokens).then_random(
                draw, "pack", draw(st.integers(7, 12)), method
            )
        case "pack_features":
            return flow.then("map", features).then(
                "pack_features", {"ask": 9, "say": 6}, "first_fit"
            )
        case "buffer":
            return flow.then_random(draw, "shuffle_buffer", draw(st.integers(1, 6)))
        case "window":
            return flow.then_random(draw, "shuffle", window=draw(st.integers(1, 5)))
        case "buckets":
            return flow.then(
                "bucket_by_length", [3, 5], draw(st.integers(1, 3)), size=weight, collate=list
            )
        case "by_tokens":
            return flow.then("batch_by_tokens", draw(st.integers(7, 15)), size=weight, collate=list)
        case "fold":
            return flow.then_random(draw, "fold", BatchByTokens(9), size=weight, build=list)
        case "rebatch":
            return flow.then("map", tokens).then(
                "rebatch", draw(st.integers(1, 5)), draw(st.booleans())
            )
        case "limit":
            return flow.then("limit", draw(st.integers(1, 9)))
        case "skip":
            return flow.then("skip", draw(st.integers(0, 3)))
        case "repeat":
            return flow if flow.ds.tree.is_endless else flow.then("repeat", draw(st.integers(1, 3)))
        case "for_ever" if not flow.ds.tree.is_endless and not flow.is_empty():
            return flow.then("repeat")
        case "batch":
            return flow.then("batch", draw(st.integers(1, 4)), draw(st.booleans()), collate=list)
        case "index":
            return flow.then("map_with_index", labelled)
        case "random":
            return flow.then_random(draw, "random_map", noisy)
        case "source":
            return flow.then("with_source", named)
        case "seed":
            return flow.then("seed", draw(st.integers(0, 3)))
        case _:
            return flow.then("map", joined)


@st.composite
def streams(draw: st.DrawFn) -> Tree:
    """The description of a tree that is not, or not only, indexed."""
    done["trees"] += 1
    return streamed(draw).tree


# ---------------------------------------------------------------- what comes


def delivered(ds: ps.Dataset, steps: int, state: Any = None, **options: Any) -> list[list[Key]]:
    """The keys of the next items of a loader, over as many passes as it takes."""
    out = list[list[Key]]()
    with ps.Loader(ds, **options) as loader:
        if state is not None:
            loader.load_state_dict(state)
        empty = 0  # passes in a row; one is what is left of a pass that was over when the state was saved
        while len(out) < steps and empty < 2:
            before = len(out)
            for _ in islice(loader, steps - len(out)):
                out.append(loader.keys())
            empty = empty + 1 if before == len(out) else 0
    return out


def assert_plan_tells_packs(plan: Plan, rows: int) -> None:
    """Assert that counts and searches of a plan match its first packed rows."""
    samples, tokens, places = Counter[str](), Counter[str](), dict[tuple[str, int], set[int]]()
    for row in range(rows):
        for sample in plan.at(row):
            assert sample.start is not None and sample.stop is not None
            samples[sample.source] += sample.start == 0
            tokens[sample.source] += sample.stop - sample.start
            places.setdefault((sample.source, sample.index), set()).add(row)
        assert {name: n for name, n in plan.counts(row + 1).items() if n} == {
            n: c for n, c in samples.items() if c
        }
        assert {n: c for n, c in plan.counts(row + 1, "tokens").items() if c} == dict(tokens)
    for (source, index), found in places.items():
        assert plan.find(source, index, within=range(rows)) == sorted(found)
