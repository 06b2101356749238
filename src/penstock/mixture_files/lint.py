"""Lint for mixture files: errors and suspicious settings, without reading data.

It lists files, and reads footers and first lines only.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from math import ceil, fsum
from pathlib import Path
from typing import Any, cast

import numpy as np

from ..arguments import suggest_names
from ..arrays.columnar import import_arrow
from ..arrays.dtypes import TOKEN_DTYPE
from ..engine.orders import Portion, parse_fraction
from ..engine.steps.token_dtypes import said_of
from ..errors import ConfigError, PenstockError, StorageError, convert_storage_errors
from ..inputs import is_whole, key_of_fraction
from ..schedule import TOKEN_UNITS
from ..sources import lists_own_files
from ..sources.folders import find_split
from ..sources.kinds import describe_column_types
from ..sources.paths import find, require_one_format
from ..sources.plugins import find_plugin_format
from ..sources.select import build_column, require_comparable
from ..sources.tokens.forms import TokenIdOptions, detect_layout
from ..stores import parse_location
from ..stores.urls import redact_urls
from ..text.chat import find_format
from .build import (
    build,
    build_schedule,
    collect_tokenizers,
    describe_no_tokens,
    find_source_problems,
    iterate_encodings,
    make_chat,
    require_equal_samples,
    require_tokenizer,
    require_valid_whole,
    resolve_token,
)
from .check import parse_mixture
from .exclude import read_excluded_rows, require_known_sources
from .footers import (
    RowGroupSizes,
    can_hold_texts,
    can_hold_tokens,
    count_indexed_lines,
    get_list_dtype,
    read_first_rows,
    read_footers,
)
from .model import END_TOKENS, Chatting, MixtureFile, SourceEntry, Splitting, Tokenizing
from .readers import ReaderRegistry
from .reading import MixtureNode, Problem, ProblemLog, check_rights
from .stages import build_stage_schedule
from .stand_ins import drop_converted_amounts, drop_named_tokens, hide_log_lines, make_stand_ins

EPOCHS_WARNING_LIMIT = 4.0
"""Passes over one source beyond which lint warns.

Up to about four passes, repeated text is worth nearly as much as new text (Muennighoff et al.,
2023).
"""

DECODED_MEMORY_LIMIT = 256 << 20
"""Bytes of decoded row groups that stay in memory."""

_NAME_TEXT = "; name the one with the text by tokenize.field, or add 'tokenize: none'"
_COMMON_SUMS = (1.0, 100.0)
_FEW_ROWS = 8  # a source with fewer rows is probably truncated
_COUNTING = ("lengths", "tokenize", "chat")  # keys of a source by which tokens are counted
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
            notes,
            most_epochs,
            str(path),
            ReaderRegistry() if readers is None else readers,
            is_packed=model.pack is not None,
        )
        try:
            with convert_storage_errors(path):
                linter.check_mixture(model, "", 1.0, model.run)
                linter.check_token_counts(model, "", "")
                linter.check_exclude(model)
                linter.check_samples(model)
                linter.check_batch(model)
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
    is_packed: bool = False
    stored: dict[str, str] = field(default_factory=dict[str, str])
    chats: set[str] = field(default_factory=set[str])
    most_rows: int = 0
    unknown: set[str] = field(default_factory=set[str])  # sources whose rows are unknown
    without_tokens: set[str] = field(default_factory=set[str])
    nodes: dict[str, tuple[MixtureNode, str]] = field(
        default_factory=dict[str, tuple[MixtureNode, str]]
    )  # full name of a source -> where the file describes it

    @property
    def wrong(self) -> bool:
        return any(problem.severity == "error" for problem in self.notes.problems)

    def check_mixture(
        self,
        model: MixtureFile,
        at: str,
        share: float,
        run: tuple[str, int] | None,
        above: str = "",
    ) -> None:
        """Check a mixture that receives `share` of the run; names begin with `above`."""
        self.check_sums(model, at)
        self.check_steps(model, at)
        self.check_cache(model, at)
        self.check_amounts(model, at)
        samples = run[1] * share if run and run[0] == "samples" else None
        shares = self.known_shares(model, at, samples)
        if run is not None and samples is None and not at and model.unit not in TOKEN_UNITS:
            node = model.marks["horizon"]
            message = f"the horizon counts {run[0]}, the weights count samples: epochs over the run were not checked"
            self.notes.problems.append(Problem(node.file, node.line, "horizon", "note", message))
        weighted = any(source.weight is not None for source in model.sources)
        for source in model.sources:
            key = f"{at}sources.{source.name}"
            self.check_weight(source, key, shares, run, model)
            no_weight = (
                source.weight is None
                and weighted
                and not model.groups
                and not model.weighs_in_stages
            )
            source_share = None if shares is None or no_weight else shares.get(source.name, 0.0)
            name = above + source.name
            self.nodes[name] = source.marks[""], key
            if source.mixture is not None:
                nested = source.mixture.inside(model)
                self.check_mixture(
                    nested,
                    f"{key}.mixture.",
                    share * (source_share or 0.0),
                    run if source_share else None,
                    f"{name}/",
                )
                continue
            self.stored.pop(source.name, None)
            rows = self.check_files(source, model, key, name)
            self.unknown |= {name} if rows is None else set()
            self.most_rows = max(self.most_rows, rows or 0)
            if rows is not None and source_share is not None and samples is not None:
                self.check_epochs(source, model, key, source_share * samples, rows)
            self.check_tokenizer(source, model, key)
            if (encoding := source.encoding(model)) is not None:
                if source.name in self.stored:
                    how = "chat" if isinstance(encoding, Chatting) else "tokenize"
                    message = f"the source stores tokens, which {how} would encode: add 'tokenize: none' to it"
                    self.notes.error(_get_node(source, how), f"{key}.{how}", message)
                self.stored[source.name] = str(TOKEN_DTYPE)

    # ------------------------------------------------------------ weights

    def check_steps(self, model: MixtureFile, at: str) -> None:
        """Warn if a file gives each step one source, and does not say how many rows a step has."""
        batch = model.batch
        if at or model.one_source_per != "global_step" or (batch and batch.over_ranks):
            return
        if batch is None or batch.ranks == 1:
            self.notes.warn(
                model.marks["one_source_per"],
                "one_source_per",
                "only a Loader knows the rows of a global step, so the file has no plan: add "
                "global_batch_size",
            )

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
        if model.unit in TOKEN_UNITS or model.temperature is not None:
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
        if not points and not has_bounds and not model.weighs_in_stages:
            return self.constant_shares(model, at)
        if any(set(weights) != set(model.names) for _, weights in points) or (
            model.weighs_in_stages and self.wrong
        ):
            return None
        if model.weighs_in_stages and model.run is None and model.horizon is not None:
            return None  # the length of a run in passes depends on the data
        try:
            if model.weighs_in_stages:
                schedule = build_stage_schedule(model, model.own_weights(), model.run)
            else:
                schedule = build_schedule(
                    model, points or ((0, model.grouped(model.own_weights(), model.groups or {})),)
                )
            spans = schedule.spans(model.names)
        except PenstockError as error:
            if not self.wrong:
                key = "stages" if model.weighs_in_stages else "schedule"
                self.notes.error(model.marks.get(key, model.marks[""]), f"{at}{key}", str(error))
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
        split = source.splitting(model)
        is_held_out = split is not None and split.part == "held_out"
        if rows == 0 and draws and is_held_out and source.unique_fraction is None:
            self.notes.warn(node, at, "its held-out part has no rows, so the source is left out")
        elif rows == 0 and draws:
            message = f"the source {source.name!r} is empty; leave it out of the mixture, or give it weight 0"
            self.notes.error(node, at, message)
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

    def check_files(
        self, source: SourceEntry, model: MixtureFile, at: str, name: str
    ) -> int | None:
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
                message = "line-based files do not store lengths: count tokens with tokenize: {counted: true}"
                self.notes.error(_get_node(source, "lengths"), f"{at}.lengths", message)
            if file_format == "jsonl" and (first_rows := read_first_rows(paths[0])):
                self.check_first_rows(source, model, first_rows, paths[0], at, name)
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
        try:
            rows, schema, row_groups = read_footers(tuple(paths), file_format, source.columns)
        except (PenstockError, OSError) as error:
            self.notes.error(node, f"{at}.path", str(error))
            return None
        self.check_types(source, model, schema, paths[0], at, name)
        self.check_chat_format(
            source, model, {each.name for each in schema if str(each.type) != "null"}, at
        )
        self.check_columns(source, model, schema.names, at)
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
        self, source: SourceEntry, model: MixtureFile, schema: Any, path: Path, at: str, name: str
    ) -> None:
        """Compare the settings of a source with the types of its columns.

        Store the token dtype of a column of integer lists (the only column, or `lengths`). Report
        `lengths` of a column without lists, values of `where` and a split that do not fit a type,
        and texts that are none. Remember a source without a column that can hold tokens.
        """
        if len(set(schema.names)) < len(schema.names):
            return  # opening the source reports the problem
        types = describe_column_types(schema, schema.names)
        column = source.lengths or (
            source.columns[0] if source.columns and len(source.columns) == 1 else None
        )
        column_type = None if column is None else types.get(column)
        if dtype := get_list_dtype(column_type):
            self.stored[source.name] = dtype
        encoding = source.encoding(model)
        if (
            source.lengths
            and isinstance(column_type, str)
            and column_type != "null"
            and not (isinstance(encoding, Tokenizing) and encoding.counted)
        ):
            message = f"the column {column!r} holds {column_type}, not lists: name the column with the tokens"
            self.notes.error(_get_node(source, "lengths"), f"{at}.lengths", message)
        if isinstance(encoding, Tokenizing) and encoding.field in types:
            text_type = types[encoding.field]
            if not can_hold_texts(text_type):
                message = f"the column {encoding.field!r} holds {text_type}, not texts{_NAME_TEXT}"
                self.notes.error(_get_node(source, "tokenize"), f"{at}.tokenize", message)
        read_columns = [each for each in source.columns or types if each in types]
        if read_columns and not any(can_hold_tokens(types[each]) for each in read_columns):
            self.without_tokens.add(name)
        self.check_conditions(
            source, model, lambda column: schema.field(column).type, types, path, at
        )

    def check_first_rows(
        self,
        source: SourceEntry,
        model: MixtureFile,
        rows: list[dict[str, Any]],
        path: Path,
        at: str,
        name: str,
    ) -> None:
        """Compare the settings of a source with the first rows of its lines."""
        encoding = source.encoding(model)
        columns = list(rows[0])
        has = {column for row in rows for column, value in row.items() if value is not None}
        self.check_chat_format(source, model, has, at)
        self.check_columns(
            source, model, columns, at, "the first row has no {column!r}{near}; it has {has}"
        )
        has_text = (
            encoding is None
            or not isinstance(encoding, Tokenizing)
            or any(isinstance(row.get(encoding.field), str) for row in rows)
        )
        if not has_text and isinstance(encoding, Tokenizing) and _counts_tokens(source, model):
            near = "" if encoding.field in columns else suggest_names(encoding.field, columns)
            message = (
                f"the field {encoding.field!r} holds no text{near}; the first row has "
                f"{', '.join(columns[:20])}{_NAME_TEXT}"
            )
            self.notes.error(_get_node(source, "tokenize"), f"{at}.tokenize", message)
        values = [value for row in rows for value in _select_columns(row, source.columns)]
        if not any(isinstance(value, list) for value in values):
            self.without_tokens.add(name)
        with suppress(ImportError):
            self.check_conditions(source, model, rows, columns, path, at)

    def check_conditions(
        self,
        source: SourceEntry,
        model: MixtureFile,
        values: list[dict[str, Any]] | Callable[[str], Any],
        has: Collection[str],
        path: Path,
        at: str,
    ) -> None:
        """Report values of `where`, and a column of a split, that do not fit the type of a column.

        `values` are rows of lines, or return the Arrow type of a column.
        """
        split = source.splitting(model)
        asked = [("where", column, each) for column, each in (source.where or {}).items()]
        if split is not None and split.column is not None:
            asked.append(("split", split.column, {"hash": [0, 0.5]}))
        for key, column, condition in asked:
            node, place = _get_node(source, key), f"{at}.{key}"
            if key == "where" and isinstance(node.value, dict) and column in node.value:
                node, place = node.value[column], f"{place}.{column}"
            known = any(problem.key.startswith(place) for problem in self.notes.problems)
            if column not in has or known:
                continue
            try:
                if callable(values):
                    column_values = import_arrow().array([], values(column))
                else:
                    end = f"{path}, rows 0 to {len(values) - 1}"
                    column_values = build_column(values, column, end)
                require_comparable(column_values, condition, column, path)
            except PenstockError as error:
                self.notes.error(node, place, str(error))

    def check_token_counts(
        self, model: MixtureFile, at: str, above: str, inherits: bool = False
    ) -> str | None:
        """Report a key that counts tokens of a source whose samples are known to hold none.

        Args:
            model: A mixture.
            at: What its keys begin with.
            above: What the full names of its sources begin with.
            inherits: Its unit is set in the mixture around it.

        Returns:
            The full name of a source without tokens, if the mixture around counts them too.
        """
        lacking = dict[str, SourceEntry]()
        for source in model.sources:
            name = above + source.name
            if source.mixture is not None:
                inner, inherited = source.mixture.inside(model), source.mixture.unit is None
                inner_at = f"{at}sources.{source.name}.mixture."
                inner_name = self.check_token_counts(inner, inner_at, f"{name}/", inherited)
                if inner_name is not None:
                    lacking[inner_name if inner.unit in TOKEN_UNITS else name] = source
            elif name in self.without_tokens and source.encoding(model) is None:
                lacking[name] = source
        name = next(iter(lacking), None)
        if name is None or (model.unit in TOKEN_UNITS and inherits):
            return name
        amounts = [each for each, source in lacking.items() if source.tokens is not None]
        node = model.marks[""]
        if model.unit in TOKEN_UNITS:
            key, in_samples = "unit", "unit: samples"
        elif model.schedule and model.schedule.unit in TOKEN_UNITS:
            key, in_samples = "schedule", "schedule: {unit: samples}"
        elif amounts:
            name, in_samples = amounts[0], "weight: N"
            key, node = f"sources.{lacking[name].name}.tokens", lacking[name].marks["tokens"]
        elif (
            model.horizon is not None
            and model.horizon[0] == "tokens"
            and not model.pack
            and len(lacking) == len(model.sources)
            and not any(source.epochs is not None for source in model.sources)
        ):
            key, name, in_samples = "horizon", "the mixture", "horizon: {samples: N}"
        elif model.pack and len(lacking) == len(model.sources):
            key, name, in_samples = "pack", "the mixture", ""
        else:
            return name
        message = describe_no_tokens(name, in_samples)
        self.notes.error(model.marks.get(key, node), f"{at}{key}", message)
        return None

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
        if isinstance(encoding, Tokenizing) and not (perhaps and _counts_tokens(source, model)):
            asked.append(("tokenize", encoding.field))
        note = self.notes.warn if perhaps else self.notes.error
        form = perhaps or "there is no column {column!r}{near}; the columns are {has}"
        for key, column in asked:
            if column not in has:
                message = form.format(
                    column=column, near=suggest_names(column, has), has=", ".join(has[:20])
                )
                if key == "tokenize":
                    message += _NAME_TEXT
                note(_get_node(source, key), f"{at}.{key}", message)

    def check_tokenizer(self, source: SourceEntry, model: MixtureFile, at: str) -> None:
        """Report files of tokenizers and templates that do not exist, and chats that do not fit."""
        is_own = bool(source.tokenize or source.chat)
        marks = source.marks if is_own else model.marks
        encoding = source.encoding(model)
        name = "chat" if isinstance(encoding, Chatting) else "tokenize"
        if encoding is None or name not in marks:
            return
        node, key = marks[name], f"{at}.{name}" if is_own else name
        if encoding.tokenizer.endswith((".json", ".model")):
            if not parse_location(encoding.tokenizer).is_file():
                message = (
                    f"the tokenizer file {encoding.tokenizer!r} is missing: check the path, or give "
                    "a folder or the name of a model on the Hub"
                )
                self.notes.error(node, f"{key}.tokenizer", message)
                return
        try:
            require_tokenizer(encoding.tokenizer)
        except ConfigError as error:
            self.notes.error(node, f"{key}.tokenizer", str(error))
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

    def check_chat_format(
        self, source: SourceEntry, model: MixtureFile, has: Collection[str], at: str
    ) -> None:
        """Report packed samples of a chat that are no single document of tokens."""
        how = source.encoding(model)
        if not (self.is_packed and isinstance(how, Chatting)):
            return
        columns = {*has} if source.columns is None else {*has} & {*source.columns}
        format = find_format(columns, how.fields) if how.format == "auto" else how.format
        problem = {
            "preference": "are preference pairs, whose two sides are no row",
            "kto": "have a label each (KTO), which a row of several samples cannot hold",
        }.get(str(format))
        if problem:
            self.notes.error(
                _get_node(source, "path"),
                at,
                f"its samples {problem}: take out pack, and add 'batch: {{collate: list}}' with a size",
            )

    def check_exclude(self, model: MixtureFile) -> None:
        """Report a file of excluded rows that cannot be read, and unknown sources in it."""
        try:
            rows = read_excluded_rows(model)
            if not self.wrong or _has_all_sources(model):
                require_known_sources(model, rows)
        except ConfigError as error:
            self.notes.error(model.marks["exclude"], "exclude", _strip_key(error, "exclude"))

    def check_cache(self, model: MixtureFile, at: str) -> None:
        """Report a cache folder that is a file, or lies in one."""
        if model.cache is None or "cache" not in model.marks:
            return
        for path in [folder := Path(model.cache), *folder.parents]:
            if path.is_file():
                message = f"{str(path)!r} is a file: name a folder, which need not exist"
                self.notes.error(model.marks["cache"], f"{at}cache", message)

    def check_batch(self, model: MixtureFile) -> None:
        """Warn of batches that stack tokens of different lengths."""
        batch = model.batch
        if batch is None or model.pack is not None or batch.collate == "list" or batch.size == 1:
            return
        key = "global_batch_size" if batch.over_ranks else "batch"
        for how, name in iterate_encodings(model):
            self.notes.warn(
                model.marks.get(key, model.marks[""]),
                key,
                f"{name!r} has {how}, and the tokens of its samples, which have different lengths, do "
                "not stack: add pack, or 'collate: list' to batch",
            )
            return

    def check_build(self, model: MixtureFile) -> None:
        """Report problems of the mixture as a whole that show without reading data.

        These are empty sources, caps below one sample, excluded rows that do not exist, stages that
        end before earlier ones, and lengths that are unknown and needed. Rows that `where` selects
        count as all rows of their source: what fails with all of them fails with fewer.

        If a load reads rows or counts tokens, or the rows of a source are unknown, each known
        source is opened by itself. Then the mixture is checked with stand-ins of its sources.
        """
        leaves = [source for _, source in model.iter_sources()]
        splits = [split for source in leaves if (split := source.splitting(model)) is not None]
        reads = (
            model.unit in TOKEN_UNITS
            or model.pack
            or collect_tokenizers(model)
            or any(split.column for split in splits)
            or any(source.lengths for source in leaves)
        )
        if self.wrong:
            return
        try:
            if reads or self.unknown:
                self.check_sources(model)
                self.check_whole(model)
            else:
                _ = build(_without_reads(model)).compiled
        except PenstockError as error:
            self.check_sources(model)
            if not self.wrong:
                self.notes.error(model.marks.get("sources", model.marks[""]), "sources", str(error))

    def check_whole(self, model: MixtureFile) -> None:
        """Raise the errors of the mixture that show with stand-ins of its sources."""
        batch = model.batch
        if model.one_source_per == "global_step" and (
            batch is None or not (batch.over_ranks or batch.ranks > 1)
        ):
            return  # only a Loader knows the order
        stand_ins = make_stand_ins(model, self.most_rows, self.unknown)
        if stand_ins is not None and not self.wrong:
            with hide_log_lines():
                model = drop_named_tokens(drop_converted_amounts(_without_reads(model, True)))
                require_valid_whole(model, stand_ins)

    def check_sources(self, model: MixtureFile) -> None:
        """Report sources that do not open by themselves, if their rows are known."""
        known = _without_sources(_without_reads(model), self.unknown, "")
        for name, message in find_source_problems(known).items():
            node, key = self.nodes[name]
            if message.startswith("exclude: "):
                node, key = model.marks["exclude"], "exclude"
                message = f"source {name!r}: {_strip_key(message, 'exclude')}"
            self.notes.error(node, key, message)

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


def _without_reads(model: MixtureFile, keeps_lengths: bool = False) -> MixtureFile:
    """Return a mixture whose sources open without reading rows; each may have more rows then.

    Stand-ins keep the settings that tell whether lengths are known.
    """

    def strip(source: SourceEntry) -> SourceEntry:
        if source.mixture is not None:
            inner = _without_reads(source.mixture.inside(model), keeps_lengths)
            return replace(source, mixture=inner)
        split = source.split if isinstance(source.split, str) else source.splitting(model)
        by_values = isinstance(split, Splitting) and split.column
        counting: dict[str, Any] = dict.fromkeys(() if keeps_lengths else _COUNTING)
        return replace(
            source,
            where=None,
            partition=None,
            split=None if by_values else split,
            **counting,
        )

    sources = tuple(strip(source) for source in model.sources)
    has_parts = any(source.partition is not None for _, source in model.iter_sources())
    exclude = None if has_parts else model.exclude  # only reading tells the names of parts
    names = ("split",) if keeps_lengths else ("split", "tokenize", "chat")
    settings: dict[str, Any] = dict.fromkeys(names)
    return replace(model, sources=sources, exclude=exclude, **settings)


def _without_sources(model: MixtureFile, names: Collection[str], above: str) -> MixtureFile:
    """Return a mixture without sources of these full names."""
    if not names:
        return model
    sources = [
        source
        if source.mixture is None
        else replace(
            source, mixture=_without_sources(source.mixture, names, f"{above}{source.name}/")
        )
        for source in model.sources
        if above + source.name not in names
    ]
    return replace(model, sources=tuple(sources))


def _has_all_sources(model: MixtureFile) -> bool:
    """Return whether the description has all sources that the file names, despite its problems."""
    node = model.marks.get("sources")
    if node is None or not isinstance(node.value, dict) or {*node.value} != {*model.names}:
        return False
    return all(
        _has_all_sources(source.mixture) if source.mixture is not None else bool(source.path)
        for source in model.sources
    )


def _strip_key(message: object, key: str) -> str:
    return str(message).removeprefix(f"{key}: ")


def _counts_tokens(source: SourceEntry, model: MixtureFile) -> bool:
    """Return whether a load measures the tokens of some samples of a source."""
    encoding = source.encoding(model)
    return (
        model.unit in TOKEN_UNITS
        or source.tokens is not None
        or (model.schedule is not None and model.schedule.unit in TOKEN_UNITS)
        or (isinstance(encoding, Tokenizing) and encoding.counted)
        or (model.horizon is not None and model.horizon[0] in TOKEN_UNITS and not source.zero)
    )


def _select_columns(row: dict[str, Any], columns: Collection[str] | None) -> list[Any]:
    return list(row.values()) if columns is None else [row[each] for each in columns if each in row]


def _get_node(source: SourceEntry, key: str) -> MixtureNode:
    return source.marks.get(key, source.marks[""])


def _count_remaining_rows(source: SourceEntry, model: MixtureFile, rows: int | None) -> int | None:
    """Return the rows that slice and split leave; approximate if a split goes by values."""
    if rows is None:
        return None
    remaining = len(range(rows)[slice(*source.rows(rows))]) if source.slice else rows
    if (split := source.splitting(model)) is not None:
        held_out = _count_held_out(split, remaining)
        remaining = held_out if split.part == "held_out" else remaining - held_out
    if (fraction := source.unique_fraction) is not None and not is_whole(fraction):
        share = parse_fraction(fraction, "unique_fraction: {}")
        key = key_of_fraction(model.seed or 0, source.name)
        return Portion(share.numerator, share.denominator, key).size(remaining)
    return remaining


def _count_held_out(split: Splitting, rows: int) -> int:
    if isinstance(split.held_out, int):
        return split.held_out
    share = parse_fraction(split.held_out, "split({})")
    if split.column is not None:
        return int(share * rows)
    if split.by == "position":
        return ceil(share * rows)
    return Portion(share.numerator, share.denominator, split.seed).size(rows) or 0


def _format_size(size: float) -> str:
    power = min(3, max(0, (int(size).bit_length() - 1) // 10))
    return f"{size / 1024**power:,.3g} {('bytes', 'KiB', 'MiB', 'GiB')[power]}"
