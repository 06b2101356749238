"""Datasets that the formats' own tools wrote, where these are installed: `make formats` installs them all."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import foreign_formats
from foreign_formats import Made, Row


def streaming() -> Any:
    """MosaicML's package, with an empty torchvision where there is none that can be loaded: it is for other helpers."""
    pytest.importorskip("torch")
    names = (
        "torchvision",
        "torchvision.datasets",
        "torchvision.transforms",
        "torchvision.transforms.functional",
    )
    if names[0] not in sys.modules:
        found = {name: ModuleType(name) for name in names}
        for name, module in found.items():
            module.__path__, module.__spec__ = [], ModuleSpec(name, None)
        found[names[0]].datasets, found[names[0]].transforms = found[names[1]], found[names[2]]  # type: ignore[attr-defined]
        found[names[2]].functional = found[names[3]]  # type: ignore[attr-defined]
        found[names[1]].VisionDataset, found[names[3]].to_tensor = object, None  # type: ignore[attr-defined]
        with pytest.MonkeyPatch.context() as patch:  # others would take it for the real one
            for name, module in found.items():
                patch.setitem(sys.modules, name, module)
            return pytest.importorskip("streaming")
    return pytest.importorskip("streaming")


def _mds(folder: Path, name: str, **options: Any) -> Made:
    tool, rows = streaming(), foreign_formats.mds_rows(20)
    with tool.MDSWriter(
        out=str(folder / name), columns=foreign_formats.MDS, size_limit=900, **options
    ) as writer:
        for row in rows:
            writer.write(row)
    assert len([*folder.glob(f"{name}/shard.*")]) > 2
    return Made(folder / name, rows)


def mds(folder: Path) -> Made:
    return _mds(folder, "mds by its tool")


def mds_packed(folder: Path) -> Made:
    return _mds(folder, "mds zstd by its tool", compression="zstd", hashes=["sha1", "xxh64"])


def litdata(folder: Path) -> Made:
    module: Any = pytest.importorskip("litdata")
    rows = foreign_formats.lit_rows(20)
    out = folder / "litdata by its tool"
    module.optimize(_lit_row, list(range(20)), str(out), chunk_size=6, num_workers=1, verbose=False)
    assert len([*out.glob("chunk-*.bin")]) > 2
    return Made(out, rows)


def _lit_row(number: int) -> Row:
    return foreign_formats.lit_rows(20)[number]


def litdata_tokens(folder: Path) -> Made:
    module: Any = pytest.importorskip("litdata")
    out = folder / "litdata tokens by its tool"
    options: Any = {
        "chunk_size": 60,
        "item_loader": module.TokensLoader(),
        "num_workers": 1,
        "verbose": False,
    }
    module.optimize(_lit_tokens, list(range(1, 16)), str(out), **options)
    return Made(out, [np.arange(count, dtype=np.int64) for count in range(1, 16)])  # type: ignore[list-item]


def _lit_tokens(count: int) -> Any:
    import torch

    return torch.arange(count)


def tfrecord(folder: Path) -> Made:
    module: Any = pytest.importorskip("tfrecord")
    rows, path = foreign_formats.example_rows(12), folder / "by its tool.tfrecord"
    kinds = {"id": "int", "image": "byte", "scores": "float", "tokens": "int", "words": "byte"}
    writer = module.TFRecordWriter(str(path))
    for row in rows:
        given = {
            name: value if isinstance(value, list) else value.tolist()
            for name, value in row.items()
        }
        writer.write({name: (value, kinds[name]) for name, value in given.items()})
    writer.close()
    return Made(path, rows)


def tensorflow(folder: Path) -> Made:
    module: Any = pytest.importorskip("tensorflow")
    rows, path, train = (
        foreign_formats.example_rows(12),
        folder / "by tensorflow.tfrecord",
        module.train,
    )

    def feature(value: Any) -> Any:
        if isinstance(value, list):
            return train.Feature(bytes_list=train.BytesList(value=value))
        if value.dtype == np.float32:
            return train.Feature(float_list=train.FloatList(value=value.tolist()))
        return train.Feature(int64_list=train.Int64List(value=value.tolist()))

    with module.io.TFRecordWriter(str(path)) as writer:
        for row in rows:
            features = train.Features(feature={name: feature(value) for name, value in row.items()})
            writer.write(train.Example(features=features).SerializeToString())
    return Made(path, rows)


def energon(folder: Path) -> Made:
    """In a process of its own: Energon leaves files open."""
    pytest.importorskip("megatron.energon")
    root = folder / "energon"
    root.mkdir()
    rows = [row for part in range(2) for row in _pairs(root, f"part-{part}.tar", 20 * part).rows]
    prepare = (
        "import sys; from megatron.energon.tools.prepare import command; command.main(sys.argv[1:])"
    )
    options = ["--non-interactive", "--num-workers", "1", "--sample-type", "CrudeWebdataset"]
    command = [sys.executable, "-c", prepare, *options, "--split-parts", "train:.*", str(root)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return Made(root, rows, options={"format": "energon", "split": "train"})


def _pairs(folder: Path, name: str, first: int = 0) -> Made:
    pytest.importorskip("webdataset")
    from webdataset import TarWriter  # pyright: ignore[reportAttributeAccessIssue]

    rows = list[Row]()
    with TarWriter(str(folder / name)) as sink:
        for i in range(first, first + 20):
            key, parts = (
                f"train/{i:05d}",
                {"jpg": bytes([i]) * i, "cls": b"%d" % (i % 3), "txt": f"ü {i}".encode()},
            )
            sink.write({"__key__": key, **parts})
            rows.append({"__key__": key, "__shard__": name, **parts})
    return Made(folder / name, rows)


def webdataset(folder: Path) -> Made:
    return _pairs(folder, "pairs.tar")


def webdataset_packed(folder: Path) -> Made:
    return _pairs(folder, "pairs.tar.gz")


def zarr2(folder: Path) -> Made:
    module: Any = pytest.importorskip("zarr")
    arrays, rows = foreign_formats.some_arrays(20)
    group = module.open_group(str(folder / "arrays 2.zarr"), mode="w", zarr_format=2)
    for name, values in arrays.items():
        group.create_array(name, data=values, chunks=(6, *values.shape[1:]))
    return Made(folder / "arrays 2.zarr", rows)


def hub_parquet(folder: Path) -> Made:
    datasets: Any = pytest.importorskip("datasets")
    datasets.disable_progress_bars()
    rows = [{"id": i, "text": f"ü{i}" * (i % 5), "list": np.arange(i % 4)} for i in range(20)]
    datasets.Dataset.from_list(rows).to_parquet(folder / "hub.parquet", batch_size=6)
    return Made(folder / "hub.parquet", rows)


TOOLS: dict[str, Callable[[Path], Made]] = {
    "MDS, by MDSWriter": mds,
    "MDS zstd, by MDSWriter": mds_packed,
    "LitData, by optimize": litdata,
    "LitData tokens, by optimize": litdata_tokens,
    "TFRecord, by TFRecordWriter": tfrecord,
    "TFRecord, by tensorflow": tensorflow,
    "folder, by energon prepare": energon,
    "tar, by TarWriter": webdataset,
    "tar.gz, by TarWriter": webdataset_packed,
    "Zarr 2, by zarr": zarr2,
    "Parquet, by datasets": hub_parquet,
}
"""Formats that foreign_formats.FORMATS does not write by their own tools."""
