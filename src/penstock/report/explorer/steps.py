"""Samples of a step by rank and row, and the tokens of its rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import numpy as np

from penstock.arguments import join_first, suggest_names
from penstock.engine.base.row_files import as_row_files
from penstock.errors import ConfigError, DataError
from penstock.inputs import Dataset
from penstock.mixture_files.build import collect_tokenizers
from penstock.plan import by_leaf
from penstock.types import Source, is_source

from ..inspect import NAME_COLUMNS
from ..target import Target
from .values import MAX_MEDIA_BYTES, MEDIA_TYPES, describe_value, detect_media_type, make_printable

if TYPE_CHECKING:
    from penstock.text.token_texts import TokenTexts

PAGE_SAMPLES = 256
MAX_TOKENS = 4_096  # of a row

Json: TypeAlias = dict[str, Any]


class StepReader:
    """Reads the samples of steps.

    Args:
        target: The opened mixture.
    """

    def __init__(self, target: Target) -> None:
        self._target = target

    def list_samples(self, step: int, start: int = 0, count: int = PAGE_SAMPLES) -> Json:
        """Return the samples of a step, by rank and row.

        Args:
            step: The step.
            start: The first sample to return.
            count: The number of samples to return.

        Returns:
            `samples`, a page of them, and `total`.

        Raises:
            IndexError: The run ends before the step.
        """
        target, samples, total = self._target, list[Json](), 0
        self.require_step(step)
        stop = start + max(1, min(count, PAGE_SAMPLES))
        names = target.plan.sources
        for taken in target.rows.audit(range(step, step + 1)).stretches():
            page = slice(max(0, start - total), max(0, stop - total))
            total += len(taken.leaf)
            leaf, index = taken.leaf[page], taken.index[page]
            files = self._locate_files(leaf, index)
            has_parts = taken.start is not None and taken.stop is not None
            for number, (rank, row, source, epoch, i, masked) in enumerate(
                zip(
                    *(
                        column[page].tolist()
                        for column in (taken.rank, taken.row, taken.leaf, taken.epoch, taken.index)
                    ),
                    taken.masked[page].tolist(),
                    strict=True,
                )
            ):
                sample: Json = {
                    "rank": rank,
                    "row": row,
                    "source": names[source],
                    "epoch": epoch,
                    "index": i,
                }
                if has_parts:
                    assert taken.start is not None and taken.stop is not None
                    sample["start"] = int(taken.start[page][number])
                    sample["stop"] = int(taken.stop[page][number])
                sample |= files[number] | ({"masked": True} if masked else {})
                samples.append(sample)
        return {
            "step": step,
            "unit": target.unit,
            "total": total,
            "start": start,
            "samples": samples,
            "packed": target.packed,
            "is_delivered": step < target.rows.next_step,
            "weights": self._get_weights(step),
        }

    def require_step(self, step: int) -> None:
        """Raise `IndexError` if the run does not reach a step."""
        end = self._target.end
        if step < 0 or (end is not None and step >= end):
            raise IndexError(
                f"{self._target.unit} {step:,}: "
                + (f"the run has steps 0 to {end - 1:,}" if end else "steps count from 0")
            )

    def _get_weights(self, step: int) -> Json:
        """Return how many samples of each source the run delivered before a step, if not many."""
        if len(self._target.plan.sources) > 24:
            return {}
        return dict(self._target.rows.counts(step=step))

    def _locate_files(self, leaf: Any, index: Any) -> list[Json]:
        """Return the file and the row in it of each sample, of sources with files."""
        files = [dict[str, Any]() for _ in range(len(leaf))]
        for number, places in by_leaf(leaf):
            if (source := as_row_files(self._target.leaves[number].source)) is None:
                continue
            parts, rows = source.file_rows(index[places])
            numbers = cast("set[int]", set(parts.tolist()))
            names = {part: make_printable(Path(source.paths[part]).name) for part in numbers}
            for place, part, row in zip(
                places.tolist(), parts.tolist(), rows.tolist(), strict=True
            ):
                files[place] = {"file": names[part], "row_in_file": row}
        return files

    # ------------------------------------------------------------ contents

    def get_source(self, name: str) -> Source:
        """Return a source with random access by its name.

        Raises:
            ConfigError: The mixture has no such source.
        """
        for leaf in self._target.leaves:
            if leaf.name == name and is_source(leaf.source):
                return leaf.source
        names = self._target.plan.sources
        hint = suggest_names(name, names) or f"; the mixture has {join_first(names)}"
        raise ConfigError(f"no source {name[:100]!r}{hint}")

    def read_value(self, name: str, index: int) -> Any:
        """Return a sample as its source reads it.

        Raises:
            IndexError: The source has no such sample.
        """
        source = self.get_source(name)
        if not 0 <= index < len(source):
            raise IndexError(f"{name}[{index:,}]: the source has {len(source):,} samples")
        return source.read(np.asarray([index]))[0]

    def read_sample(self, name: str, index: int, start: int = 0) -> Json:
        """Return a sample as JSON of bounded size, from character `start` of its texts on.

        Args:
            name: The source.
            index: The index in the source.
            start: The first character of texts.

        Returns:
            `value`, and the `key` of the sample if it has one.

        Raises:
            IndexError: The source has no such sample.
        """
        value = self.read_value(name, index)
        key = None
        if isinstance(value, Mapping):
            fields = cast("Mapping[Any, Any]", value)
            column = next((column for column in NAME_COLUMNS if column in fields), None)
            key = None if column is None else make_printable(str(fields[column])[:200])
        return {
            "source": name,
            "index": index,
            "key": key,
            "value": describe_value(value, max(0, start)),
        }

    def read_media(self, name: str, index: int, path: Sequence[str]) -> tuple[bytes, str]:
        """Return the bytes of a field and their media type.

        Args:
            name: The source.
            index: The index in the source.
            path: The names or numbers of the fields from the sample to the bytes.

        Raises:
            DataError: The field is no medium that a browser shows.
        """
        value = self.read_value(name, index)
        for part in path:
            if isinstance(value, Mapping):
                fields = cast("Mapping[Any, Any]", value)
                value = next((v for k, v in fields.items() if make_printable(str(k)) == part), None)
            elif isinstance(value, list | tuple) and part.isdecimal():
                items = cast("list[Any]", value)
                value = items[int(part)] if int(part) < len(items) else None
            else:
                value = None
        if isinstance(value, bytes) and len(value) <= MAX_MEDIA_BYTES:
            kind = MEDIA_TYPES.get(detect_media_type(value[:64]))
            if kind is not None:
                return value, kind
        raise DataError(f"{name}[{index:,}]: the field is no image, audio or video to show")

    # ------------------------------------------------------------ tokens

    @cached_property
    def _dataset(self) -> Dataset:
        dataset = self._target.rows.dataset
        return dataset if self._target.rows.size is None else dataset.repeat()

    @cached_property
    def _token_texts(self) -> TokenTexts | None:
        names = sorted(collect_tokenizers(self._target.model))
        if len(names) != 1:
            return None
        from penstock.text.token_texts import TokenTexts

        return TokenTexts(names[0])

    def read_tokens(self, step: int, rank: int, row: int) -> Json:
        """Return the documents of a row as tokens, with those that are learned.

        Args:
            step: The step.
            rank: The rank.
            row: The row of the item of the rank.

        Returns:
            `documents`, each with `texts` and `mask`; none if the row holds no tokens.

        Raises:
            IndexError: The step has no such row.
        """
        from penstock.text.shown_tokens import find_documents

        self.require_step(step)
        position = self._find_row(step, rank, row)
        value = self._dataset[position]
        documents, left = list[Json](), MAX_TOKENS
        try:
            found = list(find_documents(value))
        except DataError:
            found = []
        for name, ids, mask in found:
            shown = ids[: max(left, 0)]
            left -= len(shown)
            texts = (
                [str(token) for token in shown]
                if self._token_texts is None
                else [make_printable(text) for text in self._token_texts(shown)]
            )
            documents.append(
                {
                    "name": name,
                    "size": len(ids),
                    "learned": None if mask is None else sum(mask),
                    "ids": shown,
                    "texts": texts,
                    "mask": None if mask is None else [int(flag) for flag in mask[: len(shown)]],
                }
            )
        return {
            "step": step,
            "rank": rank,
            "row": row,
            "documents": documents,
            "has_texts": self._token_texts is not None,
        }

    def _find_row(self, step: int, rank: int, row: int) -> int:
        """Return the row of the run that a rank receives in a step."""
        for dealt in self._target.log.deal(range(step, step + 1)):
            columns = np.flatnonzero((dealt.ranks == rank) & (dealt.places == row))
            if len(columns):
                return int(dealt.rows[0, columns[0]])
        raise IndexError(f"step {step:,} has no row {row:,} on rank {rank:,}")
