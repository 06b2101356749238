"""Command `penstock lint`: all problems of mixture files in one run."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from .common import (
    AllowOption,
    JsonOption,
    handle_errors,
    parse_mixture_file,
    print_result,
    print_text,
)

SEVERITY_STYLES = {"error": "bold red", "warning": "yellow", "note": "dim"}


@handle_errors
def lint(
    mixtures: Annotated[
        list[Path], typer.Argument(parser=parse_mixture_file, help="Mixture files or their URLs.")
    ],
    strict: Annotated[bool, typer.Option(help="Exit with code 1 for warnings too.")] = False,
    allow: AllowOption = None,
    as_json: JsonOption = False,
) -> None:
    """Report all problems of mixture files, with file and line.

    With several files, also reports documents that one file trains on and another holds out. Exit
    code 1 if a file cannot be loaded.
    """
    from penstock.mixture_files import lint as problems_of
    from penstock.mixture_files.readers import ReaderRegistry

    readers = ReaderRegistry()
    problems = [
        problem
        for mixture in mixtures
        for problem in problems_of(mixture, readers=readers, allow=allow or ())
    ]
    counts = Counter(problem.severity for problem in problems)

    def tell(console: Any) -> None:
        for problem in problems:
            print_text(console, f"{problem.severity} {problem}", SEVERITY_STYLES[problem.severity])
        summary = [
            f"{counts[kind]} {kind}{'s' if counts[kind] > 1 else ''}"
            for kind in SEVERITY_STYLES
            if counts[kind]
        ]
        print_text(
            console, ", ".join(summary) or f"nothing wrong in {', '.join(map(str, mixtures))}"
        )

    print_result({"problems": [asdict(problem) for problem in problems]}, tell, as_json)
    raise typer.Exit(1 if counts["error"] or (strict and counts["warning"]) else 0)
