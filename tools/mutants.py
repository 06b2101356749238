"""Mutants of the mixing, the interpreter and the session, drawn with a seed, against the tests: which survive?

`python tools/mutants.py --count 300 --seed 1 --jobs 2`, from a checkout, in an environment that has `cosmic-ray`
beside the development tools. Cosmic Ray makes the mutants; those that differ in an annotation or a text alone are not
drawn. Every mutant is run in a forked process over a copy of the sources: the quickest tests first, as a run without
a mutant has timed them, and the first failure kills it; so does taking twice as long as without a mutant. A line is
printed for each, with the difference where it survived.
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
    """A plugin of pytest: notes how long every test takes, or has the quickest run first."""

    def __init__(self, file: Path) -> None:
        self.file, self.seconds = file, dict[str, float]()

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        if self.file.exists():
            known = json.loads(self.file.read_text())
            items.sort(key=lambda item: known.get(item.nodeid, 0.0))

    def pytest_runtest_logreport(self, report: Any) -> None:
        self.seconds[report.nodeid] = self.seconds.get(report.nodeid, 0.0) + report.duration

    def pytest_sessionfinish(self) -> None:
        if not self.file.exists():
            self.file.write_text(json.dumps(self.seconds))


def survives(mutant: Mutant | None, module: Path, folder: Path, limit: float) -> tuple[bool, str, float]:
    """Whether all tests pass in a copy with the mutant in it, what ended them, and the seconds it took."""
    target = folder / "src/penstock" / module
    was = target.read_text()
    if mutant:
        target.write_text(mutant.code)
    began, said = time.monotonic(), folder / "said.txt"
    child = os.fork()
    if child == 0:
        os.setsid()
        run_tests(folder, said)
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
        return False, f"over {limit:.0f} s", time.monotonic() - began
    finally:
        target.write_text(was)


def run_tests(folder: Path, said: Path) -> None:
    """In the forked process: the tests over the copy, and the end."""
    with said.open("w") as out:
        os.dup2(out.fileno(), 1)
        os.dup2(out.fileno(), 2)
    os.chdir(folder)
    sys.path[:0] = [str(folder / "src"), str(folder / "tests")]
    os.environ["PYTHONPATH"] = f"{folder / 'src'}:{folder / 'tests'}"
    sys.dont_write_bytecode = True
    import pytest

    code = 1
    try:
        code = pytest.main(
            [
                "-x",
                "-q",
                "-p",
                "no:cacheprovider",
                "--hypothesis-profile=dev",
                "--no-header",
                *(f"tests/{name}" for name in TESTS),
            ],
            plugins=[Timed(folder.parent / "seconds.json")],
        )
    finally:
        os._exit(int(code))


def copy(folder: Path) -> None:
    for name in ("src", "tests", "docs"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, folder / name)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="*", type=Path, help="below src/penstock; all of the core where none is named")
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--minutes", type=float, default=1e9, help="begin no mutant after so many")
    asked = parser.parse_args()
    files = asked.files or modules()
    chosen = list(drawn(files, asked.count, asked.seed))
    print(f"{len(chosen)} mutants of {len(files)} files drawn with seed {asked.seed}", flush=True)
    import pyarrow.parquet  # noqa: F401 - loaded once, before the forks

    began = time.monotonic()
    left = iter(enumerate(chosen, 1))
    survivors = list[Mutant]()
    count = 0
    with tempfile.TemporaryDirectory() as top, ThreadPoolExecutor(asked.jobs) as pool:
        for number in range(asked.jobs):
            copy(Path(top, str(number)))
        whole, how, seconds = survives(None, Path("mixing/timeline.py"), Path(top, "0"), float("inf"))
        assert whole, f"the tests fail without a mutant: {how}"
        print(f"without a mutant the tests take {seconds:.0f} s", flush=True)

        def work(number: int) -> int:
            folder, done = Path(top, str(number)), 0
            for place, mutant in left:
                if time.monotonic() - began > asked.minutes * 60:
                    break
                alive, how, took = survives(mutant, mutant.module, folder, 2 * seconds)
                done += 1
                mark = "SURVIVED" if alive else "killed"
                print(f"{place} {mark} {mutant.module} {mutant.operator} {took:.0f} s {how}", flush=True)
                if alive:
                    survivors.append(mutant)
                    print(mutant.difference(), flush=True)
            return done

        count = sum(pool.map(work, range(asked.jobs)))
    killed = count - len(survivors)
    print(f"{killed} of {count} killed ({killed / max(count, 1):.1%}), {time.monotonic() - began:.0f} s")
    for mutant in survivors:
        print(f"\n{mutant.module}\n{mutant.difference()}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
