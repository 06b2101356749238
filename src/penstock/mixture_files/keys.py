"""Declarations of all keys of a mixture file.

The reader, its errors and the JSON Schema derive from this table.
"""

from __future__ import annotations

import datetime
import re
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, get_args

from ..dataset import SPLITS
from ..engine.mixing import STOPS
from ..engine.orders import parse_fraction
from ..engine.packing import METHODS, OVERFLOWS, UNTRAINED
from ..errors import ConfigError
from ..inputs import is_whole
from ..schedule import COUNTED_UNITS, INTERPOLATIONS, RUN_UNITS, UNITS
from ..sources.paths import ALL_FORMATS, TOKEN_TYPES
from ..stores.limits import BATCH as BATCH_SIZE
from ..stores.limits import NUMBER, RANKS
from ..text.chat import FIELD_NAMES, FORMAT_NAMES, TRUNCATE, TrainOn, Untrained
from ..types import MAX_POSITION
from .kinds import (
    INVALID,
    FlagKind,
    ListKind,
    NoneKind,
    NumberKind,
    PlainKind,
    RawKind,
    ScalarKind,
    Schema,
    Section,
    SectionKey,
    Table,
    TextKind,
    ValueKind,
    format_node,
)
from .model import SPLIT_PARTS, RunPosition
from .reading import MixtureNode, ProblemLog

NONNEGATIVE_COUNT = NumberKind(integer=True, least=0, most=MAX_POSITION)
POSITIVE_SIZE = NumberKind(integer=True, least=1, most=MAX_POSITION)
_ROW_NUMBER = NumberKind(integer=True, least=-MAX_POSITION, most=MAX_POSITION, null=True)
_BATCH_ROWS = NumberKind(integer=True, least=1, most=BATCH_SIZE)
_RANK_COUNT = NumberKind(integer=True, least=1, most=RANKS)


@dataclass(frozen=True)
class SingleOrTableKind:
    """A single value of one kind, or a table of values by name."""

    single: ValueKind
    each: ValueKind

    def read(self, node: MixtureNode, at: str, notes: ProblemLog, /) -> Any:
        return (Table(self.each) if isinstance(node.value, dict) else self.single).read(
            node, at, notes
        )

    def schema(self) -> Schema:
        return {"anyOf": [self.single.schema(), Table(self.each).schema()]}


@dataclass(frozen=True)
class TokenKind:
    """A token: its id, its text (looked up in the tokenizer), or `true` (the tokenizer's own)."""

    def read(self, node: MixtureNode, at: str, notes: ProblemLog, /) -> Any:
        if node.value is True:
            return True
        return (TextKind() if isinstance(node.value, str) else NONNEGATIVE_COUNT).read(
            node, at, notes
        )

    def schema(self) -> Schema:
        return {"anyOf": [{"type": ["integer", "string"]}, {"const": True}]}


@dataclass(frozen=True)
class BlockSizeKind:
    """A number of samples, or `global_step`."""

    def read(self, node: MixtureNode, at: str, notes: ProblemLog, /) -> Any:
        if node.value == "global_step":
            return node.value
        if isinstance(node.value, int) or (
            isinstance(node.value, str) and node.value[:1].isdigit()
        ):
            return POSITIVE_SIZE.read(node, at, notes)
        expected = "a whole number of samples, or global_step"
        notes.error(node, at, f"expected {expected}, not {format_node(node)}")
        return INVALID

    def schema(self) -> Schema:
        return {"anyOf": [POSITIVE_SIZE.schema(), {"const": "global_step"}]}


@dataclass(frozen=True)
class SliceBoundKind:
    """The bound of a slice: a row number as in Python, or a percentage such as `80%`."""

    def read(self, node: MixtureNode, at: str, notes: ProblemLog, /) -> Any:
        percent = isinstance(node.value, str) and re.fullmatch(
            r"[0-9]+([.][0-9]*)? *%", node.value[: NUMBER + 1]
        )
        if not percent or not isinstance(node.value, str):
            row = _ROW_NUMBER.read(node, at, ProblemLog())
            if row is INVALID:
                expected = "a row number, or a percentage such as 50%"
                notes.error(node, at, f"expected {expected}, not {format_node(node)}")
            return row
        if Fraction(node.value.rstrip(" %")) <= 100:
            return node.value
        notes.error(node, at, f"expected at most 100%, not {format_node(node)}")
        return INVALID

    def schema(self) -> Schema:
        percent = {"type": "string", "pattern": r"^[0-9]+([.][0-9]*)? *%$|\$\{"}
        return {"anyOf": [_ROW_NUMBER.schema(), percent]}


@dataclass(frozen=True)
class ShareKind:
    """A share (`0.5%` or 0.005) or a number of rows, kept as written."""

    def read(self, node: MixtureNode, at: str, notes: ProblemLog, /) -> Any:
        if isinstance(node.value, int) and not isinstance(node.value, bool):
            return POSITIVE_SIZE.read(node, at, notes)
        try:
            parse_fraction(
                node.value[: NUMBER + 1] if isinstance(node.value, str) else node.value, at
            )
        except ConfigError:
            notes.error(
                node,
                at,
                f"expected a share such as 0.5% or a number of rows, not {format_node(node)}",
            )
            return INVALID
        return node.value

    def schema(self) -> Schema:
        number = {"type": "number", "exclusiveMinimum": 0}
        return {
            "anyOf": [number, {"type": "string", "pattern": r"^[0-9][0-9_]*([.][0-9]*)? *%?$|\$\{"}]
        }


@dataclass(frozen=True)
class FractionKind:
    """A share of at most 1 (`25%` or 0.25), kept as written."""

    def read(self, node: MixtureNode, at: str, notes: ProblemLog, /) -> Any:
        text = node.value[: NUMBER + 1] if isinstance(node.value, str) else node.value
        try:
            if not is_whole(text):
                parse_fraction(text, at)
        except ConfigError:
            notes.error(node, at, f"expected a share such as 25% or 0.25, not {format_node(node)}")
            return INVALID
        return node.value

    def schema(self) -> Schema:
        number = {"type": "number", "exclusiveMinimum": 0, "maximum": 1}
        return {
            "anyOf": [number, {"type": "string", "pattern": r"^[0-9][0-9_]*([.][0-9]*)? *%?$|\$\{"}]
        }


@dataclass(frozen=True)
class PartNameKind:
    """The name of a part; a number, true, false or null stands for its text."""

    def read(self, node: MixtureNode, at: str, notes: ProblemLog, /) -> Any:
        match node.value:
            case None:
                return "null"
            case bool(value):
                return "true" if value else "false"
            case float(value) if value.is_integer():
                return str(int(value))
            case int(value) | float(value):
                return str(value)
            case _:
                return TextKind().read(node, at, notes)

    def schema(self) -> Schema:
        return ScalarKind().schema()


@dataclass(frozen=True)
class DateKind:
    """A date such as 2024-07-26, kept as text."""

    def read(self, node: MixtureNode, at: str, notes: ProblemLog, /) -> Any:
        try:
            return datetime.date.fromisoformat(str(node.value)).isoformat()
        except ValueError:
            notes.error(node, at, f"expected a date such as 2024-07-26, not {format_node(node)}")
            return INVALID

    def schema(self) -> Schema:
        return {"type": "string", "pattern": r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$|\$\{"}


SHUFFLE_SECTION = Section(
    "shuffle",
    "Order of the rows of a source: full, none, or the settings of a shuffle.",
    (
        SectionKey(
            "rows",
            POSITIVE_SIZE,
            "Rows per block of a block shuffle, for slow disks; needs window.",
        ),
        SectionKey(
            "window", POSITIVE_SIZE, "Blocks per window; rows are shuffled within a window."
        ),
        SectionKey(
            "buckets",
            POSITIVE_SIZE,
            "Rows per bucket of a bucket shuffle, for packing very many documents.",
        ),
        SectionKey(
            "seed",
            NumberKind(integer=True),
            "Seed of this shuffle; default: the seed of the mixture.",
        ),
    ),
    short=TextKind(("full", "none")),
)
CONDITION_SECTION = Section(
    "condition",
    "Allowed values of a column: a value, a list of values, or a range. A null matches only null "
    "and not.",
    (
        SectionKey("min", ScalarKind(), "Smallest allowed value."),
        SectionKey("max", ScalarKind(), "Largest allowed value."),
        SectionKey("above", ScalarKind(), "Exclusive lower bound."),
        SectionKey("below", ScalarKind(), "Exclusive upper bound."),
        SectionKey("not", ListKind(ScalarKind(), one=True), "Excluded value or values."),
        SectionKey(
            "hash",
            ListKind(NumberKind(least=0, most=1), most=2),
            "Allowed range [low, high) of the hash of the value, which is between 0 and 1.",
        ),
    ),
    short=ListKind(ScalarKind(), one=True),
)
SPLIT_SECTION = Section(
    "split",
    "Rows of a source that are held out for evaluation; or the name of a split of a prepared "
    "folder.",
    (
        SectionKey("held_out", ShareKind(), "Share or number of rows to hold out."),
        SectionKey(
            "by", TextKind(SPLITS), "hash of file and row (default), or position: the last rows."
        ),
        SectionKey(
            "column",
            TextKind(),
            "Column whose hashed values decide; equal values go to one side.",
        ),
        SectionKey("seed", NumberKind(integer=True), "Seed of the choice of rows (default: 0)."),
        SectionKey("part", TextKind(SPLIT_PARTS), "Part to read (default: train)."),
    ),
    needed=("held_out",),
)
SOURCE_SPLIT_SECTION = replace(SPLIT_SECTION, name="source_split", short=TextKind())
TOKENIZE_SECTION = Section(
    "tokenize",
    "Tokenize a text field into arrays of token ids.",
    (
        SectionKey(
            "tokenizer",
            TextKind(),
            "A tokenizer.json, a folder, or a name on the Hugging Face hub.",
        ),
        SectionKey("field", TextKind(), "Field with the text (default: text)."),
        SectionKey(
            "special_tokens",
            FlagKind(),
            "Add the special tokens of the tokenizer (default: false).",
        ),
        SectionKey(
            "counted",
            FlagKind(),
            "Count the tokens of every row once, so that packing is planned and weights are exact.",
        ),
    ),
    needed=("tokenizer",),
    short=NoneKind("a mapping such as {tokenizer: tokenizer.json}"),
)
CHAT_FIELDS_SECTION = Section(
    "chat_fields",
    "Names in the data by those of the format.",
    tuple(SectionKey(name, TextKind(), f"Name of {name!r} in the data.") for name in FIELD_NAMES),
)
CHAT_SECTION = Section(
    "chat",
    "Convert conversations to tokens and loss masks; the options of penstock.text.Chat.",
    (
        SectionKey(
            "tokenizer",
            TextKind(),
            "A tokenizer.json, a sentencepiece .model, a folder, or a name on the Hugging Face hub.",
        ),
        SectionKey(
            "format", TextKind(FORMAT_NAMES), "Form of the samples; default: the first that fits."
        ),
        SectionKey(
            "template",
            TextKind(),
            "A family such as chatml, a file, or a template itself; default: of the tokenizer.",
        ),
        SectionKey(
            "train_on",
            TextKind(get_args(TrainOn)),
            "Learned messages: of the assistant (default), the last of them, or all tokens.",
        ),
        SectionKey("fields", CHAT_FIELDS_SECTION, "Names in the data by those of the format."),
        SectionKey("roles", Table(TextKind()), "Roles of the template by those of the data."),
        SectionKey("max_length", POSITIVE_SIZE, "Maximum number of tokens of a sample."),
        SectionKey(
            "truncate",
            TextKind(TRUNCATE),
            "Policy for longer samples: drop their oldest turns (default), cut them on the right or "
            "left, drop them, or stop with an error.",
        ),
        SectionKey(
            "untrained",
            TextKind(get_args(Untrained)),
            "Policy for samples without learned tokens: skip (default), keep, or error.",
        ),
        SectionKey("keep", ListKind(TextKind(), one=True), "Other fields to keep."),
        SectionKey(
            "allowed_special",
            ListKind(TextKind(), one=True),
            "Control tokens that are tokens in the data too, or all.",
        ),
        SectionKey("variables", PlainKind(), "Values for the template by name."),
        SectionKey("date", DateKind(), "Date for templates that ask for it."),
        SectionKey(
            "input_separator",
            TextKind(),
            "Text between the instruction and the input of alpaca and dolly; default: an empty line.",
        ),
        SectionKey("bos", TextKind(), "Text of the token that begins a sample."),
        SectionKey("eos", TextKind(), "Text of the token that ends a sample."),
    ),
    needed=("tokenizer",),
)
_NUMBER_POINT = r"^[0-9][0-9_]*([.][0-9]+)?([eE][+-]?[0-9]+| *[kMBGT])?$"
_NUMBER_UNITS = ("steps", "tokens", "fraction")


def _make_number_section(name: str, doc: str, number: NumberKind) -> Section:
    """Return a section for a number, or for a table of numbers over the run."""
    return Section(
        name,
        doc,
        (
            SectionKey(
                "unit",
                TextKind(_NUMBER_UNITS),
                "Unit of points: steps (default), tokens of packed rows, or fraction of the run.",
            ),
            SectionKey(
                "points",
                Table(number, _NUMBER_POINT, "a whole number of at least 0, or a fraction"),
                "Position in the run: number from there on.",
            ),
        ),
        needed=("points",),
        short=number,
    )


LENGTH_SECTION = _make_number_section(
    "length", "Tokens per row, or a table of them over the run.", POSITIVE_SIZE
)
GLOBAL_BATCH_SECTION = _make_number_section(
    "global_batch_size",
    "Rows of all ranks in a step, or a table of them over the run.",
    _BATCH_ROWS,
)
PACK_SECTION = Section(
    "pack",
    "Rows of exactly `length` tokens; the options of Dataset.pack.",
    (
        SectionKey("length", LENGTH_SECTION, "Tokens per row."),
        SectionKey(
            "method",
            TextKind(METHODS),
            "concat_split cuts documents at row ends; the other methods keep them whole.",
        ),
        SectionKey(
            "long",
            TextKind(("split", "error", "truncate")),
            "Policy for documents longer than a row.",
        ),
        SectionKey("max_segments", POSITIVE_SIZE, "Maximum number of documents per row."),
        SectionKey(
            "features", ListKind(TextKind()), "Features to pack; the first one counts the tokens."
        ),
        SectionKey(
            "unpacked", ListKind(TextKind()), "Features returned as a list, one entry per document."
        ),
        SectionKey(
            "pad",
            SingleOrTableKind(NumberKind(), NumberKind()),
            "Padding value: one, or one per feature.",
        ),
        SectionKey(
            "bos",
            SingleOrTableKind(TokenKind(), TokenKind()),
            "Token before every document: its id, its text, or true for the tokenizer's own.",
        ),
        SectionKey(
            "eos",
            SingleOrTableKind(TokenKind(), TokenKind()),
            "Token after every document: its id, its text, or true for the tokenizer's own.",
        ),
        SectionKey(
            "dtype",
            SingleOrTableKind(TextKind(), TextKind()),
            "Type of the arrays: one, or one per feature.",
        ),
        SectionKey("open_rows", POSITIVE_SIZE, "Number of open rows (first_fit, best_fit)."),
        SectionKey("window", POSITIVE_SIZE, "Documents sorted together (best_fit)."),
        SectionKey(
            "overflow",
            TextKind(OVERFLOWS),
            "Policy for documents that fit into no open row (best_fit, known lengths).",
        ),
        SectionKey("rows", POSITIVE_SIZE, "Rows packed together, if overflow is split."),
        SectionKey(
            "pad_to_multiple",
            POSITIVE_SIZE,
            "Pad each document in a row to a multiple of this length.",
        ),
        SectionKey(
            "group_by",
            TextKind(),
            "Pack only documents with equal values of this key together; __source__: the source.",
        ),
        SectionKey(
            "provenance", FlagKind(), "Add the source of each token to rows (default: false)."
        ),
        SectionKey(
            "untrained",
            TextKind(UNTRAINED),
            "Documents in which no token carries loss, by their masks (default: keep).",
        ),
    ),
    needed=("length",),
)
BATCH = Section(
    "batch",
    "Groups of `size` neighbours.",
    (
        SectionKey(
            "size",
            _BATCH_ROWS,
            "Samples per batch of one rank; required without global_batch_size.",
        ),
        SectionKey(
            "drop_remainder",
            FlagKind(),
            "Drop a short last batch of a pass (default: false).",
        ),
        SectionKey(
            "collate",
            TextKind(("stack", "list")),
            "stack the samples (default), or return a list.",
        ),
        SectionKey(
            "ranks",
            _RANK_COUNT,
            "Data-parallel ranks, each taking a batch per step (default: 1); used to count steps.",
        ),
    ),
)
SCHEDULE_SECTION = Section(
    "schedule",
    "Weights that change over the run.",
    (
        SectionKey("unit", TextKind(UNITS), "Unit of points, start and stop (default: samples)."),
        SectionKey(
            "interpolation",
            ListKind(TextKind(INTERPOLATIONS), one=True),
            "Interpolation between points (default: step); a list has one entry per interval.",
        ),
        SectionKey(
            "points",
            Table(
                Table(NumberKind(least=0)),
                _NUMBER_POINT,
                "a whole number of at least 0, or a fraction",
            ),
            "Position in the run: weights.",
        ),
    ),
)


@dataclass(frozen=True)
class PositionKind:
    """A position in the run: `40%` of the horizon, or `{steps: 1000}` in another unit."""

    def read(self, node: MixtureNode, at: str, notes: ProblemLog, /) -> Any:
        if isinstance(node.value, dict):
            position = UNTIL_SECTION.read(node, at, notes)
            if len(position) == 1:
                return RunPosition(*next(iter(position.items())))
        elif isinstance(node.value, str) and re.fullmatch(r"[0-9]+([.][0-9]*)? *%", node.value):
            if 0 < (percent := float(node.value.rstrip(" %"))) <= 100:
                return RunPosition("percent", percent)
        notes.error(
            node,
            at,
            f"expected a position such as 40%, {{steps: 1000}} or {{tokens: 2T}}, not {format_node(node)}",
        )
        return INVALID

    def schema(self) -> Schema:
        return {
            "anyOf": [
                {"type": "string", "pattern": r"^[0-9]+([.][0-9]*)? *%$|\$\{"},
                UNTIL_SECTION.schema(),
            ]
        }


UNTIL_SECTION = Section(
    "until",
    "Position in the run, in one of these units.",
    tuple(SectionKey(unit, POSITIVE_SIZE, f"Number of {unit}.") for unit in RUN_UNITS),
)
STAGE_SECTION = Section(
    "stage",
    "A part of the run with its own weights, row length or batch; what a stage leaves out carries "
    "over from the previous one.",
    (
        SectionKey("name", TextKind(), "Name, for reports."),
        SectionKey(
            "until",
            PositionKind(),
            "End of the stage: a percentage of the horizon, or a number of steps, tokens or samples.",
        ),
        SectionKey(
            "weights", Table(NumberKind(least=0)), "Weights of groups and sources; 0 removes one."
        ),
        SectionKey(
            "interpolation",
            TextKind(INTERPOLATIONS),
            "step: weights apply from the beginning (default); linear, cosine: they are reached at "
            "the end.",
        ),
        SectionKey("length", POSITIVE_SIZE, "Tokens per packed row from its beginning on."),
        SectionKey(
            "global_batch_size",
            _BATCH_ROWS,
            "Rows of all ranks per training step from its beginning on.",
        ),
    ),
)
HORIZON_SECTION = Section(
    "horizon",
    "Length of the run, in one of these units; plan, run and loader end there.",
    (
        *(SectionKey(unit, POSITIVE_SIZE, f"Number of {unit} of the run.") for unit in RUN_UNITS),
        SectionKey(
            "epochs",
            NumberKind(above=0),
            "Number of passes over all sources.",
        ),
    ),
)
PARTS_MIX_SECTION = Section(
    "parts_mix",
    "Weights of the parts of a source.",
    (
        SectionKey("weights", Table(NumberKind(least=0)), "Weight of every part; 0 removes one."),
        SectionKey(
            "temperature",
            NumberKind(above=0),
            "Derive weights from sizes: rows ** (1 / temperature).",
        ),
        SectionKey(
            "max_epochs",
            SingleOrTableKind(NumberKind(above=0), NumberKind(above=0)),
            "Maximum passes over each part, or by name.",
        ),
    ),
)
SOURCE_SECTION = Section(
    "source",
    "One source of the mixture: files, or a nested mixture.",
    (
        SectionKey(
            "path",
            ListKind(TextKind(), one=True),
            "Files, folders, globs, brace ranges; relative to this file.",
        ),
        SectionKey(
            "format",
            TextKind(ALL_FORMATS),
            "Format of the files; default: detected from their names.",
        ),
        SectionKey("columns", ListKind(TextKind()), "Columns to read."),
        SectionKey(
            "lengths",
            TextKind(),
            "Column of token lists that defines the length of a sample, so that packing is planned.",
        ),
        SectionKey(
            "dtype",
            TextKind(TOKEN_TYPES),
            "Type of the ids of a token store, if its files do not declare it.",
        ),
        SectionKey(
            "eos",
            NONNEGATIVE_COUNT,
            "Id that ends a document of a token store, if no index file declares documents.",
        ),
        SectionKey("split", SOURCE_SPLIT_SECTION, "Held-out rows; default: as in the mixture."),
        SectionKey(
            "where", Table(CONDITION_SECTION), "Filter: rows whose columns hold these values."
        ),
        SectionKey(
            "slice",
            ListKind(SliceBoundKind(), most=3),
            "Rows [start, stop, step] as in Python; bounds may be percentages.",
        ),
        SectionKey(
            "partition_by",
            ListKind(TextKind(), one=True),
            "Columns whose values divide the rows into the sources of a nested mixture.",
        ),
        SectionKey("min_size", POSITIVE_SIZE, "Fewest rows of a part (default: 1)."),
        SectionKey("rest", TextKind(), "Name of the part of all rarer values."),
        SectionKey(
            "only",
            ListKind(PartNameKind(), one=True),
            "Names of the parts, instead of min_size; other rows are the rest, or left out.",
        ),
        SectionKey("input", PartNameKind(), "The one part to read, instead of a mixture of all."),
        SectionKey("mix", PARTS_MIX_SECTION, "Weights of the parts; default: equal ones."),
        SectionKey(
            "unique_fraction",
            FractionKind(),
            "Share of the rows that is used at all, and repeated by the weight.",
        ),
        SectionKey("shuffle", SHUFFLE_SECTION, "Order of the rows; default: as in the mixture."),
        SectionKey(
            "tokenize", TOKENIZE_SECTION, "Tokenization, or none; default: as in the mixture."
        ),
        SectionKey("chat", CHAT_SECTION, "Conversations to tokens, instead of tokenize."),
        SectionKey(
            "label",
            TextKind(),
            "Name of the files in random keys; default: the name of the source.",
        ),
        SectionKey(
            "mixture",
            RawKind("mixture"),
            "Nested mixture in place of path: a mixture file, or its settings.",
        ),
        SectionKey(
            "group",
            TextKind(),
            "Group whose weight the source shares; weight is then relative within the group.",
        ),
        SectionKey("weight", NumberKind(least=0), "Share, relative to the other sources."),
        SectionKey("tokens", NumberKind(above=0), "Share, as the tokens to draw over the run."),
        SectionKey("epochs", NumberKind(above=0), "Share, as the passes to draw over the run."),
        SectionKey(
            "max_epochs",
            NumberKind(above=0),
            "Maximum number of passes; then the other sources share its weight.",
        ),
        SectionKey(
            "loss_weight",
            NumberKind(least=0),
            "Weight of its losses, which the training loop applies (default: 1).",
        ),
        SectionKey(
            "start",
            NONNEGATIVE_COUNT,
            "Position in the run at which the source begins, in the unit of the schedule.",
        ),
        SectionKey("stop", NONNEGATIVE_COUNT, "Position in the run at which the source ends."),
    ),
)
_INNER_KEYS = (
    SectionKey("sources", Table(RawKind("source")), "Sources by name."),
    SectionKey("seed", NumberKind(integer=True), "Seed of all random choices (default: 0)."),
    SectionKey(
        "block_size",
        POSITIVE_SIZE,
        "Samples per shuffled block; counts are exact at block boundaries (default: 1).",
    ),
    SectionKey(
        "one_source_per",
        BlockSizeKind(),
        "Neighbouring samples, or packed rows, of one source (default: 1); or global_step.",
    ),
    SectionKey("stop", TextKind(STOPS), "End of a pass (default: restart, an endless pass)."),
    SectionKey("unit", TextKind(COUNTED_UNITS), "Unit of the weights (default: samples)."),
    SectionKey(
        "temperature", NumberKind(above=0), "Derive weights from sizes: rows ** (1 / temperature)."
    ),
    SectionKey("max_epochs", NumberKind(above=0), "Maximum passes of sources without max_epochs."),
    SectionKey(
        "groups",
        Table(NumberKind(least=0)),
        "Weights of groups of sources, relative to each other.",
    ),
    SectionKey(
        "group_max_epochs",
        Table(NumberKind(above=0)),
        "Maximum passes of sources in these groups, if they have no max_epochs.",
    ),
    SectionKey("schedule", SCHEDULE_SECTION, "Weights that change over the run."),
    SectionKey("shuffle", SHUFFLE_SECTION, "Default for sources without shuffle (default: full)."),
    SectionKey(
        "tokenize", TOKENIZE_SECTION, "Default for sources without tokenize and without chat."
    ),
    SectionKey("chat", CHAT_SECTION, "Default for sources without chat and without tokenize."),
    SectionKey("split", SPLIT_SECTION, "Default for sources without split."),
)
NESTED_MIXTURE_SECTION = Section(
    "mixture",
    "A nested mixture; missing settings come from the outer mixture.",
    _INNER_KEYS,
    ("sources",),
)
MIXTURE = Section(
    "file",
    "A mixture: the data of a training run, its shares and its form.",
    (
        *_INNER_KEYS,
        SectionKey(
            "include",
            ListKind(TextKind(), one=True),
            "Files whose settings and sources are included; settings of this file win.",
        ),
        SectionKey("stages", ListKind(STAGE_SECTION), "Consecutive parts of the run."),
        SectionKey("horizon", HORIZON_SECTION, "Length of the run."),
        SectionKey("pack", PACK_SECTION, "Rows of equal length."),
        SectionKey(
            "global_batch_size",
            GLOBAL_BATCH_SECTION,
            "Samples or packed rows per training step of all ranks together, for any world size.",
        ),
        SectionKey("batch", BATCH, "Batches."),
        SectionKey(
            "exclude",
            TextKind(),
            "File of samples to exclude, one [source, index] per line; relative to this file.",
        ),
        SectionKey(
            "cache", TextKind(), "Folder of indexes and unpacked files; relative to this file."
        ),
    ),
    ("sources",),
    bringing="include",
)


def build_schema() -> Schema:
    """Return the JSON Schema (draft 2020-12) of mixture files, for editors.

    >>> build_schema()["$schema"]
    'https://json-schema.org/draft/2020-12/schema'
    """
    settings = (
        SHUFFLE_SECTION,
        CONDITION_SECTION,
        SPLIT_SECTION,
        SOURCE_SPLIT_SECTION,
        TOKENIZE_SECTION,
        CHAT_SECTION,
        CHAT_FIELDS_SECTION,
        LENGTH_SECTION,
        GLOBAL_BATCH_SECTION,
        PACK_SECTION,
        BATCH,
        SCHEDULE_SECTION,
        STAGE_SECTION,
        UNTIL_SECTION,
        HORIZON_SECTION,
        PARTS_MIX_SECTION,
    )
    sections = (NESTED_MIXTURE_SECTION, SOURCE_SECTION, *settings)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Penstock mixture",
        **MIXTURE.full_schema(),
        "$defs": {section.name: section.full_schema() for section in sections},
    }
