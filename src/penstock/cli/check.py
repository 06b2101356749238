"""`penstock lint`: everything that is wrong in mixture files, in one go."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from .say import Allow, Json, answer, guarded, mixture_file, say

STYLES = {"error": "bold red", "warning": "yellow", "note": "dim"}


@guarded
def lint(
    mixtures: Annotated[
        list[Path], typer.Argument(parser=mixture_file, help="Mixture files, or their URLs.")
    ],
    strict: Annotated[bool, typer.Option(help="Warnings fail too.")] = False,
    allow: Allow = None,
    as_json: Json = False,
) -> None:
    """All that is wrong in mixture files, with file and line. Exit code 1 if one of them cannot be
    loaded.

    Of several files also what one trains on and another holds out.
    """
    from penstock.mixture_files import lint as problems_of
    from penstock.mixture_files.readers import Readers

    readers = Readers()
    problems = [
        problem
        for mixture in mixtures
        for problem in problems_of(mixture, readers=readers, allow=allow or ())
    ]
    counts = Counter(problem.severity for problem in problems)

    def tell(console: Any) -> None:
        for problem in problems:
            say(console, f"{problem.severity} {problem}", STYLES[problem.severity])
        said = [
            f"{counts[kind]} {kind}{'s' if counts[kind] > 1 else ''}"
            for kind in STYLES
            if counts[kind]
        ]
        say(console, ", ".join(said) or f"nothing wrong in {', '.join(map(str, mixtures))}")

    answer({"problems": [asdict(problem) for problem in problems]}, tell, as_json)
    raise typer.Exit(1 if counts["error"] or (strict and counts["warning"]) else 0)
