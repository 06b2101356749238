"""The command line, `penstock`. The commands need the extra `cli`; without it they say so."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line; the entry point of the script `penstock`."""
    try:
        import rich  # noqa: F401
        import typer  # noqa: F401
    except ImportError as error:
        sys.exit(f"penstock: the command line needs the package {error.name!r}: pip install 'penstock[cli]'")
    from .app import app

    app()
