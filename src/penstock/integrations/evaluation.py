"""Loaders of held-out sets, which refuse samples that the run trains on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np

from ..arguments import check_int, make_not_dataset_error, validate_arguments
from ..dataset import Dataset
from ..engine.base.progress import Progress
from ..engine.base.row_files import as_row_files, describe_row_location
from ..engine.runtime.executors import ExecutorName
from ..engine.steps.batch import change_rows, tail_of
from ..engine.steps.compiled import Compiled
from ..engine.steps.op import Op
from ..engine.streams.function_call import Leaf
from ..errors import ConfigError
from ..loader import ArrayType, Loader
from ..sources.comparison import describe_sources
from ..types import UNKNOWN_DIGEST, Ints, Source, is_source
from .trainers import EvalLoader

_ROWS_PER_CHUNK = 1 << 20


@validate_arguments
def eval_loaders(
    held_out: Mapping[str, Dataset],
    *,
    rows: int | None = None,
    train: Dataset | Loader | None = None,
    global_batch_size: int | None = None,
    rank: int | None = None,
    world_size: int | None = None,
    mesh: object = None,
    workers: int = 0,
    executor: ExecutorName = "threads",
    to: ArrayType = "numpy",
    device: object = None,
    pin_memory: bool | None = None,
) -> dict[str, EvalLoader]:
    """Return a loader for each held-out set: the same rows in every evaluation, on any ranks.

    Every `for` over a loader is one whole pass. All ranks make the same number of steps: the last
    one is padded, and `batch["valid"]` and `loader.valid` are false for rows of padding.

    With `train`, samples that the run trains on are an error. Samples are compared by their source
    and their row: parts of `split` share none. Copies in other files are not found; search them
    with `penstock leaks --by content`.

    Args:
        held_out: the sets by name. They must be indexed. Batch them with
            `.batch(global_batch_size=n, collate=Padded())`, or give `global_batch_size`.
        rows: evaluate the first `rows` rows of each set (samples, or packed rows).
        train: the dataset or the loader of the training.
        global_batch_size: rows of all ranks together in a step, as of `ps.Loader`.
        rank: the rank of the loaders.
        world_size: number of ranks.
        mesh: replaces `rank` and `world_size`.
        workers: number of workers of each loader.
        executor: kind of worker.
        to: array type of items: "numpy", "torch" or "jax".
        device: the device to which items are copied ahead.
        pin_memory: for torch: whether tensors are in pinned memory.

    Raises:
        ConfigError: if a set is empty or endless, if it shares samples with the training, or if an
            option is invalid.
        IndexedError: if a set has no positions.

    >>> import penstock as ps
    >>> train, held_out = ps.from_sequence(range(100), name="code").split("10%")
    >>> loaders = ps.eval_loaders({"code": held_out.batch(4)}, rows=5, train=train.shuffle().repeat())
    >>> [int(loaders["code"].loader.valid.sum()) for batch in loaders["code"]]
    [4, 1]
    >>> ps.eval_loaders({"code": held_out}, train=ps.from_sequence(range(100), name="all"))
    Traceback (most recent call last):
    ...
    penstock.errors.ConfigError: eval_loaders: 'code' has 10 samples that the run trains on as 'all': ...
    """
    if not isinstance(held_out, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigError(
            f"eval_loaders({type(held_out).__name__}): give the held-out sets by name, such as "
            "{'code': held_out}"
        )
    rows = None if rows is None else check_int(rows, "eval_loaders(rows={})", 1)
    sets = {name: _limit(name, dataset, rows) for name, dataset in held_out.items()}
    if train is not None:
        _require_held_out(sets, _compiled(train))
    make = partial(
        Loader,
        remainder="pad",
        global_batch_size=global_batch_size,
        rank=rank,
        world_size=world_size,
        mesh=mesh,
        workers=workers,
        executor=executor,
        to=to,
        device=device,
        pin_memory=pin_memory,
    )
    return {name: EvalLoader(make(dataset)) for name, dataset in sets.items()}


def _limit(name: str, dataset: Any, rows: int | None) -> Dataset:
    """Return the first rows of a held-out set."""
    where = f"eval_loaders: {name!r}"
    if not isinstance(dataset, Dataset):
        raise make_not_dataset_error(where, dataset)
    dataset.tree.require_indexed(
        where,
        "hold out before that step, or pack documents of known lengths, or batch them with "
        "Padded()",
    )
    if dataset.compiled.size == 0:
        raise ConfigError(f"{where} is empty; hold out a larger share")
    if rows is not None and tail_of(dataset.tree).rows.forms_batches:
        raise ConfigError(
            f"{where}: rows={rows} counts rows, and the dataset delivers whole batches; limit "
            f"the samples before: ds.limit({rows}).batch(...)"
        )
    if rows is not None:
        tree = change_rows(dataset.tree, lambda step: Dataset(step).limit(rows).tree)
        dataset = dataset._with(tree)  # pyright: ignore[reportPrivateUsage]
    elif dataset.compiled.size is None:
        raise ConfigError(f"{where} never ends; give rows=, or leave out .repeat()")
    return dataset


def _compiled(train: Any) -> Compiled:
    if isinstance(train, Loader):
        return train._session.compiled  # pyright: ignore[reportPrivateUsage]
    if not isinstance(train, Dataset):
        raise make_not_dataset_error("eval_loaders(train=...)", train)
    return train.compiled


# ---------------------------------------------------------------- samples that both have


@dataclass(frozen=True)
class _Rows:
    """An indexed source of a tree, with the facts that identify its rows."""

    named: Leaf
    source: Source

    @cached_property
    def files(self) -> tuple[Any, list[str]]:
        """The files of the rows, if each row lies in one, and their paths."""
        files = as_row_files(self.source)
        return files, [str(path.resolve()) for path in files.paths] if files else []

    @cached_property
    def digest(self) -> Mapping[str, Any]:
        """The facts by which a state recognises the source."""
        return describe_sources({"": self.source})[""]

    def find(self, other: _Rows, index: Ints) -> Ints:
        """Return the index in another source of each of these rows; -1 if it has no such row."""
        if self.source is other.source:
            return index
        (files, paths), (other_files, other_paths) = self.files, other.files
        if set(paths) & set(other_paths):
            numbers = {path: number for number, path in enumerate(paths)}
            wanted = _code(files, np.arange(len(paths)), index)
            known = np.asarray([numbers.get(path, -1) for path in other_paths], np.int64)
            return _find_codes(other_files, known, len(other.source), wanted, other.named.name)
        if paths or other_paths or len(self.source) != len(other.source):
            return np.full_like(index, -1)
        return index if self.has_rows_of(other) else np.full_like(index, -1)

    def has_rows_of(self, other: _Rows) -> bool:
        """Return whether two sources have equal digests, of rows that can be read."""
        digests = [str(value) for key, value in self.digest.items() if key != "length"]
        known = {*" ".join(digests).split()} - {UNKNOWN_DIGEST}
        return self.digest == other.digest and bool(known)


def _code(files: Any, numbers: Ints, index: Ints) -> Ints:
    """Return one integer for the file and the row in it; negative without a number of the file."""
    file, row = files.file_rows(index)
    return (numbers[file] << 40) | row


def _find_codes(files: Any, numbers: Ints, rows: int, wanted: Ints, name: str) -> Ints:
    """Return the index of each code in a source; -1 for codes that it has not."""
    order = np.argsort(wanted)
    found = np.full_like(wanted, -1)
    with Progress(f"compare held-out rows with {name}", rows, "rows") as progress:
        for start in range(0, rows, _ROWS_PER_CHUNK):
            index = np.arange(start, min(start + _ROWS_PER_CHUNK, rows))
            codes = _code(files, numbers, index)
            place = order[np.searchsorted(wanted[order], codes).clip(max=len(wanted) - 1)]
            hits = wanted[place] == codes
            found[place[hits]] = index[hits]
            progress.more(len(index))
    return found


def _require_held_out(sets: Mapping[str, Dataset], train: Compiled) -> None:
    """Raise `ConfigError` if a held-out set has samples that the training may deliver."""
    trained = list(_iter_sources(train))
    for name, dataset in sets.items():
        compiled = dataset.compiled
        size = compiled.size
        assert size is not None
        held = compiled.op.locate(np.arange(size))
        for mine in _iter_sources(compiled):
            index = np.unique(held.index[held.leaf == mine.named.number])
            for other in trained if len(index) else ():
                there = mine.find(other, index)
                if not (there >= 0).any():
                    continue
                drawn = find_drawn(train.op, other.named.number, np.unique(there[there >= 0]))
                if len(shared := index[np.isin(there, drawn) & (there >= 0)]):
                    raise _make_overlap_error(name, mine, other, shared)


def _make_overlap_error(name: str, mine: _Rows, other: _Rows, shared: Ints) -> ConfigError:
    shown = ", ".join(map(str, shared[:5].tolist())) + ", ..." * (len(shared) > 5)
    several = len(shared) > 1
    error = ConfigError(
        f"eval_loaders: {name!r} has {len(shared)} sample{'s' * several} that the run trains on as "
        f"{other.named.name!r}: row{'s' * several} {shown} of {mine.named.name!r}; train on the first "
        "part of .split(), and evaluate the second"
    )
    if place := describe_row_location(mine.source, int(shared[0])):
        error.add_note(f"the first of them{place}")
    return error


def _iter_sources(compiled: Compiled) -> Iterator[_Rows]:
    for leaf in compiled.builder.leaves:
        if is_source(leaf.source):
            yield _Rows(leaf, leaf.source)


def find_drawn(step: Op, source: int, index: Ints) -> Ints:
    """Return which samples of a source may ever be drawn, out of some.

    The answer is exact for fixed sets and for orders that give the same samples in every pass. Other
    steps count as if they drew all that their inputs may give.

    Args:
        step: a compiled tree.
        source: number of the source.
        index: indices of samples of the source.

    >>> import penstock as ps
    >>> ds = ps.from_sequence(range(9))[3:6].shuffle().repeat().filter(bool)
    >>> find_drawn(ds.compiled.op, 0, np.arange(5)).tolist()
    [3, 4]
    """
    if source not in step.leaves:
        return index[:0]
    below = [find_drawn(child, source, index) for child in step.inputs]
    if below:
        index = np.unique(np.concatenate(below))
    if not step.indexed or not step.repeats or (step.leaf is None and step.size is None):
        return index
    missing, start, width = index, 0, _ROWS_PER_CHUNK
    while len(missing) and start < step.period:
        # A long fixed set of a short source repeats samples often: search those not found yet.
        places = step.find(source, missing, start, min(start + width, step.period))
        rows = step.locate(places)
        missing = np.setdiff1d(missing, rows.index[rows.leaf == source])
        start, width = start + width, 2 * width
    return np.setdiff1d(index, missing)
