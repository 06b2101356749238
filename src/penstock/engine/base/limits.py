"""The most that files, headers and servers may claim or hold: what exceeds a limit is refused
before memory is taken.

`docs/limits.md` lists every limit; a test compares the two.
"""

from __future__ import annotations

from typing import Final

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
"""Characters of a number in a mixture file; what is longer is a text."""

PROBLEMS: Final = 100
"""Problems of a file for which a similar name is looked up."""

KEYS_FILE: Final = 1 << 30
"""Bytes of a file of samples to leave out."""

TOKENIZER: Final = 256 << 20
"""Bytes of a `tokenizer.json`."""

STATE: Final = 256 << 20
"""Bytes of the state of one rank."""

RANKS: Final = 1 << 20
"""Ranks of a run, and ranks that the name of a state may tell."""

METADATA: Final = 256 << 20
"""Bytes of a JSON or YAML file that describes data: `index.json`, `.info.json`, ledgers, table
logs."""

LINE: Final = 256 << 20
"""Bytes of a line of text or JSON."""

CSV_ROW: Final = 64 << 20
"""Bytes of a row of CSV."""

ARRAY: Final = 256 << 20
"""Bytes of a `.json` file that is one array."""

CSV_COLUMNS: Final = 20_000
"""Columns of a CSV file."""

BATCH: Final = 1 << 24
"""Samples of a batch."""

OBJECT: Final = 1 << 50
"""Bytes that a server may tell for one object."""

ANSWER: Final = 8 << 20
"""Bytes of a whole answer of a web server that gives no ranges."""
