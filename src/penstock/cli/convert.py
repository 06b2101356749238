"""`penstock convert`: mixtures written for other projects, as mixture files."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from .say import Json, answer, guarded


@guarded
def convert(
    file: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="A mixture of another project.")],
    out: Annotated[Path, typer.Option("-o", "--out", help="The mixture file to write.")],
    kind: Annotated[str | None, typer.Option("--from", help="Its format; default: found from what it holds.")] = None,
    split: Annotated[str, typer.Option(help="Which split of an Energon metadataset.")] = "train",
    as_json: Json = False,
) -> None:
    """Carry a mixture over from Energon, Levanter, OLMo-core, llm-foundry, NeMo, LLaMA-Factory or axolotl.

    What a mixture file cannot hold is named, with its line; nothing the file names is imported or run.
    """
    from penstock.compat.mixtures import convert as carried
    from penstock.mixture_files import dump

    model, left_out = carried(file, kind, split)
    dump(model, out)

    def tell(console: Any) -> None:
        console.print(f"{out}: {len(model.names)} sources", markup=False, soft_wrap=True)
        for problem in left_out:
            console.print(f"  not carried over: {problem}", style="yellow", markup=False, soft_wrap=True)

    found = {"mixture": str(out), "sources": list(model.names), "left_out": [asdict(one) for one in left_out]}
    answer(found, tell, as_json)
