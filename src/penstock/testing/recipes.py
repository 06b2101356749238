"""Recipes of pipelines: nested tuples that `build` builds and `show` prints as code.

A recipe is plain data, so a test can interpret it with its own model. Its functions are defined in
this module: they pickle, and accept every sample, so that any step can follow any other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, TypeAlias, cast

import numpy as np

from .. import Dataset, Skip, from_iterable, from_sequence, from_tokens, mix

Recipe: TypeAlias = tuple[Any, ...]


# ---------------------------------------------------------------- functions of any sample


def number(x: Any) -> int:
    """Return an integer for any sample; random parts (floats) and provenance are ignored."""
    if isinstance(x, bool | int | np.integer):
        return int(cast("Any", x))
    if isinstance(x, Mapping):
        found = cast("Mapping[str, Any]", x)
        return number([v for k, v in sorted(found.items()) if not k.startswith("__")])
    if isinstance(x, np.ndarray):
        return number(cast("Any", x).tolist())
    total = 0
    for part in cast("list[Any]", x) if isinstance(x, list | tuple) else []:
        total = (total * 31 + number(part) + 1) % 997
    return total


def double(x: Any) -> int:
    return 2 * number(x) + 1


def doubles(some: list[Any]) -> list[int]:
    return [double(x) for x in some]


def paired(x: Any) -> tuple[Any, int]:
    return x, number(x) % 7


def split_by_position(i: int, x: Any) -> tuple[int, Any]:
    return int(i), x


def noisy(x: Any, rng: np.random.Generator | None) -> tuple[Any, float]:
    return x, 0.0 if rng is None else float(rng.random())


def even(x: Any) -> bool:
    return number(x) % 2 == 0


def most(x: Any) -> bool:
    return number(x) % 5 != 0


def spread(x: Any) -> Iterator[tuple[Any, int]]:
    return ((x, j) for j in range(number(x) % 3))


def twice(x: Any) -> list[Any]:
    return [x, x]


def refuse_thirds(x: Any) -> Any:
    if number(x) % 3 == 0:
        raise Skip
    return x


def size(x: Any) -> int:
    """Return 1, 3, 5 or 7; odd sizes never equal an even bound."""
    return 2 * (number(x) % 4) + 1


def document(x: Any) -> dict[str, Any]:
    """Return one to seven tokens, none of them 0."""
    n = number(x)
    return {"tokens": np.arange(1 + n % 7, dtype=np.int64) + 10 * (n % 100) + 1}


def mapping(x: Any) -> dict[str, Any]:
    return {"x": x}


# ---------------------------------------------------------------- recipes


def build(recipe: Recipe) -> Dataset:
    """Build the dataset of a recipe.

    Args:
        recipe: (kind, ...) of `pipelines`. Sources begin with their samples, `concat`, `zip` and
            `mix` with recipes of their inputs, and all other kinds with the recipe of one input.
            Then come the arguments of the step.

    >>> list(build(("batch", ("map", ("seq", (0, 1, 2), "a"), double), 2, False)))
    [[1, 3], [5]]
    """
    kind, rest = recipe[0], recipe[1:]
    match kind:
        case "seq":
            return from_sequence(list(rest[0]), name=rest[1])
        case "iterable":
            return from_iterable(partial(iter, rest[0]), name=rest[1])
        case "tokens":
            ends = np.cumsum([0, *rest[0]])
            return from_tokens(np.arange(1, int(ends[-1]) + 1), ends, name=rest[1])
        case "concat" | "zip":
            first, *others = (build(r) for r in rest[0])
            return first.concat(*others) if kind == "concat" else first.zip(*others)
        case "mix":
            return _build_mix(*rest)
        case _:
            return _build_step(kind, build(rest[0]), rest[1:])


def _build_mix(
    inputs: Any, weights: Any, block: int, stop: str, caps: Any, seed: int, one_source_per: int
) -> Dataset:
    names = [name for name, _ in inputs]
    return mix(
        {name: build(r) for name, r in inputs},
        dict(zip(names, weights, strict=True)),
        seed=seed,
        block_size=block,
        stop=cast("Any", stop),
        max_epochs=dict(zip(names, cast("Any", caps), strict=True))
        if isinstance(caps, tuple)
        else caps,
        one_source_per=one_source_per,
    )


def _build_step(kind: str, ds: Dataset, args: tuple[Any, ...]) -> Dataset:
    match kind:
        case "skip_map":
            return ds.map(args[0], may_skip=True)
        case "map_batched":
            return ds.map(args[0], batched=args[1])
        case "shuffle":
            return ds.shuffle(seed=args[0])
        case "window":
            return ds.shuffle(window=args[0], seed=args[1])
        case "repeat":
            return ds.repeat(args[0], reshuffle=args[1])
        case "slice":
            return ds[slice(*args)]
        case "batch":
            return ds.batch(args[0], drop_remainder=args[1], collate=list)
        case "rebatch":
            return ds.rebatch(args[0], drop_remainder=args[1])
        case "bucket_by_length":
            return ds.bucket_by_length(list(args[0]), args[1], size=args[2], collate=list)
        case "batch_by_tokens":
            return ds.batch_by_tokens(args[0], size=args[1], collate=list)
        case "pack":
            return ds.pack(args[0], method=args[1], pad_to_multiple=args[2])
        case _:  # arguments pass through: map, filter, select, limit, seed
            return getattr(ds, kind)(*args)


def show(recipe: Recipe) -> str:
    """Return a recipe as the code that builds it.

    Args:
        recipe: A recipe of `pipelines`, as in `build`. Functions appear by name.

    >>> show(("batch", ("map", ("seq", (0, 1, 2), "a"), double), 2, False))
    "from_sequence([0, 1, 2], name='a').map(double).batch(2, drop_remainder=False, collate=list)"
    """
    kind, rest = recipe[0], recipe[1:]
    names: dict[str, tuple[str, ...]] = {
        "repeat": ("", "reshuffle="), "batch": ("", "drop_remainder="), "rebatch": ("", "drop_remainder="),
        "pack": ("", "method=", "pad_to_multiple="), "shuffle": ("seed=",), "map_batched": ("", "batched="),
        "window": ("window=", "seed="),
        "bucket_by_length": ("", "", "size="), "batch_by_tokens": ("", "size="),
    }  # fmt: skip
    match kind:
        case "seq":
            return f"from_sequence({list(rest[0])}, name={rest[1]!r})"
        case "tokens":
            return f"tokens_of_lengths({list(rest[0])}, name={rest[1]!r})"
        case "iterable":
            return f"from_iterable(partial(iter, {rest[0]}), name={rest[1]!r})"
        case "concat" | "zip":
            first, *others = (show(r) for r in rest[0])
            return f"{first}.{kind}({', '.join(others)})"
        case "mix":
            inputs, weights, block, stop, caps, seed, per = rest
            body = ", ".join(f"{name!r}: {show(r)}" for name, r in inputs)
            shares = dict(zip([name for name, _ in inputs], weights, strict=True))
            options = f"seed={seed}, block_size={block}, stop={stop!r}, max_epochs={caps}"
            return f"mix({{{body}}}, {shares}, {options}, one_source_per={per})"
        case "slice":
            return f"{show(rest[0])}[{rest[1]}:{rest[2]}:{rest[3]}]"
        case _:
            labels = names.get(kind, ()) + ("",) * 4
            args = [f"{n}{_format_argument(a)}" for n, a in zip(labels, rest[1:], strict=False)]
            args += (
                ["collate=list"] if kind in ("batch", "bucket_by_length", "batch_by_tokens") else []
            )
            args += ["may_skip=True"] if kind == "skip_map" else []
            return f"{show(rest[0])}.{_METHOD_BY_STEP.get(kind, kind)}({', '.join(args)})"


_METHOD_BY_STEP = {"skip_map": "map", "map_batched": "map", "window": "shuffle"}


def _format_argument(value: Any) -> str:
    return getattr(value, "__name__", None) or repr(value)
