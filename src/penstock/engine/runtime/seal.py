"""Seal of states: a version and a checksum, written at a save and checked at a load.

A state is a small JSON object. It has a type, versions, the pipeline's fingerprint and description,
the position, the changes, and a checksum over everything. It never holds data, and loading one
never runs code.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, cast

from ...errors import StateError
from ..base.canonical_json import encode_canonical_json, encode_canonical_text
from ..base.columns import decode_columns, encode_columns
from ..base.random import RANDOM_VERSION as ORDER

VERSION = 1


class StateText:
    """Entries of a state as JSON texts, each encoded once.

    A text is in the order of its dicts, and again in canonical order for the checksum. Long lists
    become columns; `tables` are their names, which all entries of a state share.
    """

    def __init__(self, before: StateText | None = None) -> None:
        self._texts = dict[str, tuple[str, str]]()
        self.tables = list[list[str]]()
        if before is not None:
            self._texts |= before._texts
            self.tables += before.tables

    def add(self, name: str, value: Any) -> StateText:
        """Encode an entry."""
        encoded = encode_columns(value, self.tables)
        return self.add_text(name, _ENCODER.encode(encoded), encode_canonical_text(encoded))

    def add_text(self, name: str, text: str, canonical: str) -> StateText:
        """Add an encoded entry, which uses no names of `tables`."""
        key = encode_canonical_text(name)
        self._texts[name] = f"{key}:{text}", f"{key}:{canonical}"
        return self

    def seal(self) -> str:
        """Return the state as JSON, with its version and checksum."""
        state = StateText(self)
        if self.tables:
            text = encode_canonical_text(cast(Any, self.tables))
            state.add_text("tables", text, text)
        texts = {**_HEADER._texts, **state._texts}
        canonical = ",".join(texts[name][1] for name in sorted(texts))
        check = hashlib.sha256(f"{{{canonical}}}".encode()).hexdigest()[:_CHECK]
        return f'{{{",".join(text for text, _ in texts.values())},"check":"{check}"}}'


_ENCODER = json.JSONEncoder(separators=(",", ":"), allow_nan=False)
_CHECK = 32  # hex digits
_HEADER = StateText().add("penstock", "state").add("version", VERSION).add("order", ORDER)


def seal(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return a state with these contents; long lists become columns."""
    state = StateText()
    for name, value in body.items():
        state.add(name, value)
    return json.loads(state.seal())


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
    return hashlib.sha256(encode_canonical_json(cast(Any, state))).hexdigest()[:_CHECK]
