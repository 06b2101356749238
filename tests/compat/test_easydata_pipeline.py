"""The fluent pipeline and its settings, saving, the legacy entry point."""

from __future__ import annotations

import gzip
import json
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock as ps
from penstock.compat.easydata import (
    DatasetConfig,
    DatasetMixture,
    LoadStageConfig,
    MixStageConfig,
    PackStageConfig,
    Pipeline,
    PipelineConfig,
    SaveStageConfig,
    TextDatasetInform,
    TokenizerConfig,
    TokenizeStageConfig,
    WeightSchedulePoint,
    build_dataset,
)
from penstock.compat.easydata.collate import Padded
from penstock.compat.easydata.writer import parse_size, write_shards
from penstock.testing import assert_covers, assert_elastic, assert_resumes

WORDS = "alpha beta gamma delta epsilon zeta eta theta".split()
INLINE = LoadStageConfig(prefetch_enabled=False)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two folders of Parquet files and one of JSON, and a small tokenizer as a folder and as a file."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    place = tmp_path_factory.mktemp("easydata")
    rng = np.random.default_rng(0)
    for name in ("code", "text"):
        (place / name).mkdir()
        for part in range(2):
            rows = [" ".join(rng.choice(WORDS, rng.integers(1, 20))) for _ in range(25)]
            pq.write_table(
                pa.table({"text": rows, "id": range(25)}), place / name / f"{part}.parquet"
            )
    (place / "json").mkdir()
    (place / "json/lines.json").write_text(
        "".join(json.dumps({"content": f"l{i}"}) + "\n" for i in range(10))
    )
    (place / "json/array.json").write_text(json.dumps([{"content": f"a{i}"} for i in range(10)]))
    vocabulary = {word: i for i, word in enumerate(["<unk>", "<pad>", *WORDS])}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.save(str(place / "tokenizer.json"))
    fast: Any = PreTrainedTokenizerFast(
        tokenizer_object=words, unk_token="<unk>", pad_token="<pad>"
    )
    fast.save_pretrained(place / "words")
    return place


def config(folder: Path, **stages: Any) -> PipelineConfig:
    datasets = [
        DatasetConfig(
            name=name, data_files=f"{folder}/{name}/*.parquet", tokenizer=f"{folder}/words"
        )
        for name in ("code", "text")
    ]
    mixing = MixStageConfig(weights={"code": 0.3, "text": 0.7}, block_size=10)
    return PipelineConfig(datasets=datasets, **{"mix": mixing, "load": INLINE, **stages})


def built(folder: Path, **stages: Any) -> ps.Loader:
    return Pipeline.from_config(config(folder, **stages)).source().tokenize().mix().load().build()


# ---------------------------------------------------------------- the page's pipeline


def test_batches_are_arrays_of_eight_rows(folder: Path) -> None:
    # Token rows of different length came as an array of objects.
    for batch in islice(built(folder), 30):
        shape = batch["input_ids"].shape
        assert shape[0] == 8 and batch["attention_mask"].shape == shape
        assert batch["input_ids"].dtype == batch["attention_mask"].dtype == np.int32
        assert (batch["input_ids"][batch["attention_mask"] == 0] == 1).all(), (
            "padded with the tokenizer's own token"
        )
        assert (batch["input_ids"][batch["attention_mask"] == 1] > 1).all()
        assert set(batch["__source__"].tolist()) <= {"code", "text"}
    rows = [s for batch in islice(built(folder), 50) for s in batch["__source__"].tolist()]
    assert rows.count("code") == 120


def test_the_pipeline_is_the_core(folder: Path) -> None:
    stages = Pipeline(config(folder)).source().tokenize()
    inputs = {
        name: rows.map(lambda row, name=name: {**row, "__source__": name})
        for name, rows in stages.get_data().items()
    }
    core = ps.mix(inputs, {"code": 0.3, "text": 0.7}, block_size=10).batch(8, True, Padded(1))
    for face, plain in zip(islice(built(folder), 20), core, strict=False):
        assert (
            all(np.array_equal(face[name], plain[name]) for name in plain)
            and face.keys() == plain.keys()
        )


def test_the_pipeline_resumes_and_is_dealt_out(folder: Path) -> None:
    assert_resumes(lambda: built(folder), steps=12, every=3)
    ended = MixStageConfig(stop_strategy="all_exhausted", block_size=10)
    made = Pipeline(config(folder, mix=ended)).source().tokenize().mix().load().get_data()["mixed"]

    def texts(batch: Any) -> list[Any]:
        return [
            ids[mask.astype(bool)]
            for ids, mask in zip(batch["input_ids"], batch["attention_mask"], strict=True)
        ]

    assert_elastic(lambda rank, world: ps.Loader(made, rank=rank, world_size=world), rows=texts)


def test_threads_change_nothing(folder: Path) -> None:
    with built(folder, load=LoadStageConfig()) as threads, built(folder) as inline:
        for one, other in zip(islice(threads, 25), inline, strict=False):
            assert all(np.array_equal(one[name], other[name]) for name in other)
        assert (
            threads.state_dict() == {**inline.state_dict()}
            or threads.state_dict()["at"] + 8 == inline.state_dict()["at"]
        )


def test_no_seed_is_reproducible_and_0_is_a_seed(folder: Path) -> None:
    def sources(**options: Any) -> list[str]:
        mixing = MixStageConfig(
            weights={"code": 0.3, "text": 0.7}, block_size=10, seed=options.pop("own", None)
        )
        made = built(folder, mix=mixing, **options)
        return [s for batch in islice(made, 10) for s in batch["__source__"].tolist()]

    assert sources() == sources() == sources(seed=0)
    assert sources(seed=7) != sources()
    assert sources(seed=7, own=0) == sources()  # was replaced by the pipeline's seed


def test_a_schedule_holds_where_weights_are_given_too(folder: Path) -> None:
    points = [
        WeightSchedulePoint(0, {"code": 0.2, "text": 0.8}),
        WeightSchedulePoint(80, {"code": 0.5, "text": 0.5}),
    ]
    mixing = MixStageConfig(
        weights={"code": 0.3, "text": 0.7}, weight_schedule=points, block_size=10
    )
    rows = [
        s for batch in islice(built(folder, mix=mixing), 20) for s in batch["__source__"].tolist()
    ]
    assert (rows[:80].count("code"), rows[80:].count("code")) == (16, 40)


# ---------------------------------------------------------------- tokenizing


def test_tokenizers_by_folder_file_object_and_settings(folder: Path) -> None:
    from transformers import AutoTokenizer

    spelled = [
        f"{folder}/words",
        f"{folder}/tokenizer.json",
        AutoTokenizer.from_pretrained(f"{folder}/words"),
    ]
    spelled.append(TokenizerConfig(f"{folder}/words", return_attention_mask=False))
    rows = []
    for tokenizer in spelled:
        made = PipelineConfig(
            datasets=[DatasetConfig(f"{folder}/code/0.parquet")],
            default_tokenizer=tokenizer,
            load=INLINE,
        )
        rows.append(
            [row["input_ids"].tolist() for row in Pipeline(made).source().tokenize().build()]
        )
    assert rows[0] == rows[1] == rows[2] == rows[3]
    text = pq.read_table(folder / "code/0.parquet")["text"][3].as_py()
    assert rows[0][3] == [2 + WORDS.index(word) for word in text.split()]


def test_max_length_of_the_stage_counts(folder: Path) -> None:
    # It was always 2,048.
    stage = TokenizeStageConfig(max_length=5)
    data = Pipeline(config(folder, tokenize=stage)).source().tokenize().get_data()
    assert max(len(row["input_ids"]) for row in data["code"]) == 5


def test_rows_before_tokenizing(folder: Path) -> None:
    one = DatasetConfig(
        data_files=f"{folder}/code/0.parquet",
        tokenizer=f"{folder}/words",
        format_callback=lambda row: {**row, "upper": row["text"].split()[0]},
        format_fields={"upper": "first"},
        content_field="first",
        additional_fields=["id"],
        num_rows=4,
    )
    rows = list(Pipeline(PipelineConfig(datasets=[one], load=INLINE)).source().tokenize().build())
    assert [row["id"] for row in rows] == [0, 1, 2, 3]
    assert all(
        row.keys() == {"input_ids", "attention_mask", "id"} and len(row["input_ids"]) == 1
        for row in rows
    )


def test_errors_of_tokenizing_name_what_is_wrong(folder: Path) -> None:
    def rows(**options: Any) -> list[Any]:
        one = DatasetConfig(name="d", data_files=f"{folder}/code/0.parquet", **options)
        return list(
            Pipeline(PipelineConfig(datasets=[one], load=INLINE)).source().tokenize().build()
        )

    with pytest.raises(ps.ConfigError, match="'d' has no tokenizer"):
        rows()
    with pytest.raises(ps.DataError, match="d: a row has no field 'body', only text, id"):
        rows(tokenizer=f"{folder}/words", content_field="body")
    with pytest.raises(ps.DataError, match="d: the field 'id' is a int, not a text"):
        rows(tokenizer=f"{folder}/words", content_field="id")


# ---------------------------------------------------------------- batches


def test_padding() -> None:
    batch = Padded(3)(
        [
            {"input_ids": np.array([1, 2]), "labels": [1], "x": [0.5]},
            {"input_ids": [], "labels": [], "x": [1]},
        ]
    )
    assert batch["input_ids"].tolist() == [[1, 2], [3, 3]]
    assert batch["attention_mask"].tolist() == [[1, 1], [0, 0]]
    assert batch["labels"].tolist() == [[1], [-100]] and batch["x"].tolist() == [[0.5], [1.0]]
    # The fields of the first row were taken for those of all.
    with pytest.raises(ps.DataError, match=r"differ in the fields \['b'\]"):
        Padded()([{"a": 1}, {"a": 1, "b": 2}])


# ---------------------------------------------------------------- packing


@pytest.mark.parametrize("strategy", ["greedy", "pool", "first_fit"])
def test_packing_loses_no_token(folder: Path, strategy: str) -> None:
    # A document that filled several rows lost all but the last; too long ones came out too long.
    asked = PackStageConfig(
        seq_length=8, strategy=strategy, eos_token_id=99, pad_token_id=0, shuffle_packed=False
    )
    stages = Pipeline(config(folder, pack=asked)).source().tokenize()
    want = [token for row in stages.get_data()["code"] for token in row["input_ids"].tolist()]
    rows = list(stages.pack().get_data()["code"])
    assert all(
        len(row[name]) == 8
        for row in rows
        for name in ("input_ids", "attention_mask", "segment_ids")
    )
    kept = [row["input_ids"][row["attention_mask"] == 1] for row in rows]
    tokens = np.concatenate(kept)
    assert sorted(tokens[tokens != 99].tolist()) == sorted(want) and (tokens == 99).sum() == 50
    assert all(((row["segment_ids"] > 0) == (row["attention_mask"] == 1)).all() for row in rows)


@pytest.mark.slow
def test_packing_a_mixture(folder: Path) -> None:
    # Without the setting enabled=True pack() did nothing.
    asked = PackStageConfig(seq_length=16, shuffle_buffer_factor=1)
    load = LoadStageConfig(batch_size=4, prefetch_enabled=False)
    ended = MixStageConfig(stop_strategy="all_exhausted")

    def make() -> ps.Loader:
        stages = (
            Pipeline(config(folder, pack=asked, load=load, mix=ended, seed=3))
            .source()
            .tokenize()
            .mix()
            .pack()
        )
        return stages.load().build()

    batches = list(make())
    assert all(batch["input_ids"].shape == (4, 16) for batch in batches)
    assert_resumes(make, steps=6, every=2)
    without = PackStageConfig(seq_length=16, include_segment_ids=False, shuffle_packed=False)
    rows = (
        Pipeline(config(folder, pack=without)).source().tokenize().mix().pack().get_data()["mixed"]
    )
    assert set(next(iter(rows))) == {"input_ids", "attention_mask", "__source__"}
    off = (
        Pipeline(config(folder, pack=PackStageConfig(enabled=False)))
        .source()
        .tokenize()
        .mix()
        .pack()
    )
    assert "segment_ids" not in next(iter(off.get_data()["mixed"]))


# ---------------------------------------------------------------- saving


def test_what_is_saved_is_what_follows(folder: Path, tmp_path: Path) -> None:
    # Later stages read the raw texts again and tokenized them a second time.
    for form in ("parquet", "arrow", "jsonl"):
        asked = SaveStageConfig(output_dir=f"{tmp_path}/{form}", format=form, max_shard_size="4KB")
        ended = MixStageConfig(stop_strategy="all_exhausted")
        stages = Pipeline(config(folder, save=asked, mix=ended)).source().tokenize().mix()
        want = [
            (row["input_ids"].tolist(), row["__source__"]) for row in stages.get_data()["mixed"]
        ]
        saved = stages.save()
        files = sorted((tmp_path / form).glob("shard-*"))
        assert len(files) > 1 and files[0].name == f"shard-00000.{form}"
        found = [(list(row["input_ids"]), row["__source__"]) for row in saved.get_data()["mixed"]]
        assert found == want
        assert saved.load().build().__iter__().__next__()["input_ids"].shape[0] == 8
        with pytest.raises(ps.ConfigError, match="of an earlier write_rows"):
            Pipeline(config(folder, save=asked, mix=ended)).source().tokenize().mix().save()


def test_each_dataset_has_a_folder_or_its_own(folder: Path, tmp_path: Path) -> None:
    made = [
        DatasetConfig(name="a", data_files=f"{folder}/code/*.parquet"),
        DatasetConfig(
            name="b",
            data_files=f"{folder}/text/*.parquet",
            save_path=f"{tmp_path}/own",
            save_format="jsonl",
        ),
    ]
    Pipeline(
        PipelineConfig(datasets=made, save=SaveStageConfig(output_dir=f"{tmp_path}/out"))
    ).source().save()
    assert [path.name for path in (tmp_path / "out/a").iterdir()] == ["shard-00000.parquet"]
    assert "shard-00000.jsonl" in [path.name for path in (tmp_path / "own").iterdir()]


def test_an_endless_mixture_is_not_saved(folder: Path, tmp_path: Path) -> None:
    # It wrote until the disk was full.
    asked = SaveStageConfig(output_dir=str(tmp_path))
    with pytest.raises(ps.ConfigError, match="is endless"):
        Pipeline(config(folder, save=asked)).source().mix().save()


def rows(n: int) -> list[dict[str, Any]]:
    return [{"x": i, "text": "word " * (i % 7)} for i in range(n)]


@pytest.mark.parametrize("form", ["parquet", "arrow", "jsonl"])
def test_files_are_no_larger_than_asked(form: str, tmp_path: Path) -> None:
    files = write_shards(
        rows(3_000),
        tmp_path,
        SaveStageConfig(format=form, max_shard_size="20KB", compression="none"),
        None,
    )
    assert len(files) > 2 and list(ps.read(tmp_path)) == rows(3_000)
    room = 20_480 if form == "jsonl" else 24_000  # a table's footer comes on top
    assert all(path.stat().st_size <= room for path in files)
    assert parse_size("20KB") == 20_480 and parse_size(5) == 5
    for bad in ("many", "5XB", 0):
        with pytest.raises(ps.ConfigError, match="max_shard_size"):
            parse_size(bad)


@pytest.mark.parametrize("form", ["parquet", "arrow", "jsonl"])
def test_the_number_of_files_is_kept(form: str, tmp_path: Path) -> None:
    # One file came, whatever was asked.
    files = write_shards(rows(2_503), tmp_path, SaveStageConfig(format=form, num_shards=4), 2_503)
    assert [len(ps.read(path)) for path in files] == [625, 626, 626, 626]
    assert list(ps.read(tmp_path)) == rows(2_503)
    with pytest.raises(ps.ConfigError, match="there are 2 rows"):
        write_shards(rows(2), tmp_path / "few", SaveStageConfig(num_shards=3), 2)
    with pytest.raises(ps.ConfigError, match="unknown before writing"):
        write_shards(rows(2), tmp_path / "few", SaveStageConfig(num_shards=3), None)


@pytest.mark.parametrize("form", ["parquet", "arrow", "jsonl"])
def test_columns_that_come_late_are_kept(form: str, tmp_path: Path) -> None:
    # A column that the first row lacked was dropped.
    given = [{"x": i} if i < 1_500 else {"x": i, "late": "y"} for i in range(2_000)]
    write_shards(given, tmp_path, SaveStageConfig(format=form, max_shard_size="4KB"), None)
    found = list(ps.read(tmp_path))
    assert [row["x"] for row in found] == list(range(2_000))
    assert [row.get("late") for row in found] == [row.get("late") for row in given]


def test_packed_lines_are_read_back(tmp_path: Path) -> None:
    # What it wrote it could not read.
    (file,) = write_shards(
        rows(5), tmp_path, SaveStageConfig(format="jsonl", compression="gzip"), None
    )
    assert (
        file.name == "shard-00000.jsonl.gz"
        and len(gzip.decompress(file.read_bytes()).splitlines()) == 5
    )
    assert list(ps.read(tmp_path)) == rows(5)


@pytest.mark.parametrize("form", ["parquet", "jsonl"])
def test_a_second_save_leaves_nothing_of_the_first(form: str, tmp_path: Path) -> None:
    # Files of an earlier, larger save stayed among the new ones.
    asked = SaveStageConfig(format=form, max_shard_size="1KB")
    assert len(write_shards(rows(300), tmp_path, asked, None)) > 2
    assert list(ps.read(tmp_path)) == rows(300)
    write_shards(rows(7), tmp_path, SaveStageConfig(format=form, overwrite=True), None)
    assert list(ps.read(tmp_path)) == rows(7)
    with pytest.raises(ps.DataError, match="no rows"):
        write_shards([], tmp_path / "none", asked, None)
    with pytest.raises(ps.DataError, match=r"mappings|'x'|type"):
        write_shards(
            [{"x": 1}, {"x": [2]}], tmp_path / "bad", SaveStageConfig(format="parquet"), None
        )


# ---------------------------------------------------------------- settings


def test_two_datasets_are_not_built_without_mix(folder: Path) -> None:
    # Only the first was trained on.
    with pytest.raises(ps.ConfigError, match=r"2 datasets \(code, text\): call .mix"):
        Pipeline(config(folder)).source().tokenize().load().build()
    with pytest.raises(ps.ConfigError, match="call .source"):
        Pipeline(config(folder)).tokenize()
    with pytest.raises(ps.ConfigError, match="before .load"):
        Pipeline(config(folder)).source().load().mix()


def test_words_that_are_not_known_are_refused(folder: Path) -> None:
    with pytest.raises(ps.ConfigError, match="stop_strategy 'sometimes'"):
        MixStageConfig(stop_strategy="sometimes")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ps.ConfigError, match="interpolation"):
        MixStageConfig(
            weight_schedule=[WeightSchedulePoint(0, {"a": 1})],
            weight_schedule_type="square",  # pyright: ignore[reportArgumentType]
        )
    with pytest.raises(ps.ConfigError, match="sum to 1.2"):
        MixStageConfig(weights={"a": 0.5, "b": 0.7})
    with pytest.raises(ps.ConfigError, match="strategy 'best'"):
        PackStageConfig(strategy="best")
    with pytest.raises(ps.ConfigError, match="two datasets are named 'a'"):
        PipelineConfig(datasets=[DatasetConfig("x", name="a"), DatasetConfig("y", name="a")])
    with pytest.raises(ps.ConfigError, match="unknown type 'xml'"):
        Pipeline(PipelineConfig(datasets=[DatasetConfig("x", type="xml")])).source()
    with pytest.raises(ps.ConfigError, match="have no splits"):
        Pipeline(
            PipelineConfig(datasets=[DatasetConfig(f"{folder}/code/*.parquet", split="test")])
        ).source()
    with pytest.raises(ps.ConfigError, match=r"missing \['text'\], unknown \['txt'\]"):
        Pipeline(
            config(folder, mix=MixStageConfig(weights={"code": 0.3, "txt": 0.7}))
        ).source().mix()
    with pytest.raises(ps.ConfigError, match="unknown format"):
        write_shards([], folder, SaveStageConfig(format="xml"), None)
    with pytest.raises(ps.ConfigError, match="no compression 'rar'"):
        write_shards([], folder, SaveStageConfig(compression="rar"), None)


def test_settings_from_a_mapping(folder: Path) -> None:
    # from_config(dict) raised an AttributeError.
    given = {
        "datasets": [
            {
                "name": name,
                "data_files": f"{folder}/{name}/*.parquet",
                "tokenizer": f"{folder}/words",
            }
            for name in ("code", "text")
        ],
        "mix": {
            "weight_schedule": [
                {"step": 0, "weights": {"code": 0.2, "text": 0.8}},
                {"step": 100, "weights": {"code": 0.5, "text": 0.5}},
            ],
            "block_size": 10,
        },
        "load": {"batch_size": 10, "prefetch_enabled": False},
    }
    rows = next(iter(Pipeline.from_config(given).source().tokenize().mix().load().build()))
    assert rows["__source__"].tolist().count("code") == 2
    with pytest.raises(ps.ConfigError, match="LoadStageConfig has no field 'batchsize'"):
        Pipeline.from_config({**given, "load": {"batchsize": 3}})


def test_a_name_on_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    asked: list[Any] = []

    def load_dataset(*args: Any, **options: Any) -> Any:
        asked.append((args, options))
        table = datasets.Dataset.from_dict({"text": ["a", "b"]})
        return table.to_iterable_dataset() if options["streaming"] else table

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    for streaming in (True, False):
        made = PipelineConfig(
            datasets=[DatasetConfig("org/name", dataset_split_name="en")],
            streaming=streaming,
            load=INLINE,
        )
        assert [row["text"] for row in Pipeline(made).source().build()] == ["a", "b"]
    assert asked[0] == (("org/name", "en"), {"split": "train", "streaming": True})


# ---------------------------------------------------------------- the legacy entry point


def mixture(folder: Path, **options: Any) -> DatasetMixture:
    informs = [
        TextDatasetInform(
            type="parquet", data_files=f"{folder}/code/*.parquet", content_field="text"
        ),
        TextDatasetInform(type="json", data_files=f"{folder}/json/*.json", content_field="content"),
    ]
    return DatasetMixture(
        informs=informs, **{"mixture_weights": {"ds1": 0.7, "ds2": 0.3}, **options}
    )


def test_the_legacy_snippet(folder: Path) -> None:
    # It always raised a TypeError.
    data = build_dataset(
        mixture(folder, block_mixture=True, mixture_block_size=20, streaming=True, seed=42)
    )
    rows = list(data.take(200))
    assert all(row.keys() == {"text"} for row in rows)
    assert sum(row["text"][0] in "la" and row["text"][1:].isdigit() for row in rows) == 60
    assert rows == list(mixture(folder, mixture_block_size=20).build().take(200))


def test_the_nth_weight_is_that_of_the_nth_inform(folder: Path) -> None:
    # Weights were left out of account where their number differed.
    with pytest.raises(ps.ConfigError, match=r"1 weights \(ds1\) for 2 informs"):
        mixture(folder, mixture_weights={"ds1": 1.0})
    with pytest.raises(ps.ConfigError, match="block_mixture"):
        mixture(folder, block_mixture=False)


def test_legacy_options(folder: Path) -> None:
    every = [row["text"] for row in mixture(folder, stop_strategy="all_exhausted").build()]
    assert len(every) == 70
    joined = mixture(folder, block_mixture=False, mixture_weights=None).build()
    assert_covers(
        [row["text"] for row in joined][50:], [f"{a}{i}" for a in "la" for i in range(10)]
    )
    batch = next(iter(mixture(folder, batch_size=4, text_target_field="body").build()))
    assert len(batch["body"]) == 4
    mixed = [
        r["text"]
        for r in mixture(folder, stop_strategy="all_exhausted", shuffle_buffer_size=30).build()
    ]
    assert sorted(mixed) == sorted(every) and mixed != every
    kept = TextDatasetInform(
        data_files=f"{folder}/code/*.parquet", content_field="text", additional_fields=["id"]
    )
    assert list(DatasetMixture([kept]).build().take(2))[1]["id"] == 1
    with pytest.raises(ps.DataError, match="no field 'body', only text, id"):
        list(
            DatasetMixture(
                [TextDatasetInform(data_files=f"{folder}/code/*.parquet", content_field="body")]
            )
            .build()
            .take(1)
        )


# ---------------------------------------------------------------- more of what went wrong elsewhere


def test_the_type_counts_whatever_the_file_is_called(tmp_path: Path) -> None:
    # type="jsonl" on a .json file was a JSON error, and an unknown extension a missing file.
    (tmp_path / "a.json").write_text('{"x": 0}\n{"x": 1}\n')
    (tmp_path / "b.data").write_text('{"x": 2}\n')
    for file, want in (("a.json", [0, 1]), ("b.data", [2])):
        made = PipelineConfig(
            datasets=[DatasetConfig(f"{tmp_path}/{file}", type="jsonl")], load=INLINE
        )
        assert [row["x"] for row in Pipeline(made).source().build()] == want


def test_settings_of_a_tokenizer_count_for_each_dataset(folder: Path) -> None:
    # The second dataset got the tokenizer of the first, whatever its own settings were.
    from transformers import AutoTokenizer

    made = [
        DatasetConfig(
            f"{folder}/code/0.parquet",
            tokenizer=f"{folder}/words",
            tokenizer_kwargs={"pad_token": pad},
        )
        for pad in ("<pad>", "<unk>")
    ]
    loaded: list[Any] = []
    with pytest.MonkeyPatch.context() as patch:
        real = AutoTokenizer.from_pretrained
        patch.setattr(
            AutoTokenizer, "from_pretrained", lambda *a, **k: loaded.append(k) or real(*a, **k)
        )
        Pipeline(PipelineConfig(datasets=made)).source().tokenize()
    assert [each["pad_token"] for each in loaded] == ["<pad>", "<unk>"]
    assert not any(each["trust_remote_code"] for each in loaded), (
        "code of a tokenizer runs only where that is asked for"
    )


def test_the_consumers_random_state_changes_nothing(folder: Path) -> None:
    # Packer and shuffle buffer drew from the global generator.
    import random

    def run(seed: int) -> list[list[int]]:
        random.seed(seed)
        asked = PackStageConfig(seq_length=16, shuffle_buffer_factor=1)
        with (
            Pipeline(config(folder, pack=asked))
            .source()
            .tokenize()
            .mix()
            .pack()
            .load()
            .build() as loader
        ):
            return [
                batch["input_ids"].tolist() for batch in islice(loader, 5) if random.random() < 2
            ]

    assert run(1) == run(2)
