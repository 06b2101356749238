"""Schemas that sources store, for pipelines that pass samples on unchanged."""

from __future__ import annotations

from typing import Any

from ..arrays.columnar import import_arrow
from ..arrays.lossless import list_arrow_errors
from ..arrays.tables import remove_marks
from ..engine.steps.step import Step, iter_steps
from ..sources.schema import StoresSchema


def find_stored_schema(step: Step) -> Any | None:
    """Return the common schema of the sources of a tree; `None` if only samples tell it.

    Args:
        step: the tree. Functions and groups change samples, so their trees have no stored schema.
    """
    if step.forms_groups or not all(below.keeps_samples(False) for below, _ in iter_steps(step)):
        return None
    schemas = list[Any]()
    for _, source in step.token_sources(()):
        schema = source.arrow_schema() if isinstance(source, StoresSchema) else None
        if schema is None:
            return None
        schemas.append(remove_marks(schema))
    if not schemas:
        return None
    try:
        return import_arrow().unify_schemas(schemas, promote_options="permissive")
    except list_arrow_errors():
        return None
