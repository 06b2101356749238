"""Whatever stands in a file, reading it gives problems and never another error."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from example_counts import examples
from penstock.compat.mixtures import KINDS, convert_with_keys
from penstock.mixture_files import build_schema, lint, read_model
from penstock.mixture_files.reading import ProblemLog, read_text

DEFINITIONS = [build_schema(), *build_schema()["$defs"].values()]
KEYS = sorted(
    {
        name
        for each in DEFINITIONS
        for part in (each, *each.get("anyOf", ()))
        for name in part.get("properties", {})
    }
)
LEAVES = st.one_of(
    st.sampled_from(
        [
            "code",
            "text",
            "full",
            "none",
            "steps",
            "linear",
            "first_fit",
            "stack",
            "x.yaml",
            "",
            "${X}",
            "7",
        ]
    ),
    st.integers(-3, 9),
    st.sampled_from([0.5, 1e300, float("inf"), float("nan"), True, None]),
)


def trees(keys: list[str]) -> st.SearchStrategy[Any]:
    return st.recursive(
        LEAVES,
        lambda inner: st.one_of(
            st.lists(inner, max_size=3),
            st.dictionaries(st.sampled_from([*keys, "a", "b", "0", "5"]), inner, max_size=5),
        ),
        max_leaves=12,
    )


SOURCES = st.dictionaries(
    st.sampled_from("abc"),
    st.dictionaries(st.sampled_from(KEYS), trees(KEYS), max_size=5),
    max_size=3,
)


@examples(150)
@given(rest=st.dictionaries(st.sampled_from(KEYS), trees(KEYS), max_size=5), sources=SOURCES)
def test_a_mixture_file_of_anything(
    rest: dict[str, Any], sources: dict[str, Any], tmp_path_factory: Any
) -> None:
    path = _folder(tmp_path_factory) / "mixture.yaml"
    path.write_text(yaml.safe_dump({"sources": sources, **rest}))
    problems = lint(path)
    assert all(problem.line >= 1 and problem.message for problem in problems)
    if any(problem.severity == "error" for problem in read_model(path)[1]):
        assert any(problem.severity == "error" for problem in problems)


FOREIGN = [
    "splits", "train", "blend", "blend_epochized", "path", "weight", "repetitions", "subset", "range", "split_part",
    "configs", "components", "train_weights", "train_urls", "data", "shuffle", "trainer", "model", "source_list",
    "sources", "source_name", "target_ratio", "paths", "streams", "local", "proportion", "repeat", "choose", "split",
    "input_cfg", "type", "manifest_filepath", "file_name", "num_samples", "dataset", "interleave_probs", "datasets",
    "shards", "shards_idx", "field", "sequence_len", "sample_packing", "max_repetition_ratio", "format", "source",
    "id", "name", "hf_name", "hf_kwargs", "data_files", "max_duration", "train_loader", "parameters", "max_steps",
    "num_epochs", "num_train_epochs", "gradient_accumulation_steps", "per_device_train_batch_size", "global_batch_size",
    "val_size", "val_set_size", "supervised_data", "mixture_weights", "train_batch_size", "seed", "columns", "packing",
    "data_stages", "dataset_folder", "dataset_weights", "dataset_read_path", "start_training_step", "tokens", "general",
    "hf_dataset_or_datasets", "hf_dataset_splits", "parallelism", "model_config", "train_data_weights", "data_path",
    "data_prefix", "dataset_mixture", "dataset_mixer", "dataset_mixer_list_splits", "config", "memmap_dtype", "stage",
    "pretraining_dataset", "text_column", "skip", "batch_size", "micro_batch_size", "base_model", "plugins",
    "curriculum_sampling", "shuffle_merged_datasets", "test_split_size", "dataset_name", "dataset_splits",
    "dataset_configs", "disable_shuffling", "mix_strategy", "neat_packing", "model_name_or_path", "dataset_mixer_list",
    "train", "io_block_size", "window_blocks", "variables", "steps", "packed", "split_part", "blend", "train_ds",
]  # fmt: skip
SEEDS: dict[str, dict[str, Any]] = {
    "energon": {
        "__class__": "MetadatasetV2",
        "splits": {"train": {"blend": [{"path": "x", "weight": 1}]}},
    },
    "levanter": {"configs": {"a": {"train_urls": ["x"]}}, "train_weights": {"a": 1}},
    "olmo-core": {"sources": [{"source_name": "a", "target_ratio": 1, "paths": ["x"]}]},
    "llm-foundry": {"streams": {"a": {"local": "x"}}},
    "nemo": {"input_cfg": [{"type": "nemo", "manifest_filepath": "x"}]},
    "llamafactory": {"a": {"file_name": "x.json"}},
    "axolotl": {"datasets": [{"path": "x.jsonl"}]},
    "trl": {"datasets": [{"path": "x", "columns": ["text"]}], "num_train_epochs": 2},
    "megatron": {"data_path": [0.5, "x", 1, "y"], "model": {"data": {}}},
    "nanotron": {
        "data_stages": [{"data": {"dataset": {"dataset_folder": ["x"]}}}],
        "tokens": {"sequence_length": 8},
    },
    "handbook": {
        "dataset_mixture": {"datasets": [{"id": "a/b", "weight": 0.5}]},
        "num_train_epochs": 2,
    },
    "maxtext": {"dataset_type": "grain", "grain_train_files": "x*;y*"},
    "dolma": {"streams": [{"name": "a", "documents": ["x/*.gz"], "output": {"path": "y"}}]},
    "dclm": {
        "name": "a",
        "dataset_url": "x/",
        "manifest_url": "x/manifest.jsonl",
        "tokenized": True,
    },
    "llamafactory-v1": {
        "model": "a/b",
        "train_dataset": "data.yaml",
        "dist_config": {"name": "fsdp2"},
    },
    "open-instruct": {"dataset_mixer_list": ["a/b", "1.0"], "max_seq_length": 8},
    "lingua": {"data": {"root_dir": "x", "sources": {"a": 1.0}, "seq_len": 8, "batch_size": 2}},
    "litgpt": {
        "data": {"class_path": "litgpt.data.JSON", "init_args": {"json_path": "x.json"}},
        "train": {"global_batch_size": 8, "epochs": 1},
    },
    "nemotron": {"datasets": [{"name": "a", "path": "x", "weight": 1.0}]},
    "olmo-core-mix": {},  # is no YAML
    "megatron-shell": {},
    "python": {},
}


@examples(150)
@given(
    kind=st.sampled_from(sorted(KINDS)),
    tree=trees(FOREIGN),
    into=st.sampled_from(FOREIGN),
    again=trees(FOREIGN),
)
def test_a_foreign_file_of_anything(
    kind: str, tree: Any, into: str, again: Any, tmp_path_factory: Any
) -> None:
    path = _folder(tmp_path_factory) / "foreign.yaml"
    seed = SEEDS[kind]
    mixed = _put(seed, into, tree)
    path.write_text(yaml.safe_dump(_put(mixed, into, again) if isinstance(again, dict) else mixed))
    try:
        found = convert_with_keys(path, kind)
    except ps.ConfigError:
        return
    assert found.mixture.sources and all(problem.line >= 1 for problem in found.problems)
    keys = found.keys
    assert yaml.safe_load(path.read_text()).keys() <= {
        key.key for key in (*keys.carried, *keys.harmless, *keys.reported)
    }


def _put(tree: Any, key: str, value: Any) -> Any:
    """A value put into every mapping of a tree, under one key; what a mapping brings goes in as a whole."""
    if isinstance(tree, dict):
        inner = {name: _put(child, key, value) for name, child in tree.items()}
        return {**inner, **value} if isinstance(value, dict) else {**inner, key: value}
    return [_put(child, key, value) for child in tree] if isinstance(tree, list) else tree


@examples(100)
@given(st.text(st.sampled_from("ab:-{}[]&*!|>'\"#%@`?, \n\t0"), max_size=30))
def test_any_text(text: str) -> None:
    notes = ProblemLog()
    assert read_text(text, "here", notes) is not None or notes.problems


def _folder(factory: Any) -> Path:
    folder = factory.getbasetemp() / "any"
    folder.mkdir(exist_ok=True)
    return folder
