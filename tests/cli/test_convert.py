"""`penstock convert`: a mixture of another project becomes a mixture file, what is lost is named."""

from __future__ import annotations

import json
from pathlib import Path

from cli_world import Penstock
from penstock.mixture_files import read_model


def test_a_mixture_is_carried_over_and_loads(mixture: Path, penstock: Penstock) -> None:
    source, out = mixture.with_name("olmo.yaml"), mixture.with_name("carried.yaml")
    source.write_text(
        "sources:\n- {source_name: code, target_ratio: 0.75, paths: [code.jsonl]}\n"
        "- {source_name: text, target_ratio: 0.25, paths: [text.jsonl]}\nprocesses: 4\n"
    )
    result = penstock("convert", source, "-o", out, "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["sources"] == ["code", "text"]
    assert [problem["key"] for problem in found["left_out"]] == ["processes"]
    assert "not carried over" in penstock("convert", source, "-o", out).output
    model, problems = read_model(out)
    assert model is not None and not problems
    assert model.shares() == {"code": 0.75, "text": 0.25}


def test_what_is_no_mixture_is_refused(mixture: Path, penstock: Penstock) -> None:
    other = mixture.with_name("other.yaml")
    other.write_text("a: 1\n")
    result = penstock("convert", other, "-o", mixture.with_name("out.yaml"))
    assert result.exit_code == 2 and "--from" not in result.output and "kind=" in result.stderr
    assert not mixture.with_name("out.yaml").exists()
