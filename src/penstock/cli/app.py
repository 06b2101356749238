"""Typer application: registers every command under its heading in `penstock --help`."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, cast

import typer
from typer.core import TyperGroup

from penstock import __version__
from penstock.errors import (
    ConfigError,
    PenstockError,
    convert_storage_errors,
    make_missing_extra_error,
)

from . import plan
from .audit import audit
from .blame import blame
from .cache import cache as cache_app
from .check import lint
from .common import (
    JsonOption,
    handle_errors,
    parse_local_path,
    print_result,
    print_text,
    report_error,
)
from .convert import convert
from .edit import edit
from .explore import explore
from .find import find
from .info import info
from .prepare import prepare
from .preview import preview
from .replay import replay
from .run import run
from .seen import leaks, seen
from .tokenize import tokenize
from .top import top
from .verify import verify

# Base class of the parser's errors (unknown options, missing files); click does not export it
# through typer.
_UsageError = cast("type[Exception]", typer.BadParameter.__mro__[2])


def join_lines(text: str) -> str:
    r"""Join the lines of each paragraph of a help text, which then wraps at the terminal's width.

    Lists, code and tables keep their lines.

    >>> join_lines("One\nparagraph.\n\n- a list\n- of two\n\n    code\n    of two lines")
    'One paragraph.\n\n- a list\n- of two\n\n    code\n    of two lines'
    """
    paragraphs = re.split(r"\n[ \t]*\n", text)
    return "\n\n".join(
        paragraph
        if re.search(r"^(?:\s|[-*+>$|\b]|\d+[.)] )", paragraph, re.MULTILINE)
        else paragraph.replace("\n", " ")
        for paragraph in paragraphs
    )


class CommandGroup(TyperGroup):
    """Command group that also reports usage errors as JSON if `--json` is given."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        commands = [*self.commands.values()]
        while commands:
            command = commands.pop()
            command.help = command.help and join_lines(command.help)
            commands += getattr(command, "commands", {}).values()

    def main(self, args: Sequence[str] | None = None, *more: Any, **options: Any) -> Any:
        """Run the command named by the arguments."""
        if "--json" not in (sys.argv[1:] if args is None else args):
            return super().main(args, *more, **options)
        try:
            code = super().main(args, *more, **{**options, "standalone_mode": False})
        except _UsageError as error:
            usage_error: Any = error
            code = report_error(
                usage_error.format_message(), usage_error.exit_code, "UsageError", True
            ).exit_code
        sys.exit(code or 0)

    def invoke(self, ctx: Any) -> Any:
        """Run a command; redact URLs that a usage error quotes, since they may hold a password."""
        try:
            return super().invoke(ctx)
        except _UsageError as error:
            from penstock.stores.urls import redact_urls

            usage_error: Any = error
            message = re.sub(
                r"('.*') is not a valid int(?:eger)?(?: range)?\.",
                r"expected a whole number, not \1.",
                usage_error.message,
            )
            usage_error.message = redact_urls(message)
            raise


app = typer.Typer(cls=CommandGroup, no_args_is_help=True, pretty_exceptions_enable=False)


def _print_version(requested: bool) -> None:
    if requested:
        print(f"penstock {__version__}")
        raise typer.Exit


@app.callback()
def penstock(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """Penstock: mix, pack and deliver training data in an order known before the run starts."""


@handle_errors
def demo(
    out: Annotated[
        Path,
        typer.Option(
            parser=parse_local_path, metavar="PATH", help="Folder for data, journals and pictures."
        ),
    ] = Path("demo-data"),
    steps: Annotated[int, typer.Option(min=40, help="Number of training steps.")] = 400,
    as_json: JsonOption = False,
) -> None:
    """Kill and resume a small run, and prove that its stream is exact.

    The demo mixes and packs data of this machine, kills the training, resumes it, and compares the
    stream with the plan.
    """
    from rich.console import Console

    try:
        from penstock.cli.demo.story import DemoSettings, TrainingProcessError
        from penstock.cli.demo.story import demo as play
    except ImportError as error:
        if error.name != "tokenizers":
            raise
        raise report_error(
            str(make_missing_extra_error(error.name, "demo", "penstock demo")),
            2,
            "ImportError",
            as_json,
        ) from None
    console = Console(quiet=as_json)
    try:
        with convert_storage_errors(out):
            outcome = play(DemoSettings(out, steps=steps), console)
    except (TrainingProcessError, PenstockError) as error:
        raise report_error(str(error), 1, type(error).__name__, as_json) from None
    except KeyboardInterrupt:
        raise report_error(
            "stopped; all training processes were terminated", 130, "KeyboardInterrupt", as_json
        ) from None
    print_result(outcome.as_json(), lambda _: outcome.tell(console), as_json)
    raise typer.Exit(0 if outcome.holds else 1)


@handle_errors
def index(
    paths: Annotated[list[str], typer.Argument(help="Files, globs, brace ranges or folders.")],
    rebuild: Annotated[bool, typer.Option(help="Rebuild indexes that are still valid.")] = False,
    cache: Annotated[
        Path | None,
        typer.Option(
            parser=parse_local_path,
            metavar="PATH",
            help="Folder for the indexes; default: beside the data.",
        ),
    ] = None,
    dtype: Annotated[
        str | None, typer.Option(help="Type of raw token ids in the files, such as uint16.")
    ] = None,
    eos: Annotated[
        int | None,
        typer.Option(help="Token id that ends a document; with --tokenizer, added to every text."),
    ] = None,
    checksum: Annotated[
        bool, typer.Option(help="Store checksums for formats without checksums of their own.")
    ] = False,
    lengths: Annotated[
        str | None, typer.Option(help="Store the list lengths of this column, such as tokens.")
    ] = None,
    tokenizer: Annotated[
        str | None,
        typer.Option(
            help="Tokenizer; stores the token count of every text in the column --lengths (text)."
        ),
    ] = None,
    bos: Annotated[
        int | None, typer.Option(help="Token id added before every text; needs --tokenizer.")
    ] = None,
    special_tokens: Annotated[
        bool, typer.Option(help="Count the special tokens of the tokenizer too.")
    ] = False,
    executor: Annotated[
        str, typer.Option(help="Executor: inline, threads, processes or ray.")
    ] = "inline",
    workers: Annotated[
        int | None,
        typer.Option(
            min=1, help="Workers of --executor (inline has none); default: one per CPU core."
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Build indexes and checksums for files ahead of a run.

    Lines, CSV, tar and token files need an index for random access. Run this once for data that
    many runs read.
    """
    from penstock.arguments import check_choice
    from penstock.engine.runtime.compute import compute
    from penstock.engine.runtime.executors import EXECUTORS, ExecutorName
    from penstock.sources import index_files
    from penstock.sources.paths import TokenType, detect_format
    from penstock.sources.paths import find as find_files
    from penstock.stores.urls import require_local
    from penstock.text import Tokenize

    check_choice(executor, EXECUTORS, "--executor {}")
    map_files = None
    if executor != "inline":
        map_files = partial(
            compute, "index", "files", executor=cast(ExecutorName, executor), workers=workers
        )
    cache = cache and require_local(cache).absolute()
    options = {
        "dtype": cast("TokenType | None", dtype),
        "eos": eos,
        "checksum": checksum,
        "lengths": lengths,
    }
    if tokenizer is not None:
        counts = Tokenize(tokenizer, lengths or "text", special_tokens, bos=bos, eos=eos)
        options |= {"eos": None, "lengths": counts}
    elif bos is not None or special_tokens:
        raise ConfigError("--bos and --special-tokens set how texts are tokenized: add --tokenizer")
    make = partial(index_files, rebuild=rebuild, cache=cache, each=map_files, **options)
    rows: dict[str, int] = {}
    files = find_files(paths)
    formats = dict.fromkeys(map(detect_format, files))
    for option, value in (("--dtype", dtype), ("--eos", options["eos"])):
        if value is not None and formats and "tokens" not in formats:
            raise ConfigError(
                f"{option} describes files of token ids, and {files[0]} is none: leave it out"
                + (", or add --tokenizer" if option == "--eos" else "")
            )
    for file_format in formats:
        paths_of_format = [path for path in files if detect_format(path) == file_format]
        rows |= {str(path): n for path, n in make(paths_of_format).items()}

    def tell(console: Any) -> None:
        for path, n in rows.items():
            print_text(console, f"{path}: {n:,} rows")

    print_result({"files": rows}, tell, as_json)


# The headings of `penstock --help`, in the order in which they are printed.
COMMANDS_BY_HEADING: dict[str, tuple[Any, ...]] = {
    "Author": (lint, convert, plan.simulate, plan.diff, plan.report),
    "Inspect": (plan.plan, explore, plan.at, find, audit, seen, leaks, blame, replay),
    "Run": (run, top, edit, demo),
    "Data": (info, preview, index, prepare, tokenize, verify),
}
for heading, commands in COMMANDS_BY_HEADING.items():
    for command in commands:
        app.command(rich_help_panel=heading)(command)
app.add_typer(cache_app, name="cache", rich_help_panel="Data")
