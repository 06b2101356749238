"""Blending batches, mixing within batches, and a weight for every sample in the loss."""

import io
import json
import tarfile
from collections import Counter
from pathlib import Path

from PIL import Image

from penstock.compat import energon


def prepare(folder: Path, samples: int, red: int) -> Path:
    """A folder as `energon prepare` leaves it."""
    (meta := folder / ".nv-meta").mkdir(parents=True)
    with tarfile.open(folder / "0.tar", "w") as archive:
        for i in range(samples):
            Image.new("RGB", (8, 8 + i % 3), (red, i % 256, 0)).save(picture := io.BytesIO(), "png")
            for part, data in (("png", picture.getvalue()), ("txt", f"{folder.name} {i}".encode())):
                member = tarfile.TarInfo(f"{i:04d}.{part}")
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))
    (meta / ".info.json").write_text(json.dumps({"shard_counts": {"0.tar": samples}}))
    (meta / "split.yaml").write_text("split_parts: {train: [0.tar]}")
    (meta / "dataset.yaml").write_text(
        "sample_type: CaptioningSample\nfield_map: {image: png, caption: txt}"
    )
    return folder


class Weighted(energon.DefaultTaskEncoder):
    """Batches that know what their samples weigh in the loss."""

    def __init__(self, weight: float):
        super().__init__()
        self.weight = weight

    def encode_batch(self, batch):
        return {"images": batch.image, "captions": batch.caption, "weight": self.weight}


def train(folder: Path, batch_size: int, encoder: energon.TaskEncoder):
    settings = {
        "shuffle_buffer_size": 100,
        "max_samples_per_sequence": 100,
        "task_encoder": encoder,
    }
    return energon.get_train_dataset(folder, batch_size=batch_size, **settings)


cats, dogs = prepare(Path("blend/cats"), 90, red=200), prepare(Path("blend/dogs"), 60, red=100)

# 60 % of the batches are cats, 40 % dogs: exact, in random order.
blend = energon.BlendDataset(
    (train(cats, 8, Weighted(0.2)), 0.6), (train(dogs, 8, Weighted(0.8)), 0.4)
)
with energon.get_loader(blend) as loader:
    batches = [batch for batch, _ in zip(loader, range(50), strict=False)]
print("batches", dict(Counter(batch["captions"][0][:4] for batch in batches)))
print("loss", round(sum(float(batch["images"].mean()) * batch["weight"] for batch in batches), 2))

# 60 % of the samples of every batch.
parts = [
    (train(folder, 1, energon.DefaultTaskEncoder()), weight)
    for folder, weight in ((cats, 6), (dogs, 4))
]
mixed = energon.MixBatchDataset(*parts, batch_size=10, batch_mix_fn=energon.homogeneous_concat_mix)
with energon.get_loader(mixed) as loader:
    batch = next(iter(loader))
print("one batch", batch.image.shape, dict(Counter(caption[:4] for caption in batch.caption)))
