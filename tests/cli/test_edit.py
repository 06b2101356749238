"""`penstock edit`: a run under way loses steps and samples, and goes on exactly as the plan then says."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import penstock as ps
from cli_world import Penstock
from penstock.saves import read_states


def dumped(path: Path) -> dict[int, list[tuple[str, int]]]:
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return {line["step"]: [(source, index) for source, _, index in line["keys"]] for line in lines}


def test_an_edited_run_is_what_at_says(mixture: Path, penstock: Penstock, tmp_path: Path) -> None:
    state, edited, keys = tmp_path / "run", tmp_path / "edited", tmp_path / "keys.jsonl"
    whole = tmp_path / "whole.jsonl"
    penstock("run", mixture, "--dump", whole)
    assert penstock("run", mixture, "--state", state, "--steps", 60, "--dump", keys).exit_code == 0
    was = dumped(whole)
    (tmp_path / "bad.jsonl").write_text(
        "".join(json.dumps(list(key)) + "\n" for key in was[100][:3])
    )
    source, index = was[120][0]
    result = penstock(
        "edit", mixture, state, "--skip", "70:75", "--exclude", f"{source}:{index}",
        "--exclude-from", tmp_path / "bad.jsonl", "-o", edited,
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert "5 steps and 4 samples removed" in result.output
    said = json.loads(penstock("at", mixture, 60, "--to", 200, "--state", edited, "--json").output)[
        "samples"
    ]
    assert (
        penstock("run", mixture, "--state", edited, "--steps", 200, "--dump", keys).exit_code == 0
    )
    now = dumped(keys)
    planned = {
        step: [(row["source"], row["index"]) for row in said if row["step"] == step]
        for step in range(60, 200)
    }
    assert {step: now[step] for step in range(60, 200)} == planned
    assert [now[step] for step in range(70)] == [was[step] for step in range(70)]
    assert now[70] == was[75]
    gone = {*was[100][:3], (source, index)}
    assert not gone & {key for step in range(60, 200) for key in now[step]}
    # Every step draws from the sources from which it drew before.
    assert all(
        [s for s, _ in now[step]] == [s for s, _ in was[step + 5]] for step in range(70, 195)
    )


def test_several_ranges_mean_the_steps_of_the_run_as_it_was(
    mixture: Path, penstock: Penstock, tmp_path: Path
) -> None:
    whole = tmp_path / "whole.jsonl"
    penstock("run", mixture, "--dump", whole)
    was = dumped(whole)
    for number, ranges in enumerate((("20:25", "40:45"), ("40:45", "20:25"))):
        state, keys = tmp_path / f"run{number}", tmp_path / f"keys{number}.jsonl"
        penstock("run", mixture, "--state", state, "--steps", 10, "--dump", keys)
        skips = [word for one in ranges for word in ("--skip", one)]
        assert "10 steps and 0 samples removed" in penstock("edit", mixture, state, *skips).output
        assert penstock("run", mixture, "--state", state, "--dump", keys).exit_code == 0
        left = [step for step in range(300) if step not in (*range(20, 25), *range(40, 45))]
        assert [dumped(keys)[step] for step in range(290)] == [was[step] for step in left]
        done = penstock("run", mixture, "--state", state)
        assert "nothing to do" in done.output and "the run ends after 290" in done.output


def test_what_makes_no_sense_is_refused(mixture: Path, penstock: Penstock, tmp_path: Path) -> None:
    state = tmp_path / "run"
    penstock("run", mixture, "--state", state, "--steps", 60)
    before = read_states(state)
    bad = tmp_path / "bad.jsonl"
    bad.write_text('["text", 3]\n{"text"\n')
    for arguments, needle in (
        ((), "nothing to remove"),
        (("--skip", "10"), "FIRST:STOP"),
        (("--skip", "10:20"), "the past cannot change; give steps from 60 on"),
        (
            ("--skip", "72:80", "--skip", "65:73"),
            "--skip 65:73 and --skip 72:80: both name step 72",
        ),
        (("--exclude", "text"), "SOURCE:INDEX"),
        (("--exclude", "txt:3"), "no source 'txt'"),
        (("--exclude-from", bad), "line 2"),
    ):
        result = penstock("edit", mixture, state, *arguments)
        assert result.exit_code == 2 and needle in result.stderr, (arguments, result.stderr)
        assert read_states(state) == before


def test_an_edit_in_place_takes_the_place_of_the_state(
    mixture: Path, penstock: Penstock, tmp_path: Path
) -> None:
    state = tmp_path / "run"
    penstock("run", mixture, "--state", state, "--steps", 60)
    (before,) = state.iterdir()
    assert penstock("edit", mixture, state, "--skip", "70:75").exit_code == 0
    (after,) = state.iterdir()
    assert after != before
    plan = ps.load(mixture).plan
    now = json.loads(penstock("at", mixture, 70, "--state", state, "--json").output)["samples"]
    assert [(row["source"], row["index"]) for row in now] == [
        (s.source, s.index) for s in plan.at(75)
    ]
    assert plan.for_state(state).at(70) == plan.for_state(state, step=60).at(70)
    assert penstock("run", mixture, "--state", state, "--steps", 61).exit_code == 0
    assert read_states(state)[0] == 61


def test_a_document_in_rows_of_unknown_length_is_masked(penstock: Penstock, tmp_path: Path) -> None:
    """Such rows are packed during the run, so the edit goes into the states of all ranks."""
    tokenizers = pytest.importorskip("tokenizers")
    words = [f"w{i}" for i in range(40)]
    vocabulary = {word: i + 1 for i, word in enumerate(words)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="w0"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    texts = [{"text": " ".join([word] * (3 + i % 5))} for i, word in enumerate(words)]
    (tmp_path / "text.jsonl").write_text("".join(json.dumps(each) + "\n" for each in texts))
    path, state, edited = tmp_path / "stream.yaml", tmp_path / "run", tmp_path / "edited"
    path.write_text(
        "seed: 1\ntokenize: {tokenizer: tokenizer.json}\npack: {length: 16}\n"
        "sources: {text: {path: text.jsonl}}\nglobal_batch_size: 2\n"
    )
    ds = ps.load(path)
    loaders = [ps.Loader(ds, rank=rank, world_size=2) for rank in range(2)]
    for loader in loaders:
        assert len([*zip(range(6), loader, strict=False)]) == 6
        ps.save(state, loader)
    result = penstock("edit", path, state, "--exclude", "text:7", "-o", edited)
    assert result.exit_code == 0, result.output
    assert "1 document cannot be replaced, and will be padding" in result.output
    assert "no later step is known" in penstock("edit", path, state, "--skip", "8:9").stderr
    for folder, is_trained in ((state, True), (edited, False)):
        runs = [ps.Loader(ds, rank=rank, world_size=2) for rank in range(2)]
        assert [ps.restore(folder, loader) for loader in runs] == [6, 6]
        rows = [
            batch["tokens"] for loader in runs for _, batch in zip(range(60), loader, strict=False)
        ]
        assert is_trained == any((row == 8).any() for row in rows)


def test_the_audit_lists_masked_documents(penstock: Penstock, tmp_path: Path) -> None:
    """A window of whole documents keeps its documents, so they are masked until it ends."""
    for name in "ab":
        tokens = np.concatenate([np.append(np.full(3 + i % 5, i + 2), 1) for i in range(30)])
        np.save(tmp_path / f"{name}.npy", tokens.astype(np.uint16))
    path, state = tmp_path / "mixture.yaml", tmp_path / "run"
    path.write_text(
        "seed: 1\npack: {length: 16, method: best_fit, rows: 64}\nglobal_batch_size: 2\n"
        "horizon: {steps: 90}\nsources: {a: {path: a.npy, eos: 1}, b: {path: b.npy, eos: 1}}\n"
    )
    result = penstock("run", path, "--state", state, "--steps", 4)
    assert result.exit_code == 0, result.output
    result = penstock("edit", path, state, "--exclude", "a:7", "--json")
    assert result.exit_code == 0, result.output
    (removal,) = json.loads(result.output)["removals"]
    assert removal == {"source": "a", "index": 7, "how": "replaced", "row": 8}
    audit = penstock("audit", path, "--state", state)
    lines = [json.loads(line) for line in audit.output.splitlines()]
    mine = [line for line in lines if (line["source"], line["index"]) == ("a", 7)]
    assert mine and all(line["masked"] == (line["step"] >= 4) for line in mine)
    assert max(line["step"] for line in mine) < 32
    step = mine[-1]["step"]
    assert ", masked" in penstock("find", path, "a", 7, "--state", state).output
    samples = json.loads(penstock("at", path, step, "--state", state, "--json").output)["samples"]
    assert [one["index"] for one in samples if one["masked"]] == [7]
