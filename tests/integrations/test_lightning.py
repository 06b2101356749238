"""Lightning's own loops in this process: bare loaders are refused, the wrappers give whole epochs and evaluations."""

from __future__ import annotations

from typing import Any

import pytest

import penstock as ps

ROWS = ps.from_sequence(range(6)).shuffle().batch(2)


@pytest.mark.parametrize("module", ["lightning.pytorch.loops", "pytorch_lightning.utilities"])
def test_a_loader_that_lightning_iterates_over_is_refused(module: str) -> None:
    def iterate(name: str, data: Any) -> Any:
        return eval("iter(data)", {"__name__": name, "data": data})

    for data in (ps.Loader(ROWS), ROWS, ROWS.filter(lambda batch: True)):
        with pytest.raises(
            ps.ConfigError, match=r"fit\(model, data\).*EvalLoader\(lambda: ps\.Loader\(ds\)\)"
        ):
            iterate(module, data)
        assert len(list(iterate("lightning.fabric.wrappers", data))) == 3


def make_module() -> Any:
    torch = pytest.importorskip("torch")
    lightning = pytest.importorskip("lightning.pytorch")

    class Module(lightning.LightningModule):
        """Notes what it is given."""

        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)
            self.trained, self.evaluated = list[Any](), list[Any]()

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            self.trained.append(batch.tolist())
            return self.layer(batch[:, None].float()).pow(2).mean()

        def validation_step(self, batch: Any, batch_idx: int) -> None:
            self.evaluated.append(batch.tolist())

        test_step = validation_step

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), 1e-6)

    return Module()


def make_trainer(**options: Any) -> Any:
    quiet = ("logger", "enable_progress_bar", "enable_model_summary", "enable_checkpointing")
    lightning = pytest.importorskip("lightning.pytorch")
    return lightning.Trainer(accelerator="cpu", **dict.fromkeys(quiet, False), **options)


@pytest.mark.slow  # a trainer
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("form", ["train", "dataset", "train of several", "validation", "test"])
def test_a_bare_loader_is_refused_before_the_first_batch(form: str) -> None:
    module, bare = make_module(), ps.Loader(ROWS, to="torch")
    train = pytest.importorskip("penstock.integrations.lightning").TrainLoader(
        lambda: ps.Loader(ROWS, to="torch")
    )
    trainer = make_trainer(max_epochs=2, callbacks=[train])
    with pytest.raises(ps.ConfigError, match="a bare (loader|dataset) would"):
        if form == "test":
            trainer.test(module, bare)
        elif form == "validation":
            trainer.fit(module, train, bare)
        else:
            data = {"train": bare, "dataset": ROWS, "train of several": {"a": bare}}
            trainer.fit(module, data[form])
    assert module.trained == module.evaluated == []


@pytest.mark.slow  # a trainer
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("has_length", [True, False])
def test_every_epoch_and_every_evaluation_is_whole(has_length: bool) -> None:
    from penstock.integrations.trainers import EvalLoader

    wrappers = pytest.importorskip("penstock.integrations.lightning")
    ds = ROWS if has_length else ROWS.filter(lambda batch: True)
    module = make_module()
    train = wrappers.TrainLoader(lambda: ps.Loader(ds, to="torch"))
    make_trainer(max_epochs=3, callbacks=[train]).fit(
        module, train, EvalLoader(ps.Loader(ds, to="torch"))
    )
    passes = [module.trained[at : at + 3] for at in (0, 3, 6)]
    assert [sorted(x for batch in part for x in batch) for part in passes] == [list(range(6))] * 3
    assert len({str(part) for part in passes}) == 3  # each epoch has an order of its own
    first = [batch.tolist() for batch in ROWS]
    assert module.evaluated == [
        *first[:2],
        *first * 3,
    ]  # Lightning's sanity check takes two batches
