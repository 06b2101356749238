"""OLMo-core's mixes in text files: a label and the path of a token file in each line."""

from __future__ import annotations

from pathlib import Path

from ...errors import ConfigError
from ...mixture_files import MixtureFile, SourceEntry
from ...mixture_files.reading import MixtureNode
from ...stores.limits import MIXTURE_FILE, read_within
from .account import Account, Section, nothing
from .locations import Names, name_of_path

_PLACEHOLDER = "{TOKENIZER}"
_ORDER = "documents are shuffled and mixed; OLMo-core cuts files into rows, and shuffles these"
_TYPE = "raw token ids: read as uint32, as for the tokenizer dolma2; change dtype if that is wrong"


def read(path: Path) -> MixtureNode:
    """Return the lines of a mix as mappings with `label` and `path`.

    Args:
        path: the file.

    Raises:
        ConfigError: if it cannot be read, or a line is neither a path nor a label and a path.
    """
    file = str(path)
    try:
        lines = read_within(file, MIXTURE_FILE).decode().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from error
    entries = list[MixtureNode]()
    for number, line in enumerate(lines, start=1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        label, comma, location = text.partition(",")
        if not comma:
            label, location = name_of_path(str(Path(text).parent)), text
        if "," in location or not location.endswith((".npy", ".npy.gz")):
            raise ConfigError(
                f"{path}, line {number}: expected a label and the path of a .npy file, not {text!r:.80}: "
                "choose the format of another file with kind="
            )
        fields = {"label": label, "path": location.strip()}
        entries.append(
            MixtureNode(
                {name: MixtureNode(value, file, number) for name, value in fields.items()},
                file,
                number,
            )
        )
    return MixtureNode(tuple(entries), file, 1)


def is_mine(tree: MixtureNode) -> bool:
    return tree.file.endswith(".txt") and isinstance(tree.value, tuple) and bool(tree.value)


def convert(tree: MixtureNode, account: Account) -> MixtureFile:
    """Convert the mix: all tokens of all files once in a pass."""
    entries, names = tree.value if isinstance(tree.value, tuple) else (), Names()
    paths, first = dict[str, list[str]](), dict[str, Section]()
    for entry in entries:
        section = account.open(entry)
        label = section.text("label") or ""
        first.setdefault(label, section)
        paths.setdefault(label, []).append(section.text("path") or "")
    sources = list[SourceEntry]()
    for label, files in paths.items():
        name, section = names.of(label), first[label]
        located = account.files.of(name)
        if located is None and any(_PLACEHOLDER in file for file in files):
            section.report(
                "path",
                f"{_PLACEHOLDER} stands for the id of a tokenizer, such as allenai/dolma2-tokenizer, below "
                f"a base folder: give the location with files ({name}=PATH)",
            )
        resolved = (located,) if located is not None else section.local("path", name, files)
        sources.append(SourceEntry(name, resolved, dtype="uint32"))
    if not sources:
        raise nothing(Path(tree.file), "OLMo-core")
    account.note(tree, "", _TYPE)
    account.note(tree, "", _ORDER)
    return MixtureFile(tuple(sources), unit="tokens", temperature=1, stop="all_exhausted")
