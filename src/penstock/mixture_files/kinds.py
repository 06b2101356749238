"""What a key may hold: each kind reads a node and notes what is wrong with it, and says the same as
JSON Schema."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Protocol

from ..engine.base.hints import near
from ..engine.base.ints import FAR
from ..engine.base.limits import NUMBER, PROBLEMS
from .reading import Node, Notes, Scalar, dotted, scalar_of

Schema = dict[str, Any]

_SHOWN = 80  # characters of a value in an error


class _Bad:
    """What a kind gives for a node that it refused."""


BAD = _Bad()


class Kind(Protocol):
    """`read` gives the plain value of a node, or `BAD` after noting why not."""

    def read(self, node: Node, at: str, notes: Notes, /) -> Any: ...
    def schema(self) -> Schema: ...


def take(kind: Kind, node: Node, at: str, notes: Notes) -> Any:
    """What a kind reads; nothing more is noted of a node that is spoiled already."""
    return BAD if node.spoiled else kind.read(node, at, notes)


@dataclass(frozen=True)
class Text:
    """A text, or one of some words."""

    choices: tuple[str, ...] = ()

    def read(self, node: Node, at: str, notes: Notes, /) -> Any:
        if self.choices and node.value not in self.choices:
            known = ", ".join(self.choices)
            notes.error(
                node, at, f"{shown(node)} is not one of {known}{near(node.value, self.choices)}"
            )
            return BAD
        if not isinstance(node.value, str):
            notes.error(node, at, f"a text, not {shown(node)}")
            return BAD
        return node.value

    def schema(self) -> Schema:
        return {"enum": list(self.choices)} if self.choices else {"type": "string"}


@dataclass(frozen=True)
class Number:
    """A finite number, also as 1e9 or 15T: at least `least`, at most `most`, above `above`, without
    a fraction."""

    whole: bool = False
    least: float | None = None
    most: float | None = None
    above: float | None = None
    null: bool = False

    def read(self, node: Node, at: str, notes: Notes, /) -> Any:
        value = _counted(node.value)
        if value is None and self.null:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or not self._fits(value):
            notes.error(node, at, f"{self._said(value)}, not {shown(node)}")
            return BAD
        return int(value) if self.whole else value

    def _fits(self, value: float) -> bool:
        return (
            abs(value) <= _LARGEST  # neither infinite nor NaN
            and not (self.whole and value != int(value))
            and (self.least is None or value >= self.least)
            and (self.most is None or value <= self.most)
            and (self.above is None or value > self.above)
        )

    def _said(self, value: Any) -> str:
        parts = [f"at least {self.least:g}" if self.least is not None else ""]
        large = isinstance(value, int | float) and self.most is not None and value > self.most
        parts += [
            f"at most {self.most:g}" if self.most is not None and (large or self.most < FAR) else ""
        ]
        parts += [f"above {self.above:g}" if self.above is not None else ""]
        bounds = " and ".join(part for part in parts if part)
        return f"a{' whole' if self.whole else ''} number{' ' + bounds if bounds else ''}"

    def schema(self) -> Schema:
        # The underscore of 1_000_000 and the exponent of 1e9 make texts of numbers for some
        # editors.
        number: Schema = {"type": "integer" if self.whole else "number"}
        bounds = (("minimum", self.least), ("maximum", self.most), ("exclusiveMinimum", self.above))
        number |= {word: bound for word, bound in bounds if bound is not None}
        text: Schema = {
            "type": "string",
            "pattern": r"^[0-9][0-9_]*([.][0-9]*)?([eE][+]?[0-9]+| *[kMBGT])?$|\$\{",
        }
        return {"anyOf": [number, text, *([{"type": "null"}] if self.null else [])]}


_LARGEST = 1 << 64
_COUNTED = re.compile(r"([0-9][0-9_]*(?:\.[0-9]*)?) *([kMBGT])")
_TIMES = {"k": 10**3, "M": 10**6, "B": 10**9, "G": 10**9, "T": 10**12}


def _counted(value: Any) -> Any:
    """15T as a number; anything else as it is."""
    found = _COUNTED.fullmatch(value) if isinstance(value, str) and len(value) <= NUMBER else None
    if found is None:
        return value
    number = Fraction(found[1].replace("_", "")) * _TIMES[found[2]]
    return int(number) if number.denominator == 1 else float(number)


@dataclass(frozen=True)
class Flag:
    """true or false."""

    def read(self, node: Node, at: str, notes: Notes, /) -> Any:
        if isinstance(node.value, bool):
            return node.value
        notes.error(node, at, f"true or false, not {shown(node)}")
        return BAD

    def schema(self) -> Schema:
        return {"type": "boolean"}


@dataclass(frozen=True)
class Plain:
    """Any one value: a text, a number, true, false or null."""

    def read(self, node: Node, at: str, notes: Notes, /) -> Any:
        if isinstance(node.value, dict | tuple):
            notes.error(node, at, f"one value, not {shown(node)}")
            return BAD
        return node.value

    def schema(self) -> Schema:
        return {"type": ["string", "number", "boolean", "null"]}


@dataclass(frozen=True)
class Items:
    """A list; with `one`, a single value stands for a list of one."""

    of: Kind
    one: bool = False
    most: int | None = None

    def read(self, node: Node, at: str, notes: Notes, /) -> Any:
        nodes = node.value if isinstance(node.value, tuple) else (node,) if self.one else None
        if nodes is None or isinstance(node.value, dict):
            notes.error(node, at, f"a list, not {shown(node)}")
            return BAD
        if not nodes or (self.most and len(nodes) > self.most):
            notes.error(
                node,
                at,
                f"a list of at least one{f' and at most {self.most}' if self.most else ''}",
            )
            return BAD
        values = [
            take(self.of, item, f"{at}[{i}]" if len(nodes) > 1 else at, notes)
            for i, item in enumerate(nodes)
        ]
        return BAD if BAD in values else tuple(values)

    def schema(self) -> Schema:
        many: Schema = {"type": "array", "items": self.of.schema(), "minItems": 1}
        if self.most:
            many["maxItems"] = self.most
        return {"anyOf": [self.of.schema(), many]} if self.one else many


@dataclass(frozen=True)
class Table:
    """Names of the user's choice, each with a value of one kind; names that are numbers have a
    `pattern`."""

    of: Kind
    pattern: str = ""

    def read(self, node: Node, at: str, notes: Notes, /) -> Any:
        if not isinstance(node.value, dict) or not node.value:
            notes.error(node, at, f"names with their values, not {shown(node)}")
            return BAD
        for name, child in node.value.items():
            if self.pattern and not (
                re.fullmatch(self.pattern, name) and _in_reach(scalar_of(name))
            ):
                notes.error(
                    child, dotted(at, name), f"a whole number of at least 0, not {name[:_SHOWN]!r}"
                )
                return BAD
        found = {
            name: take(self.of, child, dotted(at, name), notes)
            for name, child in node.value.items()
        }
        return BAD if BAD in found.values() else found

    def schema(self) -> Schema:
        if self.pattern:
            closed: Schema = {
                "patternProperties": {self.pattern: self.of.schema()},
                "additionalProperties": False,
            }
            return {"type": "object", "minProperties": 1, **closed}
        return {"type": "object", "minProperties": 1, "additionalProperties": self.of.schema()}


def _in_reach(value: Scalar) -> bool:
    return isinstance(value, int | float) and value <= FAR


@dataclass(frozen=True)
class Raw:
    """A node that is read further elsewhere; the schema says what it may be."""

    said: str

    def read(self, node: Node, at: str, notes: Notes, /) -> Any:
        return node

    def schema(self) -> Schema:
        ref: Schema = {"$ref": f"#/$defs/{self.said}"}
        return {"anyOf": [{"type": "string"}, ref]} if self.said == "mixture" else ref


@dataclass(frozen=True)
class Key:
    """One key of a section, and one line about it."""

    name: str
    kind: Kind
    doc: str


@dataclass(frozen=True)
class Section:
    """Known keys with their values; with `short`, a single value of another kind may stand for it.
    What is needed may come from the files that the key `bringing` names.
    """

    name: str
    doc: str
    keys: tuple[Key, ...]
    needed: tuple[str, ...] = ()
    short: Kind | None = None
    bringing: str | None = None

    def read(self, node: Node, at: str, notes: Notes, /) -> Any:
        """A dict of the keys given; refused keys are left out, so that the others are still looked
        at."""
        if not isinstance(node.value, dict):
            if self.short is not None:
                return self.short.read(node, at, notes)
            notes.error(
                node,
                at,
                f"settings by name ({', '.join(key.name for key in self.keys)}), not {shown(node)}",
            )
            return BAD
        known = {key.name: key for key in self.keys}
        out: dict[str, Any] = {}
        for name, child in node.value.items():
            here = dotted(at, name)
            if name not in known:
                few = len(notes.problems) < PROBLEMS
                hint = near(name, known) if few else ""
                notes.error(
                    child, here, f"unknown key {name!r}{hint or '; known: ' + ', '.join(known)}"
                )
                continue
            value = take(known[name].kind, child, here, notes)
            if value is not BAD:
                out[name] = value
        for name in self.needed:
            if name not in node.value:
                notes.error(node, at, f"{name!r} is missing")
        return out

    def schema(self) -> Schema:
        return {"$ref": f"#/$defs/{self.name}"}

    def full_schema(self) -> Schema:
        """The definition that `schema` refers to."""
        keys = {key.name: {"description": key.doc, **key.kind.schema()} for key in self.keys}
        whole: Schema = {"type": "object", "additionalProperties": False, "properties": keys}
        if self.bringing:  # looked at before the files that it names are
            whole["anyOf"] = [{"required": list(self.needed)}, {"required": [self.bringing]}]
        elif self.needed:
            whole["required"] = list(self.needed)
        if self.short is not None:
            return {"description": self.doc, "anyOf": [self.short.schema(), whole]}
        return {"description": self.doc, **whole}


def shown(node: Node) -> str:
    """A node in an error."""
    if isinstance(node.value, dict):
        return "names with values"
    if isinstance(node.value, tuple) or node.value is None:
        return "nothing" if node.value is None else "a list"
    text = repr(node.value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
