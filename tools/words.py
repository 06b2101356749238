"""Check that code and docs use the field's words: names, docstrings, docs and sentences.

The rules are those of the page on style. Each finding beyond `tools/words_allowed.json` fails the
check. That file counts, for each rule and file, the findings from before the rule; a count may only
become smaller.

    python tools/words.py                    what is beyond the allowances
    python tools/words.py --all docs         every finding in a folder or file
    python tools/words.py --count            the number of findings for each rule
    python tools/words.py --update           lower the allowances to what is left
    python tools/words.py --move OLD NEW     give the allowances of a renamed file to its new name
    python tools/words.py --strict           fail also if an allowance is larger than its count, as
                                             `make lint` runs it
    python tools/words.py --census src       one-word names, and the first words of docstrings

A change that mends findings therefore runs `--update` too, and the counts never rise again.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import json
import re
import sys
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ALLOWED = Path("tools/words_allowed.json")
DEFAULT_PATHS = ("src", "tools", "bench", "examples", "docs", "README.md", "CONTRIBUTING.md")

LINE_LENGTH = 100  # characters
PARAGRAPH_LINES = 5
SENTENCE_WORDS = 30

RULES = {
    "banned-name": "a name from the list of banned words",
    "docs-line": f"a line of docs over {LINE_LENGTH} characters",
    "docs-paragraph": f"a paragraph of docs over {PARAGRAPH_LINES} lines",
    "docstring-opening": "a docstring that begins with What, Whether, How, Who, Of or The same",
    "public-sections": "a public name without a docstring, Args, Returns or Raises",
    "sentence": f"a sentence over {SENTENCE_WORDS} words in docs or docstrings",
}

NOTE = (
    "How many findings of tools/words.py each rule still allows in each file. A count may only "
    "become smaller: `python tools/words.py --update` lowers counts and raises none. `make lint` "
    "fails on more findings than this, and on fewer."
)


@dataclass(frozen=True, order=True)
class Finding:
    """One violation of a rule.

    Attributes:
        path: The file, relative to the root of the repository.
        line: The line in it, from 1.
        rule: A key of `RULES`.
        message: The value that is wrong, and its replacement where one is known.
    """

    path: str
    line: int
    rule: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.rule}: {self.message}"


# ------------------------------------------------------------------------------ banned names

# Banned as any word of an identifier: `flow` in `inner_flow` and in `FlowKind`.
BANNED_PARTS = frozenset(
    """
    barren crew dealt flow flows foresee foresees foresight foretell hired lap laps takeover thing
    things toil told untold
    """.split()
)

# Banned as a whole identifier of any kind, since these say nothing alone: `place`, not `placeholder`.
BANNED_ALONE = frozenset(
    """
    ahead asked at_hand clock denied face faces far frame frames go going gone hands heart held
    house judge judges kept law laws leaf leaves life lives made_up make_up moment moments odd
    op ops own past place places room rooms round rounds stand standing stands turn turns under_way
    walk walks where whole
    """.split()
)

# Banned for functions, methods and properties, whose names are verbs. `ordered=` is fine.
BANNED_FUNCTIONS = frozenset(
    """
    after alike coming exhausts fact finds going_on goes_round guided keyed lanes_levelled
    latest levelled looked_at moved narrowed notes once opened ordered placed remixed settled since
    steady within_reach
    """.split()
)

BANNED_CLASSES = frozenset(
    """
    Adopted Again AgainOp By Chain Corrected Cycle Deadly Each Head Hold HoldOp Holding
    Later Ledger Lessons Lines MadeUp Mark Member Note Opened Opening PackOp Reader Rest
    Sent Share Spread StandingOf Taken Tally Tap Together Trail Without WithoutOp
    """.split()
)

BANNED_FILES = frozenset(
    """
    adopt again asking bare checked deal filed gather given halves hints hold joined latest loose
    ordered outside remember settling shape store tally together trail travel without
    """.split()
)

# Banned in the examples of the docs too.
BANNED_IN_DOCS = frozenset("each found many most one own".split())

# Where a banned word is the word of the field.
EXCEPTIONS = {
    "src/penstock/": {"where"},  # the filter of `read`, and the location in an error
    "src/penstock/media/": {"frame", "frames"},  # of a video
    "src/penstock/engine/": {"leaf", "leaves"},  # positions in a tree
    "src/penstock/arrays/": {"leaf", "leaves"},
    "src/penstock/report/": {"leaf", "leaves"},
    "src/penstock/sources/litdata": {"leaf", "leaves"},  # of a pytree
    "src/penstock/sources/rows": {"leaf", "leaves"},
    "src/penstock/compat/grain/": {"leaf", "leaves", "rounds"},
    "src/penstock/engine/base/random": {"round", "rounds"},  # of a Feistel network
}

Function = ast.FunctionDef | ast.AsyncFunctionDef
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def split_words(name: str) -> list[str]:
    """Return the words of an identifier in lower case.

    >>> split_words("_inner_flow"), split_words("HTTPFlowKind")
    (['inner', 'flow'], ['http', 'flow', 'kind'])
    """
    return [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+", name)]


def is_banned(name: str, kind: str, path: str = "") -> bool:
    """Return whether an identifier is on the list.

    Args:
        name: The identifier, or the stem of a file.
        kind: "class", "function", "file", "argument" or "value".
        path: The file that defines it; some folders have exceptions.
    """
    name = name.strip("_")
    except_for = {
        word for folder, words in EXCEPTIONS.items() if path.startswith(folder) for word in words
    }
    by_kind = {"class": BANNED_CLASSES, "function": BANNED_FUNCTIONS, "file": BANNED_FILES}
    return (
        name in by_kind.get(kind, ())
        or not BANNED_PARTS.isdisjoint(split_words(name))
        or (name.lower() in BANNED_ALONE and name.lower() not in except_for)
    )


def iterate_arguments(function: Function) -> Iterator[ast.arg]:
    """Yield the arguments of a function in their order, without `self` and `cls`."""
    given = function.args
    variadic = (given.vararg, given.kwarg)
    for argument in (*given.posonlyargs, *given.args, *given.kwonlyargs, *variadic):
        if argument and argument.arg not in ("self", "cls"):
            yield argument


def assigned_names(statement: ast.stmt) -> list[ast.Name]:
    """Return the plain names that a statement assigns to."""
    if isinstance(statement, ast.Assign):
        targets = statement.targets
    elif isinstance(statement, ast.AnnAssign):
        targets = [statement.target]
    else:
        return []
    elements = [
        element
        for target in targets
        for element in (target.elts if isinstance(target, ast.Tuple | ast.List) else [target])
    ]
    return [element for element in elements if isinstance(element, ast.Name)]


def iterate_names(tree: ast.Module) -> Iterator[tuple[str, str, int]]:
    """Yield (name, kind, line) of top-level names, members of classes, and all arguments."""

    def visit_body(body: Sequence[ast.stmt]) -> Iterator[tuple[str, str, int]]:
        for statement in body:
            if isinstance(statement, Function):
                yield statement.name, "function", statement.lineno
            elif isinstance(statement, ast.ClassDef):
                yield statement.name, "class", statement.lineno
                yield from visit_body(statement.body)
            elif isinstance(statement, ast.If | ast.Try):
                yield from visit_body([*statement.body, *statement.orelse])
            for target in assigned_names(statement):
                yield target.id, "value", target.lineno

    yield from visit_body(tree.body)
    for node in ast.walk(tree):
        if isinstance(node, Function):
            for argument in iterate_arguments(node):
                yield argument.arg, "argument", argument.lineno


def check_names(path: str, tree: ast.Module) -> Iterator[Finding]:
    """Yield the names of a file that are on the list of banned words."""
    stem = Path(path).stem
    if is_banned(stem, "file", path):
        yield Finding(path, 1, "banned-name", f"the file name {stem!r}")
    for name, kind, line in iterate_names(tree):
        if is_banned(name, kind, path):
            yield Finding(path, line, "banned-name", f"the {kind} {name!r}")


# ------------------------------------------------------------------------------ prose


@dataclass(frozen=True)
class Block:
    """A paragraph, a list item or a heading.

    Attributes:
        line: The line of a file that it begins at.
        lines: Its lines, as they stand in the file.
    """

    line: int
    lines: tuple[str, ...]


_FENCE = re.compile(r"\s*(```+|~~~+)")
_ITEM = re.compile(r"\s*(?:[-*+]|\d+[.)])\s+")
_OPENS_INDENTED = re.compile(r"(?:!!!|\?\?\?\+?|===) ")
_SECTION = re.compile(
    r"(Args|Arguments|Attributes|Example|Examples|Note|Notes|Raises|References|Returns|Shapes"
    r"|Warning|Warnings|Yields):\s*$"
)
_ENTRY = re.compile(r"    \**[\w.`]+(?: \([^)]*\))?: ")
_END_OF_SENTENCE = re.compile(r"[.!?][\"')\]*_]*\s+(?=[\"'(\[*_]*[A-Z0-9])")


def split_docs(text: str) -> list[Block]:
    """Return the blocks of a Markdown page without code, tables, comments and link targets."""
    blocks, current = list[Block](), list[tuple[int, str]]()
    fence, front, holds_indented, after_blank = "", False, False, True

    def close() -> None:
        if current:
            blocks.append(Block(current[0][0], tuple(line for _, line in current)))
            current.clear()

    # A comment keeps its newlines, so that line numbers stay right.
    text = re.sub(r"<!--.*?-->", lambda match: "\n" * match[0].count("\n"), text, flags=re.DOTALL)
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip().removeprefix("> ").strip()
        opening = _FENCE.match(line)
        if front or (number == 1 and stripped == "---"):
            front = number == 1 or stripped != "---"
            continue
        if fence or opening:
            close()
            if opening and not fence:
                fence = opening[1]
            elif stripped.startswith(fence) and not stripped.strip(fence[0]):
                fence = ""
            after_blank = True
            continue
        is_code = line.startswith("    ") and after_blank and not holds_indented
        if not stripped or is_code or stripped.startswith(("|", "<")) or stripped == ">":
            close()
            after_blank = not stripped or (is_code and after_blank)
            continue
        if re.match(r"\[[^\]]+\]: ", stripped):
            close()
            continue
        is_item, is_heading = bool(_ITEM.match(line)), stripped.startswith("#")
        if is_item or is_heading or _OPENS_INDENTED.match(stripped):
            close()
        if is_item or _OPENS_INDENTED.match(stripped):
            holds_indented = True
        elif not line.startswith(" ") and after_blank:
            holds_indented = False
        current.append((number, line))
        if is_heading:
            close()
        after_blank = False
    close()
    return blocks


def split_docstring(text: str, line: int) -> list[Block]:
    """Return the blocks of a docstring without doctests, code and tables.

    Args:
        text: The docstring as `inspect.cleandoc` returns it.
        line: The line of its first character.
    """
    blocks, current = list[Block](), list[tuple[int, str]]()
    in_doctest, in_code, in_section, after_blank, fence = False, False, False, False, ""

    def close() -> None:
        if current:
            blocks.append(Block(current[0][0], tuple(line for _, line in current)))
            current.clear()

    for number, content in enumerate(text.splitlines(), line):
        stripped = content.strip()
        opening = _FENCE.match(content)
        if opening or fence:
            close()
            fence = "" if fence else opening[1] if opening else ""
            continue
        if not stripped:
            close()
            in_doctest, after_blank = False, True
            continue
        if in_doctest or stripped.startswith(">>>"):
            close()
            in_doctest = True
            continue
        if not content.startswith(" "):
            in_code, in_section = False, bool(_SECTION.match(content))
            if in_section:
                close()
                after_blank = False
                continue
        elif after_blank and not in_section and not _ITEM.match(content):
            in_code = True
        if in_code or stripped.startswith("|"):
            continue
        entry = _ENTRY.match(content) if in_section else None
        if entry or _ITEM.match(content):
            close()
        current.append((number, content[entry.end() :] if entry else content))
        after_blank = False
    close()
    return blocks


def split_sentences(block: Block) -> list[tuple[int, str]]:
    """Return (line, sentence) for each sentence of a block; a code span counts as one word.

    >>> split_sentences(Block(3, ("- One `a. B` here. Two", "words. Three.")))
    [(3, '- One CODE here.'), (3, 'Two\\nwords.'), (4, 'Three.')]
    """
    text = "\n".join(block.lines)
    text = re.sub(r"(`+).+?\1", lambda match: f"CODE{_newlines(match[0])}", text, flags=re.DOTALL)
    text = re.sub(
        r"!?\[([^\]]*)\]\([^)\s]*\)",
        lambda match: f"{match[1]}{_newlines(match[0][len(match[1]) :])}",
        text,
    )
    sentences, start = list[tuple[int, str]](), 0
    ends = [match.end() for match in _END_OF_SENTENCE.finditer(text)]
    for end in (*ends, len(text)):
        sentence = text[start:end].strip()
        if sentence:
            first = start + len(text[start:end]) - len(text[start:end].lstrip())
            sentences.append((block.line + text.count("\n", 0, first), sentence))
        start = end
    return sentences


def _newlines(text: str) -> str:
    return "\n" * text.count("\n")


def count_words(sentence: str) -> int:
    """Return the number of words, without list markers and dashes.

    >>> count_words("- **A cursor** - it's CODE-like.")
    4
    """
    return len(re.findall(r"\S*\w\S*", _ITEM.sub("", sentence, count=1)))


def check_sentences(path: str, blocks: Iterable[Block]) -> Iterator[Finding]:
    """Yield the sentences that are too long."""
    for block in blocks:
        for line, sentence in split_sentences(block):
            words = count_words(sentence)
            if words > SENTENCE_WORDS:
                start = " ".join(sentence.split()[:6])
                yield Finding(path, line, "sentence", f"{words} words: {start} ...")


_PYTHON_BLOCK = re.compile(r"^ *```python[^\n]*\n(.*?)^ *```", re.DOTALL | re.MULTILINE)


def check_names_in_docs(path: str, text: str) -> Iterator[Finding]:
    """Yield the names on the list that the Python blocks of a page assign or define."""
    for block in _PYTHON_BLOCK.finditer(text):
        first = text.count("\n", 0, block.start(1))
        try:
            tree = ast.parse(textwrap.dedent(block[1]))
        except SyntaxError:  # the tests of the docs run each block
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                name = node.id
            elif isinstance(node, ast.arg):
                name = node.arg
            else:
                continue
            if name != "op" and (is_banned(name, "value", path) or name in BANNED_IN_DOCS):
                line = first + node.lineno
                yield Finding(path, line, "banned-name", f"the name {name!r} in an example")


def check_docs(path: str, text: str) -> Iterator[Finding]:
    """Yield the long lines, paragraphs and sentences of a page, and banned names of its examples."""
    yield from check_names_in_docs(path, text)
    blocks = split_docs(text)
    yield from check_sentences(path, blocks)
    for block in blocks:
        height = max(len(block.lines), len(textwrap.wrap(" ".join(block.lines), LINE_LENGTH)))
        if height > PARAGRAPH_LINES:
            yield Finding(path, block.line, "docs-paragraph", f"{height} lines")
        for number, line in enumerate(block.lines, block.line):
            marker = _ITEM.match(line)
            breakable = line[marker.end() if marker else 0 : LINE_LENGTH + 1].strip()
            if len(line) > LINE_LENGTH and " " in breakable:
                yield Finding(path, number, "docs-line", f"{len(line)} characters")


# ------------------------------------------------------------------------------ docstrings

_OPENING = re.compile(r"(What|Whether|How|Who|Of|The same)\b")


@dataclass(frozen=True)
class Docstring:
    """A docstring and its place in a file.

    Attributes:
        text: The text without its indentation.
        line: The line of its first character.
    """

    text: str
    line: int


def docstring_of(node: ast.Module | Definition) -> Docstring | None:
    """Return the docstring of a module, class or function."""
    first = node.body[0] if node.body else None
    if not (isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)):
        return None
    text = first.value.value
    if not isinstance(text, str):
        return None
    blank = len(text) - len(text.lstrip())
    return Docstring(inspect.cleandoc(text), first.value.lineno + text.count("\n", 0, blank))


def iterate_docstrings(tree: ast.Module) -> Iterator[Docstring]:
    """Yield all docstrings of a file."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | Function):
            docstring = docstring_of(node)
            if docstring:
                yield docstring


def check_docstrings(path: str, tree: ast.Module) -> Iterator[Finding]:
    """Yield the docstrings that open with a banned word, and their long sentences."""
    for docstring in iterate_docstrings(tree):
        opening = _OPENING.match(docstring.text)
        if opening:
            yield Finding(path, docstring.line, "docstring-opening", f"begins with {opening[1]!r}")
        yield from check_sentences(path, split_docstring(docstring.text, docstring.line))


# ------------------------------------------------------------------------------ public names

PACKAGE = "penstock"
PUBLIC = ("", "text", "media", "sources", "stores", "writing", "tasks", "testing")
# Every module and package in these is a public import path.
PUBLIC_PARENTS = ("integrations", "compat")
# These say what the caller did, not what the function found wrong.
NOT_DOCUMENTED = {"NotImplementedError", "StopIteration", "AssertionError", "AttributeError"}


class SourceTree:
    """The parsed files of a repository, and its public names, which it never imports."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._source = root / "src"
        self.parse = cache(self._parse)

    def _parse(self, path: str) -> ast.Module:
        text = (self._root / path).read_text(encoding="utf-8")
        try:
            return ast.parse(text, path)
        except SyntaxError as error:
            raise SystemExit(f"{path}:{error.lineno}: this is not Python: {error.msg}") from None

    def find_module(self, module: str) -> str | None:
        """Return the path of a module, relative to the root; `None` if there is no such file."""
        base = self._source.joinpath(*module.split("."))
        for path in (base.with_suffix(".py"), base / "__init__.py"):
            if path.is_file():
                return path.relative_to(self._root).as_posix()
        return None

    def public_modules(self) -> list[str]:
        """Return the modules that users import from."""
        modules = [f"{PACKAGE}.{name}".rstrip(".") for name in PUBLIC]
        for parent in PUBLIC_PARENTS:
            folder = self._source / PACKAGE / parent
            names = sorted(path.stem for path in folder.glob("[!_]*"))
            modules += [f"{PACKAGE}.{parent}", *(f"{PACKAGE}.{parent}.{name}" for name in names)]
        return [module for module in dict.fromkeys(modules) if self.find_module(module)]

    def public_names(self, module: str) -> list[str]:
        """Return `__all__` of a module; without one, the public names that it defines."""
        path = self.find_module(module)
        body = self.parse(path).body if path else []
        for statement in body:
            if "__all__" in [target.id for target in assigned_names(statement)]:
                value = getattr(statement, "value", None)
                elements = value.elts if isinstance(value, ast.List | ast.Tuple) else []
                return [str(item.value) for item in elements if isinstance(item, ast.Constant)]
        defined = [node.name for node in body if isinstance(node, Definition)]
        return [name for name in defined if not name.startswith("_")]

    def protocol_methods(self) -> frozenset[Signature]:
        """Return the methods with arguments of all protocols that have a docstring."""
        methods = set[Signature]()
        for path in sorted((self._source / PACKAGE).rglob("*.py")):
            for node in self.parse(path.relative_to(self._root).as_posix()).body:
                if not isinstance(node, ast.ClassDef) or docstring_of(node) is None:
                    continue
                if "Protocol" in [ast.unparse(base).partition("[")[0] for base in node.bases]:
                    methods |= {
                        signature_of(item) for item in node.body if isinstance(item, Function)
                    }
        return frozenset(signature for signature in methods if len(signature) > 1)

    def resolve(self, module: str, name: str) -> tuple[str, Definition] | None:
        """Return the file and the definition of a name, through imports and plain assignments.

        Constants, submodules and names of other packages have no definition here.
        """
        visited = set[tuple[str, str]]()
        while (module, name) not in visited:
            visited.add((module, name))
            path = self.find_module(module)
            if path is None:
                return None
            following = None
            for statement in _flat_body(self.parse(path).body):
                if isinstance(statement, Definition) and statement.name == name:
                    return path, statement
                following = following or self._follow(statement, module, path, name)
            if following is None:
                return None
            module, name = following
        return None

    def bases_of(self, path: str, node: ast.ClassDef) -> Iterator[tuple[str, ast.ClassDef]]:
        """Yield the file and the definition of each base of a class, except protocols.

        A method that `ps.Dataset` inherits is as public as one of its own.

        Args:
            path: The file of the class.
            node: Its definition.
        """
        module = ".".join(Path(path).relative_to("src").with_suffix("").parts)
        for base in node.bases:
            name = ast.unparse(base).partition("[")[0]
            resolved = self.resolve(module.removesuffix(".__init__"), name)
            if resolved is not None and isinstance(resolved[1], ast.ClassDef):
                bases = " ".join(ast.unparse(base) for base in resolved[1].bases)
                if "Protocol" not in bases:
                    yield resolved[0], resolved[1]
                    yield from self.bases_of(resolved[0], resolved[1])

    def _follow(
        self, statement: ast.stmt, module: str, path: str, name: str
    ) -> tuple[str, str] | None:
        if isinstance(statement, ast.ImportFrom):
            above = module.split(".")
            package = above if path.endswith("__init__.py") else above[:-1]
            base = package[: len(package) - statement.level + 1] if statement.level else []
            target = ".".join([*base, *filter(None, [statement.module])])
            for alias in statement.names:
                if (alias.asname or alias.name) == name:
                    return target, alias.name
        if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Name):
            if name in [target.id for target in assigned_names(statement)]:
                return module, statement.value.id
        return None


def _flat_body(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield statements, also those inside `if TYPE_CHECKING` and `try`."""
    for statement in body:
        yield statement
        if isinstance(statement, ast.If | ast.Try):
            yield from _flat_body([*statement.body, *statement.orelse])


def has_section(text: str, *names: str) -> bool:
    """Return whether a docstring has one of these Google sections."""
    return bool(re.search(rf"^(?:{'|'.join(names)}):\s*$", text, re.MULTILINE))


def raises_something(function: Function) -> bool:
    """Return whether a function raises an exception itself, apart from those it passes on."""
    pending: list[ast.AST] = list(function.body)
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Raise) and node.exc is not None:
            raised = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
            name = ast.unparse(raised).rpartition(".")[2]
            is_new = isinstance(node.exc, ast.Call) or name[:1].isupper()
            if is_new and name not in NOT_DOCUMENTED:
                return True
        if not isinstance(node, ast.Lambda | Definition):
            pending.extend(ast.iter_child_nodes(node))
    return False


def returns_something(function: Function, owner: str = "") -> bool:
    """Return whether the annotation of a function promises a value that needs a description.

    A step of a dataset returns the new dataset, and a builder an instance of its own class; the
    first line of the docstring describes both.

    Args:
        function: The function or method.
        owner: The class of a method.

    >>> def promises(annotation):
    ...     return returns_something(ast.parse(f"def f(self) -> {annotation}: ...").body[0], "A")
    >>> [promises(text) for text in ("int", "None", "ps.Dataset", "A", "Self")]
    [True, False, False, False, False]
    """
    annotation = ast.unparse(function.returns) if function.returns else "None"
    annotation = annotation.strip("'").rpartition(".")[2]
    return annotation not in ("None", "NoReturn", "Never", "Dataset", "Self", owner or "None")


def missing_sections(function: Function, text: str, owner: str = "") -> list[str]:
    """Return the sections that the docstring of a function lacks.

    A docstring that opens with "Return" or "Yield" needs no section for it.

    Args:
        function: The function or method.
        text: Its docstring.
        owner: The class of a method.
    """
    missing = list[str]()
    arguments = [name for name in iterate_arguments(function) if not name.arg.startswith("_")]
    if arguments and not has_section(text, "Args", "Arguments"):
        missing.append("Args")
    opens_with_value = re.match(r"(?:Asynchronously )?(?:Returns?|Yields?|Iterates?)\b", text)
    if returns_something(function, owner) and not opens_with_value:
        if not has_section(text, "Returns", "Yields"):
            missing.append("Returns")
    if raises_something(function) and not has_section(text, "Raises"):
        missing.append("Raises")
    return missing


def decorators_of(node: Definition) -> str:
    """Return the decorators of a definition as one text."""
    return " ".join(ast.unparse(decorator) for decorator in node.decorator_list)


Signature = tuple[str, ...]
"""The names of a method and of its arguments."""


def signature_of(method: Function) -> Signature:
    """Return the names by which a class implements a method of a protocol."""
    return method.name, *(argument.arg for argument in iterate_arguments(method))


def check_function(
    path: str,
    function: Function,
    name: str,
    owner: str = "",
    protocols: Set[Signature] = frozenset(),
) -> Iterator[Finding]:
    """Yield what the docstring of a public function or method lacks.

    Args:
        path: The file of the function.
        function: Its definition.
        name: Its name in the message.
        owner: The class of a method.
        protocols: Methods of documented protocols; those who implement one need no sections.
    """
    decorators = decorators_of(function)
    if "overload" in decorators or ".setter" in decorators or "deleter" in decorators:
        return
    docstring = docstring_of(function)
    if docstring is None:
        yield Finding(path, function.lineno, "public-sections", f"{name} has no docstring")
        return
    if "property" in decorators:
        return  # it takes nothing, and its first line says what it is
    if owner and signature_of(function) in protocols:
        return
    missing = missing_sections(function, docstring.text, owner)
    if missing:
        yield Finding(
            path, function.lineno, "public-sections", f"{name} lacks {', '.join(missing)}"
        )


def check_class(
    path: str, node: ast.ClassDef, name: str, protocols: Set[Signature] = frozenset()
) -> Iterator[Finding]:
    """Yield what the docstrings of a public class and of its public methods lack.

    Args:
        path: The file of the class.
        node: Its definition.
        name: Its name in the messages.
        protocols: Methods of documented protocols, as in `check_function`.
    """
    docstring = docstring_of(node)
    if docstring is None:
        yield Finding(path, node.lineno, "public-sections", f"{name} has no docstring")
    methods = [method for method in node.body if isinstance(method, Function)]
    texts, missing = [docstring.text if docstring else ""], list[str]()
    constructors = [
        method for method in methods if method.name in ("__init__", "__new__", "__post_init__")
    ]
    for method in constructors:
        inner = docstring_of(method)
        texts.append(inner.text if inner else "")
    text = "\n".join(texts)
    for method in constructors:
        missing += [part for part in missing_sections(method, text) if part != "Returns"]
    bases = " ".join(ast.unparse(base) for base in node.bases)
    is_record = "dataclass" in decorators_of(node) or re.search(r"NamedTuple|TypedDict", bases)
    fields = [
        target
        for statement in node.body
        if isinstance(statement, ast.AnnAssign) and "ClassVar" not in ast.unparse(statement)
        for target in assigned_names(statement)
        if not target.id.startswith("_")
    ]
    if is_record and fields and not has_section(text, "Args", "Arguments", "Attributes"):
        missing.append("Args")
    if docstring and missing:
        parts = ", ".join(dict.fromkeys(missing))
        yield Finding(path, node.lineno, "public-sections", f"{name} lacks {parts}")
    yield from check_methods(path, node, name, protocols)


def check_methods(
    path: str, node: ast.ClassDef, name: str, protocols: Set[Signature] = frozenset()
) -> Iterator[Finding]:
    """Yield what the docstrings of the public methods of a class lack.

    Args:
        path: The file of the class.
        node: The class that defines the methods.
        name: The public name of the class that has them.
        protocols: Methods of documented protocols, as in `check_function`.
    """
    for method in node.body:
        if not isinstance(method, Function) or method.name.startswith("_"):
            continue
        inherits = bool(node.bases) and docstring_of(method) is None  # the docstring of its base
        if not inherits and "abstractmethod" not in decorators_of(method):
            yield from check_function(path, method, f"{name}.{method.name}", node.name, protocols)


def check_public(tree: SourceTree) -> Iterator[Finding]:
    """Yield the public names whose docstrings lack a section, each definition once."""
    checked, protocols = set[tuple[str, int]](), tree.protocol_methods()
    for module in tree.public_modules():
        for name in tree.public_names(module):
            resolved = tree.resolve(module, name)
            if resolved is None:
                continue
            path, node = resolved
            if (path, node.lineno) in checked:
                continue
            checked.add((path, node.lineno))
            if not isinstance(node, ast.ClassDef):
                yield from check_function(path, node, name)
                continue
            yield from check_class(path, node, name, protocols)
            for base_path, base in tree.bases_of(path, node):
                if (base_path, base.lineno) not in checked:
                    checked.add((base_path, base.lineno))
                    yield from check_methods(base_path, base, name, protocols)


# ------------------------------------------------------------------------------ files and counts

Counts = dict[str, dict[str, int]]
"""The number of findings, by rule and file."""


def list_files(root: Path, paths: Iterable[str]) -> list[str]:
    """Return the Python and Markdown files under paths that exist, relative to the root."""
    files = set[str]()
    for path in paths:
        full = root / path
        found = [full] if full.is_file() else full.rglob("*")
        for file in found:
            name = file.relative_to(root)
            is_hidden = any(part.startswith(".") or part == "__pycache__" for part in name.parts)
            if file.suffix in (".py", ".md") and file.is_file() and not is_hidden:
                files.add(name.as_posix())
    return sorted(files)


def is_docs(path: str) -> bool:
    """Return whether the rules of docs hold for a file: README.md, CONTRIBUTING.md, docs/*.md."""
    return path in ("README.md", "CONTRIBUTING.md") or (
        path.startswith("docs/") and path.endswith(".md")
    )


def check(root: Path, files: Sequence[str]) -> list[Finding]:
    """Return all findings in some files of a repository, in the order of files and lines.

    Args:
        root: The root of the repository.
        files: Paths relative to it, as `list_files` returns them.
    """
    tree, findings, selected = SourceTree(root), list[Finding](), set(files)
    for path in files:
        if path.endswith(".py"):
            parsed = tree.parse(path)
            findings += [*check_names(path, parsed), *check_docstrings(path, parsed)]
        elif is_docs(path):
            findings += check_docs(path, (root / path).read_text(encoding="utf-8"))
    findings += [finding for finding in check_public(tree) if finding.path in selected]
    return sorted(findings)


def count_findings(findings: Iterable[Finding]) -> Counts:
    """Return the number of findings, by rule and file."""
    counts: Counts = {rule: {} for rule in RULES}
    for finding in findings:
        of_rule = counts[finding.rule]
        of_rule[finding.path] = of_rule.get(finding.path, 0) + 1
    return counts


def beyond(counts: Counts, allowed: Counts) -> list[tuple[str, str]]:
    """Return the (rule, file) pairs with more findings than allowed."""
    return [
        (rule, path)
        for rule, by_path in counts.items()
        for path, count in by_path.items()
        if count > allowed.get(rule, {}).get(path, 0)
    ]


def stale(counts: Counts, allowed: Counts, files: Iterable[str] | None = None) -> list[str]:
    """Return a message for each allowance that is larger than its count.

    Args:
        counts: The findings there are.
        allowed: The findings there may be.
        files: The files that were checked; `None` if all were.
    """
    checked = None if files is None else set(files)
    return [
        f"{path}: {rule}: {limit} allowed, {counts.get(rule, {}).get(path, 0)} found; "
        "run `python tools/words.py --update`"
        for rule, by_path in allowed.items()
        for path, limit in by_path.items()
        if (checked is None or path in checked) and limit > counts.get(rule, {}).get(path, 0)
    ]


def lowered(allowed: Counts, counts: Counts) -> Counts:
    """Return the allowances, none larger than its count and none larger than before."""
    return {
        rule: {
            path: min(limit, counts.get(rule, {}).get(path, 0))
            for path, limit in by_path.items()
            if counts.get(rule, {}).get(path, 0)
        }
        for rule, by_path in allowed.items()
    }


def moved_to(allowed: Counts, old: str, new: str) -> Counts:
    """Return the allowances with those of a renamed file added to those of its new name."""
    result: Counts = {}
    for rule, by_path in allowed.items():
        rest = {path: limit for path, limit in by_path.items() if path != old}
        if old in by_path:
            rest[new] = rest.get(new, 0) + by_path[old]
        result[rule] = rest
    return result


def read_allowed(root: Path) -> Counts | None:
    """Return the allowances of a repository; `None` if it has no file of them."""
    path = root / ALLOWED
    return json.loads(path.read_text(encoding="utf-8"))["allowed"] if path.is_file() else None


def write_allowed(root: Path, allowed: Counts) -> None:
    """Write the allowances, sorted and one file a line, so that branches merge."""
    ordered = {rule: dict(sorted(by_path.items())) for rule, by_path in sorted(allowed.items())}
    text = json.dumps({"note": NOTE, "allowed": ordered}, indent=1)
    (root / ALLOWED).write_text(f"{text}\n", encoding="utf-8")


# ------------------------------------------------------------------------------ the census

VERBS = frozenset(
    """
    account add append apply ask assert begin bind build cache call change check choose clear close
    collect combine compare compile compute convert copy count create cut decode delete derive
    describe draw drop encode end estimate evict fail fill find finish fold follow format gather
    generate get give go group hash have hold import include index insert iterate join keep leave
    let list load locate log look make map mark measure merge mix move name note open pack pad parse
    pass prepare print propagate put raise read record refuse register release remove rename repeat
    replace report require reserve reset resolve restore resume return rewrite run save say schedule
    search select send serialize set shift show shuffle shut skip sort split start stop store submit
    sum take tell test trim truncate turn unpack update validate verify wait warn wrap write yield
    """.split()
)


@dataclass(frozen=True)
class Census:
    """The counts of names and docstrings by which a translation is measured.

    Attributes:
        names: Top-level functions and classes.
        one_word: Those of them that are one lower-case word.
        docstrings: Docstrings of modules, classes and functions.
        first_words: The number of docstrings for each first word.
        same: Docstrings that begin with "The same".
        banned: Names on the list of banned words.
    """

    names: int
    one_word: int
    docstrings: int
    first_words: Mapping[str, int]
    same: int
    banned: int

    @property
    def verbs(self) -> int:
        """The docstrings that begin with a verb, such as "Return" or "Returns"."""
        return sum(
            number
            for word, number in self.first_words.items()
            if {word.lower(), word.lower().removesuffix("s"), word.lower().removesuffix("es")}
            & VERBS
            and word[:1].isupper()
        )

    def __str__(self) -> str:
        words = " ".join(
            f"{word} {self.first_words.get(word, 0):,}"
            for word in ("The", "A", "What", "Whether", "How", "Who", "Of", "Where", "Which", "One")
        )
        return (
            f"top-level functions and classes: {self.names:,}\n"
            f"one lower-case word: {self.one_word:,} ({self.one_word / max(1, self.names):.0%})\n"
            f"banned names: {self.banned:,}\n"
            f"docstrings: {self.docstrings:,}\n"
            f"begin with a verb: {self.verbs:,} ({self.verbs / max(1, self.docstrings):.0%})\n"
            f"begin with: {words}, The same {self.same:,}"
        )


def take_census(trees: Iterable[tuple[str, ast.Module]]) -> Census:
    """Return the counts of names and first words.

    Args:
        trees: The path and the parsed text of each file.
    """
    names, docstrings, banned = list[str](), list[str](), 0
    for path, tree in trees:
        names += [node.name.lstrip("_") for node in tree.body if isinstance(node, Definition)]
        docstrings += [docstring.text for docstring in iterate_docstrings(tree)]
        banned += sum(1 for _ in check_names(path, tree))
    return Census(
        names=len(names),
        one_word=sum(bool(re.fullmatch("[a-z]+", name)) for name in names),
        docstrings=len(docstrings),
        first_words=Counter(text.split()[0].rstrip(".,:;") for text in docstrings if text),
        same=sum(text.startswith("The same") for text in docstrings),
        banned=banned,
    )


# ------------------------------------------------------------------------------ the command


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description="Check that code and docs use the field's words.")
    parser.add_argument("paths", nargs="*", help=f"default: {' '.join(DEFAULT_PATHS)}")
    parser.add_argument("--root", type=Path, default=ROOT, help="the root of the repository")
    parser.add_argument("--all", action="store_true", help="print allowed findings too")
    parser.add_argument("--count", action="store_true", help="print a count for each rule")
    parser.add_argument(
        "--strict", action="store_true", help="fail on allowances that are too large"
    )
    parser.add_argument("--update", action="store_true", help="lower allowances, never raise one")
    parser.add_argument(
        "--move", nargs=2, metavar=("OLD", "NEW"), help="rename a file's allowances"
    )
    parser.add_argument(
        "--census", action="store_true", help="print counts of names and first words"
    )
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command.

    Args:
        arguments: The command line; that of the process if `None`.

    Returns:
        The exit status: 1 if there are findings beyond the allowances, else 0.
    """
    options = parse_arguments(arguments)
    root: Path = options.root.resolve()
    paths = [_relative(root, path) for path in options.paths]
    allowed = read_allowed(root)
    if options.move:
        write_allowed(root, moved_to(allowed or {}, *options.move))
        return 0
    present = [path for path in DEFAULT_PATHS if (root / path).exists()]
    files = list_files(root, paths or present)
    if options.census:
        tree = SourceTree(root)
        print(take_census((path, tree.parse(path)) for path in files if path.endswith(".py")))
        return 0
    findings = check(root, files)
    counts = count_findings(findings)
    if options.update:
        if paths:
            raise SystemExit("--update counts the whole repository: give no paths")
        allowed = counts if allowed is None else lowered(allowed, counts)
        write_allowed(root, allowed)
    allowed = allowed or {}
    exceeded = set(beyond(counts, allowed))
    for finding in findings:
        if options.all or (finding.rule, finding.path) in exceeded:
            print(finding)
    if options.count:
        for rule, by_path in counts.items():
            print(f"{sum(by_path.values()):6,}  {rule}: {RULES[rule]}")
    for rule, path in sorted(exceeded):
        limit = allowed.get(rule, {}).get(path, 0)
        print(f"{path}: {rule}: {counts[rule][path]} found, {limit} allowed")
    messages = stale(counts, allowed, files if paths else None) if options.strict else []
    print(*messages, sep="\n", end="\n" if messages else "")
    return 1 if exceeded or messages else 0


def _relative(root: Path, path: str) -> str:
    """Return a path of the command line relative to the root; it may be relative to either."""
    full = (root / path if (root / path).exists() else Path(path)).resolve()
    if not full.exists():
        raise SystemExit(f"{path}: there is no such file or folder")
    if not full.is_relative_to(root):
        raise SystemExit(f"{path}: it is not in {root}; name the repository with --root")
    return full.relative_to(root).as_posix()


if __name__ == "__main__":
    sys.exit(main())
