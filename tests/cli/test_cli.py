"""The command line: what it prints, how it fails, and what it says where an extra is missing."""

from __future__ import annotations

import gzip
import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.main import get_command
from typer.testing import CliRunner

import penstock.cli
from archives import some, write
from penstock.cli.app import app, join_lines
from penstock.errors import DataError
from penstock.sources import open_files
from penstock.text import Tokenize

RUNNER = CliRunner()
ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No cache of the person who runs the tests is touched."""
    folder = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("HOME", str(folder))
    return folder


def test_help_names_the_commands() -> None:
    done = RUNNER.invoke(app, ["--help"])
    assert done.exit_code == 0
    assert "demo" in done.output
    assert "index" in done.output


def test_help_shows_no_names_of_functions() -> None:
    for name in get_command(app).commands:  # pyright: ignore[reportAttributeAccessIssue]
        assert not re.findall(r"<[a-z]+_\w+>", RUNNER.invoke(app, [name, "--help"]).output), name


def test_help_wraps_paragraphs_at_the_width_of_the_terminal() -> None:
    text = "Two lines\nof text.\n\n- a list\n- of two\n\n    $ code\n    more"
    assert join_lines(text) == text.replace("Two lines\n", "Two lines ")
    for name, command in get_command(app).commands.items():  # pyright: ignore[reportAttributeAccessIssue]
        for paragraph in (command.help or "").split("\n\n"):
            assert "\n" not in paragraph.strip() or "- " in paragraph, name
    for width in (80, 120):
        lines = RUNNER.invoke(
            app, ["preview", "--help"], env={"COLUMNS": str(width)}
        ).output.splitlines()
        begin = next(i for i, line in enumerate(lines) if "Lines are shortened" in line)
        first, following = lines[begin].strip(), lines[begin + 1].split()[0]
        assert len(f" {first} {following}") > width - 2  # the next word did not fit


def test_index_finds_where_documents_of_tokens_end(tmp_path: Path) -> None:
    np.array([5, 0, 6, 7, 0], np.uint16).tofile(tmp_path / "a.bin")
    done = RUNNER.invoke(
        app, ["index", f"{tmp_path}/a.bin", "--dtype", "uint16", "--eos", "0", "--json"]
    )
    assert json.loads(done.output)["files"] == {str(tmp_path / "a.bin"): 2}
    assert (tmp_path / ".a.bin.penstock-documents-uint16-0").exists()


@pytest.mark.parametrize("engine", ["inline", "threads"])
def test_index_keeps_lengths_of_tokens(engine: str, tmp_path: Path) -> None:
    many = [3, 0, 5, 1]
    for name in ("a", "b"):
        table = pa.table({"ids": [list(range(n)) for n in many], "more": ["x"] * 4})
        pq.write_table(table, tmp_path / f"{name}.parquet", row_group_size=3)
    asked = ["index", str(tmp_path), "--lengths", "ids", "--executor", engine, "--json"]
    for more in ((), ("--rebuild",)):
        done = RUNNER.invoke(app, [*asked, *more])
        assert done.exit_code == 0, done.output
        assert set(json.loads(done.output)["files"].values()) == {4}
        kept = sorted(tmp_path.glob(".*.penstock-lengths-ids"))
        assert len(kept) == 2
        kept[0].write_bytes(b"damaged")
    assert RUNNER.invoke(app, [*asked, "--rebuild"]).exit_code == 0
    found = open_files(tmp_path, lengths="ids").lengths()
    assert found is not None and np.asarray(found[:]).tolist() == many * 2
    refused = RUNNER.invoke(app, ["index", str(tmp_path), "--lengths", "more"])
    assert refused.exit_code == 2 and "not lists" in " ".join(refused.output.split())


@pytest.mark.parametrize("engine", ["inline", "processes"])
def test_index_counts_the_tokens_of_texts(engine: str, tmp_path: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers

    made: Any = Tokenizer(models.WordLevel({"<unk>": 0, "to": 1}, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = tmp_path / "tokenizer.json"
    made.save(str(tokenizer))
    for name in ("a", "b"):
        (tmp_path / f"{name}.jsonl").write_text('{"body": "to be"}\n{"body": ""}\n')
    asked = [
        "index",
        f"{tmp_path}/*.jsonl",
        "--lengths",
        "body",
        "--tokenizer",
        str(tokenizer),
        "--eos",
        "2",
    ]
    done = RUNNER.invoke(app, [*asked, "--executor", engine, "--workers", "2", "--json"])
    assert done.exit_code == 0, done.output
    kept = {path.name: path.stat().st_mtime_ns for path in tmp_path.glob(".*.penstock-lengths-*")}
    assert len(kept) == 2
    found = open_files(tmp_path / "*.jsonl", lengths=Tokenize(tokenizer, "body", eos=2)).lengths()
    assert found is not None and np.asarray(found[:]).tolist() == [3, 1, 3, 1]
    assert {
        path.name: path.stat().st_mtime_ns for path in tmp_path.glob(".*.penstock-lengths-*")
    } == kept
    refused = RUNNER.invoke(app, ["index", f"{tmp_path}/*.jsonl", "--bos", "1"])
    assert refused.exit_code == 2 and "add --tokenizer" in " ".join(refused.output.split())
    refused = RUNNER.invoke(
        app, ["index", f"{tmp_path}/*.jsonl", "--tokenizer", str(tokenizer), "--rebuild"]
    )
    assert refused.exit_code == 2 and "row 0: tokenize: the field 'text' holds no text" in " ".join(
        refused.output.split()
    )


def test_index_counts_rows_and_leaves_an_index(tmp_path: Path) -> None:
    for name, rows in (("a", 3), ("b", 5)):
        (tmp_path / f"{name}.jsonl").write_text('{"x": 1}\n' * rows)
    done = RUNNER.invoke(app, ["index", f"{tmp_path}/*.jsonl", "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.output)["files"] == {
        str(tmp_path / "a.jsonl"): 3,
        str(tmp_path / "b.jsonl"): 5,
    }
    assert len(list(tmp_path.glob(".*.penstock-lines"))) == 2


@pytest.mark.parametrize(
    ("engine", "form"),
    [
        ("threads", "jsonl.gz"),
        pytest.param("threads", "csv", marks=pytest.mark.slow),
        pytest.param("processes", "jsonl", marks=pytest.mark.slow),
        pytest.param("processes", "tar", marks=pytest.mark.slow),
    ],
)
def test_an_index_made_by_many_is_that_of_one(engine: str, form: str, tmp_path: Path) -> None:
    files(tmp_path, form)

    def indexed(name: str, *options: str) -> tuple[str, dict[str, bytes]]:
        cache = tmp_path / name
        done = RUNNER.invoke(
            app, ["index", f"{tmp_path}/*.{form}", "--json", "--cache", str(cache), *options]
        )
        assert done.exit_code == 0, done.output
        made = [path for path in cache.rglob("*") if path.is_file() and "-looked" not in path.name]
        return done.output, {str(path.relative_to(cache)): path.read_bytes() for path in made}

    one, many = indexed("one"), indexed("many", "--executor", engine, "--workers", "2")
    assert many == one and len(one[1]) > 1
    for path in (tmp_path / "many").rglob(".*.penstock-*"):
        path.write_bytes(b"damaged")
    assert indexed("many", "--executor", engine, "--rebuild") == one


def files(folder: Path, form: str) -> None:
    """40 files, so many that they have a catalog; some of them are small."""
    for i in range(40):
        rows = 3000 if i % 10 == 0 else i + 1
        path = folder / f"{i:02d}.{form}"
        if form == "tar":
            write(path, some(rows // 100 + 1))
            continue
        text = (
            "x,y\n" + "1,2\n" * rows if form == "csv" else '{"x": "some words and more"}\n' * rows
        )
        path.write_bytes(gzip.compress(text.encode()) if form.endswith("gz") else text.encode())


@pytest.mark.parametrize("engine", ["inline", "processes"])
def test_index_keeps_checksums_that_are_compared(engine: str, tmp_path: Path) -> None:
    pq.write_table(
        pa.table({"word": ["stone", "river"], "more": ["a", "b"]}),
        tmp_path / "x.parquet",
        use_dictionary=False,
    )
    body, kept = (tmp_path / "x.parquet").read_bytes(), tmp_path / ".x.parquet.penstock-sums"
    assert RUNNER.invoke(app, ["index", str(tmp_path)]).exit_code == 2
    for _ in range(2):
        done = RUNNER.invoke(
            app, ["index", str(tmp_path), "--checksum", "--executor", engine, "--json"]
        )
        assert done.exit_code == 0 and json.loads(done.output)["files"] == {
            str(tmp_path / "x.parquet"): 2
        }
    assert kept.is_file()
    times = (tmp_path / "x.parquet").stat().st_mtime_ns
    (tmp_path / "x.parquet").write_bytes(body.replace(b"river", b"rover"))
    os.utime(tmp_path / "x.parquet", ns=(times, times))
    with pytest.raises(
        DataError, match=r"x\.parquet.*: bytes 0 to 4,095 changed since the file was indexed"
    ):
        open_files(tmp_path / "x.parquet").read(np.arange(2))
    kept.unlink()
    assert open_files(tmp_path / "x.parquet").read(np.arange(2))[1]["word"] == "rover"


def test_index_says_what_it_cannot_do(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("{}\n")
    done = RUNNER.invoke(app, ["index", str(tmp_path), "--executor", "rays"])
    assert done.exit_code == 2 and "did you mean 'ray'" in done.output
    files(tmp_path, "tar")
    (tmp_path / "17.tar").write_bytes(b"no tar")
    done = RUNNER.invoke(
        app, ["index", f"{tmp_path}/*.tar", "--executor", "processes", "--workers", "2"]
    )
    assert done.exit_code == 2 and "17.tar" in done.output and "cut off in a header" in done.output


def test_index_refuses_what_is_not_there(tmp_path: Path) -> None:
    done = RUNNER.invoke(app, ["index", f"{tmp_path}/*.jsonl"])
    assert done.exit_code == 2
    assert "matches no file" in done.output


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "typer", None)
    monkeypatch.delitem(sys.modules, "penstock.cli.app", raising=False)
    with pytest.raises(SystemExit, match=r"pip install 'penstock-data\[cli\]'"):
        penstock.cli.main()


def test_the_demo_without_tokenizers_names_its_extra(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    for name in ("penstock.cli.demo.story", "penstock.cli.demo.pipeline"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    done = RUNNER.invoke(app, ["demo", "--out", str(tmp_path)])
    assert done.exit_code == 2
    assert "pip install 'penstock-data[demo]'" in done.output


def test_the_demo_in_a_folder_that_cannot_be_written_names_it(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    out = tmp_path / "file" / "demo"
    done = RUNNER.invoke(app, ["demo", "--out", str(out)])
    assert done.exit_code == 1
    assert f"{out}: Not a directory: check which part of the path" in done.output


def test_help_groups_the_commands_with_one_plain_line_each() -> None:
    group: Any = get_command(app)
    panels: dict[str, list[str]] = {}
    for name, command in group.commands.items():
        panels.setdefault(command.rich_help_panel, []).append(name)
        summary, _, rest = command.help.partition("\n")
        assert summary.endswith(".") and len(summary) <= 66, f"{name}: {summary}"
        assert not rest.strip() or rest.startswith("\n"), f"{name}: a summary of two lines"
    assert panels == {
        "Author": ["lint", "convert", "simulate", "diff", "report"],
        "Inspect": ["plan", "explore", "at", "find", "audit", "seen", "leaks", "blame", "replay"],
        "Run": ["run", "top", "edit", "demo"],
        "Data": ["info", "preview", "index", "prepare", "tokenize", "verify", "cache"],
    }
    page = (ROOT / "docs" / "command-line.md").read_text()
    listed = re.findall(r"^\*\*(\w+)\*\*$|^\| `penstock (\w+)", page, re.MULTILINE)
    headings = [position for position, (heading, _) in enumerate(listed) if heading]
    of_page = {
        listed[first][0]: [command for _, command in listed[first + 1 : stop]]
        for first, stop in zip(headings, [*headings[1:], None], strict=True)
    }
    assert of_page == panels, "docs/command-line.md lists other commands than --help"


def test_a_word_in_place_of_a_number_is_named() -> None:
    done = RUNNER.invoke(app, ["index", "x", "--workers", "two"])
    assert done.exit_code == 2 and "expected a whole number, not 'two'" in done.output


@pytest.mark.parametrize("option", [("--eos", "0"), ("--dtype", "uint16")])
def test_index_refuses_options_of_tokens_for_lines(option: tuple[str, str], tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n')
    result = CliRunner().invoke(app, ["index", f"{tmp_path}/a.jsonl", *option])
    assert result.exit_code == 2
    assert f"{option[0]} describes files of token ids" in " ".join(result.output.split())
