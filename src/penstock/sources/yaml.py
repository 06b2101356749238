"""Safe parsing of YAML: limits on depth and values, as deep nesting crashes PyYAML."""

from __future__ import annotations

import importlib
from typing import Any

from ..errors import make_missing_extra_error
from ..stores.limits import YAML_DEPTH, YAML_VALUES


def import_yaml(purpose: str) -> Any:
    """Import PyYAML, or raise an error that names its extra."""
    try:
        return importlib.import_module("yaml")
    except ModuleNotFoundError:
        raise make_missing_extra_error("pyyaml", "yaml", purpose) from None


def require_shallow(text: str | bytes, purpose: str) -> Any:
    """Return PyYAML for a text within the limits on depth and values, else raise `ValueError`.

    >>> require_shallow("a: [1, 2]", "reading this").safe_load("a: [1, 2]")
    {'a': [1, 2]}
    >>> require_shallow("[" * 100, "reading this")
    Traceback (most recent call last):
    ...
    ValueError: values are nested more than 60 deep
    """
    yaml = import_yaml(purpose)
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
        pass  # the caller's parser reports syntax errors
    return yaml
