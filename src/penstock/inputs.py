"""Constructors of datasets: sequences, streams, files, token stores, and mixtures of datasets."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from fractions import Fraction
from math import inf
from numbers import Number
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import numpy.typing as npt

from .arguments import (
    check_choice,
    check_int,
    join_first,
    make_not_dataset_error,
    require_protocol,
    suggest_names,
    validate_arguments,
)
from .arrays.dtypes import TOKEN_DTYPE
from .dataset import Dataset, require_datasets
from .engine.base.random import derive_key
from .engine.mixing import Stop
from .engine.mixing.rules import By, Weighted
from .engine.orders import Portion, parse_fraction
from .engine.packing import DType, Packing, check_dtype
from .engine.steps.compiled import Compiled
from .engine.steps.mean_lengths import weigh_tokens
from .engine.steps.mix import Mix, find_mixtures
from .engine.steps.one_source import with_global_step
from .engine.steps.read import Read, single_source
from .engine.steps.reorder import Reorder
from .engine.steps.step import Step
from .engine.steps.token_dtypes import require_ids_fit
from .errors import ConfigError
from .replacements import SHARE_OF, Replacements, ShareOf
from .schedule import (
    COUNTED_UNITS,
    CountedUnit,
    Schedule,
    convert_to_json_number,
    sort_by_name,
)
from .sources import JoinedFiles, TokenCounter, hub, open_files, require_columnar
from .sources.arrow_table import (
    ArrowStream,
    ArrowTable,
    HubTable,
    is_arrow,
    is_table,
    open_table,
)
from .sources.memory import Iterable as Stream
from .sources.memory import Memory, Tokens
from .sources.paths import FormatName, TokenType
from .sources.stateful import ReadStateful, StatefulIterable
from .sources.tokens import Windows
from .types import Mixing, Shards, Sizer, Source


@validate_arguments
def from_sequence(seq: Any, name: str | None = None) -> Dataset:
    """Create a dataset from an object with `len` and `[i]`, or with `len` and `read(indices)`.

    For example a list, a range, a NumPy array, a torch map-style dataset, a Hugging Face `Dataset`
    or a custom source. Reads use `read`, `__getitems__` or fancy indexing, if the object has them.

    Args:
        seq: the samples. Threads read them in any order, so the object must not change.
        name: source name of the samples outside a mixture. Default: no name.

    Raises:
        ConfigError: if the object has no length, or no access by index.

    >>> import penstock as ps
    >>> ps.from_sequence(["a", "b"])[1]
    'b'
    """
    if isinstance(seq, Source):
        return Dataset(Read(seq, name or ""))
    return Dataset(Read(ArrowTable(seq) if is_arrow(seq) else Memory(seq), name or ""))


@validate_arguments
def from_iterable(
    factory: Callable[[], Iterable[Any]] | Shards,
    name: str | None = None,
    *,
    identity: str | int | None = None,
    stateful: bool = False,
) -> Dataset:
    """Create a dataset from a restartable stream.

    A resume reads the stream again up to the position, or calls `.skip(n)` if the iterable has it;
    sources with random access resume at once. For a streaming Hugging Face dataset,
    `load_dataset(..., streaming=True)`, only the current shard of each lane is read again.

    Args:
        factory: function that returns an iterable over the same samples at every call; called for
            every pass, and at a resume. Or `penstock.types.Shards`, or a
            `datasets.IterableDataset`.
        name: source name of the samples outside a mixture. Default: no name.
        identity: version of the data, stored in the state; a resume compares the version. Without
            it a run warns about the function, and a resume compares a delivered sample.
        stateful: the iterators have `state_dict()` and `load_state_dict(state)`, with a state of
            JSON values. A resume restores their state instead of reading the stream again.

    Raises:
        ConfigError: if `factory` has another type, or if `identity` or `stateful` is given with
            `Shards`, which identify their data by a method `digest()`.

    >>> import penstock as ps
    >>> list(ps.from_iterable(lambda: iter("ab")).repeat(2))
    ['a', 'b', 'a', 'b']
    """
    if hub.is_stream(factory):
        return Dataset(Read(hub.HubStream(factory, identity), name or ""))
    if stateful and callable(factory):
        return Dataset(ReadStateful(StatefulIterable(factory, identity), name or ""))
    if not isinstance(factory, Shards):
        return Dataset(Read(Stream(factory, identity), name or ""))
    if identity is not None:
        raise ConfigError(
            f"from_iterable(identity={identity!r}): Shards identify their data by a method "
            "digest(); leave out identity="
        )
    return Dataset(Read(factory, name or ""))


@validate_arguments
def from_tokens(tokens: npt.ArrayLike, offsets: npt.ArrayLike, name: str | None = None) -> Dataset:
    """Create a dataset from a token store: a flat array of tokens and the offsets of documents.

    Samples are views `tokens[offsets[i]:offsets[i + 1]]`. Lengths are known, so packing is planned
    ahead, and the packed dataset stays indexed.

    Args:
        tokens: array with one axis and any integer dtype, possibly memory-mapped.
        offsets: `n + 1` ascending offsets into `tokens`, the first of them 0. Tokens after the last
            offset belong to no document.
        name: source name of the samples outside a mixture. Default: no name.

    Raises:
        ConfigError: if the offsets do not begin at 0; they may be lengths. Also if the tokens are
            no integers.
        DataError: if the offsets decrease, or exceed the number of tokens.

    >>> import numpy as np, penstock as ps
    >>> len(ps.from_tokens(np.arange(10), [0, 4, 10]).pack(5))
    2
    """
    try:
        ids, _ = np.asarray(tokens), np.asarray(offsets)
    except (ValueError, OverflowError) as error:
        raise ConfigError(
            f"from_tokens: tokens and offsets are flat arrays of integers ({error}); join documents "
            "by np.concatenate, and make offsets by np.cumsum([0, *map(len, documents)])"
        ) from error
    store = Tokens(cast(Any, tokens), offsets)
    if ids.size and ids.dtype.kind not in "iu":
        raise ConfigError(
            f"from_tokens: the tokens are of type {ids.dtype}, and ids are whole numbers: give "
            "tokens.astype(np.int32)"
        )
    if first := int(np.asarray(offsets)[0]):
        raise ConfigError(
            f"from_tokens: the first offset is {first:,}, so the tokens before it are in no "
            "document; begin at 0, or convert lengths by np.cumsum([0, *lengths])"
        )
    return Dataset(Read(store, name or ""))


@validate_arguments
def read(
    paths: str | Path | Iterable[str | Path] | ArrowStream | HubTable,
    format: FormatName | str | Callable[[Path], Any] | None = None,
    columns: Sequence[str] | None = None,
    name: str | None = None,
    cache: str | Path | None = None,
    lengths: str | TokenCounter | None = None,
    split: str | None = None,
    where: Mapping[str, Any] | None = None,
    dtype: TokenType | None = None,
    eos: int | None = None,
    rows: Literal["dict", "columns"] = "dict",
) -> Dataset:
    """Read files, a table or a data frame, with random access to the samples.

    Rows of Parquet, Arrow, JSONL, CSV and text files, and samples of WebDataset tars, are mappings.
    Documents of token stores (`.npy`, `.bin`, `.ds`) are arrays. Lines are indexed once, at the
    first use. An error of a bad row names its file and line.

    Tables in memory give the same rows as a Parquet file of them: `pyarrow`, pandas and polars
    tables, other objects with Arrow's stream interface, and Hugging Face `datasets`. Missing values
    of pandas are `None`. Its index is dropped, but named levels become columns. Of the options,
    tables take `columns`, `name`, `lengths` and `rows`.

    Args:
        paths: files, folders, globs, brace ranges `{000..099}`, or a list of them. Files are
            sorted. Or a table or data frame.
        format: format of the files, if their names do not tell it: a built-in format, a format of
            an installed package (`penstock.types.Format`), or a function that opens a file.
        columns: columns to read. Default: all.
        name: name of the source, which states compare and shuffles are keyed by. Default: the name
            of the file or, for several files, of their folder.
        cache: folder for indexes and unpacked copies. Default: beside the data, and
            `~/.cache/penstock`.
        lengths: column of tokens (lists in Parquet or Arrow) whose length is the length of the
            sample. `pack` then plans its rows ahead, and the dataset stays indexed. For texts, the
            `penstock.text.Tokenize` that is mapped over them: it counts the tokens of every row
            once, with progress, and caches the counts.
        split: split of a folder that Energon prepared. Default: "train".
        where: filter on column values: `{column: value}`, a list of values, or
            `{"min": ..., "max": ...}`.
        dtype: dtype of the ids in a token store, such as "uint16", if its files do not tell it.
        eos: id that ends a document of a token store, if no index file is beside it.
        rows: argument of functions of many samples (`map(batched=)`, `batch(collate=)`): "dict" for
            a list of mappings; or, with columnar formats, "columns" for one
            `penstock.sources.block.Columns`. Samples are the same, and plain batches are stacked
            column by column in both cases.

    Raises:
        ConfigError: if paths or columns are missing, or if formats are mixed or unknown.
        DataError: if files cannot be read.

    >>> import penstock as ps, tempfile, pathlib
    >>> file = pathlib.Path(tempfile.mkdtemp()) / "a.jsonl"
    >>> _ = file.write_text('{"x": 1}\\n{"x": 2}\\n')
    >>> ps.read(file)[1]
    {'x': 2}
    >>> import pyarrow as pa
    >>> ps.read(pa.table({"text": ["a", "b"]}))[1]
    {'text': 'b'}
    """
    check_choice(rows, ("dict", "columns"), "read(rows={})")
    if isinstance(dtype, Mapping):
        raise ConfigError(
            f"read(dtype={dtype!r}): it is for the ids of token stores; for the types of columns write "
            "ds.map(lambda row: {**row, 'year': str(row['year'])})"
        )
    if is_table(paths):
        files_only = {
            "format": format,
            "cache": cache,
            "split": split,
            "where": where,
            "dtype": dtype,
            "eos": eos,
        }
        return _read_table(paths, columns, name, lengths, rows, files_only)
    if remedy := _NO_TABLES.get(type(paths).__name__):
        raise ConfigError(f"read: a {type(paths).__name__} is no table; {remedy}")
    source = open_files(
        cast("Any", paths),
        format,
        columns,
        cache,
        lengths=lengths,
        split=split,
        where=where,
        dtype=dtype,
        eos=eos,
    )
    if rows == "columns":
        source.as_columns = require_columnar(source)
    return Dataset(Read(source, name or getattr(source, "name", "")))


_NO_TABLES = {
    "dict": "for columns write ps.read(pyarrow.table(columns))",
    "Series": "make it a frame: ps.read(series.to_frame())",
    "DatasetDict": "give one of its splits: ps.read(dataset['train'])",
    "IterableDataset": "write ps.from_iterable(dataset)",
    "IterableDatasetDict": "give one of its splits: ps.from_iterable(dataset['train'])",
    "LazyFrame": "collect it: ps.read(frame.collect())",
}
"""Remedies for objects that only lead to a table, by class."""


def _read_table(
    table: Any,
    columns: Sequence[str] | None,
    name: str | None,
    lengths: str | TokenCounter | None,
    rows: Literal["dict", "columns"],
    files_only: Mapping[str, Any],
) -> Dataset:
    """Read a table in memory; options of files are refused."""
    if given := [option for option, value in files_only.items() if value is not None]:
        remedy = {"where": "use .filter(fn)", "split": "give one split"}.get(
            given[0], "leave it out"
        )
        raise ConfigError(f"read({given[0]}=...): it applies to files, not to tables; {remedy}")
    if lengths is not None and not isinstance(lengths, str):
        raise ConfigError(
            "read(lengths=...): token counters apply to files; for a table name a column of lists, "
            "or map the tokenizer before pack()"
        )
    source = open_table(table, columns, lengths)
    if rows == "columns":
        if not isinstance(source, ArrowTable):
            raise ConfigError(
                "read(rows='columns'): this dataset has a format or decodes values, so its samples "
                "are rows; leave out rows="
            )
        source.as_columns = True
    return Dataset(Read(source, name or ""))


@validate_arguments
def windows(store: Dataset, length: int, dtype: DType = None) -> Dataset:
    """Divide the joined tokens of a store into windows, the samples of nanoGPT and Megatron.

    Documents are concatenated in their order. Window `i` has the `length + 1` tokens from
    `i * length` to `(i + 1) * length`, so inputs are `window[:-1]` and labels `window[1:]`.
    Neighbouring windows share one token. The remainder at the end is dropped.

    Args:
        store: token store from `read` or `from_tokens`, without steps. Shuffle the windows instead.
        length: number of input tokens in a window.
        dtype: dtype of the windows. Default: int32. With the dtype of the store, a window inside
            one file is a view.

    Raises:
        ConfigError: if `store` is no token store, if `dtype` is no integer dtype, or if it cannot
            hold the ids of a store in memory.
        DataError: while reading, if the dtype cannot hold an id.

    >>> import numpy as np, penstock as ps
    >>> ds = ps.windows(ps.from_tokens(np.arange(8), [0, 3, 8]), 3)
    >>> [window.tolist() for window in ds]
    [[0, 1, 2, 3], [3, 4, 5, 6]]
    """
    (dataset,) = require_datasets("windows", (store,))
    leaf, _ = single_source(dataset.tree) or (None, ())
    if (
        leaf is None
        or leaf is not dataset.tree
        or not isinstance(leaf.source, JoinedFiles | Tokens)
    ):
        raise ConfigError(
            "windows: give a token store without steps, as in "
            "ps.windows(ps.read('train.bin', dtype='uint16'), 1024).shuffle()"
        )
    check_dtype(dtype, "windows")
    kind = TOKEN_DTYPE if dtype is None else np.dtype(dtype)
    if kind.kind not in "iu":
        raise ConfigError(f"windows(dtype={dtype!r}): give an integer dtype, such as 'int64'")
    require_ids_fit(leaf, kind, "windows")
    return Dataset(
        Read(Windows(leaf.source, check_int(length, "windows(length={})", 1), kind), leaf.name)
    )


@validate_arguments
def concat(*datasets: Dataset) -> Dataset:
    """Concatenate datasets, one after the other: `a.concat(b, ...)`.

    Args:
        *datasets: the datasets, in order.

    Raises:
        ConfigError: if an argument is no dataset, or if any but the last dataset is endless.

    >>> import penstock as ps
    >>> list(ps.concat(ps.from_sequence("ab"), ps.from_sequence("c")))
    ['a', 'b', 'c']
    """
    first, *others = require_datasets("concat", datasets)
    return first.concat(*others)


@validate_arguments
def zip(*datasets: Dataset) -> Dataset:
    """Zip datasets into tuples of one sample each; the shortest ends a pass: `a.zip(b, ...)`.

    Args:
        *datasets: the datasets to zip.

    Raises:
        ConfigError: if an argument is no dataset.

    >>> import penstock as ps
    >>> list(ps.zip(ps.from_sequence("ab"), ps.from_sequence(range(9))))
    [('a', 0), ('b', 1)]
    """
    first, *others = require_datasets("zip", datasets)
    return first.zip(*others)


@validate_arguments
def interleave(*datasets: Dataset, width: int = 16) -> Dataset:
    """Interleave datasets, one sample of each in turn: `a.interleave(b, ..., width=width)`.

    Args:
        *datasets: the datasets to interleave.
        width: number of datasets open at a time.

    Raises:
        ConfigError: if an argument is no dataset.

    >>> import penstock as ps
    >>> a, b, c = (ps.from_sequence(letters) for letters in ("aaa", "b", "cc"))
    >>> "".join(ps.interleave(a, b, c, width=2))
    'abaacc'
    """
    first, *others = require_datasets("interleave", datasets)
    return first.interleave(*others, width=width)


@validate_arguments
def mix(
    datasets: Mapping[str, Dataset],
    weights: Mapping[str, float] | Schedule | None = None,
    *,
    seed: int = 0,
    block_size: int = 1,
    stop: Stop = "restart",
    unit: CountedUnit = "samples",
    max_epochs: float | Mapping[str, float] | None = None,
    temperature: float | None = None,
    count: ShareOf = "drawn",
    packed: Mapping[str, Any] | None = None,
    one_source_per: int | Literal["global_step"] = 1,
    unique_fraction: str | float | Mapping[str, str | float] | None = None,
    loss_weights: Mapping[str, float] | None = None,
    rule: Mixing | None = None,
) -> Dataset:
    """Mix datasets by weight, in random order, with exact counts.

    After any number of samples, the count of each input is within 2 of its target. Changes of
    weights during a run (`Loader.set_weights`) can exceed this bound, if they are chosen to do so;
    random changes have not been observed to.

    Args:
        datasets: input datasets by name. The order of the mapping has no effect.
        weights: relative weights by name, or a `Schedule`. Default: equal weights, or
            `len ** (1 / temperature)`.
        seed: key of the order, and seed of earlier steps that have none.
        block_size: size of blocks whose samples are permuted once more. Counts are then within 2
            at the ends of blocks only.
        stop: end of a pass: "restart" (never; inputs restart when they end), "first_exhausted",
            "all_exhausted", or "all_exhausted_oversample" (inputs restart until all have ended).
        unit: unit of the weights: "samples", "tokens", or "loss_tokens", the tokens of a sample after
            its first that carry loss by `loss_mask` or `labels`, added up once for each source.
        max_epochs: maximum number of passes over an input, for all inputs or by name.
        temperature: derives weights from sizes in `unit`: 1 is proportional, more is more uniform.
        count: basis of the shares. "drawn" counts drawn samples. "settled" counts samples that
            `Loader.settle` reports as trained; after a filtered or failed sample, the next draw is
            from the same source.
        packed: the options of the `pack` that follows, as a mapping. Shares and schedules of tokens
            then count what a sample takes in rows: with `bos` and `eos`, up to `pad_to_multiple`,
            and cut by `long="truncate"`.
        one_source_per: number of neighbouring samples that come from one input. "global_step" stands
            for the rows of a training step over all ranks, which a `Loader` or
            `batch(global_batch_size=)` determines. `pack` then packs each input by itself.
        unique_fraction: share of the samples of an input that is used at all, such as "25%", for
            all inputs or by name; its weight then repeats this share. The seed and the name of the
            input choose the samples, below its shuffles and functions. Appended samples change no
            earlier choice.
        loss_weights: weights of the losses of inputs by name, 1 for the others. The order does not
            depend on them, and a run may resume with others. `Dataset.loss_weights` has them for
            the training loop; nested mixtures multiply.
        rule: custom `penstock.types.Mixing`, in place of all options above but `loss_weights`. It
            identifies inputs by their numbers, in the order of their names.

    Raises:
        ConfigError: if weights, caps or names are invalid, or if an input is empty or no dataset.

    >>> import penstock as ps
    >>> ds = ps.mix({"a": ps.from_sequence([0] * 30), "b": ps.from_sequence([1] * 10)}, stop="all_exhausted")
    >>> len(ds), sum(ds)
    (40, 10)
    >>> ds = ps.mix({"a": ps.from_sequence("a"), "b": ps.from_sequence("b")}, one_source_per=3)
    >>> "".join(ds[:12])
    'aaabbbaaabbb'
    """
    names = _check_input_names(datasets)
    trees = tuple(datasets[name].tree for name in names)
    of_losses = _parse_loss_weights(names, {} if loss_weights is None else loss_weights)
    if rule is not None:
        options = (
            *(weights, seed, block_size, stop, unit, max_epochs, temperature, count, packed),
            _check_one_source(one_source_per),
        )
        if options != _MIX_DEFAULTS or unique_fraction is not None:
            raise ConfigError(
                "mix(rule=...): a rule replaces all other options; give only the datasets"
            )
        if not names:
            raise ConfigError("mix: no inputs; give at least one dataset")
        drawn_by = By(require_protocol(rule, Mixing, "mix(rule=...)"))
        return Dataset(Mix(trees, names, drawn_by, of_losses))
    if not isinstance(weights, Mapping | Schedule | None):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigError(
            f"mix: the weights are a {type(weights).__name__}; give a mapping "
            "{name: weight, ...}, or a Schedule"
        )
    if not isinstance(max_epochs, Mapping | Number | None):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigError(
            f"mix: max_epochs is a {type(max_epochs).__name__}; give a number, or a mapping by name"
        )
    if str(stop) == "all_exhausted_without_replacement":  # its nearest name here means the opposite
        raise ConfigError(
            f"mix(stop={stop!r}): this is the name of Hugging Face's datasets; write "
            "stop='all_exhausted', which gives every sample exactly once"
        )
    check_choice(unit, COUNTED_UNITS, "mix(unit={})")
    check_choice(count, SHARE_OF, "mix(count={})")
    weighting = _sort_items(weights) if isinstance(weights, Mapping) else weights
    caps = (
        _sort_items(max_epochs)
        if isinstance(max_epochs, Mapping)
        else convert_to_json_number(max_epochs)
    )
    block = int(block_size) if isinstance(block_size, np.integer) else block_size
    key = check_int(seed, "mix(seed={})")
    if unique_fraction is not None:
        shares = _parse_unique_fractions(names, unique_fraction)
        trees = tuple(
            use_fraction(name, tree, shares[name], key) if name in shares else tree
            for name, tree in builtins.zip(names, trees, strict=True)
        )
    replacements = Replacements() if count == "settled" else None
    sizer = size_packed(packed)
    weighted = Weighted(
        weighting,
        key,
        block,
        stop,
        unit,
        caps,
        convert_to_json_number(temperature),
        draw_change=replacements,
        one_source_per=_check_one_source(one_source_per),
    )
    if "tokens" in weighted.token_units:
        weighted = replace(weighted, sizer=sizer)
    elif weighted.token_units and packed is not None:
        raise ConfigError(
            "mix(unit='loss_tokens', packed=...): tokens that carry loss are those of documents, "
            "whatever rows add or cut; leave packed out"
        )
    tree = Mix(trees, names, weighted, of_losses)
    if count == "settled" and (
        tree.reason_not_indexed is not None
        or (stop, unit, caps, one_source_per) != ("restart", "samples", None, 1)
    ):
        raise ConfigError(
            "mix(count='settled') needs indexed inputs and an endless mixture: leave out "
            "max_epochs and one_source_per, and use unit='samples' and stop='restart'"
        )
    if tree.reason_not_indexed is None:
        tree = replace(tree, rule=weigh_tokens(cast("Mix", with_global_step(tree, 1)), weighted))
        dataset = Dataset(tree)
        # Compile now, so that bad weights, empty inputs and unknown rules raise here.
        trial = with_global_step(tree, 1)
        dataset.compiled.of(trial).builder.op(trial)
        return dataset
    if temperature is not None and temperature > 0 and weights is None:
        streams = [name for name in names if datasets[name].tree.reason_not_indexed is not None]
        raise ConfigError(
            f"mix(temperature={temperature!r}): the sizes of {join_first(streams)} are not known, "
            f"because {tree.reason_not_indexed}; give weights instead"
        )
    trial = cast("Mix", with_global_step(tree, 1))
    trial.stream_history(())
    trial.draws(())
    return Dataset(tree)


def _check_one_source(per: Any) -> int | Literal["global_step"]:
    if isinstance(per, str) and per == "global_step":
        return "global_step"
    if isinstance(per, str):
        raise ConfigError(
            f"mix(one_source_per={per!r}): give a number of samples, or 'global_step'"
        )
    return check_int(per, "mix(one_source_per={})", 1, _MAX_STRETCH)


_MAX_STRETCH = 1 << 24  # neighbours of one source
_MIX_DEFAULTS = (None, 0, 1, "restart", "samples", None, None, "drawn", None, 1)
"""Defaults of the arguments of `mix` that a custom rule replaces."""


def _parse_unique_fractions(
    names: Sequence[str], given: str | float | Mapping[str, str | float]
) -> dict[str, Fraction]:
    """Return the fractions below 1 by name."""
    by_name = given if isinstance(given, Mapping) else dict.fromkeys(names, given)
    if unknown := sorted({*by_name} - {*names}):
        hint = suggest_names(unknown[0], names) or f"; the mixture has {join_first(names)}"
        raise ConfigError(f"unique_fraction names {join_first(unknown)}{hint}")
    return {
        name: parse_fraction(share, f"unique_fraction of {name!r}: {{}}")
        for name, share in by_name.items()
        if not is_whole(share)
    }


def _parse_loss_weights(
    names: Sequence[str], given: Mapping[str, float]
) -> tuple[tuple[str, float], ...]:
    """Return the weights of losses by name."""
    if not isinstance(given, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigError(
            f"mix(loss_weights={given!r:.60}): give a mapping {{name: weight, ...}}; inputs that "
            "are not named have 1"
        )
    if unknown := sorted({*given} - {*names}):
        hint = suggest_names(unknown[0], names) or f"; the mixture has {join_first(names)}"
        raise ConfigError(f"mix(loss_weights=...) names {join_first(unknown)}{hint}")
    for name, weight in given.items():
        is_number = isinstance(weight, Number) and not isinstance(weight, bool)  # pyright: ignore[reportUnnecessaryIsInstance]
        if not is_number or not 0 <= weight < inf:
            raise ConfigError(
                f"mix(loss_weights=...): the weight of {name!r} is {weight!r}; give a number of at "
                "least 0"
            )
    return tuple((name, float(weight)) for name, weight in sorted(given.items()))


def is_whole(share: object) -> bool:
    """Return whether a share is 1, written as a number or a text."""
    if isinstance(share, str):
        return share.strip() in ("1", "1.0", "100%")
    return isinstance(share, int | float | np.number) and share is not True and share == 1


def key_of_fraction(seed: int, name: str) -> int:
    """Return the seed by which a fraction of an input is chosen.

    Args:
        seed: the seed of the mixture.
        name: the name of the input.
    """
    return derive_key(seed, name, "unique") >> 32


def use_fraction(name: str, step: Step, share: Fraction, seed: int) -> Step:
    """Return an input over a fixed fraction of its samples.

    The fraction is chosen below shuffles and functions, and above fixed sets such as a split, and
    above `zip`.

    Args:
        name: the name of the input.
        step: the input.
        share: the fraction, below 1.
        seed: the seed of the mixture.

    Raises:
        ConfigError: if the samples have no fixed positions, or if the fraction has none.
    """
    is_fixed_set = step.is_order and not step.keeps_samples(True)
    if step.only_input is not None and not is_fixed_set and not step.forms_tuples:
        return step.with_children((use_fraction(name, step.only_input, share, seed),))
    call = f"unique_fraction of {name!r}"
    if find_mixtures(step).get(()) is step:
        raise ConfigError(f"{call}: the input is a mixture: give unique_fraction to it")
    step.require_indexed(call, "leave it out, or write the samples to files first")
    if step.is_endless:
        raise ConfigError(f"{call}: the input never ends; let it end, such as by limit(n)")
    chosen = Reorder(
        step.seeded(seed),
        Portion(share.numerator, share.denominator, key_of_fraction(seed, name)),
    )
    if not Compiled(chosen).size:
        raise ConfigError(
            f"{call} is {float(share):g}, which is less than one of its {Compiled(step).size} "
            "samples; raise it, or leave the input out"
        )
    return chosen


def size_packed(options: Mapping[str, Any] | None) -> Sizer | None:
    """Return the size of a sample once it is packed; None if packing adds and cuts nothing."""
    if options is None:
        return None
    if not isinstance(options, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigError(
            f"mix(packed={options!r:.60}): give the options of pack(), such as "
            "{'length': 2048, 'eos': 0}"
        )
    options = {key: value for key, value in options.items() if key != "name"}
    names = [field.name for field in fields(Packing)]
    if unknown := [name for name in options if name not in names]:
        raise ConfigError(
            f"mix(packed=): pack() has no option {unknown[0]!r}{suggest_names(unknown[0], names)}"
        )
    if "length" not in options:
        raise ConfigError("mix(packed=): give the length of a row too, {'length': 2048, ...}")
    packing = Packing(**options)
    truncates = packing.long == "truncate" or packing.overflow == "crop"
    most = packing.length if truncates else None
    if (packing.extra, packing.pad_to_multiple, most) == (0, 1, None):
        return None
    return Sizer(len, packing.extra, multiple=packing.pad_to_multiple, most=most)


def _check_input_names(datasets: Mapping[str, Dataset]) -> tuple[str, ...]:
    """Return the sorted names of the inputs; check that they map to datasets."""
    if not isinstance(datasets, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigError(
            f"mix: the inputs are a {type(datasets).__name__}; give a mapping "
            "{name: dataset, ...}, as in ps.mix({'a': ..., 'b': ...}, {'a': 0.3, 'b': 0.7})"
        )
    for name, dataset in datasets.items():
        if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(
                f"mix: the name {name!r} is a {type(name).__name__}; names must be strings"
            )
        if not isinstance(dataset, Dataset):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise make_not_dataset_error(f"mix: {name!r}", dataset)
    return tuple(sorted(datasets))


def _sort_items(table: Mapping[str, float]) -> tuple[tuple[str, float], ...]:
    return tuple(sort_by_name(table).items())
