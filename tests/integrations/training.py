"""Runs of a trainer in processes that are killed, for `test_trainers.py`: reads the runs as JSON, does one after the other.

The framework is imported once; each rank is a fork of its own, which may kill itself by SIGKILL after a batch.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

import penstock as ps

BATCHES = 22
"""What every run trains, in the end."""


def document(i: int) -> np.ndarray:
    return np.full(3 + i % 4, i, np.int64)


def mixed() -> ps.Dataset:
    sizes = {"a": (0, 40), "b": (1_000, 30), "c": (1_500, 26)}
    flows = {name: ps.from_sequence(range(at, at + n)).shuffle() for name, (at, n) in sizes.items()}
    return ps.mix(flows, {"a": 3, "b": 2, "c": 1}, seed=4)


def packed(length: int) -> ps.Dataset:
    return mixed().map(document).filter(lambda ids: ids[0] % 3).pack(length)


def tensors(key: str, batch: Any) -> dict[str, torch.Tensor]:
    ids = torch.as_tensor(np.asarray(batch[key]))
    return {"ids": ids, "x": (ids % 17).float() / 17}


def opened(flow: str, world: int) -> ps.Loader:
    """Batches of 8 documents or packed rows on all ranks together: 10 to an epoch, or without end."""
    if flow == "rows":
        ds = (
            mixed()
            .limit(80)
            .shuffle(seed=1)
            .map(lambda i: {"ids": i})
            .batch(8 // world)
            .map(partial(tensors, "ids"))
        )
        return ps.Loader(ds, workers=2)
    if flow == "ends":  # nobody knows where: on one rank
        ds = (
            mixed()
            .limit(80)
            .shuffle(seed=1)
            .filter(lambda i: i % 3)
            .map(lambda i: {"ids": i})
            .batch(8)
            .map(partial(tensors, "ids"))
        )
        return ps.Loader(ds, lanes=4)
    return ps.Loader(packed(16).batch(8 // world).map(partial(tensors, "tokens")), lanes=12)


@dataclass
class Run:
    """One run: on how many ranks, where its checkpoints lie, from which one it goes on, after which batch it dies.

    `step` batches make a step of the optimizer, `every` steps a checkpoint.
    """

    trainer: str
    flow: str
    world: int
    folder: str
    begin: str = ""
    kill: int = 0
    step: int = 2
    every: int = 3

    @property
    def steps(self) -> int:
        return BATCHES // self.step

    def loader(self) -> ps.Loader:
        return opened(self.flow, self.world)


class Note:
    """Log the samples and the loss of a rank to its file, then kill the rank if it is time."""

    def __init__(self, run: Run) -> None:
        self.file, self.left = (
            Path(run.folder, f"rank-{os.environ['RANK']}.jsonl").open("a"),
            run.kill,
        )

    def __call__(self, ids: torch.Tensor, loss: torch.Tensor) -> None:
        self.file.write(json.dumps([ids.tolist(), loss.item()]) + "\n")
        self.file.flush()
        self.left -= 1
        if not self.left:
            os.kill(os.getpid(), signal.SIGKILL)


class Model(torch.nn.Module):
    """One weight."""

    def __init__(self, run: Run) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear, self.note = torch.nn.Linear(1, 1), Note(run)

    def forward(self, ids: torch.Tensor, x: torch.Tensor) -> dict[str, torch.Tensor]:
        loss = (self.linear(x[..., None])[..., 0] - 2 * x).pow(2).mean()
        self.note(ids, loss)
        return {"loss": loss}


def by_lightning(run: Run) -> None:
    import lightning.pytorch as lightning  # pyright: ignore[reportMissingImports]
    from lightning.pytorch.callbacks import ModelCheckpoint  # pyright: ignore[reportMissingImports]

    from penstock.integrations.lightning import TrainLoader

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = Model(run)

        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            return self.model(**batch)["loss"]

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), 0.1)

    train = TrainLoader(run.loader)
    saved = ModelCheckpoint(
        run.folder,
        "checkpoint-{step}",
        auto_insert_metric_name=False,
        save_top_k=-1,
        every_n_train_steps=run.every,
    )
    saved.FILE_EXTENSION = ""  # pyright: ignore[reportAttributeAccessIssue]
    trainer = lightning.Trainer(
        accelerator="cpu", devices=run.world, strategy="ddp" if run.world > 1 else "auto", max_steps=run.steps,
        accumulate_grad_batches=run.step, logger=False, enable_progress_bar=False, enable_model_summary=False,
        callbacks=[train, saved], use_distributed_sampler=True,
    )  # fmt: skip
    trainer.fit(Module(), train, ckpt_path=run.begin or None)


def by_accelerate(run: Run) -> None:
    from accelerate import Accelerator  # pyright: ignore[reportMissingImports]

    from penstock.integrations.trainers import AllRanks

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=run.step)
    model, loader = Model(run), run.loader()
    model, optimizer, train = accelerator.prepare(
        model, torch.optim.SGD(model.parameters(), 0.1), loader
    )
    accelerator.register_for_checkpointing(AllRanks(loader))
    done = 0
    if run.begin:
        accelerator.load_state(run.begin)
        done = int(run.begin.rpartition("-")[2]) * run.step
    while done < BATCHES:
        for batch in islice(train, BATCHES - done):
            with accelerator.accumulate(model):
                accelerator.backward(model(**batch)["loss"])
                optimizer.step()
                optimizer.zero_grad()
            done += 1
            if done % (run.step * run.every) == 0:
                accelerator.save_state(str(Path(run.folder, f"checkpoint-{done // run.step}")))


def by_transformers(run: Run) -> None:
    from transformers import Trainer, TrainingArguments

    from penstock.integrations.transformers import FromLoader

    class Trained(FromLoader, Trainer):
        pass

    arguments = TrainingArguments(
        run.folder, learning_rate=0.1, lr_scheduler_type="constant", optim="sgd", max_steps=run.steps,
        gradient_accumulation_steps=run.step, save_steps=run.every, report_to=[], use_cpu=True,
        disable_tqdm=True, logging_strategy="no", max_grad_norm=0, ddp_backend="gloo" if run.world > 1 else None,
    )  # fmt: skip
    Trained(Model(run), arguments, train_loader=run.loader()).train(
        resume_from_checkpoint=run.begin or None
    )


def by_torchtitan(run: Run) -> None:
    from integrations.titan import train

    train(run, packed, Note(run), BATCHES)


def by_olmo(run: Run) -> None:
    from integrations.olmo import train

    train(run, packed, Model(run), BATCHES)


TRAINERS: dict[str, tuple[Callable[[Run], None], str]] = {
    "lightning": (by_lightning, "lightning.pytorch"),
    "accelerate": (by_accelerate, "accelerate"),
    "transformers": (by_transformers, "transformers.trainer"),
    "torchtitan": (by_torchtitan, "torchtitan"),
    "olmo_core": (by_olmo, "olmo_core.train"),
}
"""What runs, and what every run would import."""


def rank_of(run: Run, rank: int, port: int) -> None:
    """One rank of a run, in a process of its own."""
    place = {
        "RANK": rank,
        "LOCAL_RANK": rank,
        "WORLD_SIZE": run.world,
        "LOCAL_WORLD_SIZE": run.world,
        "MASTER_PORT": port,
    }
    os.environ |= {name: str(value) for name, value in place.items()} | {
        "MASTER_ADDR": "127.0.0.1",
        "GROUP_RANK": "0",
    }
    TRAINERS[run.trainer][0](run)
    os._exit(0)


def main() -> None:
    torch.set_num_threads(1)
    runs = [Run(**asked) for asked in json.load(sys.stdin)]
    for name in {TRAINERS[run.trainer][1] for run in runs}:
        import_module(name)
    for run in runs:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        ranks = list[int]()
        for rank in range(run.world):
            if not (process := os.fork()):
                try:
                    rank_of(run, rank, port)
                except BaseException:
                    traceback.print_exc()
                finally:
                    os._exit(1)
            ranks.append(process)
        ends = [os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) for process in ranks]
        assert ends == [-signal.SIGKILL if run.kill else 0] * run.world, (run, ends)


if __name__ == "__main__":
    main()
