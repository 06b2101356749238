"""From a path and settings to a dataset: what is read, in which order, and what the task encoder
makes of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

from ...dataset import Dataset
from ...engine.graph.build import Builder
from ...errors import ConfigError
from ...inputs import mix
from .config import WorkerConfig, refuse
from .datasets import (
    Counts,
    SavableDataset,
    batched,
    block_of,
    dealt,
    limited,
    on_all_ranks,
    total,
    unique,
)
from .metadataset import Blend, Leaf, Tree, leaves, parse
from .reading import KEEP, Encoder, Order, Reading


def get_train_dataset(
    path: str | Path | Mapping[str, Any] | Dataset,
    *,
    batch_size: int | None,
    split_part: str = "train",
    worker_config: WorkerConfig | None = None,
    batch_drop_last: bool = False,
    packing_buffer_size: int | None = None,
    shuffle_buffer_size: int | None = None,
    max_samples_per_sequence: int | None = None,
    parallel_shard_iters: int | None = None,
    virtual_epoch_length: int = 0,
    shuffle_over_epochs_multiplier: int | None = 1,
    task_encoder: Encoder | None = None,
    repeat: bool = True,
    image_decode: Any = KEEP,
    dataset_config: str = "dataset.yaml",
    split_config: str | None = None,
    subflavors: Mapping[str, Any] | None = None,
    sample_type: type[Any] | None = None,
    sample_loader: Callable[[dict[str, Any]], Mapping[str, Any]] | None = None,
    **options: Any,
) -> SavableDataset:
    """Batches for training, without an end (`repeat=False`: one pass).

    `path` is a prepared folder, a prepared `.jsonl` file, a metadataset (a `.yaml` file or a
    mapping), or a dataset of the core.

    Every pass has a new order. Samples lie in files with random access, so it is a full shuffle as
    a rule, which mixes better than any buffer. `max_samples_per_sequence=m` keeps reading local:
    runs of `m` neighbours are shuffled among each other, and their samples within windows of
    `parallel_shard_iters` (16) runs, or as many as hold `shuffle_buffer_size` samples if that is
    more. `shuffle_over_epochs_multiplier=k` shuffles over `k` passes as one; `None` does not
    shuffle, but for a buffer of `shuffle_buffer_size`.

    `virtual_epoch_length` ends a `for` over the loader after so many batches of a rank. Images are
    decoded as `image_decode` says, else as the encoder's `decoder`. `sample_type` replaces the type
    that the folder names, `sample_loader` makes the fields from the decoded parts, in place of the
    folder's own code, which is never run.
    """
    config = worker_config or WorkerConfig()
    refuse("get_train_dataset", config.agreed(options))
    reading = Reading(task_encoder, image_decode, sample_type, sample_loader)
    base = Leaf(
        Path(),
        split_part,
        subflavors or {},
        dataset_config,
        split_config,
        shuffle_over_epochs_multiplier,
    )
    order = Order(shuffle_buffer_size, max_samples_per_sequence, parallel_shard_iters)
    train = _Train(reading, order, config.seed_offset, repeat)
    samples, once, name = train.samples(path, base)
    core = reading.encoder.build(
        samples.seed(config.seed_offset),
        batch_size=batch_size,
        drop_last=batch_drop_last,
        packing_buffer_size=packing_buffer_size,
        drops=True,
    )
    if virtual_epoch_length < 0:
        raise ConfigError(
            f"virtual_epoch_length={virtual_epoch_length}: a number of batches, 0 for none"
        )
    if virtual_epoch_length and not repeat:
        core = core.repeat()
    count = once if reading.one_to_one(packing_buffer_size) else None
    endless = repeat or bool(virtual_epoch_length)
    return SavableDataset(
        core,
        config,
        name=name,
        once=batched(count, batch_size, batch_drop_last),
        endless=endless,
        epoch_length=virtual_epoch_length or None,
    )


def get_val_dataset(
    path: str | Path | Mapping[str, Any] | Dataset,
    *,
    batch_size: int | None,
    split_part: str = "val",
    worker_config: WorkerConfig | None = None,
    limit: int | None = None,
    **options: Any,
) -> SavableDataset:
    """Batches for validation: every sample once, in the order of the data, datasets one after the
    other.

    Weights and repetitions of metadatasets do not count. `limit` is a number of batches of a rank.
    Other settings are those of `get_val_datasets`.
    """
    found = get_val_datasets(
        path,
        batch_size=batch_size,
        split_part=split_part,
        worker_config=worker_config,
        _joined=True,
        **options,
    )
    [(dataset, _)] = found
    if limit is None:
        return dataset
    items = on_all_ranks(limit, dataset.worker_config)
    once = None if dataset.once is None else limited(dataset.once, items)
    return SavableDataset(
        dataset.core.limit(items), dataset.worker_config, name=dataset.name, once=once
    )


def get_val_datasets(
    path: str | Path | Mapping[str, Any] | Dataset,
    *,
    batch_size: int | None,
    split_part: str = "val",
    worker_config: WorkerConfig | None = None,
    batch_drop_last: bool = False,
    packing_buffer_size: int | None = None,
    task_encoder: Encoder | None = None,
    image_decode: Any = KEEP,
    dataset_config: str = "dataset.yaml",
    split_config: str | None = None,
    subflavors: Mapping[str, Any] | None = None,
    sample_type: type[Any] | None = None,
    sample_loader: Callable[[dict[str, Any]], Mapping[str, Any]] | None = None,
    _joined: bool = False,
    **options: Any,
) -> list[tuple[SavableDataset, list[Leaf]]]:
    """A validation dataset for every dataset of a metadataset, each with what it was read from."""
    config = worker_config or WorkerConfig()
    refuse("get_val_dataset", config.agreed(options))
    reading = Reading(task_encoder, image_decode, sample_type, sample_loader)
    base = Leaf(Path(), split_part, subflavors or {}, dataset_config, split_config)
    if isinstance(path, Dataset):
        found = [(path, list[Leaf](), _leaf_name(path))]
    else:
        refs = leaves(parse(path, base))
        found = [(reading.leaf(ref), [ref], _name(ref)) for ref in refs]
    if _joined:
        first, *rest = (samples for samples, _, _ in found)
        found = [
            (
                first.concat(*rest) if rest else first,
                [ref for _, refs, _ in found for ref in refs],
                found[0][2],
            )
        ]
    out = list[tuple[SavableDataset, list[Leaf]]]()
    for samples, refs, name in found:
        core = reading.encoder.build(
            samples.seed(config.seed_offset),
            batch_size=batch_size,
            drop_last=batch_drop_last,
            packing_buffer_size=packing_buffer_size,
            drops=True,
        )
        count = _known(samples) if reading.one_to_one(packing_buffer_size) else None
        once = batched(count, batch_size, batch_drop_last)
        out.append((SavableDataset(core, config, name=name, once=once), refs))
    return out


class _Train:
    """A tree of references as samples in training order."""

    def __init__(self, reading: Reading, order: Order, seed: int, repeat: bool) -> None:
        self.reading, self.order, self.seed, self.repeat = reading, order, seed, repeat

    def samples(self, path: Any, base: Leaf) -> tuple[Dataset, Counts | None, str]:
        """The samples, how many one pass has, and a name."""
        if isinstance(path, Dataset):
            mine = self.order.over(path, base.multiplier)
            return (mine.repeat() if self.repeat else mine), _known(path), _leaf_name(path)
        tree = parse(path, base)
        samples, once = self._tree(tree)
        if self.repeat and not (isinstance(tree, Blend) and not tree.epochized):
            samples = samples.repeat()
        return samples, once, _name(tree)

    def _tree(self, tree: Tree) -> tuple[Dataset, Counts | None]:
        if isinstance(tree, Leaf):
            samples = self.reading.leaf(tree)
            return self.order.over(samples, tree.multiplier), _known(samples)
        parts = [(self._tree(part), share) for part, share in tree.parts]
        names = unique([_name(part) for part, _ in tree.parts])
        inputs = dict(zip(names, (samples for (samples, _), _ in parts), strict=True))
        shares = dict(zip(names, (share for _, share in parts), strict=True))
        if not tree.epochized:
            stop = "restart" if self.repeat else "all_exhausted"
            block = block_of(list(shares.values()))
            blended = mix(inputs, shares, seed=self.seed, block_size=block, stop=stop)
            return blended, total(once for (_, once), _ in parts)
        return self._epochized(tree, inputs, shares)

    def _epochized(
        self, tree: Blend, inputs: Mapping[str, Dataset], shares: Mapping[str, float]
    ) -> tuple[Dataset, Counts | None]:
        """Each input as often as its number says, exactly; all of them end together."""
        if any(isinstance(part, Blend) and not part.epochized for part, _ in tree.parts):
            raise ConfigError(
                f"{tree.where}: a blend has no end, so it cannot be repeated within blend_epochized"
            )
        if any(leaf.multiplier not in (1, None) for part, _ in tree.parts for leaf in leaves(part)):
            raise ConfigError(
                f"{tree.where}: shuffle_over_epochs_multiplier must be 1 or null within "
                "blend_epochized"
            )
        counts = {
            name: int(_exact(shares[name]) * len(samples)) for name, samples in inputs.items()
        }
        for name, count in counts.items():
            if not count:
                raise ConfigError(
                    f"{tree.where}: {shares[name]} repetitions of {name} are no sample at all"
                )
        return mix(inputs, counts, seed=self.seed, max_epochs=shares), dealt(sum(counts.values()))


def _name(tree: Tree) -> str:
    if isinstance(tree, Leaf):
        return tree.path.stem if tree.path.suffix == ".jsonl" else tree.path.absolute().name
    return "+".join(_name(part) for part, _ in tree.parts)


def _leaf_name(samples: Dataset) -> str:
    found = [leaf.name for leaf in Builder(samples.flow).leaves]
    return found[0] if len(found) == 1 else "dataset"


def _exact(share: float) -> Fraction:
    return Fraction(str(share))


def _known(samples: Dataset) -> Counts | None:
    try:
        return dealt(len(samples))
    except TypeError:
        return None
