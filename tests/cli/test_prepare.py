"""`penstock prepare`, `info`, `preview` and `verify`, as commands."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock as ps
from cli_world import Penstock

HERE = Path(__file__).parents[1]


def lines(folder: Path, rows: int = 60) -> Path:
    path = folder / "code.jsonl"
    path.write_text("".join(json.dumps({"text": f"line {n}", "n": n}) + "\n" for n in range(rows)))
    return path


def pictures(folder: Path) -> Path:
    for n in range(6):
        place = folder / "photos" / ("cats" if n % 2 else "dogs")
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{n}.png").write_bytes(
            b"\x89PNG\r\n\x1a\n" + bytes(8) + bytes([0, 0, 0, 9, 0, 0, 0, 5]) + bytes(n)
        )
        (place / f"{n}.txt").write_text(f"picture {n}")
    (folder / "photos" / ".hidden.png").write_bytes(b"")
    return folder / "photos"


def held(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def told(result: Any) -> Any:
    return json.loads(result.stdout)


def test_rows_become_shards(tmp_path: Path, penstock: Penstock) -> None:
    out, data = tmp_path / "out", lines(tmp_path)
    asked = ("prepare", data, "-o", out, "--shard", 25, "--shuffle", 3, "--columns", "text")
    result = penstock(*asked, "--json")
    assert result.exit_code == 0, result.output
    found = told(result)
    assert (found["format"], found["samples"], len(found["files"])) == ("arrow", 60, 3)
    assert sorted(row["text"] for row in ps.read(out)) == sorted(f"line {n}" for n in range(60))
    assert "60 samples in 3 files (arrow)" in penstock(*asked).output
    other = penstock("prepare", data, "-o", out, "--shard", 20)
    assert other.exit_code == 2 and "holds other shards" in other.stderr


@pytest.mark.parametrize("engine", ["inline", "threads", "processes"])
def test_folders_of_files_become_tars(tmp_path: Path, penstock: Penstock, engine: str) -> None:
    result = penstock(
        "prepare", pictures(tmp_path), "-o", tmp_path / "out", "--executor", engine, "--workers", 2
    )
    assert result.exit_code == 0, result.output
    rows = list(ps.read(tmp_path / "out"))
    assert [row["__key__"] for row in rows] == [
        "cats/1",
        "cats/3",
        "cats/5",
        "dogs/0",
        "dogs/2",
        "dogs/4",
    ]
    assert rows[0]["txt"] == b"picture 1" and rows[2]["png"].endswith(bytes(5))


def test_lists_of_files_become_tars(tmp_path: Path, penstock: Penstock) -> None:
    pictures(tmp_path)
    names = tmp_path / "list.tsv"
    names.write_text(
        "photos/dogs/4.png\ta dog\n\nphotos/cats/1.png\ta cat\nphotos/dogs/4.png\tagain\n"
    )
    assert penstock("prepare", names, "--from", "list", "-o", tmp_path / "out").exit_code == 0
    assert [row["txt"] for row in ps.read(tmp_path / "out")] == [b"a dog", b"a cat", b"again"]
    names.write_text("photos/none.png\n")
    result = penstock("prepare", names, "--from", "list", "-o", tmp_path / "other")
    assert (
        result.exit_code == 2
        and "no file 'photos/none.png'" in result.stderr
        and "line 1" in result.stderr
    )


@pytest.mark.parametrize("names", [("dup.TXT", "dup.txt"), ("a.JPG", "a.jpg"), ("a", "a.bin")])
def test_two_files_for_one_part_are_refused_by_name(
    names: tuple[str, str], tmp_path: Path, penstock: Penstock
) -> None:
    folder = tmp_path / "files"
    (folder / "d").mkdir(parents=True)
    for name in names:
        (folder / "d" / name).write_text(name)
    result = penstock("prepare", folder, "--from", "files", "-o", tmp_path / "out")
    said = " ".join(result.stderr.split())
    assert (
        result.exit_code == 2
        and f"{folder / 'd' / names[0]} and {folder / 'd' / names[1]} would both" in said
    )


def test_a_list_that_tells_the_text_of_a_text_is_refused(
    tmp_path: Path, penstock: Penstock
) -> None:
    (tmp_path / "x.txt").write_text("its own")
    names = tmp_path / "list.tsv"
    names.write_text("x.txt\n\nx.txt\ta caption\n")
    result = penstock("prepare", names, "--from", "list", "-o", tmp_path / "out")
    assert result.exit_code == 2, result.output
    assert (
        "'a caption'" in result.stderr and "'x.txt'" in result.stderr and "line 3" in result.stderr
    )


def test_lists_may_begin_with_a_mark_and_end_only_at_new_lines(
    tmp_path: Path, penstock: Penstock
) -> None:
    files = [f"{name}.png" for name in ("a", "b\u2028c", "d\x85e", "f\x0cg")]
    for file in files:
        (tmp_path / file).write_bytes(file.encode())
    names = tmp_path / "list.tsv"
    lines = [files[0], f"{files[1]}\tone\x85two", *files[2:]]
    names.write_bytes(b"\xef\xbb\xbf" + "\r\n".join(lines).encode())
    result = penstock("prepare", names, "--from", "list", "-o", tmp_path / "out")
    assert result.exit_code == 0, result.output
    rows = list(ps.read(tmp_path / "out"))
    assert [row["png"].decode() for row in rows] == files and rows[1][
        "txt"
    ].decode() == "one\x85two"


def test_hub_datasets_become_shards(
    tmp_path: Path, penstock: Penstock, monkeypatch: pytest.MonkeyPatch
) -> None:
    datasets: Any = pytest.importorskip("datasets")
    monkeypatch.setattr(
        datasets,
        "load_dataset",
        lambda name, split: datasets.Dataset.from_dict({"of": [name, split]}),
    )
    result = penstock(
        "prepare", "org/name", "--from", "hub", "--split", "test", "-o", tmp_path / "out", "--json"
    )
    assert result.exit_code == 0, result.output
    assert [row["of"] for row in ps.read(tmp_path / "out")] == ["org/name", "test"]


def test_tars_and_parquet_become_shards(tmp_path: Path, penstock: Penstock) -> None:
    assert penstock("prepare", pictures(tmp_path), "-o", tmp_path / "tars").exit_code == 0
    assert (
        penstock("prepare", tmp_path / "tars", "-o", tmp_path / "again", "--shard", 2).exit_code
        == 0
    )
    assert [row["__key__"] for row in ps.read(tmp_path / "again")] == [
        r["__key__"] for r in ps.read(tmp_path / "tars")
    ]
    pq.write_table(pa.table({"x": range(5)}), tmp_path / "x.parquet")
    assert (
        penstock(
            "prepare", tmp_path / "x.parquet", "-o", tmp_path / "lines", "--to", "jsonl"
        ).exit_code
        == 0
    )
    assert [row["x"] for row in ps.read(tmp_path / "lines")] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("columns", "format"),
    [
        ({"image": [b"x"] * 3, "label": [1, 2, 3]}, "arrow"),
        ({"image": [b"x"] * 3, "cls": [1, 2, 3]}, "tar"),
        ({"png": [b"x"] * 3, "txt": ["a", "b", "c"]}, "tar"),
        ({"image": [b"x"] * 3, "size": [1.5, 2.5, 3.5]}, "arrow"),
    ],
)
def test_rows_of_bytes_become_tars_only_if_a_tar_can_hold_them(
    tmp_path: Path, penstock: Penstock, columns: dict[str, Any], format: str
) -> None:
    pq.write_table(pa.table(columns), data := tmp_path / "rows.parquet")
    result = penstock("prepare", data, "-o", tmp_path / "out", "--json")
    assert result.exit_code == 0, result.output
    assert told(result)["format"] == format
    if format == "arrow":
        assert list(ps.read(tmp_path / "out")) == list(ps.read(data))


def test_bad_input_is_one_line_and_exit_code_two(tmp_path: Path, penstock: Penstock) -> None:
    (tmp_path / "empty.jsonl").write_text("")
    out = ("-o", tmp_path / "out")
    for said, *arguments in (
        ("nowhere", tmp_path / "nowhere.jsonl", *out),
        ("no samples", tmp_path / "empty.jsonl", *out),
        ("--from 'x'", tmp_path, *out, "--from", "x"),
        ("--executor 'x'", lines(tmp_path), *out, "--executor", "x"),
        ("--to 'x': choose", lines(tmp_path), *out, "--to", "x"),
        ("no such file or folder; check the path", tmp_path / "none", *out, "--from", "files"),
        ("one path", tmp_path / "a", tmp_path / "b", *out, "--from", "files"),
    ):
        result = penstock("prepare", *arguments)
        assert (
            result.exit_code == 2 and said in result.stderr and "Traceback" not in result.output
        ), result.output
    assert (
        json.loads(penstock("prepare", tmp_path / "none.jsonl", *out, "--json").stdout)["error"][
            "exit_code"
        ]
        == 2
    )


@pytest.mark.slow  # processes that are killed
def test_killed_and_begun_again_it_gives_the_same_bytes(tmp_path: Path) -> None:
    data = lines(tmp_path, 400)
    code = "from penstock.cli import main; main()"

    def command(out: Path) -> list[str]:
        return [sys.executable, "-c", code, "prepare", str(data), "-o", str(out), "--shard", "5"]

    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run(command(tmp_path / "whole"), check=True, env=environment, capture_output=True)
    out = tmp_path / "killed"
    process = subprocess.Popen(
        command(out), env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    while process.poll() is None and not list(out.glob("shard-*")):
        pass
    process.send_signal(signal.SIGKILL)
    process.communicate()
    subprocess.run(command(out), check=True, env=environment, capture_output=True)
    assert held(out) == held(tmp_path / "whole")


def test_info_says_what_a_path_is(tmp_path: Path, penstock: Penstock) -> None:
    found = told(penstock("info", lines(tmp_path), "--json"))
    assert (found["format"], found["samples"], found["files"]) == ("jsonl", 60, 1)
    assert (
        found["columns"] == {"text": "str", "n": "int"}
        and found["checksums"] == "yes, in the index"
    )
    rows = pa.table({"id": range(100), "vector": [[1.0, 2.0]] * 100})
    pq.write_table(rows, tmp_path / "x.parquet", row_group_size=10)
    found = told(penstock("info", tmp_path / "x.parquet", "--json"))
    assert (
        found["columns"] == {"id": "int64", "vector": "list<double>"}
        and found["row_groups"]["rows"] == 10
    )
    assert found["checksums"].startswith("no")
    assert penstock("index", tmp_path / "x.parquet", "--checksum").exit_code == 0
    assert told(penstock("info", tmp_path / "x.parquet", "--json"))["checksums"] == "yes"
    ps.write(ps.from_sequence([np.arange(n) for n in (2, 5, 3)]), tmp_path / "tokens")
    found = told(penstock("info", tmp_path / "tokens", "--json"))
    assert (
        found["written_by_penstock"]
        and found["tokens"]["total"] == 10
        and found["tokens"]["most"] == 5
    )
    said = penstock("info", tmp_path / "tokens").output
    assert "arrow, 3 samples in 1 file\n" in said and "tokens: 10, 3.3 a sample, at most 5" in said
    assert penstock("info", tmp_path / "none.parquet").exit_code == 2


def test_preview_tells_media_and_cuts_texts(
    tmp_path: Path, penstock: Penstock, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert penstock("prepare", pictures(tmp_path), "-o", tmp_path / "tars").exit_code == 0
    monkeypatch.setenv("COLUMNS", "40")
    long = tmp_path / "long.jsonl"
    long.write_text(
        json.dumps({"text": "many \x1b[31mwords " * 100, "list": list(range(100)), "none": None})
        + "\n"
    )
    for path in (tmp_path / "tars", long):
        said = penstock("preview", path, "-n", 2, "--at", 0).output
        assert all(len(line) <= 40 for line in said.splitlines()) and "\x1b[31m" not in said, said
    assert (
        "png: <PNG image, 9 x 5, 25 bytes>"
        in penstock("preview", tmp_path / "tars", "-n", 1).output
    )
    monkeypatch.delenv("COLUMNS")
    found = told(penstock("preview", tmp_path / "tars", "-n", 1, "--at", 5, "--json"))
    assert found["samples"] == [
        {
            "index": 5,
            "sample": {
                "__key__": "dogs/4",
                "png": {"kind": "PNG image", "bytes": 28},
                "txt": {"kind": "bytes", "bytes": 9},
                **{
                    name: found["samples"][0]["sample"][name]
                    for name in found["samples"][0]["sample"]
                    if "__" in name
                },
            },
        }
    ]
    result = penstock("preview", long, "--at", 5)
    assert result.exit_code == 2 and "the data has 1 samples" in result.stderr


def test_verify_names_shard_and_sample(tmp_path: Path, penstock: Penstock) -> None:
    out = tmp_path / "out"
    assert (
        penstock("prepare", lines(tmp_path), "-o", out, "--shard", 25, "--to", "jsonl").exit_code
        == 0
    )
    result = penstock("verify", out)
    assert (
        result.exit_code == 0
        and "60 samples in 3 files" in result.output
        and "3 digests: nothing" in result.output
    )
    shard = out / "shard-000001.jsonl"
    body = shard.read_bytes()
    shard.write_bytes(body.replace(b'"n": 30', b'"n": x0'))
    result = penstock("verify", out, "--json")
    assert result.exit_code == 1, result.output
    found = told(result)
    assert not found["sound"] and {problem["file"] for problem in found["problems"]} == {str(shard)}
    assert any(
        problem["row"] is None and "digest" in problem["message"] for problem in found["problems"]
    )


def test_verify_tells_one_kind_of_damage_in_one_line(tmp_path: Path, penstock: Penstock) -> None:
    file = tmp_path / "a.parquet"
    pq.write_table(
        pa.table({"x": range(300)}),
        file,
        write_page_checksum=True,
        row_group_size=150,
        compression="none",
    )
    body = bytearray(file.read_bytes())
    body[40] ^= 1
    file.write_bytes(body)
    result = penstock("verify", file)
    first, last = result.output.splitlines()
    assert result.exit_code == 1
    assert first.startswith(f"{file}, 150 samples from 0 to 149: ") and last.endswith(
        "150 problems"
    )
    found = told(penstock("verify", file, "--json"))
    assert [(kind["samples"], kind["first"], kind["last"]) for kind in found["damage"]] == [
        (150, 0, 149)
    ]
    assert len(penstock("verify", file, "--all").output.splitlines()) == 102


@pytest.mark.parametrize("engine", ["inline", "threads", "processes"])
def test_verify_goes_on_after_what_is_bad(tmp_path: Path, penstock: Penstock, engine: str) -> None:
    good, bad = lines(tmp_path), tmp_path / "bad.jsonl"
    bad.write_text('{"n": 1}\n{"n": \n{"n": 3}\n[\n')
    (tmp_path / "cut.parquet").write_bytes(b"PAR1 this is none")
    result = penstock("verify", good, bad, "--executor", engine, "--workers", 2, "--json")
    assert result.exit_code == 1
    assert [(problem["file"], problem["row"]) for problem in told(result)["problems"]] == [
        (str(bad), 1),
        (str(bad), 3),
    ]
    pq.write_table(pa.table({"x": range(5)}), tmp_path / "fine.parquet")
    result = penstock("verify", tmp_path / "*.parquet", "--json")
    found = told(result)
    assert result.exit_code == 1 and found["samples"] == 5
    assert [(problem["file"], problem["row"]) for problem in found["problems"]] == [
        (str(tmp_path / "cut.parquet"), None)
    ]
    assert penstock("verify", tmp_path / "none.jsonl").exit_code == 2
