"""Examples of Energon's pages, on data that Energon prepared, also on several ranks."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import penstock as ps
from energon_folders import captions, folder
from penstock.compat.energon import (
    BlendDataset,
    CaptioningSample,
    ConcatDataset,
    DefaultTaskEncoder,
    EpochizeDataset,
    MapDataset,
    MixBatchDataset,
    TextSample,
    WorkerConfig,
    batch_list,
    batch_stack,
    concat_pad,
    get_loader,
    get_savable_loader,
    get_train_dataset,
    get_val_dataset,
    homogeneous_concat_mix,
)

HERE = Path(__file__).parent


@dataclass
class RawCaptions:
    __key__: list[str]
    image: torch.Tensor
    caption: list[str]


@dataclass
class Captions:
    __keys__: list[str]
    images: torch.Tensor
    text: torch.Tensor
    weight: float


@dataclass
class Images:
    __key__: list[str]
    image: torch.Tensor


@dataclass
class Mixed:
    images: torch.Tensor
    captions: list[list[str] | None]


def tokens(texts: list[str]) -> torch.Tensor:
    return torch.tensor([[len(text), ord(text[-1])] for text in texts])


class Captioning(DefaultTaskEncoder[CaptioningSample, CaptioningSample, RawCaptions, Captions]):
    """Batches by hand, text tokenized by the batch, a weight for the loss."""

    def __init__(self, weight: float = 1) -> None:
        super().__init__(batch_type=RawCaptions)
        self.weight = weight

    def batch(self, samples: list[CaptioningSample]) -> RawCaptions:
        return self._batch(
            samples, result_type=RawCaptions, actions={"image": batch_stack, "caption": batch_list}
        )

    def encode_sample(self, sample: CaptioningSample) -> CaptioningSample:
        sample.image = sample.image[:, :4, :4]
        return sample

    def encode_batch(self, batch: RawCaptions) -> Captions:
        return Captions(batch.__key__, batch.image, tokens(batch.caption), self.weight)


class Defaults(DefaultTaskEncoder[CaptioningSample, CaptioningSample, RawCaptions, Captions]):
    """An encoder of captions that uses the default batching."""

    def __init__(self) -> None:
        super().__init__(batch_type=RawCaptions)

    def encode_batch(self, batch: RawCaptions) -> Captions:
        assert type(batch) is RawCaptions
        return Captions(batch.__key__, batch.image, tokens(batch.caption), 1)


class ImageTask(DefaultTaskEncoder[Any, Any, Images, Images]):
    def __init__(self) -> None:
        super().__init__(batch_type=Images)


class Texts(DefaultTaskEncoder[Any, Any, Any, Any]):
    """As in energon_ranks.py: states know an encoder by its name."""

    def batch(self, samples: list[Any]) -> list[str]:
        return [sample.text for sample in samples]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("pages")
    fields = {"image": "jpg,png", "caption": "txt"}
    for name in ("one", "two"):
        splits = {"train": captions(0, 30), "val": captions(50, 6)}
        folder(root / name, splits, "CaptioningSample", fields, subflavors={"of": name})
    splits = {"train": captions(0, 30), "val": captions(50, 6)}
    folder(root / "images", splits, "ImageSample", {"image": "png"})
    return root


def train(path: Path, encoder: Any, batch_size: int = 4) -> Any:
    order: dict[str, Any] = {"shuffle_buffer_size": 100, "max_samples_per_sequence": 100}
    return get_train_dataset(path, batch_size=batch_size, task_encoder=encoder, **order)


def test_captioning_by_hand_and_by_default(data: Path) -> None:
    for encoder in (Captioning(), Defaults()):
        loader = get_loader(
            get_train_dataset(
                data / "one",
                batch_size=8,
                shuffle_buffer_size=100,
                max_samples_per_sequence=100,
                task_encoder=encoder,
                image_decode="torchrgb",
            )
        )
        for batch in islice(loader, 8):
            assert (
                type(batch) is Captions and len(batch.__keys__) == 8 and batch.text.shape == (8, 2)
            )
            assert batch.images.dtype is torch.float32 and batch.images.shape[:3] == (8, 3, 4)


def test_blending_batches_of_two_types(data: Path) -> None:
    loader = get_loader(
        BlendDataset(
            (train(data / "images", ImageTask()), 0.6), (train(data / "one", Defaults()), 0.4)
        )
    )
    assert Counter(type(batch) for batch in islice(loader, 50)) == {Images: 30, Captions: 20}
    val = get_loader(
        ConcatDataset(
            get_val_dataset(data / "images", batch_size=4, task_encoder=ImageTask()),
            get_val_dataset(data / "one", batch_size=4, task_encoder=Defaults()),
        )
    )
    assert [type(batch) for batch in val] == [Images, Images, Captions, Captions]


def test_batches_mixed_of_one_type(data: Path) -> None:
    mixed = MixBatchDataset(
        (train(data / "one", Captioning(0.2), 1), 6),
        (train(data / "two", Captioning(0.8), 1), 4),
        batch_size=10,
        batch_mix_fn=homogeneous_concat_mix,
    )
    for batch in islice(get_loader(mixed), 12):
        assert type(batch) is Captions and batch.images.shape[0] == 10
        assert all(isinstance(key, str) for key in batch.__keys__) and len(batch.__keys__) == 10
        # The weight of each sample in the loss.
        weights: Any = batch.weight
        assert Counter(weights) == {0.2: 6, 0.8: 4}
    epochs = get_loader(
        MapDataset(EpochizeDataset(mixed, num_epochs=2), map_fn=lambda batch: len(batch.__keys__))
    )
    assert list(epochs) == list(epochs) == [10] * 12


def test_batches_mixed_of_two_types(data: Path) -> None:
    def mix(batches: list[Any]) -> Mixed:
        images = concat_pad(
            [batch.image if isinstance(batch, Images) else batch.images for batch in batches]
        )
        return Mixed(
            images, [None if isinstance(batch, Images) else batch.__keys__ for batch in batches]
        )

    parts = (train(data / "images", ImageTask(), 1), 6), (train(data / "one", Defaults(), 1), 4)
    for batch in islice(get_loader(MixBatchDataset(*parts, batch_size=10, batch_mix_fn=mix)), 6):
        assert batch.images.shape[:2] == (10, 3) and batch.captions.count(None) == 6


def test_weights_of_samples_in_the_loss(data: Path) -> None:
    parts = (train(data / "one", Captioning(0.2)), 0.5), (train(data / "two", Captioning(0.8)), 0.5)
    scale = torch.ones(1, requires_grad=True)
    seen = Counter[float]()
    for batch in islice(get_loader(BlendDataset(*parts)), 20):
        loss = (batch.images.mean() * scale).sum() * batch.weight
        loss.backward()
        seen[batch.weight] += 1
    assert seen == {0.2: 10, 0.8: 10} and scale.grad is not None and float(scale.grad) > 0


@pytest.mark.slow  # a process that prepares data
def test_data_prepared_by_energon_is_read_with_equal_samples(tmp_path: Path) -> None:
    script = HERE.parent / "sources/energon_prepares.py"
    subprocess.run(
        [sys.executable, str(script), str(tmp_path)], check=True, capture_output=True, timeout=600
    )
    found = json.loads((tmp_path / "found.json").read_text())
    for split, want in found["decoded"].items():
        loader = get_loader(
            get_val_dataset(tmp_path / "captions", split_part=split, batch_size=None)
        )
        mine = [
            [
                s.__key__,
                s.caption,
                hashlib.sha256(np.ascontiguousarray(s.image.numpy()).tobytes()).hexdigest(),
                s.__subflavors__,
            ]
            for s in loader
        ]
        assert sorted(mine, key=str) == sorted(want, key=str) and len(mine) == len(want) > 0


@pytest.mark.slow  # ranks of torch.distributed
def test_states_of_all_ranks_together_under_torch_distributed(tmp_path: Path) -> None:
    command = [sys.executable, str(HERE / "energon_ranks.py")]
    ranks = [
        subprocess.Popen(
            [*command, str(rank), str(tmp_path / "meeting")],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    said = [rank.communicate(timeout=600) for rank in ranks]
    assert all(rank.returncode == 0 for rank in ranks), said
    first, second = (json.loads(out.splitlines()[-1]) for out, _ in said)
    assert first["state"] is None and len(second["state"]) == 2
    assert not {text for batch in first["first"] for text in batch} & {
        text for batch in second["first"] for text in batch
    }
    # One rank goes on with what two saved.
    samples = ps.from_sequence(
        [TextSample(__key__=str(i), text=str(i)) for i in range(40)], name="texts"
    )
    dataset = get_train_dataset(
        samples, batch_size=3, task_encoder=Texts(), worker_config=WorkerConfig(0, 1)
    )
    alone = get_savable_loader(dataset)
    with pytest.raises(ps.ConfigError, match="torch.distributed"):
        get_savable_loader(
            get_train_dataset(samples, batch_size=3, worker_config=WorkerConfig(0, 2))
        ).save_state_global()
    alone.restore_state_global(second["state"])
    want = [batch for pair in zip(first["rest"], second["rest"], strict=True) for batch in pair]
    assert list(islice(alone, 8)) == want
