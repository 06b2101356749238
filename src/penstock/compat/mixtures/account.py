"""Account of every key of a foreign file: carried over, harmless, or reported.

Converters read files through `Section`, which marks each key that it returns. `Account.close` then
walks the files and reports every unmarked key. A converter therefore cannot drop a key silently,
and an unknown key never counts as harmless.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from ...errors import ConfigError
from ...mixture_files import Problem
from ...mixture_files.reading import MixtureNode, join_key
from ...stores.urls import redact_urls
from .arithmetic import Call
from .locations import MAPPED, Files, Hub

NO_COUNTERPART = "has no counterpart in a mixture file"
EVALUATION = "only training data makes a mixture"
AWAY = "files cannot be read remotely: copy them, and give their location with files"
_UNKNOWN = "is an unknown key of {} files: it may affect the samples, or their order"

Mark = Literal["carried", "opened", "harmless", "noted", "reported", "dropped"]
Reasons = Mapping[str, Sequence[str]]
"""A reason -> the keys that it applies to."""


@dataclass(frozen=True, order=True)
class Key:
    """A key of a foreign file, with its file and line."""

    file: str
    line: int
    key: str


@dataclass
class Keys:
    """Every key of the files that were read, by outcome."""

    carried: list[Key] = field(default_factory=list[Key])
    harmless: list[Key] = field(default_factory=list[Key])
    reported: list[Key] = field(default_factory=list[Key])


@dataclass
class Account:
    """The keys that a conversion reads, its problems, and the local locations of data.

    Problems are warnings (what is lost) and notes (what to know about the rest). `ranks` is the
    number of ranks that read their own data, if the caller gives it.
    """

    format: str = ""
    files: Files = field(default_factory=lambda: Files({}))
    ranks: int | None = None
    problems: list[Problem] = field(default_factory=list[Problem])
    _trees: list[MixtureNode] = field(default_factory=list[MixtureNode])
    _calls: dict[int, Call] = field(default_factory=dict[int, Call])
    _marks: dict[int, tuple[MixtureNode, set[Mark]]] = field(
        default_factory=dict[int, tuple[MixtureNode, set[Mark]]]
    )

    def open(self, tree: MixtureNode) -> Section:
        """Open the top level of a file, and account for each of its keys."""
        if all(tree is not other for other in self._trees):
            self._trees.append(tree)
        return Section(tree, "", self)

    def open_call(self, call: Call, harmless: Iterable[str] = ()) -> None:
        """Account for each argument of a call in a Python file."""
        self._calls[id(call)] = call
        call.harmless.update(harmless)

    def mark(self, node: MixtureNode, mark: Mark) -> None:
        self._marks.setdefault(id(node), (node, set()))[1].add(mark)

    def marks(self, node: MixtureNode) -> set[Mark]:
        return self._marks[id(node)][1] if id(node) in self._marks else set()

    def report(self, node: MixtureNode, key_path: str, reason: str) -> None:
        """Record a loss."""
        self.mark(node, "reported")
        self.problems.append(
            Problem(node.file, node.line, key_path, "warning", redact_urls(reason))
        )

    def note(self, node: MixtureNode, key_path: str, reason: str) -> None:
        """Record a note."""
        self.mark(node, "noted")
        self.problems.append(Problem(node.file, node.line, key_path, "note", redact_urls(reason)))

    def note_remote(self, node: MixtureNode, key_path: str, scheme: str) -> None:
        """Record once that files are remote."""
        reason = f"{scheme}:// {AWAY}"
        if all(problem.message != reason for problem in self.problems):
            self.note(node, key_path, reason)

    def close(self) -> Keys:
        """Report every unmarked key, and list all keys by outcome."""
        keys = Keys()
        for tree in self._trees:
            self._close(tree, "", keys)
        for call in self._calls.values():
            self._close_call(call, keys)
        return keys

    def _close(self, node: MixtureNode, key_path: str, keys: Keys) -> None:
        if isinstance(node.value, tuple):
            for number, item in enumerate(node.value):
                item_path, marks = f"{key_path}[{number}]", self.marks(item)
                if "reported" in marks:
                    keys.reported.append(Key(item.file, item.line, item_path))
                if "dropped" not in marks:
                    self._close(item, item_path, keys)
        elif isinstance(node.value, dict):
            for name, child in node.value.items():
                item_path, marks = join_key(key_path, name), self.marks(child)
                if not marks:
                    self.report(child, item_path, _UNKNOWN.format(self.format))
                self._listed(marks, keys).append(Key(child.file, child.line, item_path))
                if marks & {"carried", "opened"} and "dropped" not in marks:
                    self._close(child, item_path, keys)

    @staticmethod
    def _listed(marks: set[Mark], keys: Keys) -> list[Key]:
        if not marks or "reported" in marks:
            return keys.reported
        if marks & {"carried", "opened"}:
            return keys.carried
        return keys.reported if "noted" in marks else keys.harmless

    def _close_call(self, call: Call, keys: Keys) -> None:
        arguments = [*map(str, range(len(call.args))), *call.options]
        for name in arguments:
            key = Key(call.file, call.line, f"{call.name}({name})")
            if name in call.read:
                keys.carried.append(key)
            elif name in call.harmless:
                keys.harmless.append(key)
            else:
                keys.reported.append(key)
                self.report(
                    MixtureNode(None, call.file, call.line), key.key, _UNKNOWN.format(self.format)
                )


@dataclass
class Section:
    """One mapping of a foreign file; methods that take a key mark it in the account."""

    node: MixtureNode
    key_path: str
    account: Account

    @property
    def table(self) -> Mapping[str, MixtureNode]:
        return self.node.value if isinstance(self.node.value, dict) else {}

    @property
    def folder(self) -> Path:
        return Path(self.node.file).absolute().parent

    def has(self, key: str) -> bool:
        """Return whether a key has a value, without marking it as read."""
        return key in self.table and self.table[key].value is not None

    def peek(self, key: str) -> Any:
        """Return the plain value of a key without marking it, for decisions."""
        return plain(self.table[key]) if key in self.table else None

    def get(self, key: str, default: Any = None) -> Any:
        """Return the plain value of a key, and mark it as carried over."""
        if not self.has(key):
            self.pass_over(key)
            return default
        self.account.mark(self.table[key], "carried")
        return plain(self.table[key])

    def number(self, key: str) -> float | None:
        """Return a number of at least 0; report another value."""
        value = self.get(key)
        if isinstance(value, str):  # numbers may be written as text
            try:
                value = float(value)
            except ValueError:
                pass
        if value is None or (
            isinstance(value, int | float) and not isinstance(value, bool) and value >= 0
        ):
            return value
        self.report(key, f"{value!r} is not a number of at least 0")
        return None

    def weight(self, key: str) -> float:
        """Return a required number of at least 0; report another value."""
        value = self.number(key)
        if value is None and not self.has(key):
            self.report_at(key, "expected a number of at least 0")
        return value or 0.0

    def count(self, key: str) -> int | None:
        """Return a whole number above 0; report another value."""
        value = self.number(key)
        if value is None or (1 <= value < float("inf") and value == int(value)):
            return None if value is None else int(value)
        self.report(key, f"{value!r} is not a whole number above 0")
        return None

    def integer(self, key: str, default: int | None = None) -> int | None:
        """Return a whole number; report another value."""
        value = self.get(key, default)
        if value is None or (isinstance(value, int) and not isinstance(value, bool)):
            return value
        self.report(key, f"{value!r} is not a whole number")
        return default

    def flag(self, key: str, default: bool = False) -> bool:
        """Return true or false; report another value."""
        value = self.get(key, default)
        if isinstance(value, bool):
            return value
        self.report(key, f"{value!r} is neither true nor false")
        return default

    def text(self, key: str) -> str | None:
        """Return a text; report another value."""
        value = self.get(key)
        if value is None or isinstance(value, str):
            return value
        self.report(key, f"{value!r} is not a text")
        return None

    def texts(self, key: str) -> list[str]:
        """Return one text or several as a list; report another value."""
        value = self.get(key)
        items = [] if value is None else list(flat([value]))
        if any(isinstance(item, dict) for item in items):
            self.report(key, "expected a text, or a list of texts")
        return [str(item) for item in items if not isinstance(item, dict)]

    def part(self, key: str) -> Section | None:
        """Open the mapping at a key; report another value."""
        if not self.has(key):
            self.pass_over(key)
            return None
        if not isinstance(self.table[key].value, dict):
            self.report(key, "expected a mapping of settings")
            return None
        self.account.mark(self.table[key], "opened")
        return Section(self.table[key], join_key(self.key_path, key), self.account)

    def parts(self, key: str) -> Iterator[Section]:
        """Open the mappings in the list at a key; report other items."""
        if not self.has(key):
            self.pass_over(key)
        elif not isinstance(self.table[key].value, tuple):
            self.report(key, "expected a list")
        else:
            self.account.mark(self.table[key], "opened")
            yield from parts_of(self.table[key], join_key(self.key_path, key), self.account)

    def named(self) -> Iterator[tuple[str, Section]]:
        """Yield names and mappings, if every value is a mapping; report other values."""
        for name in self.table:
            if (part := self.part(name)) is not None:
                yield name, part
            elif not self.has(name):
                self.report_at(name, "expected a mapping of settings")

    def report(self, key: str, reason: str = NO_COUNTERPART) -> None:
        """Record the loss of a key, if it has a value."""
        self.pass_over(key) if not self.has(key) else self.report_at(key, reason)

    def report_at(self, key: str, reason: str) -> None:
        """Record the loss of a key, whatever its value."""
        self.account.report(self.table[key], join_key(self.key_path, key), reason)

    def note(self, key: str, reason: str) -> None:
        """Record a note on a key, if it has a value."""
        if self.has(key):
            self.account.note(self.table[key], join_key(self.key_path, key), reason)
        else:
            self.pass_over(key)

    def drop(self, reason: str) -> None:
        """Record the loss of this whole mapping."""
        self.account.report(self.node, self.key_path, reason)
        self.account.mark(self.node, "dropped")

    def pass_over(self, *keys: str) -> None:
        """Mark keys as harmless: without a value, or without effect on samples and order.

        Shares and form of samples count as effects too.
        """
        for key in keys:
            if key in self.table:
                self.account.mark(self.table[key], "harmless")

    def settle(
        self,
        harmless: Collection[str] = (),
        reported: Reasons | None = None,
        noted: Reasons | None = None,
        usual: Mapping[str, Any] | None = None,
    ) -> None:
        """Account for the known keys that were not read.

        A setting is reported or noted if its value differs from its `usual` one, which is false by
        default.
        """
        unread = {key: node for key, node in self.table.items() if not self.account.marks(node)}
        for reasons, record in ((reported or {}, self.report), (noted or {}, self.note)):
            for reason, key in (
                (reason, key) for reason, keys in reasons.items() for key in keys if key in unread
            ):
                usual_value, value = (usual or {}).get(key, False), unread[key].value
                self.pass_over(key) if value is usual_value or (
                    isinstance(usual_value, str) and value == usual_value
                ) else record(key, reason)
        self.pass_over(*(key for key in unread if key in harmless))

    def path(self, path: str) -> str:
        """Resolve a path relative to the file; leave remote ones unchanged."""
        return path if "://" in path or path.startswith("~") else str(self.folder / path)

    def local(self, key: str, name: str, paths: Sequence[str]) -> tuple[str, ...]:
        """Return the paths of the source `name`.

        The caller's locations take precedence; other paths are relative to the file, or remote.
        """
        files = self.account.files
        if (location := files.of(name)) is not None:
            return (location,)
        resolved = tuple(files.local_path(path) or self.path(path) for path in paths)
        missing = [
            path
            for path in paths
            if "://" not in path and not path.startswith("/") and self._is_missing(path)
        ]
        if missing and not files.local_path(missing[0]):
            self.note(
                key,
                f"{missing[0]!r} does not exist beside this file: give its location with files",
            )
        if remote := next((path for path in resolved if "://" in path), None):
            self.account.note_remote(
                self.table.get(key, self.node), join_key(self.key_path, key), remote.split("://")[0]
            )
        return resolved

    def _is_missing(self, path: str) -> bool:
        return (
            not any(letter in path for letter in "*?[{")
            and not Path(self.path(path)).expanduser().exists()
        )

    def dataset(
        self, key: str, name: str, hub: Hub, config: str, split: str, local: Sequence[str] = ()
    ) -> tuple[str, ...]:
        """Return the paths that `load_dataset` reads: `local` ones, or a hub dataset's location.

        A hub dataset is never a folder beside the file. Files have neither configurations nor
        splits: if files are read, the keys `config` and `split` are reported, unless the caller
        gives the location of the source.
        """
        files = self.account.files
        if (location := files.of(name)) is not None:
            return (location,)
        hub_location = None if local else files.of(hub.name)
        if local or hub.files or hub_location:
            reason = f"files have no configurations and no splits: name the files with files ({name}=PATH)"
            self.report(config, reason) if hub.config else None
            self.report(split, reason) if hub.split not in (None, "train") else None
        if local:
            if (
                self.has(split)
                and hub.split == "train"
                and not all(Path(path).suffix for path in local)
            ):
                self.note(split, "all files of the folder are read: name the files of this split")
            return self.local(key, name, local)
        if hub_location is not None:
            relative_files = () if Path(hub_location).suffix else hub.files
            return tuple(f"{hub_location.rstrip('/')}/{file}" for file in relative_files) or (
                hub_location,
            )
        description = f"the split {hub.split!r} of a dataset" if hub.split else "a dataset"
        self.note(
            key,
            f"{description} of the Hugging Face hub: "
            f"{MAPPED.format(name if hub.part else hub.name)}",
        )
        return hub.paths


def parts_of(node: MixtureNode, key_path: str, account: Account) -> Iterator[Section]:
    """Yield the mappings in a list; report other items."""
    for number, item in enumerate(node.value if isinstance(node.value, tuple) else ()):
        if isinstance(item.value, dict):
            yield Section(item, f"{key_path}[{number}]", account)
        else:
            account.report(item, f"{key_path}[{number}]", "expected a mapping of settings")


def plain(node: MixtureNode) -> Any:
    """Convert a node to plain values."""
    if isinstance(node.value, dict):
        return {name: plain(child) for name, child in node.value.items()}
    return [plain(child) for child in node.value] if isinstance(node.value, tuple) else node.value


def flat(values: Iterable[Any]) -> Iterator[Any]:
    """Flatten nested lists."""
    for value in values:
        if isinstance(value, list):
            yield from flat(value)  # pyright: ignore[reportUnknownArgumentType]
        else:
            yield value


def nothing(file: Path, kind: str) -> ConfigError:
    """Return the error for a file without convertible sources."""
    return ConfigError(
        f"{file}: this {kind} file has no source that a mixture file could name: check the file, "
        "or kind="
    )
