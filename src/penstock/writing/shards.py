"""A dataset as shards: files of a fixed number of samples each, written by any number of workers,
anywhere.

Shard `s` holds the samples at positions `s * shard` to `(s + 1) * shard - 1`. It is a function of
its number alone, so whoever writes it writes the same bytes. Every file is there whole or not at
all, and so is the note that says that a
shard is done: work that was killed goes on where it was, and ends with the files of undisturbed
    work.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from glob import escape
from pathlib import Path
from typing import Any

from ..dataset import Dataset
from ..engine.base.hints import chosen, guided, no_dataset
from ..engine.base.ints import whole
from ..engine.base.machine import place
from ..engine.base.seams import world, write_whole
from ..engine.base.urls import local
from ..engine.graph.digests import code_notes
from ..engine.graph.recipe import describe, difference
from ..engine.runtime.engine import compute
from ..engine.runtime.executors import EXECUTORS, ExecutorName
from ..errors import ConfigError, DataError, StorageError
from ..sources.saved_dataset import MANIFEST
from ..sources.sidecar import storage
from .arrow import columns_of
from .shard import SHARD_FORMATS, ShardFormat, Writer, Written

_VERSION = 2


@guided
def write(
    dataset: Dataset,
    folder: str | Path,
    format: ShardFormat = "arrow",
    shard: int = 10_000,
    max_bytes: int = 1 << 30,
    executor: ExecutorName = "inline",
    workers: int | None = None,
) -> list[Path]:
    """Write pass 0 of an indexed dataset into files of `shard` samples each; returns them, in
    order.

    `ps.read(folder)` gives the same samples. Of Arrow files it knows how long they are, and
    `columns=["__key__"]` tells of which sources, epochs and indices each was made.

    Called again after it was killed, it goes on with the shards that are not done. The same samples
    give the same bytes, whoever wrote them, in however many tries. Shards of another dataset are
    never written over.

    Args:
        dataset: indexed, with an end. Functions in it run in the workers.
        folder: where the shards go; on machines of a cluster, storage that all of them share.
        format: "arrow" (mappings of one form, or arrays of one axis), "tar" (WebDataset: mappings
            of parts) or "jsonl" (rows).
        shard: samples in a shard; the last one may have fewer.
        max_bytes: a shard with more bytes is cut into several files. A worker holds a file in
            memory, twice.
        executor: who the workers are: "inline" (nobody else), "threads", "processes" or "ray".
        workers: how many; one for each core, if nothing is said.

    Raises:
        IndexedError: for a dataset that is not indexed, or has no end.
        ConfigError: for one without samples, and a folder that holds other shards.
        DataError: for a sample that the format cannot hold; it names the sample.
        StorageError: where the folder cannot be written to.

    >>> import tempfile, penstock as ps
    >>> ds = ps.from_sequence(["a cat", "a dog", "a fox"]).map(lambda text: {"text": text})
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     files = ps.write(ds, folder, shard=2)
    ...     [file.name for file in files], ps.read(folder)[2]
    (['shard-000000.arrow', 'shard-000001.arrow'], {'text': 'a fox'})
    """
    if not isinstance(dataset, Dataset):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise no_dataset("write", dataset)
    chosen(format, SHARD_FORMATS, "format={}")
    chosen(executor, EXECUTORS, "executor={}")
    if place()[1] > 1:
        raise ConfigError(
            "write on several ranks would write the same files on each: write them beforehand"
        )
    most, per, samples = (
        whole(max_bytes, "max_bytes={}", 1),
        whole(shard, "shard={}", 1),
        len(dataset),
    )
    if not samples:
        raise ConfigError("write: the dataset is empty")
    columns = columns_of(dataset) if format == "arrow" else None
    writer = Writer(dataset, local(folder).absolute(), format, samples, per, most, columns)
    with storage(writer.folder):
        manifest = _begun(writer, _plan(writer))
        done = _done(writer, manifest)
    todo = [number for number in range(writer.shards()) if number not in done]
    try:
        done |= zip(
            todo, compute(f"write {folder}", "shards", writer, todo, executor, workers), strict=True
        )
    finally:
        _sweep(writer, ".shard-*.tmp", "..shard*.tmp")
    shards = [done[number] for number in range(writer.shards())]
    if not all(_here(writer, files) for files in shards):
        raise StorageError(
            f"{writer.folder}: shards that were written are not here; workers on other machines "
            "must write to storage "
            "that all of them and this process share"
        )
    if manifest.get("shards") != shards:
        write_whole(
            writer.folder / MANIFEST, json.dumps({**manifest, "shards": shards}, indent=1).encode()
        )
    _sweep(writer, ".shard-*.json")
    return [writer.folder / file["file"] for files in shards for file in files]


def _plan(writer: Writer) -> dict[str, Any]:
    """What the shards are of, as JSON: two with equal plans have equal bytes."""
    dataset = writer.dataset
    plan: dict[str, Any] = {
        "version": _VERSION,
        "format": writer.format,
        "samples": writer.samples,
        "shard": writer.shard,
        "max_bytes": writer.max_bytes,
        "table": writer.columns and writer.columns.describe(),
        "dataset": describe(dataset.flow),
        "data": dataset.compiled.data,
        "code": dataset.compiled.code,
    }
    return json.loads(json.dumps(plan))


def _begun(writer: Writer, plan: dict[str, Any]) -> dict[str, Any]:
    """The manifest that an earlier call left in the folder, if it is of these shards; or else a new
    one."""
    path = writer.folder / MANIFEST
    try:
        found: dict[str, Any] = json.loads(world.disk.read(path))
    except FileNotFoundError:
        if _listed(writer, "shard-*"):
            raise ConfigError(
                f"{writer.folder} holds shards, but no {MANIFEST} that says of what: give another "
                "folder"
            ) from None
        write_whole(path, json.dumps(plan).encode())
        return plan
    except ValueError as error:
        raise DataError(f"it is damaged: delete the folder ({error})", where=str(path)) from error
    then, now = ({name: one.get(name) for name in plan if name != "code"} for one in (found, plan))
    if lines := difference(then, now):
        said = "\n".join(f"  {line}" for line in lines[:20])
        raise ConfigError(
            f"{writer.folder} holds other shards:\n{said}\ngive another folder, or delete this one"
        )
    for note in code_notes(found["code"], plan["code"]):
        logging.getLogger("penstock").warning("%s was begun before: %s", writer.folder, note)
    return found


def _done(writer: Writer, manifest: Mapping[str, Any]) -> dict[int, list[Written]]:
    """The shards that are there, by their numbers."""
    finished: list[list[Written]] = manifest.get("shards", [])
    done = dict(enumerate(finished))
    for note in _listed(writer, ".shard-*.json"):
        done[int(note.name[len(".shard-") : -len(".json")])] = json.loads(world.disk.read(note))
    return {number: files for number, files in done.items() if _here(writer, files)}


def _here(writer: Writer, files: Sequence[Written]) -> bool:
    """Whether the files of a shard are there, with the sizes that were noted."""
    try:
        return all(
            world.store.stat(str(writer.folder / file["file"])).size == file["bytes"]
            for file in files
        )
    except OSError:
        return False


def _listed(writer: Writer, pattern: str) -> list[Path]:
    return [
        Path(entry.path) for entry in world.store.list(f"{escape(str(writer.folder))}/{pattern}")
    ]


def _sweep(writer: Writer, *patterns: str) -> None:
    """Take away what was needed on the way, and what those left who were killed."""
    for pattern in patterns:
        for path in _listed(writer, pattern):
            world.disk.unlink(path)
