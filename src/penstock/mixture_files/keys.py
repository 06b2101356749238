"""The one table of what a mixture file may say. Reading, refusing and the JSON Schema all come from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..mixing import STOPS
from ..pack import METHODS
from ..schedule import INTERPOLATIONS, UNITS
from ..sources.paths import FORMATS
from .kinds import Flag, Items, Key, Kind, Number, Plain, Raw, Schema, Section, Table, Text
from .reading import Node, Notes

COUNT = Number(whole=True, least=0)
SIZE = Number(whole=True, least=1)


@dataclass(frozen=True)
class Either:
    """One kind for single values, a table of another for names with values."""

    single: Kind
    each: Kind

    def read(self, node: Node, at: str, notes: Notes, /) -> Any:
        return (Table(self.each) if isinstance(node.value, dict) else self.single).read(node, at, notes)

    def schema(self) -> Schema:
        return {"anyOf": [self.single.schema(), Table(self.each).schema()]}


@dataclass(frozen=True)
class Token:
    """A token: its number, or its text, which the tokenizer knows."""

    def read(self, node: Node, at: str, notes: Notes, /) -> Any:
        return (Text() if isinstance(node.value, str) else COUNT).read(node, at, notes)

    def schema(self) -> Schema:
        return {"type": ["integer", "string"]}


SHUFFLE = Section(
    "shuffle",
    "The order of the rows of a source: full, none, or the settings of a shuffle.",
    (
        Key("rows", SIZE, "Shuffle blocks of so many neighbouring rows (with window), for slow disks."),
        Key("window", SIZE, "Then shuffle the rows within windows of so many blocks."),
        Key("seed", Number(whole=True), "A seed of its own; without it, the one of the mixture."),
    ),
    short=Text(("full", "none")),
)
CONDITION = Section(
    "condition",
    "What a column must hold: a value, one of a list of values, or a range. A null fits only null and not.",
    (
        Key("min", Plain(), "At least this."),
        Key("max", Plain(), "At most this."),
        Key("above", Plain(), "More than this."),
        Key("below", Plain(), "Less than this."),
        Key("not", Items(Plain(), one=True), "Not this value, or none of these."),
    ),
    short=Items(Plain(), one=True),
)
TOKENISE = Section(
    "tokenise",
    "Make arrays of token ids of a text field.",
    (
        Key("tokenizer", Text(), "A tokenizer.json, a folder, or a name on the Hugging Face hub."),
        Key("field", Text(), "The field that holds the text (default: text)."),
        Key("special_tokens", Flag(), "Let the tokenizer add its special tokens (default: false)."),
    ),
    needed=("tokenizer",),
)
PACK = Section(
    "pack",
    "Rows of exactly `length` tokens; the options of Dataset.pack.",
    (
        Key("length", SIZE, "Tokens in a row."),
        Key("method", Text(METHODS), "concat_split cuts documents where a row ends; the others keep them whole."),
        Key("long", Text(("split", "refuse", "cut")), "What happens to documents longer than a row."),
        Key("max_segments", SIZE, "At most so many documents in a row."),
        Key("features", Items(Text()), "The features to pack; the first one counts the tokens."),
        Key("unpacked", Items(Text()), "Features that come in a list, one entry for each document."),
        Key("pad", Either(Number(), Number()), "What fills a row: one value, or one for each feature."),
        Key("bos", Either(Token(), Token()), "A token before every document: its number or its text."),
        Key("eos", Either(Token(), Token()), "A token behind every document: its number or its text."),
        Key("dtype", Either(Text(), Text()), "The type of the arrays: one, or one for each feature."),
        Key("open_rows", SIZE, "Rows that are open at a time (first_fit, best_fit)."),
        Key("window", SIZE, "Documents that are looked at together (best_fit)."),
    ),
    needed=("length",),
)
BATCH = Section(
    "batch",
    "Groups of `size` neighbours.",
    (
        Key("size", SIZE, "Samples in a batch."),
        Key("drop_remainder", Flag(), "Drop the last batch of a pass where it is short (default: false)."),
        Key("collate", Text(("stack", "list")), "Stack the samples (default), or give them as a list."),
        Key("ranks", SIZE, "How many ranks take a batch each in one training step (default: 1). Only counts steps."),
    ),
    needed=("size",),
)
SCHEDULE = Section(
    "schedule",
    "Weights that change over the run.",
    (
        Key("unit", Text(UNITS), "What points, start and stop count (default: samples)."),
        Key("interpolation", Text(INTERPOLATIONS), "What holds between two points (default: step)."),
        Key("points", Table(Table(Number(least=0)), r"^[0-9][0-9_]*([eE][0-9]+)?$"), "Place in the run: weights."),
    ),
)
HORIZON = Section(
    "horizon",
    "How long the run is meant to be, in one of these units.",
    tuple(Key(unit, SIZE, f"The run takes so many {unit}.") for unit in UNITS),
)
SOURCE = Section(
    "source",
    "One source of the mixture: files, or a mixture of its own.",
    (
        Key("path", Items(Text(), one=True), "Files, folders, globs, brace ranges; relative to this file."),
        Key("format", Text(tuple(sorted(set(FORMATS.values())))), "What the files are; else their names tell."),
        Key("columns", Items(Text()), "Read only these columns."),
        Key(
            "lengths", Text(), "The column of token lists that tells how long a sample is, so that packing is planned."
        ),
        Key("split", Text(), "The split of a folder that Energon prepared (default: train)."),
        Key("where", Table(CONDITION), "Only rows whose columns hold these values."),
        Key("slice", Items(Number(whole=True, null=True), most=3), "Only the rows [start, stop, step], as in Python."),
        Key("shuffle", SHUFFLE, "The order of its rows; without it, as the mixture says."),
        Key("tokenise", TOKENISE, "How its text becomes tokens; without it, as the mixture says."),
        Key("label", Text(), "What the files are called where randomness is keyed; without it, the source's name."),
        Key("mixture", Raw("mixture"), "Instead of path: a mixture file, or the settings of a mixture."),
        Key("weight", Number(least=0), "Its share, relative to the others."),
        Key("tokens", Number(above=0), "Its share, as the tokens to draw from it over the run."),
        Key("epochs", Number(above=0), "Its share, as the passes over it to draw over the run."),
        Key("max_epochs", Number(above=0), "At most so many passes over it; then the others share its weight."),
        Key("start", COUNT, "It has no weight before this place in the run (in the unit of the schedule)."),
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
    Key("schedule", SCHEDULE, "Weights that change over the run."),
    Key("shuffle", SHUFFLE, "For the sources that do not say their own (default: full)."),
    Key("tokenise", TOKENISE, "For the sources that do not say their own."),
)
NESTED = Section("mixture", "A mixture inside another one; what it does not say is as outside.", _INNER, ("sources",))
MIXTURE = Section(
    "file",
    "A mixture: which data a training sees, in which shares, and in what form.",
    (
        *_INNER,
        Key("include", Items(Text(), one=True), "Files whose settings and sources are taken in; what is here wins."),
        Key("horizon", HORIZON, "How long the run is meant to be."),
        Key("pack", PACK, "Rows of equal length."),
        Key("batch", BATCH, "Batches."),
        Key("cache", Text(), "Where indexes and unpacked files are kept; relative to this file."),
    ),
    ("sources",),
)


def schema() -> Schema:
    """The JSON Schema (draft 2020-12) of mixture files, for editors.

    >>> schema()["$schema"]
    'https://json-schema.org/draft/2020-12/schema'
    """
    sections = (NESTED, SOURCE, SHUFFLE, CONDITION, TOKENISE, PACK, BATCH, SCHEDULE, HORIZON)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Penstock mixture",
        **MIXTURE.full_schema(),
        "$defs": {section.name: section.full_schema() for section in sections},
    }
