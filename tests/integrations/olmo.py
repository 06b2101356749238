"""OLMo-core's own Trainer on a CPU; the train module is a small one of our own, over its `BasicTrainModule`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

import penstock as ps
from penstock.integrations.olmo import data_loader

if TYPE_CHECKING:
    from .training import Run

ROW = 16


def tokens(batch: Any) -> dict[str, torch.Tensor]:
    return {"input_ids": torch.as_tensor(batch["tokens"])}


def train(run: Run, packed: Any, model: torch.nn.Module, batches: int) -> None:
    """Train by OLMo-core.

    Args:
        run: what to do.
        packed: makes the dataset of rows of so many tokens.
        model: takes samples and their values.
        batches: how many to train.
    """
    from olmo_core.train import Duration, LoadStrategy, TrainerConfig, prepare_training_environment  # pyright: ignore[reportMissingImports]
    from olmo_core.train.callbacks import CheckpointerCallback  # pyright: ignore[reportMissingImports]
    from olmo_core.train.train_module import BasicTrainModule  # pyright: ignore[reportMissingImports]

    class Module(BasicTrainModule):
        def train_batch(self, batch: Any, dry_run: bool = False) -> None:
            ids = batch["input_ids"]
            loss = self.model(ids, (ids % 17).float() / 17)["loss"]
            loss.backward()
            self.record_ce_loss(loss.detach())

        def optim_step(self) -> None:
            for weight in self.model.parameters():
                torch.distributed.all_reduce(weight.grad)
                weight.grad /= run.world
            super().optim_step()

        def num_flops_per_token(self, seq_len: int) -> None:
            return None

        def global_num_flops_in_batch(self, batch: Any) -> None:
            return None

    prepare_training_environment(backend="gloo", shared_filesystem=True)
    loader = ps.Loader(packed(ROW).batch(8 // run.world).map(tokens), lanes=12)
    module = Module(model, torch.optim.SGD(model.parameters(), 0.1), rank_microbatch_size=ROW)
    config = TrainerConfig(
        save_folder=run.folder, work_dir=run.folder, device="cpu", max_duration=Duration.steps(batches),
        load_path=run.begin or None, load_strategy=LoadStrategy.always if run.begin else LoadStrategy.never,
        load_trainer_state=True, no_evals=True, save_overwrite=True,
        callbacks={"checkpointer": CheckpointerCallback(save_interval=run.step * run.every, save_async=False)},
    )  # fmt: skip
    config.build(module, data_loader(loader, run.folder, global_batch_size=8 * ROW)).fit()
