"""Fine-tune a tiny model on a mixture of EasyData; run by test_easydata_training.py.

python easydata_training.py FOLDER STEPS [KILLED_AT]
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from penstock.compat.easydata import (
    AsyncDataLoader,
    HFDatasetShardedSource,
    MixedShardedSource,
    SFTPreprocessTransform,
)

WORDS = "<unk> <pad> <eos> user assistant a b c d e".split()


def build_loader() -> AsyncDataLoader:
    words = Tokenizer(models.WordLevel({w: i for i, w in enumerate(WORDS)}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer: Any = PreTrainedTokenizerFast(
        tokenizer_object=words, unk_token="<unk>", pad_token="<pad>", eos_token="<eos>"
    )
    tokenizer.chat_template = (
        "{% for m in messages %}{{ m['role'] }} {{ m['content'] }} {% endfor %}"
    )
    chats = [
        {
            "messages": [
                {"role": "user", "content": WORDS[5 + i % 5]},
                {"role": "assistant", "content": "a b"},
            ]
        }
        for i in range(40)
    ]
    texts = [{"text": " ".join(WORDS[5 : 6 + i % 5])} for i in range(60)]
    transform = SFTPreprocessTransform(tokenizer, max_length=8, mask_prompt=True)
    sources = {
        "chats": HFDatasetShardedSource(chats).transform(transform),
        "texts": HFDatasetShardedSource(texts).transform(transform),
    }
    mixed = MixedShardedSource(sources, {"chats": 0.6, "texts": 0.4}, block_size=10, seed=1)
    return AsyncDataLoader(mixed, batch_size=4, shuffle_buffer_size=16, seed=2)


def train(folder: Path, steps: int, killed_at: int | None) -> None:
    """Train up to a step, with a checkpoint every three; kill the process before a step."""
    loader, checkpoint = build_loader(), folder / "checkpoint.npz"
    weights, step = np.zeros((len(WORDS), len(WORDS)), np.float32), 0
    if checkpoint.exists():
        with np.load(checkpoint) as saved:
            weights, step = saved["weights"], int(saved["step"])
            loader.load_state_dict(json.loads(str(saved["state"])))
    for batch in loader:
        if step == killed_at:
            os.kill(os.getpid(), signal.SIGKILL)
        ids, mask = batch["input_ids"], batch["completion_mask"][:, 1:]
        before, after = ids[:, :-1][mask > 0], ids[:, 1:][mask > 0]
        probabilities = np.exp(weights[before])
        probabilities /= probabilities.sum(1, keepdims=True)
        probabilities[np.arange(len(after)), after] -= 1
        np.subtract.at(weights, before, probabilities * np.float32(0.1))
        step += 1
        if step % 3 == 0:
            part = folder / "part.npz"
            np.savez(part, weights=weights, step=step, state=json.dumps(loader.state_dict()))
            part.replace(checkpoint)
        if step == steps:
            break
    np.save(folder / "weights.npy", weights)


if __name__ == "__main__":
    train(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else None)
