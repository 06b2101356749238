"""Mixtures of other projects: what is carried over, and that everything else is named with its line."""

from __future__ import annotations

import json
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

import penstock as ps
from penstock.compat.mixtures import KINDS, convert
from penstock.mixture_files import (
    Batching,
    MixtureFile,
    Problem,
    Shuffling,
    SourceEntry,
    Splitting,
    Tokenizing,
    dump,
    read_model,
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("code", "text", "chat"):
        rows = [{"text": f"{name} {i}", "body": f"{name} {i}"} for i in range(30)]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def carried(
    path: Path, text: str, kind: str | None = None, **options: Any
) -> tuple[MixtureFile, list[tuple[int, str]]]:
    """The description, and line and key of all that is lost. What is carried over can be written and read."""
    path.write_text(dedent(text).lstrip("\n"))
    model, problems = convert(path, kind, **{"ranks": 1, **options})
    assert all(Path(problem.file).exists() and problem.message for problem in problems)
    assert {problem.severity for problem in problems} <= {"warning", "note"}
    written = path.with_name("written.yaml")
    dump(model, written)
    again, wrong = read_model(written)
    assert again == model and not wrong
    return model, lost(problems)


def lost(problems: list[Problem]) -> list[tuple[int, str]]:
    return [(problem.line, problem.key) for problem in problems if problem.severity == "warning"]


def noted(problems: list[Problem]) -> list[str]:
    return [problem.key for problem in problems if problem.severity == "note"]


def by_name(model: MixtureFile) -> dict[str, SourceEntry]:
    return {source.name: source for source in model.sources}


def test_energon_v2(folder: Path) -> None:
    (folder / "inner.yaml").write_text(
        dedent(
            """
            __module__: megatron.energon
            __class__: MetadatasetV2
            splits:
              train:
                blend_epochized:
                  - {repetitions: 5, path: ./captions}
                  - {repetitions: 0.5, path: ./ocr, split_part: val, subset: {range: [100, end]}}
              val: {path: ./captions}
            """
        )
    )
    path = folder / "metadataset.yaml"
    path.write_text(
        dedent(
            """\
            __module__: megatron.energon
            __class__: MetadatasetV2
            splits:
              train:
                blend:
                  - weight: 5
                    path: ./coco
                    subflavors: {augment: true}
                  - weight: 2
                    path: inner.yaml
                  - weight: 1
                    path: /data/notes.jsonl
                    subset: {range: [0%, 80%]}
                  - weight: 3
                    blend:
                      - {path: a/web, weight: 1}
                      - {path: b/web, weight: 3, shuffle_over_epochs_multiplier: 2}
                  - join: [{path: x}, {path: y}]
                    weight: 1
              val:
                path: ./coco
            """
        )
    )
    got, left = convert(path)
    sources = by_name(got)
    assert {name: source.weight for name, source in sources.items()} == {
        "coco": 5,
        "inner": 2,
        "notes": 1,
        "blend": 3,
    }
    assert (sources["coco"].path, sources["coco"].split) == ((str(folder / "coco"),), "train")
    inner = sources["inner"].mixture
    assert inner is not None and [
        (one.name, one.epochs, one.max_epochs) for one in inner.sources
    ] == [
        ("captions", 5, 5),
        ("ocr", 0.5, 0.5),
    ]
    assert (inner.sources[1].split, inner.sources[1].slice) == ("val", (100, None))
    nested = sources["blend"].mixture
    assert nested is not None and [(one.name, one.weight) for one in nested.sources] == [
        ("web", 1),
        ("web-2", 3),
    ]
    assert sources["notes"].slice == ("0%", "80%")
    assert lost(left) == [
        (8, "splits.train.blend[0].subflavors"),
        (17, "splits.train.blend[3].blend[1].shuffle_over_epochs_multiplier"),
        (18, "splits.train.blend[4].join"),
    ]
    assert {(Path(one.file).name, one.key) for one in left if one.severity == "note"} >= {
        ("inner.yaml", "splits.val"), ("metadataset.yaml", "splits.val"),
    }  # fmt: skip
    val, _ = convert(path, pick="val")
    assert val.names == ("coco",) and val.sources[0].split == "val"
    with pytest.raises(ps.ConfigError, match="no split 'test', but train, val"):
        convert(path, pick="test")


def test_energon_parts_of_a_blend_are_lost(folder: Path) -> None:
    """A share of a whole blend is no share of each of its datasets; never all of it without a word."""
    _, left_out = carried(
        folder / "m.yaml",
        """
        __class__: MetadatasetV2
        splits:
          train:
            blend:
              - weight: 1
                subset: {range: [0%, 50%]}
                blend: [{path: a, weight: 1}, {path: b, weight: 1, subset: {range: [10, odd]}}]
              - {path: c, weight: 1, subset: {range: [0%, 100%]}}
        """,
    )
    assert left_out == [
        (6, "splits.train.blend[0].subset"),
        (7, "splits.train.blend[0].blend[1].subset"),
    ]


def test_energon_v1(folder: Path) -> None:
    model, left_out = carried(
        folder / "m.yaml",
        """
        __module__: megatron.energon
        __class__: Metadataset
        splits:
          train:
            datasets:
              - {weight: 3, path: ./coco, subflavor: old}
              - {weight: 1, path: ./coyo, split_part: val}
        """,
    )
    assert [(one.name, one.weight, one.split) for one in model.sources] == [
        ("coco", 3, "train"),
        ("coyo", 1, "val"),
    ]
    assert left_out == [(6, "splits.train.datasets[0].subflavor")]


def test_energon_files_in_a_circle(folder: Path) -> None:
    text = "__class__: MetadatasetV2\nsplits: {train: {blend: [{path: m.yaml, weight: 1}, {path: coco, weight: 1}]}}"
    model, left_out = carried(folder / "m.yaml", text)
    assert model.names == ("coco",) and left_out == [(2, "splits.train.blend[0].path")]


def test_levanter(folder: Path) -> None:
    model, left_out = carried(
        folder / "train.yaml",
        """
        data:
          tokenizer: meta-llama/Llama-2-7b-hf
          cache_dir: gs://bucket/cache
          configs:
            code:
              train_urls: [code.jsonl]
              text_key: body
            text:
              train_urls: ["text.jsonl", "gs://bucket/c4/part-{0000..0099}.jsonl.gz"]
              validation_urls: [chat.jsonl]
            only-validation: {id: allenai/c4, name: en}
          train_weights: {code: 0.3, text: 0.7}
          stop_strategy: first_exhausted
          mixture_block_size: 512
          shuffle: {io_block_size: 256, window_blocks: 16}
        model: {max_seq_len: 4096}
        trainer: {train_batch_size: 64, num_train_steps: 1000}
        """,
    )
    sources = by_name(model)
    assert {name: source.weight for name, source in sources.items()} == {"code": 0.3, "text": 0.7}
    assert sources["code"].tokenize == Tokenizing("meta-llama/Llama-2-7b-hf", "body")
    assert sources["text"].path[1] == "gs://bucket/c4/part-{0000..0099}.jsonl.gz"
    assert (model.unit, model.stop, model.block_size) == ("tokens", "first_exhausted", 512)
    assert model.shuffle == Shuffling("block", 256, 16)
    assert (model.pack, model.batch) == (
        {"length": 4096, "bos": True, "eos": True},
        Batching(64, True),
    )
    assert model.horizon == ("steps", 1000) and left_out == []


def test_levanter_one_dataset_and_the_defaults(folder: Path) -> None:
    model, left_out = carried(
        folder / "train.yaml",
        """
        data: {id: allenai/c4, name: en, tokenizer: t, enforce_eos: false}
        model: {seq_len: 256}
        trainer: {seed: 7, num_train_steps: 100}
        """,
        ranks=4,
    )
    assert [(one.name, one.path) for one in model.sources] == [
        ("c4-en", ("hf://datasets/allenai/c4@~parquet/en/train",))
    ]
    assert (model.pack, model.batch, model.seed) == (
        {"length": 256, "bos": True},
        Batching(128, True, ranks=4),
        7,
    )
    assert (
        model.shuffle == Shuffling("none") and left_out == []
    )  # Levanter shuffles only on request
    model, left_out = carried(
        folder / "data.yaml", "train_urls: [code.jsonl]\ncache_dir: c\nshuffle: true\n"
    )
    assert (model.tokenize, model.shuffle) == (Tokenizing("gpt2"), None) and left_out == []
    model, left_out = carried(
        folder / "sft.yaml",
        """
        supervised_data: {code: {train_urls: [code.jsonl]}, text: {train_urls: [text.jsonl]}}
        mixture_weights: {code: 3, text: 1}
        max_seq_len: 64
        trainer: {train_batch_size: [{start: 0, value: 8}, {start: 9, value: 16}], num_train_steps: 5}
        optimizer: {learning_rate: 1}
        """,
    )
    assert model.shares() == {"code": 0.75, "text": 0.25} and model.horizon == ("steps", 5)
    assert left_out == [
        (1, ""),
        (4, "trainer.train_batch_size"),
    ]  # and so the length of a step is not known


def test_levanter_weights_over_the_run(folder: Path) -> None:
    model, left_out = carried(
        folder / "data.yaml",
        """
        components:
          code: {source: {type: url, train_urls: [code.jsonl]}, format: {type: text, text_key: body}}
          chat: {source: {type: url, train_urls: [chat.jsonl]}, format: {type: chat, messages_field: m}}
        train_weights:
          - [0, {code: 1.0, chat: 0.0}]
          - [500, {code: 0.5, chat: 0.5}]
        shuffle: 1000
        """,
    )
    assert model.schedule is not None and model.schedule.unit == "steps"
    assert [(place, dict(row)) for place, row in model.schedule.points] == [
        (0, {"code": 1.0, "chat": 0.0}),
        (500, {"code": 0.5, "chat": 0.5}),
    ]
    assert {key for _, key in left_out} == {
        "components.chat.format.type",
        "components.chat.format.messages_field",
        "shuffle",
        "train_weights",
    }


def test_olmo_core(folder: Path) -> None:
    model, left_out = carried(
        folder / "mix.yaml",
        """
        source_list:
          sources:
            - source_name: web
              target_ratio: 0.8
              paths: [/data/web/*.npy]
              max_source_fraction: 0.5
              max_repetition_ratio: 3.0
            - source_name: code
              target_ratio: 0.2
              paths: [code.jsonl]
        requested_tokens: 10_000_000
        global_batch_size: 4096
        """,
    )
    assert [(one.name, one.weight, one.max_epochs) for one in model.sources] == [
        ("web", 0.8, 1.5),
        ("code", 0.2, 1),
    ]
    assert (model.unit, model.horizon) == ("tokens", ("tokens", 10_000_000))
    assert model.sources[0].dtype == "uint32" and left_out == []


def test_olmo_training_file(folder: Path) -> None:
    """Files that are named twice are seen twice in a pass; one after the other they would be refused as one."""
    model, left_out = carried(
        folder / "train.yaml",
        """
        seed: 42
        model: {max_sequence_length: 4096, eos_token_id: 100257}
        max_duration: 2ep
        global_train_batch_size: 8
        data:
          memmap_dtype: uint32
          num_workers: 32
          instance_filter: {repetition_max_count: 32}
          paths: [/d/a.npy, /d/b.npy, /d/a.npy, http://olmo-data.org/c.npy]
        """,
    )
    assert [(one.name, one.path, one.epochs, one.max_epochs) for one in model.sources] == [
        ("data", ("/d/b.npy", "http://olmo-data.org/c.npy"), 2, 2),
        ("data-x2", ("/d/a.npy",), 4, 4),
    ]
    assert {(one.dtype, one.eos) for one in model.sources} == {("uint32", 100257)}
    assert (model.seed, model.pack, model.batch) == (42, {"length": 4096}, Batching(8, True))
    assert left_out == [(8, "data.instance_filter")]
    model, _ = carried(folder / "tokens.yaml", "max_duration: 50e9T\ndata: {paths: [a.npy]}\n")
    assert model.horizon == ("tokens", 50_000_000_000) and model.sources[0].max_epochs is None
    _, left_out = carried(folder / "odd.yaml", "max_duration: soon\ndata: {paths: [a.npy]}\n")
    assert left_out == [(1, "max_duration")]


FOUNDRY = """
variables:
  root: /data/mds
  seed: 17
max_seq_len: 2048
global_train_batch_size: 256
train_loader:
  name: text
  dataset:
    streams:
      code: {local: "${variables.root}/code", split: train, proportion: 0.25}
      text: {remote: s3://bucket/text, split: train, proportion: 0.75, download_retry: 3}
    shuffle: true
    shuffle_seed: ${variables.seed}
    max_seq_len: ${max_seq_len}
  drop_last: true
  num_workers: 8
"""


def test_llm_foundry(folder: Path) -> None:
    model, left_out = carried(folder / "train.yaml", FOUNDRY)
    assert [(one.name, one.path, one.weight) for one in model.sources] == [
        ("code", ("/data/mds/code/train",), 0.25),
        ("text", ("s3://bucket/text/train",), 0.75),
    ]
    assert (model.seed, model.batch) == (17, Batching(256, True, collate="list"))
    assert {one.format for one in model.sources} == {"mds"} and left_out == []


@pytest.mark.parametrize(
    ("given", "horizon", "epochs"),
    [
        ("4800ba", ("steps", 4800), None),
        ("2ep", None, 2),
        ("100sp", ("samples", 100), None),
        ("${steps}", ("steps", 7), None),
    ],
)
def test_llm_foundry_one_dataset_and_how_long(
    folder: Path, given: str, horizon: tuple[str, int] | None, epochs: float | None
) -> None:
    text = """
        variables: {data: ./mds, nothing: , steps: 7}
        parameters:
          steps: 7ba
          global_train_batch_size: 32
          max_duration: %s
          train_loader:
            name: text
            dataset: {local: "${data}", remote: "${nothing}", split: train, max_seq_len: 2048}
          eval_loader: {dataset: {local: x}}
          data: ./mds
          nothing:
        """
    model, left_out = carried(folder / "mcli.yaml", text % given, ranks=2)
    (source,) = model.sources
    assert (source.path, source.format) == ((str(folder / "./mds/train"),), "mds")
    assert (model.horizon, source.max_epochs) == (horizon, epochs)
    assert (model.batch, model.shuffle) == (
        Batching(16, collate="list", ranks=2),
        Shuffling("none"),
    )
    assert left_out == (
        [] if given == "${steps}" else [(3, "parameters.steps")]
    )  # nothing refers to it


def test_a_batch_of_all_ranks_is_global_on_every_number_of_ranks(folder: Path) -> None:
    text = """
        global_train_batch_size: 8
        max_duration: 5ba
        train_loader:
          dataset:
            hf_name: json
            hf_kwargs: {data_dir: %s, data_files: {train: code.jsonl}}
            split: train
            shuffle: true
        """
    path = folder / "foundry.yaml"
    model, left_out = carried(path, text % folder, ranks=None)
    assert model.batch == Batching(8, collate="list", over_ranks=True) and not left_out
    train = ps.load(path.with_name("written.yaml"))
    for world_size in (1, 2, 4):
        loaders = [ps.Loader(train, rank=rank, world_size=world_size) for rank in range(world_size)]
        assert [[len(batch) for batch in loader] for loader in loaders] == [
            [8 // world_size] * 5
        ] * world_size


def test_llm_foundry_tokens_and_functions_are_lost(folder: Path) -> None:
    model, left_out = carried(
        folder / "sft.yaml",
        """
        max_duration: 26e9tok
        global_train_batch_size: 6
        train_loader:
          dataset:
            hf_name: json
            hf_kwargs: {data_dir: /data, data_files: {train: [a.jsonl, b.jsonl], validation: c.jsonl}}
            split: train
            preprocessing_fn: my.module:fn
            packing_ratio: auto
            shuffle: true
        """,
        ranks=4,
    )
    assert (
        model.sources[0].path == ("/data/a.jsonl", "/data/b.jsonl")
        and model.sources[0].format == "jsonl"
    )
    assert left_out == [
        (1, "max_duration"),
        (2, "global_train_batch_size"),
        (8, "train_loader.dataset.preprocessing_fn"),
        (9, "train_loader.dataset.packing_ratio"),
    ]
    model, left_out = carried(
        folder / "hub.yaml",
        "train_loader: {dataset: {hf_name: mosaicml/dolly_hhrlhf, split: train}}",
    )
    assert model.sources[0].path == ("hf://datasets/mosaicml/dolly_hhrlhf",) and left_out == []


def test_llm_foundry_repeats_and_numbers(folder: Path) -> None:
    model, _ = carried(
        folder / "a.yaml", "streams:\n  a: {local: a, repeat: 2.5}\n  b: {local: b}\nsplit: train"
    )
    assert [(one.path[0], one.epochs, one.max_epochs) for one in model.sources] == [
        (str(folder / "a/train"), 2.5, 2.5),
        (str(folder / "b/train"), 1, 1),
    ]
    model, _ = carried(
        folder / "b.yaml", "streams:\n  a: {local: a, choose: 300}\n  b: {local: b, choose: 100}\n"
    )
    assert model.shares() == {"a": 0.75, "b": 0.25}
    _, left_out = carried(
        folder / "c.yaml",
        "streams:\n  a: {local: '${gone}', choose: 300}\n  b: {local: b, repeat: 2}\n",
    )
    assert (2, "streams.a.choose") in left_out and (2, "streams.a.local") in left_out


def test_nemo(folder: Path) -> None:
    (folder / "more.yaml").write_text(
        "- {type: txt, paths: notes.txt, weight: 2}\n- {type: txt_pair, weight: 1}\n"
    )
    path = folder / "input_cfg.yaml"
    path.write_text(
        dedent(
            """\
            - type: group
              weight: 0.7
              tags: {task: asr}
              input_cfg:
                - type: nemo_tarred
                  manifest_filepath: /data/a/manifest__OP_0..511_CL_.json
                  tarred_audio_filepaths: /data/a/audio__OP_0..511_CL_.tar
                  weight: 600
                - type: lhotse
                  cuts_path: /data/b/cuts.jsonl.gz
                  weight: 400
                - type: lhotse_shar
                  shar_path: /data/c
            - type: group
              weight: 0.3
              input_cfg: more.yaml
            """
        )
    )
    model, left_out = convert(path)
    assert [(one.name, one.weight) for one in model.sources] == [("group", 0.7), ("group-2", 0.3)]
    first, second = (one.mixture for one in model.sources)
    assert first is not None and second is not None
    assert first.sources[0].path == ("/data/a/manifest_{0..511}.json",)
    assert [(one.format, one.weight) for one in first.sources] == [("jsonl", 600), ("jsonl", 400)]
    assert [(one.name, one.format) for one in second.sources] == [("notes", "text")]
    assert [
        (Path(each.file).name, each.line, each.key)
        for each in left_out
        if each.severity == "warning"
    ] == [
        ("input_cfg.yaml", 3, "[0].tags"),
        ("input_cfg.yaml", 7, "[0].input_cfg[0].tarred_audio_filepaths"),
        ("input_cfg.yaml", 12, "[0].input_cfg[2]"),
        ("more.yaml", 2, "[1]"),
    ]


def test_nemo_in_a_model_config(folder: Path) -> None:
    model, left_out = carried(
        folder / "model.yaml",
        """
        model:
          train_ds:
            use_lhotse: true
            reweight_temperature: 0.5
            input_cfg:
              - {manifest_filepath: code.jsonl, weight: 1}
              - {manifest_filepath: [text.jsonl, chat.jsonl]}
        """,
    )
    assert [(one.name, one.weight, len(one.path)) for one in model.sources] == [
        ("code", 1, 1),
        ("text", 1, 2),
    ]
    assert left_out == [
        (3, "model.train_ds.use_lhotse"),
        (4, "model.train_ds.reweight_temperature"),
    ]


INFO = {
    "code": {"file_name": "code.jsonl", "columns": {"prompt": "text"}, "num_samples": 12},
    "chat": {"file_name": "chat.jsonl", "formatting": "sharegpt"},
    "hub": {"hf_hub_url": "llamafactory/demo"},
}


def test_llamafactory_dataset_info(folder: Path) -> None:
    path = folder / "dataset_info.json"
    path.write_text(json.dumps(INFO, indent="\t"))
    model, problems = convert(path)
    assert model.names == ("code", "chat", "hub") and model.sources[0].slice == (0, 12)
    assert model.sources[2].path == ("hf://datasets/llamafactory/demo",) and [
        key for _, key in lost(problems)
    ] == [
        "code.columns",
        "chat.formatting",
    ]
    assert noted(problems) == ["code.num_samples", "hub.hf_hub_url"]
    assert [each.line for each in problems] == [4, 7, 11, 14]
    model, _ = convert(path, files={"llamafactory/demo": str(folder / "text.jsonl")})
    dump(model, folder / "mixture.yaml")
    assert len(ps.load(folder / "mixture.yaml")) == 72  # every sample once, as there


def test_llamafactory_training_file(folder: Path) -> None:
    (folder / "data").mkdir()
    (folder / "data/dataset_info.json").write_text(json.dumps(INFO))
    (folder / "data/code.jsonl").write_bytes((folder / "code.jsonl").read_bytes())
    (folder / "data/chat.jsonl").write_bytes((folder / "chat.jsonl").read_bytes())
    (folder / "examples/train_lora").mkdir(parents=True)
    path = folder / "examples/train_lora/sft.yaml"  # as in a checkout, which is where it is started
    path.write_text(
        "stage: sft\ndataset: chat,code,gone\nmix_strategy: interleave_under\ninterleave_probs: 0.5,0.3,0.2\n"
        "cutoff_len: 2048\nper_device_train_batch_size: 2\ngradient_accumulation_steps: 2\nlearning_rate: 1e-5\n"
        "num_train_epochs: 1\ntemplate: llama3\n"
    )
    model, left_out = convert(path, ranks=1)
    assert {one.name: one.weight for one in model.sources} == {"code": 0.3, "chat": 0.5}
    assert (model.stop, model.batch) == ("first_exhausted", Batching(4, collate="list"))
    assert lost(left_out) == [
        (1, "chat.formatting"),
        (1, "code.columns"),
        (2, "dataset"),
        (5, "cutoff_len"),
        (10, "template"),
    ]
    dump(model, folder / "mixture.yaml")
    assert len(next(iter(ps.load(folder / "mixture.yaml")))) == 4
    (folder / "data/dataset_info.json").unlink()
    with pytest.raises(
        ps.ConfigError, match=r"expected .*dataset_info.json, or in 'data' of a folder above"
    ):
        convert(path)
    path.write_text("stage: sft\ndataset: chat\ndataset_dir: REMOTE:llamafactory/demo_data\n")
    with pytest.raises(
        ps.ConfigError, match="dataset_info.json is on a hub, in 'llamafactory/demo_data'"
    ):
        convert(path)


def test_llamafactory_epochs_steps_and_pretraining(folder: Path) -> None:
    (folder / "data").mkdir()
    info = {
        "code": {"file_name": "code.jsonl", "columns": {"prompt": "text"}},
        "text": {"file_name": "text.jsonl"},
    }
    (folder / "data/dataset_info.json").write_text(json.dumps(info))
    text = "stage: pt\ndataset: code,text\nmodel_name_or_path: t\nper_device_train_batch_size: 2\nmax_samples: 20\n"
    model, left_out = carried(folder / "a.yaml", text + "cutoff_len: 16\nval_size: 0.1\n", ranks=2)
    assert [(one.epochs, one.max_epochs, one.slice) for one in model.sources] == [
        (3, 3, (0, 20))
    ] * 2
    assert [one.tokenize for one in model.sources] == [
        Tokenizing("t", "text"),
        Tokenizing("t", "instruction"),
    ]
    assert model.pack == {"length": 16, "method": "concat_split", "eos": True}
    assert (model.batch, model.split, model.seed) == (
        Batching(2, ranks=2),
        Splitting(0.1),
        42,
    ) and left_out == []
    model, left_out = carried(
        folder / "b.yaml", text + "max_steps: 9\ntemplate: llama3\npacking: true\nseed: 1\n"
    )
    assert (model.horizon, model.seed, model.temperature) == (("steps", 9), 1, 1) and left_out == []
    assert model.pack == {"length": 2047, "method": "concat_split", "eos": "<|end_of_text|>"}
    _, left_out = carried(
        folder / "c.yaml", text + "packing: false\nval_size: 30\nmix_strategy: odd\n"
    )
    assert [key for _, key in left_out] == ["packing", "val_size", "mix_strategy"]


def test_axolotl(folder: Path) -> None:
    model, left_out = carried(
        folder / "config.yml",
        """
        base_model: NousResearch/Llama-2-7b-hf
        datasets:
          - path: code.jsonl
            ds_type: json
            type: completion
            field: body
          - path: text.jsonl
            type: completion
            shards: 5
            shards_idx: 2
          - path: tatsu-lab/alpaca
            type: alpaca
        val_set_size: 0.05
        sequence_len: 512
        sample_packing: true
        micro_batch_size: 2
        seed: 7
        learning_rate: 0.0002
        """,
    )
    sources = by_name(model)
    assert sources["code"].format == "jsonl"
    texts = sources["code"].chat  # beside prompts, completions are chats too
    assert texts is not None and (texts.format, texts.fields) == ("text", {"text": "body"})
    assert sources["text"].slice == (2, None, 5) and model.split == Splitting(0.05)
    assert (model.seed, model.stop, model.temperature) == (7, "all_exhausted", 1)
    assert sources["alpaca"].path == ("hf://datasets/tatsu-lab/alpaca",)
    assert left_out == [] and model.pack == {
        "length": 512,
        "method": "best_fit",
        "long": "split",
    }


def test_axolotl_texts_are_split_and_the_run_has_its_length(folder: Path) -> None:
    text = """
        base_model: b
        datasets:
          - {path: code.jsonl, type: completion}
          - {path: some/hub, name: [x, y], type: completion, split: "train[:20%]"}
          - {path: some/other, data_files: [a.json], type: completion}
        sequence_len: 64
        sample_packing: true
        micro_batch_size: 2
        gradient_accumulation_steps: 3
        """
    model, left_out = carried(folder / "a.yml", dedent(text) + "num_epochs: 3\n", ranks=2)
    assert model.pack == {"length": 64, "method": "best_fit", "long": "split", "eos": True}
    assert [(one.name, one.path[0], one.slice) for one in model.sources[1:]] == [
        ("hub-x", "hf://datasets/some/hub@~parquet/x/train", (None, "20%")),
        ("hub-y", "hf://datasets/some/hub@~parquet/y/train", (None, "20%")),
        ("other", "hf://datasets/some/other/a.json", None),
    ]
    assert {(one.epochs, one.max_epochs) for one in model.sources} == {(3, 3)}
    assert (model.batch, model.seed) == (Batching(6, ranks=2), 42) and left_out == []
    model, left_out = carried(
        folder / "b.yml", dedent(text) + "num_epochs: 3\nmax_steps: 12\nval_set_size: 100\n"
    )
    assert model.horizon == ("steps", 12) and {one.max_epochs for one in model.sources} == {None}
    assert left_out == [(12, "val_set_size")]


def test_axolotl_with_prompts(folder: Path) -> None:
    model, left_out = carried(
        folder / "config.yml",
        "datasets:\n- {path: chat.jsonl, type: chat_template, field_messages: m, split: train}\n"
        "sample_packing: true\nsequence_len: 64\nshuffle_merged_datasets: false\n",
    )
    assert (
        model.pack is None and model.shuffle is None
    )  # the trainer shuffles what was merged in order
    assert left_out == [
        (2, "datasets[0].field_messages"),
        (2, "datasets[0].type"),
        (3, "sample_packing"),
        (4, "sequence_len"),
    ]
    model, left_out = carried(
        folder / "config.yml",
        "datasets: [{path: chat.jsonl, ds_type: json}]\nmicro_batch_size: 1\nshuffle_merged_datasets: false\n"
        "curriculum_sampling: true\n",
    )
    assert model.shuffle == Shuffling("none") and left_out == []
    assert [rows[0]["text"] for rows in ps.load(folder / "written.yaml")] == [
        f"chat {i}" for i in range(30)
    ]


def test_what_is_not_clear_or_not_there(folder: Path) -> None:
    path = folder / "x.yaml"
    path.write_text("a: 1")
    with pytest.raises(
        ps.ConfigError,
        match="unknown format: .* choose one with kind= .*: energon",
    ):
        convert(path)
    with pytest.raises(ps.ConfigError, match="this is not a nemo file"):
        convert(path, "nemo")
    with pytest.raises(ps.ConfigError, match="unknown kind 'other'"):
        convert(path, "other")
    with pytest.raises(ps.ConfigError, match="cannot be read"):
        convert(folder / "gone.yaml")
    path.write_text(
        "splits: {train: {blend: [{join: [{path: a}], weight: 1}]}}\n__class__: MetadatasetV2"
    )
    with pytest.raises(
        ps.ConfigError,
        match=r"(?s)this Energon file has no source.*line 1, .*: joined datasets",
    ):
        convert(path)
    path.write_text("data: {paths: [a.npy]}")
    with pytest.raises(ps.ConfigError, match=r"'cod' matches nothing in .*; its sources are data"):
        convert(path, files={"cod": "x"})
    with pytest.raises(ps.ConfigError, match="pick='val': olmo-core files have only one mixture"):
        convert(path, pick="val")
    path.write_text("- {type: nemo, manifest_filepath: !!python/object/apply:os.system [x]}")
    with pytest.raises(ps.ConfigError, match=r"x.yaml, line 1.*tag"):
        convert(path)
    assert len(KINDS) == 22
