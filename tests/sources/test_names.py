"""Default names of sources."""

from __future__ import annotations

from pathlib import Path

import penstock as ps
from penstock.sources.names import choose_source_name


def test_names() -> None:
    assert choose_source_name(["x/*"], [Path("x/code.parquet")]) == "code"
    assert choose_source_name(["x/*"], [Path("x/code.v2.csv.gz")]) == "code.v2"
    assert (
        choose_source_name(["x/**"], [Path("x/code/0.parquet"), Path("x/code/1.parquet")]) == "code"
    )


def test_a_folder_is_called_the_same_however_its_data_is_cut(tmp_path: Path) -> None:
    folder = tmp_path / "web.v2"
    for name in ("only.jsonl", "more.jsonl", "below/third.jsonl"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text('{"x": 1}\n')
        assert ps.read(folder).plan.sources == ("web.v2",)
        assert ps.read(f"{folder}/").shuffle(seed=1).plan.sources == ("web.v2",)


def test_a_file_whose_name_is_no_text_has_a_name_that_is() -> None:
    assert choose_source_name(["*"], [Path("a\udcff.jsonl")]) == "a\\xff"
