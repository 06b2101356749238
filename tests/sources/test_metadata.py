"""Metadata files of other tools are left out of folders and globs, logged once, and read if named."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock as ps
from penstock.errors import ConfigError
from penstock.sources import file_samples, metadata

LINES = '{"n": 1}\n{"n": 2}\n'
BESIDE = (
    "dataset_info.json dataset_infos.json state.json dataset_dict.json _SUCCESS _metadata _common_metadata README.md "
    "README.txt LICENSE .gitattributes .DS_Store ._a.jsonl .a.jsonl.crc a.jsonl.crc b.jsonl.tmp b.jsonl.incomplete a.lock "
    "index.json config.json tokenizer.json features.json label.labels.txt 00000_stats.json SHA256SUMS a.idx "
    "a.ds.index a.ds.metadata Thumbs.db desktop.ini _committed_123 _started_123 a.jsonl.sha256"
).split()


@pytest.fixture(autouse=True)
def nothing_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "_LOGGED_MESSAGES", set[str]())


def beside(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "a.jsonl").write_text(LINES)
    for name in BESIDE:
        (folder / name).write_text(json.dumps({"about": name}, indent=1))
    for name in (
        "_temporary/0/b.jsonl",
        "_delta_log/0.json",
        "__MACOSX/b.jsonl",
        ".cache/huggingface/b.jsonl",
    ):
        (folder / name).parent.mkdir(parents=True)
        (folder / name).write_text('{"wrong": 1}\n')
    return folder


@pytest.mark.parametrize("pattern", ["", "*", "**", "*.json*", "**/*.json*", "../data/**/*"])
def test_metadata_beside_lines_is_left_out_and_said_once(
    tmp_path: Path, pattern: str, caplog: pytest.LogCaptureFixture
) -> None:
    folder = beside(tmp_path / "data")
    with caplog.at_level(logging.WARNING, "penstock"):
        for _ in range(2):
            assert list(ps.read(folder / pattern)) == [{"n": 1}, {"n": 2}]
    (said,) = [record.getMessage() for record in caplog.records]
    assert "left out " in said and "dataset_info.json" in said


def test_metadata_that_is_named_is_read(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = beside(tmp_path / "data")
    (folder / "state.json").write_text('{"n": 3}\n')
    with caplog.at_level(logging.WARNING, "penstock"):
        assert list(ps.read(folder / "state.json")) == [{"n": 3}]
        assert list(ps.read([folder / "a.jsonl", folder / "state.json"])) == [
            {"n": 1},
            {"n": 2},
            {"n": 3},
        ]
        assert list(ps.read(f"{folder}/{{a.jsonl,state.json}}"))[2] == {"n": 3}
        assert list(ps.read(folder / "_temporary" / "0" / "*.jsonl")) == [{"wrong": 1}]
    assert not caplog.records


def test_nothing_but_metadata_is_no_data(tmp_path: Path) -> None:
    (tmp_path / "dataset_info.json").write_text("{}")
    for pattern in ("", "*.json", "**"):
        with pytest.raises(
            ConfigError,
            match=r"only files that tools keep beside it \(dataset_info.json\): name a file",
        ):
            ps.read(tmp_path / pattern)


def test_a_snapshot_whose_data_lie_in_a_folder_is_told_apart_from_one_without_data(
    tmp_path: Path,
) -> None:
    (tmp_path / "dataset_infos.json").write_text("{}")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.jsonl").write_text('{"n": 1}\n')
    with pytest.raises(
        ConfigError, match=r"its folders \(data\) write, for example, .*/\*\*/\*.jsonl"
    ) as error:
        ps.read(tmp_path)
    assert len(ps.read(str(error.value).rpartition(" ")[2])) == 1  # the remedy, taken literally


def test_metadata_beside_data_of_another_format_is_no_second_format(tmp_path: Path) -> None:
    for name in ("part.0.parquet", "part.1.parquet"):
        pq.write_table(pa.table({"n": [1, 2]}), tmp_path / name)
    pq.write_metadata(pa.schema({"n": pa.int64()}), str(tmp_path / "_metadata"))
    (tmp_path / "dataset_info.json").write_text("{}")
    (tmp_path / "_SUCCESS").write_text("")
    for pattern in ("", "*"):
        assert [row["n"] for row in ps.read(tmp_path / pattern)] == [1, 2, 1, 2]


def test_where_documents_of_tokens_end_is_no_data(tmp_path: Path) -> None:
    import gzip

    for name in ("a", "b"):
        np.arange(5, dtype=np.uint16).tofile(tmp_path / f"{name}.npy")
        (tmp_path / f"{name}.csv.gz").write_bytes(gzip.compress(b"0,3\n3,5\n"))
    for pattern in ("", "*"):
        assert [len(each) for each in ps.read(tmp_path / pattern, dtype="uint16")] == [3, 2, 3, 2]


def test_a_folder_of_media_has_no_sample_of_metadata(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_bytes(b"..")
    for name in ("README.md", "Thumbs.db", ".DS_Store", "dataset_info.json"):
        (tmp_path / name).write_text("about")
    assert [
        sample["__key__"] for sample in file_samples.list_folder(tmp_path).read(np.arange(1))
    ] == ["a"]


@pytest.mark.parametrize("pattern", ["", "*"])
def test_files_that_are_missing_by_their_names_are_said(
    tmp_path: Path, pattern: str, caplog: pytest.LogCaptureFixture
) -> None:
    for number in (0, 1, 3):
        pq.write_table(pa.table({"n": [number]}), tmp_path / f"train-{number:05d}-of-00004.parquet")
    with caplog.at_level(logging.WARNING, "penstock"):
        assert len(ps.read(tmp_path / pattern)) == 3
        assert len(ps.read(f"{tmp_path}/train-{{00000..00001}}-of-00004.parquet")) == 2
    (said,) = [record.getMessage() for record in caplog.records]
    assert "1 of 4 files are missing: train-00002-of-00004.parquet" in said


def test_two_exports_in_one_folder_are_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("train-00000-of-00002", "train-00001-of-00002", "train-00000-of-00001"):
        pq.write_table(pa.table({"n": [1]}), tmp_path / f"{name}.parquet")
    pq.write_table(pa.table({"n": [1]}), tmp_path / "test-00000-of-00001.parquet")
    with caplog.at_level(logging.WARNING, "penstock"):
        assert len(ps.read(tmp_path)) == 4
    (said,) = [record.getMessage() for record in caplog.records]
    assert "reads train-*-of-00001.parquet, train-*-of-00002.parquet" in said


def test_names_that_are_data() -> None:
    names: Any = (
        "part-00000.parquet",
        "data.json",
        "train.jsonl",
        "reader.txt",
        "metadata.jsonl",
        "a.idx.parquet",
    )
    assert not [name for name in names if metadata.is_metadata(Path(name))]


@pytest.mark.parametrize("pattern", ["", "*.arrow", "**/*"])
def test_what_datasets_cached_in_several_processes_is_left_out(
    tmp_path: Path, pattern: str
) -> None:
    for name in ("x-train", "cache-0123456789abcdef_00000_of_00002", "cache-0123456789abcdef"):
        table = pa.table({"n": [1]})
        with pa.ipc.new_stream(str(tmp_path / f"{name}.arrow"), table.schema) as out:
            out.write_table(table)
    assert len(ps.read(tmp_path / pattern)) == 1


@pytest.mark.parametrize("folder", ["_change_data", "_tmp.part", "_temporary-4f1c", "_temporary/0"])
def test_folders_of_changes_and_half_written_files_are_left_out(
    tmp_path: Path, folder: str
) -> None:
    for name in ("day=1/a.parquet", f"{folder}/b.parquet"):
        (tmp_path / name).parent.mkdir(parents=True)
        pq.write_table(pa.table({"n": [1]}), tmp_path / name)
    assert len(ps.read(tmp_path / "**/*.parquet")) == 1


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "README.txt", "state.json"])
def test_a_glob_that_spells_the_name_of_a_file_reads_it(tmp_path: Path, name: str) -> None:
    for repository in ("a", "b"):
        (tmp_path / repository).mkdir()
        (tmp_path / repository / name).write_text('{"n": 1}\n')
    for pattern in (f"*/{name}", f"**/{name}"):
        assert len(ps.read(tmp_path / pattern)) == 2


def test_parts_of_loose_samples_that_end_like_metadata_are_kept(tmp_path: Path) -> None:
    for name in ("1.jpg", "1.metadata.json", "1.labels.txt", "1.idx"):
        (tmp_path / name).write_bytes(b"x")
    assert file_samples.list_folder(tmp_path).read(np.array([0]))[0].keys() == {
        "__key__",
        "jpg",
        "metadata.json",
        "labels.txt",
    }


def delta(folder: Path, *commits: str) -> Path:
    for number in range(3):
        path = folder / f"day={number}" / "part.parquet"
        path.parent.mkdir(parents=True)
        pq.write_table(pa.table({"n": [number]}), path)
    (folder / "_delta_log").mkdir()
    for version, commit in enumerate(commits):
        actions = [
            {kind: {"path": f"day%3D{number}/part.parquet"}}
            for kind, number in (action.split() for action in commit.split(", "))
        ]
        (folder / "_delta_log" / f"{version:020}.json").write_text(
            "\n".join(map(json.dumps, actions))
        )
    return folder


@pytest.mark.parametrize("pattern", ["**/*.parquet", "day=*/*.parquet", "day=0/*.parquet", "day=0"])
@pytest.mark.parametrize("commits", [["add 0, add 1, add 2", "remove 0"], ["add 1, add 2"]])
def test_files_that_a_delta_table_removed_or_never_added_are_refused(
    tmp_path: Path, pattern: str, commits: list[str]
) -> None:
    folder = delta(tmp_path / "table", *commits)
    with pytest.raises(
        ConfigError, match="is a Delta table, and by its log 1 of these files.*day=0/part.parquet"
    ):
        ps.read(folder / pattern)
    assert len(ps.read(folder / "day=[12]/*.parquet")) == 2
    assert len(ps.read(folder / "day=0/part.parquet")) == 1


def test_files_of_which_a_delta_table_deleted_rows_are_refused(tmp_path: Path) -> None:
    folder = delta(tmp_path / "table", "add 0, add 1, add 2")
    log = folder / "_delta_log" / f"{1:020}.json"
    log.write_text(
        json.dumps({"add": {"path": "day=1/part.parquet", "deletionVector": {"cardinality": 1}}})
    )
    with pytest.raises(ConfigError, match="had rows deleted: day=1/part.parquet"):
        ps.read(folder / "**/*.parquet")


def test_a_delta_table_as_it_is_and_again_added_files_are_read(tmp_path: Path) -> None:
    folder = delta(tmp_path / "table", "add 0, add 1, add 2", "remove 0", "add 0")
    assert len(ps.read(folder / "**/*.parquet")) == 3
    (folder / "_delta_log" / f"{3:020}.json").write_text("{")
    with pytest.raises(ps.DataError, match="no log of a Delta table"):
        ps.read(folder / "**/*.parquet")


@pytest.mark.parametrize(
    "mark", ["metadata/v1.metadata.json", ".hoodie/hoodie.properties", "_delta_log/7.json"]
)
def test_tables_whose_current_files_are_not_known_are_named(
    tmp_path: Path, mark: str, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("data/a.parquet", mark):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text("{}")
    pq.write_table(pa.table({"n": [1]}), tmp_path / "data/a.parquet")
    with caplog.at_level(logging.WARNING, "penstock"):
        assert len(ps.read(tmp_path / "data/*.parquet")) == 1
    assert "name the files of the version to read" in caplog.text


@pytest.mark.parametrize("pattern", ["", "*", "*.json*"])
@pytest.mark.parametrize("name", ["schema.json", "metadata.json", "stats.json", "b.json"])
def test_a_json_beside_lines_of_json_is_not_taken_for_rows(
    name: str, pattern: str, tmp_path: Path
) -> None:
    (tmp_path / "a.jsonl").write_text('{"n": 1}\n')
    (tmp_path / name).write_text('{"type": "object"}')
    with pytest.raises(ConfigError, match=rf"'a.jsonl' and {name}: .* write \*.jsonl, or name"):
        ps.read(tmp_path / pattern)
    assert [row["n"] for row in ps.read(tmp_path / "*.jsonl")] == [1]


@pytest.mark.parametrize("pattern", ["", "*"])
@pytest.mark.parametrize("other", [".gz", ".zst"])
def test_a_file_beside_its_packed_copy_is_refused(other: str, pattern: str, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"n": 1}\n')
    (tmp_path / f"a.jsonl{other}").write_bytes(b"packed")
    with pytest.raises(ConfigError, match="matches 'a.jsonl' and a compressed copy of it"):
        ps.read(tmp_path / pattern)


@pytest.mark.parametrize(
    "name", ["b.jsonl.bz2", "b.jsonl.xz", "b.parquet.gz", "b.csv.zip", "b.tgz"]
)
def test_packed_data_that_is_not_read_is_not_left_out_of_a_folder_in_silence(
    name: str, tmp_path: Path
) -> None:
    (tmp_path / "a.jsonl").write_text('{"n": 1}\n')
    (tmp_path / name).write_bytes(b"packed")
    with pytest.raises(
        ConfigError, match=rf"holds compressed data that Penstock does not read \({name}\)"
    ):
        ps.read(tmp_path)


def test_two_revisions_in_the_cache_of_the_hub_are_refused(tmp_path: Path) -> None:
    cache = tmp_path / "datasets--a--b"
    for number, revision in enumerate(["0a", "1b"]):
        for folder in ("blobs", f"snapshots/{revision}/data"):
            (cache / folder).mkdir(parents=True, exist_ok=True)
        (cache / f"blobs/{number}").write_text(f'{{"n": {number}}}\n')
        (cache / f"snapshots/{revision}/data/a.jsonl").symlink_to(f"../../../blobs/{number}")
    for pattern in ("snapshots/*/data/*.jsonl", "**/*.jsonl"):
        with pytest.raises(
            ConfigError, match="2 revisions of the dataset in .*name the folder of one, 0a, 1b"
        ):
            ps.read(cache / pattern)
    assert [row["n"] for row in ps.read(cache / "snapshots/1b/**/*.jsonl")] == [1]


def test_what_trainers_and_file_systems_keep_beside_data_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "lost+found").mkdir()
    np.arange(5, dtype=np.uint16).tofile(tmp_path / "a.bin")
    for name in (
        "lost+found/b.bin",
        "training_args.bin",
        "pytorch_model-00001-of-00002.bin",
        "optimizer.bin",
    ):
        (tmp_path / name).write_bytes(b"....")
    assert [len(each) for each in ps.read(tmp_path / "**/*.bin", dtype="uint16")] == [5]


@pytest.mark.parametrize(
    "name",
    ["a.bin", "a.npy", "a.ds", "a.txt", "a.csv", "a.jsonl", "a.jsonl.gz", "a.parquet", "a.tar"],
)
def test_a_pointer_of_git_lfs_is_no_data(tmp_path: Path, name: str) -> None:
    pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'4d' * 32}\nsize 12345\n"
    (tmp_path / name).write_text(pointer)
    options: dict[str, Any] = {"dtype": "uint16"} if name in ("a.bin", "a.npy", "a.ds") else {}
    with pytest.raises(ps.DataError, match=rf"{name}: it is a pointer of Git LFS.*git lfs pull"):
        ps.read(tmp_path / name, **options)


def test_a_pointer_of_git_lfs_among_many_files_is_no_data(tmp_path: Path) -> None:
    for number in range(40):
        (tmp_path / f"{number:02}.txt").write_text("a\n")
    (tmp_path / "33.txt").write_text("version https://git-lfs.github.com/spec/v1\nsize 1\n")
    with pytest.raises(ps.DataError, match=r"33.txt: it is a pointer of Git LFS"):
        ps.read(tmp_path)


def test_text_that_mentions_git_lfs_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("see version https://git-lfs.github.com/spec/v1\n")
    assert len(ps.read(tmp_path / "a.txt")) == 1


def test_folders_with_data_that_are_not_read_are_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name in (
        "a.jsonl",
        "eval/b.jsonl",
        "_temporary/c.jsonl",
        "images/d.png",
        "notes/README.md",
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(LINES)
    with caplog.at_level(logging.WARNING, "penstock"):
        assert len(ps.read(tmp_path)) == len(ps.read(tmp_path)) == 2
    (said,) = [record.getMessage() for record in caplog.records]
    assert "folders (eval) are not read" in said and said.endswith(f"{tmp_path}/**/*.jsonl")
    assert len(ps.read(f"{tmp_path}/**/*.jsonl")) == 4
