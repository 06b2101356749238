"""The pipeline of the demo: three formats, a schedule, a cap, a tokenizer, packed rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

import penstock as ps

END = "<|end|>"
VOCABULARY = 8_192
LENGTH = 1_024
BATCH = 8
BLOCK = 100
SOURCES = ("code", "prose", "pairs")

# Much code at first, then more and more prose and pairs; the pairs are used up before the end.
SCHEDULE = ps.Schedule(
    [(0, {"code": 0.7, "prose": 0.2, "pairs": 0.1}), (6_000, {"code": 0.2, "prose": 0.3, "pairs": 0.5})],
    interpolation="linear",
)
CAPS = {"pairs": 0.15}


def plan(sizes: Mapping[str, int], samples: int = 100_000) -> Callable[[int], Mapping[str, float]]:
    """The shares that schedule and cap ask for after so many samples."""
    left = {name: CAPS.get(name, float("inf")) * size for name, size in sizes.items()}
    shares: list[dict[str, float]] = []
    for position in range(0, samples, BLOCK):
        weights = {name: weight if left[name] > 0 else 0.0 for name, weight in SCHEDULE.weights(position).items()}
        shares.append({name: weight / sum(weights.values()) for name, weight in weights.items()})
        for name, share in shares[-1].items():
            left[name] -= share * BLOCK
    return lambda position: shares[min(position // BLOCK, len(shares) - 1)]


def datasets(folder: Path) -> dict[str, ps.Dataset]:
    """The three sources, as they lie on disk."""
    return {
        "code": ps.read(str(folder / "code" / "*.parquet"), columns=["text"]),
        "prose": ps.read(str(folder / "prose" / "*.jsonl")),
        "pairs": ps.read(str(folder / "pairs" / "*.arrow")),
    }


def text_of(sample: Mapping[str, Any]) -> str:
    """The text to train on, whatever the source calls it."""
    return sample["text"] if "text" in sample else f"{sample['instruction']}\n{sample['answer']}"


def train_tokenizer(folder: Path, samples: int = 600) -> Path:
    """A byte-level BPE of 8,192 tokens, trained on an even sample of the three sources."""

    def texts() -> Iterator[str]:
        for dataset in datasets(folder).values():
            yield from (text_of(sample) for sample in dataset.shuffle(seed=0)[:samples])

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts(), trainer)
    path = folder / "tokenizer.json"
    tokenizer.save(str(path))
    return path


def pipeline(folder: Path, seed: int = 42) -> ps.Dataset:
    """Mixed, tokenised, packed, batched: `int32[8, 1024]` tokens, segment ids and positions."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))

    def tokenise(sample: Mapping[str, Any]) -> npt.NDArray[np.int32]:
        return np.asarray(tokenizer.encode(text_of(sample)).ids, np.int32)

    mixture = ps.mix(
        {name: dataset.shuffle() for name, dataset in datasets(folder).items()},
        SCHEDULE,
        seed=seed,
        block_size=BLOCK,
        max_epochs=CAPS,
    )
    return mixture.map(tokenise).pack(LENGTH, eos=tokenizer.token_to_id(END)).batch(BATCH)
