"""The pictures beside the tables: bars of ratios, on a logarithmic axis where peers are orders of
magnitude apart."""

from __future__ import annotations

from pathlib import Path

from .run import Key, Results
from .table import CASES

COLOURS = {"penstock": "#1a5fb4", "floor": "#9a9996"}
OTHER = "#c0bfbc"


def draw(results: Results, folder: Path) -> dict[str, list[str]]:
    """Write an SVG for each case that has figures; gives their names by case."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams |= {"svg.hashsalt": "penstock", "font.size": 9, "svg.fonttype": "none"}
    drawn: dict[str, list[str]] = {}
    for case in CASES.values():
        bars = bars_of(results, case.name)
        if bars:
            name = f"pictures/{case.name}.svg"
            (folder / "pictures").mkdir(exist_ok=True)
            picture(bars, f"{case.title}: {axis(case.name)}", folder / name)
            drawn[case.name] = [name]
    return drawn


def axis(case: str) -> str:
    return {
        "resume": "ms from the state to the batch, step 10,000",
        "start": "seconds to the first batch, import included",
        "workers": "seconds to the first batch by workers, import included",
        "memory": "MB over the bare interpreter, 10^8 samples",
    }.get(case, "part of the floor (CPU time)")


def bars_of(results: Results, case: str) -> list[tuple[str, str, float]]:
    """Peer, label and value of each bar, the best on top."""
    found = []
    for key in results.numbers:
        value = value_of(results, key) if key[1] == case else None
        if value is not None and value > 0:
            found.append((key[0], f"{key[0]}: {key[2]}", value))
    return sorted(
        found, key=lambda bar: bar[2], reverse=case in ("resume", "start", "workers", "memory")
    )


def value_of(results: Results, key: Key) -> float | None:
    if key[1] == "resume":
        taken = results.middle(key, "total_s_10000")
        return None if taken is None else taken * 1e3
    if key[1] == "start":
        taken, first = results.middle(key, "import_s"), results.middle(key, "first_batch_s")
        return None if taken is None or first is None else taken + first
    if key[1] == "workers":
        return results.middle(key, "total_s")
    if key[1] == "memory":
        return results.middle(key, "over_bare_100000000")
    return results.middle(key, "ratio")


def picture(bars: list[tuple[str, str, float]], title: str, path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 0.6 + 0.27 * len(bars)), layout="constrained")
    axes = figure.subplots()
    places = range(len(bars))
    axes.barh(
        places, [value for *_, value in bars], color=[COLOURS.get(peer, OTHER) for peer, *_ in bars]
    )
    axes.set_yticks(places, [label for _, label, _ in bars])
    axes.set_xscale("log")
    axes.set_xlim(right=max(value for *_, value in bars) * 3)
    for place, (*_, value) in zip(places, bars, strict=True):
        axes.text(
            value * 1.08, place, f"{value:,.0f}" if value >= 100 else f"{value:.2g}", va="center"
        )
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_title(title, loc="left", fontsize=10)
    figure.savefig(path, metadata={"Date": None, "Creator": None})
