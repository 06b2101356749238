"""Mixtures of MaxText, and of what puts data together beforehand: dolma's mixer, DCLM's tokenized datasets."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import penstock as ps
from penstock.compat.mixtures import convert
from penstock.mixture_files import Batching, MixtureFile, Shuffling, Tokenizing, dump, read_model


def carried(path: Path, text: str, **options: object) -> tuple[MixtureFile, list[str]]:
    """Return a converted file and the lost keys; assert that it survives a write and a read."""
    path.write_text(text)
    model, problems = convert(path, **{"ranks": 1, **options})  # type: ignore[arg-type]
    dump(model, path.with_name("written.yaml"))
    again, wrong = read_model(path.with_name("written.yaml"))
    assert again == model and not [one for one in wrong if one.severity == "error"]
    return model, [problem.key for problem in problems if problem.severity == "warning"]


MAXTEXT = """
base_config: base.yml
dataset_type: grain
grain_file_type: arrayrecord
grain_train_files: "/d/web.array_record*,0.3;/d/code/*,0.9"
tokenizer_path: meta/tokenizer
max_target_length: 64
per_device_batch_size: 6
gradient_accumulation_steps: 2
steps: 100
data_shuffle_seed: 7
use_dpo: false
packing: true
add_bos: false
learning_rate: 1.e-4
"""


def test_maxtext_blends(tmp_path: Path) -> None:
    model, lost = carried(tmp_path / "c.yml", MAXTEXT, ranks=4)
    assert (
        lost == []
        and model.names == ("web", "code")
        and [one.weight for one in model.sources] == [0.3, 0.9]
    )
    assert {(one.format, one.columns) for one in model.sources} == {("array_record", ("text",))}
    assert (model.stop, model.horizon, model.seed) == ("first_exhausted", ("steps", 100), 7)
    assert model.batch == Batching(12, True, ranks=4) and model.tokenize == Tokenizing(
        "meta/tokenizer", "text"
    )
    assert model.pack == {"length": 64, "method": "first_fit", "eos": True}
    model, lost = carried(
        tmp_path / "c.yml", MAXTEXT.replace(",0.9", "") + "num_epoch: 3\nuse_sft: true\n"
    )
    assert model.names == ("web",) and lost == ["grain_train_files", "use_sft"]
    assert (model.sources[0].epochs, model.sources[0].max_epochs, model.stop) == (3, 3, None)


def test_maxtext_of_one_pattern_and_of_the_hub(tmp_path: Path) -> None:
    plain = "dataset_type: grain\ngrain_train_files: /d/*.parquet\ngrain_file_type: parquet\nnum_epoch: 2\n"
    plain += (
        "enable_data_shuffling: false\npacking: false\ngrain_packing_type: best_fit\nsteps: -1\n"
    )
    model, lost = carried(tmp_path / "c.yml", plain + "learning_rate_schedule_steps: 30\n")
    (source,) = model.sources
    assert (source.path, source.format, source.epochs) == (("/d/*.parquet",), "parquet", 2)
    assert lost == ["", "packing"]  # its steps have no size
    assert (model.shuffle, model.horizon, model.pack, model.stop) == (
        Shuffling("none"),
        ("steps", 30),
        None,
        None,
    )
    hub = "dataset_type: hf\nhf_path: allenai/c4\nhf_name: en\nhf_data_dir: x\ntrain_data_columns: [prompt, answer]\n"
    hub += "grain_packing_type: odd\nmax_target_length: 8\ntokenizer_path: a/b\n"
    model, lost = carried(tmp_path / "c.yml", hub)
    assert model.sources[0].path == ("hf://datasets/allenai/c4@~parquet/en/train",)
    assert sorted(lost) == ["grain_packing_type", "hf_data_dir", "train_data_columns"]
    model, _ = carried(
        tmp_path / "c.yml", "dataset_type: hf\nhf_path: json\nhf_train_files: /d/a.jsonl\n"
    )
    assert (model.sources[0].path, model.sources[0].format) == (("/d/a.jsonl",), "jsonl")


def test_maxtext_files_of_a_mixture(tmp_path: Path) -> None:
    mixture = {"ds1": {"path": "gs://b/a*", "weight": 0.4}, "ds2": {"path": "/d/b*", "weight": 0.6}}
    model, lost = carried(tmp_path / "mix.json", json.dumps(mixture), files={"gs://b/": "/mnt/b"})
    assert {one.name: one.weight for one in model.sources} == {
        "ds1": 0.4,
        "ds2": 0.6,
    } and lost == []
    assert [one.path for one in model.sources] == [
        ("/mnt/b/a*",),
        ("/d/b*",),
    ] and model.stop == "first_exhausted"
    (tmp_path / "c.yml").write_text(
        "dataset_type: grain\ngrain_train_mixture_config_path: mix.json\n"
    )
    with pytest.raises(
        ps.ConfigError, match=r"MaxText file has no source.*\n.*convert mix.json instead"
    ):
        convert(tmp_path / "c.yml")


def test_the_first_that_is_used_up_ends_it(tmp_path: Path) -> None:
    for name, rows in (("a", 10), ("b", 100)):
        (tmp_path / f"{name}.jsonl").write_text(
            "".join(f'{{"text": "{name}{i}"}}\n' for i in range(rows))
        )
    config = f"dataset_type: hf\nhf_path: json\nhf_train_files: {tmp_path}/a.jsonl\nnum_epoch: 2\n"
    carried(tmp_path / "c.yml", config)
    texts = [row["text"] for row in ps.load(tmp_path / "written.yaml")]
    assert sorted(texts) == sorted(f"a{i}" for i in range(10) for _ in range(2))


DOLMA = """
streams:
- name: wiki
  documents: [wiki/*.gz, books/*.gz]
  attributes: [tags]
  output: {path: out/wiki, max_size_in_bytes: 100, discard_fields: [attributes], min_text_length: 1}
  filter: {exclude: ["$.attributes[?(@.tags[0][2] < 25)]"]}
- {name: web, documents: [web/*.gz], output: {path: out/web}}
processes: 3
work_dir: {input: /tmp/in, output: /tmp/out}
"""


def test_dolma_streams(tmp_path: Path) -> None:
    model, lost = carried(tmp_path / "mixer.yaml", DOLMA)
    assert model.names == ("wiki", "web") and (model.temperature, model.stop) == (
        1,
        "all_exhausted",
    )
    assert model.sources[0].path == (str(tmp_path / "wiki/*.gz"), str(tmp_path / "books/*.gz"))
    assert {one.format for one in model.sources} == {"jsonl"}
    assert sorted(lost) == ["streams[0].filter", "streams[0].output.min_text_length"]


def test_dclm_data(tmp_path: Path) -> None:
    told = {
        "name": "rw_v2",
        "dataset_url": "s3://b/rw/",
        "manifest_url": "s3://b/rw/manifest.jsonl",
        "tokenized": True,
    }
    told |= {
        "num_tokens": 10,
        "data_key": "json.gz",
        "sampling_yaml": {"sampling_frequencies": {"CC": 0.5}},
    }
    told |= {"tokenizer": "x", "odd": 1}
    model, lost = carried(tmp_path / "d.json", json.dumps(told), files={"s3://b/": "/mnt"})
    assert [(one.name, one.path, one.format) for one in model.sources] == [
        ("rw_v2", ("/mnt/rw/*.tar",), "tar")
    ]
    assert (model.stop, lost) == ("all_exhausted", ["odd"])
    (tmp_path / "d.json").write_text(json.dumps({**told, "tokenized": False}))
    with pytest.raises(ps.ConfigError, match="these are pages, not rows of tokens"):
        convert(tmp_path / "d.json")
