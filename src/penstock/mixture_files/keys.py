"""Declarations of all keys of a mixture file.

The reader, its errors and the JSON Schema derive from this table.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from ..engine.base.integers import MAX_POSITION
from ..engine.base.limits import BATCH as BATCH_SIZE
from ..engine.base.limits import NUMBER, RANKS
from ..engine.graph.halves import SPLITS
from ..engine.mixing import STOPS
from ..engine.orders import fraction_of
from ..engine.packing import METHODS, OVERFLOWS
from ..errors import ConfigError
from ..schedule import INTERPOLATIONS, UNITS
from ..sources.paths import KINDS, TOKEN_TYPES
from .kinds import (
    INVALID,
    Flag,
    Items,
    Key,
    Kind,
    Number,
    Plain,
    Raw,
    Schema,
    Section,
    Table,
    Text,
    format_node,
)
from .model import PARTS, RunPosition
from .reading import Node, Notes

COUNT = Number(integer=True, least=0, most=MAX_POSITION)
SIZE = Number(integer=True, least=1, most=MAX_POSITION)
_ROW = Number(integer=True, least=-MAX_POSITION, most=MAX_POSITION, null=True)
_ROWS = Number(integer=True, least=1, most=BATCH_SIZE)
_RANKS = Number(integer=True, least=1, most=RANKS)


@dataclass(frozen=True)
class Either:
    """A single value of one kind, or a table of values by name."""

    single: Kind
    each: Kind

    def read(self, node: Node, at: str, notes: Notes, /) -> Any:
        return (Table(self.each) if isinstance(node.value, dict) else self.single).read(
            node, at, notes
        )

    def schema(self) -> Schema:
        return {"anyOf": [self.single.schema(), Table(self.each).schema()]}


@dataclass(frozen=True)
class Token:
    """A token: its id, its text (looked up in the tokenizer), or `true` (the tokenizer's own)."""

    def read(self, node: Node, at: str, notes: Notes, /) -> Any:
        if node.value is True:
            return True
        return (Text() if isinstance(node.value, str) else COUNT).read(node, at, notes)

    def schema(self) -> Schema:
        return {"anyOf": [{"type": ["integer", "string"]}, {"const": True}]}


@dataclass(frozen=True)
class Bound:
    """The bound of a slice: a row number as in Python, or a percentage such as `80%`."""

    def read(self, node: Node, at: str, notes: Notes, /) -> Any:
        percent = isinstance(node.value, str) and re.fullmatch(
            r"[0-9]+([.][0-9]*)? *%", node.value[: NUMBER + 1]
        )
        if not percent or not isinstance(node.value, str):
            return _ROW.read(node, at, notes)
        if Fraction(node.value.rstrip(" %")) <= 100:
            return node.value
        notes.error(node, at, f"expected at most 100%, not {format_node(node)}")
        return INVALID

    def schema(self) -> Schema:
        percent = {"type": "string", "pattern": r"^[0-9]+([.][0-9]*)? *%$|\$\{"}
        return {"anyOf": [_ROW.schema(), percent]}


@dataclass(frozen=True)
class Percent:
    """A share (`0.5%` or 0.005) or a number of rows, kept as written."""

    def read(self, node: Node, at: str, notes: Notes, /) -> Any:
        if isinstance(node.value, int) and not isinstance(node.value, bool):
            return SIZE.read(node, at, notes)
        try:
            fraction_of(node.value[: NUMBER + 1] if isinstance(node.value, str) else node.value, at)
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


SHUFFLE = Section(
    "shuffle",
    "Order of the rows of a source: full, none, or the settings of a shuffle.",
    (
        Key(
            "rows",
            SIZE,
            "Rows per block of a block shuffle, for slow disks; needs window.",
        ),
        Key("window", SIZE, "Blocks per window; rows are shuffled within a window."),
        Key(
            "buckets",
            SIZE,
            "Rows per bucket of a bucket shuffle, for packing very many documents.",
        ),
        Key(
            "seed", Number(integer=True), "Seed of this shuffle; default: the seed of the mixture."
        ),
    ),
    short=Text(("full", "none")),
)
CONDITION = Section(
    "condition",
    "Allowed values of a column: a value, a list of values, or a range. A null matches only null "
    "and not.",
    (
        Key("min", Plain(), "Smallest allowed value."),
        Key("max", Plain(), "Largest allowed value."),
        Key("above", Plain(), "Exclusive lower bound."),
        Key("below", Plain(), "Exclusive upper bound."),
        Key("not", Items(Plain(), one=True), "Excluded value or values."),
        Key(
            "hash",
            Items(Number(least=0, most=1), most=2),
            "Allowed range [low, high) of the hash of the value, which is between 0 and 1.",
        ),
    ),
    short=Items(Plain(), one=True),
)
SPLIT = Section(
    "split",
    "Rows of a source that are held out for evaluation; or the name of a split of a prepared "
    "folder.",
    (
        Key("held_out", Percent(), "Share or number of rows to hold out."),
        Key("by", Text(SPLITS), "hash of file and row (default), or position: the last rows."),
        Key(
            "column",
            Text(),
            "Column whose hashed values decide; equal values go to one side.",
        ),
        Key("seed", Number(integer=True), "Seed of the choice of rows (default: 0)."),
        Key("part", Text(PARTS), "Part to read (default: train)."),
    ),
    needed=("held_out",),
)
SOURCE_SPLIT = replace(SPLIT, name="source_split", short=Text())
TOKENISE = Section(
    "tokenise",
    "Tokenise a text field into arrays of token ids.",
    (
        Key("tokenizer", Text(), "A tokenizer.json, a folder, or a name on the Hugging Face hub."),
        Key("field", Text(), "Field with the text (default: text)."),
        Key("special_tokens", Flag(), "Add the special tokens of the tokenizer (default: false)."),
        Key(
            "counted",
            Flag(),
            "Count the tokens of every row once, so that packing is planned and weights are exact.",
        ),
    ),
    needed=("tokenizer",),
)
PACK = Section(
    "pack",
    "Rows of exactly `length` tokens; the options of Dataset.pack.",
    (
        Key("length", SIZE, "Tokens per row."),
        Key(
            "method",
            Text(METHODS),
            "concat_split cuts documents at row ends; the other methods keep them whole.",
        ),
        Key(
            "long", Text(("split", "refuse", "truncate")), "Policy for documents longer than a row."
        ),
        Key("max_segments", SIZE, "Maximum number of documents per row."),
        Key("features", Items(Text()), "Features to pack; the first one counts the tokens."),
        Key("unpacked", Items(Text()), "Features returned as a list, one entry per document."),
        Key(
            "pad",
            Either(Number(), Number()),
            "Padding value: one, or one per feature.",
        ),
        Key(
            "bos",
            Either(Token(), Token()),
            "Token before every document: its id, its text, or true for the tokenizer's own.",
        ),
        Key(
            "eos",
            Either(Token(), Token()),
            "Token after every document: its id, its text, or true for the tokenizer's own.",
        ),
        Key("dtype", Either(Text(), Text()), "Type of the arrays: one, or one per feature."),
        Key("open_rows", SIZE, "Number of open rows (first_fit, best_fit)."),
        Key("window", SIZE, "Documents sorted together (best_fit)."),
        Key(
            "overflow",
            Text(OVERFLOWS),
            "Policy for documents that fit into no open row (best_fit, known lengths).",
        ),
        Key("rows", SIZE, "Rows packed together, if overflow is split."),
        Key(
            "pad_to_multiple",
            SIZE,
            "Pad each document in a row to a multiple of this length.",
        ),
        Key(
            "group_by",
            Text(),
            "Pack only documents with equal values of this key together; __source__: the source.",
        ),
    ),
    needed=("length",),
)
BATCH = Section(
    "batch",
    "Groups of `size` neighbours.",
    (
        Key(
            "size",
            _ROWS,
            "Samples per batch of one rank; required without global_batch_size.",
        ),
        Key(
            "drop_remainder",
            Flag(),
            "Drop a short last batch of a pass (default: false).",
        ),
        Key(
            "collate",
            Text(("stack", "list")),
            "stack the samples (default), or return a list.",
        ),
        Key(
            "ranks",
            _RANKS,
            "Data-parallel ranks, each taking a batch per step (default: 1); used to count steps.",
        ),
    ),
)
SCHEDULE = Section(
    "schedule",
    "Weights that change over the run.",
    (
        Key("unit", Text(UNITS), "Unit of points, start and stop (default: samples)."),
        Key(
            "interpolation",
            Items(Text(INTERPOLATIONS), one=True),
            "Interpolation between points (default: step); a list has one entry per interval.",
        ),
        Key(
            "points",
            Table(Table(Number(least=0)), r"^[0-9][0-9_]*([eE][0-9]+)?$"),
            "Position in the run: weights.",
        ),
    ),
)


@dataclass(frozen=True)
class Position:
    """A position in the run: `40%` of the horizon, or `{steps: 1000}` in another unit."""

    def read(self, node: Node, at: str, notes: Notes, /) -> Any:
        if isinstance(node.value, dict):
            position = UNTIL.read(node, at, notes)
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
                UNTIL.schema(),
            ]
        }


UNTIL = Section(
    "until",
    "Position in the run, in one of these units.",
    tuple(Key(unit, SIZE, f"Number of {unit}.") for unit in UNITS),
)
STAGE = Section(
    "stage",
    "A part of the run with its own weights; unnamed weights carry over from the previous stage.",
    (
        Key("name", Text(), "Name, for reports."),
        Key(
            "until",
            Position(),
            "End of the stage: a percentage of the horizon, or a number of steps, tokens or samples.",
        ),
        Key("weights", Table(Number(least=0)), "Weights of groups and sources; 0 removes one."),
        Key(
            "interpolation",
            Text(INTERPOLATIONS),
            "step: weights apply from the beginning (default); linear, cosine: they are reached at "
            "the end.",
        ),
    ),
)
HORIZON = Section(
    "horizon",
    "Length of the run, in one of these units; plan, run and loader end there.",
    (
        *(Key(unit, SIZE, f"Number of {unit} of the run.") for unit in UNITS),
        Key(
            "epochs",
            Number(above=0),
            "Number of passes over all sources.",
        ),
    ),
)
SOURCE = Section(
    "source",
    "One source of the mixture: files, or a nested mixture.",
    (
        Key(
            "path",
            Items(Text(), one=True),
            "Files, folders, globs, brace ranges; relative to this file.",
        ),
        Key("format", Text(KINDS), "Format of the files; default: detected from their names."),
        Key("columns", Items(Text()), "Columns to read."),
        Key(
            "lengths",
            Text(),
            "Column of token lists that defines the length of a sample, so that packing is planned.",
        ),
        Key(
            "dtype",
            Text(TOKEN_TYPES),
            "Type of the ids of a token store, if its files do not declare it.",
        ),
        Key(
            "eos",
            COUNT,
            "Id that ends a document of a token store, if no index file declares documents.",
        ),
        Key("split", SOURCE_SPLIT, "Held-out rows; default: as in the mixture."),
        Key("where", Table(CONDITION), "Filter: rows whose columns hold these values."),
        Key(
            "slice",
            Items(Bound(), most=3),
            "Rows [start, stop, step] as in Python; bounds may be percentages.",
        ),
        Key("shuffle", SHUFFLE, "Order of the rows; default: as in the mixture."),
        Key("tokenise", TOKENISE, "Tokenisation; default: as in the mixture."),
        Key(
            "label",
            Text(),
            "Name of the files in random keys; default: the name of the source.",
        ),
        Key(
            "mixture",
            Raw("mixture"),
            "Nested mixture in place of path: a mixture file, or its settings.",
        ),
        Key(
            "group",
            Text(),
            "Group whose weight the source shares; weight is then relative within the group.",
        ),
        Key("weight", Number(least=0), "Share, relative to the other sources."),
        Key("tokens", Number(above=0), "Share, as the tokens to draw over the run."),
        Key("epochs", Number(above=0), "Share, as the passes to draw over the run."),
        Key(
            "max_epochs",
            Number(above=0),
            "Maximum number of passes; then the other sources share its weight.",
        ),
        Key(
            "start",
            COUNT,
            "Position in the run at which the source begins, in the unit of the schedule.",
        ),
        Key("stop", COUNT, "Position in the run at which the source ends."),
    ),
)
_INNER = (
    Key("sources", Table(Raw("source")), "Sources by name."),
    Key("seed", Number(integer=True), "Seed of all random choices (default: 0)."),
    Key(
        "block_size",
        SIZE,
        "Samples per shuffled block; counts are exact at block boundaries (default: 1).",
    ),
    Key("stop", Text(STOPS), "End of a pass (default: restart, an endless pass)."),
    Key("unit", Text(("samples", "tokens")), "Unit of the weights (default: samples)."),
    Key("temperature", Number(above=0), "Derive weights from sizes: rows ** (1 / temperature)."),
    Key("max_epochs", Number(above=0), "Maximum passes of sources without max_epochs."),
    Key("groups", Table(Number(least=0)), "Weights of groups of sources, relative to each other."),
    Key(
        "group_max_epochs",
        Table(Number(above=0)),
        "Maximum passes of sources in these groups, if they have no max_epochs.",
    ),
    Key("schedule", SCHEDULE, "Weights that change over the run."),
    Key("shuffle", SHUFFLE, "Default for sources without shuffle (default: full)."),
    Key("tokenise", TOKENISE, "Default for sources without tokenise."),
    Key("split", SPLIT, "Default for sources without split."),
)
NESTED = Section(
    "mixture",
    "A nested mixture; missing settings come from the outer mixture.",
    _INNER,
    ("sources",),
)
MIXTURE = Section(
    "file",
    "A mixture: the data of a training run, its shares and its form.",
    (
        *_INNER,
        Key(
            "include",
            Items(Text(), one=True),
            "Files whose settings and sources are included; settings of this file win.",
        ),
        Key("stages", Items(STAGE), "Weights by consecutive parts of the run."),
        Key("horizon", HORIZON, "Length of the run."),
        Key("pack", PACK, "Rows of equal length."),
        Key(
            "global_batch_size",
            _ROWS,
            "Samples or packed rows per training step of all ranks together, for any world size.",
        ),
        Key("batch", BATCH, "Batches."),
        Key(
            "exclude",
            Text(),
            "File of samples to exclude, one [source, index] per line; relative to this file.",
        ),
        Key("cache", Text(), "Folder of indexes and unpacked files; relative to this file."),
    ),
    ("sources",),
    bringing="include",
)


def schema() -> Schema:
    """Return the JSON Schema (draft 2020-12) of mixture files, for editors.

    >>> schema()["$schema"]
    'https://json-schema.org/draft/2020-12/schema'
    """
    settings = (
        SHUFFLE,
        CONDITION,
        SPLIT,
        SOURCE_SPLIT,
        TOKENISE,
        PACK,
        BATCH,
        SCHEDULE,
        STAGE,
        UNTIL,
        HORIZON,
    )
    sections = (NESTED, SOURCE, *settings)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Penstock mixture",
        **MIXTURE.full_schema(),
        "$defs": {section.name: section.full_schema() for section in sections},
    }
