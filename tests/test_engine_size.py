"""The counter of the engine's size counts what it says; `make lint` compares it with the limits."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent


def load_tool() -> Any:
    spec = importlib.util.spec_from_file_location("engine_size", ROOT / "tools" / "engine_size.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


tool = load_tool()

OP = '''"""Steps."""
class Op:
    """A step."""
    size: int = 0  # rows

    def __init__(self): ...
    def locate(self):
        """Locate."""
        raise NotImplementedError
    def _find(self): ...

class Twice(Op):
    def __init__(self):
        self.size, self.other = 1, 2
    def locate(self):
        return isinstance(self, Twice)
    def more(self): ...

class Thrice(Twice):
    def _find(self): ...

class Step:
    def bind(self): ...

class Read(Step): ...
class Node(Step): ...
'''

USES = """
def use(step, flow, kind, dtype):
    if isinstance(step, (Twice, int)) or isinstance(step, str | Thrice):
        pass
    match flow:
        case Node("map" | "filter"):
            pass
        case Read():
            pass
    return step.kind == "map", kind in ("map", "flat"), dtype.kind in "iu", dtype.kind == "O"
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    for path, text in {
        "engine/__init__.py": "",
        "engine/steps/op.py": OP,
        "engine/run/uses.py": USES,
        "cli/main.py": "from penstock.engine.steps.op import Read\nisinstance(1, Read)\n",
        "types.py": "x = 1\n",
    }.items():
        file = tmp_path / "src" / "penstock" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ("", 0),
        ("# comment\n\n\n", 0),
        ('"""Module.\n\nMore."""\nx = 1\n', 1),
        ('def f():\n    """Doc."""\n', 1),
        ('class A:\n    x: int\n    """Of x."""\n\n    y: int  # y\n', 3),
        ('text = """\nline\n\n"""\n', 4),
        ("f(\n    1,  # one\n\n    # two\n    2,\n)\n", 4),
    ],
)
def test_code_lines_are_counted_without_blanks_comments_and_docstrings(
    source: str, lines: int
) -> None:
    assert tool.count_code_lines(source) == lines


def test_members_overrides_and_dispatch_are_counted(checkout: Path) -> None:
    figures = tool.measure(checkout)
    assert figures["protocols"] == {
        "names": ["Step", "Op"],
        "members": ["Op._find", "Op.locate", "Op.size", "Step.bind"],
        "overrides": 3,
    }
    uses = "engine/run/uses.py"
    assert figures["dispatch"] == {
        "kinds": [f"{uses}:10", f"{uses}:10", f"{uses}:6"],
        "steps": [f"{uses}:3 Thrice", f"{uses}:3 Twice", f"{uses}:6 Node", f"{uses}:8 Read"],
        "kinds outside the engine": [],
        "steps outside the engine": ["cli/main.py:2 Read"],
    }
    assert figures["package"]["folders"] == {"engine": 27, "cli": 2, "(root)": 1}
    assert figures["engine"]["folders"] == {"steps": 18, "run": 9, "(root)": 0}
    assert figures["largest"]["engine/steps/op.py"] == 18
    assert figures["small"]["package"] == 4


def test_a_protocol_that_does_not_exist_is_an_error(checkout: Path) -> None:
    with pytest.raises(SystemExit, match="no class Steps"):
        tool.measure(checkout, ["Steps"])


def test_a_figure_over_its_limit_fails(
    checkout: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    reached = tool.summarize(tool.measure(checkout))
    monkeypatch.setattr(tool, "LIMITS", reached)
    assert tool.main(["--check", "--root", str(checkout)]) == 0
    for name in reached:
        monkeypatch.setattr(tool, "LIMITS", {**reached, name: reached[name] - 1})
        capsys.readouterr()
        assert tool.main(["--check", "--root", str(checkout)]) == 1
        assert capsys.readouterr().out.startswith(f"{name}: ")


def test_the_figures_are_json(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert tool.main(["--json", "--root", str(checkout)]) == 0
    assert json.loads(capsys.readouterr().out) == tool.measure(checkout)
