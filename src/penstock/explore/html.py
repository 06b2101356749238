"""A dataset as HTML for a notebook: its pipeline, and a table of its first samples."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..engine.base.shown import attempt
from ..engine.steps.step import iter_steps
from .base import BaseDataset
from .cells import format_value, show_table
from .rows import VALUE_COLUMN, column_names
from .schemas import find_stored_schema

_ROWS = 3  # samples that are read to be shown
_COLUMNS = 12
_STEPS = 200  # pipelines of more steps take long to compile


def show_dataset(dataset: BaseDataset[Any], tree: str) -> str:
    """Return the pipeline of a dataset and its first samples as HTML.

    It reads three samples. An error in reading them leaves the pipeline alone. So does a pipeline
    that may read many samples for them, such as a filter, a batch, or a stream.

    Args:
        dataset: the dataset.
        tree: its pipeline as HTML.
    """
    return tree + attempt(lambda: _show_samples(dataset), "")


def _show_samples(dataset: BaseDataset[Any]) -> str:
    steps = [step for step, _ in iter_steps(dataset.tree)]
    if len(steps) > _STEPS or any(step.needs_lengths or step.forms_groups for step in steps):
        return ""
    if dataset.tree.reason_not_indexed is not None:
        return ""
    size = dataset.compiled.size
    samples = dataset[range(_ROWS if size is None else min(_ROWS, size))]
    is_table = bool(samples) and all(isinstance(sample, Mapping) for sample in samples)
    stored = find_stored_schema(dataset.tree)
    types = {} if stored is None else {field.name: str(field.type) for field in stored}
    names = column_names(samples) if is_table else [VALUE_COLUMN]
    shown = names[:_COLUMNS]
    rows = [
        [format_value(sample.get(name)) if is_table else format_value(sample) for name in shown]
        for sample in samples
    ]
    heads = [f"{name}: {types[name]}" if name in types else str(name) for name in shown]
    if len(names) > len(shown):
        heads.append(f"... {len(names) - len(shown)} more columns")
        rows = [[*row, ""] for row in rows]
    return show_table(heads, rows) if rows else ""
