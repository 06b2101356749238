"""Command `penstock preview`: first rows of data files or of a mixture, or their tokens as text."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, cast

import typer

import penstock as ps

from .common import AllowOption, JsonOption, handle_errors, print_result, print_text
from .verify import CacheOption, Format

if TYPE_CHECKING:
    from rich.console import Console

    from penstock.mixture_files import Grant
    from penstock.mixture_files.model import MixtureFile
    from penstock.text import ShownDocument

_PIPE_WIDTH = 1_000  # characters of a line if the output is no terminal
_LEARNED_STYLE = "bold green"

Key = tuple[str, int, int]
"""Source, epoch and index of a sample."""


@handle_errors
def preview(
    paths: Annotated[
        list[str],
        typer.Argument(help="Files, globs, brace ranges or folders; or one mixture file."),
    ],
    count: Annotated[int, typer.Option("-n", "--count", min=1, help="Number of samples.")] = 3,
    at: Annotated[int, typer.Option(min=0, help="Index of the first sample.")] = 0,
    tokens: Annotated[
        bool,
        typer.Option("--tokens", help="Print tokens as text, and mark those that are learned."),
    ] = False,
    tokenizer: Annotated[
        str | None,
        typer.Option(help="Tokenizer for --tokens; default: the one of the mixture file."),
    ] = None,
    format: Format = None,
    cache: CacheOption = None,
    allow: AllowOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print some samples of files, or some rows of a mixture.

    Lines are shortened to the width of the terminal. Arrays appear as type and shape, media as
    kind and size. With --tokens, learned tokens are green, or stand between [[ and ]] where the
    output has no colours.
    """
    is_mixture = len(paths) == 1 and _is_mixture_file(paths[0])
    if is_mixture:
        total, rows = None, _read_mixture(paths[0], at, count, allow)
    else:
        dataset = ps.read(list(paths), format=format, cache=cache)
        total = len(dataset)
        if at >= total:
            raise ps.ConfigError(f"--at {at}: the data has {total:,} samples; give a smaller index")
        indices = range(at, min(at + count, total))
        samples = dataset[list(indices)]
        rows = [_Row(i, sample) for i, sample in zip(indices, samples, strict=True)]
    if tokens:
        name = tokenizer or _choose_tokenizer(paths[0] if is_mixture else None, allow)
        _print_tokens(rows, name, total, as_json)
    elif tokenizer is not None:
        raise ps.ConfigError(f"--tokenizer {tokenizer}: it shows tokens; add --tokens")
    else:
        _print_samples(rows, total, as_json)


class _Row(NamedTuple):
    """A sample or a row, with the keys of its documents if they are known."""

    number: int
    value: Any
    keys: Sequence[Key] = ()


def _is_mixture_file(path: str) -> bool:
    """Return whether a path names a mixture file: YAML, or JSON with `sources` or `include`."""
    if path.endswith((".yaml", ".yml")):
        return True
    if not path.endswith(".json") or not Path(path).is_file():
        return False
    from penstock.stores.limits import MIXTURE_FILE, read_within

    try:
        content: Any = json.loads(read_within(path, MIXTURE_FILE))
    except (OSError, ValueError, RecursionError):  # the reader of data files says what is wrong
        return False
    return isinstance(content, dict) and ("sources" in content or "include" in content)


def _read_mixture(path: str, at: int, count: int, allow: list[str] | None) -> list[_Row]:
    """Return rows of a run of a mixture file, which are parts of batches if it has any."""
    from penstock.mixture_files import read_model
    from penstock.mixture_files.step_sizes import Border, find_step

    dataset = ps.load(path, allow=cast("list[Grant]", allow or []))
    model = cast("MixtureFile", read_model(path, allow or ())[0])
    batch = model.batch
    split = _keep_row if batch is None else list if batch.collate == "list" else _split_stack
    if model.changes_sizes:
        step = find_step(model.equal_steps, Border("rows", at + 1)) - 1
        items = loader = ps.Loader(dataset, rank=0, world_size=1)
        loader.seek(step)
        first = model.row_at(step)
    else:
        size = 1 if batch is None else cast("int", batch.size)
        items, first = dataset.skip(at // size), at - at % size
    rows = _iterate_rows(items, first, split, model.pack is not None)
    found = list(islice(rows, at - first, at - first + count))
    if not found:
        raise ps.ConfigError(f"--at {at}: {path} has fewer rows; give a smaller index")
    return found


def _iterate_rows(
    run: ps.Dataset | ps.Loader, first: int, split: Callable[[Any], list[Any]], is_packed: bool
) -> Iterator[_Row]:
    """Yield the rows of a dataset or loader, with the keys of their documents."""
    number, items = first, iter(run)
    read_keys = run.keys if isinstance(run, ps.Loader) else cast("Any", items).keys
    for item in items:
        rows, keys = split(item), list(read_keys())
        sizes = [_count_documents(row) if is_packed else 1 for row in rows]
        is_known = sum(sizes) == len(keys)
        for row, documents in zip(rows, sizes, strict=True):
            own, keys = keys[:documents], keys[documents:]
            yield _Row(number, row, own if is_known else ())
            number += 1


def _keep_row(row: Any) -> list[Any]:
    return [row]


def _split_stack(batch: Any) -> list[Any]:
    """Return the rows of a stacked batch: the entries of its columns, however nested."""
    from penstock.arrays.trees import leading_size, map_leaves

    return [
        map_leaves(partial(_take_entry, number), batch, lists=False)
        for number in range(leading_size(batch))
    ]


def _take_entry(number: int, column: Any) -> Any:
    return column[number]


def _count_documents(row: Mapping[str, Any]) -> int:
    """Return the number of documents in a packed row."""
    import numpy as np

    return int(np.max(row["segment_ids"], initial=0))


def _choose_tokenizer(path: str | None, allow: list[str] | None) -> str:
    """Return the only tokenizer of a mixture file."""
    from penstock.mixture_files import read_model
    from penstock.mixture_files.build import collect_tokenizers

    model = None if path is None else read_model(path, allow or ())[0]
    names = sorted(collect_tokenizers(model)) if model is not None else []
    if len(names) == 1:
        return names[0]
    what = f"{path} names {', '.join(names)}" if names else "the data names no tokenizer"
    raise ps.ConfigError(f"--tokens: {what}: give one with --tokenizer PATH")


def _print_samples(rows: Sequence[_Row], total: int | None, as_json: bool) -> None:
    from penstock.report.values import convert_to_json, format_sample

    width = shutil.get_terminal_size((_PIPE_WIDTH, 24)).columns

    def tell(console: Any) -> None:
        for row in rows:
            console.print(_format_heading(row, total), style="bold", markup=False)
            for line in format_sample(row.value, width):
                console.print(line, markup=False, soft_wrap=True)

    samples = [{"index": row.number, "sample": convert_to_json(row.value)} for row in rows]
    print_result({"samples": samples}, tell, as_json)


def _print_tokens(rows: Sequence[_Row], tokenizer: str, total: int | None, as_json: bool) -> None:
    from penstock.text import show_tokens

    shown = [show_tokens(row.value, tokenizer).documents for row in rows]

    def tell(console: Console) -> None:
        is_plain = console.color_system is None or console.no_color
        for row, documents in zip(rows, shown, strict=True):
            print_text(console, _format_heading(row, total, len(documents) < 2), "bold")
            for number, document in enumerate(documents):
                key = row.keys[number] if len(documents) == len(row.keys) > 1 else None
                _print_document(console, document, key, is_plain)

    answers = [
        {
            "index": row.number,
            "documents": [
                _describe_document(document, row.keys, number)
                for number, document in enumerate(documents)
            ],
        }
        for row, documents in zip(rows, shown, strict=True)
    ]
    print_result({"rows": answers}, tell, as_json)


def _describe_document(
    document: ShownDocument, keys: Sequence[Key], number: int
) -> Mapping[str, Any]:
    source, epoch, index = keys[min(number, len(keys) - 1)] if keys else (None, None, None)
    return {
        "name": document.name,
        "source": source,
        "epoch": epoch,
        "index": index,
        "ids": document.ids,
        "texts": document.texts,
        "loss_mask": document.mask,
    }


def _format_heading(row: _Row, total: int | None, with_key: bool = True) -> str:
    if total is not None:
        return f"sample {row.number:,} of {total:,}"
    key = f": {_format_key(row.keys[0])}" if with_key and len(row.keys) == 1 else ""
    return f"row {row.number:,}{key}"


def _format_key(key: Key) -> str:
    source, epoch, index = key
    return f"{source}[{index}]" + f" (pass {epoch})" * (epoch > 0)


def _print_document(
    console: Console, document: ShownDocument, key: Key | None, is_plain: bool
) -> None:
    from rich.text import Text

    source = f", {_format_key(key)}" if key is not None else ""
    print_text(console, f"{document.title}{source}", "dim")
    text = Text(str(document)) if is_plain else Text()
    for part, is_learned in () if is_plain else document.runs():
        text.append(part, _LEARNED_STYLE if is_learned else "")
    console.print(text, soft_wrap=True)
