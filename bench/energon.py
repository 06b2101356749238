"""Compare Energon with Penstock's compatibility package, on the captioning loader of its pages.

    python bench/energon.py            # a table
    python bench/energon.py --json     # one JSON object

Both sides read one folder, prepared by Energon, of tars with JPEG files and captions. They run
without workers, and with the same task encoder: decode, crop, stack, and tokenize captions. The
sides alternate. Each figure is the median over the rounds of the CPU time of the process per
sample; a first batch and a first round are not counted. Trainers read pictures of 224 pixels; those
of 32 pixels show the cost of the library itself.
"""

from __future__ import annotations

import argparse
import io
import json
import sys
import tarfile
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from PIL import Image

import penstock.compat.energon as penstock_energon

WANTED = 1.0
SAMPLES, SHARD, BATCH, BATCHES = 1_000, 250, 32, 20
FORM = """\
sample_type: {__module__: megatron.energon, __class__: CaptioningSample}
field_map: {image: jpg, caption: txt}
"""


@dataclass
class Captions:
    """Batch that the encoder returns."""

    keys: list[str]
    images: torch.Tensor
    tokens: torch.Tensor


def prepared(root: Path, pixels: int) -> Path:
    """A folder of tars, as Energon prepares it."""
    from megatron.energon.flavors import BaseWebdatasetFactory

    rng = np.random.default_rng(0)
    for shard in range(SAMPLES // SHARD):
        with tarfile.open(root / f"shard-{shard}.tar", "w") as archive:
            for number in range(shard * SHARD, (shard + 1) * SHARD):
                smooth = Image.fromarray(rng.integers(0, 255, (8, 8, 3), np.uint8)).resize(
                    (pixels, pixels)
                )
                file = io.BytesIO()
                smooth.save(file, "JPEG")
                for name, data in (
                    ("jpg", file.getvalue()),
                    ("txt", f"picture number {number}".encode()),
                ):
                    member = tarfile.TarInfo(f"{number:06d}.{name}")
                    member.size = len(data)
                    archive.addfile(member, io.BytesIO(data))
    names = [f"shard-{shard}.tar" for shard in range(SAMPLES // SHARD)]
    BaseWebdatasetFactory.prepare_dataset(root, names, split_parts_ratio=[("train", 1.0)])
    (root / ".nv-meta" / "dataset.yaml").write_text(FORM)
    return root


def loader(api: Any, root: Path) -> Iterator[Any]:
    """An endless loader of `Captions`."""

    class Captioning(api.DefaultTaskEncoder):
        def encode_sample(self, sample: Any) -> Any:
            sample.image = sample.image[:, 4:-4, 4:-4]
            return sample

        def batch(self, samples: list[Any]) -> Any:
            images = api.batch_stack([sample.image for sample in samples])
            tokens = [
                torch.frombuffer(bytearray(sample.caption.encode()), dtype=torch.uint8)
                for sample in samples
            ]
            return Captions(
                [sample.__key__ for sample in samples], images, api.batch_pad_stack(tokens)
            )

    dataset = api.get_train_dataset(
        root,
        batch_size=BATCH,
        shuffle_buffer_size=100,
        max_samples_per_sequence=100,
        task_encoder=Captioning(),
        worker_config=api.WorkerConfig(rank=0, world_size=1, num_workers=0),
    )
    return iter(api.get_savable_loader(dataset))


def cost(api: Any, root: Path) -> float:
    """Seconds of CPU time for a sample."""
    batches = loader(api, root)
    next(batches)
    began = time.process_time()
    done = sum(len(batch.keys) for batch in islice(batches, BATCHES))
    took = time.process_time() - began
    assert done == BATCH * BATCHES, f"{done} samples instead of {BATCH * BATCHES}"
    return took / done


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    here = str(Path(__file__).resolve().parent)
    sys.path[:] = [
        folder for folder in sys.path if folder != here
    ]  # where this file would be taken for Energon
    torch.set_num_threads(1)
    found = dict[str, dict[str, float]]()
    with warnings.catch_warnings(), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        import megatron.energon as energon

        for pixels in (224, 32):
            with tempfile.TemporaryDirectory() as folder:
                root = prepared(Path(folder), pixels)
                pairs = [
                    (cost(energon, root), cost(penstock_energon, root))
                    for _ in range(options.rounds + 1)
                ][1:]
            ratios = [theirs / ours for theirs, ours in pairs]
            found[f"{pixels} x {pixels}"] = {
                "energon_us": 1e6 * median(theirs for theirs, _ in pairs),
                "penstock_us": 1e6 * median(ours for _, ours in pairs),
                "ratio": median(ratios),
                "least": min(ratios),
                "most": max(ratios),
            }
    if options.json:
        print(json.dumps(found))
        return
    print(f"{'':12}{'Energon us':>12}{'ours us':>10}{'ratio':>9}{'range':>16}")
    for name, row in found.items():
        print(
            f"{name:12}{row['energon_us']:12.1f}{row['penstock_us']:10.1f}{row['ratio']:9.2f}"
            f"{row['least']:10.2f}-{row['most']:.2f}"
        )
    if any(row["ratio"] < WANTED for row in found.values()):
        sys.exit("below what is wanted")


if __name__ == "__main__":
    main()
