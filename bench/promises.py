"""Check Penstock's promises about speed against the measurements of the same run."""

from __future__ import annotations

from collections.abc import Iterator

from .run import Results

Line = tuple[str, str, str, str]


def best(
    results: Results, case: str, peer: str, metric: str = "ratio", how: str = ""
) -> float | None:
    """The best row of a peer for a case."""
    found = [
        value
        for key in results.numbers
        if key[0] == peer and key[1] == case and how in key[2]
        if (value := results.middle(key, metric)) is not None
    ]
    return max(found, default=None)


def others(results: Results, case: str) -> tuple[str, float] | None:
    """The best row of all peers for a case."""
    found = [
        (value, f"{key[0]}: {key[2]}")
        for key in results.numbers
        if key[1] == case and key[0] not in ("penstock", "floor")
        if (value := results.middle(key, "ratio")) is not None
    ]
    return (max(found)[1], max(found)[0]) if found else None


def line(promise: str, wanted: str, value: float | None, good: bool, unit: str = "") -> Line:
    if value is None:
        return promise, wanted, "not measured", "?"
    return promise, wanted, f"{value:,.3g}{unit}", "holds" if good else "**does not hold**"


def against(results: Results, case: str, what: str, peer: str, times: float, how: str = "") -> Line:
    """So many times the best row of a peer."""
    mine, theirs = best(results, case, "penstock", how=how), best(results, case, peer)
    value = mine / theirs if mine and theirs else None
    return line(
        f"{what}: times {peer}", f"at least {times:g}", value, value is not None and value >= times
    )


def above(results: Results, case: str, what: str, how: str = "") -> Line:
    mine, found = best(results, case, "penstock", how=how), others(results, case)
    value = mine / found[1] if mine and found else None
    named = f" ({found[0]})" if found else ""
    return line(
        f"{what}: times the best peer{named}", "above 1", value, value is not None and value > 1
    )


def of_floor(
    results: Results, case: str, what: str, least: float, how: str, floor: str = "the plain loop"
) -> Line:
    """So much of the plain loop, or of another floor."""
    share = best(results, case, "penstock", how=how)
    return line(
        f"{what}: of {floor}", f"at least {least:g}", share, share is not None and share >= least
    )


def promises(results: Results) -> Iterator[Line]:
    """One line for each: what, wanted, found, whether it holds."""
    plain = "block_size=1"
    yield above(results, "overhead", "Per-sample overhead")
    yield against(results, "overhead", "Per-sample overhead", "grain", 30)
    yield of_floor(results, "overhead", "Per-sample overhead", 0.9, "from_sequence")
    yield of_floor(results, "overhead", "Per-sample overhead, 2 threads", 0.8, "threads")
    yield of_floor(results, "mix3", "Mixing 3 sources, plain interleave", 0.6, plain)
    yield of_floor(results, "mix3", "Mixing 3 sources, the function in each", 0.6, "in each")
    yield of_floor(results, "mix500", "Mixing 500 sources, plain interleave", 0.3, plain)
    yield above(results, "mix3", "Mixing 3 sources", plain)
    yield against(results, "mix3", "Mixing 3 sources", "grain", 30, plain)
    for case in ("mix3", "mix500"):
        off = best(results, case, "penstock", "off_1e6", plain)
        yield line(
            f"{case}, worst deviation in 10^6", "at most 2", off, off is not None and off <= 2
        )
    yield against(results, "mix500", "Mixing 500 sources", "datasets", 100)
    for case in ("pack2048", "pack8192"):
        share = best(results, case, "penstock", how="concat_split")
        yield line(
            f"{case}, concat_split of the copy loop",
            "at least 0.6",
            share,
            share is not None and share >= 0.6,
        )
        yield against(results, case, f"{case}, concat_split", "trl", 1, "concat_split")
        yield against(results, case, f"{case}, concat_split", "grain", 10, "concat_split")
    yield from reading(results)
    yield from resuming(results)
    yield from starting(results)
    yield from growing(results)


def reading(results: Results) -> Iterator[Line]:
    for kind in ("Arrow", "Parquet"):
        yield against(
            results, "read_random", f"{kind}, batches of 64 at random", "datasets", 2, kind
        )
    yield of_floor(results, "read_row", "Arrow, ds[i]", 0.7, "ds[i]", "pyarrow's take")
    yield of_floor(
        results, "read_columns", "Parquet in order, as columns", 0.8, "batch", "pyarrow's scan"
    )
    yield of_floor(
        results, "read_blocks", "Parquet, the block shuffle", 0.3, "block=", "pyarrow's scan"
    )
    for case, order in (("read_tars", "shuffled"), ("read_tars_in_order", "in order")):
        yield of_floor(results, case, f"Tars {order}", 0.9, "batch", "a loop of pread")
    yield of_floor(results, "index_lines", "JSON lines indexed", 0.7, "", "wc -l")


def resuming(results: Results) -> Iterator[Line]:
    key = ("penstock", "resume", "mix of 3, batch 8")
    for step in (10, 10_000, 100_000, 1_000_000_000):
        taken, right = results.middle(key, f"total_s_{step}"), results.middle(key, f"right_{step}")
        value = None if taken is None else taken * 1e3
        good = value is not None and value < 5 and right == 1.0
        yield line(f"Resume at step {step:,}: ms to the right batch", "under 5", value, good)
    size = results.middle(key, "state_1000000000")
    # Positions and digests take 300 of them; the rest says what run it is, so that a difference is
    # named.
    yield line(
        "State of a mixture of 3 at step 10^9, bytes",
        "under 2,000",
        size,
        size is not None and size < 2000,
    )


def starting(results: Results) -> Iterator[Line]:
    key = ("penstock", "start", "from_sequence, shuffle, batch")
    taken, heavy = results.middle(key, "import_s"), results.words.get(key, {}).get("heavy")
    first = results.middle(key, "first_batch_s")
    value = None if taken is None or first is None else taken + first
    good = value is not None and value <= 0.25
    yield line("Import and first batch, seconds", "at most 0.25", value, good)
    closed = results.middle(("penstock", "workers", "Loader, 2 threads"), "close_s")
    good = closed is not None and closed <= 0.02
    yield line("Close of 2 threads, seconds", "at most 0.02", closed, good)
    if heavy is not None:
        yield (
            "Heavy modules after the import",
            "none",
            heavy or "none",
            "holds" if not heavy else "**does not hold**",
        )
    for metric, what in (("over_bare", "over the bare interpreter"), ("rss", "in all")):
        size = results.middle(("penstock", "memory", "shuffle"), f"{metric}_1000000000")
        yield line(
            f"10^9 samples under a full shuffle, MB {what}",
            "under 50",
            size,
            size is not None and size < 50,
        )


def growing(results: Results) -> Iterator[Line]:
    key = ("penstock", "changes", "set_weights, mix of 5")
    first, last = (results.middle(key, f"{which} 20, ms") for which in ("first", "last"))
    value = last / first if first and last else None
    good = value is not None and value <= 1.5
    what = "The last 20 of 1,000 changes, times the first 20"
    yield line(what, "at most 1.5", value, good)
    for how in ("mix of 3", "mix of 500", "shuffle buffer, 8 lanes"):
        taken = results.middle(("penstock", "states", how), "ms")
        good = taken is not None and taken <= 2
        yield line(f"A state at every step, {how}, ms", "at most 2", taken, good)
    key = ("penstock", "curriculum", "60 sources, caps, 3 stages, best_fit")
    for name in ("plan.at", "plan.find", "plan.counts"):
        taken = results.middle(key, f"{name} again, ms")
        good = taken is not None and taken <= 20
        yield line(f"60 packed sources: {name} after the first, ms", "at most 20", taken, good)
