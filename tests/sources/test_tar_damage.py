"""Archives that are cut, changed, appended to or made to deceive: an error that says where, never fewer samples."""

from __future__ import annotations

import os
import subprocess
import tarfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from archives import expected, samples, some, special, write
from penstock.errors import DataError, PenstockError
from penstock.sources import derived_files, index_and_count_rows, open_files, tar_index
from penstock.sources.lru import LRUCache
from penstock.sources.tar_file import open_tar
from penstock.stores import storage

LONG = [
    *some(5),
    (f"{'d' * 120}/{'f' * 120}.txt", b"long"),
    *[(f"9{name}", body) for name, body in some(3)],
]


def test_a_bad_header_in_the_middle_is_no_end(tmp_path: Path) -> None:
    # Python's tarfile, and with it webdataset and `energon prepare`, takes it for the end and gives what came before.
    path = write(tmp_path / "x.tar", some(10))
    with tarfile.open(path) as archive:
        at = archive.getmembers()[15].offset
    body = bytearray(path.read_bytes())
    body[at + 3] ^= 1
    path.write_bytes(body)
    with tarfile.open(path) as archive:
        assert len(archive.getmembers()) == 15
    with pytest.raises(
        DataError,
        match=rf"x\.tar, byte {at}: a tar header is missing here: the archive is damaged",
    ):
        open_files(path)


def test_an_archive_cut_anywhere_is_an_error(tmp_path: Path) -> None:
    path = write(tmp_path / "x.tar", LONG, "pax")
    whole = path.read_bytes()
    with tarfile.open(path) as archive:
        archive.getmembers()
        end = archive.offset
    for length in [*range(0, end, 512), *range(100, end, 1999), end, end + 511]:
        path.write_bytes(whole[:length])
        with pytest.raises(DataError, match=r"x\.tar, byte \d+: the archive is cut off"):
            open_files(path)
    path.write_bytes(whole[: end + 512])
    assert samples(path) == expected(LONG, "x.tar")


@given(st.data())
def test_a_changed_header_gives_all_samples_or_an_error(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    # One byte: the checksum of a header is a sum, two changes may cancel out.
    path = write(
        tmp_path_factory.mktemp("t") / "x.tar", LONG, data.draw(st.sampled_from(["gnu", "pax"]))
    )
    with tarfile.open(path) as archive:
        headers = [one.offset_data - 512 for one in archive] + [one.offset for one in archive]
    body = bytearray(path.read_bytes())
    at = data.draw(st.sampled_from(headers)) + data.draw(st.integers(0, 511))
    body[at] = data.draw(st.integers(0, 255).filter(lambda byte: byte != body[at]))
    path.write_bytes(body)
    try:
        assert samples(path) == expected(LONG, "x.tar")
    except DataError as error:
        assert "x.tar" in str(error)


class Bounded(storage.LocalStore):
    """Refuses reads far behind the end of a file, as they would be of memory."""

    def read(self, path: str, start: int = 0, length: int | None = None, /) -> bytes:
        assert length is None or length <= max(1 << 20, os.path.getsize(path))
        return super().read(path, start, length)


@given(st.data())
def test_any_bytes_give_samples_or_an_error_and_no_large_read(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = write(
        tmp_path_factory.mktemp("t") / "x.tar", LONG, data.draw(st.sampled_from(["gnu", "pax"]))
    )
    body = bytearray(path.read_bytes())
    with tarfile.open(path) as archive:
        starts = [one.offset for one in archive]
    for _ in range(data.draw(st.integers(1, 4))):
        start = data.draw(st.sampled_from(starts))
        field = data.draw(
            st.sampled_from([(0, 100), (124, 12), (148, 9), (257, 8), (345, 155), (512, 300)])
        )
        at = start + field[0] + data.draw(st.integers(0, field[1] - 1))
        body[at] = data.draw(st.integers(0, 255))
        fix = body[start : start + 512]
        fix[148:156] = b" " * 8
        body[start + 148 : start + 156] = b"%06o\0 " % sum(fix)  # hostile data has right checksums
    path.write_bytes(body[: data.draw(st.sampled_from([len(body), len(body) - 2000]))])
    with storage.override_world(store=Bounded()):
        try:
            for sample in samples(path):
                assert sample["__key__"]
        except DataError:
            pass


@pytest.mark.parametrize("size", [1 << 40, 1 << 62, (1 << 88) - 1])
@pytest.mark.parametrize(
    "kind", [tarfile.REGTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.XHDTYPE, tarfile.XGLTYPE]
)
def test_a_size_that_is_a_lie(tmp_path: Path, size: int, kind: bytes) -> None:
    info = special(kind, size=5)
    info.name = "1.txt"
    header = bytearray(info.tobuf(tarfile.GNU_FORMAT))
    header[124:136] = b"\x80" + size.to_bytes(11, "big")
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    (tmp_path / "x.tar").write_bytes(header + bytes(10240))
    with (
        storage.override_world(store=Bounded()),
        pytest.raises(DataError, match="cut off: '1.txt' has|a long name or pax header has"),
    ):
        open_files(tmp_path / "x.tar")


@pytest.mark.parametrize(
    "records",
    [b"", b"8 path=a\n", b"12 path=a.bc\n", b"x", b"11 size=-1\n", b"99 path=a.b\n", b"7 path\n"],
)
def test_damaged_pax_records(tmp_path: Path, records: bytes) -> None:
    info = special(tarfile.XHDTYPE, size=len(records))
    info.name = "pax"
    body = info.tobuf(tarfile.USTAR_FORMAT) + records.ljust(512 if records else 0, b"\0")
    rest = write(tmp_path / "rest.tar", [("1.txt", b"1")], "ustar").read_bytes()
    (tmp_path / "x.tar").write_bytes(body + rest)
    if not records:  # none at all are allowed
        assert len(samples(tmp_path / "x.tar")) == 1
        return
    with pytest.raises(DataError, match="x.tar, byte 0: damaged pax records"):
        open_files(tmp_path / "x.tar")


def test_a_long_name_without_a_member(tmp_path: Path) -> None:
    path = write(tmp_path / "x.tar", [("n" * 200 + ".txt", b"1")])
    body = path.read_bytes()
    path.write_bytes(body[:1024] + bytes(10240))
    with pytest.raises(
        DataError, match="byte 1024: the archive ends after a long name or pax header"
    ):
        open_files(path)


def test_what_follows_the_end(tmp_path: Path) -> None:
    one, two = (write(tmp_path / name, some(2)).read_bytes() for name in ("1.tar", "2.tar"))
    path = tmp_path / "x.tar"
    path.write_bytes(one + two)  # webdataset gives the first two samples, and no word
    with pytest.raises(
        DataError, match="data follows the end of the archive: split several archives in one file"
    ):
        open_files(path)
    path.write_bytes(
        one + bytes(2 << 20)
    )  # a download that was given its full size before it was cut
    with pytest.raises(
        DataError,
        match="bytes follow the end of the archive: it was not written or copied completely",
    ):
        open_files(path)
    path.write_bytes(one + bytes(100_100))
    assert len(samples(path)) == 2


def test_a_key_that_comes_again_names_both_places(tmp_path: Path) -> None:
    path = write(tmp_path / "x.tar", [("a/1.jpg", b"1"), ("a/2.jpg", b"2"), ("a/1.txt", b"3")])
    with pytest.raises(
        DataError,
        match=r"x\.tar: the sample 'a/1' occurs again.*first at byte 0, again at byte 2048",
    ):
        open_files(path)
    path = write(tmp_path / "y.tar", [("1.jpg", b"1"), ("1.jpg", b"2")])
    with pytest.raises(
        DataError, match=r"y\.tar: '1\.jpg' occurs again \(first at byte 0, again at byte 1024\)"
    ):
        open_files(path)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (tarfile.LNKTYPE, r"'1\.txt' is a hard link, which holds no data.*--hard-dereference"),
        (tarfile.SYMTYPE, r"'1\.txt' is a symbolic link, which holds no data"),
        (tarfile.CHRTYPE, r"'1\.txt' is a device"),
        (tarfile.FIFOTYPE, r"'1\.txt' is a pipe"),
        (b"M", "begun in another volume"),
        (b"Q", "member of the unknown type 'Q'"),
    ],
)
def test_members_without_data_of_their_own_are_refused(
    tmp_path: Path, kind: bytes, message: str
) -> None:
    path = write(tmp_path / "x.tar", [("1.jpg", b"1"), ("1.txt", special(kind, "1.jpg"))])
    with pytest.raises(DataError, match=rf"x\.tar, byte 1024: .*{message}"):
        open_files(path)


@pytest.mark.parametrize(
    "options", [["--format=gnu"], ["--format=posix"], ["--format=posix", "--sparse-version=0.1"]]
)
def test_sparse_files_are_refused(tmp_path: Path, options: list[str]) -> None:
    folder = tmp_path / "x.tar.files"
    folder.mkdir()
    with (folder / "2.bin").open("wb") as file:
        file.truncate(1 << 20)
        file.seek(1 << 19)
        file.write(b"x")
    os.link(folder / "2.bin", tmp_path / "keep.bin")  # so that the sparse file itself is packed
    path = tmp_path / "x.tar"
    subprocess.run(
        ["tar", "-S", *options, "-cf", str(path), "-C", str(folder), "2.bin"],
        check=True,
        timeout=600,
    )
    with pytest.raises(DataError, match=r"2\.bin' is a sparse file, which cannot be read in place"):
        open_files(path)


def test_hard_links_of_gnu_tar_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "f"
    folder.mkdir()
    (folder / "1.txt").write_bytes(b"1")
    os.link(folder / "1.txt", folder / "2.txt")
    command = ["tar", "-C", str(folder), "-cf", str(tmp_path / "x.tar")]
    subprocess.run([*command, "1.txt", "2.txt"], check=True, timeout=600)
    with pytest.raises(DataError, match="'2.txt' is a hard link"):
        open_files(tmp_path / "x.tar")
    subprocess.run([*command, "--hard-dereference", "1.txt", "2.txt"], check=True, timeout=600)
    assert [one["txt"] for one in samples(tmp_path / "x.tar")] == [b"1", b"1"]


def test_parts_may_not_take_our_names(tmp_path: Path) -> None:
    path = write(tmp_path / "x.tar", [("1.__key__", b"2")])
    with pytest.raises(DataError, match="the part '__key__' of '1.__key__' has a reserved name"):
        open_files(path)


def test_data_that_changes_under_a_run_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "x.tar", some(3))
    source = open_files(path)
    source.read(np.arange(3))
    write(path, some(4))
    with pytest.raises(DataError, match=r"x\.tar: the file changed while it was in use"):
        source.read(np.arange(3))


def test_an_index_of_another_version_is_made_again(tmp_path: Path) -> None:
    path = write(tmp_path / "x.tar", some(3))
    index = tmp_path / ".x.tar.penstock-tar"
    assert index_and_count_rows(path) == 3 and index.exists()
    write(path, some(5))
    assert samples(path) == expected(some(5), "x.tar")
    index.write_bytes(index.read_bytes()[:-8])
    with pytest.raises(DataError, match="is damaged, or Penstock did not write it"):
        open_files(path)


def poisoned(path: Path, at: int, kind: str, value: int) -> None:
    """A number in the index of an archive, `at` bytes behind its stamp, and a digest that fits."""
    index = path.with_name(f".{path.name}.penstock-tar")
    whole = bytearray(index.read_bytes())
    stamp, start = (
        derived_files.decode_header(bytes(whole[: derived_files.HEADER_BYTES])),
        derived_files.HEADER_BYTES + at,
    )
    assert stamp is not None
    whole[start : start + np.dtype(kind).itemsize] = np.asarray(value, kind).tobytes()
    body = bytes(whole[derived_files.HEADER_BYTES :])
    index.write_bytes(stamp._replace(crc=zlib.crc32(body)).encode() + body)


@pytest.mark.parametrize("value", [-1, 1 << 40, -(1 << 63), (1 << 63) - 1])
def test_an_index_that_leads_elsewhere_is_refused(tmp_path: Path, value: int) -> None:
    path = write(tmp_path / "x.tar", some(6))
    open_files(path)
    index = tmp_path / ".x.tar.penstock-tar"
    whole = index.read_bytes()
    numbers = (
        3 + 7 + 6 + 7 + 18 + 18 + 7
    )  # counts, starts, digests, first members, places, sizes, ends of keys
    digests = range(10, 16)  # these may be any
    for number in (one for one in range(numbers) if one not in digests):
        poisoned(path, 8 * number, "<i8", value)
        with pytest.raises(DataError, match=r"x\.tar"):
            samples(path)
        index.write_bytes(whole)
    poisoned(path, 8 * numbers, "<i4", 3)
    with pytest.raises(DataError, match=r"the offsets in .* do not fit this archive"):
        samples(path)
    index.write_bytes(whole)
    assert samples(path) == expected(some(6), "x.tar")


# ---------------------------------------------------------------- the index that Energon leaves


NAMES = ["1.jpg", "1.txt", "2.jpg", "2.txt", "3.jpg", "3.txt", "4.jpg", "4.txt"]


def energon_index(
    path: Path, change: Callable[[list[int]], list[int]] = lambda offsets: offsets
) -> Path:
    starts = tar_index.scan_headers(path, path.stat().st_size, str(path)).starts
    index = path.with_name(f"{path.name}.idx")
    index.write_bytes(np.asarray(change(starts), "=u8").tobytes())
    return index


def ours(path: Path) -> bool:
    """Return true if reading wrote an index of Penstock."""
    return path.with_name(f".{path.name}.penstock-tar").exists()


def test_an_index_of_energon_serves(tmp_path: Path) -> None:
    path = write(tmp_path / "x.tar", LONG)
    energon_index(path)
    assert samples(path) == expected(LONG, "x.tar")
    assert not ours(path)
    assert index_and_count_rows(path) == len(expected(LONG, "x.tar")) and ours(path)
    assert samples(path) == expected(LONG, "x.tar")


def test_an_archive_whose_name_leaves_no_room_for_an_index_is_read(tmp_path: Path) -> None:
    path = write(tmp_path / f"{'x' * 251}.tar", LONG)
    assert samples(path) == expected(LONG, path.name)


@pytest.mark.parametrize(
    "change",
    [
        lambda offsets: offsets[:-1],
        lambda offsets: [*offsets, offsets[-1] + 512],
        lambda offsets: [*offsets[:-1], offsets[-1] + 512],
        lambda offsets: sorted(offsets, reverse=True),
        lambda offsets: [one + 1 for one in offsets],
        lambda offsets: [one << 32 for one in offsets],
        lambda offsets: [],
    ],
)
def test_an_index_of_energon_that_does_not_fit_is_passed_over(tmp_path: Path, change: Any) -> None:
    path = write(tmp_path / "x.tar", some(7))
    energon_index(path, change)
    assert samples(path) == expected(some(7), "x.tar")
    assert ours(path)


def test_an_index_of_energon_older_than_the_archive_is_passed_over(tmp_path: Path) -> None:
    path = write(tmp_path / "x.tar", some(7))
    index = energon_index(path)
    os.utime(index, (1, 1))
    assert len(samples(path)) == 7
    assert ours(path)


def test_an_index_of_energon_cannot_hide_that_an_archive_was_cut(tmp_path: Path) -> None:
    # `energon prepare` reads with tarfile: a bad header ends the archive, and the index with it.
    path = write(tmp_path / "x.tar", some(8))
    body = bytearray(path.read_bytes())
    starts = tar_index.scan_headers(path, len(body), "x.tar").starts
    body[starts[5]] ^= 1
    path.write_bytes(body)
    path.with_name("x.tar.idx").write_bytes(np.asarray(starts[:6], "=u8").tobytes())
    with pytest.raises(DataError, match=rf"byte {starts[5]}: a tar header is missing"):
        open_files(path)


def test_an_index_of_energon_that_cuts_samples_wrongly_is_found_when_they_are_read(
    tmp_path: Path,
) -> None:
    path = write(tmp_path / "x.tar", some(8))
    energon_index(path, lambda offsets: [*offsets[:3], *offsets[4:]])
    source = open_files(path)
    assert len(source) == 7
    assert len(source.read(np.array([0, 1]))) == 2
    with pytest.raises(DataError, match=r"the offsets in .*x\.tar\.idx do not fit this archive"):
        source.read(np.array([2]))


def test_an_index_of_energon_that_parts_a_sample_is_found_when_it_is_read(tmp_path: Path) -> None:
    path = write(tmp_path / "x.tar", [*some(4), ("a.txt", b"1"), ("a.json", b"2"), ("b.txt", b"3")])
    energon_index(path, lambda offsets: [*offsets[:5], offsets[4] + 1024, *offsets[5:]])
    source = open_files(path)
    assert len(source) == 7 and not ours(path)
    assert len(source.read(np.array([0, 1, 2, 3, 5, 6]))) == 6
    with pytest.raises(DataError, match=r"the offsets in .*x\.tar\.idx do not fit this archive"):
        source.read(np.array([4]))


@given(st.data())
def test_any_index_of_energon_gives_all_samples_or_an_error(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("t") / "x.tar"
    write(
        path,
        [("a", special(tarfile.DIRTYPE)), ("a/README", b"")]
        + [(f"a/{one}", bytes(9)) for one in NAMES],
    )
    with tarfile.open(path) as archive:
        members = [one.offset for one in archive]
        members.append(archive.offset)
    chosen = data.draw(st.sets(st.sampled_from(members)) | st.just({*members[2::2], members[-1]}))
    path.with_name("x.tar.idx").write_bytes(np.asarray(sorted(chosen), "=u8").tobytes())
    try:
        assert [one["__key__"] for one in samples(path)] == ["a/1", "a/2", "a/3", "a/4"]
    except DataError as error:
        assert "the offsets in" in str(error)


def test_finding_by_key_makes_an_index_of_our_own(tmp_path: Path) -> None:
    path = write(tmp_path / "x.tar", some(8))
    energon_index(path)
    file = open_tar(path, path, columns=None, cache=None, cached=LRUCache(4))
    assert file.find(["00003"]) == {"00003": 3}
    assert ours(path)


def test_errors_are_of_our_kind(tmp_path: Path) -> None:
    (tmp_path / "x.tar").write_bytes(b"no archive at all" * 100)
    with pytest.raises(
        PenstockError,
        match="a tar header is missing here: the archive is damaged, or it is none",
    ):
        open_files(tmp_path / "x.tar")
