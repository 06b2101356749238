"""The demo's pipeline: train a tokenizer, write token files and the mixture file."""

from __future__ import annotations

import shutil
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.ipc as ipc
import pyarrow.parquet as pq
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

import penstock as ps

END_TOKEN = "<|end|>"
VOCABULARY_SIZE = 8_192
TOKENIZER_BATCH_SIZE = 512  # texts per tokenizer batch
SOURCE_NAMES = ("code", "prose", "pairs")
MIXTURE = "mixture.yaml"
RAMP_STEPS = 400  # steps over which the weights change

# The share of code shrinks, those of prose and pairs grow; the pairs are used up before the end.
MIXTURE_TEMPLATE = """\
# The data of the demo. Query it with:
#   penstock plan {name}
#   penstock at {name} 83
sources:
  code: {{path: tokens/code.parquet, lengths: tokens}}
  prose: {{path: tokens/prose.arrow, lengths: tokens}}
  pairs: {{path: tokens/pairs.arrow, lengths: tokens, max_epochs: 0.9}}
unit: tokens
schedule:
  unit: steps
  interpolation: linear
  points:
    0: {{code: 0.7, prose: 0.2, pairs: 0.1}}
    {last}: {{code: 0.3, prose: 0.25, pairs: 0.45}}
seed: {seed}
block_size: 100
stop: all_exhausted_oversample
pack: {{length: 1024, eos: {end}}}
batch: {{size: 8}}
horizon: {{steps: {steps}}}
"""


def texts(folder: Path) -> dict[str, ps.Dataset]:
    """Return the three sources: Parquet, JSON lines and Arrow."""
    return {
        "code": ps.read(str(folder / "code" / "*.parquet"), columns=["text"]),
        "prose": ps.read(str(folder / "prose" / "*.jsonl")),
        "pairs": ps.read(str(folder / "pairs" / "*.arrow")),
    }


def extract_text(sample: Mapping[str, Any]) -> str:
    """Return the text of a sample, for any of the three sources."""
    return sample["text"] if "text" in sample else f"{sample['instruction']}\n{sample['answer']}"


def train_tokenizer(folder: Path, samples: int = 600) -> Path:
    """Train a byte-level BPE of 8,192 tokens on an even sample of the sources."""

    def sampled() -> Iterator[str]:
        for dataset in texts(folder).values():
            yield from (extract_text(sample) for sample in dataset.shuffle(seed=0)[:samples])

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY_SIZE,
        special_tokens=[END_TOKEN],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(sampled(), trainer)
    path = folder / "tokenizer.json"
    tokenizer.save(str(path))
    return path


def tokenize(folder: Path) -> int:
    """Write the tokens of every text to `tokens/`, one row per text; return their number."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    schema: Any = pa.schema([("tokens", pa.list_(pa.int32()))])
    # Also removes indexes of an earlier demo.
    shutil.rmtree(folder / "tokens", ignore_errors=True)
    (folder / "tokens").mkdir()
    total = 0
    for name, dataset in texts(folder).items():
        with _open_writer(folder / "tokens" / name, schema, parquet=name == "code") as writer:
            for group in dataset.map(extract_text).batch(TOKENIZER_BATCH_SIZE, collate=list):
                ids = [encoded.ids for encoded in tokenizer.encode_batch(group)]
                columns: dict[str, Any] = {"tokens": pa.array(ids, schema.field("tokens").type)}
                writer.write_table(pa.table(columns))
                total += sum(map(len, ids))
    return total


@contextmanager
def _open_writer(path: Path, schema: Any, parquet: bool) -> Generator[Any]:
    if parquet:
        with pq.ParquetWriter(path.with_suffix(".parquet"), schema) as writer:
            yield writer
    else:
        with (
            pa.OSFile(str(path.with_suffix(".arrow")), "wb") as file,
            ipc.new_file(file, schema) as writer,
        ):
            yield writer


def write_mixture(folder: Path, steps: int, seed: int = 42) -> Path:
    """Write the demo's mixture file."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    path = folder / MIXTURE
    end = tokenizer.token_to_id(END_TOKEN)
    path.write_text(
        MIXTURE_TEMPLATE.format(name=path, seed=seed, end=end, last=RAMP_STEPS, steps=steps),
        encoding="utf-8",
    )
    return path
