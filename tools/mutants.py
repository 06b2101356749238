"""Mutants of the mixing, the interpreter and the session, drawn with a seed, against the tests: which survive?

`python tools/mutants.py --count 300 --seed 1 --jobs 2`, from a checkout, in an environment that has `cosmic-ray`
beside the development tools. Cosmic Ray makes the mutants; those that differ in an annotation or a text alone are not
drawn. Every mutant is run in a forked process over a copy of the sources: the quickest tests first, as a run without a
mutant has timed them (with `pytest-xdist`, on all jobs). The first failure kills it; so does taking twice as long as
without a mutant. Tests that fail without a mutant are named and left out. A line is printed for each mutant, with the
difference where it survived.

`--draw FILE` only writes the mutants, `--drawn FILE` runs them, also where there is no `cosmic-ray`; with
`--within SECONDS` a mutant that lives so long stays open, and `--left FILE` takes those for a longer run.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
TOO_LONG = "took too long"
CORE = ("mixing", "streams", "ops", "runtime", "graph")
# What only compares with peers, reads, draws or talks is left out.
TESTS = """test_golden.py test_schedule.py mixing orders folds pack ops streams graph runtime plan test_loader.py
test_semantics.py test_one_function.py test_machine.py""".split()


@dataclass(frozen=True)
class Mutant:
    module: Path  # below src/penstock
    operator: str
    occurrence: int
    source: str
    code: str

    def lines(self) -> set[int]:
        """The lines of the source that it changes."""
        matcher = difflib.SequenceMatcher(None, self.source.splitlines(), self.code.splitlines(), autojunk=False)
        changes = [change for change in matcher.get_opcodes() if change[0] != "equal"]
        return {line + 1 for _, start, stop, _, _ in changes for line in range(start, max(stop, start + 1))}

    def difference(self) -> str:
        lines = difflib.unified_diff(self.source.splitlines(), self.code.splitlines(), lineterm="", n=0)
        return "\n".join(line for line in lines if line[:3] not in ("---", "+++"))


def modules() -> list[Path]:
    """The files that are mutated, below src/penstock."""
    package = ROOT / "src/penstock"
    return [path.relative_to(package) for name in CORE for path in sorted((package / name).glob("*.py"))]


def places(files: list[Path]) -> list[tuple[Path, str, int]]:
    """Where every operator that needs no arguments can be applied: module, operator, occurrence."""
    from cosmic_ray import plugins  # pyright: ignore[reportMissingImports]
    from cosmic_ray.ast import ast_nodes, get_ast  # pyright: ignore[reportMissingImports]

    found = list[tuple[Path, str, int]]()
    for module in files:
        everything = list(ast_nodes(get_ast((ROOT / "src/penstock" / module).read_text())))
        for name in sorted(name for name in plugins.operator_names() if "ariable" not in name):
            operator = plugins.get_operator(name)()
            many = sum(len(list(operator.mutation_positions(node))) for node in everything)
            found += [(module, name, occurrence) for occurrence in range(many)]
    return found


def drawn(files: list[Path], count: int, seed: int) -> Iterator[Mutant]:
    """Mutants drawn with a seed."""
    from cosmic_ray import plugins  # pyright: ignore[reportMissingImports]
    from cosmic_ray.mutating import mutate_code  # pyright: ignore[reportMissingImports]

    everything = places(files)
    random.Random(seed).shuffle(everything)
    for module, name, occurrence in everything:
        source = (ROOT / "src/penstock" / module).read_text()
        code = mutate_code(source, plugins.get_operator(name)(), occurrence)
        if code is not None and meaning(code) not in (meaning(source), None):
            yield Mutant(module, name, occurrence, source, code)
            count -= 1
        if not count:
            return


def meaning(source: str) -> str | None:
    """The program without its annotations and docstrings; None of what is no program."""
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return None
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            node.returns = None
            node.args.args = [ast.arg(arg.arg) for arg in node.args.args]
            node.args.kwonlyargs = [ast.arg(arg.arg) for arg in node.args.kwonlyargs]
        elif isinstance(node, ast.AnnAssign):
            node.annotation = ast.Constant(None)
        body = getattr(node, "body", None)
        if (
            isinstance(body, list)
            and body
            and isinstance(body[0], ast.Expr)
            and isinstance(body[0].value, ast.Constant)
        ):
            del body[0]
    return ast.dump(tree)


class Timed:
    """A plugin of pytest: notes how long every test takes, which fail, and which lines of the core each runs."""

    def __init__(self, file: Path, package: Path) -> None:
        self.file, self.package = file, str(package) + os.sep
        self.seconds, self.failed = dict[str, float](), set[str]()
        self.lines, self.now = dict[str, dict[str, list[int]]](), dict[str, set[int]]()

    def pytest_configure(self) -> None:
        if sys.version_info >= (3, 12):  # before, every test is tried on every mutant
            sys.monitoring.use_tool_id(sys.monitoring.COVERAGE_ID, "mutants")
            sys.monitoring.register_callback(sys.monitoring.COVERAGE_ID, sys.monitoring.events.LINE, self.ran)
            sys.monitoring.set_events(sys.monitoring.COVERAGE_ID, sys.monitoring.events.LINE)

    def ran(self, code: Any, line: int) -> Any:
        if code.co_filename.startswith(self.package):
            self.now.setdefault(code.co_filename[len(self.package) :], set()).add(line)
        return sys.monitoring.DISABLE  # once a test is enough

    def pytest_runtest_setup(self) -> None:
        self.now.clear()
        if sys.version_info >= (3, 12):
            sys.monitoring.restart_events()

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

    def quickest(self, mutant: Mutant) -> Quickest:
        """The tests that run a line of the mutant; where none does, as for what is done at import, all of its file."""
        name, changed = str(mutant.module), mutant.lines()
        of_file = {test for test, lines in self.lines.items() if name in lines}
        of_line = {test for test in of_file if changed & set(self.lines[test][name])}
        chosen = (of_line or of_file or set(self.seconds)) - self.failed
        return Quickest({test: self.seconds[test] for test in chosen})


class Quickest:
    """A plugin of pytest: these tests alone, the quickest first."""

    def __init__(self, seconds: dict[str, float]) -> None:
        self.seconds = seconds

    def files(self) -> list[str]:
        return sorted({test.split("::")[0] for test in self.seconds})

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        items[:] = sorted(
            (item for item in items if item.nodeid in self.seconds), key=lambda item: self.seconds[item.nodeid]
        )


def survives(mutant: Mutant, folder: Path, quickest: Quickest, limit: float) -> tuple[bool, str, float]:
    """Whether all tests pass in a copy with the mutant in it, what ended them, and the seconds it took."""
    target = folder / "src/penstock" / mutant.module
    was = target.read_text()
    target.write_text(mutant.code)
    began, said = time.monotonic(), folder / "said.txt"
    child = os.fork()
    if child == 0:
        os.setsid()
        run_tests(folder, said, ["-x", *quickest.files()], quickest)
    try:
        while time.monotonic() - began < limit:
            pid, status = os.waitpid(child, os.WNOHANG)
            if pid:
                told = [
                    line
                    for line in said.read_text(errors="replace").splitlines()
                    if line.startswith(("FAILED", "ERROR", "E  "))
                ]
                return status == 0, (told[-1] if told else f"status {status}")[:110], time.monotonic() - began
            time.sleep(0.05)
        os.killpg(child, signal.SIGKILL)
        os.waitpid(child, 0)
        return False, TOO_LONG, time.monotonic() - began
    finally:
        target.write_text(was)


def without(folder: Path, jobs: int, tests: list[str]) -> Timed:
    """The tests without a mutant, on several processes: how long each takes, which fail and what they run."""
    timed = Timed(folder.parent / "seconds.json", folder / "src/penstock")
    child = os.fork()
    if child == 0:
        # Every process of xdist makes its own.
        plugin = folder / "tests" / "noted_lines.py"
        plugin.write_text(
            f"import sys\nsys.path.insert(0, {str(Path(__file__).parent)!r})\nfrom pathlib import Path\n"
            "from mutants import Timed\n"
            f"def pytest_configure(config):\n"
            f"    plugin = Timed(Path({str(timed.file)!r}), Path({str(folder / 'src/penstock')!r}))\n"
            "    config.pluginmanager.register(plugin)\n"
        )
        tests = [f"tests/{name}" for name in tests]
        run_tests(folder, folder / "said.txt", ["-p", "noted_lines", "-n", str(jobs), *tests])
    os.waitpid(child, 0)
    assert timed.file.exists(), f"the tests do not run: {(folder / 'said.txt').read_text()[-2000:]}"
    timed.seconds, failed, timed.lines = json.loads(timed.file.read_text())
    timed.failed = set(failed)
    return timed


def run_tests(folder: Path, said: Path, options: list[str], *plugins: object) -> None:
    """In the forked process: the tests over the copy, and the end."""
    with said.open("w") as out:
        os.dup2(out.fileno(), 1)
        os.dup2(out.fileno(), 2)
    os.chdir(folder)
    sys.path[:0] = [str(folder / "src"), str(folder / "tests")]
    os.environ["PYTHONPATH"] = os.pathsep.join([*sys.path[:2], os.environ.get("PYTHONPATH", "")])
    sys.dont_write_bytecode = True
    import pytest

    code = 1
    try:
        code = pytest.main(
            [
                *options,
                "-q",
                "-p",
                "no:cacheprovider",
                "--hypothesis-profile=dev",
                "--no-header",
            ],
            plugins=plugins,
        )
    finally:
        os._exit(int(code))


def copy(folder: Path) -> None:
    for name in ("src", "tests", "docs"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, folder / name)


def noted(mutants: list[Mutant]) -> str:
    return json.dumps([{**vars(mutant), "module": str(mutant.module)} for mutant in mutants])


def read(file: Path) -> list[Mutant]:
    return [Mutant(**{**note, "module": Path(note["module"])}) for note in json.loads(file.read_text())]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="*", type=Path, help="below src/penstock; all of the core where none is named")
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--minutes", type=float, default=1e9, help="begin no mutant after so many")
    parser.add_argument("--within", type=float, default=1e9, help="leave a mutant open that lives for so many seconds")
    parser.add_argument("--tests", nargs="+", default=TESTS, help="below tests")
    parser.add_argument("--draw", type=Path, help="write the mutants there and end")
    parser.add_argument("--drawn", type=Path, help="the mutants written there")
    parser.add_argument("--left", type=Path, help="write the open mutants there")
    asked = parser.parse_args()
    chosen = read(asked.drawn) if asked.drawn else list(drawn(asked.files or modules(), asked.count, asked.seed))
    if asked.draw:
        asked.draw.write_text(noted(chosen))
        return 0
    print(f"{len(chosen)} mutants, seed {asked.seed}", flush=True)
    import pyarrow.parquet  # noqa: F401 - loaded once, before the forks

    began = time.monotonic()
    left = iter(enumerate(chosen, 1))
    survivors, opened, untried = list[Mutant](), list[Mutant](), list[Mutant]()
    with tempfile.TemporaryDirectory() as top, ThreadPoolExecutor(asked.jobs) as pool:
        for number in range(asked.jobs):
            copy(Path(top, str(number)))
        timed = without(Path(top, "0"), asked.jobs, asked.tests)
        seconds = sum(timed.seconds.values())
        print(f"without a mutant {len(timed.seconds)} tests take {seconds:.0f} s of one process", flush=True)
        for name in sorted(timed.failed):
            print(f"left out, fails without a mutant: {name}", flush=True)

        def work(number: int) -> int:
            folder, done = Path(top, str(number)), 0
            for place, mutant in left:
                if time.monotonic() - began > asked.minutes * 60:
                    untried.append(mutant)
                    continue
                quickest = timed.quickest(mutant)
                fair = 2 * sum(quickest.seconds.values()) + 60
                alive, how, took = survives(mutant, folder, quickest, min(fair, asked.within))
                if how == TOO_LONG and asked.within < fair:
                    mark, into = "open", opened
                else:
                    mark, into = ("SURVIVED", survivors) if alive else ("killed", [])
                into.append(mutant)
                done += 1
                print(f"{place} {mark} {mutant.module} {mutant.operator} {took:.0f} s of {fair:.0f} {how}", flush=True)
                if alive:
                    print(mutant.difference(), flush=True)
            return done

        count = sum(pool.map(work, range(asked.jobs)))
    killed = count - len(survivors) - len(opened)
    print(f"{killed} of {count} killed ({killed / max(count, 1):.1%}), {time.monotonic() - began:.0f} s")
    print(f"{len(survivors)} survived, {len(opened)} open, {len(untried)} not tried")
    if asked.left:
        asked.left.write_text(noted(opened + untried))
    for mutant in survivors:
        print(f"\n{mutant.module}\n{mutant.difference()}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
