"""Run by itself: Energon prepares folders, reads them, and says what it found.

In a process of its own, as Energon leaves files open and changes global state; so nothing of it is imported up here.
"""

from __future__ import annotations

import hashlib
import io
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from PIL import Image


def image(number: int, format: str) -> bytes:
    file = io.BytesIO()
    pixels = np.random.default_rng(number).integers(0, 255, (6, 4, 3), np.uint8)
    Image.fromarray(pixels).save(file, format)
    return file.getvalue()


def shards(root: Path, names: list[str]) -> None:
    from webdataset import TarWriter  # pyright: ignore[reportAttributeAccessIssue]

    number = 0
    for place, name in enumerate(names):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        with TarWriter(str(root / name)) as sink:
            for _ in range(4 + place):
                picture = (
                    {"jpg": image(number, "jpeg")} if number % 3 else {"png": image(number, "png")}
                )
                sink.write(
                    {
                        "__key__": f"{number:05d}",
                        **picture,
                        "json": {"a": {"b": [f"caption {number}"]}},
                    }
                )
                number += 1


def read(root: Path) -> dict[str, list[dict[str, Any]]]:
    """Every split as Energon's own reader of archives gives it; its excluded samples are `None`."""
    from megatron.energon.epathlib import EPath
    from megatron.energon.flavors import WebdatasetMeta
    from megatron.energon.flavors.webdataset.itar_reader import ShardInfosITarReader

    found: dict[str, list[dict[str, Any]]] = {}
    for split in yaml.safe_load((root / ".nv-meta/split.yaml").read_text())["split_parts"]:
        about = WebdatasetMeta.from_config(EPath(root), split_part=split)
        excluded = about.sample_excludes
        reader = ShardInfosITarReader(
            EPath(root),
            about.shards,
            None,
            sample_filter=lambda key, excluded=excluded: key not in excluded,
        )
        samples = [reader[number] for number in range(len(reader))]
        found[split] = [
            {
                name: digest(value) if isinstance(value, bytes) else value
                for name, value in sample.items()
                if name not in ("__restore_key__", "__sources__")
            }
            for sample in samples
            if sample is not None
        ]
        reader.close()
    return found


def digest(value: bytes) -> str:
    return hashlib.sha256(value).hexdigest()


def decoded(root: Path, split: str) -> list[Any]:
    """The samples that Energon makes of a split by its field map: key, caption, image."""
    from megatron.energon import WorkerConfig, get_loader, get_val_dataset

    alone = WorkerConfig(rank=0, world_size=1, num_workers=0)
    samples = get_loader(get_val_dataset(root, split_part=split, worker_config=alone, batch_size=1))
    return [
        [
            one.__key__[0],
            one.caption[0],
            digest(one.image[0].numpy().tobytes()),
            one.__subflavors__[0],
        ]
        for one in samples
    ]


def main(out: Path) -> None:
    from megatron.energon.epathlib import EPath
    from megatron.energon.flavors import BaseWebdatasetFactory
    from megatron.energon.flavors.jsonl.ijsonl_reader import IJsonlReader
    from megatron.energon.tools.prepare import command

    root = out / "captions"
    names = [f"parts/data-{number}.tar" for number in range(6)]
    shards(root, names)
    BaseWebdatasetFactory.prepare_dataset(
        root,
        ["parts/data-{0..5}.tar"],
        split_parts_ratio=[("train", 0.5), ("val", 0.34), ("test", 0.16)],
        workers=1,
    )
    form = {
        "sample_type": {"__module__": "megatron.energon", "__class__": "CaptioningSample"},
        "field_map": {"image": "jpg,png", "caption": "json[a][b][0]"},
        "subflavors": {"language": "en"},
    }
    (root / ".nv-meta/dataset.yaml").write_text(yaml.safe_dump(form))
    found: dict[str, Any] = {"captions": read(root)}
    found["decoded"] = {split: decoded(root, split) for split in found["captions"]}

    by_command = out / "crude"
    shards(by_command, ["b.tar", "a.tar", "sub/c.v1.tar"])
    options = ["--non-interactive", "--num-workers", "1", "--sample-type", "CrudeWebdataset"]
    options += ["--split-parts", "train:[ab].tar", "--split-parts", "val:sub/.*"]
    command.main([*options, str(by_command)], standalone_mode=False)
    about = yaml.safe_load((by_command / ".nv-meta/split.yaml").read_text())
    about["exclude"] = ["b.tar/00002", "a.tar/0000{4..6}", "sub/c.v1.tar/00009"]
    (by_command / ".nv-meta/split.yaml").write_text(yaml.safe_dump(about, sort_keys=False))
    found["crude"] = read(by_command)

    lines = out / "rows.jsonl"
    lines.write_text(
        "".join(
            json.dumps({"n": number, "text": "é" * number}) + "\n" + "\n" * (number % 2)
            for number in range(9)
        )
    )
    command.main(["--non-interactive", str(lines)], standalone_mode=False)
    reader = IJsonlReader(EPath(lines))
    rows: list[Any] = [reader[number] for number in range(len(reader))]
    found["rows"] = [
        {"__key__": row["__key__"], "__shard__": row["__shard__"], "json": json.loads(row["json"])}
        for row in rows
    ]
    (out / "found.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
