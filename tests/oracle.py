"""Model of a pipeline by plain list operations: the documented meaning of every step.

It uses nothing of the library. `passes(d, k, orders)` yields the samples of pass `k` of a
description `d` (nested tuples). The order of a random step is not documented and has no model.
`orders(d, k)` returns it: positions in the pass of the input, or (input, position) for a mixture.
`allowed_orders.allowed` checks that it keeps the documented guarantees.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from itertools import count, islice
from math import ceil

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
