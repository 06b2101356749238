"""`penstock seen` and `penstock leaks`, against runs and files."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from cli_world import Penstock
from penstock.sources.digests import sample_fixed_indices


def said(penstock: Penstock, *arguments: Any, code: int = 0) -> Any:
    result = penstock(*arguments, "--json")
    assert result.exit_code == code, result.output
    return json.loads(result.output)


def test_seen_is_what_a_run_was_given(mixture: Path, penstock: Penstock, tmp_path: Path) -> None:
    keys, out = tmp_path / "keys.jsonl", tmp_path / "seen.parquet"
    penstock("run", mixture, "--dump", keys, "--state", tmp_path / "run", "--steps", 250)
    lines = [json.loads(line) for line in keys.read_text().splitlines()]
    given = Counter((source, index) for line in lines for source, _, index in line["keys"])
    found = said(penstock, "seen", mixture, "--before", 250, "-o", out)
    assert (
        said(penstock, "seen", mixture, "--state", tmp_path / "run")["sources"] == found["sources"]
    )
    assert found["documents"] == len(given) and found["samples"] == 2_000
    assert {one["times"]: one["documents"] for one in found["repeats"]} == Counter(given.values())
    told = pq.read_table(out).to_pylist()
    assert {(line["source"], line["index"]): line["times"] for line in told} == given
    shown = penstock("seen", mixture, "--before", 250).output
    assert (
        f"{len(given):,} different documents before step 250 in 2,000 samples" in shown
        and "   1 x " in shown
    )
    assert (
        said(penstock, "seen", mixture, "--state", tmp_path / "run", "--before", 3)["samples"] == 24
    )


@pytest.mark.parametrize("by", ["content", "text"])
def test_leaks_are_documents_on_both_sides_of_a_split(
    by: str, mixture: Path, penstock: Penstock
) -> None:
    refused = penstock("leaks", mixture)
    assert refused.exit_code == 2 and "the mixture has no split" in refused.stderr
    mixture.write_text(mixture.read_text() + "split: {held_out: 50, by: position}\n")
    assert said(penstock, "leaks", mixture, "--by", by)["leaks"] == []
    path = mixture.parent / "text.jsonl"
    rows = path.read_text().splitlines()
    rows[1_080] = rows[1_090] = rows[3]
    path.write_text("\n".join(rows) + "\n")
    (mixture.parent / ".text.jsonl.penstock-lines").unlink()
    found = said(penstock, "leaks", mixture, "--by", by, code=1)
    (leak,) = found["leaks"]
    assert (leak["here"], leak["there"]) == ("text", "text") and leak["examples"][0][0] == 3
    assert said(penstock, "leaks", mixture, "--by", "row")["documents"] == 0
    assert "text[3] = text[" in penstock("leaks", mixture, "--by", by).output


def test_leaks_between_two_mixtures(mixture: Path, penstock: Penstock) -> None:
    other = mixture.with_name("other.yaml")
    lines = [json.dumps({"text": text}) for text in ("new", "math 7", "code 9", "math 8")]
    (mixture.parent / "more.jsonl").write_text("\n".join(lines))
    other.write_text(
        "sources: {more: {path: more.jsonl}, again: {path: text.jsonl, slice: [0, 5]}}\n"
    )
    found = said(penstock, "leaks", mixture, other, code=1)
    assert [(leak["here"], leak["there"], leak["documents"]) for leak in found["leaks"]] == [
        ("text", "again", 5), ("math", "more", 2), ("code", "more", 1),
    ]  # fmt: skip
    found = said(penstock, "leaks", mixture, other, "--by", "row", code=1)
    assert [(leak["here"], leak["documents"]) for leak in found["leaks"]] == [("text", 5)]
    refused = penstock("leaks", mixture, other, "--by", "url")
    assert refused.exit_code == 2 and "no row of" in refused.stderr


def test_steps_after_the_horizon_are_refused(mixture: Path, penstock: Penstock) -> None:
    assert said(penstock, "seen", mixture, "--before", 300) == said(penstock, "seen", mixture)
    header = penstock("seen", mixture).output.splitlines()[1]
    assert header.split() == ["source", "size", "samples", "documents", "most"]
    refused = penstock("seen", mixture, "--before", 301)
    assert refused.exit_code == 2
    assert "--before 301: the run ends at its horizon, after 300 steps" in refused.output


@pytest.mark.parametrize("command", ["replay", "at", "audit", "seen", "find", "edit"])
def test_commands_for_a_run_say_that_its_files_are_others(
    tmp_path: Path, penstock: Penstock, caplog: pytest.LogCaptureFixture, command: str
) -> None:
    """Only 64 rows are compared, so a command may describe or read rows that the run never had."""
    mixture, data, state = tmp_path / "m.yaml", tmp_path / "a.jsonl", tmp_path / "run"
    mixture.write_text("sources: {a: {path: a.jsonl}}\nbatch: {size: 4}\nhorizon: {steps: 60}\n")
    rows = [json.dumps({"id": number, "text": f"w{number}"}) + "\n" for number in range(2_000)]
    data.write_text("".join(rows))
    assert penstock("run", mixture, "--state", state, "--steps", 20).exit_code == 0
    arguments = {
        "replay": ("--steps", "0:3"),
        "at": (0, "--read"),
        "audit": ("--steps", "0:3", "--key", "text"),
        "find": ("a", 7),
        "edit": (state, "--exclude", "a:7", "-o", tmp_path / "edited"),
    }.get(command, ())
    options = arguments if command == "edit" else (*arguments, "--state", state)
    caplog.clear()
    assert penstock(command, mixture, *options).exit_code == 0
    assert "its files differ" not in caplog.text
    unsampled = next(
        number
        for number in range(2_000)
        if number
        not in {
            row + start for start in sample_fixed_indices(1_997, 16).tolist() for row in range(4)
        }
    )
    rows[unsampled] = rows[unsampled].replace("w", "Q")
    data.write_text("".join(rows))
    result = penstock(command, mixture, *options)
    assert result.exit_code == 0, result.output
    assert "'a': its files differ from the files of the state" in caplog.text
