"""Write a dataset as shards of a fixed number of samples, with any number of workers.

Shard `s` holds the samples at positions `s * shard` to `(s + 1) * shard - 1`. A shard is a function
of its number alone, so every worker writes the same bytes. Files, and the notes that mark shards as
done, are written atomically. After a crash, writing resumes and ends with the same files.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from glob import escape
from pathlib import Path
from typing import Any, cast

from ..arguments import check_choice, check_int, make_not_dataset_error, validate_arguments
from ..engine.base.canonical_json import list_differences
from ..engine.base.machine import detect_rank
from ..engine.runtime.compute import compute
from ..engine.runtime.executors import EXECUTORS, ExecutorName
from ..engine.steps.digests import code_notes
from ..errors import (
    MALFORMED_INPUT_ERRORS,
    ConfigError,
    DataError,
    StorageError,
    convert_storage_errors,
)
from ..explore.base import BaseDataset
from ..sources.chain import JoinedFiles
from ..sources.saved_dataset import MANIFEST_NAME
from ..sources.select import SelectedRows
from ..stores import storage
from ..stores.storage import write_atomically
from ..stores.urls import require_local
from .arrow import infer_columns
from .rows import ROW_FORMATS
from .shard import SHARD_FORMATS, ShardFormat, ShardWriter, WrittenFile

_VERSION = 2


@validate_arguments
def write(
    dataset: BaseDataset[Any],
    folder: str | Path,
    format: ShardFormat = "arrow",
    shard: int = 10_000,
    max_bytes: int = 1 << 30,
    executor: ExecutorName = "inline",
    workers: int | None = None,
) -> list[Path]:
    """Write pass 0 of an indexed dataset into files of `shard` samples each.

    `ps.read(folder)` gives the same samples. For Arrow files it knows their lengths, and
    `columns=["__key__"]` returns the sources, epochs and indices of each.

    A call after a crash resumes with the missing shards. The same samples give the same bytes,
    regardless of the workers and the number of attempts. Shards of another dataset are never
    overwritten.

    Args:
        dataset: indexed, with an end. Its functions run in the workers.
        folder: the folder of the shards; on a cluster, storage that all machines share.
        format: "arrow" (mappings of one form, or arrays of one axis), "tar" (WebDataset: mappings
            of parts) or "jsonl" (rows).
        shard: samples per shard; the last one may have fewer.
        max_bytes: a larger shard is cut into several files. A worker holds a file in memory, twice.
        executor: "inline" (this thread), "threads", "processes" or "ray".
        workers: the number of workers; by default one per core. "inline" has none.

    Returns:
        The files, in order.

    Raises:
        IndexedError: for a dataset that is not indexed, or has no end.
        ConfigError: for a dataset without samples, and a folder that holds other shards.
        DataError: for a sample that the format cannot hold; it names the sample.
        StorageError: if the folder cannot be written.

    >>> import tempfile, penstock as ps
    >>> ds = ps.from_sequence(["a cat", "a dog", "a fox"]).map(lambda text: {"text": text})
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     files = ps.write(ds, folder, shard=2)
    ...     [file.name for file in files], ps.read(folder)[2]
    (['shard-000000.arrow', 'shard-000001.arrow'], {'text': 'a fox'})
    """
    if not isinstance(dataset, BaseDataset):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise make_not_dataset_error("write", dataset)
    shards = write_shards(dataset, folder, format, shard, max_bytes, executor, workers)
    return [require_local(folder).absolute() / file["file"] for files in shards for file in files]


def write_shards(
    dataset: BaseDataset[Any],
    folder: str | Path,
    format: ShardFormat = "arrow",
    shard: int = 10_000,
    max_bytes: int = 1 << 30,
    executor: ExecutorName = "inline",
    workers: int | None = None,
    has_tokens: bool = False,
) -> list[list[WrittenFile]]:
    """Write shards, as `write` does, and return the records of the files of each.

    Args:
        dataset: indexed, with an end.
        folder: the folder of the shards.
        format: the format of the files.
        shard: samples per shard, with those that are dropped.
        max_bytes: the most bytes of a file.
        executor: where shards are written.
        workers: the number of workers.
        has_tokens: samples are tokens: count them, and leave out those that a chat dropped.

    Raises:
        IndexedError: for a dataset that is not indexed, or has no end.
        ConfigError: for a dataset without samples, and a folder that holds other shards.
        DataError: for a sample that the format cannot hold.
        StorageError: if the folder cannot be written.
    """
    known = "format={}"
    if str(format) in ROW_FORMATS and str(format) not in SHARD_FORMATS:
        known += f" (penstock.writing.write_rows(ds, folder, {format!r}) writes it)"
    check_choice(format, SHARD_FORMATS, known)
    check_choice(executor, EXECUTORS, "executor={}")
    dataset.tree.require_indexed(
        "write()", "write a stream by penstock.writing.write_rows(ds, folder)"
    )
    if detect_rank()[1] > 1:
        raise ConfigError(
            "write on several ranks would write the same files on each: write them on one rank, before "
            "the run"
        )
    file_limit, samples_per_shard, samples = (
        check_int(max_bytes, "max_bytes={}", 1),
        check_int(shard, "shard={}", 1),
        len(dataset),
    )
    if not samples:
        raise ConfigError("write: the dataset is empty")
    columns = infer_columns(dataset) if format == "arrow" else None
    writer = ShardWriter(
        dataset,
        require_local(folder).absolute(),
        format,
        samples,
        samples_per_shard,
        file_limit,
        columns,
        has_tokens,
    )
    with convert_storage_errors(writer.folder):
        manifest = _read_or_begin_manifest(writer, _build_content_record(writer))
        done = _find_finished_shards(writer, manifest)
    missing = [number for number in range(writer.shards()) if number not in done]
    try:
        done |= zip(
            missing,
            compute(f"write {folder}", "shards", writer, missing, executor, workers),
            strict=True,
        )
    finally:
        _delete_temporary_files(writer, ".shard-*.tmp", "..shard*.tmp")
    shards = [done[number] for number in range(writer.shards())]
    if not all(_has_all_files(writer, files) for files in shards):
        raise StorageError(
            f"{writer.folder}: shards that were written are missing; workers on other machines must "
            "write to storage that this process shares"
        )
    if manifest.get("shards") != shards:
        write_atomically(
            writer.folder / MANIFEST_NAME,
            json.dumps({**manifest, "shards": shards}, indent=1).encode(),
        )
    _delete_temporary_files(writer, ".shard-*.json")
    return shards


def _build_content_record(writer: ShardWriter) -> dict[str, Any]:
    """Return the content of the shards as JSON.

    Equal records mean equal bytes, apart from rows that the digests of `data` do not sample. The
    versions of the files tell when such rows may differ.
    """
    dataset = writer.dataset
    record: dict[str, Any] = {
        "version": _VERSION,
        "format": writer.format,
        "samples": writer.samples,
        "shard": writer.shard,
        "max_bytes": writer.max_bytes,
        "table": writer.columns and writer.columns.describe(),
        "dataset": dataset.tree.description(),
        "data": dataset.compiled.data,
        "code": dataset.compiled.code,
        "files": _digest_file_versions(dataset),
    }
    if writer.has_tokens:
        record["has_tokens"] = True
    return json.loads(json.dumps(record))


def _read_or_begin_manifest(writer: ShardWriter, record: dict[str, Any]) -> dict[str, Any]:
    """Return the manifest of an earlier call for these shards, or begin a new one."""
    path = writer.folder / MANIFEST_NAME
    try:
        manifest: dict[str, Any] = json.loads(storage.world.disk.read(path))
    except FileNotFoundError:
        if _list_files(writer, "shard-*"):
            raise ConfigError(
                f"{writer.folder} holds shards, but no {MANIFEST_NAME} that describes them: give another "
                "folder"
            ) from None
        write_atomically(path, json.dumps(record).encode())
        return record
    except ValueError as error:
        raise _make_corrupted_error(path, error) from error
    before, after = (
        {name: content.get(name) for name in record if name not in ("code", "files")}
        for content in (manifest, record)
    )
    if lines := list_differences(before, after):
        differences = "\n".join(f"  {line}" for line in lines[:20])
        raise ConfigError(
            f"{writer.folder} holds other shards:\n{differences}\ngive another folder, or delete this one"
        )
    try:
        notes = code_notes(manifest["code"], record["code"])
    except MALFORMED_INPUT_ERRORS as error:
        raise _make_corrupted_error(path, error) from error
    for note in notes:
        logging.getLogger("penstock").warning("%s was begun earlier: %s", writer.folder, note)
    if changed := _list_changed_sources(manifest, record):
        logging.getLogger("penstock").warning(
            "%s was begun earlier, and the files of %s were written again since; their sizes and "
            "sampled rows are equal, so finished shards stay as they are: delete the folder if any "
            "row changed",
            writer.folder, ", ".join(changed),
        )  # fmt: skip
    return manifest


def _digest_file_versions(dataset: BaseDataset[Any]) -> dict[str, str]:
    """Return a digest of the sizes and times of the files of each source that has files."""
    digests = dict[str, str]()
    for leaf in dataset.compiled.builder.leaves:
        source = leaf.source
        files = source.chain if isinstance(source, SelectedRows) else source
        if isinstance(files, JoinedFiles):
            versions = [stat[:2] for stat in (*files.stats, *files.stat_companions(files.paths))]
            text = json.dumps(versions).encode()
            digests[leaf.name] = hashlib.blake2b(text, digest_size=8).hexdigest()
    return digests


def _list_changed_sources(manifest: Mapping[str, Any], record: Mapping[str, Any]) -> list[str]:
    """Return the names of the sources whose files have other times than in a manifest."""
    given = manifest.get("files")
    saved = cast("dict[str, Any]", given) if isinstance(given, dict) else {}
    return [name for name, digest in record["files"].items() if saved.get(name, digest) != digest]


def _make_corrupted_error(path: Path, error: Exception) -> DataError:
    return DataError(f"the manifest is corrupted: delete the folder ({error})", where=str(path))


def _find_finished_shards(
    writer: ShardWriter, manifest: Mapping[str, Any]
) -> dict[int, list[WrittenFile]]:
    """Return the records of the complete shards, by shard number."""
    finished: list[list[WrittenFile]] = manifest.get("shards", [])
    done = dict(enumerate(finished))
    for note in _list_files(writer, ".shard-*.json"):
        done[int(note.name[len(".shard-") : -len(".json")])] = json.loads(
            storage.world.disk.read(note)
        )
    return {number: files for number, files in done.items() if _has_all_files(writer, files)}


def _has_all_files(writer: ShardWriter, files: Sequence[WrittenFile]) -> bool:
    """Return whether the files of a shard exist with the recorded sizes."""
    try:
        return all(
            storage.world.store.stat(str(writer.folder / file["file"])).size == file["bytes"]
            for file in files
        )
    except OSError:
        return False


def _list_files(writer: ShardWriter, pattern: str) -> list[Path]:
    return [
        Path(entry.path)
        for entry in storage.world.store.list(f"{escape(str(writer.folder))}/{pattern}")
    ]


def _delete_temporary_files(writer: ShardWriter, *patterns: str) -> None:
    """Delete temporary files, including those of killed workers."""
    for pattern in patterns:
        for path in _list_files(writer, pattern):
            storage.world.disk.unlink(path)
