"""Mutation tests of the core: draw mutants with a seed, run the tests against each, report which
survive.

`python tools/mutants.py --count 300 --seed 1 --jobs 2`, from a checkout, in an environment that has
`cosmic-ray` and `coverage` beside the development tools. Cosmic Ray makes the mutants; those that
differ in an annotation or a text alone are not drawn. One process collects the tests. A mutant is a
fork of it in which the functions have the mutant's code; a mutant of code that runs at import is a
copy of the sources. The fork runs the tests that execute the mutated line, the quickest first, as a
run without a mutant has measured. The first failure kills the mutant, and so does a timeout. Tests
that fail without a mutant are named and left out, and so is a test that kills a mutant and then
fails in a fork without one. Each mutant prints a line, and its difference if it survived. Processes
that a test starts import the sources as they are, so such tests kill few mutants here.

`--suite test` runs what `make test` runs, `--suite test-all` everything, `--suite slow` what only
the latter runs. To compare them, write the mutants once (`--draw FILE`), and run both suites on them
(`--drawn FILE --map FILE --table FILE`). Then list the mutants that only the first table kills
(`--compare ALL TEST`, which exits with 1 if there are any). It is quicker to judge what `test` left
(`--left FILE`) by `--suite slow`: whatever that kills, `test` lost. `--seed` is also the seed of
the property tests. With `--within SECONDS` a mutant that lives so long stays open.
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
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, NoReturn

from mutated import CORE, PACKAGE, ROOT, Mutant, drawn, modules, noted, read

# What only compares with peers, reads, draws or talks is left out.
TESTS = """test_golden.py test_schedule.py mixing orders folds pack ops streams graph runtime plan test_loader.py
test_semantics.py test_one_function.py test_machine.py""".split()
OPTIONS = ("-q", "--no-header", "-p", "no:cacheprovider", "-p", "no:randomly")
NOT_RUN = 70  # the exit status of a fork that could not become the mutant
OPTIMIZED = 1  # the flag of the code of a function, which that of a class or a module has not


def suite(options: argparse.Namespace) -> list[str]:
    """The options of pytest that choose the suite and the examples of its property tests."""
    return {"test": ["-m", "not slow"], "slow": ["-m", "slow"], "test-all": []}[options.suite]


# ---------------------------------------------------------------- which test executes which lines


class LineRecorder:
    """A pytest plugin that records for each test its duration, its outcome, and the lines of the
    core it executes."""

    def __init__(self, file: Path, is_worker: bool) -> None:
        self.file = file
        self.seconds, self.failed = defaultdict[str, float](float), set[str]()
        self.lines = defaultdict[str, dict[str, list[int]]](dict)
        self.coverage: Any = None
        if is_worker:  # of pytest-xdist: the tests run there
            from coverage import Coverage  # pyright: ignore[reportMissingImports]

            # The C tracer: the one on sys.monitoring cannot tell tests apart.
            include = [f"{PACKAGE}/{name}/*" for name in CORE]
            self.coverage = Coverage(data_file=None, config_file=False, include=include)
            self.coverage.start()

    def pytest_runtest_setup(self, item: Any) -> None:
        if self.coverage:
            self.coverage.switch_context(item.nodeid)

    def pytest_runtest_logreport(self, report: Any) -> None:
        self.seconds[report.nodeid] += report.duration
        if report.failed:
            self.failed.add(report.nodeid)

    def pytest_testnodedown(self, node: Any) -> None:
        """Take over what a process of pytest-xdist has recorded."""
        for test, files in getattr(node, "workeroutput", {}).get("lines", {}).items():
            self.lines[test].update(files)

    def pytest_sessionfinish(self, session: Any) -> None:
        if not self.coverage:
            self.file.write_text(json.dumps([self.seconds, sorted(self.failed), self.lines]))
            return
        self.coverage.stop()
        data = self.coverage.get_data()
        for file in data.measured_files():
            name = str(Path(file).relative_to(PACKAGE))
            for line, tests in data.contexts_by_lineno(file).items():
                for test in filter(None, tests):
                    self.lines[test].setdefault(name, []).append(line)
        session.config.workeroutput["lines"] = dict(self.lines)


def pytest_configure(config: Any) -> None:
    """Make this file a plugin of the run that records lines (`-p mutants`)."""
    if file := os.environ.get("MUTANTS_MAP"):
        config.pluginmanager.register(LineRecorder(Path(file), hasattr(config, "workerinput")))


class Map:
    """Durations and lines of all tests, recorded by a run without a mutant."""

    def __init__(self, file: Path, options: argparse.Namespace) -> None:
        if not file.exists():
            known = os.environ.get("PYTHONPATH", "")
            command = [
                sys.executable,
                "-m",
                "pytest",
                *OPTIONS,
                "-n",
                str(options.jobs),
                "-p",
                "mutants",
            ]
            command += ["--hypothesis-profile=glance", f"--hypothesis-seed={options.seed}"]
            done = subprocess.run(
                [*command, *suite(options), *(f"tests/{name}" for name in options.tests)],
                cwd=ROOT,
                env={
                    **os.environ,
                    "MUTANTS_MAP": str(file),
                    "PYTHONPATH": f"{Path(__file__).parent}:{known}",
                },
                capture_output=True,
                text=True,
            )
            assert file.exists(), (
                f"the tests do not run: {done.stdout[-3000:]}{done.stderr[-1000:]}"
            )
        self.seconds, failed, self.lines = json.loads(file.read_text())
        self.failed = set[str](failed)

    def tests(self, mutant: Mutant) -> list[str]:
        """The tests that execute a line of the mutant, or of its file if none does, as for code
        that runs at import."""
        name, changed = str(mutant.module), mutant.lines()
        of_file = {test for test, lines in self.lines.items() if name in lines}
        of_line = {test for test in of_file if changed & set(self.lines[test][name])}
        chosen = (of_line or of_file or set(self.seconds)) & set(self.seconds) - self.failed
        return sorted(chosen, key=lambda test: self.seconds[test])


# ---------------------------------------------------------------- a mutant in a fork


def nested(code: CodeType) -> list[CodeType]:
    return [const for const in code.co_consts if isinstance(const, CodeType)]


def code_values(code: CodeType) -> tuple[Any, ...]:
    """Return the contents of a code object itself, without nested code objects and line numbers."""
    consts = [
        None if isinstance(const, CodeType) else (type(const), const) for const in code.co_consts
    ]
    return code.co_code, code.co_names, code.co_varnames, code.co_freevars, repr(consts)


def changed(was: CodeType, now: CodeType) -> Iterator[tuple[CodeType, CodeType]]:
    """The pieces that differ, outermost first."""
    inner = nested(was), nested(now)
    if code_values(was) != code_values(now) or len(inner[0]) != len(inner[1]):
        yield was, now
    below = [pair for a, b in zip(*inner, strict=False) for pair in changed(a, b)]
    if below and was.co_flags & OPTIMIZED:  # an outer function makes its inner ones
        yield was, now
    yield from below


def exchange(mutant: Mutant) -> bool:
    """Give the functions of this process the code of the mutant; whether that is all of the
    change."""
    file = str(PACKAGE / mutant.module)
    with warnings.catch_warnings(action="ignore"):  # of `is` beside a literal
        codes = [
            compile(text, file, "exec", dont_inherit=True) for text in (mutant.source, mutant.code)
        ]
    pairs = list(changed(*codes))
    if not all(was.co_flags & OPTIMIZED for was, _ in pairs):
        return False
    # Not isinstance(): some objects of torch warn when their __class__ is looked up.
    functions = [
        f for f in gc.get_objects() if type(f) is FunctionType and f.__code__.co_filename == file
    ]
    found = set[int]()
    for number, (was, now) in enumerate(pairs):
        for function in functions:
            if function.__code__ == was:
                function.__code__ = now
                found.add(number)
    return 0 in found


def in_a_copy(mutant: Mutant, tests: list[str], folder: Path, seed: int) -> NoReturn:
    """Replace this process by a run of the tests over a copy of the sources."""
    shutil.copytree(ROOT / "src", folder / "src", ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "src/penstock" / mutant.module).write_text(mutant.code)
    (folder / "tests.txt").write_text("\n".join(tests))
    os.environ["PYTHONPATH"] = f"{folder / 'src'}:{os.environ.get('PYTHONPATH', '')}"
    command = [sys.executable, "-m", "pytest", *OPTIONS, "-x", f"--hypothesis-seed={seed}"]
    os.execv(
        sys.executable,
        [*command, "-o", f"pythonpath={folder / 'src'} tests", f"@{folder / 'tests.txt'}"],
    )


@dataclass
class Run:
    """A mutant that is being run; with `kill`, the line about its kill, whose test is run without
    the mutant."""

    index: int
    mutant: Mutant
    folder: Path
    began: float
    limit: float
    fair: float
    tests: int
    kill: str = ""


class Forks:
    """A pytest plugin that runs the mutants in place of the tests, each in a fork."""

    def __init__(
        self, mutants: list[Mutant], known: Map, options: argparse.Namespace, top: Path
    ) -> None:
        self.left = list(enumerate(mutants, 1))
        self.known, self.options, self.top = known, options, top
        self.results = list[tuple[Mutant, str]]()
        self.running = dict[int, Run]()
        self.proven = set[str]()  # tests that pass in a fork without a mutant
        self.failed = False

    def pytest_runtest_logreport(self, report: Any) -> None:
        self.failed |= report.failed

    def pytest_runtestloop(self, session: Any) -> bool:
        # conftest.py freezes all objects; exchange() has to find the functions among them
        gc.unfreeze()
        self.items = {item.nodeid: item for item in session.items}
        for module in modules():
            importlib.import_module(
                ".".join(("penstock", *module.with_suffix("").parts)).removesuffix(".__init__")
            )
        ends = time.monotonic() + 60 * self.options.minutes
        while self.running or (self.left and time.monotonic() < ends):
            while self.left and len(self.running) < self.options.jobs and time.monotonic() < ends:
                self.begin(*self.left.pop(0))
            time.sleep(0.02)
            for child in list(self.running):
                self.look(child)
        return True

    def begin(self, index: int, mutant: Mutant, kill: str = "") -> None:
        """Run the tests of a mutant in a fork, or the test of a kill without the mutant."""
        tests = [test for test in self.known.tests(mutant) if test in self.items]
        if kill:
            tests = [kill.split(" ", 1)[1]]
        fair = 10 * sum(self.known.seconds[test] for test in tests) + 20
        folder = Path(tempfile.mkdtemp(dir=self.top))
        if child := os.fork():
            limit = min(fair, self.options.within)
            self.running[child] = Run(
                index, mutant, folder, time.monotonic(), limit, fair, len(tests), kill
            )
            return
        os.setsid()
        with (folder / "said.txt").open("w") as out:
            os.dup2(out.fileno(), 1)
            os.dup2(out.fileno(), 2)
        try:
            if not kill and tests and not exchange(mutant):
                in_a_copy(mutant, tests, folder, self.options.seed)
        except BaseException as error:
            print("\nERROR", repr(error), flush=True)
            os._exit(NOT_RUN)
        try:  # whatever happens, a fork ends here
            self.failed = False
            for test, following in zip_longest(tests, tests[1:]):
                self.items[test].ihook.pytest_runtest_protocol(
                    item=self.items[test], nextitem=self.items[following] if following else None
                )
                if self.failed:
                    print("\nFAILED", test, flush=True)  # after the dots of pytest
                    os._exit(1)
        except BaseException as error:
            print("\nERROR", repr(error), flush=True)
            os._exit(1)
        os._exit(0)

    def look(self, child: int) -> None:
        run = self.running[child]
        pid, status = os.waitpid(child, os.WNOHANG)
        took = time.monotonic() - run.began
        # Where others keep the cores busy as well, everything takes longer.
        crowd = max(1.0, os.getloadavg()[0] / ((os.cpu_count() or 1) + self.options.jobs))
        if not pid and took < run.limit * crowd:
            return
        mark, how = "killed", "took too long"
        if not pid:
            os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
            if run.limit < run.fair:
                mark = "open"
        elif status:
            if os.waitstatus_to_exitcode(status) == NOT_RUN:
                mark = "not run"
            lines = (run.folder / "said.txt").read_text(errors="replace").splitlines()
            told = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
            how = told[-1] if told else f"status {status}"
        else:
            mark, how = "SURVIVED", ""
        if self.is_doubtful(run, mark, how):
            del self.running[child]
            shutil.rmtree(run.folder, ignore_errors=True)
            return
        mark, how = ("killed", run.kill) if run.kill else (mark, how)
        what = f"{run.mutant.module} {run.mutant.operator}"
        print(
            f"{run.index} {mark} {what} {took:.0f} s of {run.tests} tests {how[:110]}", flush=True
        )
        self.results.append((run.mutant, mark))
        if mark != "killed":
            print(run.mutant.difference(), flush=True)
        del self.running[child]
        shutil.rmtree(run.folder, ignore_errors=True)

    def is_doubtful(self, run: Run, mark: str, how: str) -> bool:
        """Return whether a kill is no result yet: its test has to pass in a fork without the
        mutant."""
        if run.kill:
            test = run.kill.split(" ", 1)[1]
            if mark == "SURVIVED":  # the mutant did not, then
                self.proven.add(test)
                return False
            if test not in self.known.failed:
                self.known.failed.add(test)
                print(f"left out, fails in a fork without a mutant: {test}", flush=True)
            self.left.insert(0, (run.index, run.mutant))
            return True
        test = how.removeprefix("FAILED ")
        if mark != "killed" or test not in self.items or test in self.proven:
            return False
        if test in self.known.failed:  # another mutant has shown it in the meantime
            self.left.insert(0, (run.index, run.mutant))
        else:
            self.begin(run.index, run.mutant, how)
        return True


def compare(first: Path, second: Path) -> int:
    """Print the mutants that the first suite kills and the second one does not; the exit status."""
    tables = [
        {row["mutant"]: row for row in json.loads(file.read_text())} for file in (first, second)
    ]
    both = [mutant for mutant in tables[0] if mutant in tables[1]]
    lost = [m for m in both if tables[0][m]["result"] == "killed" != tables[1][m]["result"]]
    for name, table in zip((first, second), tables, strict=True):
        counts = [
            sum(table[mutant]["result"] == result for mutant in both)
            for result in ("killed", "SURVIVED", "open")
        ]
        print(f"{name}: {counts[0]} killed, {counts[1]} survived, {counts[2]} open of {len(both)}")
    for mutant in lost:
        print(f"killed by {first}, not by {second}: {mutant}\n{tables[1][mutant]['difference']}")
    return int(bool(lost))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "files",
        nargs="*",
        type=Path,
        help="below src/penstock; all of the core where none is named",
    )
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument(
        "--seed", type=int, default=1, help="draws the mutants, and the examples of property tests"
    )
    parser.add_argument("--suite", choices=("test", "slow", "test-all"), default="test-all")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--minutes", type=float, default=1e9, help="begin no mutant after so many")
    parser.add_argument(
        "--within",
        type=float,
        default=1e9,
        help="leave a mutant open that lives for so many seconds",
    )
    parser.add_argument("--tests", nargs="+", default=TESTS, help="below tests")
    parser.add_argument("--map", type=Path, help="keep there which test executes which lines")
    parser.add_argument("--draw", type=Path, help="write the mutants there and end")
    parser.add_argument("--drawn", type=Path, help="the mutants written there")
    parser.add_argument("--left", type=Path, help="write the mutants there that were not killed")
    parser.add_argument("--table", type=Path, help="write the result of every mutant there")
    parser.add_argument("--compare", nargs=2, type=Path, metavar=("ALL", "TEST"), help="two tables")
    options = parser.parse_args()
    if options.compare:
        return compare(*options.compare)
    mutants = read(options.drawn) if options.drawn else None
    if mutants is None:
        mutants = list(drawn(options.files or modules(), options.count, options.seed))
    if options.draw:
        options.draw.write_text(noted(mutants))
        return 0
    print(f"{len(mutants)} mutants, seed {options.seed}, suite {options.suite}", flush=True)
    import pytest

    began = time.monotonic()
    with tempfile.TemporaryDirectory() as top:
        known = Map(options.map or Path(top, "map.json"), options)
        print(
            f"without a mutant {len(known.seconds)} tests take {sum(known.seconds.values()):.0f} s",
            flush=True,
        )
        for name in sorted(known.failed):
            print(f"left out, fails without a mutant: {name}", flush=True)
        os.chdir(ROOT)
        forks = Forks(mutants, known, options, Path(top))
        tests = [f"tests/{name}" for name in options.tests]
        # Without terminal and capture: the output of a fork goes to a file of its own.
        pytest.main(
            [*OPTIONS, "-s", f"--hypothesis-seed={options.seed}", *suite(options), *tests],
            plugins=[forks],
        )
    counts = {
        mark: [m for m, result in forks.results if result == mark]
        for mark in ("killed", "SURVIVED", "open")
    }
    killed, survived, still_open = map(len, counts.values())
    count = max(len(forks.results), 1)
    not_run = count - killed - survived - still_open
    print(f"{killed} of {count} killed ({killed / count:.1%}), {time.monotonic() - began:.0f} s")
    print(f"{survived} survived, {still_open} open, {not_run} not run, {len(forks.left)} not tried")
    if options.left:
        options.left.write_text(
            noted(
                [m for m, mark in forks.results if mark != "killed"]
                + [mutant for _, mutant in forks.left]
            )
        )
    if options.table:
        rows = [
            {
                "mutant": f"{m.module} {m.operator} {m.occurrence}",
                "result": result,
                "difference": m.difference(),
            }
            for m, result in forks.results
        ]
        options.table.write_text(json.dumps(rows, indent=1))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
