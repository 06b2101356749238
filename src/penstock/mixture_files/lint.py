"""All that is wrong or looks wrong in a mixture file, in one go. Files are listed, footers and
first lines read, no data is.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from math import fsum
from pathlib import Path

import numpy as np

from ..engine.base.dtypes import TOKENS
from ..engine.base.hints import near
from ..engine.base.urls import redacted
from ..engine.graph.tokens import said_of
from ..engine.orders import fraction_of
from ..errors import ConfigError, PenstockError, StorageError, storage
from ..sources import of_its_own
from ..sources.folders import part
from ..sources.paths import find, one_format
from ..sources.plugins import plugin_format
from ..sources.tokens.forms import Ids, form_of
from ..stores import located
from .build import ENDS, build, schedule_of, token_of, tokenizers_of
from .check import parse
from .footers import RowGroups, first_of, footers, ids_in, lines
from .model import MixtureFile, SourceEntry
from .readers import Readers
from .reading import Node, Notes, Problem, granted
from .stages import staged

MOST_EPOCHS = 4.0
"""Passes over one source beyond which a run is warned of: up to about four, repeated text is worth
nearly as much as new text (Muennighoff et al., 2023)."""

HELD = 256 << 20
"""Bytes of decoded row groups that stay in memory."""

_ROUND = (1.0, 100.0)
_FEW_ROWS = 8  # of a source that is probably cut off
_TIMES = 20  # times what a row takes that are read for it


def lint(
    path: str | Path,
    most_epochs: float = MOST_EPOCHS,
    readers: Readers | None = None,
    allow: Collection[str] = (),
) -> list[Problem]:
    """Everything that is wrong or looks wrong in a mixture file, in the order of its lines.

    Errors are what `ps.load` refuses; warnings load, and probably mean something else: a weight of
    0, a source that is never reached, one that is read more than `most_epochs` times over the
    horizon, two sources with one file, rows that are held out here and trained on there. With the
    same `readers`, files are compared with those looked at before. `allow` means the same as in
    `ps.load`.
    """
    notes = Notes(allow=granted(allow))
    model = parse(path, notes)
    if model is not None:
        look = _Lint(notes, most_epochs, str(path), Readers() if readers is None else readers)
        try:
            with storage(path):
                look.mixture(model, "", 1.0, model.run)
                look.ends(model)
                look.tokens(model)
                look.whole(model)
        except StorageError as error:
            notes.problems.append(Problem(str(path), 1, "", "error", redacted(str(error))))
    return sorted(set(notes.problems))


@dataclass
class _Lint:
    notes: Notes
    most: float
    file: str
    readers: Readers
    stored: dict[str, str] = field(default_factory=dict[str, str])
    outlined: bool = True  # the rows of all sources are known

    @property
    def wrong(self) -> bool:
        return any(problem.severity == "error" for problem in self.notes.problems)

    def mixture(
        self, model: MixtureFile, at: str, share: float, run: tuple[str, int] | None
    ) -> None:
        """One mixture, drawn from for `share` of the run."""
        self.sums(model, at)
        self.amounts(model, at)
        samples = run[1] * share if run and run[0] == "samples" else None
        shares = self.shares(model, at, samples)
        if run is not None and samples is None and not at and model.unit != "tokens":
            node = model.marks["horizon"]
            said = "the horizon counts tokens, the weights count samples: epochs over the run were not checked"
            self.notes.problems.append(Problem(node.file, node.line, "horizon", "note", said))
        weighted = any(source.weight is not None for source in model.sources)
        for source in model.sources:
            here = f"{at}sources.{source.name}"
            self.weight(source, here, shares, run, model)
            unsaid = source.weight is None and weighted and not model.groups and not model.stages
            mine = None if shares is None or unsaid else shares.get(source.name, 0.0)
            if source.mixture is not None:
                inner = source.mixture.inside(model)
                self.mixture(
                    inner, f"{here}.mixture.", share * (mine or 0.0), run if mine else None
                )
                continue
            rows = self.files(source, model, here)
            self.outlined &= rows is not None
            if rows is not None and mine is not None and samples is not None:
                self.epochs(source, model, here, mine * samples, rows)
            self.tokenizer(source, model, here)
            if model.tokenise or source.tokenise:
                self.stored[source.name] = str(TOKENS)

    # ------------------------------------------------------------ weights

    def sums(self, model: MixtureFile, at: str) -> None:
        weights = [source.weight for source in model.sources if source.weight is not None]
        total = fsum(weights)
        for whole in _ROUND:
            if (
                len(weights) > 1
                and 0 < abs(total - whole) <= whole / 10
                and abs(total - whole) > whole * 1e-6
            ):
                said = f"the weights sum to {total:g}, not {whole:g}; they are relative, but is one of them wrong?"
                self.notes.warn(model.marks.get("sources", model.marks[""]), f"{at}sources", said)

    def amounts(self, model: MixtureFile, at: str) -> None:
        """Amounts of tokens against the horizon."""
        given = [source.tokens for source in model.sources if source.tokens is not None]
        if not given or model.unit != "tokens" or model.run is None or model.run[0] != "tokens":
            return
        total, horizon = fsum(given), model.run[1]
        node, all_ = model.marks["horizon"], len(given) == len(model.sources)
        if total > horizon and not all_:
            self.notes.error(
                node,
                f"{at}horizon",
                f"the amounts come to {total:,.0f} tokens, more than the horizon",
            )
        elif all_ and abs(total - horizon) > horizon / 100:
            said = f"the amounts come to {total:,.0f} tokens and the run takes {horizon:,}: each is drawn in proportion"
            self.notes.warn(node, f"{at}horizon", said)

    def shares(
        self, model: MixtureFile, at: str, samples: float | None
    ) -> Mapping[str, float] | None:
        """The share of each source in the samples over the run, where it can be told without
        reading."""
        if model.unit == "tokens" or model.temperature is not None:
            return None
        if any(source.tokens or source.epochs for source in model.sources):
            return None
        if any(
            source.group is not None and source.group not in (model.groups or {})
            for source in model.sources
        ):
            return None
        points = model.schedule.points if model.schedule else ()
        presence = any(
            source.start is not None or source.stop is not None for source in model.sources
        )
        if not points and not presence and not model.stages:
            grouped = model.groups or any(source.group for source in model.sources)
            return None if grouped and self.wrong else model.shares()
        if any(set(weights) != set(model.names) for _, weights in points) or (
            model.stages and self.wrong
        ):
            return None
        if model.stages and model.run is None and model.horizon is not None:
            return None  # of passes: only the data tells how long the run is
        try:
            if model.stages:
                made = staged(model, model.own_weights(), model.run)
            else:
                made = schedule_of(
                    model, points or ((0, model.grouped(model.own_weights(), model.groups or {})),)
                )
            spans = made.spans(model.names)
        except PenstockError as error:
            if not self.wrong:
                self.notes.error(
                    model.marks.get("schedule", model.marks[""]), f"{at}schedule", str(error)
                )
            return None
        if made.unit != "samples" or samples is None:
            return None
        total = np.zeros(len(model.names))
        for span in spans:
            end = samples if span.end is None else min(span.end, samples)
            if end > span.begin:
                length = max(1, span.target - span.origin)
                far = np.asarray(
                    [(span.begin - span.origin) / length, (end - span.origin) / length]
                )
                both = span.first + (span.last - span.first) * (
                    far[:, None] if not span.constant else far[:, None] * 0
                )
                sums = both.sum(axis=1, keepdims=True)
                total += (both / np.where(sums > 0, sums, 1.0)).mean(axis=0) * (end - span.begin)
        return dict(zip(model.names, (total / samples).tolist(), strict=True))

    def weight(
        self,
        source: SourceEntry,
        at: str,
        shares: Mapping[str, float] | None,
        run: tuple[str, int] | None,
        model: MixtureFile,
    ) -> None:
        warn = self.notes.warn
        points = model.schedule.points if model.schedule else ()
        if source.zero and not any(stage.weights.get(source.name) for stage in model.stages):
            warn(_mark(source, "weight"), f"{at}.weight", "its weight is 0: it is never read")
        elif points and not any(weights.get(source.name) for _, weights in points):
            warn(
                source.marks[""],
                at,
                "its weight is 0 in every point of the schedule: it is never read",
            )
        elif (
            run is not None
            and source.start is not None
            and shares is not None
            and not shares.get(source.name)
        ):
            warn(
                _mark(source, "start"),
                f"{at}.start",
                f"it starts at {source.start:,}, after the horizon",
            )
        if source.epochs is not None and source.epochs > self.most and model.cap(source) is None:
            warn(
                _mark(source, "epochs"),
                f"{at}.epochs",
                f"it is read {source.epochs:g} times over the run",
            )

    def epochs(
        self, source: SourceEntry, model: MixtureFile, at: str, draws: float, rows: int
    ) -> None:
        cap, passes, node = model.cap(source), draws / rows if rows else 0.0, source.marks[""]
        if rows == 0 and draws:
            self.notes.error(node, at, "it is empty; leave it out, or give it weight 0")
        elif cap is not None and passes > cap:
            said = f"it would be read {passes:.1f} times over the run and is used up after {cap:g}"
            self.notes.problems.append(Problem(node.file, node.line, at, "note", said))
        elif cap is None and passes > self.most and model.stop in (None, "restart"):
            said = f"it is read about {passes:.1f} times over the run ({rows:,} rows)"
            self.notes.warn(node, at, f"{said}: lower its weight, or cap it with max_epochs")
        elif 0 < draws < 1:
            self.notes.warn(node, at, f"its share of the run is less than one sample ({draws:.2g})")

    # ------------------------------------------------------------ files

    def files(self, source: SourceEntry, model: MixtureFile, at: str) -> int | None:
        """The rows of a source, as far as they are known without reading it."""
        if not source.path:
            return None
        node = _mark(source, "path")
        try:
            if plugin_format(source.path, source.format) or (
                len(source.path) == 1 and of_its_own(source.path[0])
            ):
                return None
            split = source.split if isinstance(source.split, str) else None
            found = find(
                source.path if split is None else [part(one, split) for one in source.path]
            )
            kind = one_format(found, source.format)
        except PenstockError as error:
            self.notes.error(node, f"{at}.path", str(error))
            return None
        for path in found:
            if said := self.readers.meet(path, source, model, self.file, at):
                self.notes.warn(node, f"{at}.path", said)
                break
        if kind in ("jsonl", "text"):
            if source.lengths:
                said = "files of lines do not tell the lengths of a column: count them with tokenise: {counted: true}"
                self.notes.error(_mark(source, "lengths"), f"{at}.lengths", said)
            if kind == "jsonl" and (has := first_of(found[0])):
                self.columns(
                    source, model, has, at, "the first row has no {column!r}{near}; it has {has}"
                )
            return _sliced(source, model, lines(found, kind, model.cache))
        if kind == "tokens":
            with suppress(
                PenstockError, OSError
            ):  # what is wrong with it is told when it is opened
                self.stored[source.name] = form_of(found[0], Ids(source.dtype)).dtype.name
        if kind not in ("parquet", "arrow"):
            return None
        self.listed(source, found[0], kind)
        try:
            rows, columns, slow = footers(tuple(found), kind, source.columns)
        except (PenstockError, OSError) as error:
            self.notes.error(node, f"{at}.path", str(error))
            return None
        self.columns(source, model, columns, at)
        if slow is not None:
            self.slow(source, model, slow, at)
        if 0 < rows < _FEW_ROWS:
            self.notes.warn(
                node, at, f"it has only {rows} {'row' if rows == 1 else 'rows'}: is this all of it?"
            )
        return _sliced(source, model, rows)

    def listed(self, source: SourceEntry, path: Path, kind: str) -> None:
        """The dtype of the ids in the only column of lists of integers, or in that of `lengths`."""
        with suppress(PenstockError, OSError):
            column = source.lengths or (
                source.columns[0] if source.columns and len(source.columns) == 1 else None
            )
            if dtype := ids_in(path, kind, column):
                self.stored[source.name] = dtype

    def slow(self, source: SourceEntry, model: MixtureFile, groups: RowGroups, at: str) -> None:
        """A shuffle of single rows of Parquet decodes a row group for each of them, unless they all
        stay in memory."""
        how, key = source.shuffle or model.shuffle, "shuffle" if source.shuffle else ""
        if (
            groups.bytes <= HELD
            or groups.each < _TIMES * groups.row
            or (how is not None and how.kind != "full")
        ):
            return
        if how is not None and (how.rows is not None or how.buckets is not None):
            return
        said = (
            f"shuffled row by row it reads about {_size(groups.each)} a sample, a row group for "
            f"{_size(groups.row)}: "
            f"shuffle: {{rows: {groups.rows}, window: 8}} reads it group by group"
        )
        self.notes.warn(_mark(source, key or "path"), f"{at}.{key or 'path'}", said)

    def columns(
        self,
        source: SourceEntry,
        model: MixtureFile,
        has: list[str],
        at: str,
        perhaps: str | None = None,
    ) -> None:
        """Columns that are not there, or, where the first row alone was looked at, are `perhaps`
        not."""
        asked = [("columns", column) for column in source.columns or ()]
        asked += [("where", column) for column in source.where or {}]
        split = source.splitting(model)
        asked += [("split", split.column)] if split is not None and split.column else []
        asked += [("lengths", source.lengths)] if source.lengths and not perhaps else []
        note = self.notes.warn if perhaps else self.notes.error
        form = perhaps or "there is no column {column!r}{near}; the columns are {has}"
        for key, column in asked:
            if column not in has:
                said = form.format(column=column, near=near(column, has), has=", ".join(has[:20]))
                note(_mark(source, key), f"{at}.{key}", said)

    def tokenizer(self, source: SourceEntry, model: MixtureFile, at: str) -> None:
        own = source.tokenise
        tokenise, marks, key = (
            (own, source.marks, f"{at}.tokenise")
            if own
            else (model.tokenise, model.marks, "tokenise")
        )
        if tokenise and "tokenise" in marks and tokenise.tokenizer.endswith(".json"):
            if not located(tokenise.tokenizer).is_file():
                said = f"there is no tokenizer {tokenise.tokenizer!r}"
                self.notes.error(marks["tokenise"], f"{key}.tokenizer", said)

    def whole(self, model: MixtureFile) -> None:
        """Report problems of the mixture as a whole, if it opens without reading data: empty
        sources, caps below one sample, rows to leave out that do not exist, stages that end before
        the ones before them.
        """
        leaves = [source for _, source in model.leaves()]
        splits = [split for source in leaves if (split := source.splitting(model)) is not None]
        reads = (
            model.unit == "tokens"
            or model.pack
            or tokenizers_of(model)
            or any(split.column for split in splits)
        )
        if (
            self.wrong
            or not self.outlined
            or reads
            or any(each.where or each.lengths for each in leaves)
        ):
            return
        try:
            _ = build(model).compiled
        except PenstockError as error:
            self.notes.error(model.marks.get("sources", model.marks[""]), "sources", str(error))

    def tokens(self, model: MixtureFile) -> None:
        """Sources whose tokens are stored in several dtypes, where rows are packed of them."""
        if model.pack is None or len(set(self.stored.values())) < 2:
            return
        node, dtype = (
            model.marks.get("pack", model.marks[""]),
            np.dtype(model.pack.get("dtype") or TOKENS),
        )
        wide = [
            name for name, stored in self.stored.items() if not np.can_cast(np.dtype(stored), dtype)
        ]
        said = f"the sources store their tokens as {said_of(self.stored)}; rows are {dtype}"
        if wide:
            said += f", and an id of {', '.join(wide)} that {dtype} does not hold is an error when it is read"
        self.notes.problems.append(Problem(node.file, node.line, "pack", "note", said))

    def ends(self, model: MixtureFile) -> None:
        """Tokens around packed documents that the tokenizer does not know; one on a hub is not
        asked."""
        if all(located(name).is_file() for name in tokenizers_of(model)):
            for option in ENDS:
                try:
                    token_of((model.pack or {}).get(option), model, option)
                except (ConfigError, ImportError) as error:
                    self.notes.error(
                        model.marks.get("pack", model.marks[""]), f"pack.{option}", str(error)
                    )


def _mark(source: SourceEntry, key: str) -> Node:
    return source.marks.get(key, source.marks[""])


def _sliced(source: SourceEntry, model: MixtureFile, rows: int | None) -> int | None:
    """The rows that are left of a source; about, where a split goes by values."""
    if rows is None:
        return None
    left = len(range(rows)[slice(*source.rows(rows))]) if source.slice else rows
    if (split := source.splitting(model)) is None:
        return left
    share = (
        fraction_of(split.held_out, "split({})") * left
        if isinstance(split.held_out, str | float)
        else split.held_out
    )
    return int(share) if split.part == "held_out" else left - int(share)


def _size(size: float) -> str:
    power = min(3, max(0, (int(size).bit_length() - 1) // 10))
    return f"{size / 1024**power:,.3g} {('bytes', 'KiB', 'MiB', 'GiB')[power]}"
