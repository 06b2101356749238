"""`penstock preview` of mixture files and of tokens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tokenizers")

from jsonschema import Draft202012Validator
from typer.testing import CliRunner

import penstock as ps
from chat_cases import bpe
from cli_world import Penstock
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
