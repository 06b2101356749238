"""Every release since 0.1 can be read: its states, data, shards, mixture files and indexes.

The folders below `goldens/` are written once by `tools/write_goldens.py`, never again.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

import golden_pipelines as goldens
import penstock as ps
from penstock.sources.derived_files import decode_header

ROOT = Path(__file__).resolve().parent.parent
FOLDER = Path(__file__).parent / "goldens"
RELEASES = sorted(path.name for path in FOLDER.iterdir())
BREAK = (
    "a state of release {} gives other samples. Find what moved them, and undo it. If that cannot "
    "be, it is a break: label it ORDER or STATE in the CHANGELOG, and raise the version"
)


@pytest.fixture(scope="module", params=RELEASES)
def release(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def data(release: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the data of a release: reading it writes indexes beside it."""
    folder = tmp_path_factory.mktemp("goldens") / "data"
    shutil.copytree(FOLDER / release / "data", folder)
    return folder


@pytest.fixture(scope="module")
def runs(release: str) -> dict[str, Any]:
    return json.loads((FOLDER / release / "states.json").read_text(encoding="utf-8"))


def test_release_0_1_has_at_least_25_pipelines() -> None:
    runs = json.loads((FOLDER / "0.1" / "states.json").read_text(encoding="utf-8"))
    assert len(runs) >= 25 and set(runs) <= set(goldens.PIPELINES)
    assert len({json.dumps(run["next"]) for run in runs.values()}) == len(runs)


@pytest.mark.parametrize("name", list(goldens.PIPELINES))
def test_a_state_of_a_release_resumes(
    name: str, release: str, data: Path, runs: dict[str, Any]
) -> None:
    if name not in runs:
        pytest.skip(f"{name!r} is newer than {release}")
    if name.startswith("mixture file"):
        pytest.importorskip("yaml")
    run = runs[name]
    assert len(run["next"]) == goldens.AFTER
    assert goldens.resume_run(name, data, run["state"]) == run["next"], BREAK.format(release)


def test_stores_and_shards_of_a_release(data: Path) -> None:
    store = ps.read(data / "tokens.bin", dtype="uint16", eos=0)
    assert [row.tolist() for row in store] == [[*ids, 0] for ids in goldens.DOCUMENTS]
    written = ps.read(data / "written-arrow")
    assert [row.tolist() for row in written] == [row.tolist() for row in store.shuffle(seed=1)]
    assert [row["n"] for row in ps.read(data / "written-jsonl")] == list(range(60))


def test_indexes_of_a_release(release: str, tmp_path: Path) -> None:
    """An index fits its data by size and time, as after a copy that keeps times."""
    folder = tmp_path / "data"
    shutil.copytree(FOLDER / release / "data", folder)
    accepted = list[str]()
    indexes = sorted((FOLDER / release / "indexes").glob("*.name"))
    for note in indexes:
        index = folder / note.read_text(encoding="utf-8").strip()
        body = note.with_suffix("").read_bytes()
        header = decode_header(body)
        assert header is not None, f"the index {index.name} of {release} has another format"
        index.write_bytes(body)
        path = index.with_name(index.name[1:].partition(".penstock-")[0])
        os.utime(path, ns=(header.data.mtime, header.data.mtime))
        options = {"dtype": "uint16", "eos": 0} if path.suffix == ".bin" else {}
        rows = len(ps.read(path, **options))  # pyright: ignore[reportArgumentType]
        assert rows == header.total
        if index.read_bytes() == body:
            accepted.append(index.name)
    assert len(indexes) >= 5
    assert any("penstock-lines" in name for name in accepted), "an index was made again"


def test_goldens_are_never_written_again(tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("goldens", ROOT / "tools" / "write_goldens.py")
    assert spec is not None and spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    with pytest.raises(SystemExit, match="never written again"):
        tool.write_goldens("0.1")
    with pytest.raises(SystemExit, match="this is Penstock"):
        tool.write_goldens("9.9", tmp_path)
    assert not list(tmp_path.iterdir())
