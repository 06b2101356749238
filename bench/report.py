"""RESULTS.md from what was found: the promises first, then a table and a picture for each case."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from .kit import CHECKS
from .notes import INTRO, NOTES
from .pictures import draw
from .promises import promises
from .reading import READS
from .run import Key, Results
from .table import CASES, peers
from .texts import TEXTS

HERE = Path(__file__).parent

Column = tuple[str, Callable[[Results, Key], str]]


def write(results: Results, machine: dict[str, Any], round_count: int, folder: Path) -> Path:
    """Write the report and its pictures into a folder; gives the report's path."""
    drawn = draw(results, folder)
    parts = [
        INTRO,
        about(machine, round_count),
        "## What was promised",
        table(("promise", "wanted", "found", ""), promises(results)),
    ]
    for case in CASES.values():
        body = conformance(results) if case.kind == "kit" else figures(results, case.name)
        if body:
            parts += [
                f"## {case.title}",
                case.what,
                *([NOTES[case.name]] if case.name in NOTES else []),
            ]
            parts += [f"![{case.title}]({name})" for name in drawn.get(case.name, [])]
            parts.append(body)
    parts.append((HERE / "seen.md").read_text(encoding="utf-8").strip())
    parts += missing(results)
    target = folder / "RESULTS.md"
    target.write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    return target


def about(machine: dict[str, Any], round_count: int) -> str:
    versions = ", ".join(
        f"{name} {version}" for name, version in machine["versions"].items() if version
    )
    line = machine["line"]
    return f"**Machine**: {line}. **Versions**: {versions}. **Rounds**: {round_count}; medians (least to most)."


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    def line(cells: Iterable[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    head = list(head)
    return "\n".join([line(head), "|" + "---|" * len(head), *map(line, rows)])


# ---------------------------------------------------------------- cells


def number(value: float | None) -> str:
    """Three figures, thousands with commas; a dash where nothing was measured."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def ranged(metric: str, factor: float = 1.0) -> Callable[[Results, Key], str]:
    def cell(results: Results, key: Key) -> str:
        values = results.numbers[key].get(metric)
        if not values:
            return "-"
        middle = results.middle(key, metric) or 0.0
        spread = (
            f" ({number(min(values) * factor)} to {number(max(values) * factor)})"
            if len(values) > 1
            else ""
        )
        return number(middle * factor) + spread

    return cell


def plain(metric: str, factor: float = 1.0) -> Callable[[Results, Key], str]:
    def cell(results: Results, key: Key) -> str:
        value = results.middle(key, metric)
        return number(None if value is None else value * factor)

    return cell


def right(step: int) -> Callable[[Results, Key], str]:
    def cell(results: Results, key: Key) -> str:
        value = results.middle(key, f"right_{step}")
        if value is None:
            reached = results.middle(key, f"reached_{step}")
            return "-" if reached is None else f"not reached ({reached:,.0f} steps)"
        return ranged(f"total_s_{step}", 1e3)(results, key) + (
            "" if value == 1.0 else " **wrong batch**"
        )

    return cell


def cpu_us(results: Results, key: Key) -> str:
    rate = results.middle(key, "per_cpu_s")
    return number(1e6 / rate if rate else None)


def words(name: str) -> Callable[[Results, Key], str]:
    return lambda results, key: results.words[key].get(name, "-") or "none"


SPEED: list[Column] = [
    ("of the floor", ranged("ratio")),
    ("of the floor, by wall time", plain("ratio_wall")),
    ("a second, wall", plain("per_s")),
    ("CPU µs each", cpu_us),
]
BY_OTHERS = "move", "tokenize", "pictures", "waiting"
COLUMNS: dict[str, list[Column]] = {
    "overhead": [*SPEED, ("first batch, ms", plain("first_batch_s", 1e3))],
    **{case: [*SPEED[1:3], ("first batch, ms", plain("first_batch_s", 1e3))] for case in BY_OTHERS},
    **dict.fromkeys([*READS, *TEXTS], SPEED),
    "mix": [
        *SPEED,
        *((f"off at 10^{n}", plain(f"off_1e{n}")) for n in (3, 4, 5, 6)),
        ("distinct", plain("distinct")),
    ],
    "pack": [
        ("of the floor", ranged("ratio")),
        ("of the floor, by wall time", plain("ratio_wall")),
        ("million tokens a second, wall", plain("per_s", 1e-6)),
        ("fill", plain("fill")),
    ],
    "tokens": [
        ("of the floor", ranged("ratio")),
        ("of the floor, by wall time", plain("ratio_wall")),
        ("million tokens a second, wall", plain("per_s", 1e-6)),
        ("first batch, ms", plain("first_batch_s", 1e3)),
        ("fill", plain("fill")),
    ],
    "resume": [
        *((f"ms to the batch, step {step:,}", right(step)) for step in CASES["resume"].params),
        *(
            (f"state, bytes at {step:,}", plain(f"state_{step}"))
            for step in CASES["resume"].params[1::2]
        ),
    ],
    "start": [
        ("import, s", ranged("import_s")),
        ("first batch, s", ranged("first_batch_s")),
        ("MB after the import", plain("rss_after_import_mb")),
        ("modules", plain("modules")),
        ("of torch, jax, datasets, pandas", words("heavy")),
    ],
    "workers": [
        ("import and first batch, s", ranged("total_s")),
        ("import, s", plain("import_s")),
        ("first batch, s", plain("first_batch_s")),
        ("end, s", ranged("close_s")),
    ],
    "memory": [
        (f"{title}, 10^{len(str(n)) - 1}", plain(f"{metric}_{n}"))
        for n in CASES["memory"].params
        for title, metric in (
            ("MB in all", "rss"),
            ("over the interpreter", "over_bare"),
            ("over the imports", "over_imports"),
            ("peak", "peak"),
        )
    ],
}


def figures(results: Results, case: str) -> str:
    """The table of a case, best first."""
    keys = [key for key in results.numbers if key[1] == case]
    if not keys:
        return ""
    if CASES[case].kind == "times":
        names = dict.fromkeys(name for key in keys for name in results.numbers[key])
        columns = [(name, ranged(name)) for name in names]
    else:
        columns = COLUMNS.get(case) or COLUMNS[case.rstrip("0123456789")]

    def place(key: Key) -> tuple[bool, float]:
        ratio = results.middle(key, "ratio")
        taken = results.middle(key, "total_s") or results.middle(key, "import_s") or 0.0
        return key[0] != "floor", -ratio if ratio is not None else taken

    rows = (
        [f"{key[0]}: {key[2]}", *(cell(results, key) for _, cell in columns)]
        for key in sorted(keys, key=place)
    )
    return table(("", *(title for title, _ in columns)), rows)


def conformance(results: Results) -> str:
    """One row for each peer, one column for each check, and how each failure looked."""
    keys = [key for key in results.words if key[1] == "kit"]
    if not keys:
        return ""
    notes: dict[str, int] = {}

    def cell(key: Key, name: str) -> str:
        verdict, _, why = results.words[key].get(name, "none: not run").partition(": ")
        if verdict == "yes":
            return "yes"
        note = f"{key[0]}: {why}." if verdict == "none" else f"{key[0]}, {CHECKS[name][0]}: {why}."
        number = notes.setdefault(note, len(notes) + 1)
        if verdict == "none":
            return f"- [{number}]"
        chained = any(
            way in why for way in ("three times in a row", "loading twice", "in a used object")
        )
        return f"{'partly' if chained else 'no'} [{number}]"

    rows = [[key[0], *(cell(key, name) for name in CHECKS)] for key in keys]
    driven = [f"- {key[0]}: {key[2]}." for key in keys]
    meaning = [f"- {title}: {(check.__doc__ or '').strip()}" for title, check in CHECKS.values()]
    return "\n\n".join(
        [
            table(("", *(title for title, _ in CHECKS.values())), rows),
            "**What is asked.**\n\n" + "\n".join(meaning),
            "**How each was driven.**\n\n" + "\n".join(driven),
            "**How it failed, or why there was nothing to check.**\n\n"
            + "\n".join(f"{i}. {note}" for note, i in notes.items()),
        ]
    )


def missing(results: Results) -> list[str]:
    """List the absent libraries and the failed rows; nothing is left out silently."""
    lines = [f"- {name}: not measured here: {why}." for name, why in results.absent.items()]
    lines += [
        f"- {peer}, {CASES[case].title}, {how}: {why}."
        for (peer, case, how), why in results.failed.items()
    ]
    for peer in peers().values():
        for row in peer.rows:
            if "most" in row.facts and peer.name not in results.absent:
                lines.append(
                    f"- {row.name} beyond {row.facts['most']:,} samples: not run, "
                    f"{row.facts['why']}."
                )
    return ["## What is not here", "\n".join(lines)] if lines else []
