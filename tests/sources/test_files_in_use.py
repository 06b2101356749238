"""Files as people have them: copied, linked, rewritten, appended to, cut off, with what other tools keep beside them.

A row of `TOOLS` writes data as a tool does; a scenario changes it. What is read are the right rows, or an error that names
the file: never other rows in silence.
"""

from __future__ import annotations

import gzip
import hashlib
import importlib
import json
import logging
import os
import shutil
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.ipc as ipc
import pyarrow.parquet as pq
import pytest

import energon_folders
import foreign_formats
import penstock as ps
from archives import write as write_tar
from damage import Careless
from penstock.errors import ConfigError, DataError, PenstockError, StorageError
from penstock.sources import metadata, open_files
from penstock.stores import storage
from penstock.text import Tokenise

OLD, SAME_SIZE, LONGER = range(100, 112), range(200, 212), range(100, 130)
TIME = 1_700_000_000


@dataclass(frozen=True)
class Tool:
    """Writes samples of these ids into a folder and returns what to read; `id_of` gives the id of a row.

    What is `open_ended` may be cut off after any row, and be whole.
    """

    write: Callable[[Path, Sequence[int]], str]
    id_of: Callable[[Any], int] = lambda row: int(row["id"])
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    open_ended: bool = False


def lines(ids: Sequence[int]) -> bytes:
    return "".join(
        json.dumps({"id": number, "text": f"wörd {number}"}) + "\n" for number in ids
    ).encode()


def table(ids: Sequence[int]) -> pa.Table:
    return pa.table({"id": list(ids), "text": [f"w{number}" for number in ids]})


def jsonl(at: Path, ids: Sequence[int]) -> str:
    (at / "a.jsonl").write_bytes(lines(ids))
    return "*.jsonl"


def jsonl_gz(at: Path, ids: Sequence[int]) -> str:
    (at / "a.jsonl.gz").write_bytes(gzip.compress(lines(ids), mtime=0))
    return "*.jsonl.gz"


def json_array(at: Path, ids: Sequence[int]) -> str:
    (at / "a.json").write_text(json.dumps([{"id": number} for number in ids]))
    return "a.json"


def many_lines(at: Path, ids: Sequence[int]) -> str:
    for number in range(32):
        (at / f"{number:02d}.jsonl").write_bytes(lines(ids[number : number + 1]))
    return "*.jsonl"


def text(at: Path, ids: Sequence[int]) -> str:
    (at / "a.txt").write_text("".join(f"{number}\n" for number in ids))
    return "*.txt"


def csv(at: Path, ids: Sequence[int]) -> str:
    (at / "a.csv").write_text("id,text\n" + "".join(f"{number},w\n" for number in ids))
    return "*.csv"


def tar(at: Path, ids: Sequence[int]) -> str:
    write_tar(
        at / "a.tar",
        [(f"{number}.{part}", str(number).encode()) for number in ids for part in ("cls", "txt")],
    )
    return "*.tar"


def tar_gz(at: Path, ids: Sequence[int]) -> str:
    whole = write_tar(at / "whole", [(f"{number}.cls", str(number).encode()) for number in ids])
    (at / "a.tar.gz").write_bytes(gzip.compress(whole.read_bytes(), mtime=0))
    whole.unlink()
    return "*.tar.gz"


def parquet(at: Path, ids: Sequence[int]) -> str:
    pq.write_table(table(ids), at / "part-00000.parquet", row_group_size=5, compression="none")
    return "*.parquet"


def arrow(at: Path, ids: Sequence[int]) -> str:
    with ipc.new_file(str(at / "a.arrow"), table(ids).schema) as writer:
        writer.write_table(table(ids), max_chunksize=5)
    return "*.arrow"


def arrow_stream(at: Path, ids: Sequence[int]) -> str:
    with ipc.new_stream(str(at / "a.arrow"), table(ids).schema) as writer:
        writer.write_table(table(ids), max_chunksize=5)
    return "*.arrow"


def saved(at: Path, ids: Sequence[int]) -> str:
    datasets: Any = pytest.importorskip("datasets")
    datasets.disable_progress_bars()
    shutil.rmtree(at / "saved", ignore_errors=True)
    datasets.Dataset.from_dict({"id": list(ids)}).save_to_disk(str(at / "saved"), num_shards=2)
    return "saved"


def documents(ids: Sequence[int]) -> list[Any]:
    return [np.asarray([number, *[7] * (number % 3), 0], np.uint16) for number in ids]


def raw(at: Path, ids: Sequence[int]) -> str:
    np.concatenate(documents(ids)).tofile(at / "a.bin")
    return "*.bin"


def llm_c(at: Path, ids: Sequence[int]) -> str:
    body = np.concatenate(documents(ids))
    head = np.zeros(256, np.int32)
    head[:3] = 20240520, 1, len(body)
    (at / "a.bin").write_bytes(head.tobytes() + body.tobytes())
    return "*.bin"


def npy(at: Path, ids: Sequence[int]) -> str:
    np.save(at / "a.npy", np.concatenate(documents(ids)))
    return "*.npy"


def olmo(at: Path, ids: Sequence[int]) -> str:
    np.concatenate(documents(ids)).tofile(at / "a.npy")
    ends = np.cumsum([len(each) for each in documents(ids)]).tolist()
    rows = "".join(f"{start},{end}\n" for start, end in zip([0, *ends], ends, strict=False))
    (at / "a.csv.gz").write_bytes(gzip.compress(rows.encode(), mtime=0))
    return "*.npy"


def megatron(at: Path, ids: Sequence[int]) -> str:
    lengths = np.asarray([len(each) for each in documents(ids)], "<i4")
    ends = np.cumsum(lengths, dtype=np.int64)
    np.concatenate(documents(ids)).tofile(at / "a.bin")
    head = struct.pack("<9sQBQQ", b"MMIDIDX\0\0", 1, 8, len(lengths), len(lengths) + 1)
    pointers, cuts = 2 * (ends - lengths), np.arange(len(lengths) + 1)
    (at / "a.idx").write_bytes(head + lengths.tobytes() + pointers.tobytes() + cuts.tobytes())
    return "*.bin"


def datatrove(at: Path, ids: Sequence[int]) -> str:
    np.concatenate(documents(ids)).tofile(at / "a.ds")
    np.cumsum([len(each) for each in documents(ids)]).astype("<u8").tofile(at / "a.ds.index")
    (at / "a.ds.metadata").write_text(f"tokenizer|2\n{sum(map(len, documents(ids)))}\n")
    return "*.ds"


def mds(at: Path, ids: Sequence[int]) -> str:
    shutil.rmtree(at / "mds", ignore_errors=True)
    foreign_formats.write_mds(
        at / "mds",
        [{"id": number, "text": f"w{number}"} for number in ids],
        {"id": "int", "text": "str"},
    )
    return "mds"


def tfrecord(at: Path, ids: Sequence[int]) -> str:
    rows = [foreign_formats.example({"id": np.array([number], np.int64)}) for number in ids]
    foreign_formats.write_tfrecord(at / "a.tfrecord", rows)
    return "*.tfrecord"


def array_record(at: Path, ids: Sequence[int]) -> str:
    module: Any = pytest.importorskip("array_record.python.array_record_module")
    writer = module.ArrayRecordWriter(str(at / "a.array_record"), "group_size:3")
    for number in ids:
        writer.write(str(number).encode())
    writer.close()
    return "*.array_record"


def litdata(at: Path, ids: Sequence[int]) -> str:
    shutil.rmtree(at / "lit", ignore_errors=True)
    foreign_formats.write_litdata(at / "lit", [{"id": number} for number in ids], {"id": "int"})
    return "lit"


def hdf5(at: Path, ids: Sequence[int]) -> str:
    h5py: Any = pytest.importorskip("h5py")
    (at / "a.h5").unlink(missing_ok=True)
    with h5py.File(at / "a.h5", "w") as file:
        file.create_dataset("id", data=np.asarray(ids), chunks=(5,))
    return "*.h5"


def zarr(at: Path, ids: Sequence[int]) -> str:
    module: Any = pytest.importorskip("zarr")
    shutil.rmtree(at / "a.zarr", ignore_errors=True)
    group = module.open_group(str(at / "a.zarr"), mode="w")
    group.create_array("id", data=np.asarray(ids), chunks=(5,))
    return "a.zarr"


def first_token(document: Any) -> int:
    return int(document[0])


RAW = {"dtype": "uint16", "eos": 0}

TOOLS: dict[str, Tool] = {
    "jsonl": Tool(jsonl, open_ended=True),
    "jsonl.gz": Tool(jsonl_gz),
    "json": Tool(json_array, open_ended=True),  # nothing at all is no line, too
    "many files": Tool(many_lines, open_ended=True),
    "text": Tool(text, lambda row: int(row["text"]), open_ended=True),
    "csv": Tool(csv, open_ended=True),
    "tar": Tool(tar, lambda row: int(row["cls"])),
    "tar.gz": Tool(tar_gz, lambda row: int(row["cls"])),
    "parquet": Tool(parquet),
    "arrow": Tool(arrow),
    "arrow stream": Tool(arrow_stream),
    "datasets": Tool(saved),
    "raw tokens": Tool(raw, first_token, RAW, open_ended=True),
    "llm.c": Tool(llm_c, first_token, {"eos": 0}),
    "npy": Tool(npy, first_token, {"eos": 0}),
    "olmo": Tool(olmo, first_token, {"dtype": "uint16"}),
    "megatron": Tool(megatron, first_token),
    "datatrove": Tool(datatrove, first_token),
    "mds": Tool(mds),
    "tfrecord": Tool(tfrecord, lambda row: int(row["id"][0]), open_ended=True),
    "array_record": Tool(array_record, lambda row: int(row["__record__"])),
    "litdata": Tool(litdata),
    "hdf5": Tool(hdf5),
    "zarr": Tool(zarr),
}


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing was said before, and the disk need not last."""
    monkeypatch.setattr(metadata, "_LOGGED_MESSAGES", set[str]())
    with storage.override_world(disk=Careless()):
        yield


def files(folder: Path) -> list[Path]:
    return sorted(each for each in folder.rglob("*") if each.is_file())


def data_files(folder: Path) -> list[Path]:
    """The files that hold rows, without what was kept beside them or describes them."""
    beside = (".idx", ".index", ".metadata", ".gz" if any(folder.glob("*.npy")) else "-", ".json")
    alone = len(files(folder)) == 1
    return [
        each
        for each in files(folder)
        if not each.name.startswith(".")
        and (alone or each.suffix not in beside)
        and each.name != "zarr.json"
    ]


def made(tool: Tool, folder: Path, ids: Sequence[int] = OLD) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    pattern = tool.write(folder, ids)
    for each in files(folder):
        if not each.name.startswith("."):
            os.utime(each, (TIME, TIME))
    return pattern


def ids_of(tool: Tool, source: Any) -> list[int]:
    return [tool.id_of(row) for row in source.read(np.arange(len(source)))]


def read(tool: Tool, folder: Path, pattern: str) -> list[int] | str:
    """The ids of what is read, or the error that names a file of it."""
    try:
        return ids_of(tool, open_files(folder / pattern, **tool.options))
    except (DataError, StorageError, ConfigError) as error:
        assert str(folder) in str(error), error
        return str(error)


def never_others(found: list[int] | str, *right: Sequence[int]) -> None:
    assert isinstance(found, str) or found in [[*each] for each in right], found


# ---------------------------------------------------------------- moved and linked


def copied(source: Path, target: Path) -> None:
    """Copy like `cp -r`: the times are new."""
    shutil.copytree(source, target, copy_function=shutil.copyfile)


def synced(source: Path, target: Path) -> None:
    """Copy like `rsync -a`: the times are kept."""
    shutil.copytree(source, target)


def hard_linked(source: Path, target: Path) -> None:
    """Make hard links like `cp -al`."""
    shutil.copytree(source, target, copy_function=os.link)


def moved(source: Path, target: Path) -> None:
    shutil.move(source, target)


def of_the_hub(source: Path, target: Path) -> None:
    """Lay files out like the hub cache: links in a snapshot to blobs named by digest."""
    (target.parent / "blobs").mkdir()
    for each in files(source):
        link = target / each.relative_to(source)
        link.parent.mkdir(parents=True, exist_ok=True)
        blob = (
            target.parent
            / "blobs"
            / hashlib.sha256(each.read_bytes() + each.name.encode()).hexdigest()
        )
        shutil.copy(each, blob)
        link.symlink_to(os.path.relpath(blob, link.parent))


MOVES = (copied, synced, hard_linked, moved, of_the_hub)


@pytest.mark.parametrize("move", MOVES)
@pytest.mark.parametrize("indexed", [True, False])
@pytest.mark.parametrize("name", TOOLS)
def test_data_that_was_moved_is_the_same_or_refused(
    name: str, indexed: bool, move: Callable[[Path, Path], None], tmp_path: Path
) -> None:
    tool, source, target = TOOLS[name], tmp_path / "first", tmp_path / "hub" / "snapshots"
    pattern = made(tool, source)
    if indexed:
        assert read(tool, source, pattern) == [*OLD]
    target.parent.mkdir()
    move(source, target)
    found = read(tool, target, pattern)
    never_others(found, OLD)
    assert found == [*OLD] or indexed


@pytest.mark.parametrize("name", TOOLS)
def test_another_snapshot_of_the_hub_is_another_data_set(name: str, tmp_path: Path) -> None:
    tool, snapshot = TOOLS[name], tmp_path / "hub" / "snapshot"
    for turn, ids in enumerate((OLD, SAME_SIZE)):
        pattern = made(tool, tmp_path / str(turn), ids)
        shutil.rmtree(tmp_path / "hub" / "blobs", ignore_errors=True)
        for link in snapshot.rglob("*") if turn else ():
            if link.is_symlink():
                link.unlink()
        snapshot.parent.mkdir(exist_ok=True)
        of_the_hub(tmp_path / str(turn), snapshot)
        never_others(read(tool, snapshot, pattern), ids)


# ---------------------------------------------------------------- written again


def same_bytes(tool: Tool, folder: Path) -> Sequence[int]:
    """Exported anew: the same rows at another time."""
    tool.write(folder, OLD)
    for each in files(folder):
        os.utime(each, (TIME + 9, TIME + 9))
    return OLD


def replaced(tool: Tool, folder: Path) -> Sequence[int]:
    """Other rows, put in the place of the old ones in one step."""
    made(tool, folder.parent / "new", SAME_SIZE)
    for each in files(folder.parent / "new"):
        target = folder / each.relative_to(folder.parent / "new")
        os.utime(each, (TIME + 9, TIME + 9))
        os.replace(each, target)
    return SAME_SIZE


def replaced_alike(tool: Tool, folder: Path) -> Sequence[int]:
    """Rewrite files, keeping size and time."""
    made(tool, folder.parent / "new", SAME_SIZE)
    for each in files(folder.parent / "new"):
        os.replace(each, folder / each.relative_to(folder.parent / "new"))
    return SAME_SIZE


def written_over(tool: Tool, folder: Path) -> Sequence[int]:
    """Other rows of one size, written into the files, their time put back."""
    made(tool, folder.parent / "new", SAME_SIZE)
    for each in files(folder.parent / "new"):
        target = folder / each.relative_to(folder.parent / "new")
        with open(target, "r+b") as file:
            file.write(each.read_bytes())
            file.truncate()
        os.utime(target, (TIME, TIME))
    return SAME_SIZE


def grown(tool: Tool, folder: Path) -> Sequence[int]:
    """More rows, as those write who append."""
    made(tool, folder.parent / "new", LONGER)
    for each in files(folder.parent / "new"):
        target = folder / each.relative_to(folder.parent / "new")
        target.parent.mkdir(parents=True, exist_ok=True)
        with open(target, "r+b" if target.exists() else "wb") as file:
            file.write(each.read_bytes())
            file.truncate()
    return LONGER


CHANGES = (same_bytes, replaced, replaced_alike, written_over, grown)


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("name", TOOLS)
def test_data_that_was_written_again_is_the_new_or_refused(
    name: str, change: Callable[[Tool, Path], Sequence[int]], tmp_path: Path
) -> None:
    tool, folder = TOOLS[name], tmp_path / "data"
    pattern = made(tool, folder)
    assert read(tool, folder, pattern) == [*OLD]
    new = change(tool, folder)
    never_others(read(tool, folder, pattern), new)


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("name", TOOLS)
def test_data_that_is_written_again_during_a_run_is_the_old_or_refused(
    name: str,
    change: Callable[[Tool, Path], Sequence[int]],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    tool, folder = TOOLS[name], tmp_path / "data"
    pattern = made(tool, folder)
    source = open_files(folder / pattern, **tool.options)
    source.read(np.arange(2))
    change(tool, folder)
    try:
        with caplog.at_level(logging.WARNING, "penstock"):
            found = ids_of(tool, source)
    except PenstockError as error:
        assert str(folder) in str(error), error
        return
    said = "content with its time put back" in caplog.text and str(folder) in caplog.text
    assert found == [*OLD] or (change is written_over and said)


@pytest.mark.parametrize("name", TOOLS)
def test_a_first_state_after_a_file_got_another_time_fits_the_files(
    name: str, tmp_path: Path
) -> None:
    tool, folder = TOOLS[name], tmp_path / "data"
    pattern = made(tool, folder)

    def make_loader() -> ps.Loader:
        read = ps.read(folder / pattern, name="a", **tool.options)
        return ps.Loader(read.batch(2, collate=list))

    loader = make_loader()
    next(iter(loader))
    for path in sorted(folder.rglob("*")):
        os.utime(path, (TIME, TIME))
    state = loader.state_dict()
    make_loader().load_state_dict(json.loads(json.dumps(state)))


def in_one_step(target: Path, body: bytes) -> None:
    target.with_name("new").write_bytes(body)
    os.replace(target.with_name("new"), target)


def in_place(target: Path, body: bytes) -> None:
    with open(target, "r+b") as file:
        file.write(body)


@pytest.mark.parametrize("write", [in_one_step, in_place, None])
@pytest.mark.parametrize("name", TOOLS)
def test_one_file_that_changes_during_a_run_is_refused(
    name: str, write: Callable[[Path, bytes], None] | None, tmp_path: Path
) -> None:
    tool, folder = TOOLS[name], tmp_path / "data"
    pattern = made(tool, folder)
    source = open_files(folder / pattern, **tool.options)
    source.read(np.arange(2))
    made(tool, tmp_path / "new", SAME_SIZE)
    path = data_files(folder)[-1]
    if write is not None:
        write(path, (tmp_path / "new" / path.relative_to(folder)).read_bytes())
    else:
        path.unlink()
    try:
        found = ids_of(tool, source)
    except PenstockError as error:
        assert str(folder) in str(error), error
        return
    assert found == [*OLD]


class Swapping(storage.LocalStore):
    """Replaces a file just after its version was asked for so many times."""

    def __init__(self, path: Path, body: bytes, asked: int) -> None:
        self._path, self._body, self._left = path, body, asked

    def stat(self, path: str, /) -> storage.Stat:
        found = super().stat(path)
        self._left -= path == str(self._path)
        if self._left == 0:
            self._left = -1
            in_one_step(self._path, self._body)
        return found


@pytest.mark.parametrize(
    "name", ["jsonl", "jsonl.gz", "csv", "tar", "tar.gz", "parquet", "arrow", "npy", "tfrecord"]
)
def test_a_file_that_is_replaced_between_two_looks_is_never_read_as_the_old_one(
    name: str, tmp_path: Path
) -> None:
    tool, new = TOOLS[name], range(1000, 1030)
    made(tool, tmp_path / "new", new)
    for asked in range(1, 10):
        folder = tmp_path / str(asked)
        pattern = made(tool, folder)
        (path,) = data_files(folder)
        if asked % 2:  # the index is there
            read(tool, folder, pattern)
        body = (tmp_path / "new" / path.name).read_bytes()
        with storage.override_world(store=Swapping(path, body, asked)):
            never_others(read(tool, folder, pattern), OLD, new)


# ---------------------------------------------------------------- cut off


def cuts(body: bytes) -> Iterator[bytes]:
    yield from (body[: len(body) * tenth // 10] for tenth in range(10))
    yield body[:-1]


@pytest.mark.parametrize("name", TOOLS)
def test_data_that_was_cut_off_is_refused(name: str, tmp_path: Path) -> None:
    tool, folder = TOOLS[name], tmp_path / "data"
    pattern = made(tool, folder)
    path = data_files(folder)[0]
    body = path.read_bytes()
    for turn, part in enumerate(cuts(body)):
        target = tmp_path / str(turn)
        shutil.copytree(folder, target)
        (target / path.relative_to(folder)).write_bytes(part)
        found = read(tool, target, pattern)
        if isinstance(found, str):
            continue
        assert tool.open_ended or found == [*OLD], "as if it were whole"
        kept = (
            found[:-1] if name in ("text", "csv", "raw tokens") else found
        )  # half a last row is a row
        assert kept == ([*OLD][-len(kept) :] if name == "many files" else [*OLD][: len(kept)])


# ---------------------------------------------------------------- files beside tokens


def write_ends(name: str, folder: Path, lengths: Sequence[int]) -> None:
    """Write the file beside `a`, of 40 tokens, that says where its documents end."""
    ends = np.cumsum(lengths, dtype=np.int64)
    if name == "olmo":
        rows = "".join(f"{start},{end}\n" for start, end in zip([0, *ends], ends, strict=False))
        (folder / "a.csv.gz").write_bytes(gzip.compress(rows.encode(), mtime=0))
    elif name == "megatron":
        head = struct.pack("<9sQBQQ", b"MMIDIDX\0\0", 1, 8, len(ends), len(ends) + 1)
        starts = 2 * (ends - lengths)
        body = np.asarray(lengths, "<i4").tobytes() + starts.tobytes()
        (folder / "a.idx").write_bytes(head + body + np.arange(len(ends) + 1).tobytes())
    else:
        ends.astype("<u8").tofile(folder / "a.ds.index")


def open_with_ends(name: str, folder: Path) -> ps.Dataset:
    pattern = {"olmo": "*.npy", "megatron": "*.bin", "datatrove": "*.ds"}[name]
    return ps.read(folder / pattern, name="s", **TOOLS[name].options)


@pytest.mark.parametrize("name", ["olmo", "megatron", "datatrove"])
def test_states_know_documents_whose_ends_alone_were_written_again(
    name: str, tmp_path: Path
) -> None:
    lengths = [3, 1, 4, 2, 5, 25]
    np.arange(1, 41, dtype=np.uint16).tofile(
        tmp_path / {"olmo": "a.npy", "megatron": "a.bin", "datatrove": "a.ds"}[name]
    )
    (tmp_path / "a.ds.metadata").write_text("tokenizer|2\n40\n")
    write_ends(name, tmp_path, lengths)
    loader = ps.Loader(open_with_ends(name, tmp_path))
    next(iter(loader))
    state = loader.state_dict()
    write_ends(name, tmp_path, [lengths[0], *lengths[:0:-1]])  # the delivered document is the same
    with pytest.raises(ps.StateError, match="'s': other rows"):
        ps.Loader(open_with_ends(name, tmp_path)).load_state_dict(state)


# ---------------------------------------------------------------- descriptions of rows


def exclude_another_sample(folder: Path) -> None:
    """Exclude another sample of a folder that Energon prepared; its archives stay as they are."""
    split = folder / ".nv-meta" / "split.yaml"
    excluded = "train-000.tar/train/8" if split.stat().st_mtime == TIME else "train-000.tar/train/3"
    content = json.loads(split.read_text())
    split.write_text(json.dumps({**content, "exclude": [excluded]}))


def swap_names(folder: Path) -> None:
    """Swap the names of two columns in the index of LitData; its chunks stay as they are."""
    index = folder / "index.json"
    content = json.loads(index.read_text())
    spec = json.loads(content["config"]["data_spec"])
    spec[1]["context"] = json.dumps(json.loads(spec[1]["context"])[::-1])
    content["config"]["data_spec"] = json.dumps(spec)
    index.write_text(json.dumps(content))


def write_energon_folder(folder: Path) -> None:
    energon_folders.folder(folder, {"train": energon_folders.texts(0, 20)})
    exclude_another_sample(folder)
    os.utime(folder / ".nv-meta" / "split.yaml", (TIME, TIME))


def write_two_texts(folder: Path) -> None:
    rows = [{"a": f"a{number}", "b": f"b{number}"} for number in range(20)]
    foreign_formats.write_litdata(folder, rows, {"a": "str", "b": "str"})


@pytest.mark.parametrize(
    ("write", "change"),
    [(write_energon_folder, exclude_another_sample), (write_two_texts, swap_names)],
)
def test_states_know_rows_whose_description_alone_was_written_again(
    write: Callable[[Path], None], change: Callable[[Path], None], tmp_path: Path
) -> None:
    write(tmp_path / "data")
    loader = ps.Loader(ps.read(tmp_path / "data").shuffle(seed=1))
    next(iter(loader))
    state = loader.state_dict()
    change(tmp_path / "data")
    with pytest.raises(ps.StateError, match="'data': other rows"):
        ps.Loader(ps.read(tmp_path / "data").shuffle(seed=1)).load_state_dict(state)


def test_selected_rows_follow_the_description_of_the_rows(tmp_path: Path) -> None:
    write_two_texts(tmp_path / "data")
    assert ps.read(tmp_path / "data", where={"a": ["a3"]})[0] == {"a": "a3", "b": "b3"}
    swap_names(tmp_path / "data")
    assert ps.read(tmp_path / "data", where={"a": ["b4"]})[0] == {"b": "a4", "a": "b4"}
    assert len(ps.read(tmp_path / "data", where={"a": ["a3"]})) == 0


def test_token_counts_follow_the_description_of_the_rows(tmp_path: Path) -> None:
    from tokenizers import Tokenizer, models

    letters = {"<unk>": 0, "a": 1, "b": 2}
    letter = Tokenizer(models.BPE(letters, [], unk_token="<unk>"))
    rows = [{"a": "a" * (number + 1), "b": "bb"} for number in range(8)]
    foreign_formats.write_litdata(tmp_path / "data", rows, {"a": "str", "b": "str"})
    tokenise = Tokenise(letter, "a")

    def count_tokens() -> int:
        packed = ps.read(tmp_path / "data", lengths=tokenise).map(tokenise).pack(4, "concat_split")
        return 4 * len(packed)

    assert count_tokens() == 36
    swap_names(tmp_path / "data")
    assert count_tokens() == 16


def open_with_labels(path: Path) -> list[tuple[str, str]]:
    """Open a custom format, whose labels lie in another file."""
    labels = path.with_suffix(".labels").read_text().split()
    return list(zip(path.read_text().split(), labels, strict=True))


def test_states_know_other_files_that_a_custom_format_reads(tmp_path: Path) -> None:
    def load() -> ps.Loader:
        return ps.Loader(ps.read(tmp_path / "a.words", format=open_with_labels).shuffle(seed=1))

    (tmp_path / "a.words").write_text("one two three four")
    (tmp_path / "a.labels").write_text("1 2 3 4")
    loader = load()
    next(iter(loader))
    state = loader.state_dict()
    load().load_state_dict(state)
    (tmp_path / "a.labels").write_text("1 2 4 3")
    with pytest.raises(ps.StateError, match="'a': other rows"):
        load().load_state_dict(state)


# ---------------------------------------------------------------- beside others


@pytest.mark.parametrize("name", TOOLS)
def test_data_with_the_files_of_other_tools_beside_it_is_the_same(
    name: str, tmp_path: Path
) -> None:
    tool, folder = TOOLS[name], tmp_path / "data"
    pattern = made(tool, folder)
    root = folder if "*" in pattern or "." in pattern else folder / pattern
    for beside in (
        "_SUCCESS",
        "README.md",
        ".a.crc",
        "._a",
        ".DS_Store",
        "dataset_infos.json",
        "x.tmp",
        "x.lock",
    ):
        (root / beside).write_text('{"about": 1}')
    (root / "_temporary" / "0").mkdir(parents=True)
    for each in data_files(folder)[:1]:
        shutil.copy(each, root / "_temporary" / "0" / each.name)
    for asked in {pattern, *(("", "*") if "*" in pattern else ())}:
        assert read(tool, folder, asked) == [*OLD]


def test_every_format_has_a_row() -> None:
    kinds = set(importlib.import_module("penstock.sources.paths").FORMATS.values())
    assert {"lance", "vortex"} == kinds - {
        "jsonl", "text", "csv", "tar", "parquet", "arrow", "tokens", "mds", "tfrecord", "array_record", "hdf5",
    }  # fmt: skip
