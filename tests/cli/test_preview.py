"""`penstock preview` of mixture files and of tokens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("tokenizers")

from jsonschema import Draft202012Validator
from typer.testing import CliRunner

import penstock as ps
from chat_cases import bpe
from cli_world import Penstock
from example_counts import pick_cases
from penstock.cli.app import app

ROOT = Path(__file__).parents[2]
SCHEMA = json.loads((ROOT / "src" / "penstock" / "cli" / "answers.schema.json").read_text())
CHATS = """
seed: 3
chat: {tokenizer: t.json, template: chatml}
sources: {a: {path: a.jsonl}, b: {path: b.jsonl}}
pack: {length: 64, method: first_fit}
global_batch_size: 2
"""


@pytest.fixture
def chats(tmp_path: Path) -> Path:
    bpe().save(str(tmp_path / "t.json"))
    for name in "ab":
        rows = [
            [
                {"role": "user", "content": f"[red]{name} {i}"},
                {"role": "assistant", "content": f"{i}"},
            ]
            for i in range(30)
        ]
        lines = [json.dumps({"messages": row}) + "\n" for row in rows]
        (tmp_path / f"{name}.jsonl").write_text("".join(lines))
    path = tmp_path / "mixture.yaml"
    path.write_text(CHATS)
    return path


def answer(result: Any) -> Any:
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    Draft202012Validator({**SCHEMA["$defs"]["preview"], "$defs": SCHEMA["$defs"]}).validate(found)
    return found


def test_rows_of_a_mixture(chats: Path, penstock: Penstock) -> None:
    result = penstock("preview", chats, "-n", 2)
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[0] == "row 0" and "loss_mask: bool[64]" in result.stdout
    assert [row["index"] for row in answer(penstock("preview", chats, "--json"))["samples"]] == [
        0,
        1,
        2,
    ]
    as_json = chats.with_name("other.json")
    as_json.write_text(json.dumps({"sources": {"a": {"path": "a.jsonl"}}}))
    lines = penstock("preview", as_json, "-n", 1).stdout.splitlines()
    assert lines[0].startswith("row 0: a[") and "messages:" in lines[1]


def test_tokens_of_a_mixture_have_marks_and_sources(chats: Path, penstock: Penstock) -> None:
    result = penstock("preview", chats, "--tokens", "-n", 3)
    assert result.exit_code == 0, result.output
    assert "document 2: " in result.stdout and " learned, a[" in result.stdout
    assert "<|im_start|>user\n[red]a " in result.stdout
    batches = [batch for batch, _ in zip(ps.load(chats), range(2), strict=False)]
    for at in range(3):
        (row,) = answer(penstock("preview", chats, "--tokens", "-n", 1, "--at", at, "--json"))[
            "rows"
        ]
        assert row["index"] == at
        batch, number = batches[at // 2], at % 2
        ids = [token for document in row["documents"] for token in document["ids"]]
        mask = [learned for document in row["documents"] for learned in document["loss_mask"]]
        used = batch["segment_ids"][number] > 0
        assert ids == batch["tokens"][number][used].tolist()
        assert mask == batch["loss_mask"][number][used].tolist()
        for document in row["documents"]:
            assert len(document["texts"]) == len(document["ids"])
            text = "".join(document["texts"])
            assert document["name"] != "document 1" or text.startswith("<|im_start|>user")
            assert f"[red]{document['source']} {document['index']}<|im_end|>" in text
            assert f"\n{document['index']}<|im_end|>" in text


def test_tokens_have_colours_on_a_terminal(chats: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    asked = ["preview", str(chats), "--tokens", "-n", "1"]
    said = CliRunner().invoke(app, asked, color=True).stdout
    assert "\x1b[1;32m" in said and "[[" not in said
    monkeypatch.setenv("NO_COLOR", "1")
    said = CliRunner().invoke(app, asked, color=True).stdout
    assert "\x1b[1;32m" not in said and "[[" in said


def test_the_tokenizer_is_found_or_asked_for(chats: Path, penstock: Penstock) -> None:
    two = chats.with_name("two.yaml")
    two.write_text(
        CHATS.replace("b.jsonl}", "b.jsonl, chat: {tokenizer: t2.json, template: chatml}}")
    )
    bpe().save(str(chats.with_name("t2.json")))
    refused = penstock("preview", two, "--tokens")
    assert refused.exit_code == 2 and "give one with --tokenizer" in refused.stderr
    tokenizer = chats.with_name("t.json")
    assert penstock("preview", two, "--tokens", "--tokenizer", tokenizer).exit_code == 0
    refused = penstock("preview", two, "--tokenizer", tokenizer)
    assert refused.exit_code == 2 and "add --tokens" in refused.stderr
    texts = chats.with_name("a.jsonl")
    refused = penstock("preview", texts, "--tokens", "--tokenizer", tokenizer)
    assert refused.exit_code == 2 and "no tokens; it has messages" in refused.stderr
    short = chats.with_name("short.yaml")
    short.write_text("stop: all_exhausted\nsources: {a: {path: a.jsonl}}")
    refused = penstock("preview", short, "--at", 30)
    assert refused.exit_code == 2 and "fewer rows" in refused.stderr


COLUMNS = {
    "n": [*range(20)],
    "text": [f"line {n}" for n in range(20)],
    "part": [{"x": n / 2, "y": [n, n]} for n in range(20)],
}


@pytest.mark.parametrize("columns", [["n"], ["text"], ["part"], [*COLUMNS]])
@pytest.mark.parametrize(
    "batch",
    ["global_batch_size: 4", "batch: {size: 4}", "batch: {size: 4, collate: list}", "seed: 0"],
)
def test_rows_are_numbered_by_rows_not_by_batches(
    tmp_path: Path, penstock: Penstock, columns: list[str], batch: str
) -> None:
    pq.write_table(pa.table(COLUMNS), tmp_path / "d.parquet")
    path = tmp_path / "m.yaml"
    path.write_text(
        f"horizon: {{samples: 18}}\nsources: {{d: {{path: d.parquet, columns: {columns}}}}}\n{batch}\n"
    )
    single = path.with_name("single.yaml")
    single.write_text(path.read_text().replace(batch, ""))
    order = [sample["n"] if "n" in sample else None for sample in ps.load(single)]
    keys = [place.index for row in range(18) for place in ps.load(single).plan.at(row)]
    for at, count in pick_cases([(0, 3), (5, 1), (17, 3), (7, 4)], 2):
        result = penstock("preview", path, "-n", count, "--at", at)
        assert result.exit_code == 0, result.output
        rows = [line for line in result.stdout.splitlines() if line.startswith("row ")]
        stop = min(at + count, 18)
        assert rows == [f"row {row}: d[{keys[row]}]" for row in range(at, stop)]
        samples = answer(penstock("preview", path, "-n", count, "--at", at, "--json"))["samples"]
        assert [sample["index"] for sample in samples] == [*range(at, stop)]
        for sample in samples:
            assert sample["sample"].keys() == set(columns)
            row = keys[sample["index"]]
            if "n" in columns:
                assert sample["sample"]["n"] == row == order[sample["index"]]
            assert sample["sample"].get("text", f"line {row}") == f"line {row}"
            assert sample["sample"].get("part", {"x": row / 2})["x"] == row / 2
    assert penstock("preview", path, "--at", 18).exit_code == 2


@pytest.mark.parametrize("name", ["ids", "token_ids", "input_ids"])
@pytest.mark.parametrize("lengths", [True, False])
@pytest.mark.parametrize("batch", ["global_batch_size: 2", "batch: {size: 4}", "seed: 0"])
def test_packed_rows_with_any_name_of_their_tokens(
    tmp_path: Path, penstock: Penstock, name: str, lengths: bool, batch: str
) -> None:
    rows = [[n % 7] * (n % 5 + 1) for n in range(40)]
    pq.write_table(pa.table({name: rows}), tmp_path / "d.parquet")
    planned = f", lengths: {name}" if lengths else ""
    path = tmp_path / "m.yaml"
    path.write_text(
        f"sources: {{d: {{path: d.parquet, columns: [{name}]{planned}}}}}\n"
        f"pack: {{length: 8}}\n{batch}\n"
    )
    shown = penstock("preview", path, "-n", 2, "--at", 3).stdout.splitlines()
    assert shown[0] == "row 3" and shown[1].startswith(f"  {name}: int32[8] ")
    samples = answer(penstock("preview", path, "--at", 3, "--json"))["samples"]
    assert [sample["sample"]["segment_ids"]["shape"] for sample in samples] == [[8]] * 3
    bpe().save(str(tmp_path / "t.json"))
    tokens = penstock("preview", path, "--tokens", "--tokenizer", tmp_path / "t.json", "--json")
    assert sum(len(document["ids"]) for document in answer(tokens)["rows"][0]["documents"]) == 8
