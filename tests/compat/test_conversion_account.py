"""Accounts of converters: every key is carried over, harmless or reported; formats are told apart."""

from __future__ import annotations

import copy
import importlib.util
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from penstock.compat.mixtures import Conversion, convert, convert_with_keys
from penstock.compat.mixtures import axolotl as axolotl_format
from penstock.compat.mixtures import trl as trl_format
from penstock.mixture_files import Batching, Shuffling, Splitting, Tokenizing

ROOT = Path(__file__).resolve().parents[2]


def converted(folder: Path, text: str, **options: Any) -> Conversion:
    path = folder / "theirs.yaml"
    path.write_text(text)
    return convert_with_keys(path, **options)


def lost(found: Conversion) -> dict[str, str]:
    """The keys that are reported as lost, and why."""
    return {one.key: one.message for one in found.problems if one.severity == "warning"}


def test_datasets_of_trl_are_not_read_as_those_of_axolotl(tmp_path: Path) -> None:
    text = """
        model_name_or_path: m
        datasets: [{path: a/b, split: train, columns: [text]}, {path: c/d, name: en, fraction: 0.5}]
        num_train_epochs: 3
        per_device_train_batch_size: 4
        gradient_accumulation_steps: 2
        test_split_size: 0.1
        seed: 7
        """
    found = converted(tmp_path, text, ranks=2)
    model = found.mixture
    assert found.format == "trl" and [one.epochs for one in model.sources] == [3, 3]
    assert (model.batch, model.seed) == (Batching(8, collate="list", ranks=2), 7)
    assert (model.split, model.sources[0].columns) == (Splitting(0.1), ("text",))
    assert list(lost(found)) == ["datasets[1].fraction"]


def test_arguments_tell_formats_apart(tmp_path: Path) -> None:
    lists = "datasets: [{path: a/b, split: train}]\n"
    assert converted(tmp_path, lists + "num_epochs: 1").format == "axolotl"
    assert converted(tmp_path, lists + "num_train_epochs: 1").format == "trl"
    assert converted(tmp_path, "datasets: [{path: a/b, type: alpaca}]").format == "axolotl"
    assert converted(tmp_path, "dataset_name: a/b\nmodel_name_or_path: m").format == "trl"
    assert (
        converted(tmp_path, "dataset_mixer: {a/b: 1.0}\nmodel_name_or_path: m").format == "handbook"
    )
    for text in (lists, lists + "num_epochs: 1\nnum_train_epochs: 1"):
        with pytest.raises(ps.ConfigError, match=r"fits axolotl and trl: choose one .*--from"):
            converted(tmp_path, text)
    assert converted(tmp_path, lists, kind="trl").mixture.sources[0].epochs == 3
    theirs = {
        *trl_format._HARMLESS,
        *(key for keys in trl_format._REPORTED.values() for key in keys),
    }
    assert not axolotl_format.ARGUMENTS & theirs
    ours = {
        *axolotl_format._HARMLESS,
        *(key for keys in axolotl_format._REPORTED.values() for key in keys),
    }
    assert not trl_format.ARGUMENTS & ours


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (
            "compute_environment: LOCAL_MACHINE\ndistributed_type: FSDP",
            "looks like a file of Accelerate",
        ),
        (
            "zero_optimization: {stage: 3}\ntrain_micro_batch_size_per_gpu: auto",
            "looks like a file of DeepSpeed",
        ),
        (
            "model: m\ntrain_dataset: data/a.yaml",
            "train_dataset: the file 'data/a.yaml' is missing",
        ),
        (
            "dataset: {_component_: torchtune.datasets.alpaca_dataset}\nbatch_size: 2",
            "looks like a file of torchtune",
        ),
        (
            "dataset: [{_component_: torchtune.datasets.a}]\nepochs: 1",
            "looks like a file of torchtune",
        ),
        (
            "model_name_or_path: m\ntemplate: qwen\ninfer_backend: vllm",
            "looks like a file of LLaMA-Factory for inference or export",
        ),
    ],
)
def test_what_names_no_training_data_is_refused(tmp_path: Path, text: str, what: str) -> None:
    with pytest.raises(ps.ConfigError, match=what):
        converted(tmp_path, text)


def test_splits_for_evaluation_are_not_trained_on(tmp_path: Path) -> None:
    text = "model_name_or_path: m\ndataset_mixer: {a/b: 1.0, c/d: 0.5}\ndataset_splits: [train_sft, test_sft]\n"
    found = converted(
        tmp_path, text + "dataset_configs: [x, y]\ncolumns_to_keep: [text]\n", ranks=1
    )
    assert [one.path[0] for one in found.mixture.sources] == [
        "hf://datasets/a/b@~parquet/x/train_sft",
        "hf://datasets/c/d@~parquet/y/train_sft",
    ]
    assert lost(found) == {} and {one.columns for one in found.mixture.sources} == {("text",)}
    with pytest.raises(ps.ConfigError, match="no source"):
        converted(tmp_path, text.replace("train_sft, ", ""))


@pytest.mark.parametrize(
    "key",
    [
        "dataset_shard_num: 4", "dataset_shard_idx: 0", "dataset_exact_deduplication: true", "group_by_length: true",
        "curriculum_sampling: true", "streaming: true", "excess_length_strategy: drop", "min_sample_len: 8",
        "accelerator_config: {split_batches: true}", "plugins: [some.Plugin]", "tokens: [x]",
        "special_tokens: {pad_token: x}", "sequence_len: 512", "auto_find_batch_size: true",
        "trl: {num_generations: 8}", "resume_from_checkpoint: x",
    ],
)  # fmt: skip
def test_axolotl_reports_what_changes_its_samples(tmp_path: Path, key: str) -> None:
    text = "datasets: [{path: a/b, split: train}]\nmicro_batch_size: 2\nlearning_rate: 1\n"
    assert lost(converted(tmp_path, text, ranks=1)) == {}
    (report,) = lost(converted(tmp_path, text + key, ranks=1))
    assert report.partition(".")[0] == key.partition(":")[0]


def test_axolotl_takes_rows_after_the_first_ones_and_reports_splits_that_it_cannot_name(
    tmp_path: Path,
) -> None:
    text = "pretraining_dataset: [{path: a/b, type: pretrain, skip: 100}]\nbase_model: t\nmicro_batch_size: 1\n"
    found = converted(tmp_path, text + "max_steps: 5\ndataloader_num_workers: 8\n", ranks=1)
    assert found.mixture.sources[0].slice == (100, None) and list(lost(found)) == [
        "",
        "dataloader_num_workers",
    ]
    text = "datasets: [{path: a/b, split: 'train[:5%]+test', revision: v2}]\nmicro_batch_size: 1\n"
    assert list(lost(converted(tmp_path, text, ranks=1))) == [
        "datasets[0].revision",
        "datasets[0].split",
    ]


def test_the_order_of_axolotl_is_what_its_trainer_draws(tmp_path: Path) -> None:
    one = "datasets: [{path: a/b}]\nmicro_batch_size: 1\nshuffle_merged_datasets: false\n"
    found = converted(tmp_path, one, ranks=1)
    assert (found.mixture.shuffle, lost(found)) == (None, {})
    found = converted(tmp_path, one + "curriculum_sampling: true\n", ranks=1)
    assert (found.mixture.shuffle, lost(found)) == (Shuffling("none"), {})
    two = one.replace("{path: a/b}", "{path: a/b}, {path: c/d}")
    found = converted(tmp_path, two + "curriculum_sampling: true\n", ranks=1)
    assert list(lost(found)) == ["shuffle_merged_datasets", "curriculum_sampling"]


def llamafactory(folder: Path, text: str, **options: Any) -> Conversion:
    (folder / "data").mkdir(exist_ok=True)
    info = {name: {"file_name": f"{name}.jsonl"} for name in ("a", "b")}
    (folder / "data/dataset_info.json").write_text(json.dumps(info))
    text = f"stage: sft\nper_device_train_batch_size: 1\n{text}"
    return converted(folder, text, **{"ranks": 1, **options})


def test_a_dataset_that_is_named_twice_counts_twice(tmp_path: Path) -> None:
    found = llamafactory(
        tmp_path, "dataset: a,b,a\nmix_strategy: interleave_over\ninterleave_probs: 0.5,0.2,0.3\n"
    )
    assert {one.name: one.weight for one in found.mixture.sources} == {
        "a": 0.5,
        "b": 0.2,
        "a-2": 0.3,
    }
    assert "newer versions count it once" in lost(found)["dataset"]
    text = "data_stages: [{data: {dataset: {dataset_folder: [/x/a, /x/b, /x/a], dataset_weights: [1, 2, 3]}}}]\n"
    found = converted(tmp_path, text)
    assert {one.name: one.weight for one in found.mixture.sources} == {"a": 4, "b": 2}


def test_samples_of_a_dataset_that_is_named_twice_come_twice(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(
        "".join(json.dumps({"text": f"{i}"}) + "\n" for i in range(10))
    )
    found = converted(
        tmp_path,
        "datasets: [{path: a.jsonl}, {path: a.jsonl}]\nnum_epochs: 2\nmicro_batch_size: 1",
        ranks=1,
    )
    ps.dump(found.mixture, tmp_path / "ours.yaml")
    texts = [row["text"] for rows in ps.load(tmp_path / "ours.yaml") for row in rows]
    assert sorted(texts) == sorted(f"{i}" for i in range(10) for _ in range(4))


def test_the_order_of_llamafactory(tmp_path: Path) -> None:
    assert llamafactory(
        tmp_path, "dataset: a\ndisable_shuffling: true"
    ).mixture.shuffle == Shuffling("none")
    found = llamafactory(tmp_path, "dataset: a,b\ndisable_shuffling: true")
    assert found.mixture.shuffle == Shuffling("none") and list(lost(found)) == ["disable_shuffling"]
    for key in (
        "group_by_length: true",
        "streaming: true",
        "tokenized_path: x",
        "cutoff_len: 9",
        "do_train: false",
    ):
        assert list(lost(llamafactory(tmp_path, f"dataset: a\n{key}"))) == [key.partition(":")[0]]
    assert (
        lost(
            llamafactory(
                tmp_path, "dataset: a\ndo_train: true\ngroup_by_length: false\nlearning_rate: 1"
            )
        )
        == {}
    )


def test_neat_packing_takes_a_token_off_as_packing_does(tmp_path: Path) -> None:
    text = "dataset: a\nmodel_name_or_path: t\ncutoff_len: 64\nneat_packing: true\n"
    found = llamafactory(tmp_path, text)
    assert lost(found) == {} and found.mixture.pack == {"length": 64, "method": "best_fit"}
    (tmp_path / "theirs.yaml").write_text(f"stage: pt\nper_device_train_batch_size: 1\n{text}")
    assert convert(tmp_path / "theirs.yaml", ranks=1)[0].pack == {
        "length": 63, "method": "concat_split", "eos": True,
    }  # fmt: skip


PER_RANK = {
    "axolotl": "datasets: [{path: a/b, type: x}]\nmicro_batch_size: 16\nmax_steps: 9\n",
    "trl": "dataset_name: a/b\nmodel_name_or_path: m\nper_device_train_batch_size: 16\nmax_steps: 9\n",
    "megatron": "train-data-paths: [d/a]\nseq-length: 8\ntrain_micro_batch_size_per_gpu: 16\ntrain-iters: 9\n",
    "maxtext": "dataset_type: grain\ngrain_train_files: /d/a*\nper_device_batch_size: 16\nsteps: 9\n",
}


@pytest.mark.parametrize("kind", PER_RANK)
def test_batches_of_a_rank_need_the_number_of_ranks(tmp_path: Path, kind: str) -> None:
    key = next(line for line in PER_RANK[kind].splitlines() if line.endswith("16")).partition(":")[
        0
    ]
    found = converted(tmp_path, PER_RANK[kind])
    assert found.format == kind and "set --ranks" in lost(found)[key]
    found = converted(tmp_path, PER_RANK[kind], ranks=64)
    assert key not in lost(found) and found.mixture.horizon == ("steps", 9)
    assert found.mixture.batch is not None and (
        found.mixture.batch.size,
        found.mixture.batch.ranks,
    ) == (16, 64)


def test_a_batch_of_all_ranks_needs_no_number_and_defaults_are_said(tmp_path: Path) -> None:
    text = "train-data-paths: [d/a]\nseq-length: 8\ntrain_micro_batch_size_per_gpu: 16\ntrain-iters: 9\nseed: 0\n"
    found = converted(tmp_path, text + "train_batch_size: 1024\n")
    assert found.mixture.batch == Batching(1024, True, over_ranks=True) and found.mixture.seed == 0
    assert "train_micro_batch_size_per_gpu" not in lost(found)
    found = converted(
        tmp_path, "dataset_name: a/b\nmodel_name_or_path: m\nmax_steps: 10\n", ranks=2
    )
    assert found.mixture.batch == Batching(8, collate="list", ranks=2)
    assert "the default of transformers is 8" in " ".join(one.message for one in found.problems)
    text = (
        "data: {tokenizer: t, cache_dir: c, train_urls: [a.jsonl]}\nmodel: {seq_len: 8}\ntrainer: "
    )
    found = converted(
        tmp_path, text + "{train_batch_size: [{start: 0, value: 8}], num_train_steps: 5}"
    )
    assert "there is no batch size" in lost(found)[""]


def test_a_weight_of_nothing_is_nothing(tmp_path: Path) -> None:
    text = "dataset_mixture: {datasets: [{id: a/b, weight: 0}, {id: c/d, weight: 0.5}]}\nnum_train_epochs: 1\n"
    assert converted(tmp_path, text, ranks=1).mixture.names == ("d",)
    text = "dataset_mixer: {a/b: 0, c/d: 1.0}\nmodel_name_or_path: m\nmax_train_steps: 7\n"
    found = converted(tmp_path, text, ranks=1)
    assert (found.mixture.names, found.mixture.horizon) == (("d",), ("steps", 7))


VALID: dict[str, Any] = {
    "energon": {
        "__class__": "MetadatasetV2",
        "splits": {"train": {"blend": [{"weight": 1, "path": "a", "subset": {"range": ["0%", "50%"]}}]}},
    },
    "levanter": {
        "data": {
            "tokenizer": "t", "train_weights": {"a": 1.0}, "shuffle": {"io_block_size": 2, "window_blocks": 4},
            "components": {"a": {"source": {"type": "url", "train_urls": ["a.jsonl"]}, "format": {"type": "text"}}},
        },
        "model": {"seq_len": 8}, "trainer": {"train_batch_size": 8, "num_train_steps": 5},
    },
    "olmo-core": {"source_list": {"sources": [{"source_name": "a", "target_ratio": 1.0, "paths": ["a.jsonl"]}]}},
    "olmo-core training": {
        "data": {"paths": ["a.npy"]}, "model": {"max_sequence_length": 8}, "max_duration": "1ep",
        "global_train_batch_size": 8,
    },
    "llm-foundry": {
        "train_loader": {"dataset": {"streams": {"a": {"local": "/a"}}, "shuffle": True}, "drop_last": True},
        "global_train_batch_size": 8, "max_duration": "1ep",
    },
    "llm-foundry of a hub": {
        "train_loader": {"dataset": {"hf_name": "a/b", "split": "train", "hf_kwargs": {"name": "en"}}},
        "global_train_batch_size": 8, "max_duration": "1ep",
    },
    "nemo": {"model": {"train_ds": {"input_cfg": [
        {"type": "group", "input_cfg": [{"type": "txt", "paths": "/a.txt", "weight": 1}]},
    ]}}},
    "llamafactory": {"dataset": "a", "stage": "sft", "per_device_train_batch_size": 1},
    "axolotl": {"datasets": [{"path": "a/b", "split": "train"}], "micro_batch_size": 1, "num_epochs": 2},
    "trl": {"datasets": [{"path": "a/b", "data_files": {"train": "a.json"}}], "num_train_epochs": 2},
    "megatron": {"data_path": ["a"], "seq_length": 8, "train_iters": 5, "train_batch_size": 8},
    "megatron of NeMo": {
        "model": {"data": {"data_prefix": {"train": [1.0, "/a"]}}, "encoder_seq_length": 8, "global_batch_size": 8},
        "trainer": {"max_steps": 5},
    },
    "nanotron": {
        "data_stages": [{"data": {"dataset": {"dataset_folder": {"/a": 1.0}}}, "start_training_step": 1}],
        "general": {"seed": 8}, "model": {"model_config": {"vocab_size": 100}}, "parallelism": {"dp": 1},
        "tokens": {"micro_batch_size": 2, "sequence_length": 8, "train_steps": 5}, "tokenizer": {},
    },
    "handbook": {
        "dataset_mixture": {"datasets": [{"id": "a/b", "weight": 1.0}], "seed": 3}, "num_train_epochs": 1,
        "per_device_train_batch_size": 2,
    },
    "handbook mixer": {"dataset_mixer": {"a/b": 1.0}, "num_train_epochs": 1, "per_device_train_batch_size": 2},
    "maxtext": {"dataset_type": "grain", "grain_train_files": "/d/a*", "per_device_batch_size": 6, "steps": 5},
    "dolma": {"streams": [{"name": "a", "documents": ["/a/*.gz"], "output": {"path": "out"}}]},
    "dclm": {"name": "a", "dataset_url": "s3://b/a", "manifest_url": "s3://b/m", "tokenized": True},
}  # fmt: skip
"""A file of each format, of which nothing is lost."""


def mappings(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the paths of the mappings in a file."""
    if isinstance(value, dict):
        yield at
        for name, child in value.items():
            yield from mappings(child, (*at, name))
    elif isinstance(value, list):
        for number, child in enumerate(value):
            yield from mappings(child, (*at, number))


NAMES_OF_DATA = (
    "splits",
    "components",
    "train_weights",
    "streams",
    "data_files",
    "dataset_folder",
    "dataset_mixer",
)
"""Mappings whose keys are names of data, and not settings."""
PLACES = [(kind, place) for kind, value in VALID.items() for place in mappings(value)]


def named(place: tuple[Any, ...], key: str) -> str:
    dotted = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in (*place, key))
    return dotted.lstrip(".")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("theirs")
    (folder / "data").mkdir()
    (folder / "data/dataset_info.json").write_text(
        '{"a": {"file_name": "/a.jsonl"}, "hub": {"hf_hub_url": "a/b", "subset": "en", "columns": {"prompt": "p"}}}'
    )
    return folder


@pytest.mark.parametrize("kind", VALID)
def test_of_a_file_that_is_understood_nothing_is_lost(folder: Path, kind: str) -> None:
    found = converted(folder, yaml.safe_dump(VALID[kind]), ranks=1)
    assert found.format == kind.split()[0] and lost(found) == {}


CARRIED: dict[str, Any] = VALID | {
    "axolotl of files": {
        "datasets": [
            {"path": "json", "data_files": ["/a.txt"], "type": "completion", "field": "body", "shards": 3,
             "shards_idx": 1, "name": "en", "split": "train"},
            {"path": "/a.dat", "ds_type": "csv", "type": "completion", "split": "train[10%:50%]", "name": ["en", "fr"]},
            {"path": "a/b", "type": "completion", "skip": 5, "name": "en", "split": "test", "revision": "v2"},
            {"path": "a/b", "type": "completion", "data_files": "z.parquet", "name": ["en", "fr"], "split": "test"},
        ],
        "base_model": "t", "micro_batch_size": 1, "num_epochs": 2, "sequence_len": 8, "sample_packing": True,
        "gradient_accumulation_steps": 2, "val_set_size": 0.5, "seed": 3, "shuffle_merged_datasets": False,
        "curriculum_sampling": True, "dataloader_drop_last": True,
    },
    "trl of files": {
        "datasets": [
            {"path": "./data", "name": "en", "split": "validation", "columns": ["a"]},
            {"path": "a/b", "name": "en", "split": "test", "data_files": "z.parquet", "data_dir": "d"},
            {"path": "json", "name": "en", "split": "test", "data_files": ["z.txt"], "data_dir": "/d"},
            {"path": "csv", "split": "test", "data_files": {"test": "z.txt", "train": "y.txt"}},
        ],
        "test_split_size": 0.5, "num_train_epochs": 2, "per_device_train_batch_size": 2, "data_seed": 3, "seed": 4,
        "gradient_accumulation_steps": 2, "dataloader_drop_last": True,
    },
    "trl of a folder": {
        "dataset_name": "./data", "dataset_config": "en", "dataset_train_split": "test", "max_steps": 5,
        "per_device_train_batch_size": 2, "model_name_or_path": "m",
    },
    "handbook of folders": {
        "dataset_mixture": {
            "datasets": [{"id": "./data", "config": "en", "split": "test", "weight": 0.5, "columns": ["a"]}], "seed": 3,
        },
        "num_train_epochs": 1, "per_device_train_batch_size": 2, "seed": 4,
    },
    "handbook mixer of folders": {
        "dataset_mixer": {"./data": 0.5, "a/b": 1.0}, "dataset_configs": ["en", "fr"], "columns_to_keep": ["a"],
        "dataset_splits": ["train_sft", "test"], "num_train_epochs": 1, "per_device_train_batch_size": 2, "seed": 4,
    },
    "handbook list": {
        "dataset_mixer_list": ["./data", "5", "a/b", "1.0"], "dataset_mixer_list_splits": ["test"],
        "max_train_steps": 5, "per_device_train_batch_size": 2, "model_name_or_path": "m",
    },
    "llm-foundry of hub files": {
        "train_loader": {
            "dataset": {
                "hf_name": "a/b", "split": "test", "shuffle": True, "shuffle_seed": 3,
                "hf_kwargs": {"name": "en", "data_files": "z.parquet", "data_dir": "d"},
            },
            "drop_last": True,
        },
        "global_train_batch_size": 8, "max_duration": "5ba", "tp_config": {"x": 1}, "callbacks": {"early_stopper": {}},
    },
    "llm-foundry of files": {
        "train_loader": {"dataset": {"hf_name": "json", "split": "test", "hf_kwargs": {"name": "en", "data_dir": "d"}}},
        "global_train_batch_size": 8, "max_duration": "5ba",
    },
    "llm-foundry streams": {
        "train_loader": {"dataset": {"split": "x", "streams": {
            "a": {"local": "/a", "proportion": 2.0}, "b": {"remote": "/b", "proportion": 1.0, "split": "s"},
        }}},
        "global_train_batch_size": 8, "max_duration": "5ba",
    },
    "energon of rows": {
        "__class__": "MetadatasetV2",
        "splits": {"train": {"blend_epochized": [
            {"repetitions": 2, "path": "/a.jsonl", "split_part": "val"},
            {"repetitions": 3, "path": "/a", "split_part": "val"},
        ]}},
    },
    "nemo around": {
        "trainer": {"max_steps": 9, "limit_train_batches": 0.5, "accumulate_grad_batches": 2},
        "exp_manager": {"name": "a", "max_time_per_run": 1},
        "model": {"name": "x", "prompt_format": "y"},
        "data": {"train_ds": {"input_cfg": [{"type": "nemo", "manifest_filepath": "/a_OP_0..3_CL_.json", "corpus": "c"}]}},
    },
    "llamafactory of a hub": {
        "dataset": "hub,a", "stage": "pt", "per_device_train_batch_size": 1, "model_name_or_path": "t", "cutoff_len": 9,
        "packing": True, "max_samples": 5, "val_size": 0.5, "num_train_epochs": 2, "seed": 3, "template": "llama3",
        "disable_shuffling": True,
    },
    "llamafactory probabilities": {
        "dataset": "hub,a", "stage": "sft", "per_device_train_batch_size": 1, "mix_strategy": "interleave_over",
        "interleave_probs": "0.5,0.5", "max_steps": 9,
    },
    "megatron lists": {
        "train_data_paths": ["a", "b"], "train_data_weights": [1, 2], "seq_length": 8, "train_iters": 5,
        "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 2, "seed": 3, "eod_mask_loss": True,
    },
    "megatron split": {"data_path": ["a"], "split": "90,5,5", "seq_length": 8, "train_iters": 5, "train_batch_size": 8},
    "nanotron hub": {
        "data_stages": [{"data": {"dataset": {
            "hf_dataset_or_datasets": "a/b", "hf_dataset_splits": "test", "hf_dataset_config_name": "en",
            "text_column_name": "body",
        }, "seed": 3}, "start_training_step": 1}],
        "general": {"seed": 8}, "model": {"model_config": {"vocab_size": 100}}, "parallelism": {"dp": 2},
        "tokens": {
            "micro_batch_size": 2, "sequence_length": 8, "train_steps": 5, "batch_accumulation_per_replica": 3,
        },
        "tokenizer": {"tokenizer_name_or_path": "t"}, "checkpoints": {"resume_checkpoint_path": "c"},
    },
    "nanotron weights": {
        "data_stages": [{"data": {"dataset": {
            "dataset_folder": ["/a", "/b"], "dataset_weights": [1, 2], "token_size_in_bytes": 2,
            "dataset_read_path": ["/c", "/d"], "vocab_size": 9,
        }}, "start_training_step": 1}],
        "tokens": {"sequence_length": 8, "train_steps": 5},
    },
    "levanter of a hub": {
        "data": {
            "tokenizer": "t", "id": "a/b", "name": "en", "shuffle": True, "stop_strategy": "first_exhausted",
            "enforce_eos": False, "cache_dir": "c", "mixture_block_size": 7,
        },
        "model": {"seq_len": 8}, "trainer": {"train_batch_size": 8, "num_train_steps": 5, "seed": 3}, "data_seed": 4,
    },
    "levanter stages": {
        "tokenizer": "t", "train_weights": [[0, {"a": 1, "b": 2}], [8, {"a": 2, "b": 2}]], "mixture_block_size": 7,
        "configs": {"a": {"train_urls": ["/a.jsonl"], "format": {"text_key": "body"}}, "b": {"id": "a/b", "name": "en"}},
    },
    "olmo-core with batches": {
        "sources": [{
            "source_name": "a", "target_ratio": 1.0, "paths": ["a.npy"], "max_repetition_ratio": 2.0,
            "max_source_fraction": 0.5,
        }],
        "dtype": "uint16", "requested_tokens": 99, "global_batch_size": 16, "sequence_length": 8, "seed": 3,
    },
    "olmo-core run": {
        "data": {"paths": ["a.npy", "a.npy", "b.npy"], "memmap_dtype": "uint32", "drop_last": False},
        "model": {"max_sequence_length": 8, "eos_token_id": 7}, "max_duration": 50, "global_train_batch_size": 8,
        "seed": 3, "data_seed": 4, "load_path": "x",
    },
    "maxtext of a hub": {
        "dataset_type": "hf", "hf_path": "a/b", "hf_name": "en", "train_split": "test", "hf_train_files": "z.parquet",
        "per_device_batch_size": 6, "steps": 5, "tokenizer_path": "t/u", "max_target_length": 8, "packing": True,
        "add_bos": True, "add_eos": True, "train_data_columns": ["body"], "enable_data_shuffling": False,
        "data_shuffle_seed": 3, "num_epoch": 2, "gradient_accumulation_steps": 2, "grain_packing_type": "best_fit",
    },
    "maxtext of files": {
        "dataset_type": "hf", "hf_path": "json", "hf_name": "en", "train_split": "test", "hf_train_files": "z.dat",
        "per_device_batch_size": 6, "learning_rate_schedule_steps": 5, "tokenize_train_data": False,
    },
    "maxtext mixture": {
        "dataset_type": "grain", "grain_train_files": "/d/a*,0.5;/d/b*,0.5", "grain_file_type": "parquet", "steps": 5,
        "per_device_batch_size": 6, "num_epoch": 2,
    },
}  # fmt: skip
"""Files of each format with most of the settings that a mixture file takes over."""


def changed(value: Any) -> list[Any]:
    """Return other values of a setting, of its type."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int | float):
        return [value * 2, value + 1, value * 1000]
    if isinstance(value, list):
        return [[*value, *value], value[:1], [f"{one}x" for one in value]]
    return [f"{value}x", value[1:], "train", "none"] if isinstance(value, str) else []


@pytest.mark.parametrize("kind", CARRIED)
def test_another_value_of_a_key_that_is_carried_gives_another_mixture(
    folder: Path, kind: str
) -> None:
    def outcome(theirs: Any) -> Any:
        try:
            found = converted(folder, yaml.safe_dump(theirs), ranks=1, kind=kind.split()[0])
        except ps.ConfigError as error:
            return str(error)
        return (
            repr(found.mixture),
            sorted((one.key, one.message) for one in found.problems),
            found.keys,
        )

    before = outcome(CARRIED[kind])
    assert not isinstance(before, str), before
    here = str(folder / "theirs.yaml")
    carried = {one.key for one in before[2].carried if one.file == here}
    checked = 0
    for place in mappings(CARRIED[kind]):
        inside = CARRIED[kind]
        for part in place:
            inside = inside[part]
        for key, value in inside.items():
            values = changed(value) if named(place, key) in carried else []
            if not values or (
                isinstance(value, list) and any(isinstance(one, dict | list) for one in value)
            ):
                continue
            outcomes = list[Any]()
            for other in values:
                theirs = copy.deepcopy(CARRIED[kind])
                target = theirs
                for part in place:
                    target = target[part]
                target[key] = other
                outcomes.append(outcome(theirs))
            assert any(after[:2] != before[:2] for after in outcomes), (
                f"{named(place, key)} changes nothing"
            )
            checked += 1
    assert checked


KEYS = st.from_regex(r"[a-z]{3,9}_[a-z0-9]{2,9}", fullmatch=True)
VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.text("abc"), st.just({"x": 1}), st.just([{"y": 2}])
)


@given(place=st.sampled_from(PLACES), key=KEYS, value=VALUES)
def test_a_key_that_is_not_known_is_reported_wherever_it_stands(
    folder: Path, place: tuple[str, tuple[Any, ...]], key: str, value: Any
) -> None:
    kind, at = place
    theirs = copy.deepcopy(VALID[kind])
    inside = theirs
    for part in at:
        inside = inside[part]
    inside[f"qq_{key}"] = value  # begins as no key of any format does
    try:
        found = converted(folder, yaml.safe_dump(theirs), ranks=1, kind=kind.split()[0])
    except ps.ConfigError as error:
        assert "qq_" in str(error) or kind in ("llamafactory", "energon"), str(
            error
        )  # refused is not silent
        return
    reported = {one.key for one in found.keys.reported} & {one.key for one in found.problems}
    if at and at[-1] in NAMES_OF_DATA:
        reported |= {one.key for one in found.keys.carried}
        reported |= (
            {one.key for one in found.keys.harmless} if value is None else set()
        )  # nothing is said of it
    assert named(at, f"qq_{key}") in reported


def test_the_script_finds_a_key_that_is_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = importlib.util.spec_from_file_location(
        "check_conversions", ROOT / "tools/check_conversions.py"
    )
    assert spec is not None and spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "check_conversions", script)
    spec.loader.exec_module(script)
    (tmp_path / "sft.yaml").write_text(
        "datasets: [{path: a/b, odd: {x: 1}}]\nnum_epochs: 1\nfsdp: {y: 1}\n"
    )
    (tmp_path / "zero.yaml").write_text("zero_optimization: {stage: 3}\n")
    monkeypatch.setattr("sys.argv", ["check_conversions.py", str(tmp_path)])
    assert script.main() == 0
    assert "1 refused: this looks like a file of DeepSpeed" in capsys.readouterr().out

    def forgetful(path: Path, **options: Any) -> Conversion:
        found = convert_with_keys(path, **options)
        found.keys.reported = [key for key in found.keys.reported if not key.key.endswith("odd")]
        return found

    monkeypatch.setattr(script, "convert_with_keys", forgetful)
    assert script.main() == 1
    assert f"silent: {tmp_path / 'sft.yaml'}: datasets[0].odd" in capsys.readouterr().out


PYTHON = """
from datasets import interleave_datasets, load_dataset
a = load_dataset("json", data_files="a.jsonl", split="train"%s)
both = interleave_datasets([a, load_dataset("o/n", split="train")], probabilities=[0.3, 0.7], seed=4%s)
"""


def test_arguments_of_python_are_accounted_for_as_well(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(PYTHON % ("", ""))
    assert lost(convert_with_keys(path)) == {}
    path.write_text(PYTHON % (", num_proc=4, revision='v2'", ", odd=1"))
    assert list(lost(convert_with_keys(path))) == [
        "load_dataset(revision)",
        "interleave_datasets(odd)",
    ]


def test_a_split_of_named_files_or_of_a_folder_of_the_hub_is_reported(tmp_path: Path) -> None:
    text = """
        base_model: m
        micro_batch_size: 1
        num_epochs: 1
        datasets: [{path: a/b, type: alpaca, split: test, data_files: [x.json]}]
        """
    assert "datasets[0].split" in lost(converted(tmp_path, text, ranks=1))
    (tmp_path / "data").mkdir()
    entry = {"hf_hub_url": "x/b", "split": "train_sft", "subset": "s", "folder": "f"}
    (tmp_path / "data" / "dataset_info.json").write_text(json.dumps({"b": entry}))
    found = converted(
        tmp_path,
        "stage: sft\ndo_train: true\ndataset: b\nper_device_train_batch_size: 1\n",
        ranks=1,
    )
    assert {"b.folder", "b.split", "b.subset"} <= {*lost(found)}


OF_FILES = {
    "trl": ("datasets: [{path: ./data, name: en, split: validation, columns: [a]}]", ["[0].name", "[0].split"]),
    "trl of hub files": (
        "datasets: [{path: a/b, name: en, split: test, data_files: z.parquet, columns: [a]}]",
        ["[0].name", "[0].split"],
    ),
    "trl of a name": (
        "dataset_name: ./data\nmodel_name_or_path: m\ndataset_config: en\ndataset_train_split: test",
        ["dataset_config", "dataset_train_split"],
    ),
    "handbook": ("dataset_mixture: {datasets: [{id: ./data, config: en, split: test}]}", ["[0].config", "[0].split"]),
    "axolotl": ("micro_batch_size: 1\ndatasets: [{path: ./data, name: [en, fr], split: test}]", ["[0].name", "[0].split"]),
    "axolotl of hub files": (
        "micro_batch_size: 1\ndatasets: [{path: a/b, data_files: z.parquet, name: [en, fr]}]", ["[0].name"],
    ),
    "llm-foundry": (
        "train_loader: {dataset: {hf_name: a/b, hf_kwargs: {data_files: z.json, name: cc}}}\n"
        "global_train_batch_size: 8", [".hf_kwargs.name"],
    ),
    "energon": ("__class__: x\nsplits: {train: {path: /x.jsonl, split_part: val}}", [".split_part"]),
}  # fmt: skip


@pytest.mark.parametrize("kind", OF_FILES)
def test_files_have_no_configuration_and_no_split(tmp_path: Path, kind: str) -> None:
    (tmp_path / "data").mkdir()
    text, keys = OF_FILES[kind]
    found = converted(
        tmp_path, text + "\nper_device_train_batch_size: 1", ranks=1, kind=kind.split()[0]
    )
    assert len(found.mixture.sources) == 1  # and one folder is read once
    assert {key for key in keys for name in lost(found) if name.endswith(key)} == {*keys}
    if kind != "energon":
        files = {found.mixture.names[0]: "/here"}
        again = converted(
            tmp_path,
            text + "\nper_device_train_batch_size: 1",
            ranks=1,
            files=files,
            kind=kind.split()[0],
        )
        assert again.mixture.sources[0].path == ("/here",)
        assert len(again.mixture.sources) > 1 or not {
            key for key in keys for name in lost(again) if name.endswith(key)
        }


def test_a_place_for_a_dataset_of_the_hub_is_not_that_of_its_configurations(tmp_path: Path) -> None:
    text = "datasets: [{path: a/b, name: en}, {path: a/b, name: fr}]\nmodel_name_or_path: m\nmax_steps: 5\n"
    found = converted(tmp_path, text, ranks=1, files={"a/b": "/here"})
    assert {"datasets[0].name", "datasets[1].name"} <= {*lost(found)}
    found = converted(tmp_path, text, ranks=1, files={"b-en": "/en", "b-fr": "/fr"})
    assert lost(found) == {} and [one.path for one in found.mixture.sources] == [("/en",), ("/fr",)]
    text = "datasets: [{path: a/b, data_files: z.parquet}]\nmodel_name_or_path: m\nmax_steps: 5\n"
    found = converted(tmp_path, text, ranks=1, files={"a/b": "/here"}, kind="trl")
    assert lost(found) == {} and found.mixture.sources[0].path == ("/here/z.parquet",)


def test_the_format_of_files_is_what_their_path_says(tmp_path: Path) -> None:
    text = "datasets: [{path: json, data_files: /a.txt, type: alpaca}]\nmicro_batch_size: 1"
    [source] = converted(tmp_path, text, ranks=1).mixture.sources
    assert (source.path, source.format) == (("/a.txt",), "jsonl")


DATASET = "train_loader: {dataset: {hf_name: a/b}}\nglobal_train_batch_size: 8\n"
NEMO = "model: {train_ds: {input_cfg: [{type: txt, paths: /a.txt}]}}\n"
NESTED = {
    "trainer.max_steps": ("nemo", NEMO, "{max_steps: 9}"),
    "trainer.limit_train_batches": ("nemo", NEMO, "{limit_train_batches: 1}"),
    "trainer.accumulate_grad_batches": ("nemo", NEMO, "{accumulate_grad_batches: 2}"),
    "exp_manager.max_time_per_run": ("nemo", NEMO, "{max_time_per_run: '00:01:00:00'}"),
    "exp_manager.resume_if_exists": ("megatron", "data_path: [a]\n", "{resume_if_exists: true}"),
    "callbacks": ("nemo", NEMO, "{early_stopping: {}}"),
    "callbacks.curriculum_learning": ("llm-foundry", DATASET, "{speed_monitor: {}, curriculum_learning: {}}"),
    "callbacks.early_stopper": ("llm-foundry", DATASET, "{early_stopper: {}}"),
    "model.attn_config.attn_uses_sequence_id": ("llm-foundry", DATASET, "{attn_config: {attn_uses_sequence_id: true}}"),
    "command": ("llm-foundry", DATASET, "composer train.py"),
    "checkpoints.resume_checkpoint_path": (
        "nanotron", "data_stages: [{data: {dataset: {dataset_folder: [/a]}}}]\n", "{resume_checkpoint_path: x}",
    ),
    "deepspeed.gradient_accumulation_steps": ("trl", "dataset_name: a/b\nnum_train_epochs: 1\n", "{gradient_accumulation_steps: 8}"),
    "deepspeed.data_efficiency": ("axolotl", "datasets: [{path: a/b}]\n", "{data_efficiency: {enabled: true}}"),
    "dataset_type": ("maxtext", "grain_train_files: /d/a*\n", "tfds"),
}  # fmt: skip


@pytest.mark.parametrize("key", NESTED)
def test_sections_that_may_change_the_data_are_opened(tmp_path: Path, key: str) -> None:
    kind, text, value = NESTED[key]
    text += f"{key.partition('.')[0]}: {value}\n"
    try:
        found = converted(tmp_path, text, ranks=1, kind=kind)
    except ps.ConfigError as error:
        assert f"{key}: " in str(error)
        return
    assert key in lost(found)


def test_settings_of_a_trainer_that_are_usual_lose_nothing(tmp_path: Path) -> None:
    trainer = "{max_steps: -1, limit_train_batches: 1.0, accumulate_grad_batches: 1, devices: 8, strategy: ddp}"
    assert lost(converted(tmp_path, f"{NEMO}trainer: {trainer}\nexp_manager: {{name: a}}")) == {}
    deepspeed = (
        "{train_batch_size: auto, gradient_accumulation_steps: auto, zero_optimization: {stage: 3}}"
    )
    text = f"dataset_name: a/b\nmodel_name_or_path: m\ndeepspeed: {deepspeed}"
    assert lost(converted(tmp_path, text, ranks=1)) == {}


def test_a_duration_of_composer_without_a_unit_counts_epochs(tmp_path: Path) -> None:
    text = "train_loader: {dataset: {streams: {a: {local: a}}, shuffle: true}}\nglobal_train_batch_size: 4\n"
    for duration in ("3", "3ep"):
        model = converted(tmp_path, f"{text}max_duration: {duration}\n").mixture
        assert (model.horizon, model.sources[0].max_epochs) == (None, 3)


def test_a_share_of_one_is_all_of_a_dataset(tmp_path: Path) -> None:
    rest = "num_train_epochs: 1\nper_device_train_batch_size: 2\n"
    named = converted(tmp_path, f"dataset_mixer: {{a/b: 1, c/d: 2}}\n{rest}", ranks=1)
    assert [source.slice for source in named.mixture.sources] == [None, (0, 2)] and not lost(named)
    listed = converted(tmp_path, f"dataset_mixer_list: [a/b, 1, c/d, 2]\n{rest}", ranks=1)
    assert [source.slice for source in listed.mixture.sources] == [None, (0, 2)]
    assert "all of it or one sample" in lost(listed)["dataset_mixer_list"]


def test_completions_of_axolotl_take_the_tokenizer_and_the_end_that_they_have(
    tmp_path: Path,
) -> None:
    text = (
        "base_model: m\nbase_model_config: other\nsequence_len: 8\nmicro_batch_size: 1\n"
        "datasets: [{path: a/b, type: completion, split: 'train[:10%]'}]\n"
    )
    found = converted(tmp_path, text, ranks=1)
    assert found.mixture.sources[0].tokenize == Tokenizing("other", special_tokens=True)
    assert "EOS token" in lost(found)[""]
    assert any(
        "rounded down" in one.message for one in found.problems if one.key == "datasets[0].split"
    )
    packed = converted(tmp_path, f"{text}sample_packing: true\n", ranks=1)
    assert (
        packed.mixture.pack is not None and packed.mixture.pack["eos"] is True and not lost(packed)
    )


def test_rows_of_nemo_are_as_long_as_its_data_says(tmp_path: Path) -> None:
    text = "model: {encoder_seq_length: 4096, data: {data_prefix: [1, ./a], seq_length: 2048}}\n"
    found = converted(tmp_path, text)
    assert found.mixture.pack == {"length": 2048} and not lost(found)


def test_streams_of_axolotl_are_packed_unless_sample_packing_is_off(tmp_path: Path) -> None:
    text = (
        "pretraining_dataset: [{path: a/b, type: pretrain}]\nbase_model: t\nmicro_batch_size: 1\n"
        "sequence_len: 8\nstreaming_multipack_buffer_size: 4\nsample_packing: "
    )
    packed, missing, off = (
        converted(tmp_path, text + value) for value in ("true", "null", "false")
    )
    assert packed.mixture.pack == missing.mixture.pack and packed.mixture.pack is not None
    assert off.mixture.pack is None and "sequence_len" in lost(off)


def test_weights_of_manifests_are_no_paths(tmp_path: Path) -> None:
    found = converted(
        tmp_path, "input_cfg: [{type: nemo, manifest_filepath: [[a.json, 3], [b.json, 2]]}]\n"
    )
    assert [Path(path).name for path in found.mixture.sources[0].path] == ["a.json", "b.json"]
    assert "their own weights" in lost(found)["input_cfg[0].manifest_filepath"]


def test_passes_that_are_not_said_are_lost_where_datasets_are_interleaved(tmp_path: Path) -> None:
    (tmp_path / "dataset_info.json").write_text(
        '{"a": {"file_name": "a.json"}, "b": {"file_name": "b.json"}}'
    )
    text = f"stage: sft\ndataset: a,b\ndataset_dir: {tmp_path}\nmix_strategy: interleave_under\n"
    assert "the run has 3" in lost(converted(tmp_path, text, ranks=1))[""]
    assert not lost(converted(tmp_path, f"{text}num_train_epochs: 1\n", ranks=1))
