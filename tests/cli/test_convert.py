"""`penstock convert`: a mixture of another project becomes a mixture file, what is lost is named."""

from __future__ import annotations

import json
from pathlib import Path

from cli_world import Penstock
from penstock.mixture_files import read_model

OLMO = """\
sources:
- {source_name: code, target_ratio: 0.75, paths: [code.jsonl]}
- {source_name: text, target_ratio: 0.25, paths: [text.jsonl]}
"""


def test_a_mixture_is_carried_over_and_loads(mixture: Path, penstock: Penstock) -> None:
    source, out = mixture.with_name("olmo.yaml"), mixture.with_name("carried.yaml")
    source.write_text(OLMO)
    result = penstock("convert", source, "-o", out, "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    keys = found.pop("keys")
    assert found == {
        "version": 1, "mixture": str(out), "format": "olmo-core", "sources": ["code", "text"], "lost": [], "notes": [],
    }  # fmt: skip
    assert [key["key"] for key in keys["carried"]][:2] == ["sources", "sources[0].source_name"]
    assert keys["carried"][1] == {"file": str(source), "line": 2, "key": "sources[0].source_name"}
    assert len(keys["carried"]) == 7 and keys["harmless"] == keys["reported"] == []
    model, problems = read_model(out)
    assert model is not None and not problems
    assert model.shares() == {"code": 0.75, "text": 0.25}


def test_losses_are_told_and_nothing_is_written(mixture: Path, penstock: Penstock) -> None:
    source, out = mixture.with_name("olmo.yaml"), mixture.with_name("carried.yaml")
    source.write_text(OLMO + "sampling: odd\n")
    result = penstock("convert", source, "-o", out)
    assert result.exit_code == 1 and not out.exists()
    first, counts, last = result.output.splitlines()
    assert first.startswith(
        f"lost: {source}, line 4, sampling: is an unknown key of olmo-core files"
    )
    assert counts == f"{source}: read as olmo-core; keys: 7 carried, 0 harmless, 1 reported"
    assert last == f"{out}: not written: 1 lost (--lossy writes the rest)"
    result = penstock("convert", source, "-o", out, "--json")
    found = json.loads(result.stdout)
    assert (result.exit_code, found["mixture"], found["lost"][0]["key"]) == (1, None, "sampling")
    result = penstock(
        "convert",
        source,
        "-o",
        out,
        "--lossy",
        "--files",
        f"code={mixture.with_name('math.jsonl')}",
    )
    assert result.exit_code == 0 and result.output.splitlines()[-1] == f"{out}: 2 sources"
    model, _ = read_model(out)
    assert model is not None and model.sources[0].path == (str(mixture.with_name("math.jsonl")),)
    result = penstock("convert", source, "-o", out, "--files", "code")
    assert result.exit_code == 2 and "NAME=PATH" in result.stderr


def test_what_is_no_mixture_is_refused(mixture: Path, penstock: Penstock) -> None:
    other = mixture.with_name("other.yaml")
    other.write_text("a: 1\n")
    result = penstock("convert", other, "-o", mixture.with_name("out.yaml"))
    assert (
        result.exit_code == 2
        and "choose one with kind= (--from on the command line)" in result.stderr
    )
    assert not mixture.with_name("out.yaml").exists()


def test_a_mixture_is_not_written_over_the_file_it_comes_from(
    mixture: Path, penstock: Penstock
) -> None:
    before = mixture.read_bytes()
    for out in (mixture, mixture.parent / "." / mixture.name):
        result = penstock("convert", mixture, "-o", out)
        assert result.exit_code == 2 and "is an input of this command" in result.output
    assert mixture.read_bytes() == before
