"""The checker of words reports what breaks each of its rules, and allowances only become smaller."""

from __future__ import annotations

import ast
import importlib.util
import json
import sys
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent


def load_words() -> Any:
    spec = importlib.util.spec_from_file_location("words_checker", ROOT / "tools" / "words.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["words_checker"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


words = load_words()
LONG = " ".join(["word"] * 31)


def names(code: str, path: str = "src/penstock/x.py") -> list[str]:
    """Return the messages about names in a file."""
    return [finding.message for finding in words.check_names(path, ast.parse(code))]


def docstrings(code: str) -> list[tuple[str, int]]:
    """Return (rule, line) for the docstrings of a file."""
    found = words.check_docstrings("x.py", ast.parse(code))
    return [(finding.rule, finding.line) for finding in found]


def docs(text: str) -> list[tuple[str, int]]:
    """Return (rule, line) for a page."""
    return [(finding.rule, finding.line) for finding in words.check_docs("docs/x.md", text)]


def make_repository(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return root


# ---------------------------------------------------------------- names


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("def told(): ...", "the function 'told'"),
        ("async def going_on(): ...", "the function 'going_on'"),
        ("class Each: ...", "the class 'Each'"),
        ("class _Hired: ...", "the class '_Hired'"),
        ("FAR = 1", "the value 'FAR'"),
        ("a, place = 1, 2", "the value 'place'"),
        ("class A:\n    flow: int", "the value 'flow'"),
        ("class A:\n    def stands(self): ...", "the function 'stands'"),
        ("class A:\n    @property\n    def laps(self): ...", "the function 'laps'"),
        ("class A:\n    class Trail: ...", "the class 'Trail'"),
        ("def f(place): ...", "the argument 'place'"),
        ("def f(*, inner_flow=1): ...", "the argument 'inner_flow'"),
        ("def f(*places): ...", "the argument 'places'"),
        ("def f():\n    def g(ahead): ...", "the argument 'ahead'"),
        ("if True:\n    class FlowKind: ...", "the class 'FlowKind'"),
    ],
)
def test_a_banned_name_is_reported(code: str, message: str) -> None:
    assert names(code) == [message]


@pytest.mark.parametrize(
    "code",
    [
        "class RankSharding: ...",
        "def locate(placeholder, overflow, read_ahead, ordered=True): ...",
        "def reader(): ...",  # `Reader` is banned as a class
        "class Opener: ...",
        "def f():\n    where = 1",  # a local variable
        "import laps",
        "from x import told",
        "def f(self, cls): ...",
    ],
)
def test_other_names_are_not_reported(code: str) -> None:
    assert names(code) == []


def test_a_banned_file_name_is_reported() -> None:
    assert names("", "src/penstock/engine/steps/going.py") == ["the file name 'going'"]
    assert names("", "src/penstock/sources/loose.py") == ["the file name 'loose'"]
    assert names("", "src/penstock/sources/__init__.py") == []


def test_a_folder_may_use_a_word_of_its_field() -> None:
    code = "def frames(): ..."
    assert names(code, "src/penstock/media/video.py") == []
    assert names(code, "src/penstock/text/video.py") == ["the function 'frames'"]
    assert names("def f(leaf): ...", "src/penstock/arrays/trees.py") == []


@pytest.mark.parametrize(
    "code", ["told = 1", "for one in rows: ...", "lambda place: 2", "(kept := 3)"]
)
def test_a_banned_name_in_an_example_of_the_docs_is_reported(code: str) -> None:
    assert docs(f"A page.\n\n```python\nrows = []\n{code}\n```\n") == [("banned-name", 5)]


def test_methods_of_protocols_and_other_languages_are_not_reported() -> None:
    page = "```python\nclass Rule:\n    def places(self): ...\n```\n\n```text\nplace = 1\n```\n"
    assert docs(page) == []


# ---------------------------------------------------------------- docstrings


@pytest.mark.parametrize(
    "opening", ["What is", "What's", "Whether it", "How it", "Who is", "Of it", "The same, but"]
)
def test_a_banned_opening_is_reported(opening: str) -> None:
    expected = [("docstring-opening", 2)]
    assert docstrings(f'def f():\n    """{opening} here."""') == expected
    assert docstrings(f'def f():\n    """\n    {opening} here.\n    """') == [
        ("docstring-opening", 3)
    ]


@pytest.mark.parametrize(
    "opening", ["Whatever", "However", "Whole rows", "Offsets", "The samesies", "Return what"]
)
def test_other_openings_are_not_reported(opening: str) -> None:
    assert docstrings(f'"""{opening} it is."""') == []


def test_modules_classes_and_inner_functions_have_docstrings() -> None:
    code = '"""What."""\nclass A:\n    """How."""\n    def f(self):\n        def g():\n            """Of."""'
    assert docstrings(code) == [("docstring-opening", line) for line in (1, 3, 6)]


def test_a_long_sentence_of_a_docstring_is_reported_at_its_line() -> None:
    code = f'def f(x):\n    """Return it.\n\n    Short one. {LONG.capitalize()}.\n    """'
    assert docstrings(code) == [("sentence", 4)]
    section = (
        f'def f(x):\n    """Return it.\n\n    Args:\n        x: Short.\n        y: {LONG}.\n    """'
    )
    assert docstrings(section) == [("sentence", 6)]


@pytest.mark.parametrize(
    "body",
    [
        " ".join(["word"] * 30) + ".",
        "Here is half. " + " ".join(["Word"] * 29) + ".",
        f">>> print('{LONG}')\n    {LONG}\n",
        f"```\n    {LONG}\n    ```",
        f"An example:\n\n        {LONG}\n",
        f"| a | table |\n    | {LONG} | b |",
        f"Args:\n        x: {' '.join(['word'] * 20)}\n        y: {' '.join(['word'] * 20)}",
        f"- {' '.join(['word'] * 20)}\n    - {' '.join(['word'] * 20)}",
        f"One `{LONG}` is code.",
    ],
)
def test_short_sentences_and_code_of_docstrings_are_not_reported(body: str) -> None:
    assert docstrings(f'def f():\n    """Return it.\n\n    {body}\n    """') == []


# ---------------------------------------------------------------- docs


def test_a_long_line_of_docs_is_reported() -> None:
    assert docs("Short.\n\n" + "word. " * 20 + "\n") == [("docs-line", 3)]
    assert docs("- " + "Word. " * 20 + "\n") == [("docs-line", 1)]
    assert docs("# " + "Word. " * 20 + "\n") == [("docs-line", 1)]


def test_a_long_paragraph_of_docs_is_reported() -> None:
    assert docs("Title\n\n" + "One line.\n" * 6) == [("docs-paragraph", 3)]
    assert docs("One line.\n" * 5) == []
    wide = "A sentence of some words that fills this. " * 14
    assert ("docs-paragraph", 1) in docs(wide), "as many as five lines would hold, on one"
    assert docs("- One item.\n" * 9) == [], "each item is a block"


def test_a_long_sentence_of_docs_is_reported_at_its_line() -> None:
    lines = "First one.\nSecond one. Then\n" + "\n".join(["word " * 10] * 3) + "end.\n"
    assert docs(lines) == [("sentence", 2)]
    assert docs("Text.\n\n!!! note\n    " + "\n    ".join(["word " * 11] * 3)) == [("sentence", 3)]


@pytest.mark.parametrize(
    "text",
    [
        "```python\n" + "x = 1  # word " * 20 + "\n```\n",
        "- item\n\n    ```\n    " + "x = 1  # word " * 20 + "\n    ```\n",
        "Text:\n\n    " + "code " * 40 + "\n",
        "| a | b |\n|---|---|\n| " + "word " * 40 + "| b |\n",
        "<!-- " + "word " * 40 + "\n" + "word " * 40 + "-->\n",
        "[name]: https://example.org/" + "x" * 100 + "\n",
        "https://example.org/" + "x" * 100 + "\n",
        "- https://example.org/" + "x" * 100 + "\n",
        "---\ntitle: " + "word " * 40 + "\n---\n",
        f"[One](https://example.org) and `{' '.join(['x'] * 31)}`.\n",
    ],
)
def test_code_tables_and_links_of_docs_are_not_reported(text: str) -> None:
    assert docs(text) == []


def test_line_numbers_are_right_after_code_and_comments() -> None:
    text = "<!-- a\nb -->\n```\ncode\n```\n\n" + "Word. " * 20
    assert docs(text) == [("docs-line", 7)]


# ---------------------------------------------------------------- public names

INIT = '"""Penstock."""\nfrom .module import f as f, A, B\n__all__ = ["f", "A", "B"]\n'
GOOD = '''"""A module."""
from dataclasses import dataclass


def f(x: int, *, y: int = 1) -> int:
    """Add two numbers.

    Args:
        x: The first.
        y: The second.

    Returns:
        Their sum.

    Raises:
        ValueError: `x` is negative.
    """
    if x < 0:
        raise ValueError(x)
    return x + y


def _private(x: int) -> int:
    return x


class A:
    """A class.

    Args:
        x: A number.
    """

    def __init__(self, x: int) -> None:
        self.x = x

    def close(self) -> None:
        """Close it."""

    def size(self) -> int:
        """Return the size."""
        raise NotImplementedError

    @property
    def last(self) -> int:
        """The last number."""
        return self.x


@dataclass
class B:
    """A record.

    Attributes:
        x: A number.
    """

    x: int
'''


def public(root: Path, module: str, init: str = INIT, **more: str) -> list[str]:
    files = {"src/penstock/__init__.py": init, "src/penstock/module.py": module, **more}
    tree = words.SourceTree(make_repository(root, files))
    return [finding.message for finding in words.check_public(tree)]


def test_complete_docstrings_are_not_reported(tmp_path: Path) -> None:
    assert public(tmp_path, GOOD) == []


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("    Args:\n        x: The first.\n        y: The second.\n\n", "", "f lacks Args"),
        ("    Returns:\n        Their sum.\n\n", "", "f lacks Returns"),
        ("    Raises:\n        ValueError: `x` is negative.\n", "", "f lacks Raises"),
        ("    Args:\n        x: A number.\n", "", "A lacks Args"),
        ("    Attributes:\n        x: A number.\n", "", "B lacks Args"),
        ('        """Close it."""\n', "        pass\n", "A.close has no docstring"),
        ('"""Return the size."""', '"""The size."""', "A.size lacks Returns"),
        ("raise NotImplementedError", "raise KeyError(1)", "A.size lacks Raises"),
        ('        """The last number."""\n', "", "A.last has no docstring"),
        (
            '    """A record.\n\n    Attributes:\n        x: A number.\n    """\n',
            "",
            "B has no docstring",
        ),
        ("def close(self)", "def close(self, at: int)", "A.close lacks Args"),
    ],
)
def test_a_missing_section_is_reported(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in GOOD
    assert public(tmp_path, GOOD.replace(old, new)) == [message]


@pytest.mark.parametrize("annotation", ["Dataset", "ps.Dataset", "'Dataset'", "A", "'A'", "Self"])
def test_a_new_dataset_or_instance_needs_no_section(tmp_path: Path, annotation: str) -> None:
    code = GOOD.replace("def size(self) -> int", f"def size(self) -> {annotation}")
    assert public(tmp_path, code.replace('"""Return the size."""', '"""Make it."""')) == []


@pytest.mark.parametrize(
    ("docstring", "arguments", "messages"),
    [
        ('"""A protocol."""', "at: int", []),
        ('"""A protocol."""', "at: int, n: int", ["A.size lacks Args, Returns"]),
        ("", "at: int", ["A.size lacks Args, Returns"]),
    ],
)
def test_a_method_of_a_documented_protocol_needs_no_section(
    tmp_path: Path, docstring: str, arguments: str, messages: list[str]
) -> None:
    protocol = f"class P(Protocol):\n    {docstring}\n    def size(self, at: int) -> int: ...\n"
    code = GOOD.replace("def size(self) -> int", f"def size(self, {arguments}) -> int")
    code = code.replace('"""Return the size."""', '"""Measure it."""')
    more = {"src/penstock/protocols/__init__.py": protocol}
    assert public(tmp_path, code, **more) == messages


def test_methods_that_a_public_class_inherits_are_public(tmp_path: Path) -> None:
    base = (
        "class Base(Generic[T]):\n"
        "    def read(self, n: int) -> None:\n"
        '        """Read it."""\n'
        "    @abstractmethod\n"
        "    def limit(self, n: int) -> None: ...\n"
        "class Middle(Base[T]):\n"
        "    def show(self, n: int) -> None:\n"
        '        """Show it."""\n'
    )
    code = f"from .parts import Middle\n{GOOD.replace('class A:', 'class A(Middle[int]):')}"
    found = public(tmp_path, code, **{"src/penstock/parts/__init__.py": base})
    assert found == ["A.show lacks Args", "A.read lacks Args"]


def test_errors_that_are_passed_on_need_no_section(tmp_path: Path) -> None:
    code = GOOD.replace("Raises:\n        ValueError: `x` is negative.\n", "").replace(
        "    if x < 0:\n        raise ValueError(x)\n",
        "    try:\n        x += 1\n    except ValueError as error:\n        raise\n"
        "    def inner():\n        raise KeyError(1)\n",
    )
    assert public(tmp_path, code) == []


def test_public_names_are_followed_through_packages(tmp_path: Path) -> None:
    bare = "def g(x: int) -> None: ...\nh = g\n"
    lazy = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from .text import h\n"
    files = {
        "src/penstock/text/__init__.py": "from ..module import h\n__all__ = ['h']\n",
        "src/penstock/compat/__init__.py": "",
        "src/penstock/compat/other.py": "def k() -> None: ...\ndef _l() -> None: ...\n",
        "src/penstock/private/__init__.py": "def m() -> None: ...\n",
    }
    found = public(tmp_path, bare, f"{lazy}__all__ = ['h']\n", **files)
    assert found == ["h has no docstring", "k has no docstring"], "each definition once"


def test_every_public_function_and_class_of_penstock_is_found() -> None:
    tree = words.SourceTree(ROOT)
    for module in [f"penstock.{name}".rstrip(".") for name in words.PUBLIC]:
        for name in tree.public_names(module):
            value = getattr(importlib.import_module(module), name)
            if isinstance(value, type | FunctionType):
                assert tree.resolve(module, name), f"{module}.{name}"
    assert all(tree.resolve("penstock", name) for name in tree.public_names("penstock"))


# ---------------------------------------------------------------- allowances

PAGE = {"docs/x.md": "Word. " * 20 + "\n\n" + "Word. " * 20, "README.md": "Short.\n"}
RULE = "docs-line"


def run(root: Path, *arguments: str) -> int:
    return words.main(["--root", str(root), *arguments])


def allowances(root: Path) -> dict[str, int]:
    text = (root / words.ALLOWED).read_text(encoding="utf-8")
    return json.loads(text)["allowed"].get(RULE, {})


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    (tmp_path / "tools").mkdir()
    return make_repository(tmp_path, PAGE)


def test_findings_beyond_the_allowance_fail(
    repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(repository) == 1
    output = capsys.readouterr().out
    assert "docs/x.md:1: docs-line: 120 characters" in output
    assert "docs/x.md: docs-line: 2 found, 0 allowed" in output
    assert run(repository, "--update") == 0 and allowances(repository) == {"docs/x.md": 2}
    assert run(repository) == 0
    (repository / "README.md").write_text("Word. " * 20)
    assert run(repository) == 1
    assert run(repository, "docs") == 0


def test_update_lowers_an_allowance_and_raises_none(repository: Path) -> None:
    run(repository, "--update")
    page = repository / "docs/x.md"
    page.write_text("Word. " * 20 + "\n")
    assert run(repository) == 0
    assert run(repository, "--strict") == 1, "one is allowed too many"
    assert run(repository, "--update") == 0 and allowances(repository) == {"docs/x.md": 1}
    assert run(repository, "--strict") == 0
    page.write_text(PAGE["docs/x.md"])
    assert run(repository, "--update") == 1 and allowances(repository) == {"docs/x.md": 1}
    page.unlink()
    assert run(repository, "--strict") == 1
    assert run(repository, "--update") == 0 and allowances(repository) == {}


def test_a_renamed_file_takes_its_allowance_along(repository: Path) -> None:
    run(repository, "--update")
    (repository / "docs/x.md").rename(repository / "docs/y.md")
    assert run(repository) == 1
    assert run(repository, "--move", "docs/x.md", "docs/y.md") == 0
    assert run(repository, "--strict") == 0 and allowances(repository) == {"docs/y.md": 2}


def test_count_prints_a_number_for_each_rule(
    repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(repository, "--count")
    lines = capsys.readouterr().out.splitlines()
    assert f"     2  docs-line: {words.RULES['docs-line']}" in lines
    assert all(any(f"  {rule}: " in line for line in lines) for rule in words.RULES)


def test_a_path_that_does_not_exist_is_an_error(repository: Path) -> None:
    with pytest.raises(SystemExit, match=r"docs/z\.md: there is no such file"):
        run(repository, "docs/z.md")
    with pytest.raises(SystemExit, match="it is not in"):
        run(repository, "/usr")
    with pytest.raises(SystemExit, match="give no paths"):
        run(repository, "--update", "docs")


def test_the_committed_allowances_are_of_rules_and_sorted() -> None:
    committed = json.loads((ROOT / words.ALLOWED).read_text(encoding="utf-8"))
    assert set(committed) == {"note", "allowed"} and committed["note"] == words.NOTE
    assert set(committed["allowed"]) <= set(words.RULES)
    for by_path in committed["allowed"].values():
        assert list(by_path) == sorted(by_path) and all(count > 0 for count in by_path.values())


# ---------------------------------------------------------------- the census


def test_the_census_counts_names_and_first_words() -> None:
    code = '"""The module."""\nclass _Laps: ...\ndef kept():\n    """The same."""\ndef read_rows():\n    """Returns it."""'
    census = words.take_census([("x.py", ast.parse(code))])
    assert (census.names, census.one_word, census.docstrings) == (3, 1, 3)
    assert (census.same, census.banned, census.verbs) == (1, 2, 1)
    assert census.first_words["The"] == 2
    assert "one lower-case word: 1 (33%)" in str(census)
