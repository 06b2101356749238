"""`penstock tokenize`: the same bytes whoever writes them, after any kill, and what is read back."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tokenizers")

import penstock as ps
from chat_cases import bpe
from cli_world import penstock
from example_counts import pick_cases
from penstock.mixture_files import read_model
from penstock.mixture_files.tokenize import tokenize
from penstock.text import Chat, Tokenize

__all__ = ["penstock"]
HERE = Path(__file__).parents[1]
MIXTURE = """
seed: 3
stop: all_exhausted
chat: {tokenizer: t.json, template: chatml, max_length: 40}
sources:
  a: {path: a.jsonl}
  more:
    mixture: {sources: {.b: {path: b.jsonl, tokenize: {tokenizer: t.json}}}}
pack: {length: 64, method: first_fit, eos: <|im_end|>}
global_batch_size: 2
"""


@pytest.fixture
def chats(tmp_path: Path) -> Path:
    bpe().save(str(tmp_path / "t.json"))
    rows = [
        [{"role": "user", "content": f"q {i}"}, {"role": "assistant", "content": "yes " * (i % 40)}]
        for i in range(97)
    ]
    rows = [row[:1] if i // 10 in (2, 5) else row for i, row in enumerate(rows)]
    lines = [json.dumps({"messages": row, "id": i}) + "\n" for i, row in enumerate(rows)]
    (tmp_path / "a.jsonl").write_text("".join(lines))
    lines = [json.dumps({"text": f"line {i}"}) + "\n" for i in range(41)]
    (tmp_path / "b.jsonl").write_text("".join(lines))
    path = tmp_path / "mixture.yaml"
    path.write_text(MIXTURE)
    return path


def write(path: Path, out: str, **options: Any) -> Any:
    model, problems = read_model(path)
    assert model is not None and not problems
    return tokenize(model, path.parent / out, **{"shard": 8, **options})


def digests(folder: Path) -> dict[str, str]:
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in files
    }


def test_tokens_come_back_with_masks_and_counts(chats: Path) -> None:
    counts = write(chats, "store")
    chat = Chat(str(chats.parent / "t.json"), template="chatml", max_length=40)
    wanted, indices, dropped = list[Any](), list[int](), {"too_long": 0, "untrained": 0}
    for i, line in enumerate((chats.parent / "a.jsonl").read_text().splitlines()):
        try:
            wanted.append(chat(json.loads(line)))
            indices.append(i)
        except ps.Skip as skip:
            dropped[skip.reason] += 1
    assert min(dropped.values()) > 5
    found = ps.read(chats.parent / "store" / "a")
    assert len(found) == len(wanted) == counts["a"].documents and found.tree.lengths_known
    for one, other in zip(found, wanted, strict=True):
        assert one.keys() == {"tokens", "loss_mask"}
        assert one["tokens"].dtype == np.int32 and one["loss_mask"].dtype == np.bool_
        assert all(np.array_equal(one[name], other[name]) for name in one)
    assert counts["a"].dropped == dropped
    assert counts["a"].tokens == sum(len(row["tokens"]) for row in wanted)
    assert counts["a"].trained == sum(int(row["loss_mask"].sum()) for row in wanted)
    keys = ps.read(chats.parent / "store" / "a", columns=["__key__"])
    assert [row["__key__"][0]["index"] for row in keys] == indices
    texts = ps.read(chats.parent / "store" / "more" / "%2Eb")
    tokenize = Tokenize(str(chats.parent / "t.json"))
    assert all(np.array_equal(ids, tokenize(f"line {i}")) for i, ids in enumerate(texts))
    assert (
        counts["more/.b"].trained == counts["more/.b"].tokens > 0 == len(counts["more/.b"].dropped)
    )


@pytest.mark.parametrize("drops", [False, True])
def test_the_mixture_over_the_store_gives_the_same_samples(chats: Path, drops: bool) -> None:
    text = MIXTURE[: MIXTURE.index("pack:")]
    text = text.replace("tokenize: {tokenizer", "chat: {format: text, eos: '', tokenizer")
    chats.write_text(text if drops else text.replace("max_length: 40", "untrained: keep"))
    write(chats, "store")
    direct, stored = (
        [
            repr([row["tokens"].tolist(), row["loss_mask"].tolist()])
            for row, _ in zip(ps.load(path), range(138), strict=False)
        ]
        for path in (chats, chats.parent / "store" / "mixture.yaml")
    )
    if drops:  # the sources have other lengths, and so other orders
        assert len(set(direct)) < 138
        direct, stored = sorted(set(direct)), sorted(set(stored))
    assert direct == stored and len(direct) > 90


def test_packing_over_the_store_is_planned_and_knows_its_end_token(chats: Path) -> None:
    chats.write_text(MIXTURE[: MIXTURE.index("  more:")] + MIXTURE[MIXTURE.index("pack:") :])
    write(chats, "store")
    made = (chats.parent / "store" / "mixture.yaml").read_text()
    assert f"eos: {bpe().token_to_id('<|im_end|>')}" in made and "chat" not in made
    ds = ps.load(chats.parent / "store" / "mixture.yaml")
    assert len(ds) > 10 and ds[0]["loss_mask"].shape == (2, 64)


@pytest.mark.parametrize(("method", "kept"), [("best_fit", True), ("best_fit, rows: 200", False)])
def test_packed_chats_stay_whole(chats: Path, method: str, kept: bool) -> None:
    chats.write_text(MIXTURE.replace("first_fit", method))
    write(chats, "store")
    made = (chats.parent / "store" / "mixture.yaml").read_text()
    assert ("overflow: never" in made) == kept
    lengths = {len(row["tokens"]) for row in ps.read(chats.parent / "store" / "a")}
    text = MIXTURE[: MIXTURE.index("  more:")] + MIXTURE[MIXTURE.index("pack:") :]
    text = text.replace("stop: all_exhausted\n", "").replace(", eos: <|im_end|>", "")
    chats.write_text(text.replace("first_fit", method).replace("64", "44"))
    write(chats, "chats")
    path = chats.parent / "chats" / "mixture.yaml"
    assert find_sizes(path) <= lengths or not kept
    path.write_text(path.read_text().replace("overflow: never", "rows: 200"))
    assert not find_sizes(path) <= lengths, "windows cut some of these chats"


def find_sizes(path: Path) -> set[int]:
    """Return the sizes of the documents in the first rows of a mixture."""
    rows = [
        row
        for batch, _ in zip(ps.load(path), range(200), strict=False)
        for row in batch["segment_ids"]
    ]
    return {size for row in rows for size in np.bincount(row)[1:].tolist()}


@pytest.mark.parametrize(
    ("executor", "workers"),
    [
        ("threads", 2),
        *[pytest.param("processes", n, marks=pytest.mark.slow) for n in pick_cases((3, 2, 1), 3)],
    ],
)
def test_the_same_bytes_for_any_workers(chats: Path, executor: Any, workers: int) -> None:
    write(chats, "alone")
    write(chats, "together", executor=executor, workers=workers)
    assert digests(chats.parent / "alone") == digests(chats.parent / "together")


def test_a_second_call_writes_nothing_and_other_settings_are_refused(chats: Path) -> None:
    first = write(chats, "store")
    before = {path: path.stat().st_mtime_ns for path in (chats.parent / "store").rglob("*.arrow")}
    assert write(chats, "store") == first
    assert before == {path: path.stat().st_mtime_ns for path in before}
    chats.write_text(MIXTURE.replace("max_length: 40", "max_length: 39"))
    with pytest.raises(ps.ConfigError, match="holds other shards"):
        write(chats, "store")


KILLED = """
import os, random, signal, sys
from pathlib import Path
from killed_writer import LethalDisk
from penstock.mixture_files import read_model
from penstock.mixture_files.tokenize import tokenize
from penstock.stores.storage import override_world

model, _ = read_model(sys.argv[1])
dice, kills = random.Random(int(sys.argv[2])), 0
while True:
    n = dice.randrange(1, 40)
    if (child := os.fork()) == 0:
        with override_world(disk=LethalDisk(n)):
            tokenize(model, sys.argv[3], shard=8)
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    if status == 0:
        break
    assert os.WTERMSIG(status) == signal.SIGKILL, status
    kills += 1
print(kills)
"""


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), *sys.path]), "TOKENIZERS_PARALLELISM": "false"}  # fmt: skip


@pytest.mark.slow  # processes that are killed
def test_a_writer_killed_at_any_effect_on_the_disk(chats: Path) -> None:
    counts = write(chats, "whole")
    command = [sys.executable, "-c", KILLED, str(chats), "5", str(chats.parent / "killed")]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 3
    assert digests(chats.parent / "whole") == digests(chats.parent / "killed")
    again = write(chats, "killed")
    for name, count in counts.items():
        assert (again[name].tokens, again[name].dropped) == (count.tokens, count.dropped)


@pytest.mark.slow  # processes that are killed
def test_the_command_killed_with_its_workers(chats: Path, penstock: Any) -> None:
    (chats.parent / "a.jsonl").write_text((chats.parent / "a.jsonl").read_text() * 10)
    store = chats.parent / "store"
    command = ["tokenize", str(chats), "-o", str(store), "--shard", "9", "--workers", "2"]
    with subprocess.Popen(
        [sys.executable, "-m", "penstock", *command], env=environment(), start_new_session=True
    ) as child:
        deadline = time.monotonic() + 60
        while len(list(store.glob("a/*.arrow"))) < 3 and time.monotonic() < deadline:
            assert child.poll() is None
        os.killpg(child.pid, signal.SIGKILL)
    assert 3 <= len(list(store.glob("a/*.arrow"))) < 216
    with pytest.raises(ps.ConfigError, match="incomplete"):
        ps.read(store / "a")
    result = penstock(*command, "--json")
    assert result.exit_code == 0, result.output
    write(chats, "whole", shard=9)
    assert digests(chats.parent / "whole") == digests(store)
    found = json.loads(result.stdout)
    assert found["dropped"]["untrained"] >= 200 and found["documents"] > 500


def test_what_cannot_be_tokenized_is_refused(chats: Path, penstock: Any) -> None:
    out = chats.parent / "out"
    chats.write_text("sources: {a: {path: a.jsonl}}")
    refused = penstock("tokenize", chats, "-o", out)
    assert refused.exit_code == 2 and "add tokenize or chat" in refused.stderr and not out.exists()
    chats.write_text("sources: {a: {path: a.jsonl}}\nchat: {tokenizer: t.json, template: chatml, max_length: 3}")  # fmt: skip
    refused = penstock("tokenize", chats, "-o", out)
    assert refused.exit_code == 2 and "drops all samples" in refused.stderr
    refused = penstock("tokenize", chats, "-o", out, "--part", "held_out")
    assert refused.exit_code == 2 and "nothing is held out" in refused.stderr
    chats.write_text("sources: {a: {path: a.jsonl}}\nchat: {tokenizer: t.json, tempalte: x}")
    refused = penstock("tokenize", chats, "-o", out)
    assert refused.exit_code == 2 and "line 2, chat.tempalte" in refused.stderr


def test_both_sides_of_a_split(chats: Path) -> None:
    chats.write_text(MIXTURE + "split: {held_out: 20%}\n")
    train, held = write(chats, "train"), write(chats, "held", part="held_out")
    both = [sum(one["a"].documents for one in (train, held)), sum(sum(one["a"].dropped.values()) for one in (train, held))]  # fmt: skip
    assert sum(both) == 97 and held["a"].documents > 0
    assert "split" not in (chats.parent / "train" / "mixture.yaml").read_text()
    found = ps.read(chats.parent / "held" / "a")
    assert len(found) == held["a"].documents and found[0]["loss_mask"].any()
