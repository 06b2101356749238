"""Command `penstock tokenize`: write the tokens of a mixture file as a token store."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from penstock.errors import ConfigError

from .common import (
    AllowOption,
    JsonOption,
    MixtureArgument,
    handle_errors,
    parse_local_path,
    print_result,
    print_text,
)
from .verify import WorkersOption, parse_executor

if TYPE_CHECKING:
    from penstock.mixture_files.model import SplitPart


@handle_errors
def tokenize(
    mixture: MixtureArgument,
    out: Annotated[
        Path,
        typer.Option(
            "-o", "--out", parser=parse_local_path, metavar="PATH", help="Folder of the store."
        ),
    ],
    part: Annotated[str, typer.Option(help="Part of a split: train or held_out.")] = "train",
    shard: Annotated[int, typer.Option(min=1, help="Samples per shard.")] = 10_000,
    max_bytes: Annotated[int, typer.Option(min=1, help="Maximum bytes per shard.")] = 1 << 30,
    executor: Annotated[
        str | None,
        typer.Option(
            help="Executor: inline, threads, processes or ray; default: processes with --workers, "
            "else inline."
        ),
    ] = None,
    workers: WorkersOption = None,
    allow: AllowOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write the tokens of a mixture as a token store; resumable.

    The store is byte-identical for any number of workers and restarts. It holds a folder for each
    source with tokenize or chat, and a mixture file over them.
    """
    from penstock.engine.base.shown import counted
    from penstock.mixture_files import format_problems, read_model
    from penstock.mixture_files.tokenize import MIXTURE_NAME
    from penstock.mixture_files.tokenize import tokenize as write_tokens

    model, problems = read_model(mixture, allow or ())
    errors = [problem for problem in problems if problem.severity == "error"]
    if model is None or errors:
        raise ConfigError(format_problems(errors))
    executor_name = parse_executor(executor or ("inline" if workers is None else "processes"))
    written = write_tokens(
        model,
        out,
        cast("SplitPart", part),
        shard=shard,
        max_bytes=max_bytes,
        executor=executor_name,
        workers=workers,
    )
    dropped = Counter[str]()
    for source in written.values():
        dropped.update(source.dropped)
    totals: dict[str, Any] = {
        name: sum(getattr(source, name) for source in written.values())
        for name in ("documents", "tokens", "trained", "files", "bytes")
    }

    def tell(console: Any) -> None:
        for name, source in written.items():
            print_text(
                console,
                f"{name}: {source.documents:,} documents, {source.tokens:,} tokens, "
                f"{source.trained:,} trained{_format_dropped(source.dropped)}",
            )
        print_text(
            console,
            f"{out}: {totals['tokens']:,} tokens in {counted(totals['files'], 'file')}, "
            f"{totals['bytes']:,} bytes; read them with {out / MIXTURE_NAME}",
        )

    sources = {name: {**asdict(one), "folder": str(one.folder)} for name, one in written.items()}
    result = {
        "out": str(out),
        "mixture": str(out / MIXTURE_NAME),
        **totals,
        "dropped": dict(sorted(dropped.items())),
        "sources": sources,
    }
    print_result(result, tell, as_json)


def _format_dropped(dropped: Any) -> str:
    reasons = ", ".join(
        f"{count:,} {reason.replace('_', ' ')}" for reason, count in dropped.items()
    )
    return f"; dropped {reasons}" if reasons else ""
