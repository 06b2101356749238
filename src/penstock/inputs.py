"""Where datasets begin: sequences, streams, files, token stores, and mixtures of datasets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from numbers import Number
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import numpy.typing as npt

from .dataset import Dataset, datasets_of
from .engine.base.contract import fulfilled
from .engine.base.dtypes import TOKENS
from .engine.base.hints import chosen, guided, no_dataset
from .engine.base.ints import whole
from .engine.base.weights import by_name, plain
from .engine.graph.draws import draws_of
from .engine.graph.history import history
from .engine.graph.indexed import why_not
from .engine.graph.lengths import weighed
from .engine.graph.nodes import Mix, Read, leaf_of
from .engine.graph.tokens import require_ids_fit
from .engine.mixing import SHARE_OF, ShareOf, Stop
from .engine.mixing.rules import By, Weighted
from .engine.packing import DType, check_dtype
from .errors import ConfigError
from .schedule import COUNTED, Counted, Schedule
from .sources import Chain, Counts, held_as_columns, hub, open_files
from .sources.memory import Iterable as Stream
from .sources.memory import Memory, Tokens
from .sources.paths import FormatName, TokenType
from .sources.tokens import Windows
from .types import Mixing, Shards, Source


@guided
def from_sequence(seq: Any, name: str | None = None) -> Dataset:
    """Anything with `len` and `[i]`: a list, a range, a NumPy array, a torch map-style dataset, a
    Hugging Face `Dataset`; or with `len` and `read(indices)`: a source of yours.

    Uses `read`, `__getitems__` or fancy indexing where the object has them. `name` is what samples
    are known by outside a mixture.

    Args:
        seq: the samples; read in any order, from several threads, so it must not change.
        name: what samples are known by outside a mixture; without it they have no name.

    Raises:
        ConfigError: for what has no length or no items.

    >>> import penstock as ps
    >>> ps.from_sequence(["a", "b"])[1]
    'b'
    """
    return Dataset(Read(seq if isinstance(seq, Source) else Memory(seq), name or ""))


@guided
def from_iterable(
    factory: Callable[[], Iterable[Any]] | Shards,
    name: str | None = None,
    *,
    identity: str | int | None = None,
) -> Dataset:
    """A stream that can be started again: `factory()` gives an iterable over the same samples every
    time.

    Resuming reads up to the position again (or calls `.skip(n)` where the iterable has it); sources
    with random access resume at once. Of a streaming Hugging Face dataset, `load_dataset(...,
    streaming=True)`, only the shard in which a lane stands is passed over again.

    Args:
        factory: called for every pass, and again at a resume; or `penstock.types.Shards`, or a
            `datasets.IterableDataset`.
        name: what samples are known by outside a mixture; without it they have no name.
        identity: a version of what the function gives, in the state. Without it a run names the
            function in a warning, and a resume compares a sample that was given before; with it,
            only whether the version is the same.

    Raises:
        ConfigError: for what is neither, and for `identity` of `Shards`, which say it by a method
            `digest()`.

    >>> import penstock as ps
    >>> list(ps.from_iterable(lambda: iter("ab")).repeat(2))
    ['a', 'b', 'a', 'b']
    """
    if hub.is_stream(factory):
        return Dataset(Read(hub.HubStream(factory, identity), name or ""))
    if not isinstance(factory, Shards):
        return Dataset(Read(Stream(factory, identity), name or ""))
    if identity is not None:
        raise ConfigError(
            f"from_iterable(identity={identity!r}): Shards say what their data is by a method "
            "digest()"
        )
    return Dataset(Read(factory, name or ""))


@guided
def from_tokens(tokens: npt.ArrayLike, offsets: npt.ArrayLike, name: str | None = None) -> Dataset:
    """A token store: one flat, possibly memory-mapped array, and the offsets at which documents
    begin (`n + 1` of them).

    Samples are views `tokens[offsets[i]:offsets[i + 1]]`. Lengths are known, so packing is planned
    and stays indexed.

    Args:
        tokens: one axis, any dtype of whole numbers.
        offsets: `n + 1` ascending places in it, the first of them 0; what lies behind the last is
            of no document.
        name: what samples are known by outside a mixture; without it they have no name.

    Raises:
        ConfigError: for offsets that do not begin at 0: lengths, say.
        DataError: for offsets that decrease, or lead beyond the tokens.

    >>> import numpy as np, penstock as ps
    >>> len(ps.from_tokens(np.arange(10), [0, 4, 10]).pack(5))
    2
    """
    store = Tokens(cast(Any, tokens), offsets)
    if first := int(np.asarray(offsets)[0]):
        raise ConfigError(
            f"from_tokens: the first offset is {first:,}, and the tokens before it would be in no "
            "document; of lengths "
            "give np.cumsum([0, *lengths])"
        )
    return Dataset(Read(store, name or ""))


@guided
def read(
    paths: str | Path | Iterable[str | Path],
    format: FormatName | str | Callable[[Path], Any] | None = None,
    columns: Sequence[str] | None = None,
    name: str | None = None,
    cache: str | Path | None = None,
    lengths: str | Counts | None = None,
    split: str | None = None,
    where: Mapping[str, Any] | None = None,
    dtype: TokenType | None = None,
    eos: int | None = None,
    rows: Literal["dict", "columns"] = "dict",
) -> Dataset:
    """Rows of Parquet, Arrow, JSONL, CSV or text files, samples of WebDataset tars, as mappings;
    documents of token stores (`.npy`, `.bin`, `.ds`), as arrays. All with random access.

    Lines are indexed once, at the first use. Raises what reading raises: a bad row is an error with
        its file and line.

    Args:
        paths: files, folders, globs, brace ranges `{000..099}`, or a list of them; files are
            sorted.
        format: what the files are, where their names do not tell: one of ours, one that an
            installed package brings (`penstock.types.Format`), or a function that opens one of
            them.
        columns: only these are read.
        name: what samples are known by outside a mixture; without it the name of the files or their
            folder.
        cache: the folder for indexes and unpacked copies; without it beside the data and
            `~/.cache/penstock`.
        lengths: the column of tokens (lists in Parquet or Arrow) that tells how long a sample is:
            `pack` then plans its rows ahead, and the dataset stays indexed. Of texts, the
            `penstock.text.Tokenise` that is mapped over
            them: it counts the tokens of every row once, with progress, and what it found is kept.
        split: for a folder that Energon prepared: "train" if none is named.
        where: keeps rows by the values of their columns: `{column: value}`, a list of values, or
            `{"min": ..., "max": ...}`.
        dtype: what the ids of a token store are kept as, where its files do not tell: "uint16",
            say.
        eos: the id that ends a document of a token store, where no file beside it tells where they
            end.
        rows: what functions of many samples (`map(batched=)`, `batch(collate=)`) are given: a list
            of mappings, or, of formats of columns, one mapping of "columns",
            `penstock.sources.block.Columns`. Samples are the same; plain batches are stacked column
            by column in either case.

    Raises:
        ConfigError: for paths and columns that are not there, and formats that are mixed or not
            known.
        DataError: for files that cannot be read.

    >>> import penstock as ps, tempfile, pathlib
    >>> file = pathlib.Path(tempfile.mkdtemp()) / "a.jsonl"
    >>> _ = file.write_text('{"x": 1}\\n{"x": 2}\\n')
    >>> ps.read(file)[1]
    {'x': 2}
    """
    source = open_files(
        paths,
        format,
        columns,
        cache,
        lengths=lengths,
        split=split,
        where=where,
        dtype=dtype,
        eos=eos,
    )
    chosen(rows, ("dict", "columns"), "read(rows={})")
    if rows == "columns":
        source.as_columns = held_as_columns(source)
    return Dataset(Read(source, name or getattr(source, "name", "")))


@guided
def windows(store: Dataset, length: int, dtype: DType = None) -> Dataset:
    """The joined tokens of a store in windows: the plain samples of nanoGPT and Megatron.

    Documents lie end to end, in their order, and window `i` is tokens `i * length` to `(i + 1) *
    length`, the last one
    included: `length + 1` of them, so that inputs are `window[:-1]` and labels `window[1:]`.
        Neighbours share that one
    token. What fills no window at the end is left out.

    Args:
        store: what `read` gives for token stores, or `from_tokens`, without steps; shuffle the
            windows.
        length: the tokens of a window that are inputs.
        dtype: of the windows, int32 if it is not given; one of the dtype of the store that lies in
            one file is a view.

    Raises:
        ConfigError: for what is no token store, a dtype that is none of integers, and ids of a
            store in memory that it does not hold.
        DataError: while reading, for an id that the dtype does not hold.

    >>> import numpy as np, penstock as ps
    >>> ds = ps.windows(ps.from_tokens(np.arange(8), [0, 3, 8]), 3)
    >>> [window.tolist() for window in ds]
    [[0, 1, 2, 3], [3, 4, 5, 6]]
    """
    leaf = leaf_of(datasets_of("windows", (store,))[0].flow)
    if leaf is None or not isinstance(leaf.source, Chain | Tokens):
        raise ConfigError(
            "windows: a token store as it is read, without steps on it, as in "
            "ps.windows(ps.read('train.bin', "
            "dtype='uint16'), 1024).shuffle()"
        )
    check_dtype(dtype, "windows")
    kind = TOKENS if dtype is None else np.dtype(dtype)
    if kind.kind not in "iu":
        raise ConfigError(f"windows(dtype={dtype!r}): a dtype of integers, such as 'int64'")
    require_ids_fit(leaf, kind, "windows")
    return Dataset(
        Read(Windows(leaf.source, whole(length, "windows(length={})", 1), kind), leaf.name)
    )


@guided
def concat(*datasets: Dataset) -> Dataset:
    """One dataset after the other: `a.concat(b, ...)`.

    Args:
        *datasets: in the order in which they come.

    Raises:
        ConfigError: for what is no dataset.

    >>> import penstock as ps
    >>> list(ps.concat(ps.from_sequence("ab"), ps.from_sequence("c")))
    ['a', 'b', 'c']
    """
    first, *others = datasets_of("concat", datasets)
    return first.concat(*others)


@guided
def zip(*datasets: Dataset) -> Dataset:
    """Tuples of one sample of each, as many as the shortest has: `a.zip(b, ...)`.

    Args:
        *datasets: those whose samples stand beside each other.

    Raises:
        ConfigError: for what is no dataset.

    >>> import penstock as ps
    >>> list(ps.zip(ps.from_sequence("ab"), ps.from_sequence(range(9))))
    [('a', 0), ('b', 1)]
    """
    first, *others = datasets_of("zip", datasets)
    return first.zip(*others)


@guided
def interleave(*datasets: Dataset, width: int = 16) -> Dataset:
    """One sample of each of `width` datasets in turn: `a.interleave(b, ..., width=width)`.

    Args:
        *datasets: those that take turns.
        width: how many are open at a time.

    Raises:
        ConfigError: for what is no dataset.

    >>> import penstock as ps
    >>> a, b, c = (ps.from_sequence(letters) for letters in ("aaa", "b", "cc"))
    >>> "".join(ps.interleave(a, b, c, width=2))
    'abaacc'
    """
    first, *others = datasets_of("interleave", datasets)
    return first.interleave(*others, width=width)


@guided
def mix(
    datasets: Mapping[str, Dataset],
    weights: Mapping[str, float] | Schedule | None = None,
    *,
    seed: int = 0,
    block_size: int = 1,
    stop: Stop = "restart",
    unit: Counted = "samples",
    max_epochs: float | Mapping[str, float] | None = None,
    temperature: float | None = None,
    count: ShareOf = "drawn",
    rule: Mixing | None = None,
) -> Dataset:
    """Datasets drawn from by weight, in random order, and exactly: after any number of samples each
    count is within 2 of what its weight asks.

    Weights set during a run (`Loader.set_weights`) can force more than 2, if each change is chosen
    to hurt; random changes were never seen to.

    Args:
        datasets: the inputs by name; the order in which they are written changes nothing.
        weights: relative, or a `Schedule`; without them all are equal, or `len ** (1 /
            temperature)`.
        seed: keys the order, and is the seed of the steps below that have none.
        block_size: permutes every so many samples once more: counts are then within 2 at the ends
            of blocks only.
        stop: when a pass ends: never ("restart": who ends begins again), with the first input that
            ends, with the last, or with the last while the others begin again.
        unit: what weights are shares of, "samples" or "tokens".
        max_epochs: the most passes over an input, for all or by name.
        temperature: makes weights of the sizes, in `unit`; 1 is in proportion, more is more even.
        count: what has the shares: what is "drawn", or what `Loader.settle` said was trained
            ("settled"): for each sample that is filtered or fails, one more of its source then
            comes next.
        rule: a `penstock.types.Mixing` of your own, which decides instead of all of these; it knows
            the inputs by their numbers in the order of their names.

    Raises:
        ConfigError: for weights, caps and names that cannot be, and inputs that are empty or no
            datasets.

    >>> import penstock as ps
    >>> ds = ps.mix({"a": ps.from_sequence([0] * 30), "b": ps.from_sequence([1] * 10)}, stop="all_exhausted")
    >>> len(ds), sum(ds)
    (40, 10)
    """
    names = _names(datasets)
    flows = tuple(datasets[name].flow for name in names)
    if rule is not None:
        if (weights, seed, block_size, stop, unit, max_epochs, temperature, count) != _ALONE:
            raise ConfigError(
                "mix(rule=...): the rule decides alone; give it nothing but the datasets"
            )
        if not names:
            raise ConfigError("mix: no inputs")
        return Dataset(Mix(flows, names, By(fulfilled(rule, Mixing, "mix(rule=...)"))))
    if not isinstance(weights, Mapping | Schedule | None):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigError(
            f"mix: the weights are a {type(weights).__name__}; give a mapping, {{name: weight, "
            f"...}}, or a Schedule"
        )
    if not isinstance(max_epochs, Mapping | Number | None):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigError(
            f"mix: max_epochs is a {type(max_epochs).__name__}; give a number, or a mapping by name"
        )
    chosen(unit, COUNTED, "mix(unit={})")
    chosen(count, SHARE_OF, "mix(count={})")
    given = _plain(weights) if isinstance(weights, Mapping) else weights
    caps = _plain(max_epochs) if isinstance(max_epochs, Mapping) else plain(max_epochs)
    block = int(block_size) if isinstance(block_size, np.integer) else block_size
    weighted = Weighted(
        given, whole(seed, "mix(seed={})"), block, stop, unit, caps, plain(temperature), count=count
    )
    flow = Mix(flows, names, weighted)
    if count == "settled" and (
        why_not(flow) is not None or (stop, unit, caps) != ("restart", "samples", None)
    ):
        raise ConfigError(
            "mix(count='settled'): samples of indexed inputs, in a mixture that never ends: "
            "without max_epochs, with "
            "unit='samples' and stop='restart'"
        )
    if why_not(flow) is None:
        flow = replace(flow, rule=weighed(flow, weighted))
        found = Dataset(flow)
        found.compiled.builder.op(
            flow
        )  # refuses bad weights, empty inputs, unknown rules now, not at the first sample
        return found
    history(weighted, names, (None,) * len(names), ())
    draws_of(flow, ())
    return Dataset(flow)


_ALONE = (None, 0, 1, "restart", "samples", None, None, "drawn")
"""The arguments of `mix` that go with a rule of the user's: none was given."""


def _names(datasets: Mapping[str, Dataset]) -> tuple[str, ...]:
    """The names of the inputs in order; what is no mapping of names to datasets is refused."""
    if not isinstance(datasets, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigError(
            f"mix: the inputs are a {type(datasets).__name__}; give a mapping, {{name: dataset, "
            f"...}}, as in "
            "ps.mix({'a': ..., 'b': ...}, {'a': 0.3, 'b': 0.7})"
        )
    for name, dataset in datasets.items():
        if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(f"mix: the name {name!r} is a {type(name).__name__}; names are texts")
        if not isinstance(dataset, Dataset):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise no_dataset(f"mix: {name!r}", dataset)
    return tuple(sorted(datasets))


def _plain(table: Mapping[str, float]) -> tuple[tuple[str, float], ...]:
    return tuple(by_name(table).items())
