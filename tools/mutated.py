"""The mutants of the core, drawn with a seed, as Cosmic Ray makes them: what `tools/mutants.py`
runs."""

from __future__ import annotations

import ast
import difflib
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src/penstock"
CORE = ("mixing", "streams", "ops", "runtime", "graph")


@dataclass(frozen=True)
class Mutant:
    module: Path  # below src/penstock
    operator: str
    occurrence: int
    source: str
    code: str

    def lines(self) -> set[int]:
        """The lines of the source that it changes."""
        matcher = difflib.SequenceMatcher(
            None, self.source.splitlines(), self.code.splitlines(), autojunk=False
        )
        changes = [change for change in matcher.get_opcodes() if change[0] != "equal"]
        return {
            line + 1
            for _, start, stop, _, _ in changes
            for line in range(start, max(stop, start + 1))
        }

    def difference(self) -> str:
        lines = difflib.unified_diff(
            self.source.splitlines(), self.code.splitlines(), lineterm="", n=0
        )
        return "\n".join(line for line in lines if line[:3] not in ("---", "+++"))


def modules() -> list[Path]:
    """The files that are mutated, below src/penstock."""
    return [
        path.relative_to(PACKAGE) for name in CORE for path in sorted((PACKAGE / name).glob("*.py"))
    ]


def list_expressions(files: list[Path]) -> list[tuple[Path, str, int]]:
    """Where every operator that needs no arguments can be applied: module, operator, occurrence."""
    from cosmic_ray import plugins  # pyright: ignore[reportMissingImports]
    from cosmic_ray.ast import ast_nodes, get_ast  # pyright: ignore[reportMissingImports]

    found = list[tuple[Path, str, int]]()
    for module in files:
        everything = list(ast_nodes(get_ast((PACKAGE / module).read_text())))
        for name in sorted(name for name in plugins.operator_names() if "ariable" not in name):
            operator = plugins.get_operator(name)()
            many = sum(len(list(operator.mutation_positions(node))) for node in everything)
            found += [(module, name, occurrence) for occurrence in range(many)]
    return found


def drawn(files: list[Path], count: int, seed: int) -> Iterator[Mutant]:
    """Mutants drawn with a seed."""
    from cosmic_ray import plugins  # pyright: ignore[reportMissingImports]
    from cosmic_ray.mutating import mutate_code  # pyright: ignore[reportMissingImports]

    everything = list_expressions(files)
    random.Random(seed).shuffle(everything)
    for module, name, occurrence in everything:
        source = (PACKAGE / module).read_text()
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


def noted(mutants: list[Mutant]) -> str:
    return json.dumps([{**vars(mutant), "module": str(mutant.module)} for mutant in mutants])


def read(file: Path) -> list[Mutant]:
    mutants = [
        Mutant(**{**note, "module": Path(note["module"])}) for note in json.loads(file.read_text())
    ]
    for mutant in mutants:
        assert mutant.source == (PACKAGE / mutant.module).read_text(), (
            f"{mutant.module} has changed since"
        )
    return mutants
