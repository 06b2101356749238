"""Transforms of one row: maps, filters and changes of fields; `a >> b` applies `a`, then `b`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

Example: TypeAlias = dict[str, Any]


class _Chainable:
    """Base of all transforms: chaining, and a representation without addresses."""

    def __rshift__(self, other: Any) -> ChainedTransform:
        return ChainedTransform([*_list_parts(self), *_list_parts(other)])

    def __repr__(self) -> str:
        values = [getattr(self, name) for name in getattr(self, "__dataclass_fields__", ())]
        return f"{type(self).__name__}({', '.join(map(_describe, values))})"

    def identify(self) -> str:
        """Return a text that a state stores, to detect another transform at a resume."""
        return repr(self)


class Transform(_Chainable, ABC):
    """Base of transforms from a row to a row, or to None, which drops the row.

    Define `is_filter` as true in a subclass that drops rows, so that its sources have no length.

    >>> (RenameFields({"old": "new"}) >> FilterNonEmpty(["new"]))({"old": "x", "y": 1})
    {'new': 'x', 'y': 1}
    """

    @abstractmethod
    def __call__(self, example: Example, /) -> Example | None:
        """Return the changed row, or None to drop it."""

    @property
    def is_filter(self) -> bool:
        """True if rows may be dropped."""
        return False

    @property
    def is_expand(self) -> bool:
        """True if a row may become several."""
        return False


class ExpandTransform(_Chainable, ABC):
    """Base of transforms from a row to any number of rows."""

    @abstractmethod
    def __call__(self, example: Example, /) -> Iterator[Example]:
        """Yield the rows that replace a row."""

    @property
    def is_filter(self) -> bool:
        """True: a row may become none."""
        return True

    @property
    def is_expand(self) -> bool:
        """True: a row may become several."""
        return True


class ChainedTransform(Transform):
    """Apply transforms one after the other; a chain with an `ExpandTransform` yields rows.

    Args:
        transforms: the transforms, in order.

    >>> chain = DropFields(["b"]) >> MapField("a", str.upper)
    >>> len(chain), chain({"a": "x", "b": 1})
    (2, {'a': 'X'})
    """

    def __init__(self, transforms: Sequence[Any]) -> None:
        self.transforms = list(transforms)

    def __call__(self, example: Example, /) -> Any:
        """Return the row after all transforms, or the rows if one of them expands."""
        rows = expand_row(self.transforms, example)
        return rows if self.is_expand else next(iter(rows), None)

    @property
    def is_filter(self) -> bool:
        """True if one of the transforms may drop rows."""
        return any(transform.is_filter for transform in self.transforms)

    @property
    def is_expand(self) -> bool:
        """True if one of the transforms may make several rows of one."""
        return any(transform.is_expand for transform in self.transforms)

    def __repr__(self) -> str:
        return f"ChainedTransform({' >> '.join(map(repr, self.transforms))})"

    def identify(self) -> str:
        """Return the texts of all transforms."""
        return " >> ".join(map(identify, self.transforms))

    def __len__(self) -> int:
        return len(self.transforms)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.transforms)


def expand_row(transforms: Iterable[Any], example: Example) -> list[Example]:
    """Return the rows that transforms make of a row.

    Args:
        transforms: transforms of both kinds, in order.
        example: the row.
    """
    rows = [example]
    for transform in transforms:
        results = [transform(row) for row in rows]
        if getattr(transform, "is_expand", False):
            rows = [row for group in results for row in group]
        else:
            rows = [row for row in results if row is not None]
    return rows


# ---------------------------------------------------------------- maps


@dataclass(frozen=True, repr=False)
class MapTransform(Transform):
    """Apply a function to a row.

    Args:
        fn: function from a row to a row.

    >>> MapTransform(lambda row: {**row, "n": len(row["text"])})({"text": "abc"})
    {'text': 'abc', 'n': 3}
    """

    fn: Callable[[Example], Example]

    def __call__(self, example: Example, /) -> Example:
        """Return the result of the function."""
        return self.fn(example)


@dataclass(frozen=True, repr=False)
class MapField(Transform):
    """Apply a function to a field; a row without it is unchanged.

    Args:
        field: name of the field.
        fn: function of its value.
        output_field: field for the result; by default the same field.

    >>> MapField("text", str.upper, output_field="loud")({"text": "hi"})
    {'text': 'hi', 'loud': 'HI'}
    """

    field: str
    fn: Callable[[Any], Any]
    output_field: str | None = None

    def __call__(self, example: Example, /) -> Example:
        """Return a copy of the row with the result."""
        if self.field not in example:
            return example
        return {**example, self.output_field or self.field: self.fn(example[self.field])}


# ---------------------------------------------------------------- filters


class _Filter(Transform):
    """Base of transforms that keep or drop a row."""

    @property
    def is_filter(self) -> bool:
        """True: rows may be dropped."""
        return True

    def __call__(self, example: Example, /) -> Example | None:
        """Return the row, or None to drop it."""
        return example if self._keeps(example) else None

    @abstractmethod
    def _keeps(self, example: Example, /) -> bool:
        """Return whether a row stays."""


@dataclass(frozen=True, repr=False)
class FilterTransform(_Filter):
    """Keep the rows for which a function is true.

    Args:
        predicate: function of a row.

    >>> FilterTransform(lambda row: row["n"] > 1)({"n": 1}) is None
    True
    """

    predicate: Callable[[Example], Any]

    def _keeps(self, example: Example, /) -> bool:
        """Return whether the function is true."""
        return bool(self.predicate(example))


@dataclass(frozen=True, repr=False)
class FilterByField(_Filter):
    """Keep the rows with a field for whose value a function is true.

    Args:
        field: name of the field.
        predicate: function of its value.

    >>> FilterByField("lang", lambda lang: lang == "en")({"lang": "en"})
    {'lang': 'en'}
    """

    field: str
    predicate: Callable[[Any], Any]

    def _keeps(self, example: Example, /) -> bool:
        """Return whether the row has the field and the function is true."""
        return self.field in example and bool(self.predicate(example[self.field]))


@dataclass(frozen=True, repr=False)
class FilterNonEmpty(_Filter):
    """Keep the rows whose fields are there, and neither None, an empty text nor an empty list.

    Args:
        fields: names of the fields.

    >>> FilterNonEmpty(["text"])({"text": ""}) is None
    True
    """

    fields: Sequence[str]

    def _keeps(self, example: Example, /) -> bool:
        """Return whether no field is empty."""
        return not any(_is_empty(example.get(name)) for name in self.fields)


# ---------------------------------------------------------------- fields


@dataclass(frozen=True, repr=False)
class RenameFields(Transform):
    """Rename fields; other fields are unchanged.

    Args:
        mapping: old name -> new name.

    >>> RenameFields({"a": "b"})({"a": 1, "c": 2})
    {'b': 1, 'c': 2}
    """

    mapping: Mapping[str, str]

    def __call__(self, example: Example, /) -> Example:
        """Return the row with the new names."""
        return {self.mapping.get(name, name): value for name, value in example.items()}


@dataclass(frozen=True, repr=False)
class SelectFields(Transform):
    """Drop all fields but these; missing ones are ignored.

    Args:
        fields: names of the fields.

    >>> SelectFields(["a", "x"])({"a": 1, "c": 2})
    {'a': 1}
    """

    fields: Sequence[str]

    def __call__(self, example: Example, /) -> Example:
        """Return the row with the fields."""
        return {name: value for name, value in example.items() if name in self.fields}


@dataclass(frozen=True, repr=False)
class DropFields(Transform):
    """Drop fields; missing ones are ignored.

    Args:
        fields: names of the fields.

    >>> DropFields(["a", "x"])({"a": 1, "c": 2})
    {'c': 2}
    """

    fields: Sequence[str]

    def __call__(self, example: Example, /) -> Example:
        """Return the row without the fields."""
        return {name: value for name, value in example.items() if name not in self.fields}


@dataclass(frozen=True, repr=False)
class ExtractField(Transform):
    """Copy a nested value to a field of the row.

    Args:
        source_path: path of the value, such as "meta.author" or "messages[0].content".
        target_field: name of the new field.
        default: value if the path leads nowhere, or to None.

    >>> ExtractField("messages[0].content", "first")({"messages": [{"content": "hi"}]})["first"]
    'hi'
    """

    source_path: str
    target_field: str
    default: Any = None

    def __call__(self, example: Example, /) -> Example:
        """Return a copy of the row with the value."""
        value: Any = example
        for step in self.source_path.replace("]", "").replace("[", ".").split("."):
            value = _look_up(value, step)
        return {**example, self.target_field: self.default if value is None else value}


@dataclass(frozen=True, repr=False)
class CombineFields(Transform):
    """Combine fields into one: their texts with a separator, without those that are None.

    Args:
        source_fields: names of the fields; a missing one counts as None.
        target_field: name of the new field.
        combiner: function of the list of values, instead of the separator.
        separator: text between values.
        drop_sources: whether to drop the fields.

    >>> CombineFields(["a", "b"], "ab", separator="-", drop_sources=True)({"a": 1, "b": "x"})
    {'ab': '1-x'}
    """

    source_fields: Sequence[str]
    target_field: str
    combiner: Callable[[list[Any]], Any] | None = None
    separator: str = " "
    drop_sources: bool = False

    def __call__(self, example: Example, /) -> Example:
        """Return a copy of the row with the combined value."""
        values = [example.get(name) for name in self.source_fields]
        if self.combiner is not None:
            combined = self.combiner(values)
        else:
            combined = self.separator.join(str(value) for value in values if value is not None)
        row = {**example, self.target_field: combined}
        return DropFields(self.source_fields)(row) if self.drop_sources else row


@dataclass(frozen=True, repr=False)
class AddField(Transform):
    """Add a field.

    Args:
        field: name of the field.
        value: its value, or a function of the row.

    >>> AddField("n", lambda row: len(row["text"]))({"text": "abc"})
    {'text': 'abc', 'n': 3}
    """

    field: str
    value: Any

    def __call__(self, example: Example, /) -> Example:
        """Return a copy of the row with the field."""
        value = self.value(example) if callable(self.value) else self.value
        return {**example, self.field: value}


# ---------------------------------------------------------------- helpers


def _list_parts(transform: Any) -> list[Any]:
    return transform.transforms if isinstance(transform, ChainedTransform) else [transform]


def identify(transform: Any) -> str:
    """Return a text without addresses that identifies a transform, of a user or another package.

    Args:
        transform: the transform, or a function.
    """
    if isinstance(transform, _Chainable):
        return transform.identify()
    has_address = type(transform).__repr__ in (object.__repr__, type(_describe).__repr__)
    return _describe(transform) if has_address else repr(transform)


def _describe(value: Any) -> str:
    """Return a text without addresses, which states can store."""
    return (
        str(getattr(value, "__qualname__", type(value).__name__))
        if callable(value)
        else repr(value)
    )


def _is_empty(value: Any) -> bool:
    is_text_or_list = isinstance(value, str | list)
    return value is None or (is_text_or_list and not cast("str | list[Any]", value))


def _look_up(value: Any, step: str) -> Any:
    """Return an entry of a list or mapping; None if there is none."""
    if step.isdigit() and isinstance(value, list):
        entries = cast("list[Any]", value)
        return entries[int(step)] if int(step) < len(entries) else None
    return cast("Mapping[str, Any]", value).get(step) if isinstance(value, Mapping) else None
