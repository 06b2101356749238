"""Data and mixture files for the pages of the docs that show commands, but make no data."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

MIXTURE = """\
seed: 7
sources:
  code: {path: code.jsonl, weight: 0.5}
  math: {path: math.jsonl, weight: 0.1, max_epochs: 0.5}
  text: {path: text.jsonl, weight: 0.4}
batch: {size: 8}
horizon: {steps: 1000}
"""

CURRICULUM = """\
seed: 7
sources: {code: {path: code.jsonl}, math: {path: math.jsonl}, text: {path: text.jsonl}}
stages:
  - {name: first, weights: {code: 50, text: 50}, until: 30%}
  - {name: mid, weights: {code: 40, math: 10, text: 50}, until: 80%}
  - {name: anneal, weights: {code: 40, math: 20, text: 40}}
batch: {size: 8}
horizon: {steps: 1000}
"""

SFT = """\
seed: 3
chat: {tokenizer: tokenizer.json, template: chatml}
sources: {sums: {path: sums.jsonl}}
pack: {length: 64, method: first_fit}
"""

FAULTY = """\
seed: 3
sources:
  web: {path: web.parquet, columns: [tokens], lengths: tokens}
  forum: {path: forum.parquet, columns: [tokens], lengths: tokens}
  books: {path: books.parquet, columns: [tokens], lengths: tokens, shuffle: none}
  shards: {path: shards, columns: [tokens], lengths: tokens, shuffle: none}
schedule:
  unit: steps
  interpolation: step
  points:
    0: {web: 90, forum: 0, books: 1, shards: 9}
    200: {web: 80, forum: 10, books: 1, shards: 9}
    220: {web: 90, forum: 0, books: 1, shards: 9}
batch: {size: 20}
horizon: {steps: 400}
"""


def make_tokenizer(path: Path) -> None:
    """Write a tokenizer with one token for each byte and for each mark of ChatML."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: i for i, letter in enumerate(letters)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|im_start|>", "<|im_end|>", "<|endoftext|>"])
    tokenizer.save(str(path))


def make_faulty_run(folder: Path) -> None:
    """Write a run with three planted faults in its steps 200 to 220."""
    rng = np.random.default_rng(5)

    def write(path: Path, sizes: list[int]) -> None:
        tokens = [rng.integers(0, 1000, size).tolist() for size in sizes]
        pq.write_table(pa.table({"tokens": tokens}), path)

    for name in ("web", "forum"):
        write(folder / f"{name}.parquet", rng.integers(5, 60, 2000).tolist())
    sizes = rng.integers(5, 60, 1000)
    sizes[40:44] *= 10
    write(folder / "books.parquet", sizes.tolist())
    (folder / "shards").mkdir()
    for part in range(80):
        path = folder / "shards" / f"{part:02d}.parquet"
        write(path, rng.integers(5, 60, 11).tolist())
        if 33 < part < 37:
            path.write_bytes((folder / "shards" / "33.parquet").read_bytes())


def make_command_data(folder: Path) -> None:
    """Write the files that the commands of `docs/command-line.md` name."""
    for name, rows in (("code", 2_900), ("text", 1_100), ("math", 700)):
        lines = [json.dumps({"text": f"{name} {i}"}) + "\n" for i in range(rows)]
        (folder / f"{name}.jsonl").write_text("".join(lines))
    chats = [
        [
            {"role": "user", "content": f"What is {i} + {i}?"},
            {"role": "assistant", "content": f"{2 * i}."},
        ]
        for i in range(100)
    ]
    (folder / "sums.jsonl").write_text(
        "".join(json.dumps({"messages": chat}) + "\n" for chat in chats)
    )
    make_tokenizer(folder / "tokenizer.json")
    make_faulty_run(folder)
    (folder / "mixture.yaml").write_text(MIXTURE)
    (folder / "other.yaml").write_text(MIXTURE.replace("0.4", "0.3"))
    (folder / "curriculum.yaml").write_text(CURRICULUM)
    (folder / "sft.yaml").write_text(SFT)
    (folder / "faulty.yaml").write_text(FAULTY)
    (folder / "bad.jsonl").write_text('["code", 3]\n')
