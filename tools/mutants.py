"""Mutants of the mixing, the interpreter and the session, drawn with a seed, against the tests: which survive?

`python tools/mutants.py --count 300 --seed 1 --jobs 2`, from a checkout, with Python 3.12 or later, in an environment
that has `cosmic-ray` beside the development tools. Cosmic Ray makes the mutants; those that differ in an annotation or
a text alone are not drawn. One process collects the tests; a mutant is a fork of it in which the functions have the
mutant's code (a mutant of what is done at import is a copy of the sources). It meets the tests that run its line, the
quickest first, as a run without a mutant has shown them: the first failure kills it, and so does taking much longer
than without a mutant. Tests that fail without a mutant are named and left out. A line is printed for each mutant, with
the difference where it survived.

`mutated.py` tells which mutants there are. `--map FILE` keeps which test runs which lines; `--draw FILE` only writes
them, `--drawn FILE` runs those, also where there is no `cosmic-ray`; with `--within SECONDS` a mutant that lives so
long stays open, and `--left FILE` takes those for a longer run.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, NoReturn

from mutated import PACKAGE, ROOT, Mutant, drawn, modules, noted, read

# What only compares with peers, reads, draws or talks is left out.
TESTS = """test_golden.py test_schedule.py mixing orders folds pack ops streams graph runtime plan test_loader.py
test_semantics.py test_one_function.py test_machine.py""".split()
OPTIONS = ("-q", "--no-header", "-p", "no:cacheprovider", "-p", "no:randomly")
OPTIMIZED = 1  # the flag of the code of a function, which that of a class or a module has not


# ---------------------------------------------------------------- which test runs which lines


class Lines:
    """A plugin of pytest: notes how long every test takes, which fail, and which lines of the core each runs."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.seconds, self.failed = dict[str, float](), set[str]()
        self.lines, self.now = dict[str, dict[str, list[int]]](), dict[str, set[int]]()
        self.watch: Any = vars(sys).get("monitoring")  # from 3.12
        assert self.watch, "the lines that a test runs are told by Python 3.12 or later"
        self.watch.use_tool_id(self.watch.COVERAGE_ID, "mutants")
        self.watch.register_callback(self.watch.COVERAGE_ID, self.watch.events.LINE, self.ran)
        self.watch.set_events(self.watch.COVERAGE_ID, self.watch.events.LINE)

    def ran(self, code: Any, line: int) -> Any:
        if code.co_filename.startswith(f"{PACKAGE}{os.sep}"):
            self.now.setdefault(str(Path(code.co_filename).relative_to(PACKAGE)), set()).add(line)
        return self.watch.DISABLE  # once a test is enough

    def pytest_runtest_setup(self) -> None:
        self.now.clear()
        self.watch.restart_events()

    def pytest_runtest_teardown(self, item: Any) -> None:
        item.user_properties.append(("lines", {name: sorted(lines) for name, lines in self.now.items()}))

    def pytest_runtest_logreport(self, report: Any) -> None:
        self.seconds[report.nodeid] = self.seconds.get(report.nodeid, 0.0) + report.duration
        if report.failed:
            self.failed.add(report.nodeid)
        if report.when == "teardown":
            self.lines[report.nodeid] = dict(report.user_properties).get("lines", {})

    def pytest_sessionfinish(self, session: Any) -> None:
        if not hasattr(session.config, "workerinput"):
            self.file.write_text(json.dumps([self.seconds, sorted(self.failed), self.lines]))


def pytest_configure(config: Any) -> None:
    """This file is a plugin where the map is made (`-p mutants`)."""
    if file := os.environ.get("MUTANTS_MAP"):
        config.pluginmanager.register(Lines(Path(file)))


class Map:
    """What a run without a mutant has shown."""

    def __init__(self, file: Path, jobs: int, tests: list[str]) -> None:
        if not file.exists():
            known = os.environ.get("PYTHONPATH", "")
            command = [sys.executable, "-m", "pytest", *OPTIONS, "-n", str(jobs), "-p", "mutants"]
            found = subprocess.run(
                [*command, "--hypothesis-profile=glance", *(f"tests/{name}" for name in tests)],
                cwd=ROOT,
                env={**os.environ, "MUTANTS_MAP": str(file), "PYTHONPATH": f"{Path(__file__).parent}:{known}"},
                capture_output=True,
                text=True,
            )
            assert file.exists(), f"the tests do not run: {found.stdout[-3000:]}{found.stderr[-1000:]}"
        self.seconds, failed, self.lines = json.loads(file.read_text())
        self.failed = set[str](failed)

    def tests(self, mutant: Mutant) -> list[str]:
        """The tests that run a line of the mutant; where none does, as for what is done at import, all of its file."""
        name, changed = str(mutant.module), mutant.lines()
        of_file = {test for test, lines in self.lines.items() if name in lines}
        of_line = {test for test in of_file if changed & set(self.lines[test][name])}
        chosen = (of_line or of_file or set(self.seconds)) - self.failed
        return sorted(chosen, key=lambda test: self.seconds[test])


# ---------------------------------------------------------------- a mutant in a fork


def nested(code: CodeType) -> list[CodeType]:
    return [const for const in code.co_consts if isinstance(const, CodeType)]


def own(code: CodeType) -> tuple[Any, ...]:
    """What a piece of code does itself, without the pieces in it and without where it stands."""
    consts = [None if isinstance(const, CodeType) else (type(const), const) for const in code.co_consts]
    return code.co_code, code.co_names, code.co_varnames, code.co_freevars, repr(consts)


def changed(was: CodeType, now: CodeType) -> Iterator[tuple[CodeType, CodeType]]:
    """The pieces that differ, outermost first."""
    inner = nested(was), nested(now)
    if own(was) != own(now) or len(inner[0]) != len(inner[1]):
        yield was, now
    below = [pair for a, b in zip(*inner, strict=False) for pair in changed(a, b)]
    if below and was.co_flags & OPTIMIZED:  # an outer function makes its inner ones
        yield was, now
    yield from below


def exchange(mutant: Mutant) -> bool:
    """Give the functions of this process the code of the mutant; whether that is all of the change."""
    file = str(PACKAGE / mutant.module)
    with warnings.catch_warnings(action="ignore"):  # of `is` beside a literal
        codes = [compile(text, file, "exec", dont_inherit=True) for text in (mutant.source, mutant.code)]
    pairs = list(changed(*codes))
    if not all(was.co_flags & OPTIMIZED for was, _ in pairs):
        return False
    functions = [f for f in gc.get_objects() if isinstance(f, FunctionType) and f.__code__.co_filename == file]
    found = set[int]()
    for number, (was, now) in enumerate(pairs):
        for function in functions:
            if function.__code__ == was:
                function.__code__ = now
                found.add(number)
    return 0 in found


def in_a_copy(mutant: Mutant, tests: list[str], folder: Path) -> NoReturn:
    """This process becomes a run of the tests over a copy of the sources."""
    shutil.copytree(ROOT / "src", folder / "src", ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "src/penstock" / mutant.module).write_text(mutant.code)
    (folder / "tests.txt").write_text("\n".join(tests))
    os.environ["PYTHONPATH"] = f"{folder / 'src'}:{os.environ.get('PYTHONPATH', '')}"
    command = [sys.executable, "-m", "pytest", *OPTIONS, "-x", "--hypothesis-profile=dev"]
    os.execv(sys.executable, [*command, "-o", f"pythonpath={folder / 'src'} tests", f"@{folder / 'tests.txt'}"])


@dataclass
class Run:
    """A mutant that is being run."""

    place: int
    mutant: Mutant
    folder: Path
    began: float
    limit: float
    fair: float
    tests: int


class Forks:
    """A plugin of pytest: in the place of the tests, the mutants, each in a fork."""

    def __init__(self, mutants: list[Mutant], known: Map, asked: argparse.Namespace, top: Path) -> None:
        self.left = list(enumerate(mutants, 1))
        self.known, self.asked, self.top = known, asked, top
        self.running = dict[int, Run]()
        self.killed = 0
        self.survivors, self.open = list[Mutant](), list[Mutant]()
        self.failed = False

    def pytest_runtest_logreport(self, report: Any) -> None:
        self.failed |= report.failed

    def pytest_runtestloop(self, session: Any) -> bool:
        items = {item.nodeid: item for item in session.items}
        for module in modules():
            importlib.import_module(".".join(("penstock", *module.with_suffix("").parts)).removesuffix(".__init__"))
        ends = time.monotonic() + 60 * self.asked.minutes
        while self.running or (self.left and time.monotonic() < ends):
            while self.left and len(self.running) < self.asked.jobs and time.monotonic() < ends:
                self.begin(*self.left.pop(0), items)
            time.sleep(0.02)
            for child in list(self.running):
                self.look(child)
        return True

    def begin(self, place: int, mutant: Mutant, items: dict[str, Any]) -> None:
        tests = [test for test in self.known.tests(mutant) if test in items]
        fair = 10 * sum(self.known.seconds[test] for test in tests) + 60
        folder = Path(tempfile.mkdtemp(dir=self.top))
        if child := os.fork():
            limit = min(fair, self.asked.within)
            self.running[child] = Run(place, mutant, folder, time.monotonic(), limit, fair, len(tests))
            return
        os.setsid()
        with (folder / "said.txt").open("w") as out:
            os.dup2(out.fileno(), 1)
            os.dup2(out.fileno(), 2)
        try:  # whatever happens, a fork ends here
            if not exchange(mutant):
                in_a_copy(mutant, tests, folder)
            self.failed = False
            for test, following in zip(tests, [*tests[1:], None], strict=True):
                items[test].ihook.pytest_runtest_protocol(
                    item=items[test], nextitem=items[following] if following else None
                )
                if self.failed:
                    print("FAILED", test, flush=True)
                    os._exit(1)
        except BaseException as error:
            print("ERROR", repr(error), flush=True)
            os._exit(1)
        os._exit(0)

    def look(self, child: int) -> None:
        run = self.running[child]
        pid, status = os.waitpid(child, os.WNOHANG)
        took = time.monotonic() - run.began
        # Where others keep the cores busy as well, everything takes longer.
        crowd = max(1.0, os.getloadavg()[0] / ((os.cpu_count() or 1) + self.asked.jobs))
        if not pid and took < run.limit * crowd:
            return
        mark, how = "killed", "took too long"
        if not pid:
            os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
            if run.limit < run.fair:
                mark = "open"
        elif status:
            lines = (run.folder / "said.txt").read_text(errors="replace").splitlines()
            told = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
            how = told[-1] if told else f"status {status}"
        else:
            mark, how = "SURVIVED", ""
        what = f"{run.mutant.module} {run.mutant.operator}"
        print(f"{run.place} {mark} {what} {took:.0f} s of {run.tests} tests {how[:110]}", flush=True)
        if mark == "killed":
            self.killed += 1
        else:
            {"SURVIVED": self.survivors, "open": self.open}[mark].append(run.mutant)
            print(run.mutant.difference(), flush=True)
        del self.running[child]
        shutil.rmtree(run.folder, ignore_errors=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="*", type=Path, help="below src/penstock; all of the core where none is named")
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--minutes", type=float, default=1e9, help="begin no mutant after so many")
    parser.add_argument("--within", type=float, default=1e9, help="leave a mutant open that lives for so many seconds")
    parser.add_argument("--tests", nargs="+", default=TESTS, help="below tests")
    parser.add_argument("--map", type=Path, help="keep there which test runs which lines")
    parser.add_argument("--draw", type=Path, help="write the mutants there and end")
    parser.add_argument("--drawn", type=Path, help="the mutants written there")
    parser.add_argument("--left", type=Path, help="write the open mutants there")
    asked = parser.parse_args()
    chosen = read(asked.drawn) if asked.drawn else list(drawn(asked.files or modules(), asked.count, asked.seed))
    if asked.draw:
        asked.draw.write_text(noted(chosen))
        return 0
    print(f"{len(chosen)} mutants, seed {asked.seed}", flush=True)
    import pytest

    began = time.monotonic()
    with tempfile.TemporaryDirectory() as top:
        known = Map(asked.map or Path(top, "map.json"), asked.jobs, asked.tests)
        print(f"without a mutant {len(known.seconds)} tests take {sum(known.seconds.values()):.0f} s", flush=True)
        for name in sorted(known.failed):
            print(f"left out, fails without a mutant: {name}", flush=True)
        os.chdir(ROOT)
        forks = Forks(chosen, known, asked, Path(top))
        tests = [f"tests/{name}" for name in asked.tests]
        # Without terminal and capture: what a fork says goes to a file of its own.
        pytest.main([*OPTIONS, "-s", "--hypothesis-profile=dev", *tests], plugins=[forks])
    count = forks.killed + len(forks.survivors) + len(forks.open)
    print(f"{forks.killed} of {count} killed ({forks.killed / max(count, 1):.1%}), {time.monotonic() - began:.0f} s")
    print(f"{len(forks.survivors)} survived, {len(forks.open)} open, {len(forks.left)} not tried")
    if asked.left:
        asked.left.write_text(noted(forks.open + [mutant for _, mutant in forks.left]))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
