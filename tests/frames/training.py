"""Runs of a trainer in processes that are killed, for `test_trainers.py`: reads the runs as JSON, does one after the other.

The framework is imported once; each rank is a fork of its own, which may kill itself by SIGKILL after a batch.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

import penstock as ps

BATCHES, ACCUMULATE, EVERY = 22, 2, 6  # batches trained; to an optimizer step; to a checkpoint


def document(i: int) -> np.ndarray:
    return np.full(3 + i % 4, i, np.int64)


def mixed() -> ps.Dataset:
    sizes = {"a": (0, 40), "b": (1_000, 30), "c": (2_000, 26)}
    flows = {name: ps.from_sequence(range(at, at + n)).shuffle() for name, (at, n) in sizes.items()}
    return ps.mix(flows, {"a": 3, "b": 2, "c": 1}, seed=4)


def tensors(key: str, batch: Any) -> dict[str, torch.Tensor]:
    ids = torch.as_tensor(np.asarray(batch[key]))
    return {"ids": ids, "x": (ids % 17).float() / 17}


def opened(flow: str, world: int) -> ps.Loader:
    """Batches of 8 documents or packed rows on all ranks together, 10 to an epoch."""
    if flow == "rows":
        ds = mixed().limit(80).map(lambda i: {"ids": i}).batch(8 // world).map(partial(tensors, "ids"))
        return ps.Loader(ds, workers=2)
    packed = mixed().map(document).filter(lambda ids: ids[0] % 3).pack(16).batch(8 // world)
    return ps.Loader(packed.map(partial(tensors, "tokens")), epoch_length=10 * world, lanes=12)


@dataclass
class Run:
    """One run: on how many ranks, where its checkpoints lie, whether it goes on, and after which batch it dies."""

    trainer: str
    flow: str
    world: int
    folder: str
    resume: bool
    kill: int

    def loader(self) -> ps.Loader:
        return opened(self.flow, self.world)


class Model(torch.nn.Module):
    """One weight; what it was given and lost goes to a file of the rank."""

    def __init__(self, run: Run) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear, self.left = torch.nn.Linear(1, 1), run.kill
        self.log = Path(run.folder, f"rank-{os.environ['RANK']}.jsonl").open("a")

    def forward(self, ids: torch.Tensor, x: torch.Tensor) -> dict[str, torch.Tensor]:
        loss = (self.linear(x[..., None])[..., 0] - 2 * x).pow(2).mean()
        self.log.write(json.dumps([ids.tolist(), loss.item()]) + "\n")
        self.log.flush()
        self.left -= 1
        if not self.left:
            os.kill(os.getpid(), signal.SIGKILL)
        return {"loss": loss}


def by_lightning(run: Run) -> None:
    import lightning.pytorch as lightning
    from lightning.pytorch.callbacks import ModelCheckpoint

    from penstock.frames.lightning import TrainLoader

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = Model(run)

        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            return self.model(**batch)["loss"]

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), 0.1)

    train = TrainLoader(run.loader)
    trainer = lightning.Trainer(
        accelerator="cpu", devices=run.world, strategy="ddp" if run.world > 1 else "auto", max_steps=BATCHES // ACCUMULATE,
        accumulate_grad_batches=ACCUMULATE, logger=False, enable_progress_bar=False, enable_model_summary=False,
        callbacks=[train, ModelCheckpoint(run.folder, save_last=True, every_n_train_steps=EVERY // ACCUMULATE)],
    )  # fmt: skip
    trainer.fit(Module(), train, ckpt_path=str(Path(run.folder, "last.ckpt")) if run.resume else None)


def by_accelerate(run: Run) -> None:
    from accelerate import Accelerator

    from penstock.frames.trainers import AllRanks

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=ACCUMULATE)
    model = Model(run)
    loader = run.loader()
    model, optimizer, train = accelerator.prepare(model, torch.optim.SGD(model.parameters(), 0.1), loader)
    accelerator.register_for_checkpointing(AllRanks(loader))
    done = 0
    if run.resume:
        last = max(Path(run.folder).glob("batch-*"), key=lambda path: int(path.name[6:]))
        accelerator.load_state(str(last))
        done = int(last.name[6:])
    while done < BATCHES:
        for batch in train:
            with accelerator.accumulate(model):
                accelerator.backward(model(**batch)["loss"])
                optimizer.step()
                optimizer.zero_grad()
            done += 1
            if done % EVERY == 0:
                accelerator.save_state(str(Path(run.folder, f"batch-{done}")))
            if done == BATCHES:
                break


def by_transformers(run: Run) -> None:
    from transformers import Trainer, TrainingArguments

    from penstock.frames.transformers import FromLoader

    class Trained(FromLoader, Trainer):
        pass

    arguments = TrainingArguments(
        run.folder, learning_rate=0.1, lr_scheduler_type="constant", optim="sgd", max_steps=BATCHES // ACCUMULATE,
        gradient_accumulation_steps=ACCUMULATE, save_steps=EVERY // ACCUMULATE, report_to=[], use_cpu=True,
        disable_tqdm=True, logging_strategy="no", max_grad_norm=0, ddp_backend="gloo" if run.world > 1 else None,
    )  # fmt: skip
    Trained(Model(run), arguments, train_loader=run.loader()).train(resume_from_checkpoint=run.resume)


TRAINERS: dict[str, Callable[[Run], None]] = {
    "lightning": by_lightning, "accelerate": by_accelerate, "transformers": by_transformers,
}  # fmt: skip


def rank_of(run: Run, rank: int, port: int) -> None:
    """One rank of a run, in a process of its own."""
    place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": run.world, "LOCAL_WORLD_SIZE": run.world, "MASTER_PORT": port}
    os.environ |= {name: str(value) for name, value in place.items()} | {"MASTER_ADDR": "127.0.0.1", "GROUP_RANK": "0"}
    TRAINERS[run.trainer](run)
    os._exit(0)


def main() -> None:
    torch.set_num_threads(1)
    for asked in json.load(sys.stdin):
        run = Run(**asked)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        ranks = list[int]()
        for rank in range(run.world):
            if not (process := os.fork()):
                try:
                    rank_of(run, rank, port)
                finally:
                    os._exit(1)
            ranks.append(process)
        ends = [os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) for process in ranks]
        assert ends == [-signal.SIGKILL if run.kill else 0] * run.world, (run, ends)


if __name__ == "__main__":
    main()
