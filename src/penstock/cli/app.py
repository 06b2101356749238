"""The commands."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, cast

import typer
from typer.core import TyperGroup

from penstock import __version__
from penstock.errors import ConfigError, PenstockError, missing_extra

from . import ask
from .audit import audit
from .blame import blame
from .cache import cache as kept
from .check import lint
from .convert import convert
from .edit import edit
from .find import find as find_
from .info import info, preview
from .prepare import prepare
from .replay import replay
from .report import report
from .run import run
from .say import Json, answer, failed, guarded, here, say
from .seen import leaks, seen
from .verify import verify

# The errors of the parser: of options that there are not, and files.
_Misused = cast("type[Exception]", typer.BadParameter.__mro__[2])


class Commands(TyperGroup):
    """The commands, whose misuse is JSON too where that is asked for."""

    def main(self, args: Sequence[str] | None = None, *more: Any, **options: Any) -> Any:
        """Run the command that the arguments name."""
        if "--json" not in (sys.argv[1:] if args is None else args):
            return super().main(args, *more, **options)
        try:
            code = super().main(args, *more, **{**options, "standalone_mode": False})
        except _Misused as error:
            told: Any = error
            code = failed(told.format_message(), told.exit_code, "UsageError", True).exit_code
        sys.exit(code or 0)

    def invoke(self, ctx: Any) -> Any:
        """Run a command; a misuse quotes what was given, which may be a URL with a password."""
        try:
            return super().invoke(ctx)
        except _Misused as error:
            from penstock.engine.base.urls import redacted

            told: Any = error
            told.message = redacted(told.message)
            raise


app = typer.Typer(cls=Commands, no_args_is_help=True, pretty_exceptions_enable=False)


def _told(asked: bool) -> None:
    if asked:
        print(f"penstock {__version__}")
        raise typer.Exit


@app.callback()
def penstock(
    version: Annotated[
        bool, typer.Option("--version", callback=_told, is_eager=True, help="Say which it is.")
    ] = False,
) -> None:
    """Many datasets to one training run, in an order that is known before it starts."""


@app.command()
def demo(
    out: Annotated[
        Path,
        typer.Option(parser=here, metavar="PATH", help="Where data, journals and pictures go."),
    ] = Path("demo-data"),
    steps: Annotated[int, typer.Option(min=40, help="Steps of the run.")] = 400,
    as_json: Json = False,
) -> None:
    """Mix and pack data of this machine, kill the run, resume it, prove that the stream is the same
    and as planned."""
    from rich.console import Console

    try:
        from penstock.demo.story import Failed, Settings
        from penstock.demo.story import demo as play
    except ImportError as error:
        if error.name != "tokenizers":
            raise
        raise failed(
            str(missing_extra(error.name, "demo", "penstock demo")), 2, "ImportError", as_json
        ) from None
    console = Console(quiet=as_json)
    try:
        outcome = play(Settings(out, steps=steps), console)
    except (Failed, PenstockError) as error:
        raise failed(str(error), 1, type(error).__name__, as_json) from None
    except KeyboardInterrupt:
        raise failed(
            "stopped; the training processes are gone", 130, "KeyboardInterrupt", as_json
        ) from None
    answer(outcome.as_json(), lambda _: outcome.tell(console), as_json)
    raise typer.Exit(0 if outcome.holds else 1)


@app.command()
@guarded
def index(
    paths: Annotated[list[str], typer.Argument(help="Files, globs, brace ranges, folders.")],
    rebuild: Annotated[
        bool, typer.Option(help="Make them again, also where they are still right.")
    ] = False,
    cache: Annotated[
        Path | None,
        typer.Option(parser=here, metavar="PATH", help="Keep them here; not beside the data."),
    ] = None,
    dtype: Annotated[
        str | None, typer.Option(help="What raw token ids are kept as: uint16, say.")
    ] = None,
    eos: Annotated[
        int | None, typer.Option(help="The id that ends a document of tokens, or every text.")
    ] = None,
    checksum: Annotated[
        bool, typer.Option(help="Keep checksums too, of formats that have none.")
    ] = False,
    lengths: Annotated[
        str | None, typer.Option(help="Keep how long the lists of this column are: tokens.")
    ] = None,
    tokenizer: Annotated[
        str | None,
        typer.Option(
            help="Keep how many tokens it makes of each text of that column (default: text)."
        ),
    ] = None,
    bos: Annotated[int | None, typer.Option(help="A token before every text.")] = None,
    special_tokens: Annotated[
        bool, typer.Option(help="Let the tokenizer add its special tokens.")
    ] = False,
    engine: Annotated[
        str, typer.Option(help="Who computes: inline, threads, processes or ray.")
    ] = "inline",
    workers: Annotated[
        int | None, typer.Option(min=1, help="How many; default: one for each core here.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Make what random access to lines, CSV, tar and token files needs, ahead of a run that reads
    them together."""
    from penstock.engine.base.hints import chosen
    from penstock.engine.base.urls import local
    from penstock.engine.runtime.engine import compute
    from penstock.engine.runtime.executors import EXECUTORS, ExecutorName
    from penstock.sources import index_files
    from penstock.sources.paths import TokenType, find, format_of
    from penstock.text import Tokenise

    chosen(engine, EXECUTORS, "--engine {}")
    each = None
    if engine != "inline":
        each = partial(
            compute, "index", "files", executor=cast(ExecutorName, engine), workers=workers
        )
    cache = cache and local(cache).absolute()
    told = {
        "dtype": cast("TokenType | None", dtype),
        "eos": eos,
        "checksum": checksum,
        "lengths": lengths,
    }
    if tokenizer is not None:
        counts = Tokenise(tokenizer, lengths or "text", special_tokens, bos=bos, eos=eos)
        told |= {"eos": None, "lengths": counts}
    elif bos is not None or special_tokens:
        raise ConfigError(
            "--bos and --special-tokens say how texts become tokens: give --tokenizer too"
        )
    make = partial(index_files, rebuild=rebuild, cache=cache, each=each, **told)
    rows: dict[str, int] = {}
    found = find(paths)
    for kind in dict.fromkeys(map(format_of, found)):
        same = [path for path in found if format_of(path) == kind]
        rows |= {str(path): n for path, n in make(same).items()}

    def tell(console: Any) -> None:
        for path, n in rows.items():
            say(console, f"{path}: {n:,} rows")

    answer({"files": rows}, tell, as_json)


app.command("find")(find_)
app.add_typer(kept, name="cache")
for command in (
    ask.plan,
    ask.at,
    ask.diff,
    ask.simulate,
    audit,
    blame,
    seen,
    leaks,
    replay,
    report,
    lint,
    run,
    edit,
    convert,
    prepare,
    info,
    preview,
    verify,
):
    app.command()(command)
