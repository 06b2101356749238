"""The account of every key of a foreign file: carried over, known to be harmless, or reported with
the reason.

Converters read files through `Section`, which marks each key that it hands out. `Account.close`
then walks over the
files and reports every key without a mark: a converter cannot drop one in silence, and a key that
    nobody knows is
never taken as harmless.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from ...engine.base.urls import redacted
from ...errors import ConfigError
from ...mixture_files import Problem
from ...mixture_files.reading import Node, dotted
from .arithmetic import Call
from .places import MAPPED, Files, Hub

NO_COUNTERPART = "has no counterpart in a mixture file"
EVALUATION = "only training data makes a mixture"
AWAY = "files cannot be read where they lie: copy them, and say where they are with files"
_UNKNOWN = (
    "is no key of {} files that is known here: it may decide which samples come, or their order"
)

Mark = Literal["carried", "opened", "harmless", "noted", "reported", "dropped"]
Reasons = Mapping[str, Sequence[str]]
"""A sentence -> the keys that it is said of."""


@dataclass(frozen=True, order=True)
class Key:
    """A key of a foreign file, and where it stands."""

    file: str
    line: int
    key: str


@dataclass
class Keys:
    """Every key of the files that were read, by what became of it."""

    carried: list[Key] = field(default_factory=list[Key])
    harmless: list[Key] = field(default_factory=list[Key])
    reported: list[Key] = field(default_factory=list[Key])


@dataclass
class Account:
    """The keys of the files that a conversion reads, what is reported of them, and where data lies
    here.

    Problems are warnings (what is lost) and notes (what one should know about the rest). `ranks` is
    how many ranks read data of their own, where the caller says it.
    """

    format: str = ""
    files: Files = field(default_factory=lambda: Files({}))
    ranks: int | None = None
    problems: list[Problem] = field(default_factory=list[Problem])
    _trees: list[Node] = field(default_factory=list[Node])
    _calls: dict[int, Call] = field(default_factory=dict[int, Call])
    _marks: dict[int, tuple[Node, set[Mark]]] = field(
        default_factory=dict[int, tuple[Node, set[Mark]]]
    )

    def open(self, tree: Node) -> Section:
        """The top of a file, each key of which will be accounted for."""
        if all(tree is not other for other in self._trees):
            self._trees.append(tree)
        return Section(tree, "", self)

    def open_call(self, call: Call, harmless: Iterable[str] = ()) -> None:
        """Account for each argument of a call in a Python file."""
        self._calls[id(call)] = call
        call.harmless.update(harmless)

    def mark(self, node: Node, mark: Mark) -> None:
        self._marks.setdefault(id(node), (node, set()))[1].add(mark)

    def marks(self, node: Node) -> set[Mark]:
        return self._marks[id(node)][1] if id(node) in self._marks else set()

    def report(self, node: Node, at: str, why: str) -> None:
        """Say that something is lost."""
        self.mark(node, "reported")
        self.problems.append(Problem(node.file, node.line, at, "warning", redacted(why)))

    def note(self, node: Node, at: str, why: str) -> None:
        """Say what one should know."""
        self.mark(node, "noted")
        self.problems.append(Problem(node.file, node.line, at, "note", redacted(why)))

    def note_remote(self, node: Node, at: str, scheme: str) -> None:
        """Say once that files lie elsewhere."""
        why = f"{scheme}:// {AWAY}"
        if all(problem.message != why for problem in self.problems):
            self.note(node, at, why)

    def close(self) -> Keys:
        """Report every key that no converter asked for, and list all keys by what became of
        them."""
        keys = Keys()
        for tree in self._trees:
            self._close(tree, "", keys)
        for call in self._calls.values():
            self._close_call(call, keys)
        return keys

    def _close(self, node: Node, at: str, keys: Keys) -> None:
        if isinstance(node.value, tuple):
            for number, item in enumerate(node.value):
                place, marks = f"{at}[{number}]", self.marks(item)
                if "reported" in marks:
                    keys.reported.append(Key(item.file, item.line, place))
                if "dropped" not in marks:
                    self._close(item, place, keys)
        elif isinstance(node.value, dict):
            for name, child in node.value.items():
                place, marks = dotted(at, name), self.marks(child)
                if not marks:
                    self.report(child, place, _UNKNOWN.format(self.format))
                self._listed(marks, keys).append(Key(child.file, child.line, place))
                if marks & {"carried", "opened"} and "dropped" not in marks:
                    self._close(child, place, keys)

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
                self.report(Node(None, call.file, call.line), key.key, _UNKNOWN.format(self.format))


@dataclass
class Section:
    """One mapping of a foreign file. Every method that takes a key marks it in the account."""

    node: Node
    at: str
    account: Account

    @property
    def table(self) -> Mapping[str, Node]:
        return self.node.value if isinstance(self.node.value, dict) else {}

    @property
    def folder(self) -> Path:
        return Path(self.node.file).absolute().parent

    def has(self, key: str) -> bool:
        """Return whether a key has a value, without marking it as read."""
        return key in self.table and self.table[key].value is not None

    def peek(self, key: str) -> Any:
        """The plain value of a key that is not marked: it decides something, and is not itself
        carried over."""
        return plain(self.table[key]) if key in self.table else None

    def get(self, key: str, default: Any = None) -> Any:
        """The plain value of a key that is carried over."""
        if not self.has(key):
            self.pass_over(key)
            return default
        self.account.mark(self.table[key], "carried")
        return plain(self.table[key])

    def number(self, key: str) -> float | None:
        """A number of at least 0; another value is reported."""
        value = self.get(key)
        if isinstance(value, str):  # some write numbers as text
            try:
                value = float(value)
            except ValueError:
                pass
        if value is None or (
            isinstance(value, int | float) and not isinstance(value, bool) and value >= 0
        ):
            return value
        self.report(key, f"{value!r} is no number of at least 0")
        return None

    def weight(self, key: str) -> float:
        """A number of at least 0 that has to be there."""
        value = self.number(key)
        if value is None and not self.has(key):
            self.report_at(key, "a number of at least 0 was expected here")
        return value or 0.0

    def count(self, key: str) -> int | None:
        """A whole number above 0; another value is reported."""
        value = self.number(key)
        if value is None or (1 <= value < float("inf") and value == int(value)):
            return None if value is None else int(value)
        self.report(key, f"{value!r} is no whole number above 0")
        return None

    def integer(self, key: str, default: int | None = None) -> int | None:
        """A whole number; another value is reported."""
        value = self.get(key, default)
        if value is None or (isinstance(value, int) and not isinstance(value, bool)):
            return value
        self.report(key, f"{value!r} is no whole number")
        return default

    def flag(self, key: str, default: bool = False) -> bool:
        """True or false; another value is reported."""
        value = self.get(key, default)
        if isinstance(value, bool):
            return value
        self.report(key, f"{value!r} is neither true nor false")
        return default

    def text(self, key: str) -> str | None:
        """A text; another value is reported."""
        value = self.get(key)
        if value is None or isinstance(value, str):
            return value
        self.report(key, f"{value!r} is no text")
        return None

    def texts(self, key: str) -> list[str]:
        """A text, or a list of them; another value is reported."""
        value = self.get(key)
        found = [] if value is None else list(flat([value]))
        if any(isinstance(one, dict) for one in found):
            self.report(key, "a text, or a list of texts, was expected here")
        return [str(one) for one in found if not isinstance(one, dict)]

    def part(self, key: str) -> Section | None:
        """The mapping at a key; another value is reported."""
        if not self.has(key):
            self.pass_over(key)
            return None
        if not isinstance(self.table[key].value, dict):
            self.report(key, "settings by name were expected here")
            return None
        self.account.mark(self.table[key], "opened")
        return Section(self.table[key], dotted(self.at, key), self.account)

    def parts(self, key: str) -> Iterator[Section]:
        """The mappings in the list at a key; other things in it are reported."""
        if not self.has(key):
            self.pass_over(key)
        elif not isinstance(self.table[key].value, tuple):
            self.report(key, "a list was expected here")
        else:
            self.account.mark(self.table[key], "opened")
            yield from parts_of(self.table[key], dotted(self.at, key), self.account)

    def named(self) -> Iterator[tuple[str, Section]]:
        """Name and mapping, where every value is one."""
        for name in self.table:
            if (part := self.part(name)) is not None:
                yield name, part
            elif not self.has(name):
                self.report_at(name, "settings by name were expected here")

    def report(self, key: str, why: str = NO_COUNTERPART) -> None:
        """Say that a key is lost, if it has a value."""
        self.pass_over(key) if not self.has(key) else self.report_at(key, why)

    def report_at(self, key: str, why: str) -> None:
        """Say that a key is lost, whatever its value."""
        self.account.report(self.table[key], dotted(self.at, key), why)

    def note(self, key: str, why: str) -> None:
        """Say what one should know about a key, if it has a value."""
        if self.has(key):
            self.account.note(self.table[key], dotted(self.at, key), why)
        else:
            self.pass_over(key)

    def drop(self, why: str) -> None:
        """Say that all of this mapping is lost."""
        self.account.report(self.node, self.at, why)
        self.account.mark(self.node, "dropped")

    def pass_over(self, *keys: str) -> None:
        """Keys that say nothing about which samples come, in what order, shares and form; and those
        without a value."""
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
        """Account for the keys that were not asked for, and that are known.

        A setting is reported or noted where it has a value, and another one than its `usual` one,
        which is false where that does not say.
        """
        waiting = {key: node for key, node in self.table.items() if not self.account.marks(node)}
        for reasons, say in ((reported or {}, self.report), (noted or {}, self.note)):
            for why, key in (
                (why, key) for why, keys in reasons.items() for key in keys if key in waiting
            ):
                off, value = (usual or {}).get(key, False), waiting[key].value
                self.pass_over(key) if value is off or (
                    isinstance(off, str) and value == off
                ) else say(key, why)
        self.pass_over(*(key for key in waiting if key in harmless))

    def path(self, path: str) -> str:
        """A path as it is meant: relative to the file, or remote."""
        return path if "://" in path or path.startswith("~") else str(self.folder / path)

    def local(self, key: str, name: str, paths: Sequence[str]) -> tuple[str, ...]:
        """Paths of the source `name`: where the caller says they lie here, relative to the file, or
        remote."""
        files = self.account.files
        if (own := files.of(name)) is not None:
            return (own,)
        found = tuple(files.moved(path) or self.path(path) for path in paths)
        gone = [
            path
            for path in paths
            if "://" not in path and not path.startswith("/") and self._nothing(path)
        ]
        if gone and not files.moved(gone[0]):
            self.note(
                key,
                f"{gone[0]!r} is taken as beside this file, where there is nothing: say where "
                "with files",
            )
        if elsewhere := next((path for path in found if "://" in path), None):
            self.account.note_remote(
                self.table.get(key, self.node), dotted(self.at, key), elsewhere.split("://")[0]
            )
        return found

    def _nothing(self, path: str) -> bool:
        return (
            not any(letter in path for letter in "*?[{")
            and not Path(self.path(path)).expanduser().exists()
        )

    def dataset(
        self, key: str, name: str, place: Hub, config: str, split: str, local: Sequence[str] = ()
    ) -> tuple[str, ...]:
        """Return the paths of what `load_dataset` reads: `local` ones, or a dataset of the hub,
        wherever it lies here.

        A dataset of the hub is never a folder beside the file. Files have neither configurations
            nor splits: where they
        are what is read, those of the keys `config` and `split` are reported, unless the caller
        says where the source lies.
        """
        files = self.account.files
        if (own := files.of(name)) is not None:
            return (own,)
        home = None if local else files.of(place.name)
        if local or place.files or home:
            why = f"files have no configurations and no splits: say which are of this one with files ({name}=PATH)"
            self.report(config, why) if place.config else None
            self.report(split, why) if place.split not in (None, "train") else None
        if local:
            if (
                self.has(split)
                and place.split == "train"
                and not all(Path(path).suffix for path in local)
            ):
                self.note(split, "all files of the folder are read: name those of this split")
            return self.local(key, name, local)
        if home is not None:
            inside = () if Path(home).suffix else place.files
            return tuple(f"{home.rstrip('/')}/{file}" for file in inside) or (home,)
        what = f"the split {place.split!r} of a dataset" if place.split else "a dataset"
        self.note(
            key,
            f"{what} of the Hugging Face hub: {MAPPED.format(name if place.part else place.name)}",
        )
        return place.paths


def parts_of(node: Node, at: str, account: Account) -> Iterator[Section]:
    """The mappings in a list; other things in it are reported."""
    for number, item in enumerate(node.value if isinstance(node.value, tuple) else ()):
        if isinstance(item.value, dict):
            yield Section(item, f"{at}[{number}]", account)
        else:
            account.report(item, f"{at}[{number}]", "settings by name were expected here")


def plain(node: Node) -> Any:
    """A node as plain values."""
    if isinstance(node.value, dict):
        return {name: plain(child) for name, child in node.value.items()}
    return [plain(child) for child in node.value] if isinstance(node.value, tuple) else node.value


def flat(values: Iterable[Any]) -> Iterator[Any]:
    """Lists in lists, flattened."""
    for value in values:
        if isinstance(value, list):
            yield from flat(value)  # pyright: ignore[reportUnknownArgumentType]
        else:
            yield value


def nothing(file: Path, kind: str) -> ConfigError:
    """The error for a file of which nothing remains."""
    return ConfigError(
        f"{file}: there is no source in this {kind} file that a mixture file could hold"
    )
