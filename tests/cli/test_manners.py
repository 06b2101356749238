"""All commands at once: as words in a pipe and at forty columns, as JSON that keeps to its schema, where something is
wrong, and after Ctrl-C.
"""

from __future__ import annotations

import importlib
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from jsonschema import Draft202012Validator

import penstock as ps
from chat_cases import bpe
from cli_world import MIXTURE, Penstock
from example_counts import pick_cases
from penstock.cli.app import app

ROOT = Path(__file__).parents[2]
SCHEMA = json.loads((ROOT / "src" / "penstock" / "cli" / "answers.schema.json").read_text())

# What each command is asked so that it succeeds, with its exit code; FILE is the mixture, RUN states of a run of it.
ASKED: dict[str, tuple[tuple[str, ...], int]] = {
    "plan": (("FILE",), 0),
    "at": (("FILE", "3", "--read"), 0),
    "find": (("FILE", "text", "17"), 0),
    "diff": (("FILE", "OTHER"), 1),
    "simulate": (("FILE", "--weight", "code=0.9"), 0),
    "audit": (("FILE", "--steps", "3:5", "-o", "OUT.csv"), 0),
    "blame": (("FILE", "--steps", "0:20"), 0),
    "seen": (("FILE", "--before", "40"), 0),
    "leaks": (("FILE", "OTHER", "--by", "row"), 1),
    "replay": (("FILE", "--steps", "3:5", "-o", "OUT.jsonl"), 0),
    "report": (("FILE", "-o", "OUT.html"), 0),
    "lint": (("FILE", "WRONG"), 1),
    "run": (("FILE", "--steps", "5"), 0),
    "top": (("STATS",), 0),
    "edit": (("FILE", "RUN", "--skip", "20:30", "-o", "OUT"), 0),
    "convert": (("OLMO", "-o", "OUT.yaml"), 0),
    "index": (("LINES", "--rebuild"), 0),
    "prepare": (("LINES", "-o", "SHARDS"), 0),
    "tokenize": (("TEXTS", "-o", "TOKENS"), 0),
    "info": (("LINES",), 0),
    "preview": (("LINES", "-n", "2"), 0),
    "verify": (("LINES",), 0),
    "cache info": (("BLOCKS",), 0),
    "cache clear": (("BLOCKS",), 0),
    "cache verify": (("BLOCKS",), 0),
}
# Each kind of error: what is asked, and what it is called.
WRONG: dict[str, tuple[tuple[str, ...], str]] = {
    "a file that is not there": (("plan", "GONE"), "UsageError"),
    "an option that there is not": (("at", "FILE", "3", "--stepz", "4"), "UsageError"),
    "a number that is none": (("at", "FILE", "three"), "UsageError"),
    "a command that there is not": (("plam", "FILE"), "UsageError"),
    "an argument too few": (("find",), "UsageError"),
    "a mixture that cannot be loaded": (("plan", "WRONG"), "ConfigError"),
    "a source that is not there": (("find", "FILE", "txt", "17"), "ConfigError"),
    "a sample that is not there": (("find", "FILE", "text", "17000"), "IndexError"),
    "a step after the end": (("at", "FILE", "300"), "ConfigError"),
    "a state of another run": (("plan", "FILE", "--state", "FOREIGN"), "StateError"),
    "no state": (("audit", "FILE", "-o", "OUT.csv", "--state", "EMPTY"), "StateError"),
    "a state that is not there": (("plan", "FILE", "--state", "GONE"), "StateError"),
    "a folder that is none": (("run", "FILE", "--state", "FILE"), "ConfigError"),
    "states in a store": (("run", "FILE", "--state", "s3://bucket/run"), "UsageError"),
    "states of a store": (("plan", "FILE", "--state", "s3://bucket/run"), "UsageError"),
    "shards in a store": (("prepare", "LINES", "-o", "gs://bucket/shards"), "UsageError"),
    "a stats file that is none": (("top", "LINES"), "ConfigError"),
    "a cache in a store": (("index", "LINES", "--cache", "s3://bucket/cache"), "UsageError"),
}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return the values of the words in capitals, with the files that they name."""
    folder = tmp_path_factory.mktemp("manners")
    for name, rows in (("code", 2_900), ("text", 1_100), ("math", 250)):
        lines = [json.dumps({"text": f"{name} {i}"}) for i in range(rows)]
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    (folder / "mixture.yaml").write_text(MIXTURE)
    (folder / "other.yaml").write_text(MIXTURE.replace("seed: 7", "seed: 8"))
    (folder / "wrong.yaml").write_text(MIXTURE.replace("weight: 0.5", "wieght: 0.5"))
    bpe().save(str(folder / "tokenizer.json"))
    (folder / "texts.yaml").write_text(
        "tokenize: {tokenizer: tokenizer.json}\nsources: {math: {path: math.jsonl}}\n"
    )
    (folder / "olmo.yaml").write_text(
        "sources:\n- {source_name: code, target_ratio: 1, paths: [code.jsonl]}\n"
    )
    with ps.Loader(ps.load(folder / "mixture.yaml"), rank=0, world_size=1) as loader:
        next(iter(loader))
        ps.save(folder / "run", loader)
    with ps.Loader(
        ps.load(folder / "mixture.yaml"), stats=folder / "stats.jsonl", profile=True
    ) as loader:
        next(iter(loader))
    ps.save(folder / "foreign", iter(ps.from_sequence(range(5))))
    (folder / "empty").mkdir()
    names = {
        "FILE": "mixture.yaml",
        "OTHER": "other.yaml",
        "WRONG": "wrong.yaml",
        "OLMO": "olmo.yaml",
        "RUN": "run",
        "STATS": "stats.jsonl",
    }
    names |= {
        "FOREIGN": "foreign",
        "EMPTY": "empty",
        "GONE": "gone.yaml",
        "LINES": "text.jsonl",
        "OUT": "out",
    }
    names |= {"SHARDS": "shards", "BLOCKS": "blocks", "TEXTS": "texts.yaml", "TOKENS": "tokens"}
    return {word: str(folder / name) for word, name in names.items()}


def spelled(world: dict[str, str], words: tuple[str, ...]) -> list[str]:
    return [
        word.replace(stem, world[stem]) if (stem := word.partition(".")[0]) in world else word
        for word in words
    ]


def test_starting_loads_little() -> None:
    code = "import sys, penstock.cli.app; print(*sys.modules)"
    ready = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=ready, capture_output=True, text=True, timeout=600
    )
    loaded = {
        ".".join(name.split(".")[:2])
        for name in done.stdout.split()
        if name.startswith("penstock.")
    }
    assert loaded == {"penstock.cli", "penstock.errors"}, (
        "what a command needs it imports when it is called"
    )
    assert not {"numpy", "pyarrow", "yaml", "rich"} & {*done.stdout.split()}


def test_every_command_is_here() -> None:
    commands = {
        command.name or command.callback.__name__
        for command in app.registered_commands
        if command.callback
    }
    groups = {
        group.name: group.typer_instance for group in app.registered_groups if group.typer_instance
    }
    for name, group in groups.items():
        assert {
            f"{name} {one.callback.__name__}" for one in group.registered_commands if one.callback
        } <= ASKED.keys()
    assert (
        commands - {"demo", "explore"} <= ASKED.keys()
        and commands - {"explore"} | groups.keys() <= SCHEMA["$defs"].keys()
    )
    assert (ROOT / "docs" / "answers.schema.json").read_text() == json.dumps(
        SCHEMA, indent=1
    ) + "\n"


@pytest.mark.parametrize("command", ASKED)
def test_its_json_keeps_to_its_schema(
    command: str, world: dict[str, str], penstock: Penstock
) -> None:
    words, code = ASKED[command]
    done = penstock(*command.split(), *spelled(world, words), "--json")
    assert done.exit_code == code, done.output
    found = json.loads(done.stdout)
    assert found["version"] == 1
    Draft202012Validator(
        {"$ref": f"#/$defs/{command.split()[0]}", "$defs": SCHEMA["$defs"]}
    ).validate(found)


@pytest.mark.parametrize("horizon", ["horizon: {epochs: 1}\n", ""])
def test_the_plan_of_packed_rows_keeps_to_its_schema(
    horizon: str, tmp_path: Path, penstock: Penstock
) -> None:
    pq.write_table(
        pa.table({"ids": [list(range(n)) for n in (3, 40, 7, 12)] * 9}), tmp_path / "a.parquet"
    )
    path = tmp_path / "packed.yaml"
    path.write_text(
        f"{horizon}pack: {{length: 32}}\nsources: {{a: {{path: a.parquet, lengths: ids}}}}\n"
    )
    found = json.loads(penstock("plan", path, "--json").stdout)
    assert found["packing"]["sampled"] > 0
    Draft202012Validator({"$ref": "#/$defs/plan", "$defs": SCHEMA["$defs"]}).validate(found)


@pytest.mark.parametrize("command", ASKED)
def test_it_fits_forty_columns_and_says_the_same(
    command: str, world: dict[str, str], penstock: Penstock, monkeypatch: pytest.MonkeyPatch
) -> None:
    words, code = ASKED[command]
    shown = dict[int, str]()
    for columns in (40, 200):
        monkeypatch.setenv("COLUMNS", str(columns))
        done = penstock(*command.split(), *spelled(world, words))
        assert done.exit_code == code, done.output
        shown[columns] = done.stdout
        for line in (
            done.stdout.splitlines() if command != "convert" else ()
        ):  # whose lines hold whole paths
            longest = max(map(len, line.split()), default=0)
            assert len(line) <= max(columns, longest + 4), f"{len(line)} columns: {line!r}"
    if command not in (
        "run",
        "convert",
        "cache info",
    ):  # which tell of their speed, and of the room that there is
        words = tuple(word for word in shown[200].split() if any(map(str.isdigit, word)))
        assert [word for word in words if word not in shown[40]] == []


@pytest.mark.parametrize("kind", WRONG)
def test_an_error_is_json_too_where_that_is_asked_for(
    kind: str, world: dict[str, str], penstock: Penstock
) -> None:
    words, name = WRONG[kind]
    done = penstock(*spelled(world, words), "--json")
    assert done.exit_code == 2, done.output
    found = json.loads(done.stdout)
    Draft202012Validator({"$ref": "#/$defs/error", "$defs": SCHEMA["$defs"]}).validate(found)
    assert found["error"]["kind"] == name and found["error"]["exit_code"] == 2
    said = penstock(*spelled(world, words))
    assert said.exit_code == 2 and not said.stdout and said.stderr


# Where each command is when Ctrl-C comes.
INSIDE = {
    "convert": "penstock.compat.mixtures.convert_with_keys",
    "index": "penstock.sources.index_files",
    "lint": "penstock.mixture_files.lint",
    "prepare": "penstock.writing.write",
    "info": "penstock.cli.outline.describe_files",
    "preview": "penstock.read",
    "tokenize": "penstock.mixture_files.read_model",
    "top": "penstock.explore.run_stats.StatsFollower",
    "verify": "penstock.writing.verify",
    "cache info": "penstock.stores.blocks.BlockCache",
    "cache clear": "penstock.stores.blocks.BlockCache",
    "cache verify": "penstock.stores.blocks.BlockCache",
}


@pytest.mark.parametrize("command", ASKED)
def test_ctrl_c_ends_it_with_130(
    command: str, world: dict[str, str], penstock: Penstock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def pressed(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    module, _, name = INSIDE.get(command, "penstock.report.target.open_target").rpartition(".")
    importlib.import_module("penstock.report.target")
    monkeypatch.setattr(importlib.import_module(module), name, pressed)
    words, _ = ASKED[command]
    done = penstock(*command.split(), *spelled(world, words))
    assert done.exit_code == 130 and "penstock: stopped" in done.stderr
    done = penstock(*command.split(), *spelled(world, words), "--json")
    assert done.exit_code == 130 and json.loads(done.stdout)["error"]["exit_code"] == 130


def test_who_reads_its_lines_may_have_enough(world: dict[str, str]) -> None:
    command = [sys.executable, "-m", "penstock", "audit", world["FILE"]]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        assert json.loads(process.stdout.readline())["step"] == 0
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(timeout=600) in (141, 0)


@pytest.mark.parametrize("command", pick_cases(["plan", "find", "diff", "lint", "seen", "info"], 2))
def test_a_closed_pipe_is_no_answer(command: str, world: dict[str, str]) -> None:
    ready = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "penstock", command, *spelled(world, ASKED[command][0])],
            env=ready,
            stdout=writer,
            stderr=subprocess.PIPE,
            timeout=600,
        )
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.parametrize(
    "command,unbuffered",
    pick_cases([(name, text) for text in ("", "1") for name in ("audit", "at", "replay")], 2),
)
def test_output_that_a_full_disk_cuts_off_is_an_error(
    command: str, unbuffered: str, world: dict[str, str], tmp_path: Path
) -> None:
    ready = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(sys.path),
        "PYTHONUNBUFFERED": unbuffered,
    }
    spans = {"audit": [], "at": ["0", "--to", "40"], "replay": ["--steps", "0:40"]}
    words = ["bash", "-c", 'ulimit -f 1; exec "$@"', "-"]  # a file takes 1,024 bytes
    words += [sys.executable, "-m", "penstock", command, world["FILE"], *spans[command]]
    with open(tmp_path / "out", "wb") as out:
        done = subprocess.run(words, env=ready, stdout=out, stderr=subprocess.PIPE, timeout=600)
    lines = done.stderr.decode().splitlines()
    assert (done.returncode, len(lines)) == (2, 1) and "File too large" in lines[0], lines
    assert (tmp_path / "out").stat().st_size == 1024


COMPLETED: dict[str, tuple[dict[str, str], Callable[[str], str]]] = {
    "bash": ({"COMP_WORDS": "penstock si", "COMP_CWORD": "1"}, str),
    "zsh": ({"_TYPER_COMPLETE_ARGS": "penstock si"}, str),
    "fish": (
        {"_TYPER_COMPLETE_ARGS": "penstock si", "_TYPER_COMPLETE_FISH_ACTION": "get-args"},
        str,
    ),
}


@pytest.mark.slow  # starts shells
@pytest.mark.parametrize("shell", COMPLETED)
def test_shells_complete_it(shell: str) -> None:
    def told(how: str, **more: str) -> str:
        ready = {
            **os.environ,
            **more,
            "_PENSTOCK_COMPLETE": f"{how}_{shell}",
            "PYTHONPATH": os.pathsep.join(sys.path),
        }
        code = "import sys; sys.argv[:] = ['penstock']; from penstock.cli import main; main()"
        done = subprocess.run(
            [sys.executable, "-c", code], env=ready, capture_output=True, text=True, timeout=600
        )
        return done.stdout

    assert "simulate" in told("complete", **COMPLETED[shell][0])
    assert shell != "zsh" or "_PENSTOCK_COMPLETE" in told("source")


@pytest.mark.slow  # starts a process
def test_a_name_that_is_too_long_or_not_utf_8(world: dict[str, str], penstock: Penstock) -> None:
    done = penstock("plan", "x" * 300 + ".yaml", "--json")
    assert done.exit_code == 2 and json.loads(done.stdout)["error"]["kind"] == "UsageError"
    file = Path(world["FILE"])
    path = file.with_name("of\udcff.yaml")
    path.write_bytes(file.read_bytes())
    page, picture = file.with_name("odd.html"), file.with_name("odd.svg")
    assert penstock("report", str(path), "-o", str(page)).exit_code == 0
    command = [sys.executable, "-m", "penstock", "plan", str(path), "-o", str(picture)]
    strict = os.environ | {"PYTHONIOENCODING": "utf-8:strict"}
    assert b"of\\udcff" in subprocess.run(command, env=strict, stdout=-1, check=True).stdout
    assert "of\\udcff.yaml" in page.read_text() and "of\\udcff.yaml" in picture.read_text()


@pytest.mark.parametrize("text", ["3", '"FILE"', "[]", "[3]", "{}"])
def test_a_state_is_a_mapping_or_a_list_of_them(
    text: str, world: dict[str, str], penstock: Penstock, tmp_path: Path
) -> None:
    (tmp_path / "state.json").write_text(text.replace("FILE", world["RUN"]))
    done = penstock("at", world["FILE"], "0", "--state", str(tmp_path / "state.json"), "--json")
    assert done.exit_code == 2 and json.loads(done.stdout)["error"]["kind"] == "StateError"


@pytest.mark.parametrize("data", [b"\xff\xfe\x00", b"[" * 100_000, b"3\n"])
def test_a_dump_is_what_run_dumped(
    data: bytes, world: dict[str, str], penstock: Penstock, tmp_path: Path
) -> None:
    dump = tmp_path / "keys.jsonl"
    dump.write_bytes(data)
    words = ("replay", world["FILE"], "--steps", "0:2", "--against", str(dump), "--json")
    assert json.loads(penstock(*words).stdout)["error"]["kind"] == "DataError"
    words = ("run", world["FILE"], "--steps", "2", "--state", str(tmp_path / "run"))
    assert penstock(*words).exit_code == 0
    dump.write_bytes(data + b"\n")
    words = (*words[:3], "4", *words[4:], "--dump", str(dump), "--json")
    assert json.loads(penstock(*words).stdout)["error"]["kind"] == "ConfigError"
    assert dump.read_bytes() == data + b"\n"


def test_a_report_tells_no_secrets(
    world: dict[str, str], penstock: Penstock, tmp_path: Path
) -> None:
    file = tmp_path / "mixture.yaml"
    lines = (
        Path(world["FILE"]).read_text().replace("path: ", f"path: {Path(world['FILE']).parent}/")
    )
    file.write_text(f"# of https://me:secret@host/x.jsonl?sig=secret\n{lines}")
    assert penstock("report", str(file), "-o", str(tmp_path / "page.html")).exit_code == 0
    page = (tmp_path / "page.html").read_text()
    assert "https://host/x.jsonl" in page and "secret" not in page


@pytest.mark.parametrize(
    "words",
    [
        ("run", "--steps", "2", "--dump", "FOLDER", "--json"),
        ("report", "-o", "FILE/x.html", "--json"),
    ],
)
def test_errors_of_the_system_name_the_path_and_what_to_do(
    words: tuple[str, ...], world: dict[str, str], penstock: Penstock, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    paths = {"FOLDER": str(tmp_path), "FILE/x.html": str(tmp_path / "file" / "x.html")}
    done = penstock(words[0], world["FILE"], *(paths.get(word, word) for word in words[1:]))
    error = json.loads(done.stdout)["error"]
    assert error["kind"] == "StorageError" and str(tmp_path) in error["message"]
    assert "name a" in error["message"]


@pytest.mark.parametrize("more", [(), ("--json",)])
def test_output_to_a_full_disk_is_an_error_with_a_remedy(
    more: tuple[str, ...], world: dict[str, str]
) -> None:
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "penstock", "plan", world["FILE"], *more]
        done = subprocess.run(command, stdout=full, stderr=-1, text=True, check=False)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert "penstock: plan: No space left on device: free some space" in done.stderr


@pytest.mark.parametrize("closed", pick_cases(["<&- >&- 2>&-", "<&-", ">&-", "2>&-"], 2))
def test_closed_streams_are_no_error(closed: str, world: dict[str, str], tmp_path: Path) -> None:
    """Some daemons close the standard streams. The dump then got the descriptor of one of them."""
    out = tmp_path / "keys.jsonl"
    run = ["run", world["FILE"], "--steps", "3", "--workers", "1", "--dump", str(out)]
    asks = [["plan", world["FILE"]], ["audit", world["FILE"], "--steps", "0:3"]]
    for words in (*pick_cases(asks[len(closed) % 2 :] + asks, 3), run):
        command = shlex.join([sys.executable, "-m", "penstock", *words])
        done = subprocess.run(
            f"{command} {closed}", shell=True, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0 and "Traceback" not in done.stderr
        assert bool(done.stdout) == (">&-" not in closed.replace("2>&-", ""))
    assert [json.loads(line)["step"] for line in out.read_text().splitlines()] == [0, 1, 2]


@pytest.mark.parametrize("name", ["plan.svg", "report.html"])
def test_a_full_disk_leaves_the_earlier_output(
    name: str, world: dict[str, str], tmp_path: Path
) -> None:
    out = tmp_path / name
    out.write_text("earlier")
    done = run_on_full_disk(name.partition(".")[0], world["FILE"], "-o", str(out))
    assert done.returncode == 2 and str(out) in done.stderr
    assert out.read_text() == "earlier" and os.listdir(tmp_path) == [name]


def test_a_full_disk_leaves_the_dump_of_a_run_that_resumes(
    world: dict[str, str], penstock: Penstock, tmp_path: Path
) -> None:
    out = tmp_path / "keys.jsonl"
    words = ("run", world["FILE"], "--dump", str(out), "--state", str(tmp_path / "run"))
    penstock(*words, "--steps", "20")
    earlier = out.read_text()
    done = run_on_full_disk(*words, "--steps", "25")
    assert done.returncode == 2 and out.read_text() == earlier
    penstock(*words, "--steps", "25")
    assert [json.loads(line)["step"] for line in out.read_text().splitlines()] == list(range(25))


def run_on_full_disk(*words: str) -> subprocess.CompletedProcess[str]:
    """Run a command that can write a kibibyte to each file."""
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (1024, 1024));"
    start = f"{limit} from penstock.cli import main; main()"
    return subprocess.run(
        [sys.executable, "-B", "-c", start, *words], stdout=-1, stderr=-1, text=True, check=False
    )


def test_a_pipe_is_no_mixture_file(penstock: Penstock, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "m.yaml")
    assert "is a pipe or a device" in penstock("plan", str(tmp_path / "m.yaml"), "--json").stdout
