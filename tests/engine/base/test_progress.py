"""Progress: silent where work is short, a line that is written over in a terminal, lines of a log elsewhere."""

from __future__ import annotations

import io
import logging
import subprocess
import sys
import types
from collections.abc import Iterator
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.engine.base.progress import Progress
from penstock.engine.base.seams import LocalScreen, TaskPool
from penstock.stores.storage import override_world
from penstock.types import Ints, Json


class Clock:
    """Time that passes when it is told to, and `step` at every look."""

    def __init__(self, step: float = 0.0) -> None:
        self.time, self.step = 0.0, step

    def now(self) -> float:
        self.time += self.step
        return self.time

    def sleep(self, seconds: float, /) -> None:
        self.time += seconds

    def spawn(self, workers: int, /) -> TaskPool:
        raise AssertionError("no threads for progress")


class Board:
    """A screen that keeps what it is shown."""

    def __init__(self, every: float = 0.2) -> None:
        self.lines, self.open = list[str](), set[int]()
        self._every = every

    def every(self) -> float:
        return self._every

    def show(self, work: object, line: str, over: bool, /) -> None:
        self.lines.append(line)
        (self.open.discard if over else self.open.add)(id(work))


@pytest.fixture
def clock() -> Iterator[Clock]:
    made = Clock()
    with override_world(sched=made):
        yield made


class Terminal(io.StringIO):
    tty = True

    def isatty(self) -> bool:
        return self.tty


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    made = Terminal()
    monkeypatch.setenv("COLUMNS", "200")
    for name in ("PENSTOCK_PROGRESS", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    return made


def work(clock: Clock, chunks: int = 10, seconds: float = 1.0) -> None:
    with Progress("index a.jsonl", chunks << 20, "bytes") as progress:
        for _ in range(chunks):
            clock.sleep(seconds)
            progress.more(1 << 20)


def test_nothing_is_said_of_short_work(clock: Clock) -> None:
    board = Board()
    with override_world(screen=board):
        work(clock, seconds=0.19)
    assert board.lines == []


def test_long_work_tells_amount_rate_and_time_left(clock: Clock) -> None:
    board = Board(every=4)
    with override_world(screen=board):
        work(clock)
    assert board.lines == [
        "index a.jsonl: 2.0 MiB of 10.0 MiB, 1.0 MiB/s, 20%, 8 s left",
        "index a.jsonl: 6.0 MiB of 10.0 MiB, 1.0 MiB/s, 60%, 4 s left",
        "index a.jsonl: 10.0 MiB of 10.0 MiB, 1.0 MiB/s, 100%, 0 s left",
        "index a.jsonl: done after 10 s",
    ]
    assert not board.open


def test_where_the_total_is_not_known_there_is_no_time_left(clock: Clock) -> None:
    board = Board(every=10)
    with override_world(screen=board), Progress("save rows", None, "rows") as progress:
        clock.sleep(3)
        progress.tell(30_000)
    assert board.lines[0] == "save rows: 30,000 rows, 10,000 rows/s"


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_what_is_stopped_says_so_and_nothing_stays(
    clock: Clock, error: type[BaseException]
) -> None:
    board = Board()
    with override_world(screen=board), pytest.raises(error), Progress("x", 3) as progress:
        for _ in progress.each("abc"):
            clock.sleep(2)
            progress.tell(1)
            raise error
    assert board.lines == ["x: 33%, 4 s left", "x: stopped after 2 s"]
    assert not board.open


def test_a_terminal_has_one_line_that_is_written_over_and_erased(
    clock: Clock, terminal: Terminal
) -> None:
    with redirect_stderr(terminal), override_world(screen=LocalScreen()):
        work(clock)
    parts = terminal.getvalue().split("\r")
    assert "\n" not in terminal.getvalue()
    assert parts[0] == "" and parts[1].startswith("index a.jsonl: 2.0 MiB of 10.0 MiB")
    assert len(parts) == 2 + 9 + 1
    assert parts[-2].isspace() and len(parts[-2]) >= max(
        len(part.rstrip()) for part in parts[-4:-2]
    )
    assert parts[-1] == ""


def test_work_inside_work_shares_the_line(clock: Clock, terminal: Terminal) -> None:
    with (
        redirect_stderr(terminal),
        override_world(screen=LocalScreen()),
        Progress("open files", 2, "files") as outer,
    ):
        for _ in outer.each(range(2)):
            clock.sleep(3)
            outer.tell(1)
            work(clock, 3)
    assert (
        "\ropen files: 1 of 2 files, 0.33 files/s, 50%, 3 s left | index a.jsonl: 2.0 MiB"
        in terminal.getvalue()
    )
    assert terminal.getvalue().endswith("\r")


def test_a_line_is_not_wider_than_the_terminal(
    clock: Clock, terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    with redirect_stderr(terminal), override_world(screen=LocalScreen()):
        work(clock)
    assert max(map(len, terminal.getvalue().split("\r"))) == 29


def test_a_terminal_that_goes_away_stops_no_work(clock: Clock, terminal: Terminal) -> None:
    with (
        redirect_stderr(terminal),
        override_world(screen=LocalScreen()),
        Progress("x", 9) as progress,
    ):
        clock.sleep(3)
        progress.tell(1)
        terminal.close()
        clock.sleep(3)
        progress.tell(2)


def test_a_notebook_has_the_line_in_its_output(
    clock: Clock,
    terminal: Terminal,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    terminal.tty = False
    shell = types.SimpleNamespace(kernel=object())
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: shell))  # pyright: ignore[reportArgumentType]
    with redirect_stderr(terminal), override_world(screen=LocalScreen()):
        work(clock)
    assert terminal.getvalue() == ""
    assert capsys.readouterr().out.startswith("\rindex a.jsonl: 2.0 MiB")


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_log_has_a_line_every_ten_seconds(
    clock: Clock,
    terminal: Terminal,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    ranks: int,
) -> None:
    """So have the ranks of one machine, whose lines would overwrite each other."""
    terminal.tty = ranks > 1
    monkeypatch.setenv("WORLD_SIZE", str(ranks))
    with (
        caplog.at_level(logging.INFO, "penstock"),
        redirect_stderr(terminal),
        override_world(screen=LocalScreen()),
    ):
        work(clock, 30)
    assert [record.getMessage().partition(":")[2][:9] for record in caplog.records] == [
        " 2.0 MiB ", " 12.0 MiB", " 22.0 MiB", " done aft",
    ]  # fmt: skip
    assert terminal.getvalue() == ""


def test_the_environment_turns_it_off(
    clock: Clock, terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_PROGRESS", "0")
    with redirect_stderr(terminal), override_world(screen=LocalScreen()):
        work(clock)
    assert terminal.getvalue() == ""


def test_names_of_files_cannot_write_on_the_terminal(clock: Clock) -> None:
    board = Board()
    with override_world(screen=board), Progress("index \x1b[2J\n.jsonl", 2) as progress:
        clock.sleep(2)
        progress.tell(1)
    assert "\x1b" not in board.lines[0] and "\n" not in board.lines[0]


# ---------------------------------------------------------------- what tells


class Halves:
    """A mixing rule that cannot be inverted."""

    def size(self, sizes: Any, /) -> int | None:
        return None

    def at(self, positions: Ints, /) -> tuple[Ints, Ints]:
        return positions % 2, positions // 2

    def describe(self) -> Json:
        return {"rule": "halves"}


def test_everything_long_tells_how_far_it_is(tmp_path: Path) -> None:
    """Every look at the clock takes three seconds here, so whatever is told at all is shown."""
    import gzip
    import tarfile

    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = b"".join(b'{"n": %d}\n' % i for i in range(100))
    (tmp_path / "a.jsonl").write_bytes(rows)
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(rows))
    (tmp_path / "c.csv").write_bytes(b"n\n1\n2\n")
    pq.write_table(
        pa.table({"ids": [[1, 2], [3]] * 50, "n": list(range(100))}), tmp_path / "d.parquet"
    )
    with tarfile.open(tmp_path / "e.tar", "w") as tar:
        tar.add(tmp_path / "a.jsonl", "0.json")
    numbers = ps.from_sequence(range(100), name="n")
    tokens = ps.from_tokens(np.arange(400), np.arange(0, 401, 4))
    stream = ps.from_iterable(lambda: iter(range(100)))

    def seek() -> None:
        it = iter(numbers.filter(bool))
        it.seek(5)

    def resume() -> None:
        it = ps.Loader(stream, lanes=1)
        for _ in zip(range(70), it, strict=False):
            pass
        ps.Loader(stream, lanes=1).load_state_dict(it.state_dict())
        next(iter(it))
        again = ps.Loader(stream, lanes=1)
        again.load_state_dict(it.state_dict())
        next(iter(again))

    chosen = numbers.select(range(100))  # equal samples by other steps
    cases: list[tuple[str, Any]] = [
        ("index a.jsonl", lambda: ps.read(tmp_path / "a.jsonl")),
        ("unpack b.jsonl.gz", lambda: ps.read(tmp_path / "b.jsonl.gz", cache=tmp_path / "cache")),
        ("convert c.csv", lambda: ps.read(tmp_path / "c.csv", cache=tmp_path / "cache")),
        ("index e.tar", lambda: ps.read(tmp_path / "e.tar")),
        ("open files", lambda: ps.read(tmp_path / "*.parquet")),
        ("read lengths of ids of d.parquet", lambda: len(ps.read(tmp_path / "d.parquet", lengths="ids").pack(4))),
        ("choose rows by n of d.parquet", lambda: ps.read(tmp_path / "d.parquet", where={"n": {"min": 50}})),
        ("read rows to know the data by", lambda: iter(ps.read(tmp_path / "d.parquet")).state_dict()),
        ("look up the documents to pack", lambda: len(tokens.pack(8, "first_fit"))),
        ("add up lengths", lambda: tokens.shuffle().repeat().pack(8)[30]),
        ("pack lengths", lambda: len(tokens.pack(8, "best_fit", overflow="never"))),
        ("read up to an item", seek),
        ("go to a row of a stream", resume),
        ("count samples", lambda: ps.mix({"a": numbers, "b": numbers}, rule=Halves()).plan.counts(1 << 17)),
        ("look for a sample",
         lambda: ps.mix({"a": numbers, "b": numbers}, rule=Halves()).plan.find("a", 3, within=range(1 << 17))),
        ("compare plans", lambda: numbers.plan.diff(chosen.plan)),
    ]  # fmt: skip
    for what, ask in cases:
        board = Board()
        with override_world(sched=Clock(3.0), screen=board):
            ask()
        assert any(line.startswith(what) for line in board.lines), f"{what}: {board.lines}"
        assert not board.open


def test_what_is_read_in_chunks_tells_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import pyarrow as pa
    from tests.stores import servers

    from penstock.engine.base import progress
    from penstock.sources import checksummed, convert, index_files

    monkeypatch.setattr(progress, "_QUIET_SECONDS", 0)
    monkeypatch.setattr(convert, "_READ_BYTES", 8 << 10)
    monkeypatch.setattr(checksummed.sums, "CHUNK_BYTES", 8 << 10)
    table = pa.table({"n": range(10_000)})
    with pa.ipc.new_file(str(tmp_path / "a.arrow"), table.schema) as writer:
        writer.write_table(table)
    size = (tmp_path / "a.arrow").stat().st_size
    expected = [f"{at / size:.0%}" for at in range(0, size, 8 << 10)]
    board = Board(every=0)
    with servers.site(tmp_path) as site, override_world(screen=board):
        ps.read(f"{site.url}/a.arrow", cache=tmp_path / "cache")
        index_files([tmp_path / "a.arrow"], checksum=True)
    for what in ("fetch a.arrow: ", "checksums of a.arrow: "):
        told = [
            line
            for line in board.lines
            if line.startswith(what) and " of " in line.removeprefix(what)
        ]
        assert [line.split(", ")[2] for line in told] == expected, what


def test_a_slow_source_is_told_of(tmp_path: Path) -> None:
    """For real: another process, its output no terminal, and nothing set up for logging."""
    code = (
        "import time, penstock as ps\n"
        "def slow():\n"
        "    for i in range(200):\n"
        "        time.sleep(0.02)\n"
        "        yield i\n"
        "it = iter(ps.from_iterable(slow))\n"
        "it.seek(150)\n"
        "print(next(it))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=600
    )
    assert done.stdout == "150\n"
    lines = done.stderr.splitlines()
    assert lines[0].startswith("read up to an item: ") and " left" in lines[0]
    assert lines[-1].startswith("read up to an item: done after ")


def test_telling_costs_next_to_nothing() -> None:
    import timeit

    with Progress("x", 10**9) as progress:
        told = min(timeit.repeat(lambda: progress.tell(1), number=2_000, repeat=5)) / 2_000
    assert told < 20e-6, f"{told * 1e6:.1f} us"
