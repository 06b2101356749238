"""Archives as they come from other programs: every sample, in any order, from every format."""

from __future__ import annotations

import gzip
import pickle
import tarfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from archives import FORMATS, expected, gnu_tar, samples, some, special, write
from penstock.engine.base.progress import Progress
from penstock.errors import ConfigError, DataError
from penstock.sources import index_and_count_rows, open_files, tar_file, tar_index
from penstock.sources.tar import MemberIterator
from penstock.stores import storage
from penstock.testing import assert_covers, assert_elastic, assert_resumes


def by_webdataset(path: Path) -> list[dict[str, Any]]:
    pytest.importorskip("webdataset")
    from webdataset.tariterators import group_by_keys, tar_file_expander

    with path.open("rb") as stream:  # its own opener leaves files open
        found = list(group_by_keys(tar_file_expander([{"url": path.name, "stream": stream}])))
    return [
        {"__shard__" if name == "__url__" else name: value for name, value in sample.items()}
        for sample in found
    ]


@pytest.mark.parametrize("format", FORMATS)
def test_samples_come_back_in_any_order(tmp_path: Path, format: str) -> None:
    members = some(40)
    path = write(tmp_path / "x.tar", members, format)
    source, want = open_files(path), expected(members, "x.tar")
    assert len(source) == 40
    assert source.read(np.arange(40)) == want == by_webdataset(path)
    order = np.random.default_rng(1).integers(0, 40, 300)
    assert source.read(order) == [want[index] for index in order.tolist()]
    assert source.read(np.zeros(0, np.int64)) == []
    assert source.lengths() is None
    assert source.name == "x"
    assert source.describe() == {"format": "tar", "rows": 40, "columns": None}


LONG = {
    "short.txt": b"1",
    "a/b.c/d.e.f": b"2",
    f"{'d' * 90}/{'n' * 60}.jpg": b"x" * 513,
    "ümläut/ß.txt": "é".encode(),
}
LONGER = {**LONG, f"{'e' * 120}/{'f' * 200}.txt": b"4", f"{'e' * 120}/{'f' * 200}.json": b"{}"}


@pytest.mark.parametrize(
    ("options", "files"),
    [
        (("--format=gnu",), LONGER),
        (("--format=posix",), LONGER),
        (("--format=oldgnu",), LONGER),
        (("--format=ustar",), LONG),
        (("--format=v7",), {"short.txt": b"1", "a/b.txt": b"2"}),
        (("--format=gnu", "--blocking-factor=1"), LONGER),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_what_gnu_tar_writes(
    tmp_path: Path, options: tuple[str, ...], files: dict[str, bytes]
) -> None:
    path = gnu_tar(tmp_path / "x.tar", files, *options)
    assert samples(path) == expected(files.items(), "x.tar") == by_webdataset(path)


def test_times_in_a_gnu_header_are_no_part_of_the_name(tmp_path: Path) -> None:
    # Python's tarfile takes them for the prefix that POSIX puts there: webdataset gives the key '15300356461/a/1'.
    path = gnu_tar(tmp_path / "x.tar", {"a/1.txt": b"1"}, "--format=gnu", "--incremental")
    assert samples(path) == expected([("a/1.txt", b"1")], "x.tar") != by_webdataset(path)


def test_what_webdataset_writes(tmp_path: Path) -> None:
    pytest.importorskip("webdataset")
    from webdataset import TarWriter  # pyright: ignore[reportAttributeAccessIssue]

    with TarWriter(str(tmp_path / "x.tar")) as sink:
        for number in range(9):
            sink.write(
                {
                    "__key__": f"train/{number}",
                    "txt": f"text {number}",
                    "json": {"n": number},
                    "cls": number,
                }
            )
    found = samples(tmp_path / "x.tar")
    assert found == by_webdataset(tmp_path / "x.tar")
    assert found[3] == {
        "__key__": "train/3",
        "__shard__": "x.tar",
        "txt": b"text 3",
        "json": b'{"n": 3}',
        "cls": b"3",
    }


@given(
    st.lists(
        st.tuples(
            st.text(
                st.characters(codec="utf-8", exclude_characters="\0/", exclude_categories=["Cs"]),
                min_size=1,
                max_size=90,
            ),
            st.integers(0, 1200),
            st.booleans(),
        ),
        max_size=8,
    ),
    st.sampled_from(["gnu", "pax"]),
)
def test_members_lie_where_tarfile_says(
    tmp_path_factory: pytest.TempPathFactory, files: list[Any], format: str
) -> None:
    path = tmp_path_factory.mktemp("t") / "x.tar"
    write(
        path,
        [(("deep/" * 30 if deep else "") + name, bytes(size)) for name, size, deep in files],
        format,
    )
    whole = path.read_bytes()
    members = MemberIterator(lambda at, length: whole[at : at + length], 0, len(whole), "x.tar")
    ours = [(one.name, one.start, one.data, one.size) for one in members]
    with tarfile.open(path) as archive:
        assert ours == [(one.name, one.offset, one.offset_data, one.size) for one in archive]
        assert members.at == archive.offset


def test_members_that_belong_to_no_sample(tmp_path: Path) -> None:
    members: list[tuple[str, Any]] = [
        ("images", special(tarfile.DIRTYPE)),
        ("__meta__", b"{}"),
        ("__notes__/a.txt", b"no"),
        ("README", b"no dot"),
        ("images/1.txt", b"a"),
        ("images/__not_meta__.txt", b"b"),
        ("._2.txt", b"left by a file manager"),
        ("images/._2.txt", b"left by a file manager"),
        ("2.txt", b"c"),
        ("latest", special(tarfile.SYMTYPE, "2.txt")),
    ]
    found = samples(write(tmp_path / "x.tar", members))
    assert [(one["__key__"], one["txt"]) for one in found] == [
        ("images/1", b"a"),
        ("images/__not_meta__", b"b"),
        ("2", b"c"),
    ]


def test_global_pax_headers_are_no_members(tmp_path: Path) -> None:
    path = write(
        tmp_path / "x.tar", some(3), "pax", pax={"comment": "made by a version control system"}
    )
    assert samples(path) == expected(some(3), "x.tar")
    with pytest.raises(DataError, match="global pax header sets the name or size"):
        samples(write(tmp_path / "y.tar", some(3), "pax", pax={"path": "all.txt"}))


def test_an_archive_without_samples(tmp_path: Path) -> None:
    assert samples(write(tmp_path / "x.tar", [])) == []
    assert samples(str(tmp_path / "*.tar")) == []


@pytest.mark.parametrize("format", ["gnu", "pax"])
def test_a_member_of_nine_gigabytes(tmp_path: Path, format: str) -> None:
    # The header says so in base 256 or in a pax record; the file has a hole.
    size = 9 << 30
    info = special(tarfile.REGTYPE, size=size)
    info.name = "1.mp4"
    behind = write(
        tmp_path / "rest.tar", [("1.json", b"[1]"), ("2.mp4", b"."), ("2.json", b"[2]")]
    ).read_bytes()
    head = info.tobuf(FORMATS[format])
    with (tmp_path / "x.tar").open("wb") as file:
        file.write(head)
        file.seek(len(head) + size)
        file.write(behind)
    found = samples(tmp_path / "x.tar", columns=["json"])
    assert found == [
        {"__key__": "1", "__shard__": "x.tar", "json": b"[1]"},
        {"__key__": "2", "__shard__": "x.tar", "json": b"[2]"},
    ]


class Counting(storage.LocalStore):
    def __init__(self) -> None:
        self.bytes = 0

    def read(self, path: str, start: int = 0, length: int | None = None, /) -> bytes:
        found = super().read(path, start, length)
        self.bytes += len(found)
        return found


def test_only_the_parts_asked_for_are_read(tmp_path: Path) -> None:
    members = [
        (f"{n}.{part}", bytes(size))
        for n in range(5)
        for part, size in (("mp4", 2_000_000), ("json", 50), ("txt", 9))
    ]
    path = write(tmp_path / "x.tar", members)
    store = Counting()
    with storage.override_world(store=store):
        source = open_files(path, columns=["json", "cls"])
        indexed, store.bytes = store.bytes, 0
        found = source.read(np.array([3, 1]))
    assert found == [{"__key__": key, "__shard__": "x.tar", "json": bytes(50)} for key in "31"]
    assert indexed < 1_200_000  # ten million are there
    assert store.bytes < 20_000
    assert source.describe() == {"format": "tar", "rows": 5, "columns": ["json", "cls"]}
    with pytest.raises(
        DataError,
        match=r"x\.tar, 0: this sample has none of the parts cls, png; it has mp4, json, txt",
    ):
        samples(path, columns=["cls", "png"])
    small = write(tmp_path / "y.tar", some(4))
    assert [list(one) for one in samples(small, columns=["json"])] == [
        ["__key__", "__shard__", "json"]
    ] * 4


def test_archives_are_chained_in_order(tmp_path: Path) -> None:
    members = some(23)
    for part in range(4):
        write(tmp_path / f"s-{part}.tar", members[18 * part : 18 * part + 18])
    want = [
        one
        for part in range(4)
        for one in expected(members[18 * part : 18 * part + 18], f"s-{part}.tar")
    ]
    for paths in (
        tmp_path,
        str(tmp_path / "s-{0..3}.tar"),
        str(tmp_path / "*.tar"),
        sorted(tmp_path.glob("s*.tar")),
    ):
        source = open_files(paths)
        assert source.name == tmp_path.name
        order = np.random.default_rng(0).permutation(23)
        assert source.read(order) == [want[index] for index in order.tolist()]
    ds = ps.read(str(tmp_path / "*.tar"))
    assert len(ds) == 23
    assert ds[22]["__key__"] == "00022"


def test_compressed_archives_are_read_through_an_unpacked_copy(tmp_path: Path) -> None:
    plain = write(tmp_path / "x.tar", some(6)).read_bytes()
    packed = tmp_path / "y.tar.gz"
    packed.write_bytes(gzip.compress(plain))
    cache = tmp_path / "cache"
    assert samples(packed, cache=cache) == expected(some(6), "y.tar.gz")
    assert open_files(packed, cache=cache).name == "y"
    assert {path.name for path in tmp_path.iterdir()} == {"x.tar", "y.tar.gz", "cache"}
    (tmp_path / "z.tar").write_bytes(gzip.compress(plain))
    with pytest.raises(
        DataError, match=r"z\.tar, byte 0: this is gzip data, no tar archive.*name it \.tar\.gz"
    ):
        open_files(tmp_path / "z.tar")
    (tmp_path / "z.tgz").write_bytes(gzip.compress(plain))
    with pytest.raises(ConfigError, match=r"z\.tgz: rename it to z\.tar\.gz"):
        open_files(tmp_path / "z.tgz")


def test_names_are_never_paths(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    members = [("../out.txt", b"1"), ("/etc/penstock.txt", b"2"), ("a/../../b.txt", b"3")]
    found = samples(write(tmp_path / "in" / "x.tar", members), cache=tmp_path / "cache")
    assert [one["__key__"] for one in found] == ["../out", "/etc/penstock", "a/../../b"]
    assert {path.name for path in tmp_path.iterdir()} == {"in", "cache"}
    assert not Path("/etc/penstock.txt").exists()


def test_keys_are_found(tmp_path: Path) -> None:
    members = some(50)
    path = write(tmp_path / "x.tar", members)
    index_and_count_rows(path)
    file = tar_file.open_tar(path, path, columns=None, cache=None, cached=tar_file.LRUCache(4))
    assert file.find(["00049", "nothing", "00000", "00007", "00007"]) == {
        "00049": 49,
        "00000": 0,
        "00007": 7,
    }
    assert file.find([]) == {}


def test_pickling_and_threads(tmp_path: Path) -> None:
    members = some(60)
    path = write(tmp_path / "x.tar", members)
    want = expected(members, "x.tar")
    source = open_files(path)
    source.read(np.arange(3))
    again = pickle.loads(pickle.dumps(source))
    assert len(pickle.dumps(source)) < 3000

    def work(seed: int) -> bool:
        order = np.random.default_rng(seed).integers(0, 60, 100)
        return again.read(order) == [want[index] for index in order.tolist()]

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(30)))


def test_a_run_over_archives_resumes_and_spreads(tmp_path: Path) -> None:
    members = some(30)
    for part in range(3):
        write(tmp_path / f"{part}.tar", members[30 * part : 30 * part + 30])

    def key(sample: dict[str, Any]) -> str:
        return sample["__key__"]

    ds = ps.read(str(tmp_path / "*.tar")).shuffle(seed=3).map(key)
    assert_covers(list(ds), [f"{number:05d}" for number in range(30)])
    assert_resumes(lambda: ps.Loader(ds.batch(4, collate=list), workers=2), at_most=5)
    assert_elastic(
        lambda rank, world: ps.Loader(ds, rank=rank, world_size=world, workers=0), steps=30
    )


def test_indexes_are_made_ahead_of_a_run(tmp_path: Path) -> None:
    from typer.testing import CliRunner

    from penstock.cli.app import app

    for part in range(2):
        write(tmp_path / f"{part}.tar", some(3 + part))
    done = CliRunner().invoke(app, ["index", str(tmp_path / "{0..1}.tar")])
    assert (done.exit_code, done.output.count("rows")) == (0, 2)
    assert sorted(path.name for path in tmp_path.glob(".*")) == [
        ".0.tar.penstock-tar",
        ".1.tar.penstock-tar",
    ]
    (tmp_path / "0.tar").write_bytes(write(tmp_path / "1.tar", some(9)).read_bytes()[:-9000])
    done = CliRunner().invoke(app, ["index", "--rebuild", str(tmp_path / "0.tar")])
    assert done.exit_code == 2
    assert "the archive is cut off" in done.output


def test_progress_counts_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tar_index, "_DENSE_READ_BYTES", 8192)
    path = write(tmp_path / "x.tar", some(40))
    seen: list[int] = []
    monkeypatch.setattr(Progress, "tell", lambda self, done: seen.append(done))  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]
    tar_index.ensure_tar_index(path, path, cache=None)
    assert len(seen) > 5 and seen == sorted(seen) and seen[-1] < path.stat().st_size


# ---------------------------------------------------------------- keys that end at the first dot

MERGED: dict[str, tuple[list[str], str]] = {
    "numbers": (["22.0.jpg", "23.0.jpg", "23.1.jpg"], "'23' is made of 23.0.jpg, 23.1.jpg"),
    "frames": (
        [f"clip.{number:03d}.jpg" for number in range(6)],
        "'clip' is made of clip.000.jpg, .*, ...: a key",
    ),
    "fractions": (["img_0.5.txt", "img_0.75.json"], "'img_0' is made of"),
    "a copy": (["23.jpg", "23.1.jpg"], "'23' is made of 23.jpg, 23.1.jpg"),
    "names": (
        ["a.jpg", "john.smith.jpg", "john.doe.jpg"],
        "'john' is made of john.smith.jpg, john.doe.jpg",
    ),
}


@pytest.mark.parametrize("what", MERGED)
def test_files_that_a_dot_makes_one_sample_are_said_once(what: str, tmp_path: Path) -> None:
    names, said = MERGED[what]
    for number in range(3):
        write(tmp_path / f"{number}.tar", [(name, b"") for name in names])
    for _ in range(2):  # where the index is made, and where it is there
        with pytest.warns(UserWarning, match=rf"0.tar: the sample {said}") as warned:
            open_files(tmp_path)
        assert len(warned) == 1


@pytest.mark.parametrize(
    "names",
    [
        ["0.jpg", "0.seg.png", "0.png", "1.jpg"],
        ["0.left.jpg", "0.right.jpg", "1.left.jpg", "1.right.jpg"],
        ["0.7.jpg", "1.7.jpg"],
        ["0.jpg", "0.tar.gz", "0.json.gz"],
    ],
)
def test_parts_with_dots_are_no_reason_to_warn(names: list[str], tmp_path: Path) -> None:
    write(tmp_path / "x.tar", [(name, b"") for name in names])
    assert len(open_files(tmp_path / "x.tar")) == len({name.partition(".")[0] for name in names})


def test_files_that_a_dot_makes_one_sample_are_said_with_an_index_of_energon(
    tmp_path: Path,
) -> None:
    path = write(tmp_path / "x.tar", [("22.0.jpg", b""), ("23.0.jpg", b""), ("23.1.jpg", b"")])
    found = tar_index.scan_headers(path, path.stat().st_size, "x.tar")
    np.asarray(found.starts, "=u8").tofile(tmp_path / "x.tar.idx")
    source = open_files(path)
    assert not list(tmp_path.glob(".*"))
    with pytest.warns(
        UserWarning, match=r"x.tar: the sample '23' is made of 23.0.jpg, 23.1.jpg"
    ) as said:
        source.read(np.array([0, 1, 1]))
    assert len(said) == 1
