"""YAML as a tree of values that know file and line: variables filled in, included files taken in,
nothing executed.

Plain scalars are read by the rules of YAML 1.2: `no`, `on` and `1:30` are texts, `1e9` is a number.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

from ..engine.base import machine, seams
from ..engine.base.hints import chosen
from ..engine.base.limits import INCLUDED_FILES, MIXTURE_FILE, MIXTURE_VALUES, NUMBER, YAML_DEPTH
from ..engine.base.urls import redacted, scheme_of
from ..engine.base.yaml import shallow
from ..errors import ConfigError, StorageError, storage
from ..stores import beside, is_remote, located

Scalar: TypeAlias = str | int | float | bool | None
Grant: TypeAlias = Literal["env", "local_files", "cache"]

GRANTS: tuple[Grant, ...] = get_args(Grant)
"""Rights that a mixture file from a URL has only if the caller names them; a local file has all."""

_NETWORK = frozenset(
    "http https s3 s3a gs gcs az azure abfs abfss adl hf oss r2 webhdfs hdfs gdrive".split()
)

_INT = re.compile(r"[-+]?[0-9][0-9_]*|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9][0-9_]*(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_WORDS: dict[str, Scalar] = {
    "": None,
    "~": None,
    "null": None,
    "true": True,
    "false": False,
    ".inf": float("inf"),
}
_VARIABLE = re.compile(r"\$\$\{|\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")
_KNOWN_TAGS = {
    f"tag:yaml.org,2002:{name}"
    for name in ("str", "int", "float", "bool", "null", "timestamp", "value", "merge", "map", "seq")
}


@dataclass(frozen=True)
class Node:
    """A value and where it stands: a scalar, a tuple of nodes, or names with their nodes (at the
    line of the name).

    A `spoiled` one could not be read, and that was noted.
    """

    value: Scalar | tuple[Node, ...] | dict[str, Node]
    file: str
    line: int
    spoiled: bool = False


@dataclass(frozen=True, order=True)
class Problem:
    """Something wrong in a mixture file. Severities: "error" (it cannot be loaded), "warning",
    "note".

    >>> print(Problem("mixture.yaml", 3, "sources.code.weight", "error", "a number of at least 0, not -1"))
    mixture.yaml, line 3, sources.code.weight: a number of at least 0, not -1
    """

    file: str
    line: int
    key: str
    severity: str
    message: str

    def __str__(self) -> str:
        return f"{self.file}, line {self.line}{', ' + self.key if self.key else ''}: {self.message}"


@dataclass
class Notes:
    """The problems found so far, the number of files read, and the grants of files from URLs."""

    problems: list[Problem] = field(default_factory=list[Problem])
    files: int = 0
    allow: frozenset[str] = frozenset()

    def error(self, node: Node, key: str, message: str) -> None:
        self._add(node, key, "error", message)

    def warn(self, node: Node, key: str, message: str) -> None:
        self._add(node, key, "warning", message)

    def permits(self, grant: Grant, node: Node, key: str, what: str) -> bool:
        """Return whether the file of a node may have `what`; a refusal is noted, with the
        remedy."""
        if grant in self.allow or not is_remote(node.file):
            return True
        remedy = f"if you trust it, allow=[{grant!r}] or --allow {grant} permits that"
        self.error(node, key, f"a mixture file from a URL may not {what}; {remedy}")
        return False

    def permits_path(self, path: str, node: Node, key: str) -> bool:
        """Return whether the file of a node may name a path: one from a URL names stores of the
        network alone."""
        known = is_remote(path) and scheme_of(path) in _NETWORK | {scheme_of(node.file)}
        return known or self.permits(
            "local_files", node, key, f"name {path!r}, which may lie on this machine"
        )

    def _add(self, node: Node, key: str, severity: str, message: str) -> None:
        """Messages quote what stands in the file: URLs, whose passwords are nobody's business."""
        self.problems.append(
            Problem(node.file, node.line, redacted(key), severity, redacted(message))
        )


def granted(allow: Collection[str]) -> frozenset[str]:
    """Return what a caller allows files from URLs; a name that is none of `GRANTS` is refused."""
    try:
        names = (allow,) if isinstance(allow, str) else tuple(allow)
    except TypeError:
        raise ConfigError(f"allow={allow!r}: a list of names ({', '.join(GRANTS)})") from None
    for name in names:
        chosen(name, GRANTS, "allow=[{}]")
    return frozenset(names)


def dotted(at: str, name: str) -> str:
    """The key of `name` below `at`."""
    return f"{at}.{name}" if at else name


def read_file(path: Path, notes: Notes, variables: bool = True) -> Node | None:
    """The tree of a YAML (or JSON) file; `None`, and a problem noted, where it cannot be read.

    `variables=False` leaves `${NAME}` as it stands, for files of others that may mean something
    else by it.
    """
    name = str(path)
    notes.files += 1
    try:
        text = seams.read_within(name, MIXTURE_FILE).decode()
        text = (
            text.replace("\t", " ") if path.suffix == ".json" else text
        )  # white space there, and an error in YAML
    except OSError as error:
        notes.problems.append(
            Problem(name, 1, "", "error", f"cannot be read: {error.strerror or error}")
        )
        return None
    except UnicodeDecodeError as error:
        notes.problems.append(Problem(name, 1, "", "error", f"not a text file: {error}"))
        return None
    return read_text(text, name, notes, variables)


def read_text(text: str, file: str, notes: Notes, variables: bool = True) -> Node | None:
    """The tree of a text; `file` is what problems call it."""
    try:
        yaml = shallow(text, "reading mixture files")
    except ValueError as error:
        notes.problems.append(Problem(file, 1, "", "error", str(error)))
        return None
    try:
        # Composing builds nodes with their places and constructs nothing.
        node = yaml.compose(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
        said = getattr(error, "problem", None) or str(error)
        line = mark.line + 1 if mark else 1
        notes.problems.append(Problem(file, line, "", "error", f"not valid YAML: {said}"))
        return None
    if node is None:
        notes.problems.append(Problem(file, 1, "", "error", "the file is empty"))
        return None
    return _Tree(file, notes, variables).node(node, "", 0)


def fill(text: str, notes: Notes, node: Node, key: str) -> str:
    """`${NAME}` and `${NAME:-default}` from the environment; `$${` stands for `${`."""

    def one(found: re.Match[str]) -> str:
        name, default = found.groups()
        if name is None:
            return "${"
        if not notes.permits("env", node, key, f"read the environment variable {name}"):
            return ""
        value = machine.environment(name)
        if value is None and default is None:
            notes.error(
                node,
                key,
                f"the environment variable {name} is not set; set it, or write "
                f"${{{name}:-default}}",
            )
        return default or "" if value is None else value

    return _VARIABLE.sub(one, text)


def scalar_of(text: str) -> Scalar:
    """What a plain scalar means.

    >>> [scalar_of(text) for text in ("10_000", "1e9", "no", "true", "~", "012")]
    [10000, 1000000000.0, 'no', True, None, 12]
    """
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    if len(text) > NUMBER:
        return text
    if _INT.fullmatch(text):
        return int(text.replace("_", ""), 16 if text.startswith("0x") else 10)
    if _FLOAT.fullmatch(text):
        return float(text.replace("_", ""))
    return text


class _Tree:
    """From the nodes of PyYAML to ours. Aliases are followed; what unfolds without end is
    refused."""

    def __init__(self, file: str, notes: Notes, variables: bool) -> None:
        self.file, self.notes, self.variables = file, notes, variables
        self.count = 0

    def node(self, node: Any, key: str, depth: int, at: int | None = None) -> Node:
        line: int = node.start_mark.line + 1 if at is None else at
        made = Node(None, self.file, line)
        self.count += 1
        if depth > YAML_DEPTH or self.count > MIXTURE_VALUES:
            if self.count <= MIXTURE_VALUES + 1:
                self.notes.error(
                    made, key, "the values are nested without end, or unfold to too many: an alias?"
                )
                self.count = MIXTURE_VALUES + 2
            return made
        if node.tag not in _KNOWN_TAGS:
            self.notes.error(
                made,
                key,
                f"the tag {node.tag!r} is not read: a mixture file holds plain values only",
            )
            return Node(None, self.file, line, spoiled=True)
        if node.id == "mapping":
            return Node(self.mapping(node, key, depth), self.file, line)
        if node.id == "sequence":
            items = [self.node(item, f"{key}[{i}]", depth + 1) for i, item in enumerate(node.value)]
            return Node(tuple(items), self.file, line)
        before = len(self.notes.problems)
        value = self.scalar(node, key, made)
        return Node(value, self.file, line, spoiled=len(self.notes.problems) > before)

    def mapping(self, node: Any, key: str, depth: int) -> dict[str, Node]:
        out: dict[str, Node] = {}
        merged: dict[str, Node] = {}
        for name_node, value in node.value:
            line = name_node.start_mark.line + 1
            here = Node(None, self.file, line)
            if name_node.id != "scalar":
                self.notes.error(here, key, "a name must be a plain text")
                continue
            name = str(name_node.value)
            if name == "<<" and not name_node.style:
                for other in value.value if value.id == "sequence" else [value]:
                    found = self.node(other, key, depth + 1).value
                    merged = {**(found if isinstance(found, dict) else {}), **merged}
                continue
            if name in out:
                self.notes.error(
                    here,
                    dotted(key, name),
                    f"{name!r} is here twice, first on line {out[name].line}",
                )
                continue
            out[name] = self.node(value, dotted(key, name), depth + 1, line)
        return {**merged, **out}

    def scalar(self, node: Any, key: str, made: Node) -> Scalar:
        text = str(node.value)
        if self.variables and "${" in text:
            return scalar_of(fill(text, self.notes, made, key))
        return text if node.style else scalar_of(text)


# ---------------------------------------------------------------- files that take in others


def read_included(path: Path, notes: Notes, chain: tuple[Path, ...] = ()) -> Node | None:
    """A mixture file with what it includes. Its own settings win over included ones, later includes
    over earlier ones; a source may be named in one place only.
    """
    tree = read_file(path, notes)
    if tree is None or not isinstance(tree.value, dict) or "include" not in tree.value:
        return tree
    asked = tree.value["include"]
    merged: dict[str, Node] = {}
    chain = (*chain, path.resolve())
    items = asked.value if isinstance(asked.value, tuple) else (asked,)
    for item in () if asked.spoiled else items:
        if not isinstance(item.value, str):
            notes.error(item, "include", "give a file, or a list of files")
            continue
        if (target := named(item, "include", notes)) is None or cycle(
            target, chain, item, "include", notes
        ):
            continue
        part = read_included(target, notes, chain)
        if part is not None and isinstance(part.value, dict):
            merged = _laid_over(merged, part.value, notes)
        elif part is not None:
            notes.error(part, "", "an included file holds settings and sources by name")
    own = {name: node for name, node in tree.value.items() if name != "include"}
    return Node(_laid_over(merged, own, notes), tree.file, tree.line)


def named(node: Node, key: str, notes: Notes) -> Path | None:
    """The mixture file that is named in another one, if it is there."""
    try:
        path = beside(node.file, str(node.value))
        if not notes.permits_path(path, node, key):
            return None
        with storage(target := located(path)):
            if target.is_file():
                target.resolve(strict=True)
                return target
        notes.error(node, key, f"there is no file {str(target)!r}")
    except (ConfigError, StorageError) as error:
        notes.error(node, key, str(error))
    return None


def cycle(target: Path, chain: tuple[Path, ...], node: Node, key: str, notes: Notes) -> bool:
    """Whether a file is already being read, or more of them than anybody writes; noted as a
    problem, once."""
    if target.resolve() in chain:
        round_ = " -> ".join(
            path.name for path in (*chain[chain.index(target.resolve()) :], target)
        )
        notes.error(node, key, f"the files include each other in a circle: {round_}")
        return True
    if len(chain) <= YAML_DEPTH and notes.files <= INCLUDED_FILES:
        return False
    if notes.files <= INCLUDED_FILES + 1:
        most = f"more than {YAML_DEPTH} deep, or more than {INCLUDED_FILES:,} of them"
        notes.error(node, key, f"files include files {most}")
        notes.files = INCLUDED_FILES + 2
    return True


def _laid_over(
    below: Mapping[str, Node], above: Mapping[str, Node], notes: Notes
) -> dict[str, Node]:
    out = {**below, **above}
    first, second = below.get("sources"), above.get("sources")
    if (
        first is None
        or second is None
        or not isinstance(first.value, dict)
        or not isinstance(second.value, dict)
    ):
        return out
    sources = dict(first.value)
    for name, node in second.value.items():
        if name in sources:
            other = sources[name]
            where = f"{other.file}, line {other.line}"
            notes.error(node, f"sources.{name}", f"{name!r} is here twice, first in {where}")
        else:
            sources[name] = node
    return {**out, "sources": Node(sources, second.file, second.line)}
