"""What other tools keep beside data is no data: left out of folders and globs, said once, read where it is named."""

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
from penstock.sources import loose, metadata

LINES = '{"n": 1}\n{"n": 2}\n'
BESIDE = (
    "dataset_info.json dataset_infos.json state.json dataset_dict.json _SUCCESS _metadata _common_metadata README.md "
    "README.txt LICENSE .gitattributes .DS_Store ._a.jsonl .a.jsonl.crc a.jsonl.crc b.jsonl.tmp b.jsonl.incomplete a.lock "
    "index.json config.json tokenizer.json features.json label.labels.txt 00000_stats.json SHA256SUMS a.idx "
    "a.ds.index a.ds.metadata Thumbs.db desktop.ini _committed_123 _started_123 a.jsonl.sha256"
).split()


@pytest.fixture(autouse=True)
def nothing_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "_TOLD", set[str]())


def beside(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "a.jsonl").write_text(LINES)
    for name in BESIDE:
        (folder / name).write_text(json.dumps({"about": name}, indent=1))
    for name in ("_temporary/0/b.jsonl", "_delta_log/0.json", "__MACOSX/b.jsonl", ".cache/huggingface/b.jsonl"):
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
        assert list(ps.read([folder / "a.jsonl", folder / "state.json"])) == [{"n": 1}, {"n": 2}, {"n": 3}]
        assert list(ps.read(f"{folder}/{{a.jsonl,state.json}}"))[2] == {"n": 3}
        assert list(ps.read(folder / "_temporary" / "0" / "*.jsonl")) == [{"wrong": 1}]
    assert not caplog.records


def test_nothing_but_metadata_is_no_data(tmp_path: Path) -> None:
    (tmp_path / "dataset_info.json").write_text("{}")
    for pattern in ("", "*.json", "**"):
        with pytest.raises(ConfigError, match=r"only what is kept beside it \(dataset_info.json\): name a file"):
            ps.read(tmp_path / pattern)


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
    assert [sample["__key__"] for sample in loose.folder(tmp_path).read(np.arange(1))] == ["a"]


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


def test_names_that_are_data() -> None:
    names: Any = ("part-00000.parquet", "data.json", "train.jsonl", "reader.txt", "metadata.jsonl", "a.idx.parquet")
    assert not [name for name in names if metadata.is_metadata(Path(name))]
