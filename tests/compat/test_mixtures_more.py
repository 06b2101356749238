"""Mixtures of trainers: stages, blends, mixers, and those in Python files that are never run."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from textwrap import dedent

import numpy as np
import pytest

import penstock as ps
from penstock.compat.mixtures import convert
from penstock.compat.mixtures.literals import Module
from penstock.mixture_files import Batching, MixtureFile, Scheduling, SourceEntry, Splitting, dump

STAGES = """
data_stages:
- data: {dataset: {dataset_folder: [a/web/tokenized, /d/code], dataset_weights: [0.8, 0.2]}, num_loading_workers: 1}
  name: stable
  start_training_step: 1
- data: {dataset: {dataset_folder: {/d/code: 0.5, /d/math: 0.5}, shuffle_files: false}, seed: 3}
  name: anneal
  start_training_step: 101
general: {seed: 8}
model: {model_config: {vocab_size: 49152}}
parallelism: {dp: 4}
tokens: {micro_batch_size: 2, batch_accumulation_per_replica: 3, sequence_length: 64, train_steps: 200}
"""


def carried(path: Path, text: str, **options: object) -> tuple[MixtureFile, list[str]]:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(dedent(text).lstrip("\n"))
    model, problems = convert(path, **{"ranks": 1, **options})  # type: ignore[arg-type]
    dump(model, path.with_name("written.yaml"))
    return model, [problem.key for problem in problems if problem.severity == "warning"]


def test_nanotron_stages(tmp_path: Path) -> None:
    model, lost = carried(tmp_path / "c.yaml", STAGES, ranks=4)
    assert model.names == ("web", "code", "math") and {one.dtype for one in model.sources} == {
        "uint16"
    }
    assert model.schedule == Scheduling(
        "steps",
        "step",
        (
            (0, {"web": 0.8, "code": 0.2, "math": 0.0}),
            (100, {"web": 0.0, "code": 0.5, "math": 0.5}),
        ),
    )
    assert (model.batch, model.pack) == (Batching(6, True, ranks=4), {"length": 64})
    assert (model.horizon, model.seed, model.unit, lost) == (("steps", 200), 42, "tokens", [])


def test_the_seed_of_nanotron_is_that_of_its_first_data(tmp_path: Path) -> None:
    def seed(first: str, second: str) -> tuple[int | None, list[str]]:
        text = STAGES.replace(", seed: 3", f", seed: {second}").replace(
            "- data: {dataset: {", f"- data: {{seed: {first}, dataset: {{", 1
        )
        (tmp_path / "c.yaml").write_text(text)
        model, problems = convert(tmp_path / "c.yaml", ranks=4)
        return model.seed, [one.key for one in problems if one.key.endswith(".seed")]

    assert seed("5", "5") == (5, []) and seed("6", "null") == (6, [])
    assert seed("0", "7") == (0, ["data_stages[1].data.seed"]) and seed("0", "null") == (0, [])


def test_stages_of_nanotron_may_be_written_in_any_order(tmp_path: Path) -> None:
    stages = [
        f"- {{data: {{dataset: {{dataset_folder: {{/{name}: 1.0}}}}}}, start_training_step: {step}}}\n"
        for name, step in (("a", 1), ("b", 11))
    ]
    forward, backward = (
        carried(tmp_path / "c.yaml", "data_stages:\n" + "".join(items))[0]
        for items in (stages, stages[::-1])
    )
    assert forward == backward and forward.names == ("a", "b")


@pytest.mark.parametrize(
    ("key", "dtype"),
    [
        ("vocab_size: 65536", "uint16"),
        ("vocab_size: 65537", "uint32"),
        ("token_size_in_bytes: 2, vocab_size: 70000", "uint16"),
        ("token_size_in_bytes: 4", "uint32"),
        ("token_size_in_bytes: 8", None),
    ],
)
def test_the_width_of_the_tokens_of_nanotron(tmp_path: Path, key: str, dtype: str | None) -> None:
    (tmp_path / "c.yaml").write_text(
        f"data_stages: [{{data: {{dataset: {{dataset_folder: /a, {key}}}}}, start_training_step: 1}}]\n"
    )
    model, problems = convert(tmp_path / "c.yaml")
    assert model.sources[0].dtype == dtype
    assert any("neither 2 nor 4" in one.message for one in problems) == (dtype is None)


def test_nanotron_without_weights(tmp_path: Path) -> None:
    text = "data_stages: [{data: {dataset: {dataset_folder: %s, dataset_read_path: %s}}}]\ntokens: {sequence_length: 8}"
    model, lost = carried(tmp_path / "c.yaml", text % ("[s3://b/a, s3://b/c]", "[/l/a, /l/c]"))
    assert [one.path for one in model.sources] == [("/l/a",), ("/l/c",)]
    assert model.temperature == 1 and lost == []  # by their sizes
    both = "data_stages: [{data: {dataset: {dataset_folder: [a, b]}}}, {data: {dataset: {dataset_folder: [a]}}, "
    _, lost = carried(tmp_path / "d.yaml", both + "start_training_step: 9}]")
    assert lost == ["data_stages"]
    text = """
        data_stages:
        - data: {dataset: {hf_dataset_or_datasets: {a/x: 2, a/y: 1}, text_column_name: body}}
        tokenizer: {tokenizer_name_or_path: t}
        """
    model, lost = carried(tmp_path / "e.yaml", text)
    assert [
        (one.name, one.weight, getattr(one.tokenize, "field", None)) for one in model.sources
    ] == [
        ("x", 2, "body"),
        ("y", 1, "body"),
    ]


def test_megatron_and_its_kin(tmp_path: Path) -> None:
    neox = """
        {"train-data-paths": ["d/web_text_document", "/x/code"], "train-data-weights": [1., 2.], "seq-length": 64,
         "train-iters": 10, "train_micro_batch_size_per_gpu": 3, "gradient_accumulation_steps": 2, "seed": 5,
         "valid-data-paths": ["v"], "split": "969, 30, 1",}
        """
    model, lost = carried(tmp_path / "neox.yml", neox, ranks=2)
    assert [(one.path[0], one.weight) for one in model.sources] == [
        (str(tmp_path / "d/web_text_document.bin"), 1),
        ("/x/code.bin", 2),
    ]
    assert (model.pack, model.horizon, model.seed) == ({"length": 64}, ("steps", 10), 5)
    assert (model.batch, model.split, lost) == (Batching(6, True, ranks=2), None, [])
    model, _ = carried(tmp_path / "one.yml", '{"data_path": "d/enwik8", "split": "949,50,1"}')
    assert model.split == Splitting(0.051, by="position") and model.sources[0].weight is None
    nemo = "model: {encoder_seq_length: 32, global_batch_size: 8, data: {data_prefix: %s, splits_string: '900,50,50'}}"
    model, _ = carried(tmp_path / "nemo.yaml", nemo % "[.5, /d/a, 1.5, /d/b]")
    assert model.shares() == {"a": 0.25, "b": 0.75} and model.split == Splitting(0.1, by="position")
    model, _ = carried(tmp_path / "nemo2.yaml", nemo % "{train: [1.0, /d/a], validation: [/d/v]}")
    assert (model.names, model.split, model.batch) == (("a",), None, Batching(8, True))
    with pytest.raises(ps.ConfigError, match="unknown format"):
        carried(tmp_path / "nemo3.yaml", nemo % "'???'")


def test_mixers_of_trainers(tmp_path: Path) -> None:
    handbook = """
        dataset_mixture:
          datasets:
            - {id: a/chat, config: SFT, split: no_think, columns: [messages], weight: 1.0}
            - {id: a/math, config: SFT, split: think, weight: 0.02}
          seed: 3
          test_split_size: 1000
        num_train_epochs: 2
        per_device_train_batch_size: 2
        gradient_accumulation_steps: 4
        """
    model, lost = carried(tmp_path / "h.yaml", handbook)
    first, second = model.sources
    assert first.path == ("hf://datasets/a/chat@~parquet/SFT/no_think",) and first.columns == (
        "messages",
    )
    assert (first.split, second.split) == (None, Splitting(0.98))
    assert (second.name, second.epochs, second.max_epochs) == ("math-SFT-think", 2, 2)
    assert (model.seed, model.batch) == (3, Batching(8, collate="list")) and lost == [
        "dataset_mixture.test_split_size"
    ]
    instruct = "dataset_mixer: {a/b: 1.0, c/d: 0.5, e/f: 100, g.jsonl: 1.0}\nmax_train_steps: 3\nnum_train_epochs: 1"
    model, lost = carried(tmp_path / "i.yaml", instruct)
    assert [one.slice for one in model.sources] == [
        None,
        ("0%", "50%"),
        (0, 100),
        None,
    ] and lost == []
    assert model.sources[3].path == (str(tmp_path / "g.jsonl"),) and model.names == (
        "b",
        "d",
        "f",
        "g",
    )
    model, _ = carried(
        tmp_path / "t.yaml",
        "dataset_name: a/b\nmodel_name_or_path: m\nnum_train_epochs: 3\nseed: 1",
    )
    assert (model.names, model.seed, model.sources[0].max_epochs) == (("b",), 1, 3)
    _, lost = carried(
        tmp_path / "j.yaml",
        "dataset_mixer: {a/b: odd}\nmax_train_samples: 9\npacking: true\nchat_template: x",
    )
    assert set(lost) == {"dataset_mixer", "packing", "max_train_samples", "chat_template"}


MARIN = """
import os
from experiments.weights import WEB, SHARES, components
from levanter.schedule import ScheduleStep

boom = open("/nowhere")
RATE = 2 * 0.5
tokenized = {**components("t"), "code": default_tokenize(name=f"code_{1}", tokenizer="t").with_output_path("tok/code")}
tokenized["gone"] = made_elsewhere
tokenized.update({k: v for k, v in components("t").items() if k.startswith("none")})
cool = {**{k: RATE * v / sum(SHARES.values()) for k, v in SHARES.items()}, "code": 0.3, "gone": 0.2, "missing": 0}
config = SimpleTrainConfig(train_batch_size=8, num_train_steps=int(1e3), train_seq_len=64, data_seed=4)
mixture = lm_varying_mixture_data_config(components=tokenized, weights_list=[(0, WEB), (500, cool)])
run = default_train(name="x", tokenized=mixture, model_config=llama, train_config=config)
if __name__ == "__main__":
    executor_main([run])
"""
WEIGHTS = """
from experiments.steps import default_tokenize
WEB = {"web": 1.0, "code": 0}
SHARES = {"web": 3, "books": 1}


def components(tokenizer, *, suffix="-1"):
    \"\"\"All there are.\"\"\"
    names = ["web", "books", "val"]
    return {name: default_tokenize(name=name + suffix, tokenizer=tokenizer) for name in names}
"""


def test_marin(tmp_path: Path) -> None:
    (tmp_path / "experiments/tootsie").mkdir(parents=True)
    (tmp_path / "experiments/weights.py").write_text(WEIGHTS)
    path = tmp_path / "experiments/tootsie/exp.py"
    model, lost = carried(path, MARIN)
    assert [(one.name, one.path[0]) for one in model.sources] == [
        ("web", "marin://tokenized/web-1-*/train"),
        ("books", "marin://tokenized/books-1-*/train"),
        ("code", "marin://tok/code/train"),
    ]
    assert model.schedule == Scheduling(
        "steps",
        "step",
        ((0, {"web": 1, "books": 0, "code": 0}), (500, {"web": 0.75, "books": 0.25, "code": 0.3})),
    )
    assert (model.batch, model.horizon, model.seed) == (Batching(8, True), ("steps", 1000), 4)
    assert (model.pack, model.unit, model.block_size) == ({"length": 64}, "tokens", 2048)
    assert lost == ["components.gone"]
    model, lost = carried(path, MARIN, files={"marin://": "/data/", "gone": "/data/gone"})
    assert model.sources[0].path == ("/data/tokenized/web-1-*/train",) and lost == []


def test_python_that_cannot_be_known_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "exp.py"
    with pytest.raises(
        ps.ConfigError,
        match="line 1: the weights cannot be determined: W is not defined here",
    ):
        carried(path, "\n\nm = lm_mixture_data_config(components={}, weights=W)")
    two = "a = lm_mixture_data_config({}, {'x': 1})\nb = lm_mixture_data_config({}, {'x': 2})"
    with pytest.raises(ps.ConfigError, match="2 mixtures: choose one with pick=: a, b"):
        carried(path, two)
    with pytest.raises(ps.ConfigError, match="unknown mixture 'c'; the mixtures are a, b"):
        carried(path, two, pick="c")
    model, _ = carried(path, two, pick="b", files={"*": "/data/{name}"})
    assert model.sources == (SourceEntry("x", ("/data/x",), weight=2.0),)
    with pytest.raises(ps.ConfigError, match="no Python that can be read"):
        carried(path, "lm_mixture_data_config(")


@pytest.mark.parametrize(
    "line",
    [
        "x = 10 ** 10 ** 10",
        "x = 'a' * 10 ** 12",
        "x = [0] * 10 ** 12",
        "x = 1 << 10 ** 12",
        "def f(): return f()\nx = f()",
        "x = [i for i in range(10 ** 12)]",
        "x = [(a, b, c) for a in Y for b in Y for c in Y]\nY = list('abc')",
        "x = " + "(" * 150 + "1" + ")" * 150,
        "x = {**x}",
        "x = __import__('os').system('false')",
        "x = ''.join(open('/etc/passwd'))",
        "x = 1 / 0",
        "x = 'ab'\n" + "x = x.replace('a', x)\n" * 60,
        "x = [1]\n" + "x.extend(x)\n" * 60,
        "x = 'ab'\n" + "x = f'{x}{x}'\n" * 60,
        "x = [1]\n" + "x = [x, x]\n" * 50 + "x = str(x)",
        "x, y = [1], [1]\nx = [1]\ny = [1]\n" + "x = [x, x]\ny = [y, y]\n" * 50 + "x = x == y",
        "x = [1]\n" + "x = [x, x]\n" * 50 + "x = lm_mixture_data_config(x, [x])",
        "x = {[]: 1}",
        "import exp\nfrom exp import x as y",
    ],
)
def test_hostile_python_is_neither_run_nor_waited_for(tmp_path: Path, line: str) -> None:
    path = tmp_path / "exp.py"
    path.write_text(line)
    assert "x" in Module(path).names() or "import" in line


def test_torchtitan(tmp_path: Path) -> None:
    text = """
        books = SingleDatasetConfig(
            source=IndexedJsonlSource.Config(patterns=("books/*.jsonl",)), processor=TextProcessor.Config())
        c4 = SingleDatasetConfig(
            source=HuggingFaceStreamingSource.Config(path="allenai/c4", name="en", split="train"))
        json = SingleDatasetConfig(source=HuggingFaceRandomAccessSource.Config(
            path="json", split="train", load_dataset_kwargs={"data_files": "a.json"}))
        mix = FirstFitPackingConfig(dataset=DatasetMixConfig(datasets=(
            WeightedDataset(dataset=books, weight=0.75),
            WeightedDataset(dataset=DatasetConcatConfig(datasets=(c4, json)), weight=0.25),
            WeightedDataset(dataset=elsewhere))))
        """
    model, lost = carried(tmp_path / "registry.py", text, pick="mix")
    first, second = model.sources
    assert (first.path, first.format, first.weight) == (
        (str(tmp_path / "books/*.jsonl"),),
        "jsonl",
        0.75,
    )
    assert second.mixture is not None and second.weight == 0.25
    assert [one.path[0] for one in second.mixture.sources] == [
        "hf://datasets/allenai/c4@~parquet/en/train",
        str(tmp_path / "a.json"),
    ]
    assert lost == ["datasets[2]"]


def test_interleaved_datasets(tmp_path: Path) -> None:
    text = """
        from datasets import interleave_datasets, load_dataset
        a = load_dataset("json", data_files={"train": ["a.jsonl", "b.jsonl"]}, split="train")
        b = load_dataset("org/name", "cfg", split="test")
        both = interleave_datasets([a, b], probabilities=[0.3, 0.7], seed=4, stopping_strategy="all_exhausted")
        """
    model, lost = carried(tmp_path / "train.py", text)
    assert [(one.path, one.weight) for one in model.sources] == [
        ((str(tmp_path / "a.jsonl"), str(tmp_path / "b.jsonl")), 0.3),
        (("hf://datasets/org/name@~parquet/cfg/test",), 0.7),
    ]
    assert (model.seed, model.stop, lost) == (4, "all_exhausted_oversample", [])


THEIRS = {
    "levanter": "data: {train_weights: {web: 3, code: 1}, configs: {web: {train_urls: ['gs://x/web.jsonl']}, "
    "code: {train_urls: [code.jsonl]}}}\n",
    "nanotron": STAGES.replace("a/web/tokenized", "gs://x/web").replace("/d/", "gs://x/"),
    "olmo": "model: {max_sequence_length: 64, eos_token_id: 9}\nmax_duration: 2ep\nglobal_train_batch_size: 4\n"
    "data: {memmap_dtype: uint32, paths: ['gs://x/web.npy', 'gs://x/code.npy', 'gs://x/web.npy']}\n",
    "axolotl": "datasets: [{path: 'gs://x/web.jsonl', type: t}, {path: code.jsonl, split: 'train[:50%]'}]\n"
    "num_epochs: 2\nmicro_batch_size: 4\n",
    "handbook": "dataset_mixture: {datasets: [{id: o/web, weight: 0.5, columns: [text]}, {id: o/code}]}\n"
    "per_device_train_batch_size: 4\nnum_train_epochs: 2\n",
}
STEPS = {
    "levanter": 40,
    "nanotron": 200,
    "olmo": 70,
    "axolotl": 30,
    "handbook": 30,
}  # (40 + 20) * 2 / 4, say


@pytest.mark.parametrize("kind", THEIRS)
def test_what_is_converted_loads_and_runs(tmp_path: Path, kind: str) -> None:
    """With small data put where it says: to its end, which is where it was there."""
    for name in ("web", "code", "math"):
        rows = [{"text": f"{name} {i}", "messages": i} for i in range(40)]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        (tmp_path / name).mkdir()
        np.arange(1, 3001, dtype="<u2").tofile(tmp_path / name / "a.ds")
        np.arange(1, 3001, dtype="<u4").tofile(tmp_path / f"{name}.npy")
        np.arange(100, 3001, 100, dtype="<u8").tofile(tmp_path / name / "a.ds.index")
    rules = {"o/web": f"{tmp_path}/web.jsonl", "o/code": f"{tmp_path}/code.jsonl"}
    path = tmp_path / "theirs.yaml"
    path.write_text(THEIRS[kind])
    model, _ = convert(
        path, ranks=1, files=rules if kind == "handbook" else {"gs://x/": f"{tmp_path}/"}
    )
    if kind == "levanter":  # nobody has its tokenizer here
        model = replace(model, tokenize=None, unit=None, horizon=("samples", 40))
    dump(model, tmp_path / "ours.yaml")
    with ps.Loader(ps.load(tmp_path / "ours.yaml")) as loader:
        assert sum(1 for _ in loader) == STEPS[kind]


def test_axolotl_streams_its_first_dataset_alone(tmp_path: Path) -> None:
    text = "pretraining_dataset: [{path: a/b, type: pretrain}, {path: c/d, type: pretrain}]\nbase_model: t\n"
    text += "micro_batch_size: 1\nmax_steps: 9\n"
    model, lost = carried(tmp_path / "c.yaml", text)
    assert model.names == ("b",) and "pretraining_dataset[1]" in lost


def test_steps_beyond_a_pass_of_interleaved_datasets_are_reported(tmp_path: Path) -> None:
    (tmp_path / "dataset_info.json").write_text(
        '{"a": {"file_name": "a.jsonl"}, "b": {"file_name": "b.jsonl"}}'
    )
    text = "stage: sft\ndataset_dir: .\ndataset: a,b\nmix_strategy: %s\nmax_steps: 1000\n"
    _, lost = carried(tmp_path / "c.yaml", text % "interleave_under")
    assert lost == ["max_steps"]
    _, lost = carried(tmp_path / "c.yaml", text % "concat")
    assert lost == []


def test_a_stream_without_a_proportion_beside_those_that_have_one_is_reported(
    tmp_path: Path,
) -> None:
    text = "train_loader: {dataset: {shuffle: true, streams: {a: {local: a, proportion: 1}, b: {local: b}}}}\n"
    _, lost = carried(tmp_path / "c.yaml", text + "max_duration: 9ba\nglobal_train_batch_size: 8\n")
    assert lost == ["train_loader.dataset.streams.b"]


def test_weights_between_paths_are_no_list_of_olmo(tmp_path: Path) -> None:
    with pytest.raises(ps.ConfigError, match="unknown format"):
        carried(
            tmp_path / "c.yaml",
            'data: {paths: ["30", a/x, "70", a/y], seq_length: 64}\ntrainer: {max_steps: 9}\n',
        )
