"""A captioning loader with a task encoder: made, saved, and restored on other ranks and workers."""

import io
import json
import tarfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from penstock.compat import energon

folder = Path("captions")
(folder / ".nv-meta").mkdir(parents=True)
with tarfile.open(folder / "0.tar", "w") as archive:
    for i in range(60):
        picture = io.BytesIO()
        Image.new("RGB", (32, 24 + i % 8), (4 * i, 128, 255 - 4 * i)).save(picture, "jpeg")
        for part, data in (("jpg", picture.getvalue()), ("txt", b"shade %d" % i)):
            member = tarfile.TarInfo(f"{i:03d}.{part}")
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
# What `energon prepare` writes.
(folder / ".nv-meta/.info.json").write_text(json.dumps({"shard_counts": {"0.tar": 60}}))
(folder / ".nv-meta/split.yaml").write_text("split_parts: {train: [0.tar]}")
(folder / ".nv-meta/dataset.yaml").write_text(
    "sample_type: CaptioningSample\nfield_map: {image: jpg, caption: txt}"
)


@dataclass
class Batch:
    image: np.ndarray
    caption: list[str]


class Captions(energon.DefaultTaskEncoder):
    def encode_sample(self, sample: energon.CaptioningSample) -> energon.CaptioningSample:
        sample.image = sample.image[:, :: self.rng.choice([-1, 1])]  # a random flip of its own
        return sample


def loader(rank: int, world_size: int, workers: int):
    config = energon.WorkerConfig(rank, world_size, workers, lanes=2)
    encoder = Captions(batch_type=Batch)
    data = energon.get_train_dataset(
        folder, batch_size=4, worker_config=config, task_encoder=encoder, image_decode="rgb8"
    )
    return energon.get_savable_loader(data)


alone = iter(one := loader(0, 1, workers=0))
print("first batch", next(alone).image.shape, next(alone).caption)
state = json.dumps(one.save_state_rank())
with loader(0, 2, workers=1) as left, loader(1, 2, workers=2) as right:
    for rank in (left, right):
        rank.restore_state_global([json.loads(state)])
    for want, rank in zip(alone, [iter(left), iter(right)] * 3):  # noqa: B905 - alone never ends
        got = next(rank)
        assert got.caption == want.caption and (got.image == want.image).all()
print("two ranks go on with", got.caption)
