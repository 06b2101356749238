"""One evaluation by a trainer on one or more ranks, for `test_evaluation.py`: arguments are trainer, ranks, port, folder.

Each rank writes what it counted and the length of its data, as JSON.
"""

from __future__ import annotations

import json
import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

import penstock as ps
from integrations.forked_ranks import fork_ranks
from penstock.integrations.trainers import EvalLoader

ROWS, BATCH = 17, 4


def make_loader(labels: bool = False) -> ps.Loader:
    """Make the loader of this rank. On two ranks, the last batch of one of them is padding alone."""
    rows = ps.from_sequence(
        [
            {"id": i, "score": np.float32(i) ** 2, **({"labels": 2 * i} if labels else {})}
            for i in range(ROWS)
        ]
    )
    return ps.Loader(rows.batch(BATCH), remainder="pad", to="torch")


def by_lightning() -> dict[str, Any]:
    import lightning.pytorch as lightning  # pyright: ignore[reportMissingImports]
    from torchmetrics import MeanMetric  # pyright: ignore[reportMissingImports]

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.mean = torch.nn.Linear(1, 1), MeanMetric()
            self.evaluations = [list[int]()]

        def validation_step(self, batch: Any, batch_idx: int) -> None:
            valid = batch["valid"]
            self.evaluations[-1] += batch["id"][valid].tolist()
            self.mean.update(batch["score"], valid.float())
            self.log("score", self.mean, on_epoch=True, batch_size=len(valid))

        def on_validation_epoch_end(self) -> None:
            self.evaluations.append([])

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return self.layer(batch["score"][:, None]).mean() * 0

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), 0.1)

    from penstock.integrations.lightning import TrainLoader

    world = int(os.environ["WORLD_SIZE"])
    module, held_out, train = Module(), EvalLoader(make_loader), TrainLoader(make_loader)
    trainer = lightning.Trainer(
        accelerator="cpu", devices=world, strategy="ddp" if world > 1 else "auto", max_epochs=2,
        use_distributed_sampler=True, logger=False, enable_progress_bar=False, enable_model_summary=False,
        enable_checkpointing=False, callbacks=[train],
    )  # fmt: skip
    trainer.fit(module, train, held_out)
    fitted = float(trainer.callback_metrics["score"])
    (metrics,) = trainer.validate(module, held_out, verbose=False)
    sanity, *evaluations, end = module.evaluations
    assert len(sanity) <= 2 * BATCH and end == []
    return {"evaluations": evaluations, "means": [fitted, metrics["score"]], "len": len(held_out)}


def by_accelerate() -> dict[str, Any]:
    from accelerate import Accelerator  # pyright: ignore[reportMissingImports]

    accelerator = Accelerator(cpu=True)
    held_out = accelerator.prepare(EvalLoader(make_loader))
    evaluations, means = list[list[int]](), list[float]()
    for _ in range(3):
        ids, totals = list[int](), torch.zeros(2)
        for batch in held_out:
            valid = batch["valid"]
            ids += batch["id"][valid].tolist()
            totals += torch.stack([batch["score"][valid].sum(), valid.sum()])
        total, count = cast("Any", accelerator.reduce(totals)).tolist()
        evaluations.append(ids)
        means.append(total / count)
    rows: Any = accelerator.gather(torch.cat([batch["valid"] for batch in held_out]))
    assert int(rows.sum()) == ROWS
    return {"evaluations": evaluations, "means": means, "len": len(held_out)}


def by_transformers() -> dict[str, Any]:
    import tempfile

    from transformers import Trainer, TrainingArguments

    from penstock.integrations.transformers import FromLoader

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)

        def forward(self, id: Any, score: Any, labels: Any) -> Any:
            loss = self.layer(score[:, None]).mean() * 0
            return {"loss": loss, "logits": (id, torch.stack([id, -id], 1))}

    class OnLoaders(FromLoader, Trainer):
        pass

    held_out = make_loader(labels=True)
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder, report_to=[], use_cpu=True, disable_tqdm=True, remove_unused_columns=False
        )
        trainer = OnLoaders(
            Model(),
            arguments,
            eval_loader=held_out,
            compute_metrics=lambda given: {
                "ids": given.predictions[0].tolist(),
                "labels": given.label_ids.tolist(),
                "pairs": given.predictions[1].tolist(),
            },
        )
        metrics = [trainer.evaluate() for _ in range(2)]
        predicted = trainer.predict(cast("Any", held_out))
    return {
        "metrics": [
            {name: each[f"eval_{name}"] for name in ("ids", "labels", "pairs")} for each in metrics
        ],
        "predicted": cast("Any", predicted.predictions)[0].tolist(),
    }


TRAINERS = {
    "lightning": (by_lightning, "lightning.pytorch"),
    "accelerate": (by_accelerate, "accelerate"),
    "transformers": (by_transformers, "transformers.trainer"),
}
"""What runs, and what every rank would import."""


def main() -> None:
    trainer, world, port, folder = sys.argv[1:]
    torch.set_num_threads(1)
    evaluate, framework = TRAINERS[trainer]
    import_module(framework)

    def run(rank: int) -> None:
        place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world}
        place |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "GROUP_RANK": 0}
        os.environ |= {name: str(value) for name, value in place.items()}
        Path(folder, f"{rank}.json").write_text(json.dumps(evaluate()))

    fork_ranks(int(world), run)


if __name__ == "__main__":
    main()
