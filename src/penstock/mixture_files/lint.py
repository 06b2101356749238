"""Lint for mixture files: errors and suspicious settings, without reading data.

It lists files, and reads footers and first lines only.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from math import fsum
from pathlib import Path
from typing import Any, cast

import numpy as np

from ..arguments import suggest_names
from ..arrays.dtypes import TOKEN_DTYPE
from ..engine.orders import parse_fraction
from ..engine.steps.token_dtypes import said_of
from ..errors import ConfigError, PenstockError, StorageError, convert_storage_errors
from ..inputs import is_whole
from ..sources import lists_own_files
from ..sources.folders import find_split
from ..sources.paths import find, require_one_format
from ..sources.plugins import find_plugin_format
from ..sources.tokens.forms import TokenIdOptions, detect_layout
from ..stores import parse_location
from ..stores.urls import redact_urls
from .build import (
    build,
    build_schedule,
    check_sources,
    collect_tokenizers,
    make_chat,
    require_equal_samples,
    resolve_token,
)
from .check import parse_mixture
from .footers import (
    RowGroupSizes,
    count_indexed_lines,
    get_list_dtype,
    read_column_type,
    read_first_row_columns,
    read_footers,
)
from .model import END_TOKENS, Chatting, MixtureFile, SourceEntry, Splitting, Tokenising
from .readers import ReaderRegistry
from .reading import MixtureNode, Problem, ProblemLog, check_rights
from .stages import build_stage_schedule

EPOCHS_WARNING_LIMIT = 4.0
"""Passes over one source beyond which lint warns.

Up to about four passes, repeated text is worth nearly as much as new text (Muennighoff et al.,
2023).
"""

DECODED_MEMORY_LIMIT = 256 << 20
"""Bytes of decoded row groups that stay in memory."""

_COMMON_SUMS = (1.0, 100.0)
_FEW_ROWS = 8  # a source with fewer rows is probably truncated
_READ_AMPLIFICATION = 20  # bytes read per byte used, beyond which lint warns


def lint(
    path: str | Path,
    most_epochs: float = EPOCHS_WARNING_LIMIT,
    readers: ReaderRegistry | None = None,
    allow: Collection[str] = (),
) -> list[Problem]:
    """Report errors and suspicious settings of a mixture file, in the order of its lines.

    Errors are problems that make `ps.load` or `penstock plan` fail. Warnings load, but probably mean something else:

    - a weight of 0;
    - a source that is never reached, or read more than `most_epochs` times over the horizon;
    - two sources with one file;
    - rows that one source holds out and another trains on.

    Args:
        path: A mixture file.
        most_epochs: Number of passes over one source beyond which lint warns.
        readers: Files of mixtures that were linted before, to compare with.
        allow: Rights of a file from a URL, as in `ps.load`.

    Returns:
        The problems.
    """
    notes = ProblemLog(allow=check_rights(allow))
    model = parse_mixture(path, notes)
    if model is not None:
        linter = _MixtureLinter(
            notes, most_epochs, str(path), ReaderRegistry() if readers is None else readers
        )
        try:
            with convert_storage_errors(path):
                linter.check_mixture(model, "", 1.0, model.run)
                linter.check_samples(model)
                linter.check_special_tokens(model)
                linter.check_dtypes(model)
                linter.check_build(model)
        except StorageError as error:
            notes.problems.append(Problem(str(path), 1, "", "error", redact_urls(str(error))))
    return sorted(set(notes.problems))


@dataclass
class _MixtureLinter:
    """Checks of one mixture file."""

    notes: ProblemLog
    most: float
    file: str
    readers: ReaderRegistry
    stored: dict[str, str] = field(default_factory=dict[str, str])
    chats: set[str] = field(default_factory=set[str])
    outlined: bool = True  # the rows of all sources are known

    @property
    def wrong(self) -> bool:
        return any(problem.severity == "error" for problem in self.notes.problems)

    def check_mixture(
        self, model: MixtureFile, at: str, share: float, run: tuple[str, int] | None
    ) -> None:
        """Check a mixture that receives `share` of the run."""
        self.check_sums(model, at)
        self.check_amounts(model, at)
        samples = run[1] * share if run and run[0] == "samples" else None
        shares = self.known_shares(model, at, samples)
        if run is not None and samples is None and not at and model.unit != "tokens":
            node = model.marks["horizon"]
            message = "the horizon counts tokens, the weights count samples: epochs over the run were not checked"
            self.notes.problems.append(Problem(node.file, node.line, "horizon", "note", message))
        weighted = any(source.weight is not None for source in model.sources)
        for source in model.sources:
            key = f"{at}sources.{source.name}"
            self.check_weight(source, key, shares, run, model)
            no_weight = source.weight is None and weighted and not model.groups and not model.stages
            source_share = None if shares is None or no_weight else shares.get(source.name, 0.0)
            if source.mixture is not None:
                nested = source.mixture.inside(model)
                self.check_mixture(
                    nested,
                    f"{key}.mixture.",
                    share * (source_share or 0.0),
                    run if source_share else None,
                )
                continue
            self.stored.pop(source.name, None)
            rows = self.check_files(source, model, key)
            self.outlined &= rows is not None
            if rows is not None and source_share is not None and samples is not None:
                self.check_epochs(source, model, key, source_share * samples, rows)
            self.check_tokenizer(source, model, key)
            if (encoding := source.encoding(model)) is not None:
                if source.name in self.stored:
                    how = "chat" if isinstance(encoding, Chatting) else "tokenise"
                    message = f"the source stores tokens, which {how} would encode: add 'tokenise: none' to it"
                    self.notes.error(_get_node(source, how), f"{key}.{how}", message)
                self.stored[source.name] = str(TOKEN_DTYPE)

    # ------------------------------------------------------------ weights

    def check_sums(self, model: MixtureFile, at: str) -> None:
        """Warn if weights nearly sum to 1 or 100."""
        weights = [source.weight for source in model.sources if source.weight is not None]
        total = fsum(weights)
        for whole in _COMMON_SUMS:
            if (
                len(weights) > 1
                and 0 < abs(total - whole) <= whole / 10
                and abs(total - whole) > whole * 1e-6
            ):
                message = f"the weights sum to {total:g}, not {whole:g}; weights are relative, but check them"
                self.notes.warn(
                    model.marks.get("sources", model.marks[""]), f"{at}sources", message
                )

    def check_amounts(self, model: MixtureFile, at: str) -> None:
        """Compare amounts of tokens with the horizon."""
        given = [source.tokens for source in model.sources if source.tokens is not None]
        if not given or model.unit != "tokens" or model.run is None or model.run[0] != "tokens":
            return
        total, horizon = fsum(given), model.run[1]
        node, all_ = model.marks["horizon"], len(given) == len(model.sources)
        if total > horizon and not all_:
            self.notes.error(
                node,
                f"{at}horizon",
                f"the amounts sum to {total:,.0f} tokens, more than the horizon",
            )
        elif all_ and abs(total - horizon) > horizon / 100:
            message = (
                f"the amounts sum to {total:,.0f} tokens, but the run takes {horizon:,}: all are "
                "scaled in proportion"
            )
            self.notes.warn(node, f"{at}horizon", message)

    def known_shares(
        self, model: MixtureFile, at: str, samples: float | None
    ) -> Mapping[str, float] | None:
        """Return the share of each source over the run, if it is known without reading data."""
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
        has_bounds = any(
            source.start is not None or source.stop is not None for source in model.sources
        )
        if not points and not has_bounds and not model.stages:
            return self.constant_shares(model, at)
        if any(set(weights) != set(model.names) for _, weights in points) or (
            model.stages and self.wrong
        ):
            return None
        if model.stages and model.run is None and model.horizon is not None:
            return None  # the length of a run in passes depends on the data
        try:
            if model.stages:
                schedule = build_stage_schedule(model, model.own_weights(), model.run)
            else:
                schedule = build_schedule(
                    model, points or ((0, model.grouped(model.own_weights(), model.groups or {})),)
                )
            spans = schedule.spans(model.names)
        except PenstockError as error:
            if not self.wrong:
                self.notes.error(
                    model.marks.get("schedule", model.marks[""]), f"{at}schedule", str(error)
                )
            return None
        if schedule.unit != "samples" or samples is None:
            return None
        total = np.zeros(len(model.names))
        for span in spans:
            end = samples if span.end is None else min(span.end, samples)
            if end > span.begin:
                length = max(1, span.target - span.origin)
                fractions = np.asarray(
                    [(span.begin - span.origin) / length, (end - span.origin) / length]
                )
                weights_at_ends = span.first + (span.last - span.first) * (
                    fractions[:, None] if not span.constant else fractions[:, None] * 0
                )
                sums = weights_at_ends.sum(axis=1, keepdims=True)
                total += (weights_at_ends / np.where(sums > 0, sums, 1.0)).mean(axis=0) * (
                    end - span.begin
                )
        return dict(zip(model.names, (total / samples).tolist(), strict=True))

    def constant_shares(self, model: MixtureFile, at: str) -> Mapping[str, float] | None:
        """Return the share of each source if weights never change; report groups without any."""
        grouped = model.groups or any(source.group for source in model.sources)
        if grouped and self.wrong:
            return None
        try:
            return model.shares()
        except ConfigError as error:
            node = model.marks.get("groups", model.marks[""])
            self.notes.error(node, f"{at}groups", str(error))
            return None

    def check_weight(
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
            warn(
                _get_node(source, "weight"),
                f"{at}.weight",
                "the weight is 0: the source is never read",
            )
        elif points and not any(weights.get(source.name) for _, weights in points):
            warn(
                source.marks[""],
                at,
                "the weight is 0 in every point of the schedule: the source is never read",
            )
        elif (
            run is not None
            and source.start is not None
            and shares is not None
            and not shares.get(source.name)
        ):
            warn(
                _get_node(source, "start"),
                f"{at}.start",
                f"the source starts at {source.start:,}, after the horizon",
            )
        if source.epochs is not None and source.epochs > self.most and model.cap(source) is None:
            warn(
                _get_node(source, "epochs"),
                f"{at}.epochs",
                f"the source is read {source.epochs:g} times over the run",
            )

    def check_epochs(
        self, source: SourceEntry, model: MixtureFile, at: str, draws: float, rows: int
    ) -> None:
        cap, passes, node = model.cap(source), draws / rows if rows else 0.0, source.marks[""]
        if rows == 0 and draws:
            self.notes.error(node, at, "the source is empty; remove it, or give it weight 0")
        elif cap is not None and passes > cap:
            message = (
                f"its share needs {passes:.1f} passes over the run, but it is used up after {cap:g}"
            )
            self.notes.problems.append(Problem(node.file, node.line, at, "note", message))
        elif cap is None and passes > self.most and model.stop in (None, "restart"):
            message = f"the source is read about {passes:.1f} times over the run ({rows:,} rows)"
            self.notes.warn(node, at, f"{message}: lower its weight, or cap it with max_epochs")
        elif 0 < draws < 1:
            self.notes.warn(node, at, f"the share of the run is less than one sample ({draws:.2g})")

    # ------------------------------------------------------------ files

    def check_files(self, source: SourceEntry, model: MixtureFile, at: str) -> int | None:
        """Return the rows of a source, as far as they are known without reading data."""
        if not source.path:
            return None
        node = _get_node(source, "path")
        try:
            if find_plugin_format(source.path, source.format) or (
                len(source.path) == 1 and lists_own_files(source.path[0])
            ):
                return None
            split = source.split if isinstance(source.split, str) else None
            paths = find(
                source.path if split is None else [find_split(one, split) for one in source.path]
            )
            file_format = require_one_format(paths, source.format)
        except PenstockError as error:
            self.notes.error(node, f"{at}.path", str(error))
            return None
        for path in paths:
            if message := self.readers.add(path, source, model, self.file, at):
                self.notes.warn(node, f"{at}.path", message)
                break
        if file_format in ("jsonl", "text"):
            if source.lengths:
                message = "line-based files do not store lengths: count tokens with tokenise: {counted: true}"
                self.notes.error(_get_node(source, "lengths"), f"{at}.lengths", message)
            if file_format == "jsonl" and (row_columns := read_first_row_columns(paths[0])):
                self.check_columns(
                    source,
                    model,
                    row_columns,
                    at,
                    "the first row has no {column!r}{near}; it has {has}",
                )
            return _count_remaining_rows(
                source, model, count_indexed_lines(paths, file_format, model.cache)
            )
        if file_format == "tokens":
            with suppress(PenstockError, OSError):  # opening the source reports the problem
                self.stored[source.name] = detect_layout(
                    paths[0], TokenIdOptions(source.dtype)
                ).dtype.name
        if file_format not in ("parquet", "arrow"):
            return None
        self.check_types(source, model, paths[0], file_format, at)
        try:
            rows, columns, row_groups = read_footers(tuple(paths), file_format, source.columns)
        except (PenstockError, OSError) as error:
            self.notes.error(node, f"{at}.path", str(error))
            return None
        self.check_columns(source, model, columns, at)
        if row_groups is not None:
            self.check_shuffle(source, model, row_groups, at)
        if 0 < rows < _FEW_ROWS:
            self.notes.warn(
                node,
                at,
                f"the source has only {rows} {'row' if rows == 1 else 'rows'}: is it truncated?",
            )
        return _count_remaining_rows(source, model, rows)

    def check_types(
        self, source: SourceEntry, model: MixtureFile, path: Path, kind: str, at: str
    ) -> None:
        """Store the token dtype of a column of integer lists (the only column, or `lengths`).

        Report `lengths` of a column without lists.
        """
        with suppress(PenstockError, OSError):
            column = source.lengths or (
                source.columns[0] if source.columns and len(source.columns) == 1 else None
            )
            column_type = None if column is None else read_column_type(path, kind, column)
            if dtype := get_list_dtype(column_type):
                self.stored[source.name] = dtype
            encoding = source.encoding(model)
            if (
                source.lengths
                and isinstance(column_type, str)
                and column_type != "null"
                and not (isinstance(encoding, Tokenising) and encoding.counted)
            ):
                message = f"the column {column!r} holds {column_type}, not lists: name the column with the tokens"
                self.notes.error(_get_node(source, "lengths"), f"{at}.lengths", message)

    def check_shuffle(
        self, source: SourceEntry, model: MixtureFile, groups: RowGroupSizes, at: str
    ) -> None:
        """Warn if a full shuffle decodes a Parquet row group for every row."""
        how, key = source.shuffle or model.shuffle, "shuffle" if source.shuffle else ""
        if (
            groups.bytes <= DECODED_MEMORY_LIMIT
            or groups.each < _READ_AMPLIFICATION * groups.row
            or (how is not None and how.kind != "full")
        ):
            return
        if how is not None and (how.rows is not None or how.buckets is not None):
            return
        message = (
            f"a full shuffle reads about {_format_size(groups.each)} a sample, a row group for "
            f"{_format_size(groups.row)}: shuffle: {{rows: {groups.rows}, window: 8}} reads it group by "
            "group"
        )
        self.notes.warn(_get_node(source, key or "path"), f"{at}.{key or 'path'}", message)

    def check_columns(
        self,
        source: SourceEntry,
        model: MixtureFile,
        has: list[str],
        at: str,
        perhaps: str | None = None,
    ) -> None:
        """Report missing columns.

        `perhaps` is the message if only the first row was read, so that the column may exist.
        """
        asked = [("columns", column) for column in source.columns or ()]
        asked += [("where", column) for column in source.where or {}]
        partition = source.partition
        asked += [("partition_by", column) for column in (partition.columns if partition else ())]
        split = source.splitting(model)
        asked += [("split", split.column)] if split is not None and split.column else []
        asked += [("lengths", source.lengths)] if source.lengths and not perhaps else []
        encoding = source.encoding(model)
        asked += [("tokenise", encoding.field)] if isinstance(encoding, Tokenising) else []
        note = self.notes.warn if perhaps else self.notes.error
        form = perhaps or "there is no column {column!r}{near}; the columns are {has}"
        for key, column in asked:
            if column not in has:
                message = form.format(
                    column=column, near=suggest_names(column, has), has=", ".join(has[:20])
                )
                if key == "tokenise":
                    message += (
                        "; name the one with the text by tokenise.field, or add 'tokenise: none'"
                    )
                note(_get_node(source, key), f"{at}.{key}", message)

    def check_tokenizer(self, source: SourceEntry, model: MixtureFile, at: str) -> None:
        """Report files of tokenizers and templates that do not exist, and chats that do not fit."""
        is_own = bool(source.tokenise or source.chat)
        marks = source.marks if is_own else model.marks
        encoding = source.encoding(model)
        name = "chat" if isinstance(encoding, Chatting) else "tokenise"
        if encoding is None or name not in marks:
            return
        node, key = marks[name], f"{at}.{name}" if is_own else name
        if encoding.tokenizer.endswith((".json", ".model")):
            if not parse_location(encoding.tokenizer).is_file():
                message = f"there is no tokenizer file {encoding.tokenizer!r}"
                self.notes.error(node, f"{key}.tokenizer", message)
                return
        if isinstance(encoding, Chatting) and parse_location(encoding.tokenizer).exists():
            self.check_chat(encoding, node, key)

    def check_chat(self, how: Chatting, node: MixtureNode, key: str) -> None:
        """Report a template that is missing, or that does not fit the tokenizer, once a setting."""
        if (setting := f"{key} {how!r}") in self.chats:
            return
        self.chats.add(setting)
        try:
            make_chat(how)
        except (ConfigError, ImportError) as error:
            children = cast("dict[str, MixtureNode]", node.value)
            part = next(
                (part for part in ("template", "bos", "eos") if f"Chat({part}=" in str(error)), None
            )
            node, key = (children[part], f"{key}.{part}") if part in children else (node, key)
            self.notes.error(node, key, str(error))

    def check_build(self, model: MixtureFile) -> None:
        """Report problems of the mixture as a whole that show without reading data.

        These are empty sources, caps below one sample, excluded rows that do not exist, and stages
        that end before earlier ones. Rows that `where` selects count as all rows of their source:
        what fails with all of them fails with fewer. If the mixture counts tokens, each source is
        opened by itself.
        """
        leaves = [source for _, source in model.iter_sources()]
        splits = [split for source in leaves if (split := source.splitting(model)) is not None]
        reads = (
            model.unit == "tokens"
            or model.pack
            or collect_tokenizers(model)
            or any(split.column for split in splits)
            or any(source.lengths for source in leaves)
        )
        if self.wrong or not self.outlined:
            return
        try:
            if reads:
                check_sources(_without_reads(model))
            else:
                _ = build(_without_reads(model)).compiled
        except PenstockError as error:
            self.notes.error(model.marks.get("sources", model.marks[""]), "sources", str(error))

    def check_dtypes(self, model: MixtureFile) -> None:
        """Note sources whose tokens have different dtypes, if their rows are packed."""
        if model.pack is None or len(set(self.stored.values())) < 2:
            return
        node, dtype = (
            model.marks.get("pack", model.marks[""]),
            np.dtype(model.pack.get("dtype") or TOKEN_DTYPE),
        )
        wide = [
            name for name, stored in self.stored.items() if not np.can_cast(np.dtype(stored), dtype)
        ]
        message = f"the sources store their tokens as {said_of(self.stored)}; rows are {dtype}"
        if wide:
            message += f", and reading an id of {', '.join(wide)} beyond {dtype} is an error"
        self.notes.problems.append(Problem(node.file, node.line, "pack", "note", message))

    def check_samples(self, model: MixtureFile) -> None:
        """Report packed sources whose samples have different features."""
        try:
            require_equal_samples(model)
        except ConfigError as error:
            self.notes.error(
                model.marks.get("pack", model.marks[""]), "pack", str(error).removeprefix("pack: ")
            )

    def check_special_tokens(self, model: MixtureFile) -> None:
        """Report tokens around packed documents that the tokenizer lacks.

        Tokenizers on a hub are not downloaded.
        """
        if all(parse_location(name).is_file() for name in collect_tokenizers(model)):
            for option in END_TOKENS:
                try:
                    resolve_token((model.pack or {}).get(option), model, option)
                except (ConfigError, ImportError) as error:
                    self.notes.error(
                        model.marks.get("pack", model.marks[""]), f"pack.{option}", str(error)
                    )


def _without_reads(model: MixtureFile) -> MixtureFile:
    """Return a mixture whose sources open without reading rows; each may have more rows then."""

    def strip(source: SourceEntry) -> SourceEntry:
        if source.mixture is not None:
            return replace(source, mixture=_without_reads(source.mixture.inside(model)))
        split = source.split if isinstance(source.split, str) else source.splitting(model)
        by_values = isinstance(split, Splitting) and split.column
        return replace(
            source,
            where=None,
            partition=None,
            lengths=None,
            tokenise=None,
            chat=None,
            split=None if by_values else split,
        )

    sources = tuple(strip(source) for source in model.sources)
    has_parts = any(source.partition is not None for _, source in model.iter_sources())
    exclude = None if has_parts else model.exclude  # only reading tells the names of parts
    settings: dict[str, Any] = dict.fromkeys(("tokenise", "chat", "split"))
    return replace(model, sources=sources, exclude=exclude, **settings)


def _get_node(source: SourceEntry, key: str) -> MixtureNode:
    return source.marks.get(key, source.marks[""])


def _count_remaining_rows(source: SourceEntry, model: MixtureFile, rows: int | None) -> int | None:
    """Return the rows that slice and split leave; approximate if a split goes by values."""
    if rows is None:
        return None
    remaining = len(range(rows)[slice(*source.rows(rows))]) if source.slice else rows
    if (fraction := source.unique_fraction) is not None and not is_whole(fraction):
        remaining = int(parse_fraction(fraction, "unique_fraction: {}") * remaining)
    if (split := source.splitting(model)) is None:
        return remaining
    share = (
        parse_fraction(split.held_out, "split({})") * remaining
        if isinstance(split.held_out, str | float)
        else split.held_out
    )
    return int(share) if split.part == "held_out" else remaining - int(share)


def _format_size(size: float) -> str:
    power = min(3, max(0, (int(size).bit_length() - 1) // 10))
    return f"{size / 1024**power:,.3g} {('bytes', 'KiB', 'MiB', 'GiB')[power]}"
