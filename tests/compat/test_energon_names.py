"""Names, submodules and small parts of Energon, compared with the installed package."""

from __future__ import annotations

import ast
import importlib
import io
import json
import sqlite3
import subprocess
import sys
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps
from energon_folders import folder, texts
from penstock.compat import energon
from penstock.compat.energon.submodules import ALIASES

PUBLIC = [name for name in ALIASES if not name.startswith("media")]


def test_every_name_of_energon_exists() -> None:
    theirs = importlib.import_module("megatron.energon")
    assert [name for name in theirs.__all__ if not hasattr(energon, name)] == []


@pytest.mark.parametrize("submodule", PUBLIC)
def test_submodules_export_names_of_the_package(submodule: str) -> None:
    ours = importlib.import_module(f"penstock.compat.energon.{submodule}")
    importlib.import_module(f"megatron.energon.{submodule}")
    names = ALIASES[submodule].split()
    assert names and all(hasattr(ours, name) for name in names)


def test_a_batch_takes_the_fields_of_its_class() -> None:
    @energon.edataclass
    class Images(energon.Batch):
        image: Any

    samples = [energon.CaptioningSample(__key__=key, image=np.ones(2), caption=key) for key in "ab"]
    batch = Images.from_samples(samples)
    assert batch.__key__ == ["a", "b"] and batch.image.shape == (2, 2)

    class Own(energon.DefaultTaskEncoder[Any, Any, Any, Any]):
        def batch(self, samples: list[Any]) -> Any:
            return self._batch(samples, Images, actions={"image": energon.batch_list})

    assert isinstance(Own().batch(samples).image, list)


def test_joined_samples_update_the_fields_of_the_first() -> None:
    @energon.edataclass
    class Pair(energon.Sample):
        image: int
        text: str

    source = energon.SourceInfo(dataset_path="x", index=1)
    first = energon.ImageSample(__key__="k", image=1, __sources__=(source,))
    joined = Pair.from_joined(first, energon.TextSample(__key__="other", text="t"), None)
    assert (joined.__key__, joined.image, joined.text) == ("k", 1, "t")
    assert joined.__sources__ == (source,)
    with pytest.raises(ps.ConfigError, match="first sample is missing"):
        Pair.from_joined(None, first)
    assert energon.basic_sample_keys(first, (source,))["__sources__"] == (source, source)


def test_an_encoder_builds_its_own_pipeline(tmp_path: Path) -> None:
    folder(tmp_path / "a", {"train": texts(0, 12)})
    calls = list[str]()

    class Own(energon.DefaultTaskEncoder[Any, Any, Any, Any]):
        def encode_sample(self, sample: Any) -> Any:
            sample.text = sample.text.upper()
            return sample

        def build_train_datasets(self, **settings: Any) -> Any:
            calls.append(settings["blend_mode"].value)
            return super().build_train_datasets(**settings)

    blend = {"blend": [{"path": str(tmp_path / "a"), "weight": 2}, {"path": str(tmp_path / "a")}]}
    path = {"__class__": "MetadatasetV2", "splits": {"train": blend}}
    dataset = energon.get_train_dataset(path, batch_size=3, task_encoder=Own())
    batches = iter(energon.get_loader(dataset))
    drawn = [text for _ in range(12) for text in next(batches).text]
    assert calls == ["dataset_weight"] and set(drawn) == {f"TEXT {i}" for i in range(12)}


def test_failures_reach_the_error_handler_of_the_user(tmp_path: Path) -> None:
    class Picky(energon.DefaultTaskEncoder[Any, Any, Any, Any]):
        def encode_sample(self, sample: Any) -> Any:
            if sample.text == "3":
                raise ValueError("three")
            return sample

    data = ps.from_sequence([energon.TextSample(__key__=str(i), text=str(i)) for i in range(8)])
    failures = list[tuple[str, Any]]()
    dataset = energon.get_train_dataset(
        data,
        batch_size=4,
        repeat=False,
        task_encoder=Picky(),
        handler=lambda error, key: failures.append((str(error), key)),
    )
    batches = list(energon.get_loader(dataset))
    assert len(failures) == 1 and "three" in failures[0][0] and failures[0][1].endswith("/3")
    assert "3" not in [text for batch in batches for text in batch.text]


def test_passes_of_fractions_continue_each_dataset(tmp_path: Path) -> None:
    folder(tmp_path / "a", {"train": texts(0, 10)})
    folder(tmp_path / "b", {"train": texts(10, 8)})
    entries = [
        {"path": str(tmp_path / "a"), "repetitions": 0.5},
        {
            "repetitions": 2,
            "blend_epochized": [{"path": str(tmp_path / "b"), "repetitions": 0.25}],
        },
    ]
    path = {"__class__": "MetadatasetV2", "splits": {"train": {"blend_epochized": entries}}}
    dataset = energon.get_train_dataset(path, batch_size=1)
    assert len(dataset) == 5 + 4
    batches = iter(energon.get_loader(dataset))
    passes = [Counter(next(batches).text[0] for _ in range(9)) for _ in range(4)]
    for drawn in passes:
        assert sum(n for text, n in drawn.items() if int(text.split()[1]) < 10) == 5
    total = sum(passes, Counter[str]())
    assert set(total.values()) == {2} and len(total) == 18


def read_by_energon(path: Path) -> list[list[str]]:
    """Return the validation batches that Energon reads; its process closes its files."""
    code = (
        "import json, sys, megatron.energon as energon\n"
        "config = energon.WorkerConfig(rank=0, world_size=1, num_workers=0)\n"
        "dataset = energon.get_val_dataset(sys.argv[1], batch_size=2, worker_config=config)\n"
        "print(json.dumps([list(batch.text) for batch in energon.get_loader(dataset)]))\n"
    )
    command = [sys.executable, "-c", code, str(path)]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return json.loads(printed.splitlines()[-1])


def test_energon_reads_what_this_package_prepares(tmp_path: Path) -> None:
    prepared = folder(tmp_path / "a", {"train": texts(0, 6), "val": texts(6, 4)})
    shards = sorted(path.name for path in prepared.glob("*.tar"))
    for name in (".info.json", "split.yaml", "index.sqlite"):
        (prepared / ".nv-meta" / name).unlink(missing_ok=True)
    for index in prepared.glob("*.idx"):
        index.unlink()
    parts = energon.BaseWebdatasetFactory.prepare_dataset(
        prepared, shards, split_parts_patterns=[("train", "train.*"), ("val", "val.*")]
    )
    assert parts == {"txt"}
    texts_read = read_by_energon(prepared)
    ours = list(energon.get_loader(energon.get_val_dataset(prepared, batch_size=2)))
    assert texts_read == [batch.text for batch in ours]
    assert [text for batch in ours for text in batch.text] == [f"text {i}" for i in range(6, 10)]
    store = energon.WebdatasetFileStore(prepared)
    key = ours[0].__key__[0]
    assert store[f"{key}.txt"][0] == b"text 6"
    sample: dict[str, Any] = {}
    assert energon.PrimaryFileStore(store, key).get(".txt", sample) == b"text 6"
    assert sample["__sources__"][0].file_names == (f"{key}.txt",)
    index = prepared / ".nv-meta" / "index.sqlite"
    with closing(sqlite3.connect(index)) as connection, connection:
        connection.execute("UPDATE samples SET tar_file_id = -1")
        connection.execute("UPDATE sample_parts SET tar_file_id = -1")
    with pytest.raises(ps.DataError, match="index by keys is damaged"):
        store[f"{key}.txt"]
    index.write_bytes(b"no database" * 99)
    with pytest.raises(ps.DataError, match="index by keys is damaged"):
        store[f"{key}.txt"]
    index.unlink()
    with pytest.raises(ps.ConfigError, match="prepare_dataset"):
        store[f"{key}.txt"]


def test_pickles_load_only_if_allowed(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    file = io.BytesIO()
    torch.save(torch.arange(3), file)
    decode = energon.SampleDecoder()
    with pytest.raises(ps.ConfigError, match=r"allow=\['pth'\]"):
        decode.parts()({"__key__": "k", "pth": file.getvalue()})
    decoded = decode.parts(["pth"])({"__key__": "k", "pth": file.getvalue(), "txt": b"t"})
    assert decoded["pth"].tolist() == [0, 1, 2] and decoded["txt"] == "t"


def test_code_of_a_folder_runs_only_if_allowed(tmp_path: Path) -> None:
    data = folder(tmp_path / "a", {"train": texts(0, 4)})
    (data / ".nv-meta" / "loader.py").write_text(
        "def load(parts):\n    return {'text': parts['txt'] + '!'}\n"
        "def keep(part):\n    return part == 'txt'\n"
    )
    (data / ".nv-meta" / "dataset.yaml").write_text(
        "sample_type: {__module__: megatron.energon, __class__: TextSample}\n"
        "sample_loader: loader.py:load\npart_filter: loader.py:keep\n"
    )
    with pytest.raises(ps.ConfigError, match=r"allow=\['loader.py:load'\]"):
        energon.get_train_dataset(data, batch_size=2)
    allow = ["loader.py:load", "loader.py:keep"]
    dataset = energon.get_train_dataset(data, batch_size=2, repeat=False, allow=allow)
    drawn = [text for batch in energon.get_loader(dataset) for text in batch.text]
    assert sorted(drawn) == [f"text {i}!" for i in range(4)]


JOIN = """
__module__: megatron.energon
__class__: MetadatasetV2
splits:
  train:
    join:
      - path: a
      - {{path: b, nonmatch: {nonmatch}}}
    joiner: {{__module__: joining, __function__: join_texts}}
"""


JOINER = """
def join_texts(first, second):
    first.text = f"{first.text}+{second.text if second else None}"
    return first
"""


@pytest.mark.parametrize("nonmatch", ["error", "skip", "none"])
def test_joins_match_keys_by_their_policy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nonmatch: str
) -> None:
    (tmp_path / "joining.py").write_text(JOINER)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "joining", raising=False)
    a = folder(tmp_path / "a", {"train": texts(0, 12)})
    b = folder(tmp_path / "b", {"train": texts(100, 9)}, per_shard=4)
    for data in (a, b):
        names = sorted(path.name for path in data.glob("*.tar"))
        energon.BaseWebdatasetFactory.prepare_dataset(
            data, names, split_parts_ratio=[("train", 1)], shuffle_seed=7
        )
    path = tmp_path / "join.yaml"
    path.write_text(JOIN.format(nonmatch=nonmatch))
    allow = ["joining.join_texts"]

    def read() -> list[str]:
        dataset = energon.get_train_dataset(path, batch_size=1, repeat=False, allow=allow)
        return sorted(batch.text[0] for batch in energon.get_loader(dataset))

    pairs = [f"text {i}+text {100 + i}" for i in range(9)]
    if nonmatch == "error":
        with pytest.raises(ps.DataError, match="3 keys are missing"):
            read()
        return
    alone = [f"text {i}+None" for i in range(9, 12)]
    assert read() == sorted(pairs if nonmatch == "skip" else [*pairs, *alone])
    with pytest.raises(ps.ConfigError, match="allow="):
        energon.get_train_dataset(path, batch_size=1)


def test_cookers_receive_the_stores_of_their_dataset(tmp_path: Path) -> None:
    crude = folder(tmp_path / "a", {"train": texts(0, 4)}, sample_type="CrudeSample")
    energon.BaseWebdatasetFactory.prepare_dataset(
        crude, ["train-000.tar"], split_parts_ratio=[("train", 1)]
    )
    (tmp_path / "files").mkdir()
    for i in range(4):
        (tmp_path / "files" / f"{i}.txt").write_text(f"file {i}")

    @energon.cooker(need_primary=True, need_cache=True)
    def cook(sample: Any, files: Any, primary: Any, cache: Any) -> Any:
        number = sample["__key__"].split("/")[1]
        lazy = cache.get_lazy(files, f"{number}.txt")
        return energon.TextSample(
            **energon.basic_sample_keys(sample), text=f"{primary.get('.txt')}+{lazy.get()}"
        )

    class Cooking(energon.DefaultTaskEncoder[Any, Any, Any, Any]):
        cookers = (energon.Cooker(cook),)

    path = {
        "__class__": "MetadatasetV2",
        "splits": {
            "train": {"path": str(crude), "aux": {"files": f"filesystem://{tmp_path / 'files'}"}}
        },
    }
    dataset = energon.get_train_dataset(path, batch_size=2, repeat=False, task_encoder=Cooking())
    drawn = [text for batch in energon.get_loader(dataset) for text in batch.text]
    assert sorted(drawn) == [f"text {i}+file {i}" for i in range(4)]


def test_the_package_defines_no_step_and_no_loop_over_samples() -> None:
    """Order, buffers and cursors belong to the core: no class here is a step or holds a cursor."""
    root = Path(energon.__file__).parent
    for file in sorted(root.glob("*.py")):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                methods = {item.name for item in node.body if isinstance(item, ast.FunctionDef)}
                assert not methods & {"__next__", "cursor", "locate", "step", "carry"}, node.name
                iterates = "__iter__" in methods
                assert not iterates or node.name in ("SavableDataset", "SavableDataLoader")
            if isinstance(node, ast.ImportFrom):
                names = {alias.name for alias in node.names}
                assert not names & {"deque", "Queue", "Step", "Op", "permute"}, file.name


def test_the_page_shows_the_counts_of_the_script() -> None:
    root = Path(__file__).resolve().parents[2]
    command = [sys.executable, str(root / "tools" / "energon_names.py"), "--markdown"]
    table = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert table.strip() in (root / "docs" / "from_energon.md").read_text(encoding="utf-8")


def test_a_watchdog_that_should_end_the_run_is_an_error(tmp_path: Path) -> None:
    path = folder(tmp_path, {"train": texts(0, 4)})
    dataset = energon.get_train_dataset(path, batch_size=1)
    energon.WatchdogDataset(dataset, timeout_seconds=5)
    with pytest.raises(ps.ConfigError, match="fail_on_timeout= is not supported: a thread"):
        energon.WatchdogDataset(dataset, fail_on_timeout=True)
