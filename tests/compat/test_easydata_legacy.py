"""The older mixtures of EasyData: images, functions of rows, packing, and settings as JSON."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.compat.easydata import (
    DatasetLoadError,
    DatasetMixture,
    DatasetType,
    TextDatasetInform,
    VisualDatasetInform,
    build_dataset,
    load_for_inform,
)

TOKENS = [{"content": "x", "ids": [1, 2]}, {"content": "y", "ids": [3, 4, 5]}]


@pytest.fixture
def tokens(tmp_path: Path) -> str:
    ps.from_sequence(TOKENS).write(tmp_path / "tokens.jsonl")
    return f"{tmp_path}/tokens.jsonl"


def build(inform: Any, **options: Any) -> list[dict[str, Any]]:
    stop = {"stop_strategy": "all_exhausted", "pack_shuffle": False, "pack_seq_length": 3}
    return list(build_dataset(DatasetMixture([inform], **{**stop, **options})))


def test_types_of_files() -> None:
    assert DatasetType.from_string("JSON") is DatasetType.JSON
    assert DatasetType.from_string("other") == "other"
    names = {"a.jsonl.zst": "json", "a.tsv.gz": "tsv", "a.pq": None, "name/on-hub": None}
    assert {name: DatasetType.infer_from_path(name) for name in names} == names
    assert TextDatasetInform(type=DatasetType.HF, data_files="a").get_str_type() == "huggingface"
    assert issubclass(ps.ConfigError, DatasetLoadError)


def test_functions_of_rows(tokens: str) -> None:
    inform = TextDatasetInform(
        data_files=tokens,
        preprocessing_fn=lambda row: {**row, "content": row["content"] * 2},
        additional_fields=["ids"],
    )
    assert build(inform) == [{"text": row["content"] * 2, "ids": row["ids"]} for row in TOKENS]
    assert build(TextDatasetInform(data_files=tokens, content_field=None)) == TOKENS
    rows = load_for_inform(TextDatasetInform(data_files=tokens), DatasetMixture([inform]))
    assert list(rows) == TOKENS


def test_tokens_are_packed_into_full_rows(tokens: str) -> None:
    # The field was always "tokens", whatever the setting.
    inform = TextDatasetInform(data_files=tokens)
    packed = build(inform, pack_tokens=True, tokens_field_name="ids", pack_eos_token_id=9)
    assert [row["input_ids"].tolist() for row in packed] == [[1, 2, 9], [3, 4, 5]]
    made = build(inform, pack_on_the_fly=True, tokenize_callback=lambda row: [len(row["text"])] * 3)
    assert [row["input_ids"].tolist() for row in made] == [[1, 1, 1], [0, 1, 1]]
    with pytest.raises(ps.ConfigError, match="give tokenize_callback"):
        DatasetMixture([inform], pack_on_the_fly=True)


def test_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The fields of an image were never read.
    from PIL import Image

    ps.from_sequence([{"shade": 7, "caption": "a"}]).write(tmp_path / "a.jsonl")

    def draw(row: Any) -> dict[str, Any]:
        return {**row, "images": Image.new("L", (4, 4), row["shade"])}

    inform = VisualDatasetInform(
        data_files=f"{tmp_path}/a.jsonl",
        content_field="caption",
        image_size=(2, 3),
        preprocessing_fn=draw,
    )
    (row,) = build(inform)
    assert np.asarray(row["image"]).shape == (3, 2) and row["text"] == "a" and row["shade"] == 7
    with pytest.raises(ps.DataError, match="no field 'images'"):
        build(VisualDatasetInform(data_files=f"{tmp_path}/a.jsonl"))


def test_settings_as_json(tmp_path: Path) -> None:
    informs: Any = [
        TextDatasetInform("json", "a.jsonl"),
        VisualDatasetInform("parquet", "b.parquet", image_size=(2, 2)),
    ]
    mixture = DatasetMixture(informs, mixture_weights={"a": 0.25, "b": 0.75}, batch_size=4)
    mixture.save_mixture(tmp_path / "mixture.json")
    loaded = DatasetMixture.load_mixture(tmp_path / "mixture.json")
    assert loaded.to_json_string() == mixture.to_json_string()
    assert isinstance(loaded.informs[1], VisualDatasetInform) and loaded.batch_size == 4
    with pytest.raises(ps.ConfigError, match="JSON has no functions"):
        DatasetMixture([TextDatasetInform(data_files="a", format_callback=len)]).to_json_string()
