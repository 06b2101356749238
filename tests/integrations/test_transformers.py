"""transformers' Trainer on loaders and datasets, for training and for evaluation."""

from __future__ import annotations

import sys
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

import penstock as ps

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("datasets")

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

from penstock.integrations.torch import IterableDataset, MapDataset
from penstock.integrations.transformers import FromLoader, _weigh_batch, hf_dataset
from penstock.text import TRANSFORMERS, CausalLM, Padded, PaddedPairs

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),
]  # transformers takes seconds to import


class Model(torch.nn.Module):
    """One weight; keeps the batches that it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(1, 1)
        self.batches: list[list[int]] = []

    def forward(self, x: Any, return_loss: bool = True) -> Any:
        self.batches.append(x.tolist())
        return {"loss": self.linear(x.float()[:, None]).pow(2).mean() * 1e-6, "logits": x}


class OnLoaders(FromLoader, Trainer):
    """The Trainer on loaders."""


def mixture(stop: Any = "restart") -> ps.Dataset:
    parts = {"a": ps.from_sequence(range(8)), "b": ps.from_sequence(range(100, 106))}
    return ps.mix({name: part.shuffle(seed=3) for name, part in parts.items()}, stop=stop).map(
        lambda i: {"x": i}
    )


def tensors(batch: Any) -> Any:
    return {"x": torch.as_tensor(np.asarray(batch["x"]))}


def batches(ds: ps.Dataset) -> ps.Dataset:
    return ds.batch(4).map(tensors)


def arguments(folder: Path, **options: Any) -> Any:
    options = {"max_steps": 5, "save_strategy": "no", "logging_strategy": "no", **options}
    return TrainingArguments(
        str(folder), report_to=[], use_cpu=True, disable_tqdm=True, per_device_train_batch_size=4,
        per_device_eval_batch_size=4, remove_unused_columns=False, dataloader_pin_memory=False, **options,
    )  # fmt: skip


def in_batches(samples: list[int]) -> list[list[int]]:
    return [samples[at : at + 4] for at in range(0, len(samples), 4)]


@pytest.mark.parametrize("wrap", [hf_dataset, IterableDataset])
def test_an_endless_mixture_trains_in_its_own_order(wrap: Any, tmp_path: Path) -> None:
    model = Model()
    Trainer(model, arguments(tmp_path), train_dataset=wrap(mixture())).train()
    assert model.batches == in_batches([sample["x"] for sample in mixture().limit(20)])


@pytest.mark.parametrize("workers", [0, 2])
def test_epochs_of_a_mixture_that_ends_differ_and_a_look_at_it_is_none(
    workers: int, tmp_path: Path
) -> None:
    ds = mixture("all_exhausted")
    data, model = hf_dataset(ds), Model()
    first = next(iter(data))
    options = arguments(tmp_path, max_steps=8, dataloader_num_workers=workers)
    Trainer(model, options, train_dataset=data).train()
    passes = [[sample["x"] for sample in part] for part in ([*ds], [*ds.repeat(2)][14:])]
    assert first == {"x": passes[0][0]} and passes[0] != passes[1]
    assert model.batches == in_batches(passes[0]) + in_batches(passes[1])


def test_loaders_are_train_dataset_and_eval_dataset(tmp_path: Path) -> None:
    ends = batches(mixture("all_exhausted"))
    stream = batches(mixture("all_exhausted").filter(lambda sample: sample["x"] % 2 == 0))
    model = Model()
    trainer = OnLoaders(
        model, arguments(tmp_path, eval_strategy="steps", eval_steps=5, save_strategy="steps", save_steps=5),
        train_dataset=ps.Loader(batches(mixture())), eval_dataset={"all": ps.Loader(ends), "even": ps.Loader(stream)},
    )  # fmt: skip
    trainer.train()
    expected = [
        [batch["x"].tolist() for batch in ds] for ds in (batches(mixture().limit(20)), ends, stream)
    ]
    assert model.batches == [*chain(*expected)]
    assert (tmp_path / "checkpoint-5" / "penstock.json").exists()


def test_an_eval_loader_gives_a_whole_pass_at_every_evaluation(tmp_path: Path) -> None:
    model = Model()
    trainer = OnLoaders(
        model, arguments(tmp_path), eval_loader=ps.Loader(batches(mixture("all_exhausted")))
    )
    expected = [batch["x"].tolist() for batch in batches(mixture("all_exhausted"))]
    for _ in range(2):
        model.batches.clear()
        assert "eval_loss" in trainer.evaluate()
        assert model.batches == expected
    with pytest.raises(ps.ConfigError, match=r"endless.*\.limit\(n\)"):
        trainer.evaluate(cast("Any", ps.Loader(batches(mixture()))))


def test_a_loader_is_predicted_as_a_whole_pass(tmp_path: Path) -> None:
    model, test = Model(), cast("Any", ps.Loader(batches(mixture("all_exhausted"))))
    trainer = OnLoaders(model, arguments(tmp_path))
    expected = [batch["x"].tolist() for batch in batches(mixture("all_exhausted"))]
    for _ in range(2):
        model.batches.clear()
        trainer.predict(test)
        assert model.batches == expected


@pytest.mark.parametrize("name", ["train_loader", "eval_loader"])
def test_a_dataset_is_no_loader(name: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {name: batches(mixture("all_exhausted"))}
    with pytest.raises(ps.ConfigError, match=f"{name}: Dataset is not a loader; give ps.Loader"):
        OnLoaders(Model(), arguments(tmp_path), **options)
    with pytest.raises(ps.ConfigError, match="eval_loader, a: Dataset is not a loader"):
        OnLoaders(Model(), arguments(tmp_path), eval_loader={"a": options[name]})


def test_a_dataset_without_a_length_is_answered_with_a_loader(tmp_path: Path) -> None:
    stream: Any = batches(mixture("all_exhausted").filter(lambda sample: sample["x"] % 2 == 0))
    for name in ("train_dataset", "eval_dataset"):
        with pytest.raises(
            ps.ConfigError, match=f"{name}: Dataset is not a loader; give ps.Loader"
        ):
            OnLoaders(Model(), arguments(tmp_path), **{name: stream})
    with pytest.raises(ps.ConfigError, match="eval_dataset, a: Dataset is not a loader"):
        OnLoaders(Model(), arguments(tmp_path), eval_dataset={"a": stream})
    trainer = OnLoaders(
        Model(), arguments(tmp_path), train_dataset=cast("Any", mixture("all_exhausted"))
    )
    for evaluate, name in ((trainer.evaluate, "eval_dataset"), (trainer.predict, "test_dataset")):
        with pytest.raises(ps.ConfigError, match=f"{name}: Dataset is not a loader"):
            evaluate(stream)


def test_batches_of_numpy_are_answered_with_to_torch(tmp_path: Path) -> None:
    arrays = ps.Loader(mixture("all_exhausted").batch(4))
    trainer = OnLoaders(Model(), arguments(tmp_path), train_loader=arrays)
    for start in (trainer.train, lambda: trainer.evaluate(cast("Any", arrays))):
        with pytest.raises(ps.ConfigError, match=r'NumPy.*ps.Loader\(ds, to="torch"\)'):
            start()


def test_a_trainer_before_the_mixin_is_an_error() -> None:
    class Plain(Trainer): ...

    for base in (Trainer, Plain):
        match = rf"write class Swapped\(FromLoader, {base.__name__}\)"
        with pytest.raises(ps.ConfigError, match=match):
            type("Swapped", (base, FromLoader), {})
    assert type("Right", (FromLoader, Plain), {}).get_train_dataloader  # and its subclasses
    assert type("Deeper", (OnLoaders,), {"get_train_dataloader": lambda self: None})


def test_samples_without_names_and_loaders_are_refused_as_hf_datasets() -> None:
    with pytest.raises(ps.DataError, match="sample 0 is of type int"):
        next(iter(hf_dataset(ps.from_sequence([1]))))
    with pytest.raises(ps.ConfigError, match="Loader is not a dataset"):
        hf_dataset(ps.Loader(mixture()))  # pyright: ignore[reportArgumentType]


def test_packed_rows_as_an_hf_dataset_have_no_fields_of_a_whole_batch(tmp_path: Path) -> None:
    rows = ps.from_sequence([[i + 1] * (i % 5 + 1) for i in range(40)]).pack(8)
    sizes: Any = {"vocab_size": 64, "hidden_size": 16, "intermediate_size": 32}
    config = LlamaConfig(**sizes, num_hidden_layers=1, num_attention_heads=2, use_cache=False)

    def train(fields: Any) -> Any:
        data, model = hf_dataset(rows.map(CausalLM(fields))), LlamaForCausalLM(config)
        return Trainer(model, arguments(tmp_path, max_steps=2), train_dataset=data).train()

    match = r"sample 0 has cu_seq_lens_k, .*use_cache.*CausalLM\(.*use_cache = False, or train"
    with pytest.raises(ps.DataError, match=match):
        train(TRANSFORMERS)
    assert train(("input_ids", "labels", "position_ids")).global_step == 2


@pytest.mark.parametrize("wrap", [IterableDataset, MapDataset])
def test_data_that_would_be_shared_out_twice_are_refused(
    wrap: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = SimpleNamespace(PartialState=SimpleNamespace(_shared_state={"_cpu": True}))
    monkeypatch.setitem(sys.modules, "accelerate.state", state)
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    ds = mixture("all_exhausted")
    with pytest.raises(ps.ConfigError, match="again: pass rank=0, world_size=1"):
        wrap(ds)
    assert len(wrap(ds, rank=0, world_size=1)) == 14
    state.PartialState._shared_state.clear()
    made = wrap(ds)  # before Accelerate began
    state.PartialState._shared_state["_cpu"] = True
    with pytest.raises(ps.ConfigError, match="shard each part again"):
        next(iter(made)) if wrap is IterableDataset else made[0]


def test_auto_takes_the_latest_complete_checkpoint_or_begins(tmp_path: Path) -> None:
    options: dict[str, Any] = {"save_strategy": "steps", "save_steps": 2, "max_steps": 5}
    expected = [batch["x"].tolist() for batch in batches(mixture().limit(20))]

    def train() -> list[list[int]]:
        model, loader = Model(), ps.Loader(batches(mixture()))
        trainer = OnLoaders(model, arguments(tmp_path, **options), train_loader=loader)
        trainer.train("auto")
        return model.batches

    assert train() == expected
    (tmp_path / "checkpoint-5" / "penstock.json").unlink()  # killed while it was written
    assert train() == expected[4:]


def test_a_batch_is_weighed_by_its_learned_tokens_or_its_rows() -> None:
    labels = torch.tensor([[5, -100, 7], [8, 9, 1]])
    marked = {"labels": labels, "valid": np.array([True, False])}
    fields, weight = _weigh_batch(marked, "tokens")
    assert weight == 1 and fields["labels"].tolist() == [[5, -100, 7], [-100] * 3]
    assert labels[1, 0] == 8 and [*fields] == ["labels"]
    assert _weigh_batch(marked, "rows")[1] == 1
    pairs = {"labels": labels.repeat(2, 1), "valid": marked["valid"]}
    assert _weigh_batch(pairs, "tokens")[1] == 2 and _weigh_batch(pairs, "rows")[1] == 1
    assert _weigh_batch({"labels": labels}, "tokens")[1] == 3
    assert _weigh_batch({"labels": labels}, "rows")[1] == 2
    assert _weigh_batch({"x": torch.ones(4), "name": ["a"]}, "tokens")[1] == 4
    valid = torch.tensor([True, False] * 2)
    assert _weigh_batch({"x": torch.ones(4), "valid": valid}, "rows")[1] == 2
    assert _weigh_batch(5, "rows") == (5, 1)


def test_an_evaluation_of_flattened_padding_rows_fails_before_training(tmp_path: Path) -> None:
    documents = ps.from_sequence([[5, 6, 7], [8, 9], [1, 2, 3, 4]])
    flat = documents.batch(2, collate=Padded()).map(CausalLM(TRANSFORMERS, flatten=True))
    loader = ps.Loader(flat, to="torch", remainder="pad")
    trainer = OnLoaders(Model(), arguments(tmp_path, eval_strategy="steps"), eval_loader=loader)
    for run in (trainer.train, trainer.evaluate):
        with pytest.raises(ps.ConfigError, match="evaluation: 'valid' marks rows"):
            run()


class Scorer(torch.nn.Module):
    """A language model with one weight a token."""

    def __init__(self) -> None:
        super().__init__()
        self.scores = torch.nn.Embedding.from_pretrained(torch.linspace(-2, 2, 16)[:, None])

    def forward(self, input_ids: Any, attention_mask: Any = None, labels: Any = None) -> Any:
        return {"loss": input_ids.sum() * 0.0, "logits": self.scores(input_ids)[..., 0]}


class ByPairs(FromLoader, Trainer):
    """A DPO loss by hand: the mean over pairs."""

    eval_loss_over = "rows"

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, *args: Any, **kwargs: Any
    ) -> Any:
        outputs = model(**inputs)
        sums = (outputs["logits"] * (inputs["labels"] != -100)).sum(1)
        chosen, rejected = sums.chunk(2)
        loss = -torch.nn.functional.logsigmoid(0.1 * (chosen - rejected)).mean()
        return (loss, outputs) if return_outputs else loss


class Undecided(ByPairs):
    """A trainer that does not say which elements its loss is the mean of."""

    eval_loss_over = None


def pair(i: int) -> dict[str, Any]:
    chosen, rejected = [1] * (i % 5 + 1) + [i % 16], [2] * (i % 3 + 1) + [15]
    return {
        "chosen_tokens": chosen, "chosen_loss_mask": [0] + [1] * (len(chosen) - 1),
        "rejected_tokens": rejected, "rejected_loss_mask": [0] + [1] * (len(rejected) - 1),
    }  # fmt: skip


def pairs_in_batches(size: int) -> ps.Dataset:
    fields: Any = ("input_ids", "attention_mask", "labels")
    return ps.from_sequence(range(15)).map(pair).batch(size, collate=PaddedPairs(fields))


def test_a_loss_of_pairs_with_labels_depends_on_no_batch_size(tmp_path: Path) -> None:
    losses = [
        ByPairs(
            Scorer(), arguments(tmp_path), eval_loader=ps.Loader(pairs_in_batches(size), to="torch")
        ).evaluate()["eval_loss"]
        for size in (1, 4, 8, 15)
    ]
    assert losses == pytest.approx([losses[-1]] * 4, rel=1e-5)


def test_a_loss_by_hand_of_batches_with_labels_must_name_its_mean(tmp_path: Path) -> None:
    loader = ps.Loader(pairs_in_batches(4), to="torch")
    trainer = Undecided(Scorer(), arguments(tmp_path, eval_strategy="steps"), eval_loader=loader)
    for start in (trainer.evaluate, trainer.train):  # the training before its first step
        with pytest.raises(ps.ConfigError, match=r'ByPairs.compute_loss.* set Undecided.*= "rows"'):
            start()
    trainer.eval_loss_over = cast("Any", "row")
    with pytest.raises(ps.ConfigError, match="eval_loss_over='row'.*did you mean 'rows'"):
        trainer.evaluate()
    trainer.eval_loss_over = "tokens"
    assert "eval_loss" in trainer.evaluate()
