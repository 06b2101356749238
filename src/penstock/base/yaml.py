"""YAML of others, looked at before it is built: PyYAML goes down into a deep one until the process ends."""

from __future__ import annotations

import importlib
from typing import Any

from ..errors import missing_extra

DEPTH = 60
MOST = 1_000_000


def module(purpose: str) -> Any:
    """PyYAML."""
    try:
        return importlib.import_module("yaml")
    except ModuleNotFoundError:
        raise missing_extra("pyyaml", "yaml", purpose) from None


def shallow(text: str | bytes, purpose: str) -> Any:
    """PyYAML, for a text that it can read safely; a `ValueError` where that is nested too deeply, or too much.

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
        for count, event in enumerate(yaml.parse(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))):
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > DEPTH:
                raise ValueError(f"values are nested more than {DEPTH} deep")
            if count > MOST:
                raise ValueError(f"it holds more than {MOST:,} values")
    except yaml.YAMLError:
        pass  # whoever reads it says what is wrong
    return yaml
