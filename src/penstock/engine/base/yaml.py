"""YAML of others, looked at before it is built: PyYAML goes down into a deep one until the process
ends."""

from __future__ import annotations

import importlib
from typing import Any

from ...errors import missing_extra
from .limits import YAML_DEPTH, YAML_VALUES


def module(purpose: str) -> Any:
    """PyYAML."""
    try:
        return importlib.import_module("yaml")
    except ModuleNotFoundError:
        raise missing_extra("pyyaml", "yaml", purpose) from None


def shallow(text: str | bytes, purpose: str) -> Any:
    """PyYAML, for a text that it can read safely; a `ValueError` where that is nested too deeply,
    or too much.

    >>> shallow("a: [1, 2]", "reading this").safe_load("a: [1, 2]")
    {'a': [1, 2]}
    >>> shallow("[" * 100, "reading this")
    Traceback (most recent call last):
    ...
    ValueError: values are nested more than 60 deep
    """
    yaml = module(purpose)
    depth = 0
    try:
        for count, event in enumerate(
            yaml.parse(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        ):
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(
                event, yaml.CollectionEndEvent
            )
            if depth > YAML_DEPTH:
                raise ValueError(f"values are nested more than {YAML_DEPTH} deep")
            if count > YAML_VALUES:
                raise ValueError(f"it holds more than {YAML_VALUES:,} values")
    except yaml.YAMLError:
        pass  # whoever reads it says what is wrong
    return yaml
