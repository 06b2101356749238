"""Kinds of values in a mixture file: each validates a node and yields its JSON Schema."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Protocol

from ..arguments import suggest_names
from ..stores.limits import NUMBER, PROBLEMS
from ..types import MAX_POSITION
from .reading import MixtureNode, ProblemLog, Scalar, join_key, parse_scalar

Schema = dict[str, Any]

_SHOWN_CHARACTERS = 80  # characters of a value in a message


class _InvalidType:
    """Type of `INVALID`, the result of reading an invalid node."""


INVALID = _InvalidType()


class ValueKind(Protocol):
    """Protocol of a kind of value.

    `read` returns the plain value of a node; for an invalid node it notes the problem and returns
    `INVALID`.
    """

    def read(self, node: MixtureNode, at: str, notes: ProblemLog, /) -> Any: ...
    def schema(self) -> Schema: ...


def read_node(kind: ValueKind, node: MixtureNode, at: str, notes: ProblemLog) -> Any:
    """Read a node; skip nodes whose problem the parser has noted already."""
    return INVALID if node.spoiled else kind.read(node, at, notes)


@dataclass(frozen=True)
class TextKind:
    """A text, or one of several words."""

    choices: tuple[str, ...] = ()

    def read(self, node: MixtureNode, at: str, notes: ProblemLog, /) -> Any:
        if self.choices and node.value not in self.choices:
            known = ", ".join(self.choices)
            notes.error(
                node,
                at,
                f"{format_node(node)} is not one of {known}{suggest_names(node.value, self.choices)}",
            )
            return INVALID
        if not isinstance(node.value, str):
            notes.error(node, at, f"expected a text, not {format_node(node)}")
            return INVALID
        return node.value

    def schema(self) -> Schema:
        return {"enum": list(self.choices)} if self.choices else {"type": "string"}


@dataclass(frozen=True)
class NumberKind:
    """A finite number within bounds, also written as 1e9 or 15T.

    The bounds are `least` and `most` (inclusive) and `above` (exclusive); `integer` numbers have no
    fraction.
    """

    integer: bool = False
    least: float | None = None
    most: float | None = None
    above: float | None = None
    null: bool = False

    def read(self, node: MixtureNode, at: str, notes: ProblemLog, /) -> Any:
        value = _parse_scaled_number(node.value)
        if value is None and self.null:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or not self._fits(value):
            notes.error(node, at, f"expected {self._expected(value)}, not {format_node(node)}")
            return INVALID
        return int(value) if self.integer else value

    def _fits(self, value: float) -> bool:
        return (
            abs(value) <= _LARGEST_NUMBER  # neither infinite nor NaN
            and not (self.integer and value != int(value))
            and (self.least is None or value >= self.least)
            and (self.most is None or value <= self.most)
            and (self.above is None or value > self.above)
        )

    def _expected(self, value: Any) -> str:
        parts = [f"at least {self.least:,}" if self.least is not None else ""]
        large = isinstance(value, int | float) and self.most is not None and value > self.most
        parts += [
            f"at most {self.most:,}"
            if self.most is not None and (large or self.most < MAX_POSITION)
            else ""
        ]
        parts += [f"above {self.above:,}" if self.above is not None else ""]
        bounds = " and ".join(part for part in parts if part)
        if not bounds and isinstance(value, int | float) and abs(value) > _LARGEST_NUMBER:
            bounds = "from -2^64 to 2^64"
        return f"a{' whole' if self.integer else ''} number{' ' + bounds if bounds else ''}"

    def schema(self) -> Schema:
        # Some editors parse 1_000_000 and 1e9 as strings.
        number: Schema = {"type": "integer" if self.integer else "number"}
        bounds = (("minimum", self.least), ("maximum", self.most), ("exclusiveMinimum", self.above))
        number |= {word: bound for word, bound in bounds if bound is not None}
        text: Schema = {
            "type": "string",
            "pattern": r"^[0-9][0-9_]*([.][0-9]*)?([eE][+]?[0-9]+| *[kMBGT])?$|\$\{",
        }
        return {"anyOf": [number, text, *([{"type": "null"}] if self.null else [])]}


_LARGEST_NUMBER = 1 << 64
_SCALED_NUMBER = re.compile(r"([0-9][0-9_]*(?:\.[0-9]*)?) *([kMBGT])")
_SCALE_FACTORS = {"k": 10**3, "M": 10**6, "B": 10**9, "G": 10**9, "T": 10**12}


def parse_number(text: str) -> Scalar:
    """Parse a name in a table that is a number, such as 50B."""
    return _parse_scaled_number(parse_scalar(text))


def _parse_scaled_number(value: Any) -> Any:
    """Parse 15T as a number; return any other value as it is."""
    match = (
        _SCALED_NUMBER.fullmatch(value) if isinstance(value, str) and len(value) <= NUMBER else None
    )
    if match is None:
        return value
    number = Fraction(match[1].replace("_", "")) * _SCALE_FACTORS[match[2]]
    return int(number) if number.denominator == 1 else float(number)


@dataclass(frozen=True)
class FlagKind:
    """True or false."""

    def read(self, node: MixtureNode, at: str, notes: ProblemLog, /) -> Any:
        if isinstance(node.value, bool):
            return node.value
        notes.error(node, at, f"expected true or false, not {format_node(node)}")
        return INVALID

    def schema(self) -> Schema:
        return {"type": "boolean"}


@dataclass(frozen=True)
class NoneKind:
    """The word none, which leaves out what the mixture would do; null stands for it."""

    expected: str

    def read(self, node: MixtureNode, at: str, notes: ProblemLog, /) -> Any:
        if node.value in (None, "none"):
            return "none"
        notes.error(node, at, f"expected {self.expected}, or none, not {format_node(node)}")
        return INVALID

    def schema(self) -> Schema:
        return {"enum": ["none", None]}


@dataclass(frozen=True)
class ScalarKind:
    """A single value: text, number, true, false or null."""

    def read(self, node: MixtureNode, at: str, notes: ProblemLog, /) -> Any:
        if isinstance(node.value, dict | tuple):
            notes.error(node, at, f"expected one value, not {format_node(node)}")
            return INVALID
        return node.value

    def schema(self) -> Schema:
        return {"type": ["string", "number", "boolean", "null"]}


@dataclass(frozen=True)
class ListKind:
    """A list; with `one`, a single value stands for a list of one."""

    of: ValueKind
    one: bool = False
    most: int | None = None

    def read(self, node: MixtureNode, at: str, notes: ProblemLog, /) -> Any:
        nodes = node.value if isinstance(node.value, tuple) else (node,) if self.one else None
        if nodes is None or isinstance(node.value, dict):
            notes.error(node, at, f"expected a list, not {format_node(node)}")
            return INVALID
        if not nodes or (self.most and len(nodes) > self.most):
            notes.error(
                node,
                at,
                f"expected a list of at least one value{f' and at most {self.most}' if self.most else ''}",
            )
            return INVALID
        values = [
            read_node(self.of, item, f"{at}[{i}]" if len(nodes) > 1 else at, notes)
            for i, item in enumerate(nodes)
        ]
        return INVALID if INVALID in values else tuple(values)

    def schema(self) -> Schema:
        list_schema: Schema = {"type": "array", "items": self.of.schema(), "minItems": 1}
        if self.most:
            list_schema["maxItems"] = self.most
        return {"anyOf": [self.of.schema(), list_schema]} if self.one else list_schema


@dataclass(frozen=True)
class Table:
    """A mapping of user-chosen names to values of one kind.

    Names that are numbers have a `pattern`; errors call them `expected`.
    """

    of: ValueKind
    pattern: str = ""
    expected: str = "a whole number of at least 0"

    def read(self, node: MixtureNode, at: str, notes: ProblemLog, /) -> Any:
        if not isinstance(node.value, dict) or not node.value:
            actual = "an empty mapping" if node.value == {} else format_node(node)
            notes.error(node, at, f"expected a mapping{self._example()}, not {actual}")
            return INVALID
        for name, child in node.value.items():
            if self.pattern and not (
                re.fullmatch(self.pattern, name) and _is_valid_position(parse_number(name))
            ):
                notes.error(
                    child,
                    join_key(at, name),
                    f"expected {self.expected}, not {name[:_SHOWN_CHARACTERS]!r}",
                )
                return INVALID
        values = {
            name: read_node(self.of, child, join_key(at, name), notes)
            for name, child in node.value.items()
        }
        return INVALID if INVALID in values.values() else values

    def _example(self) -> str:
        if isinstance(self.of, RawKind):
            return " such as {code: {path: …, weight: 1}}"
        return " such as {code: 1}" if isinstance(self.of, NumberKind) and not self.pattern else ""

    def schema(self) -> Schema:
        if self.pattern:
            closed: Schema = {
                "patternProperties": {self.pattern: self.of.schema()},
                "additionalProperties": False,
            }
            return {"type": "object", "minProperties": 1, **closed}
        return {"type": "object", "minProperties": 1, "additionalProperties": self.of.schema()}


def _is_valid_position(value: Scalar) -> bool:
    return isinstance(value, int | float) and value <= MAX_POSITION


@dataclass(frozen=True)
class PlainKind:
    """Values by name of any form: texts, numbers, lists, and values by name again."""

    def read(self, node: MixtureNode, at: str, notes: ProblemLog, /) -> Any:
        if isinstance(node.value, dict):
            return _read_plain(node)
        notes.error(node, at, f"expected a mapping, not {format_node(node)}")
        return INVALID

    def schema(self) -> Schema:
        return {"type": "object"}


def _read_plain(node: MixtureNode) -> Any:
    if isinstance(node.value, dict):
        return {name: _read_plain(child) for name, child in node.value.items()}
    if isinstance(node.value, tuple):
        return [_read_plain(child) for child in node.value]
    return node.value


@dataclass(frozen=True)
class RawKind:
    """A node that the caller reads; the schema refers to the definition `said`."""

    said: str

    def read(self, node: MixtureNode, at: str, notes: ProblemLog, /) -> Any:
        return node

    def schema(self) -> Schema:
        ref: Schema = {"$ref": f"#/$defs/{self.said}"}
        return {"anyOf": [{"type": "string"}, ref]} if self.said == "mixture" else ref


@dataclass(frozen=True)
class SectionKey:
    """A key of a section, with a line of documentation."""

    name: str
    kind: ValueKind
    doc: str


@dataclass(frozen=True)
class Section:
    """A mapping with known keys; a value of the kind `short` may stand for it.

    Files named under the key `bringing` may provide the needed keys.
    """

    name: str
    doc: str
    keys: tuple[SectionKey, ...]
    needed: tuple[str, ...] = ()
    short: ValueKind | None = None
    bringing: str | None = None

    def read(self, node: MixtureNode, at: str, notes: ProblemLog, /) -> Any:
        """Read the known keys; omit invalid ones, so that all keys are checked."""
        if not isinstance(node.value, dict):
            if self.short is not None:
                return self.short.read(node, at, notes)
            notes.error(
                node,
                at,
                f"expected a mapping of {', '.join(key.name for key in self.keys)}, not {format_node(node)}",
            )
            return INVALID
        known = {key.name: key for key in self.keys}
        values: dict[str, Any] = {}
        for name, child in node.value.items():
            key_path = join_key(at, name)
            if name not in known:
                few_problems = len(notes.problems) < PROBLEMS
                hint = self._suggest(name) if few_problems else ""
                notes.error(
                    child, key_path, f"unknown key {name!r}{hint or '; known: ' + ', '.join(known)}"
                )
                continue
            value = read_node(known[name].kind, child, key_path, notes)
            if value is not INVALID:
                values[name] = value
        for name in self.needed:
            if name not in node.value:
                notes.error(node, at, f"{name!r} is missing")
        return values

    def _suggest(self, name: str) -> str:
        for key in self.keys:
            if isinstance(key.kind, Section) and any(inner.name == name for inner in key.kind.keys):
                return f"; write {key.name}: {{{name}: …}}"
        return suggest_names(name, [key.name for key in self.keys])

    def schema(self) -> Schema:
        return {"$ref": f"#/$defs/{self.name}"}

    def full_schema(self) -> Schema:
        """Return the definition that `schema` refers to."""
        keys = {key.name: {"description": key.doc, **key.kind.schema()} for key in self.keys}
        definition: Schema = {"type": "object", "additionalProperties": False, "properties": keys}
        if self.bringing:  # an included file may hold the required keys
            definition["anyOf"] = [{"required": list(self.needed)}, {"required": [self.bringing]}]
        elif self.needed:
            definition["required"] = list(self.needed)
        if self.short is not None:
            return {"description": self.doc, "anyOf": [self.short.schema(), definition]}
        return {"description": self.doc, **definition}


def format_node(node: MixtureNode) -> str:
    """Format a node for a message."""
    if isinstance(node.value, dict):
        return "a mapping"
    if isinstance(node.value, tuple) or node.value is None:
        return "nothing" if node.value is None else "a list"
    text = repr(node.value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."
