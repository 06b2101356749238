"""The demo's report: one page with the plan, the run, the queries and the proof."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

import numpy as np

from penstock.engine.base.integers import find_distinct_values
from penstock.explore.run_counts import EventStrip, RunCounts
from penstock.report import Row, Target, shares
from penstock.report.full_report import collect_facts
from penstock.report.page import render_chart_widths, render_page, render_table

from .journal import Record
from .queries import PlanAnswers


def measure_run_counts(target: Target, records: Sequence[Record]) -> RunCounts:
    """Return the tokens of each source as the run delivered them."""
    names = list(target.plan.sources)
    delivered_tokens = np.array(
        [[record.by_source[name] for name in names] for record in records], np.int64
    )
    counts = np.concatenate(
        [np.zeros((1, len(names)), np.int64), np.cumsum(delivered_tokens, axis=0)]
    )
    steps = find_distinct_values(
        np.linspace(0, len(records), min(len(records), shares.CURVE_POINTS) + 1).astype(np.int64)
    )
    sizes = [target.all_tokens[name] for name in names]
    return RunCounts(names, sizes, steps, counts[steps], "tokens")


def write(
    path: Path,
    target: Target,
    rows: Sequence[Row],
    run: RunCounts,
    marks: Mapping[int, str],
    answers: PlanAnswers,
    proof: Sequence[str],
) -> None:
    """Write the report."""
    planned = shares.count_by_step(target, int(run.steps[-1]))
    strip = shares.collect_run_events(target, int(run.steps[-1]), planned.names)
    listed = "\n".join(answers.step_in_words())
    checked = (
        f"Every one of {int(run.steps[-1]):,} steps held exactly what the plan says, and each of "
        f"{answers.queried} "
        "documents was seen exactly at the steps that the plan names."
        if answers.hold
        else f"THE RUN DIFFERS FROM THE PLAN: steps {list(answers.wrong_steps)[:10]}, documents "
        f"{answers.wrong_documents[:10]}"
    )
    parts = [
        ("Sources", render_table(shares.format_rows(rows, target.packed))),
        ("The mixture file", f"<pre>{escape(target.path.read_text(encoding='utf-8'))}</pre>"),
        (
            "The plan, known before the run",
            render_chart_widths(planned, "As planned", strip),
        ),
        (
            "The run",
            render_chart_widths(
                run,
                "As it ran",
                EventStrip(changes=sorted(marks.items())),
            ),
        ),
        (f"What was in step {answers.step}?", f"<pre>{escape(listed)}</pre>"),
        (
            "When is a document seen?",
            f"<pre>{escape(answers.seen_in_words())}</pre><p>{escape(checked)}</p>",
        ),
        ("The proof", "<pre>" + escape("\n".join(proof)) + "</pre>"),
    ]
    facts = collect_facts(target, int(run.steps[-1]), rows)
    path.write_text(render_page("Penstock demo", facts, parts), encoding="utf-8")
