"""Seal of states: a version and a checksum, written at a save and checked at a load.

A state is a small JSON object. It has a type, versions, the pipeline's fingerprint and description,
the position, the changes, and a checksum over everything. It never holds data, and loading one
never runs code.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, cast

from ...errors import StateError
from ..base.canonical_json import encode_canonical_json
from ..base.columns import decode_columns, encode_columns
from ..base.random import RANDOM_VERSION as ORDER

VERSION = 1


def seal(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return a state with these contents; long lists become columns."""
    tables = list[list[str]]()
    held = {name: encode_columns(each, tables) for name, each in body.items()}
    state = {
        "penstock": "state",
        "version": VERSION,
        "order": ORDER,
        **held,
        **({"tables": tables} if tables else {}),
    }
    return {**state, "check": _check(state)}


def unseal(state: Any) -> dict[str, Any]:
    """Return the contents of a state after checking its type, version and checksum."""
    if not isinstance(state, Mapping):
        raise StateError(
            f"a state is a mapping, not a {type(state).__name__}; pass the result of state_dict()"
        )
    found = dict(cast("Mapping[str, Any]", state))
    if found.get("penstock") != "state":
        keys = ", ".join(sorted(map(str, found))[:6]) or "nothing"
        raise StateError(
            "this is not a state of Penstock, but perhaps of another library, or another part of "
            f"a checkpoint (it holds {keys}); pass the result of state_dict()"
        )
    for what, ours in (("version", VERSION), ("order", ORDER)):
        if found.get(what) != ours:
            raise StateError(
                f"the state has {what} {found.get(what)!r}, this Penstock has {ours}; resume with "
                "the release that wrote it"
            )
    check = found.pop("check", None)
    try:
        if check == _check(found):
            tables = found.pop("tables", [])
            return {name: decode_columns(each, tables) for name, each in found.items()}
    except (TypeError, ValueError, RecursionError):
        pass
    raise StateError(
        "the state is damaged: its contents do not match its checksum; use an earlier one"
    )


def _check(state: Mapping[str, Any]) -> str:
    return hashlib.sha256(encode_canonical_json(cast(Any, state))).hexdigest()[:32]
