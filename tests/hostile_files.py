"""Hostile inputs for readers: each item is a function that gets a folder of its own.

As a program, this runs each item in a process with little memory and time, and prints the outcome.
"""

from __future__ import annotations

import gzip
import importlib
import io
import json
import os
import resource
import signal
import struct
import sys
import tarfile
import tempfile
import threading
import zlib
from collections.abc import Callable
from functools import cache
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import numpy as np

from archives import write
from example_counts import is_soak
from penstock import Loader, from_sequence, mixture_files, restore
from penstock.compat import energon
from penstock.engine.runtime.seal import seal, unseal
from penstock.errors import PenstockError
from penstock.media import images
from penstock.report.target import open_target
from penstock.sources import derived_files, index_files, open_files
from penstock.sources.partition import read_values
from penstock.stores import storage
from penstock.text import Tokenize

MEMORY = 512 << 20
SECONDS = 10
SECRET = "canary-7c1e"
STATE = "step-3.rank-0-of-1.0123456789abcdef.json"


def whole(path: Path | str, **options: Any) -> list[Any]:
    source = open_files(path, **options)
    return source.read(np.arange(len(source)))


def png(chunks: list[tuple[bytes, bytes]], width: int = 1, height: int = 1) -> bytes:
    """A PNG of these sizes with chunks of one's own."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return (
            struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        )

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    rest = chunk(b"IDAT", zlib.compress(b"\0" * 4)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + head + b"".join(chunk(kind, body) for kind, body in chunks) + rest


@cache
def zeros(size: int, codec: str = "gzip") -> bytes:
    """So many zeros, packed."""
    if codec == "zstd":
        machine: Any = importlib.import_module("zstandard").ZstdCompressor().compressobj()
    else:
        machine = zlib.compressobj(9, zlib.DEFLATED, 31 if codec == "gzip" else 15)
    piece = bytes(1 << 20)
    return b"".join([machine.compress(piece) for _ in range(size >> 20)]) + machine.flush()


def sparse(path: Path, size: int) -> Path:
    with path.open("wb") as file:
        file.truncate(size)
    return path


# ---------------------------------------------------------------- what is no file


def pipe_in_a_folder(at: Path) -> None:
    (at / "a.jsonl").write_text("1\n")
    os.mkfifo(at / "b.jsonl")
    whole(at)


def pipe_by_name(at: Path) -> None:
    os.mkfifo(at / "b.jsonl")
    whole(at / "b.jsonl")


def pipe_by_glob(at: Path) -> None:
    os.mkfifo(at / "b.jsonl")
    whole(f"{at}/*.jsonl")


def link_to_nothing(at: Path) -> None:
    (at / "a.jsonl").write_text("1\n")
    (at / "b.jsonl").symlink_to(at / "gone.jsonl")
    whole(f"{at}/*.jsonl")


def link_to_itself(at: Path) -> None:
    (at / "b.jsonl").symlink_to(at / "b.jsonl")
    whole(f"{at}/*.jsonl")


def link_to_a_device(at: Path) -> None:
    (at / "b.txt").symlink_to("/dev/zero")
    whole(f"{at}/*.txt")


def device_by_name(at: Path) -> None:
    whole("/dev/zero", format="text")


def folder_that_cannot_be_listed(at: Path) -> None:
    (at / "open").mkdir()
    (at / "open" / "a.jsonl").write_text("1\n")
    (at / "shut").mkdir()
    (at / "shut").chmod(0)
    if os.geteuid() == 0:
        for folder in (at, at.parent, at.parent.parent):
            folder.chmod(0o755)
        os.setuid(65534)
    whole(f"{at}/**/*.jsonl", cache=at)


# ---------------------------------------------------------------- bombs


def gzip_bomb(at: Path) -> None:
    (at / "x.txt.gz").write_bytes(zeros(300 << 20))
    whole(at / "x.txt.gz")


def bomb_in_a_bomb(at: Path) -> None:
    (at / "x.tar.gz").write_bytes(
        gzip.compress(write(at / "y", [("1.gz", zeros(100 << 20))]).read_bytes())
    )
    assert len(whole(at / "x.tar.gz")[0]["gz"]) < 1 << 20


def zstd_bomb(at: Path) -> None:
    (at / "x.txt.zst").write_bytes(zeros(300 << 20, "zstd"))
    whole(at / "x.txt.zst")


def csv_bomb(at: Path) -> None:
    (at / "x.csv.gz").write_bytes(gzip.compress(b"a,b\n") + zeros(300 << 20))
    whole(at / "x.csv.gz")


def line_without_end(at: Path) -> None:
    whole(sparse(at / "x.jsonl", 1 << 30))


def deep_line(at: Path) -> None:
    (at / "x.jsonl").write_text("[" * 1_000_000 + "\n")
    whole(at / "x.jsonl")


def large_number(at: Path) -> None:
    (at / "x.jsonl").write_text("9" * 10_000_000 + "\n")
    whole(at / "x.jsonl")


def deep_array(at: Path) -> None:
    (at / "x.json").write_text("[" * 1_000_000)
    whole(at / "x.json")


def packed(path: Path, *parts: tuple[bytes, int]) -> Path:
    """An archive of these bytes, each so many times."""
    with gzip.open(path, "wb", 9) as file:
        for unit, count in parts:
            piece = unit * min(count, 100_000)
            for _ in range(count // 100_000):
                file.write(piece)
            file.write(unit * (count % 100_000))
    return path


def lines_of_one_byte(at: Path) -> None:
    whole(packed(at / "x.txt.gz", (b"1\n", 60_000_000)))


def line_of_very_many_lists(at: Path) -> None:
    whole(packed(at / "x.jsonl.gz", (b"[", 1), (b"[],", 12_000_000), (b"1]\n", 1)))


def line_of_very_many_objects(at: Path) -> None:
    whole(packed(at / "x.jsonl.gz", (b'{"a":[', 1), (b"{},", 12_000_000), (b"1]}\n", 1)))


def line_of_very_many_numbers(at: Path) -> None:
    whole(packed(at / "x.jsonl.gz", (b"[", 1), (b"1e9,", 20_000_000), (b"1]\n", 1)))


def line_of_one_wide_letter(at: Path) -> None:
    whole(packed(at / "x.jsonl.gz", ('"\U0001f600'.encode(), 1), (b"a", 120 << 20), (b'"\n', 1)))


def line_that_spells_one_wide_letter(at: Path) -> None:
    whole(packed(at / "x.jsonl.gz", (b'"\\ud83d\\ude00', 1), (b"a", 120 << 20), (b'"\n', 1)))


def text_of_one_wide_letter(at: Path) -> None:
    whole(packed(at / "x.txt.gz", ("\U0001f600".encode(), 1), (b"a", 150 << 20), (b"\n", 1)))


def array_of_very_many_objects(at: Path) -> None:
    whole(packed(at / "x.json.gz", (b"[", 1), (b"{},", 12_000_000), (b"{}]", 1)))


def array_of_one_large_row(at: Path) -> None:
    whole(packed(at / "x.json.gz", (b"[[", 1), (b"[],", 3_500_000), (b"1]]", 1)))


def part_of_very_many_lists(at: Path) -> None:
    images.decode_part("json", b"[" + b"[]," * 12_000_000 + b"1]", key="1")


# ---------------------------------------------------------------- columns


def read_first(path: Path) -> None:
    open_files(path).read(np.arange(1))


def parquet(at: Path, column: Any, **options: Any) -> Path:
    table = pyarrow().table({"a": column})
    importlib.import_module("pyarrow.parquet").write_table(
        table, at / "x.parquet", row_group_size=1 << 30, **options
    )
    return at / "x.parquet"


def arrow(at: Path, column: Any, compression: str | None = None, kind: str = "file") -> Path:
    table, ipc = pyarrow().table({"a": column}), importlib.import_module("pyarrow.ipc")
    options = ipc.IpcWriteOptions(compression=compression)
    with getattr(ipc, f"new_{kind}")(at / "x.arrow", table.schema, options=options) as writer:
        writer.write_table(table)
    return at / "x.arrow"


def pyarrow() -> Any:
    return importlib.import_module("pyarrow")


def one_list(items: Any) -> Any:
    offsets = pyarrow().array([0, len(items)], "int32")
    return pyarrow().ListArray.from_arrays(offsets, items)


def repeated(text: str, count: int) -> Any:
    codes = pyarrow().array(np.zeros(count, np.int8))
    return pyarrow().DictionaryArray.from_arrays(codes, pyarrow().array([text]))


def row_group_of_one_list_of_nulls(at: Path) -> None:
    read_first(parquet(at, one_list(pyarrow().nulls(40_000_000))))


def row_group_of_one_text(at: Path) -> None:
    read_first(parquet(at, repeated("x" * 100_000, 15_000), store_schema=False))


def row_group_of_lists_of_one_text(at: Path) -> None:
    read_first(parquet(at, one_list(repeated("x" * 100_000, 15_000)), store_schema=False))


def list_of_very_many_nulls(at: Path) -> None:
    read_first(arrow(at, one_list(pyarrow().nulls((1 << 31) - 2))))


def list_of_very_many_runs(at: Path) -> None:
    ends = pyarrow().array([(1 << 31) - 2], "int32")
    runs = pyarrow().RunEndEncodedArray.from_arrays(ends, pyarrow().array(["x"]))
    read_first(arrow(at, one_list(runs)))


def fixed_list_of_very_many_nulls(at: Path) -> None:
    size = (1 << 31) - 2
    column = pyarrow().FixedSizeListArray.from_arrays(pyarrow().nulls(size), size)
    read_first(arrow(at, column))


def runs(item: Any, count: int) -> Any:
    ends = pyarrow().array([count], "int32")
    return pyarrow().RunEndEncodedArray.from_arrays(ends, pyarrow().array([item]))


def run_of_very_many_texts(at: Path) -> None:
    read_first(arrow(at, runs("x", 100_000_000)))


def run_of_one_long_text(at: Path) -> None:
    read_first(arrow(at, runs("x" * 1_000_000, 3_000)))


def run_of_one_long_list(at: Path) -> None:
    read_first(arrow(at, runs(list(range(100_000)), 3_000)))


def views_of_one_text(at: Path) -> None:
    kind = pyarrow().string_view()
    _, view, text = pyarrow().array(["x" * 1_000_000], kind).buffers()
    buffers = [None, pyarrow().py_buffer(view.to_pybytes()[:16] * 3_000), text]
    read_first(arrow(at, pyarrow().Array.from_buffers(kind, 3_000, buffers)))


def views_of_one_list(at: Path) -> None:
    starts, sizes = (pyarrow().array([number] * 3_000, "int32") for number in (0, 500_000))
    items = pyarrow().array(np.zeros(500_000, np.int8))
    read_first(arrow(at, pyarrow().ListViewArray.from_arrays(starts, sizes, items)))


def missing_column_of_very_many_rows(at: Path) -> None:
    column = pyarrow().array(np.zeros(2, np.int64))
    table = pyarrow().table({"a": pyarrow().nulls(2), "b": column})
    arrow(at, pyarrow().nulls(2_000_000_000))
    with importlib.import_module("pyarrow.ipc").new_file(at / "b.arrow", table.schema) as writer:
        writer.write_table(table)
    source = open_files(f"{at}/*.arrow")
    source.read(np.array([len(source) - 1]))


def rows_chosen_among_very_many_nulls(at: Path) -> None:
    open_files(arrow(at, pyarrow().nulls(2_000_000_000)), where={"a": {"not": 3}})


def parts_of_very_many_nulls(at: Path) -> None:
    read_values(open_files(arrow(at, pyarrow().nulls(2_000_000_000))), ["a"])


def lengths_of_very_many_empty_lists(at: Path) -> None:
    items = pyarrow().array([], "int32")
    lists = pyarrow().FixedSizeListArray.from_buffers(
        pyarrow().list_(pyarrow().int32(), 0), 2_000_000_000, [None], children=[items]
    )
    open_files(arrow(at, lists), lengths="a").lengths()


def choice_and_parts_of_one_repeated_text(at: Path) -> None:
    path = parquet(at, repeated("x" * 1_000_000, 3_000))
    assert len(open_files(path, where={"a": {"not": "y"}})) == 3_000
    values = read_values(open_files(path), ["a"])
    assert values is not None and values.count_rows() == [3_000]


def braces_that_explode(at: Path) -> None:
    whole(f"{at}/" + "{a,b}" * 30)


def braces_in_braces(at: Path) -> None:
    whole(f"{at}/" + "{a,{" * 20_000)


# ---------------------------------------------------------------- settings


def settings(at: Path, text: str) -> None:
    (at / "m.yaml").write_text(text)
    mixture_files.load(at / "m.yaml")


def deep_yaml(at: Path) -> None:
    settings(at, "[" * 100_000)


def deep_yaml_in_blocks(at: Path) -> None:
    settings(at, "\n".join(" " * n + "a:" for n in range(5_000)))


def aliases_that_explode(at: Path) -> None:
    rows = [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 30)]
    settings(at, "\n".join(["a0: &a0 [x]", *rows]))


def includes_without_end(at: Path) -> None:
    for n in range(2_000):
        (at / f"{n}.yaml").write_text(f"include: {n + 1}.yaml")
    mixture_files.load(at / "0.yaml")


def includes_that_double(at: Path) -> None:
    for n in range(40):
        (at / f"{n}.yaml").write_text(f"include: [{n + 1}.yaml, {n + 1}.yaml]")
    (at / "40.yaml").write_text("seed: 1")
    mixture_files.load(at / "0.yaml")


def mixtures_in_mixtures(at: Path) -> None:
    for n in range(2_000):
        (at / f"{n}.yaml").write_text(f"sources: {{a: {{mixture: {n + 1}.yaml}}}}")
    mixture_files.load(at / "0.yaml")


def tag_that_runs(at: Path) -> None:
    settings(at, f"sources: !!python/object/apply:os.system ['touch {at}/executed']")


def prepared_folder_of_deep_yaml(at: Path) -> None:
    (at / ".nv-meta").mkdir()
    (at / ".nv-meta" / ".info.yaml").write_text("a: " + "[" * 100_000)
    whole(at)


# ---------------------------------------------------------------- archives, caches, indexes


def traversal(at: Path) -> None:
    members = ["../outside.txt", "/etc/outside.txt", "a/../../outside.txt"]
    path = write(at / "x.tar", [(name, b"x") for name in members])
    assert [row["txt"] for row in whole(path)] == [b"x"] * 3


def tar_of_links(at: Path) -> None:
    info = tarfile.TarInfo()
    info.type, info.linkname = tarfile.SYMTYPE, "/etc/passwd"
    whole(write(at / "x.tar", [("1.txt", info)]))


def planted_link_in_the_cache(at: Path) -> None:
    victim = at / "victim"
    victim.write_text("mine")
    (at / "x.txt.gz").write_bytes(gzip.compress(b"one\n"))
    folder = derived_files.cache_folder(at / "x.txt.gz", at / "cache")
    folder.mkdir(parents=True)
    for name in ("x.txt", "x.txt.penstock-stamp", ".x.txt.gz.penstock-lines", ".x.txt.tmp"):
        (folder / name).symlink_to(victim)
    index_files([at / "x.txt.gz"], rebuild=True, cache=at / "cache")
    assert whole(at / "x.txt.gz", cache=at / "cache") == [{"text": "one"}]
    assert victim.read_text() == "mine"


def planted_copy_of_another_file(at: Path) -> None:
    for name, body in (("a", b"one\n"), ("b", b"two\n")):
        (at / f"{name}.txt.gz").write_bytes(gzip.compress(body))
        whole(at / f"{name}.txt.gz", cache=at / "cache")
    copy = derived_files.cache_folder(at / "a.txt.gz", at / "cache") / "a.txt"
    copy.write_bytes(b"two\n")
    whole(at / "a.txt.gz", cache=at / "cache")


def store_index(path: Path, rows: int, body: bytes) -> None:
    file = derived_files.place_index(derived_files.Kind.LINES, path, "lines", None)
    derived_files.store(file, file.read_fingerprint(), rows, body, False)


def poisoned_index(at: Path) -> None:
    path = at / "x.jsonl"
    path.write_text("1\n2\n")
    whole(path)
    body = np.asarray([0, 1 << 62, 1 << 63], "<u8").tobytes()
    store_index(path, 2, body)
    whole(path)


def index_that_claims_much(at: Path) -> None:
    path = at / "x.jsonl"
    path.write_text("1\n2\n")
    whole(path)
    store_index(path, 1 << 60, b"")
    whole(path)


# ---------------------------------------------------------------- pictures


def picture_with_a_huge_profile(at: Path) -> None:
    packed = zeros(600 << 20, "zlib")
    images.decode_image(png([(b"iCCP", b"x\0\0" + packed)]), "rgb8", key="profile")


def picture_with_huge_text(at: Path) -> None:
    packed = zeros(600 << 20, "zlib")
    images.decode_image(png([(b"zTXt", b"x\0\0" + packed)]), "rgb8", key="text")


def picture_of_many_texts(at: Path) -> None:
    packed = zeros(1 << 20, "zlib")[:1020]
    images.decode_image(png([(b"zTXt", b"x\0\0" + packed)] * 600), "rgb8", key="texts")


def picture_that_is_huge(at: Path) -> None:
    images.decode_image(png([], 100_000, 100_000), "rgb8", key="size")


def picture_that_is_large(at: Path) -> None:
    images.decode_image(png([], 13_000, 13_000), "rgb8", key="size")


def array_that_claims_much(at: Path) -> None:
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        file, {"descr": "<f8", "fortran_order": False, "shape": (1 << 40,)}
    )
    images.decode_part("npy", file.getvalue(), key="array")


def array_of_objects(at: Path) -> None:
    file = io.BytesIO()
    np.save(file, np.asarray([print], object), allow_pickle=True)
    images.decode_part("npy", file.getvalue(), key="array")


# ---------------------------------------------------------------- secrets


def secret_in_a_url(at: Path) -> None:
    whole(f"s3://user:{SECRET}@bucket/x.jsonl?X-Amz-Signature={SECRET}")


def secret_in_a_mixture(at: Path) -> None:
    os.environ["TOKEN"] = SECRET
    settings(at, "sources: {a: {path: 'https://user:${TOKEN}@host/x.jsonl?token=${TOKEN}'}}")


def secret_in_an_included_file(at: Path) -> None:
    settings(at, f"include: 'https://user:{SECRET}@host/x.yaml'\nsources: {{}}")


def secret_in_an_inner_mixture(at: Path) -> None:
    settings(at, f"sources: {{a: {{mixture: 'https://user:{SECRET}@host/x.yaml?token={SECRET}'}}}}")


def secret_in_a_path(at: Path) -> None:
    whole(Path(f"https://user:{SECRET}@host/x.jsonl"))


def secret_in_an_energon_file(at: Path) -> None:
    url = f"msc://user:{SECRET}@bucket/x?token={SECRET}"
    (at / "m.yaml").write_text(
        f"__module__: megatron.energon\n__class__: MetadatasetV2\nsplits: {{train: {{path: '{url}'}}}}"
    )
    energon.get_train_dataset(at / "m.yaml", batch_size=1, worker_config=None)


# ---------------------------------------------------------------- numbers and names in mixture files


def number_of_thousands_of_digits(at: Path) -> None:
    (at / "x.jsonl").write_text("{}\n")
    settings(at, f"seed: {'9' * 5_000}\nsources: {{a: {{path: x.jsonl}}}}")


def hexadecimal_number_beyond_floats(at: Path) -> None:
    settings(at, f"seed: 0x{'f' * 5_000}\nsources: {{a: {{path: x.jsonl, weight: 0x{'f' * 300}}}}}")


def share_of_thousands_of_digits(at: Path) -> None:
    settings(
        at, f"sources: {{a: {{path: x.jsonl, tokens: {'9' * 5_000}T, slice: ['{'9' * 5_000}%']}}}}"
    )


def variable_of_thousands_of_digits(at: Path) -> None:
    os.environ["SEED"] = "9" * 5_000
    settings(at, "seed: ${SEED}\nsources: {a: {path: x.jsonl}}")


def horizon_beyond_positions(at: Path) -> None:
    (at / "x.jsonl").write_text("{}\n")
    settings(at, "horizon: {samples: 1e300}\nsources: {a: {path: x.jsonl}}")


def horizon_of_many_passes(at: Path) -> None:
    (at / "x.jsonl").write_text("{}\n" * 9)
    settings(at, "horizon: {epochs: 4e18}\nsources: {a: {path: x.jsonl}}")


def point_beyond_floats(at: Path) -> None:
    settings(at, "schedule: {points: {1e999: {a: 1}}}\nsources: {a: {path: x.jsonl}}")


def slice_of_very_many(at: Path) -> None:
    settings(at, f"sources: {{a: {{path: x.jsonl, slice: [0, 9, {10**23}]}}}}")


def block_shuffle_of_very_many(at: Path) -> None:
    (at / "x.jsonl").write_text("{}\n" * 9)
    settings(at, "sources: {a: {path: x.jsonl, shuffle: {rows: 4e18, window: 4e18}}}")


def batch_of_very_many(at: Path) -> None:
    (at / "x.jsonl").write_text("{}\n" * 9)
    settings(at, "batch: {size: 1e15}\nsources: {a: {path: x.jsonl}}")


def group_that_nothing_defines(at: Path) -> None:
    settings(
        at, "horizon: {samples: 9}\nsources: {a: {path: x.jsonl, weight: 1, group: g, start: 3}}"
    )


def many_unknown_keys(at: Path) -> None:
    settings(at, "\n".join(f"weigth{n}: 1" for n in range(8_000)))


def many_points(at: Path) -> None:
    points = ", ".join(f"{n}: {{b: 1}}" for n in range(8_000))
    settings(at, f"schedule: {{points: {{{points}}}}}\nsources: {{a: {{path: x.jsonl}}}}")


def deep_key_to_leave_out(at: Path) -> None:
    (at / "x.jsonl").write_text("{}\n")
    (at / "keys").write_text("[" * 100_000)
    settings(at, "exclude: keys\nsources: {a: {path: x.jsonl}}")


def mixture_file_without_end(at: Path) -> None:
    (at / "m.yaml").symlink_to("/dev/zero")
    mixture_files.load(at / "m.yaml")


def mixture_file_that_is_a_pipe(at: Path) -> None:
    os.mkfifo(at / "m.yaml")
    mixture_files.load(at / "m.yaml")


def include_that_leads_to_itself(at: Path) -> None:
    (at / "k.yaml").symlink_to(at / "k.yaml")
    settings(at, "include: k.yaml\nsources: {a: {path: x.jsonl}}")


def include_of_a_long_name(at: Path) -> None:
    settings(at, f"include: {'x' * 5_000}\nsources: {{a: {{mixture: {'y' * 5_000}}}}}")


def tokenizer_of_a_long_name(at: Path) -> None:
    (at / "x.jsonl").write_text('{"text": ""}\n')
    settings(at, f"tokenize: {{tokenizer: {'y' * 5_000}.json}}\nsources: {{a: {{path: x.jsonl}}}}")


def tokenizer_that_is_sparse(at: Path) -> None:
    Tokenize(sparse(at / "tokenizer.json", 1 << 40))


# ---------------------------------------------------------------- states


def restored(at: Path, *names: str, step: int | None = None) -> None:
    for name in names:
        (at / name).write_text("{}")
    if restore(at, iter(from_sequence(range(5))), step=step) is None:
        raise PenstockError("there is no state")


def state_of_very_many_ranks(at: Path) -> None:
    restored(at, "step-3.rank-0-of-90000000.0123456789abcdef.json", step=3)


def state_of_a_number_beyond_all(at: Path) -> None:
    restored(at, f"step-3.rank-0-of-{'9' * 200}.0123456789abcdef.json", step=3)


def state_that_is_a_pipe(at: Path) -> None:
    os.mkfifo(at / STATE)
    restored(at)


def state_that_is_a_folder(at: Path) -> None:
    (at / STATE).mkdir()
    restored(at)


def state_that_leads_to_nothing(at: Path) -> None:
    (at / STATE).symlink_to("nowhere")
    restored(at)


def state_without_end(at: Path) -> None:
    (at / STATE).symlink_to("/dev/zero")
    restored(at)


def state_that_is_sparse(at: Path) -> None:
    sparse(at / STATE, 1 << 40)
    restored(at)


def state_in_a_file_that_is_a_pipe(at: Path) -> None:
    os.mkfifo(at / "state.json")
    (at / "x.jsonl").write_text("{}\n")
    (at / "m.yaml").write_text("sources: {a: {path: x.jsonl}}")
    open_target(at / "m.yaml", state=at / "state.json")


def states_in_a_pipe(at: Path) -> None:
    os.mkfifo(at / "states")
    restored(at / "states")


def states_under_a_long_name(at: Path) -> None:
    restored(at / ("x" * 300))


def ledger_of_very_many_ranks(at: Path) -> None:
    loader = Loader(from_sequence(range(40)))
    taken = loader.lease(2)
    loader.settle(taken[0].uid, "trained")
    body = unseal(loader.state_dict())
    body["settling"] = {**body["settling"], "of": [0, 1 << 40]}
    loader.load_state_dict(seal(body))


# ---------------------------------------------------------------- headers and indexes that claim much


def npy_of_a_shape_of_true(at: Path) -> None:
    head = b"{'descr': '<i4', 'fortran_order': False, 'shape': (True,), }".ljust(117) + b"\n"
    (at / "x.npy").write_bytes(b"\x93NUMPY\x01\0" + struct.pack("<H", len(head)) + head + bytes(64))
    assert len(whole(at / "x.npy")) > 1, "one document of one token is no answer"


def csv_of_very_many_columns(at: Path) -> None:
    (at / "x.csv").write_text(
        ",".join(f"c{n}" for n in range(100_000)) + "\n" + ",".join("1" * 100_000) + "\n"
    )
    whole(at / "x.csv")


def index_json_that_is_sparse(at: Path) -> None:
    sparse(at / "index.json", 1 << 40)
    (at / "shard.00000.mds").write_bytes(bytes(9))
    whole(at / "shard.00000.mds")


def datatrove_index_that_is_sparse(at: Path) -> None:
    (at / "x.ds").write_bytes(bytes(8))
    sparse(at / "x.ds.index", 1 << 40)
    whole(at / "x.ds", dtype="uint16")


def ends_of_documents_that_unfold(at: Path) -> None:
    (at / "x.npy").write_bytes(bytes(8))
    (at / "x.csv.gz").write_bytes(zeros(300 << 20))
    whole(at / "x.npy", dtype="uint16")


# ---------------------------------------------------------------- servers that claim much


class Liar(BaseHTTPRequestHandler):
    """A server that claims very many bytes, and sends few."""

    size = str(10**15)

    def do_HEAD(self) -> None:
        self.answer(200, {"Content-Length": self.size})

    def do_GET(self) -> None:
        first, _, last = self.headers.get("Range", "bytes=0-9")[6:].partition("-")
        told = {
            "Content-Range": f"bytes {first}-{last}/{self.size}",
            "Content-Length": str(int(last) - int(first) + 1),
        }
        self.answer(206, told)
        self.wfile.write(b"[1,")

    def answer(self, status: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {"ETag": '"a"', "Connection": "close", **headers}.items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        pass


def read_from(server: type[Liar], at: Path, ending: str) -> None:
    with HTTPServer(("127.0.0.1", 0), server) as site:
        threading.Thread(target=site.serve_forever, daemon=True).start()
        whole(f"http://127.0.0.1:{site.server_address[1]}/x.{ending}", cache=at)


def server_of_very_large_lines(at: Path) -> None:
    read_from(Liar, at, "jsonl")


def server_of_a_very_large_archive(at: Path) -> None:
    read_from(Liar, at, "tar")


def server_of_a_very_large_array(at: Path) -> None:
    read_from(Liar, at, "json")


def server_of_a_very_large_table(at: Path) -> None:
    read_from(Liar, at, "arrow")


def server_of_a_size_of_thousands_of_digits(at: Path) -> None:
    class Endless(Liar):
        size = "9" * 5_000

    read_from(Endless, at, "jsonl")


HARMLESS = {
    traversal,
    planted_link_in_the_cache,
    bomb_in_a_bomb,
    choice_and_parts_of_one_repeated_text,
}
"""Those that are read as what they are; every other one must be refused."""

LARGE = {
    array_of_one_large_row,
    csv_bomb,
    ends_of_documents_that_unfold,
    includes_that_double,
    line_of_one_wide_letter,
    line_of_very_many_numbers,
    line_that_spells_one_wide_letter,
    lines_of_one_byte,
    many_points,
    text_of_one_wide_letter,
}
"""Those that take seconds each: in `make soak`. Others of their kinds are in every run."""

ITEMS: dict[str, Callable[[Path], None]] = {
    name: thing
    for name, thing in list(globals().items())
    if getattr(thing, "__code__", None)
    and thing.__code__.co_varnames[: thing.__code__.co_argcount] == ("at",)
    and (thing not in LARGE or is_soak())
}


def done(item: Callable[[Path], None], at: Path) -> str:
    """Run one item with limits; return its error as text, or "harmless"."""
    with open("/proc/self/statm") as file:
        now = int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (now + MEMORY, now + MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    signal.alarm(
        30 * SECONDS
    )  # of a clock that other processes make late; without a handler it ends the process
    try:
        item(at)
    except PenstockError as error:
        return f"{type(error).__name__}: {error}"
    except BaseException as error:
        return f"foreign {type(error).__name__}: {error}"[:500]
    return "harmless"


def apart(item: Callable[[Path], None], at: Path) -> str:
    """Run one item like `done` in a child, so that nothing it does can reach this process."""
    theirs, ours = os.pipe()
    if child := os.fork():
        os.close(ours)
        with open(theirs) as pipe:
            said = pipe.read()
        _, status = os.waitpid(child, 0)
        return said or f"ended by signal {os.WTERMSIG(status)}"
    os.close(theirs)
    with open(ours, "w") as pipe:
        pipe.write(done(item, at))
    os._exit(0)


class Careless(storage.LocalDisk):
    """A disk that need not last."""

    def sync(self, path: Path, /) -> None:
        pass


if __name__ == "__main__":
    for name in (
        "pyarrow.compute",
        "pyarrow.csv",
        "pyarrow.ipc",
        "pyarrow.parquet",
        "PIL.Image",
        "PIL.PngImagePlugin",
        "yaml",
        "zstandard",
    ):
        importlib.import_module(name)
    for size, codec in ((300, "gzip"), (600, "zlib")):  # made once, not by every child
        zeros(size << 20, codec)
    results: dict[str, tuple[str, list[str]]] = {}
    with tempfile.TemporaryDirectory() as scratch, storage.override_world(disk=Careless()):
        for name, item in ITEMS.items():
            at = Path(scratch, name, "x")
            at.mkdir(parents=True)
            said = apart(item, at)
            results[name] = (
                said,
                [str(one) for one in Path(scratch).rglob("*out*") if one.is_file()],
            )
    sys.stdout.write(json.dumps(results))
