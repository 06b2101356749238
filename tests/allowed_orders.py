"""Check an order that the library chose for a random step against the documented guarantees."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from math import floor
from typing import Any

from oracle import endless, passes, tokens


def allowed(d: Any, k: int, got: Any, whole: bool, orders: Any) -> str:
    """Return the error in an order that the library chose, or an empty text.

    Args:
        d: The description of the step.
        k: The number of the pass.
        got: For shuffles, positions in the input's pass. For a mixture, (name, position in its
            pass). For packing, rows.
        whole: True if the pass ended after `got`.
        orders: Returns the order of each random step below, as for `oracle.passes`.
    """
    if d[0] == "mix":
        return mixture(d, k, got, whole, orders)
    below = list(passes(d[1], k, orders)) if not endless(d[1]) else [None] * (len(got) + d[2])
    if d[0] == "pack":
        return whole_documents(below, got, d[2])
    if whole and sorted(got) != list(range(len(below))):
        return f"{got} does not give each of {len(below)} samples once"
    if d[0] == "shuffle_buffer":
        waiting = list(range(len(below)))
        for i in got:
            if i not in waiting[: d[2]]:
                return f"sample {i} is not among the next {d[2]} that were not given yet: {waiting[: d[2]]}"
            waiting.remove(i)
    if d[0] == "window" and (out := [i for j, i in enumerate(got) if i // d[2] != j // d[2]]):
        return f"samples {out} left their windows of {d[2]}"
    return ""


def whole_documents(below, got, length):
    """Documents stay whole; those over a row are cut at multiples of its length, and their positions go on."""
    found = []
    for row in got:
        if len(row["tokens"]) != length:
            return f"a row of {len(row['tokens'])} tokens instead of {length}"
        for s in range(1, max(row["segment_ids"]) + 1):
            cells = [
                (t, p)
                for t, i, p in zip(row["tokens"], row["segment_ids"], row["positions"], strict=True)
                if i == s
            ]
            places = [p for _, p in cells]
            if places != list(range(places[0], places[0] + len(cells))):
                return f"positions {places} in segment {s}"
            found.append((places[0], [t for t, _ in cells]))
    documents = [[int(t) for t in tokens(x)] for x in below]
    want = sorted(
        (at, each[at : at + length]) for each in documents for at in range(0, len(each), length)
    )
    return "" if sorted(found) == want else f"documents {sorted(found)} instead of {want}"


def mixture(d: Any, k: int, got: Any, whole: bool, orders: Any) -> str:
    _, inputs, weights, block, stop, caps, _, per = d
    names = [name for name, w in zip((n for n, _ in inputs), weights, strict=True) if w]
    share = {n: Fraction(w) for (n, _), w in zip(inputs, weights, strict=True) if w}
    length: Any = {
        n: None if endless(c) else sum(1 for _ in passes(c, 0, orders))
        for n, c in inputs
        if n in share
    }
    cap = dict(
        zip(
            (n for n, _ in inputs),
            caps if isinstance(caps, tuple) else [caps] * len(inputs),
            strict=True,
        )
    )
    most: Any = {
        n: None if cap[n] is None or length[n] is None else floor(cap[n] * length[n]) for n in names
    }
    if stop == "all_exhausted":
        most = {n: length[n] if most[n] is None else min(most[n], length[n]) for n in names}
    if stop == "first_exhausted":
        most = {n: length[n] for n in names}
    most = {n: None if count is None else count // per * per for n, count in most.items()}
    mixed = [at for at in range(0, len(got), per) if len({n for n, _ in got[at : at + per]}) > 1]
    if mixed or (whole and len(got) % per):
        return f"of {len(got)} samples, those from {mixed} on do not come in {per} of one source"
    given, start, since, live = Counter(), Counter(), 0, set(names)
    for t, (name, i) in enumerate(got):
        if name not in share:
            return f"{name} has no weight but was drawn"
        if i != (given[name] if length[name] is None else given[name] % length[name]):
            return f"draw {given[name]} of {name} (length {length[name]}) is its sample {i}"
        given[name] += 1
        if most[name] is not None and given[name] > most[name]:
            return f"{name} was drawn {given[name]} times, at most {most[name]} allowed"
        drops = most[name] == given[name] and stop != "first_exhausted"
        if drops and block > 1:
            live.clear()  # in a permuted block it may drop out before its last draw is seen: no bound from here on
        total = sum(share[n] for n in live)
        if (t + 1) % (block * per) == 0 and live:
            drawn = {n: given[n] - start[n] - (t + 1 - since) * share[n] / total for n in live}
            off = {n: extra / per for n, extra in drawn.items()}
            worst = max(off.items(), key=lambda pair: abs(pair[1]))
            if abs(worst[1]) > 2:
                return f"after {t + 1} samples {worst[0]} is {float(worst[1])} off"
        if drops:
            live.discard(name)
            start, since = Counter(given), t + 1
    return ending(got, given, length, most, stop, block, per) if whole else ""


def ending(got, given, length, most, stop, block, per):
    names = list(length)
    if stop == "first_exhausted" and not any(given[n] == most[n] for n in names):
        return f"ended before an input did: {dict(given)} of {length}"
    if stop in ("all_exhausted", "restart") and any(given[n] != most[n] for n in names):
        return f"ended after {dict(given)} instead of {most}"
    if stop == "all_exhausted_oversample":
        # The plain interleave ends with the last input's last sample; a block is permuted up to there.
        last = got[-1][0]
        if any(given[n] < length[n] for n in names) or (
            block == 1 and given[last] - length[last] not in range(per)
        ):
            return f"ended after {dict(given)} of {length}, the last from {last}"
    return ""
