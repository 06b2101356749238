"""The one table of what a mixture file may say. Reading, refusing and the JSON Schema all come from
it."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from ..engine.base.ints import FAR
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
    BAD,
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
    shown,
)
from .model import PARTS, Place
from .reading import Node, Notes

COUNT = Number(whole=True, least=0, most=FAR)
SIZE = Number(whole=True, least=1, most=FAR)
_ROW = Number(whole=True, least=-FAR, most=FAR, null=True)
_ROWS = Number(whole=True, least=1, most=BATCH_SIZE)
_RANKS = Number(whole=True, least=1, most=RANKS)


@dataclass(frozen=True)
class Either:
    """One kind for single values, a table of another for names with values."""

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
    """A token: its number, its text, which the tokenizer knows, or `true` for the tokenizer's
    own."""

    def read(self, node: Node, at: str, notes: Notes, /) -> Any:
        if node.value is True:
            return True
        return (Text() if isinstance(node.value, str) else COUNT).read(node, at, notes)

    def schema(self) -> Schema:
        return {"anyOf": [{"type": ["integer", "string"]}, {"const": True}]}


@dataclass(frozen=True)
class Bound:
    """A row where a slice begins or ends, counted as in Python, or `80%` of the rows."""

    def read(self, node: Node, at: str, notes: Notes, /) -> Any:
        percent = isinstance(node.value, str) and re.fullmatch(
            r"[0-9]+([.][0-9]*)? *%", node.value[: NUMBER + 1]
        )
        if not percent or not isinstance(node.value, str):
            return _ROW.read(node, at, notes)
        if Fraction(node.value.rstrip(" %")) <= 100:
            return node.value
        notes.error(node, at, f"at most 100%, not {shown(node)}")
        return BAD

    def schema(self) -> Schema:
        percent = {"type": "string", "pattern": r"^[0-9]+([.][0-9]*)? *%$|\$\{"}
        return {"anyOf": [_ROW.schema(), percent]}


@dataclass(frozen=True)
class Percent:
    """A share, `0.5%` or 0.005, or a whole number of rows; as it is written."""

    def read(self, node: Node, at: str, notes: Notes, /) -> Any:
        if isinstance(node.value, int) and not isinstance(node.value, bool):
            return SIZE.read(node, at, notes)
        try:
            fraction_of(node.value[: NUMBER + 1] if isinstance(node.value, str) else node.value, at)
        except ConfigError:
            notes.error(node, at, f"a share such as 0.5%, or a number of rows, not {shown(node)}")
            return BAD
        return node.value

    def schema(self) -> Schema:
        number = {"type": "number", "exclusiveMinimum": 0}
        return {
            "anyOf": [number, {"type": "string", "pattern": r"^[0-9][0-9_]*([.][0-9]*)? *%?$|\$\{"}]
        }


SHUFFLE = Section(
    "shuffle",
    "The order of the rows of a source: full, none, or the settings of a shuffle.",
    (
        Key(
            "rows",
            SIZE,
            "Shuffle blocks of so many neighbouring rows (with window), for slow disks.",
        ),
        Key("window", SIZE, "Then shuffle the rows within windows of so many blocks."),
        Key(
            "buckets",
            SIZE,
            "Deal rows into buckets of so many, and shuffle those: for packing very many "
            "documents.",
        ),
        Key("seed", Number(whole=True), "A seed of its own; without it, the one of the mixture."),
    ),
    short=Text(("full", "none")),
)
CONDITION = Section(
    "condition",
    "What a column must hold: a value, one of a list of values, or a range. A null fits only null "
    "and not.",
    (
        Key("min", Plain(), "At least this."),
        Key("max", Plain(), "At most this."),
        Key("above", Plain(), "More than this."),
        Key("below", Plain(), "Less than this."),
        Key("not", Items(Plain(), one=True), "Not this value, or none of these."),
        Key(
            "hash",
            Items(Number(least=0, most=1), most=2),
            "Only values whose hash, from 0 to 1, is in [low, high).",
        ),
    ),
    short=Items(Plain(), one=True),
)
SPLIT = Section(
    "split",
    "What is held out of a source, so that training and evaluation never meet; or the split of a "
    "prepared folder.",
    (
        Key("held_out", Percent(), "The share that is held out, or so many rows."),
        Key("by", Text(SPLITS), "A hash of where rows lie (default), or position: the last ones."),
        Key(
            "column",
            Text(),
            "A hash of what this column holds decides: equal values go to one side.",
        ),
        Key("seed", Number(whole=True), "Another one holds out other rows (default: 0)."),
        Key("part", Text(PARTS), "Which of both is read (default: train)."),
    ),
    needed=("held_out",),
)
SOURCE_SPLIT = replace(SPLIT, name="source_split", short=Text())
TOKENISE = Section(
    "tokenise",
    "Make arrays of token ids of a text field.",
    (
        Key("tokenizer", Text(), "A tokenizer.json, a folder, or a name on the Hugging Face hub."),
        Key("field", Text(), "The field that holds the text (default: text)."),
        Key("special_tokens", Flag(), "Let the tokenizer add its special tokens (default: false)."),
        Key(
            "counted",
            Flag(),
            "Count the tokens of every row once: rows are packed by plan, weights are exact.",
        ),
    ),
    needed=("tokenizer",),
)
PACK = Section(
    "pack",
    "Rows of exactly `length` tokens; the options of Dataset.pack.",
    (
        Key("length", SIZE, "Tokens in a row."),
        Key(
            "method",
            Text(METHODS),
            "concat_split cuts documents where a row ends; the others keep them whole.",
        ),
        Key(
            "long",
            Text(("split", "refuse", "truncate")),
            "What happens to documents longer than a row.",
        ),
        Key("max_segments", SIZE, "At most so many documents in a row."),
        Key("features", Items(Text()), "The features to pack; the first one counts the tokens."),
        Key(
            "unpacked", Items(Text()), "Features that come in a list, one entry for each document."
        ),
        Key(
            "pad",
            Either(Number(), Number()),
            "What fills a row: one value, or one for each feature.",
        ),
        Key(
            "bos",
            Either(Token(), Token()),
            "A token before every document: its number, its text, or true: the tokenizer's.",
        ),
        Key(
            "eos",
            Either(Token(), Token()),
            "A token behind every document: its number, its text, or true: the tokenizer's.",
        ),
        Key(
            "dtype", Either(Text(), Text()), "The type of the arrays: one, or one for each feature."
        ),
        Key("open_rows", SIZE, "Rows that are open at a time (first_fit, best_fit)."),
        Key("window", SIZE, "Documents that are looked at together (best_fit)."),
        Key(
            "overflow",
            Text(OVERFLOWS),
            "Whether a document that fits into no row is split (best_fit, known lengths).",
        ),
        Key("rows", SIZE, "Rows that are packed together where overflow is split."),
        Key(
            "pad_to_multiple",
            SIZE,
            "What a row has of each document is filled up to a multiple of this.",
        ),
        Key(
            "group_by",
            Text(),
            "Documents with different values of this key share no row; __source__: their source.",
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
            "Samples in a batch of one rank; needed where there is no global_batch_size.",
        ),
        Key(
            "drop_remainder",
            Flag(),
            "Drop the last batch of a pass where it is short (default: false).",
        ),
        Key(
            "collate",
            Text(("stack", "list")),
            "Stack the samples (default), or give them as a list.",
        ),
        Key(
            "ranks",
            _RANKS,
            "How many ranks take a batch each in one training step (default: 1). Only counts "
            "steps.",
        ),
    ),
)
SCHEDULE = Section(
    "schedule",
    "Weights that change over the run.",
    (
        Key("unit", Text(UNITS), "What points, start and stop count (default: samples)."),
        Key(
            "interpolation",
            Items(Text(INTERPOLATIONS), one=True),
            "What holds between two points (default: step); a list has one for each two "
            "neighbours.",
        ),
        Key(
            "points",
            Table(Table(Number(least=0)), r"^[0-9][0-9_]*([eE][0-9]+)?$"),
            "Place in the run: weights.",
        ),
    ),
)


@dataclass(frozen=True)
class Where:
    """A place in the run: `40%` of the horizon, or a number of steps, tokens or samples by name."""

    def read(self, node: Node, at: str, notes: Notes, /) -> Any:
        if isinstance(node.value, dict):
            given = UNTIL.read(node, at, notes)
            if len(given) == 1:
                return Place(*next(iter(given.items())))
        elif isinstance(node.value, str) and re.fullmatch(r"[0-9]+([.][0-9]*)? *%", node.value):
            if 0 < (percent := float(node.value.rstrip(" %"))) <= 100:
                return Place("percent", percent)
        notes.error(
            node, at, f"a place such as 40%, {{steps: 1000}} or {{tokens: 2T}}, not {shown(node)}"
        )
        return BAD

    def schema(self) -> Schema:
        return {
            "anyOf": [
                {"type": "string", "pattern": r"^[0-9]+([.][0-9]*)? *%$|\$\{"},
                UNTIL.schema(),
            ]
        }


UNTIL = Section(
    "until",
    "A place in the run, in one of these units.",
    tuple(Key(unit, SIZE, f"After so many {unit}.") for unit in UNITS),
)
STAGE = Section(
    "stage",
    "A part of the run with weights of its own; what it does not name is as in the stage before.",
    (
        Key("name", Text(), "What people call it."),
        Key(
            "until",
            Where(),
            "Where it ends: a percentage of the horizon, or a number of steps, tokens or samples.",
        ),
        Key(
            "weights", Table(Number(least=0)), "Weights of groups and of sources; 0 takes one out."
        ),
        Key(
            "interpolation",
            Text(INTERPOLATIONS),
            "step: it has its weights from its beginning on (default); linear, cosine: it reaches "
            "them at its end.",
        ),
    ),
)
HORIZON = Section(
    "horizon",
    "How long the run is, in one of these units: there the plan, the run and the loader end.",
    (
        *(Key(unit, SIZE, f"The run takes so many {unit}.") for unit in UNITS),
        Key(
            "epochs",
            Number(above=0),
            "The run takes as many samples as so many passes over all sources.",
        ),
    ),
)
SOURCE = Section(
    "source",
    "One source of the mixture: files, or a mixture of its own.",
    (
        Key(
            "path",
            Items(Text(), one=True),
            "Files, folders, globs, brace ranges; relative to this file.",
        ),
        Key("format", Text(KINDS), "What the files are; else their names tell."),
        Key("columns", Items(Text()), "Read only these columns."),
        Key(
            "lengths",
            Text(),
            "The column of token lists that tells how long a sample is, so that packing is "
            "planned.",
        ),
        Key(
            "dtype",
            Text(TOKEN_TYPES),
            "What the ids of a token store are kept as, where its files do not tell.",
        ),
        Key(
            "eos",
            COUNT,
            "The id that ends a document of a token store, where no file beside it tells.",
        ),
        Key("split", SOURCE_SPLIT, "What is held out of it; else as the mixture says."),
        Key("where", Table(CONDITION), "Only rows whose columns hold these values."),
        Key(
            "slice",
            Items(Bound(), most=3),
            "Only the rows [start, stop, step], as in Python; bounds in percent too.",
        ),
        Key("shuffle", SHUFFLE, "The order of its rows; without it, as the mixture says."),
        Key("tokenise", TOKENISE, "How its text becomes tokens; without it, as the mixture says."),
        Key(
            "label",
            Text(),
            "What the files are called where randomness is keyed; without it, the source's name.",
        ),
        Key(
            "mixture",
            Raw("mixture"),
            "Instead of path: a mixture file, or the settings of a mixture.",
        ),
        Key(
            "group",
            Text(),
            "The group whose weight it shares; its own is relative to the others of that.",
        ),
        Key("weight", Number(least=0), "Its share, relative to the others."),
        Key("tokens", Number(above=0), "Its share, as the tokens to draw from it over the run."),
        Key("epochs", Number(above=0), "Its share, as the passes over it to draw over the run."),
        Key(
            "max_epochs",
            Number(above=0),
            "At most so many passes over it; then the others share its weight.",
        ),
        Key(
            "start",
            COUNT,
            "It has no weight before this place in the run (in the unit of the schedule).",
        ),
        Key("stop", COUNT, "It has no weight from this place in the run on."),
    ),
)
_INNER = (
    Key("sources", Table(Raw("source")), "The sources by name."),
    Key("seed", Number(whole=True), "The seed of all that is random (default: 0)."),
    Key(
        "block_size",
        SIZE,
        "Samples that are permuted once more: counts are exact between blocks only (default: 1).",
    ),
    Key("stop", Text(STOPS), "When a pass ends (default: restart, which is never)."),
    Key("unit", Text(("samples", "tokens")), "What weights are shares of (default: samples)."),
    Key("temperature", Number(above=0), "Weights from the sizes: rows ** (1 / temperature)."),
    Key("max_epochs", Number(above=0), "For the sources that do not say their own."),
    Key("groups", Table(Number(least=0)), "Weights of groups of sources, relative to each other."),
    Key(
        "group_max_epochs",
        Table(Number(above=0)),
        "At most so many passes over each source of these groups that does not say its own.",
    ),
    Key("schedule", SCHEDULE, "Weights that change over the run."),
    Key("shuffle", SHUFFLE, "For the sources that do not say their own (default: full)."),
    Key("tokenise", TOKENISE, "For the sources that do not say their own."),
    Key("split", SPLIT, "What is held out of the sources that do not say their own."),
)
NESTED = Section(
    "mixture",
    "A mixture inside another one; what it does not say is as outside.",
    _INNER,
    ("sources",),
)
MIXTURE = Section(
    "file",
    "A mixture: which data a training sees, in which shares, and in what form.",
    (
        *_INNER,
        Key(
            "include",
            Items(Text(), one=True),
            "Files whose settings and sources are taken in; what is here wins.",
        ),
        Key("stages", Items(STAGE), "Weights by parts of the run, one after the other."),
        Key("horizon", HORIZON, "How long the run is."),
        Key("pack", PACK, "Rows of equal length."),
        Key(
            "global_batch_size",
            _ROWS,
            "Samples, or packed rows, that all ranks take together in a training step, on any "
            "number of ranks.",
        ),
        Key("batch", BATCH, "Batches."),
        Key(
            "exclude",
            Text(),
            "A file of samples to leave out, [source, index] in each line; relative to this file.",
        ),
        Key("cache", Text(), "Where indexes and unpacked files are kept; relative to this file."),
    ),
    ("sources",),
    bringing="include",
)


def schema() -> Schema:
    """The JSON Schema (draft 2020-12) of mixture files, for editors.

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
