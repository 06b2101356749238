"""Limits on sizes in files, headers and server responses, checked before memory is allocated.

`docs/limits.md` lists every limit; a test compares the two.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from . import storage
from .remote import is_remote
from .storage import make_too_large_error, read_regular
from .urls import is_url

MIXTURE_FILE: Final = 8 << 20
"""Bytes of a mixture file, of a file that it includes, and of a configuration that is converted."""

INCLUDED_FILES: Final = 1_000
"""Files that one mixture file may include, directly and indirectly."""

YAML_DEPTH: Final = 60
"""Levels of nesting in a YAML file, and of files that include files."""

YAML_VALUES: Final = 1_000_000
"""Values in a YAML file."""

MIXTURE_VALUES: Final = 50_000
"""Values of a mixture file after its aliases are followed."""

NUMBER: Final = 100
"""Characters of a number in a mixture file; a longer one is a string."""

PROBLEMS: Final = 100
"""Problems of a file for which a similar name is suggested."""

KEYS_FILE: Final = 1 << 30
"""Bytes of a file that lists samples to exclude."""

TOKENIZER: Final = 256 << 20
"""Bytes of a `tokenizer.json`."""

RENDERED: Final = 64 << 20
"""Characters of a conversation that a chat template renders, and of each text that it makes."""

TEMPLATE_STEPS: Final = 20_000_000
"""Items of loops, calls and filters of a chat template for one conversation."""

STATE: Final = 256 << 20
"""Bytes of the state of one rank."""

RANKS: Final = 1 << 20
"""Ranks of a run, and in the name of a state."""

METADATA: Final = 256 << 20
"""Bytes of a JSON or YAML file about data: `index.json`, `.info.json`, ledgers, table logs."""

LINE: Final = 256 << 20
"""Bytes of a line of text or JSON."""

CSV_ROW: Final = 64 << 20
"""Bytes of a row of CSV."""

ARRAY: Final = 256 << 20
"""Bytes of a `.json` file that is one array."""

DECODED: Final = 512 << 20
"""Bytes in memory of a line, of a `.json` array, and of rows that are decoded together."""

CSV_COLUMNS: Final = 20_000
"""Columns of a CSV file."""

BATCH: Final = 1 << 24
"""Samples of a batch."""

PARTS: Final = 10_000
"""Inputs that `partition_by` makes."""

OBJECT: Final = 1 << 50
"""Bytes of an object, as a server reports them."""

ANSWER: Final = 8 << 20
"""Bytes of a complete response of a web server without range requests."""


def read_within(path: str, limit: int, *, pinned: bool = False) -> bytes:
    """Read a whole file of a store or of this machine.

    Args:
        path: the file, or the URL of an object.
        limit: the most bytes it may have.
        pinned: read the version of an object that this process saw first. By default the current
            one, as of a local file: what is read whole is not in use afterwards.

    Returns:
        The bytes.

    Raises:
        OSError: if the file is missing, or larger than `limit`.
    """
    store = storage.world.store
    if not is_url(path):
        return read_regular(Path(path), limit)
    refresh = None if pinned else getattr(store, "refresh", None)
    if refresh is not None and is_remote(path):
        refresh(path)
    if (size := store.stat(path).size) > limit:
        raise make_too_large_error(path, size, limit)
    return store.read(path)
