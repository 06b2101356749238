"""A Trainer on packed rows with masks, for `test_loss_counts.py`; each rank is a process.

Arguments: port, how the number of tokens is found, and a folder.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import Trainer, TrainingArguments

import penstock as ps
from integrations.forked_ranks import fork_ranks
from penstock.integrations.losses import count_loss_tokens, reduce_loss_tokens
from penstock.integrations.transformers import FromLoader
from penstock.text import CausalLM

LENGTH, ROWS, STEPS, ACCUMULATED, VOCABULARY, RATE = 24, 4, 5, 2, 30, 0.5

WORLD = 2


class Documents:
    """Documents; some are learned only in part."""

    def __init__(self) -> None:
        rng = np.random.default_rng(5)
        self.lengths = rng.integers(2, 30, 60)
        self.rows = [
            {
                "input_ids": rng.integers(1, VOCABULARY, n),
                "loss_mask": (rng.random(n) < rng.choice([0.1, 0.9])).astype(np.int8),
            }
            for n in self.lengths.tolist()
        ]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self.rows[index]


def batches() -> ps.Dataset:
    rows = ps.from_sequence(Documents()).shuffle(seed=2).repeat().pack(LENGTH)
    return rows.batch(global_batch_size=ROWS).map(CausalLM(("input_ids", "labels")))


class Model(torch.nn.Module):
    """One table; its loss divides by `num_items_in_batch`, as models of transformers do."""

    accepts_loss_kwargs = True

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = torch.nn.Embedding(VOCABULARY, VOCABULARY)

    def forward(self, input_ids: Any, labels: Any, num_items_in_batch: Any = None) -> Any:
        logits, targets = self.table(input_ids)[:, :-1].flatten(0, 1), labels[:, 1:].flatten()
        total = torch.nn.functional.cross_entropy(logits, targets, reduction="sum")
        if num_items_in_batch is None:
            num_items_in_batch = (targets != -100).sum()
        return {"loss": total / num_items_in_batch}


class OnLoader(FromLoader, Trainer):
    pass


def train_by_hand() -> list[list[float]]:
    """Return the table after training on one process, with the mean over all tokens of a step."""
    model, items = Model(), iter(ps.Loader(batches(), rank=0, world_size=1, to="torch"))
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    for _ in range(STEPS):
        parts = [next(items) for _ in range(ACCUMULATED)]
        count = sum(int((part["labels"][:, 1:] != -100).sum()) for part in parts)
        for part in parts:
            model(**part, num_items_in_batch=count)["loss"].backward()
        optimizer.step()
        optimizer.zero_grad()
    return model.table.weight.tolist()


def train(rank: int, port: str, way: str, folder: str) -> None:
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(WORLD)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    args = TrainingArguments(
        output_dir=folder, max_steps=STEPS, gradient_accumulation_steps=ACCUMULATED, use_cpu=True,
        per_device_train_batch_size=1, learning_rate=RATE, optim="sgd", lr_scheduler_type="constant",
        max_grad_norm=0, report_to=[], save_strategy="no", disable_tqdm=True, ddp_backend="gloo",
        remove_unused_columns=False, average_tokens_across_devices=True,
    )  # fmt: skip
    ds = batches()
    if way == "gathered":  # the plan does not know what the function does
        ds = ds.map(lambda batch: batch)
    loader = ps.Loader(ds, to="torch")
    trainer = OnLoader(Model(), args, train_loader=loader)
    gathers, gather = list[int](), trainer.accelerator.gather

    def count_gathers(value: Any) -> Any:
        gathers.append(1)
        return gather(value)

    trainer.accelerator.gather = count_gathers
    numbers = list[int]()
    count = trainer._get_num_items_in_batch

    def record(samples: list[Any], *rest: Any) -> Any:
        number = count(samples, *rest)
        before = len(gathers)
        assert int(number) == reduce_loss_tokens(sum(map(count_loss_tokens, samples)))
        assert len(gathers) == before
        numbers.append(int(number))
        return number

    trainer._get_num_items_in_batch = record  # pyright: ignore[reportAttributeAccessIssue]
    trainer.train()
    table = trainer.accelerator.unwrap_model(trainer.model).table.weight.tolist()
    Path(folder, f"{way}-{rank}.json").write_text(json.dumps([numbers, len(gathers), table]))


if __name__ == "__main__":
    torch.set_num_threads(1)
    fork_ranks(WORLD, lambda rank: train(rank, *sys.argv[1:]))
