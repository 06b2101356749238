"""Files as other tools write them, where these differ from what pyarrow writes."""

from __future__ import annotations

import base64
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.errors import DataError
from penstock.sources import arrow_index, open_files

pa: Any = pytest.importorskip("pyarrow")
import pyarrow.ipc as ipc  # noqa: E402

# pl.DataFrame({"s": ["x", None, "a text that is longer than twelve"], "n": [[1], [2, 3], []]}).write_ipc(path,
# record_batch_size=2), by polars 2.1: the schema has no marker before it, texts are views.
POLARS = zlib.decompress(
    base64.b85decode(
        b"c-qxey-ve05I!dn1c;CcAZ0XL2NvF--H|{Q6098}TB!tyTF{XPVB`@Pc#MubLZ5(%2{Cj4h3_1vL>3{a6$4kD&*$%c+`EfA-R{xp"
        b"0Z~9iuX&#D5bp)nb=sg1Yd|xcM>q-bW7Nair^4qB*a_sJ!HL8!8E?iOfwdrIiLoQ-4d-nt>_S?DZD{NVI=x{02{>aJ_yzlYNCi&V"
        b"C*gQ8>?LiPsF8{J4!gkKd<2G?&+I)oh5<mu|MTIsZQ?}Go`Kt|(LK0j?T9v!Gk}dWCpN^KRx0}vYg?(Tymfp^J+X4);1dUD^1+^y"
        b"$8-FANB^MZi1UnTc@j1E`>mh1pg;FN6kq)>>sr_UGT%c(|En{w`a^!{%)?&8JjjN5aC<Fk>QzUazo&G%Xdl^ktd;Kfv>J@m@G?73"
        b"uUO5LzDbAIDg7;RKdJIPpFtka`^m3Bj2iMw5}BEqx`nZFY6nV+@9X>j-ntl~V_xx3V;6;i"
    )
)
ROWS = [("x", [1]), (None, [2, 3]), ("a text that is longer than twelve", [])]


def rows(path: Path, **options: Any) -> list[tuple[Any, list[int]]]:
    source = open_files(path, **options)
    return [(row["s"], list(row["n"])) for row in source.read(np.arange(len(source)))]


def padded(body: bytes) -> bytes:
    """An Arrow file whose first message begins at byte 64, as Rust's writer aligns it."""
    length = struct.unpack_from("<i", body, len(body) - 10)[0]
    head, footer = body[: -10 - length], bytearray(body[-10 - length : -10])
    for start, _ in arrow_index.index_record_batches(pa.py_buffer(body), file=True).ranges:
        at = footer.index(struct.pack("<q", start))
        footer[at : at + 8] = struct.pack("<q", start + 56)
    return head[:8] + bytes(56) + head[8:] + bytes(footer) + body[-10:]


def test_an_arrow_file_that_polars_wrote_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.arrow"
    path.write_bytes(POLARS)
    assert rows(path) == ROWS
    source = open_files(path)
    assert [row["s"] for row in source.read(np.array([2, 0]))] == [ROWS[2][0], "x"]


def test_rows_of_a_polars_file_are_chosen_by_their_texts(tmp_path: Path) -> None:
    path = tmp_path / "a.arrow"
    path.write_bytes(POLARS)
    assert rows(path, where={"s": [None, "x"]}, cache=tmp_path / "cache") == ROWS[:2]


def test_an_arrow_file_with_a_padded_beginning_is_read(tmp_path: Path) -> None:
    table = pa.table({"s": [f"s{n}" for n in range(30)], "n": [[n] * (n % 3) for n in range(30)]})
    path = tmp_path / "a.arrow"
    with ipc.new_file(str(path), table.schema) as writer:
        writer.write_table(table, max_chunksize=7)
    plain = rows(path)
    path.write_bytes(padded(path.read_bytes()))
    assert ipc.open_file(str(path)).read_all().num_rows == 30
    assert rows(path) == plain


@pytest.mark.slow
def test_an_arrow_file_of_polars_that_was_cut_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.arrow"
    for stop in range(len(POLARS)):
        path.write_bytes(POLARS[:stop])
        with pytest.raises(DataError, match=str(path)):
            rows(path)


def test_a_footer_that_names_a_batch_twice_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.arrow"
    first, second = (
        start
        for start, _ in arrow_index.index_record_batches(pa.py_buffer(POLARS), file=True).ranges
    )
    at = POLARS.rindex(struct.pack("<q", second))
    path.write_bytes(POLARS[:at] + struct.pack("<q", first) + POLARS[at + 8 :])
    with pytest.raises(DataError, match="overlaps another one"):
        rows(path)


def test_a_damaged_arrow_file_of_polars_raises_nothing_but_data_errors(tmp_path: Path) -> None:
    path = tmp_path / "a.arrow"
    rng = np.random.default_rng(0)
    refused = 0
    for _ in range(300):
        spoiled = bytearray(POLARS)
        spoiled[int(rng.integers(8, len(POLARS)))] ^= 1 << int(rng.integers(8))
        path.write_bytes(bytes(spoiled))
        try:
            source = open_files(path)
            source.read(np.array([0, len(source) - 1])[: len(source)])
        except DataError:
            refused += 1
    assert refused > 30


@pytest.mark.slow
@pytest.mark.parametrize("compression", [None, "zstd"])
def test_an_arrow_stream_cut_between_two_batches_is_refused(
    tmp_path: Path, compression: Any
) -> None:
    table = pa.table({"a": list(range(12))})
    path = tmp_path / "a.arrow"
    with ipc.new_stream(
        str(path), table.schema, options=ipc.IpcWriteOptions(compression=compression)
    ) as writer:
        writer.write_table(table, max_chunksize=5)
    body = path.read_bytes()
    for stop in range(len(body)):
        path.write_bytes(body[:stop])
        with pytest.raises(DataError, match=str(path)):
            open_files(path)
    path.write_bytes(body)
    assert len(open_files(path)) == 12
