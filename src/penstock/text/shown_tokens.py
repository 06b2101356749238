"""Tokens of a row as text, with the tokens that are learned in colour."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from ..errors import DataError
from .causal_lm import find_tokens
from .token_texts import TokenTexts

_IGNORED_LABEL = -100
_PREFIXES = ("", "chosen_", "rejected_")
LEARNED_MARKS = ("[[", "]]")
"""Stand around learned tokens in plain text."""

_STYLE = "white-space: pre-wrap; font-family: monospace; margin: 0 0 0.8em 0"
_LEARNED_STYLE = "background: rgba(46, 160, 67, 0.35)"


@dataclass(frozen=True)
class ShownDocument:
    """The tokens of a document.

    Attributes:
        name: its place in the row, such as "document 2" or "chosen"; empty for a single one.
        ids: the tokens.
        texts: the text of each token.
        mask: whether each token is learned; `None` if the row does not say it.
    """

    name: str
    ids: list[int]
    texts: list[str]
    mask: list[bool] | None

    @property
    def title(self) -> str:
        """A line with the name and the number of tokens."""
        size = f"{len(self.ids):,} token{'s' * (len(self.ids) != 1)}"
        learned = "" if self.mask is None else f", {sum(self.mask):,} learned"
        return f"{self.name + ': ' if self.name else ''}{size}{learned}"

    def runs(self) -> Iterator[tuple[str, bool]]:
        """Yield the printable text of neighbours of one kind, and whether they are learned."""
        mask = [False] * len(self.texts) if self.mask is None else self.mask
        pairs = zip(self.texts, mask, strict=True)
        for is_learned, group in groupby(pairs, key=lambda pair: pair[1]):
            yield _make_printable("".join(text for text, _ in group)), is_learned

    def __str__(self) -> str:
        before, after = LEARNED_MARKS
        return "".join(
            f"{before}{text}{after}" if learned else text for text, learned in self.runs()
        )


@dataclass(frozen=True, repr=False)
class ShownTokens:
    """The documents of a row as text: in a notebook, learned tokens have a colour.

    As plain text, they stand between `[[` and `]]`.

    Attributes:
        documents: the documents of the row, or both sides of a preference pair.
    """

    documents: tuple[ShownDocument, ...]

    def __repr__(self) -> str:
        return "\n".join(f"{document.title}\n{document}" for document in self.documents)

    def _repr_html_(self) -> str:
        return "".join(map(_format_html, self.documents))


def show_tokens(row: Any, tokenizer: Any) -> ShownTokens:
    """Return the tokens of a row as text, to see what a model learns.

    Args:
        row: tokens; or a mapping with `tokens` or `input_ids` (of a packed row also its only feature
            of integers), and maybe `loss_mask`, `completion_mask` or `labels`. The documents of a
            packed row are shown one by one, without padding: by `segment_ids`, or by `position_ids`
            that restart. A preference pair and a batch are shown too. Labels belong to the same
            token (`shift=False`).
        tokenizer: an object of transformers, tokenizers, tiktoken or sentencepiece; a path or URL;
            or a folder or a name on the hub.

    Raises:
        DataError: if the row has no tokens.
        ConfigError: if the tokenizer cannot be opened, or cannot decode.

    >>> from tokenizers import Tokenizer, models
    >>> tokenizer = Tokenizer(models.WordLevel({"hi": 0, "yes": 1, "<unk>": 2}, unk_token="<unk>"))
    >>> show_tokens({"tokens": [0, 1, 0], "loss_mask": [0, 1, 0]}, tokenizer)
    3 tokens, 1 learned
    hi[[ yes]] hi
    """
    texts = TokenTexts(tokenizer)
    documents = list[ShownDocument]()
    rows = list(iterate_rows(row))
    for number, single in enumerate(rows):
        for name, ids, mask in find_documents(single):
            parts = [f"row {number}"] * (len(rows) > 1) + [name] * bool(name)
            documents.append(ShownDocument(", ".join(parts), ids, texts(ids), mask))
    return ShownTokens(tuple(documents))


def iterate_rows(item: Any) -> Iterator[Any]:
    """Yield the rows of a batch, or an item that is no batch.

    Args:
        item: a mapping of arrays of two axes, a list of rows, or one row.
    """
    if isinstance(item, Mapping):
        columns = cast("Mapping[str, Any]", item)
        tokens = _find_tokens(columns, "") or _find_tokens(columns, "chosen_")
        if tokens is None or np.ndim(tokens[1]) < 2:
            yield columns
            return
        size = len(tokens[1])
        for number in range(size):
            yield {name: _take(value, number, size) for name, value in columns.items()}
        return
    values = cast("Sequence[Any]", item)
    if isinstance(item, list | tuple) and len(values) and not np.isscalar(values[0]):
        for single in values:
            yield from iterate_rows(single)
    elif np.ndim(cast("Any", item)) > 1:
        yield from values
    else:
        yield values


def find_documents(row: Any) -> Iterator[tuple[str, list[int], list[bool] | None]]:
    """Yield the name, the tokens and the loss mask of each document of a row.

    Args:
        row: a row, as in `show_tokens`.

    Raises:
        DataError: if the row has no tokens.
    """
    if not isinstance(row, Mapping):
        yield "", _require_ids(row), None
        return
    fields, is_found = cast("Mapping[str, Any]", row), False
    for prefix in _PREFIXES:
        if (found := _find_tokens(fields, prefix)) is None:
            continue
        is_found = True
        ids = np.asarray(_require_ids(found[1]), np.int64)
        mask = _find_mask(fields, prefix, found[0])
        for name, part in _split_documents(fields, prefix, len(ids)):
            learned = None if mask is None else mask[part].tolist()
            yield name, ids[part].tolist(), learned
    if not is_found:
        raise DataError(
            f"the row has no tokens; it has {', '.join(map(str, fields)) or 'no fields'}: map it by "
            "penstock.text.Chat or Tokenize before, or rename its tokens to input_ids"
        )


def _find_tokens(fields: Mapping[str, Any], prefix: str) -> tuple[str, Any] | None:
    name = find_tokens(fields, prefix)
    return None if name is None else (name.removeprefix(prefix), fields[name])


def _require_ids(value: Any) -> list[int]:
    ids: npt.NDArray[Any] = np.asarray(value)
    if ids.ndim != 1 or (ids.size and ids.dtype.kind not in "iu"):
        raise DataError(
            f"the row is {ids.dtype}{list(ids.shape)}, not one axis of token ids: map it by "
            "penstock.text.Chat or Tokenize before"
        )
    return ids.astype(np.int64).tolist()


def _find_mask(fields: Mapping[str, Any], prefix: str, tokens: str) -> npt.NDArray[np.bool_] | None:
    for name in ("loss_mask", "completion_mask"):
        if (mask := fields.get(f"{prefix}{name}")) is not None:
            return np.asarray(mask).astype(np.bool_)
    labels = fields.get(f"{prefix}labels")
    return None if labels is None or tokens == "tokens" else np.asarray(labels) != _IGNORED_LABEL


def _split_documents(
    fields: Mapping[str, Any], prefix: str, size: int
) -> Iterator[tuple[str, npt.NDArray[np.intp]]]:
    """Yield the name and the positions of each document, without padding."""
    side, segments = prefix.rstrip("_"), fields.get(f"{prefix}segment_ids")
    if segments is None and fields.get("position_ids") is not None:
        segments = _number_documents(np.asarray(fields["position_ids"]))
    if segments is None:
        used = fields.get(f"{prefix}attention_mask", np.ones(size, np.int64))
        yield side, np.flatnonzero(np.asarray(used))
        return
    numbers = np.asarray(segments)
    for segment in np.unique(numbers[numbers > 0]).tolist():
        name = f"document {segment}"
        yield f"{side}, {name}" if side else name, np.flatnonzero(numbers == segment)


def _number_documents(positions: npt.NDArray[Any]) -> npt.NDArray[np.intp]:
    """Return the number of the document of each token, from 1, for positions that restart.

    Positions 0 at the end are padding.
    """
    numbers = np.cumsum(positions == 0)
    padding = len(positions) - 1 - np.flatnonzero(positions).max(initial=-1)
    numbers[len(numbers) - padding :] = 0
    return numbers


def _take(value: Any, number: int, rows: int) -> Any:
    """Return the part of a row, of a column that has one for each row."""
    return value[number] if np.ndim(value) and len(value) == rows else value


def _make_printable(text: str) -> str:
    return "".join(letter if letter.isprintable() or letter in "\n\t" else "·" for letter in text)


def _format_html(document: ShownDocument) -> str:
    mask = [False] * len(document.ids) if document.mask is None else document.mask
    spans = list[str]()
    for number, text, learned in zip(document.ids, document.texts, mask, strict=True):
        style = f' style="{_LEARNED_STYLE}"' if learned else ""
        spans.append(f'<span title="{number}"{style}>{escape(_make_printable(text))}</span>')
    return f'<div>{escape(document.title)}</div><div style="{_STYLE}">{"".join(spans)}</div>'
