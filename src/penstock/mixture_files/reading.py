"""Parser of mixture files: YAML as a tree of values with file and line.

It substitutes variables, merges included files and executes nothing. Plain scalars follow YAML 1.2:
`no`, `on` and `1:30` are texts, `1e9` is a number.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

from ..arguments import check_choice
from ..engine.base import machine
from ..errors import ConfigError, StorageError, convert_storage_errors
from ..sources.yaml import require_shallow
from ..stores import is_remote, parse_location, resolve_beside
from ..stores.limits import (
    INCLUDED_FILES,
    MIXTURE_FILE,
    MIXTURE_VALUES,
    NUMBER,
    YAML_DEPTH,
    read_within,
)
from ..stores.urls import get_scheme, redact_urls

Scalar: TypeAlias = str | int | float | bool | None
Grant: TypeAlias = Literal["env", "local_files", "cache"]

GRANTS: tuple[Grant, ...] = get_args(Grant)
"""Rights that a caller may give to a mixture file from a URL; a local file has all of them."""

_NETWORK_SCHEMES = frozenset(
    "http https s3 s3a gs gcs az azure abfs abfss adl hf oss r2 webhdfs hdfs gdrive".split()
)

_INT_PATTERN = re.compile(r"[-+]?[0-9][0-9_]*|0x[0-9a-fA-F]+")
_FLOAT_PATTERN = re.compile(r"[-+]?(\.[0-9]+|[0-9][0-9_]*(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_SCALAR_WORDS: dict[str, Scalar] = {
    "": None,
    "~": None,
    "null": None,
    "true": True,
    "false": False,
    ".inf": float("inf"),
}
_VARIABLE_PATTERN = re.compile(r"\$\$\{|\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")
_KNOWN_TAGS = {
    f"tag:yaml.org,2002:{name}"
    for name in ("str", "int", "float", "bool", "null", "timestamp", "value", "merge", "map", "seq")
}


@dataclass(frozen=True)
class MixtureNode:
    """A value with file and line: a scalar, a tuple of nodes, or a dict of nodes by name.

    A child of a dict has the line of its name. A `spoiled` node could not be parsed; the parser has
    noted the problem.
    """

    value: Scalar | tuple[MixtureNode, ...] | dict[str, MixtureNode]
    file: str
    line: int
    spoiled: bool = False


@dataclass(frozen=True, order=True)
class Problem:
    """A problem of a mixture file.

    `severity` is "error" (the file does not load), "warning" or "note". `line` is 0 for a file that
    cannot be read.

    >>> print(Problem("mixture.yaml", 3, "sources.code.weight", "error", "a number of at least 0, not -1"))
    mixture.yaml, line 3, sources.code.weight: a number of at least 0, not -1
    """

    file: str
    line: int
    key: str
    severity: str
    message: str

    def __str__(self) -> str:
        line = f", line {self.line}" if self.line else ""
        return f"{self.file}{line}{', ' + self.key if self.key else ''}: {self.message}"


@dataclass
class ProblemLog:
    """Problems so far, number of files read, and the rights of files from URLs."""

    problems: list[Problem] = field(default_factory=list[Problem])
    files: int = 0
    allow: frozenset[str] = frozenset()

    def error(self, node: MixtureNode, key: str, message: str) -> None:
        self._add(node, key, "error", message)

    def warn(self, node: MixtureNode, key: str, message: str) -> None:
        self._add(node, key, "warning", message)

    def permits(self, grant: Grant, node: MixtureNode, key: str, what: str) -> bool:
        """Return True if the file of a node has a right; otherwise note an error with the remedy."""
        if grant in self.allow or not is_remote(node.file):
            return True
        remedy = f"if you trust it, pass allow=[{grant!r}] or --allow {grant}"
        self.error(node, key, f"a mixture file from a URL may not {what}; {remedy}")
        return False

    def permits_path(self, path: str, node: MixtureNode, key: str) -> bool:
        """Return True if the file of a node may name a path.

        A file from a URL may name network stores only, unless `local_files` is allowed.
        """
        known = is_remote(path) and get_scheme(path) in _NETWORK_SCHEMES | {get_scheme(node.file)}
        return known or self.permits(
            "local_files", node, key, f"name {path!r}, which may be a local path"
        )

    def _add(self, node: MixtureNode, key: str, severity: str, message: str) -> None:
        """Add a problem; messages quote the file, so passwords in URLs are redacted."""
        self.problems.append(
            Problem(node.file, node.line, redact_urls(key), severity, redact_urls(message))
        )


def check_rights(allow: Collection[str]) -> frozenset[str]:
    """Return the rights that a caller allows, or raise `ConfigError` for an unknown name."""
    try:
        names = (allow,) if isinstance(allow, str) else tuple(allow)
    except TypeError:
        raise ConfigError(f"allow={allow!r}: pass a list of names ({', '.join(GRANTS)})") from None
    for name in names:
        check_choice(name, GRANTS, "allow=[{}]")
    return frozenset(names)


def join_key(at: str, name: str) -> str:
    """Join a key and the name of a child."""
    return f"{at}.{name}" if at else name


def read_file(path: Path, notes: ProblemLog, variables: bool = True) -> MixtureNode | None:
    """Parse a YAML or JSON file; note a problem and return None if it cannot be read.

    Args:
        path: The file.
        notes: Receives the problems.
        variables: Substitute `${NAME}`; False for files of other projects.

    Returns:
        The tree.
    """
    name = str(path)
    notes.files += 1
    try:
        text = read_within(name, MIXTURE_FILE).decode()
        text = (
            text.replace("\t", " ") if path.suffix == ".json" else text
        )  # tabs are white space in JSON, and an error in YAML
    except OSError as error:
        notes.problems.append(
            Problem(name, 0, "", "error", f"cannot be read: {error.strerror or error}")
        )
        return None
    except UnicodeDecodeError as error:
        notes.problems.append(Problem(name, 1, "", "error", f"not a text file: {error}"))
        return None
    return read_text(text, name, notes, variables)


def read_text(
    text: str, file: str, notes: ProblemLog, variables: bool = True
) -> MixtureNode | None:
    """Parse a text; problems name it `file`."""
    try:
        yaml = require_shallow(text, "reading mixture files")
    except ValueError as error:
        notes.problems.append(Problem(file, 1, "", "error", str(error)))
        return None
    try:
        # `compose` builds nodes with positions; unlike `load`, it constructs no objects.
        node = yaml.compose(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
        message = getattr(error, "problem", None) or str(error)
        line = mark.line + 1 if mark else 1
        notes.problems.append(Problem(file, line, "", "error", f"not valid YAML: {message}"))
        return None
    if node is None:
        notes.problems.append(Problem(file, 1, "", "error", "the file is empty"))
        return None
    return _TreeConverter(file, notes, variables).node(node, "", 0)


def substitute_variables(text: str, notes: ProblemLog, node: MixtureNode, key: str) -> str:
    """Substitute `${NAME}` and `${NAME:-default}` from the environment; `$${` means `${`."""

    def substitute(match: re.Match[str]) -> str:
        name, default = match.groups()
        if name is None:
            return "${"
        if not notes.permits("env", node, key, f"read the environment variable {name}"):
            return ""
        value = machine.read_environment_variable(name)
        if value is None and default is None:
            notes.error(
                node,
                key,
                f"the environment variable {name} is not set; set it, or write "
                f"${{{name}:-default}}",
            )
        return default or "" if value is None else value

    return _VARIABLE_PATTERN.sub(substitute, text)


def parse_scalar(text: str) -> Scalar:
    """Return the value of a plain scalar.

    >>> [parse_scalar(text) for text in ("10_000", "1e9", "no", "true", "~", "012")]
    [10000, 1000000000.0, 'no', True, None, 12]
    """
    if text.lower() in _SCALAR_WORDS:
        return _SCALAR_WORDS[text.lower()]
    if len(text) > NUMBER:
        return text
    if _INT_PATTERN.fullmatch(text):
        return int(text.replace("_", ""), 16 if text.startswith("0x") else 10)
    if _FLOAT_PATTERN.fullmatch(text):
        return float(text.replace("_", ""))
    return text


class _TreeConverter:
    """Converts PyYAML nodes; follows aliases and reports endless expansion."""

    def __init__(self, file: str, notes: ProblemLog, variables: bool) -> None:
        self.file, self.notes, self.variables = file, notes, variables
        self.count = 0

    def node(self, node: Any, key: str, depth: int, at: int | None = None) -> MixtureNode:
        line: int = node.start_mark.line + 1 if at is None else at
        made = MixtureNode(None, self.file, line)
        self.count += 1
        if depth > YAML_DEPTH or self.count > MIXTURE_VALUES:
            if self.count <= MIXTURE_VALUES + 1:
                self.notes.error(
                    made,
                    key,
                    "the values are nested too deep, or expand to too many; check the aliases",
                )
                self.count = MIXTURE_VALUES + 2
            return made
        if node.tag not in _KNOWN_TAGS:
            self.notes.error(
                made,
                key,
                f"the tag {node.tag!r} is not supported: a mixture file holds plain values only",
            )
            return MixtureNode(None, self.file, line, spoiled=True)
        if node.id == "mapping":
            return MixtureNode(self.mapping(node, key, depth), self.file, line)
        if node.id == "sequence":
            items = [self.node(item, f"{key}[{i}]", depth + 1) for i, item in enumerate(node.value)]
            return MixtureNode(tuple(items), self.file, line)
        before = len(self.notes.problems)
        value = self.scalar(node, key, made)
        return MixtureNode(value, self.file, line, spoiled=len(self.notes.problems) > before)

    def mapping(self, node: Any, key: str, depth: int) -> dict[str, MixtureNode]:
        children: dict[str, MixtureNode] = {}
        merged: dict[str, MixtureNode] = {}
        for name_node, value in node.value:
            line = name_node.start_mark.line + 1
            position = MixtureNode(None, self.file, line)
            if name_node.id != "scalar":
                self.notes.error(position, key, "a name must be a plain text")
                continue
            name = str(name_node.value)
            if name == "<<" and not name_node.style:
                for other in value.value if value.id == "sequence" else [value]:
                    merged_value = self.node(other, key, depth + 1).value
                    merged = {**(merged_value if isinstance(merged_value, dict) else {}), **merged}
                continue
            if name in children:
                self.notes.error(
                    position,
                    join_key(key, name),
                    f"{name!r} appears twice, first on line {children[name].line}",
                )
                continue
            children[name] = self.node(value, join_key(key, name), depth + 1, line)
        return {**merged, **children}

    def scalar(self, node: Any, key: str, made: MixtureNode) -> Scalar:
        text = str(node.value)
        if self.variables and "${" in text:
            return parse_scalar(substitute_variables(text, self.notes, made, key))
        return text if node.style else parse_scalar(text)


# ---------------------------------------------------------------- include


def read_included(
    path: Path, notes: ProblemLog, chain: tuple[Path, ...] = ()
) -> MixtureNode | None:
    """Read a mixture file and merge the files it includes.

    Settings of the file override included ones; later includes override earlier ones. A source must
    be named in one file only.
    """
    tree = read_file(path, notes)
    if tree is None or not isinstance(tree.value, dict) or "include" not in tree.value:
        return tree
    include = tree.value["include"]
    merged: dict[str, MixtureNode] = {}
    chain = (*chain, path.resolve())
    items = include.value if isinstance(include.value, tuple) else (include,)
    for item in () if include.spoiled else items:
        if not isinstance(item.value, str):
            notes.error(item, "include", "expected a file or a list of files")
            continue
        if (target := resolve_included(item, "include", notes)) is None or has_include_cycle(
            target, chain, item, "include", notes
        ):
            continue
        included = read_included(target, notes, chain)
        if included is not None and isinstance(included.value, dict):
            merged = _merge_mappings(merged, included.value, notes)
        elif included is not None:
            notes.error(included, "", "an included file must hold settings and sources by name")
    own = {name: node for name, node in tree.value.items() if name != "include"}
    return MixtureNode(_merge_mappings(merged, own, notes), tree.file, tree.line)


def resolve_included(node: MixtureNode, key: str, notes: ProblemLog) -> Path | None:
    """Return the existing mixture file that a node names, or note an error."""
    try:
        path = resolve_beside(node.file, str(node.value))
        if not notes.permits_path(path, node, key):
            return None
        with convert_storage_errors(target := parse_location(path)):
            if target.is_file():
                target.resolve(strict=True)
                return target
        notes.error(node, key, f"there is no file {str(target)!r}")
    except (ConfigError, StorageError) as error:
        notes.error(node, key, str(error))
    return None


def has_include_cycle(
    target: Path, chain: tuple[Path, ...], node: MixtureNode, key: str, notes: ProblemLog
) -> bool:
    """Return True, and note an error once, if a file includes itself or too many files."""
    if target.resolve() in chain:
        cycle_names = " -> ".join(
            path.name for path in (*chain[chain.index(target.resolve()) :], target)
        )
        notes.error(node, key, f"the files include each other in a cycle: {cycle_names}")
        return True
    if len(chain) <= YAML_DEPTH and notes.files <= INCLUDED_FILES:
        return False
    if notes.files <= INCLUDED_FILES + 1:
        limits = f"more than {YAML_DEPTH} deep, or more than {INCLUDED_FILES:,} of them"
        notes.error(node, key, f"files include files {limits}")
        notes.files = INCLUDED_FILES + 2
    return True


def _merge_mappings(
    base: Mapping[str, MixtureNode], overrides: Mapping[str, MixtureNode], notes: ProblemLog
) -> dict[str, MixtureNode]:
    merged = {**base, **overrides}
    first, second = base.get("sources"), overrides.get("sources")
    if (
        first is None
        or second is None
        or not isinstance(first.value, dict)
        or not isinstance(second.value, dict)
    ):
        return merged
    sources = dict(first.value)
    for name, node in second.value.items():
        if name in sources:
            other = sources[name]
            first_position = f"{other.file}, line {other.line}"
            notes.error(
                node, f"sources.{name}", f"{name!r} appears twice, first in {first_position}"
            )
        else:
            sources[name] = node
    return {**merged, "sources": MixtureNode(sources, second.file, second.line)}
