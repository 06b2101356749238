"""Command line interface, the script `penstock`: one file for each command.

A command parses arguments, asks the library, and prints text or JSON. The commands need the extra
`cli`; without it the script names the extra to install. May import every folder.
"""

from __future__ import annotations

import io
import os
import sys
from typing import TextIO

from penstock.errors import make_missing_extra_error


def main() -> None:
    """Run the command line (entry point of the script `penstock`)."""
    _open_closed_streams()
    try:
        from .app import app
    except ImportError as error:
        if error.name not in ("typer", "rich"):
            raise
        sys.exit(f"penstock: {make_missing_extra_error(error.name, 'cli', 'the command line')}")
    # Names of files and sources may hold what the encoding of the terminal lacks.
    stdout: object = sys.stdout
    if isinstance(stdout, io.TextIOWrapper):
        if stdout.errors == "strict":
            stdout.reconfigure(errors="backslashreplace")
        sys.stdout = _add_buffer(sys.stdout)
    app()


def _add_buffer(stream: TextIO) -> TextIO:
    """Return the stream with a buffer below it, which `PYTHONUNBUFFERED` leaves out.

    Without one, Python ignores that a full disk or a closed pipe took only a part of a write.
    """
    raw: object = stream.buffer
    if not isinstance(raw, io.FileIO):
        return stream
    return io.TextIOWrapper(
        io.BufferedWriter(raw), stream.encoding, stream.errors, line_buffering=True
    )


def _open_closed_streams() -> None:
    """Connect closed standard streams, as some daemons leave them, to the null device.

    Python sets such a stream to `None`, and the next file that is opened gets its descriptor, so
    that output of a worker process would land in a data file.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # gets the lowest free descriptor
