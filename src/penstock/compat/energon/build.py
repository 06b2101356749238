"""Build datasets from a path and settings: sources, order, task encoder."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from ...dataset import Dataset
from ...engine.steps.step import Builder
from ...errors import ConfigError
from ...inputs import mix
from .config import SampleDecoder, WorkerConfig, refuse
from .datasets import (
    Counts,
    SavableDataset,
    batched,
    block_of,
    limited,
    on_all_ranks,
    sharded_counts,
    total,
    unique,
)
from .encoder import overrides_build
from .metadataset import list_shares, load_datasets
from .order import Order
from .reading import KEEP, Encoder, Reading
from .references import Blend, DatasetReference, Join, Tree, list_leaves, parse, references


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
    allow: Collection[str] = (),
    **options: Any,
) -> SavableDataset[Any]:
    """Return batches for training, endless by default (`repeat=False`: one pass).

    Every pass has a new order. Files have random access, so the shuffle is full by default, which
    mixes better than any buffer. `max_samples_per_sequence=m` keeps reads local. Blocks of `m`
    neighbours are shuffled, and their samples within windows of `parallel_shard_iters` (16) blocks.
    A window has more blocks if `shuffle_buffer_size` samples need them.
    `shuffle_over_epochs_multiplier=k` shuffles over `k` passes as one; `None` disables the shuffle,
    except for a buffer of `shuffle_buffer_size`.

    Code and pickles of a dataset folder run only if `allow` names them; the error gives the name.

    Args:
        path: a prepared folder, a prepared `.jsonl` file, a metadataset (a `.yaml` file or a
            mapping), or a Penstock dataset.
        batch_size: samples per batch; None does not batch.
        split_part: name of the split.
        worker_config: ranks, threads, seed and error handling.
        batch_drop_last: whether to drop the last, short batch.
        packing_buffer_size: samples per buffer for pack selection.
        shuffle_buffer_size: see above.
        max_samples_per_sequence: see above.
        parallel_shard_iters: see above.
        virtual_epoch_length: batches of a rank after which a `for` over the loader ends; 0 for
            none.
        shuffle_over_epochs_multiplier: see above.
        task_encoder: turns samples into batches.
        repeat: whether passes follow each other without an end.
        image_decode: image format; by default as in the encoder's `decoder`.
        dataset_config: name of the file that describes the samples.
        split_config: name of the file that describes the splits.
        subflavors: labels of the samples.
        sample_type: replaces the type that the folder names.
        sample_loader: makes the fields from the decoded parts, in place of the folder's code.
        allow: names of code (`"sample_loader.py:fn"`, `"package.module.Class"`) and of pickles
            (`"pth"`, `"pickle"`) of the folders that may run.
        options: other settings of Energon; those without effect are accepted, others raise.

    Raises:
        ConfigError: for settings that are not supported or not valid.
    """
    config, options = (worker_config or WorkerConfig()).with_handler(options)
    decoder, options = _take_decoder(image_decode, options)
    refuse("get_train_dataset", options)
    reading = Reading(task_encoder, decoder, sample_type, sample_loader, allow)
    base = DatasetReference(
        Path(),
        split_part,
        subflavors or {},
        dataset_config,
        split_config,
        shuffle_over_epochs_multiplier,
    )
    order = Order(shuffle_buffer_size, max_samples_per_sequence, parallel_shard_iters)
    if overrides_build(reading.encoder) and not isinstance(path, Dataset):
        tree = parse(path, base)
        reading.with_stores(list_leaves(tree))
        loaded = load_datasets(
            tree,
            reading,
            True,
            worker_config=config,
            max_samples_per_sequence=max_samples_per_sequence,
            parallel_shard_iters=parallel_shard_iters,
        )
        encoder: Any = task_encoder
        return encoder.build_train_datasets(
            datasets=loaded.datasets,
            worker_config=config,
            batch_size=batch_size,
            batch_drop_last=batch_drop_last,
            packing_buffer_size=packing_buffer_size,
            virtual_epoch_length=virtual_epoch_length,
            shuffle_buffer_size=shuffle_buffer_size,
            blend_mode=loaded.blend_mode,
            repeat=repeat,
        )
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
            f"virtual_epoch_length={virtual_epoch_length}: give a number of batches, or 0 for none"
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
) -> SavableDataset[Any]:
    """Return batches for validation: every sample once, in the order of the data.

    Datasets of a metadataset are concatenated; its weights and repetitions are ignored.

    Args:
        path: as in `get_train_dataset`.
        batch_size: samples per batch; None does not batch.
        split_part: name of the split.
        worker_config: ranks, threads, seed and error handling.
        limit: number of batches of a rank.
        options: other settings of `get_val_datasets`.
    """
    datasets = get_val_datasets(
        path,
        batch_size=batch_size,
        split_part=split_part,
        worker_config=worker_config,
        limit=limit,
        _joined=True,
        **options,
    )
    [(dataset, _)] = datasets
    return dataset


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
    limit: int | None = None,
    allow: Collection[str] = (),
    _joined: bool = False,
    **options: Any,
) -> list[tuple[SavableDataset[Any], list[DatasetReference]]]:
    """Return a validation dataset for every dataset of a metadataset, with its reference.

    Args:
        path: as in `get_train_dataset`, like all other settings.
    """
    config, options = (worker_config or WorkerConfig()).with_handler(options)
    decoder, options = _take_decoder(image_decode, options)
    refuse("get_val_dataset", options)
    reading = Reading(task_encoder, decoder, sample_type, sample_loader, allow)
    base = DatasetReference(Path(), split_part, subflavors or {}, dataset_config, split_config)
    if isinstance(path, Dataset):
        inputs = [(path, list[DatasetReference](), _dataset_name(path))]
    else:
        leaves = list_leaves(parse(path, base))
        reading.with_stores(leaves)
        if overrides_build(task_encoder):
            return _build_val(
                task_encoder, leaves, reading, config, batch_size, batch_drop_last,
                packing_buffer_size, limit, _joined,
            )  # fmt: skip
        inputs = [(reading.open_samples(leaf), references(leaf), _name(leaf)) for leaf in leaves]
    if _joined:
        first, *rest = (samples for samples, _, _ in inputs)
        inputs = [
            (
                first.concat(*rest) if rest else first,
                [ref for _, refs, _ in inputs for ref in refs],
                inputs[0][2],
            )
        ]
    out = list[tuple[SavableDataset[Any], list[DatasetReference]]]()
    for samples, refs, name in inputs:
        core = reading.encoder.build(
            samples.seed(config.seed_offset),
            batch_size=batch_size,
            drop_last=batch_drop_last,
            packing_buffer_size=packing_buffer_size,
            drops=True,
        )
        count = _known(samples) if reading.one_to_one(packing_buffer_size) else None
        once = batched(count, batch_size, batch_drop_last)
        dataset: SavableDataset[Any] = SavableDataset(core, config, name=name, once=once)
        out.append((_limit(dataset, limit), refs))
    return out


def _limit(dataset: SavableDataset[Any], limit: int | None) -> SavableDataset[Any]:
    """Take the first batches of each rank."""
    if limit is None:
        return dataset
    items = on_all_ranks(limit, dataset.worker_config)
    once = None if dataset.once is None else limited(dataset.once, items)
    return SavableDataset(
        dataset.core.limit(items), dataset.worker_config, name=dataset.name, once=once
    )


def _build_val(
    encoder: Any,
    parts: Sequence[DatasetReference | Join],
    reading: Reading,
    config: WorkerConfig,
    batch_size: int | None,
    batch_drop_last: bool,
    packing_buffer_size: int | None,
    limit: int | None,
    joined: bool,
) -> list[tuple[SavableDataset[Any], list[DatasetReference]]]:
    """Let the encoder build the datasets: all as one, or each by itself."""
    groups = [list(parts)] if joined else [[part] for part in parts]
    out = list[tuple[SavableDataset[Any], list[DatasetReference]]]()
    for group in groups:
        loaded = [
            entry
            for leaf in group
            for entry in load_datasets(leaf, reading, False, worker_config=config).datasets
        ]
        dataset = encoder.build_val_datasets(
            datasets=loaded,
            worker_config=config,
            batch_size=batch_size,
            batch_drop_last=batch_drop_last,
            packing_buffer_size=packing_buffer_size,
            limit=limit,
        )
        out.append((dataset, [ref for leaf in group for ref in references(leaf)]))
    return out


def _take_decoder(image_decode: Any, options: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Return the decoder that the settings of older releases describe, and the other settings."""
    named = ("av_decode", "video_decode_audio", "auto_decode")
    others = {name: value for name, value in options.items() if name not in named}
    if options.get("auto_decode", True) is False:
        return None, others
    settings = {name: options[name] for name in named[:2] if options.get(name) is not None}
    if image_decode is KEEP and not settings:
        return KEEP, others
    images = "torchrgb" if image_decode is KEEP else image_decode
    return SampleDecoder(image_decode=images, **settings), others


class _Train:
    """Build samples in training order from a tree of references."""

    def __init__(self, reading: Reading, order: Order, seed: int, repeat: bool) -> None:
        self.reading, self.order, self.seed, self.repeat = reading, order, seed, repeat

    def samples(self, path: Any, base: DatasetReference) -> tuple[Dataset, Counts | None, str]:
        """Return the samples, the number per pass, and a name."""
        if isinstance(path, Dataset):
            ordered = self.order.apply(path, base.multiplier)
            return (ordered.repeat() if self.repeat else ordered), _known(path), _dataset_name(path)
        tree = parse(path, base)
        self.reading.with_stores(list_leaves(tree))
        samples, once = self._tree(tree)
        if self.repeat and not isinstance(tree, Blend):
            samples = samples.repeat()
        return samples, once, _name(tree)

    def _tree(self, tree: Tree) -> tuple[Dataset, Counts | None]:
        if not isinstance(tree, Blend):
            samples = self.reading.open_samples(tree)
            base = tree.base if isinstance(tree, Join) else tree
            return self.order.apply(samples, base.multiplier), _known(samples)
        if tree.epochized:
            return self._epochized(tree)
        parts = [(self._tree(part), share) for part, share in tree.parts]
        names = unique([_name(part) for part, _ in tree.parts])
        inputs = dict(zip(names, (samples for (samples, _), _ in parts), strict=True))
        shares = dict(zip(names, (share for _, share in parts), strict=True))
        stop = "restart" if self.repeat else "all_exhausted"
        block = block_of(list(shares.values()))
        blended = mix(inputs, shares, seed=self.seed, block_size=block, stop=stop)
        return blended, total(once for (_, once), _ in parts)

    def _epochized(self, tree: Blend) -> tuple[Dataset, Counts | None]:
        """Mix datasets with exact repetitions, which multiply along nested blends.

        All end together. The next pass of the blend draws each dataset from where it stopped.
        """
        shares = list_shares(tree)
        if any(
            reference.multiplier not in (1, None)
            for leaf, _ in shares
            for reference in references(leaf)
        ):
            raise ConfigError(
                f"{tree.location}: shuffle_over_epochs_multiplier must be 1 or null within "
                "blend_epochized"
            )
        names = unique([_name(leaf) for leaf, _ in shares])
        inputs = {name: self._tree(leaf)[0] for name, (leaf, _) in zip(names, shares, strict=True)}
        repetitions: dict[str, Any] = {
            name: share for name, (_, share) in zip(names, shares, strict=True)
        }
        counts = {name: int(repetitions[name] * len(samples)) for name, samples in inputs.items()}
        for name, count in counts.items():
            if not count:
                raise ConfigError(
                    f"{tree.location}: {float(repetitions[name])} repetitions of {name} round to 0 "
                    "samples: give a larger number"
                )
        once = sharded_counts(sum(counts.values()))
        if self.repeat:
            return mix(inputs, counts, seed=self.seed, stop="restart"), once
        return mix(inputs, counts, seed=self.seed, max_epochs=repetitions), once


def _name(tree: Tree) -> str:
    if isinstance(tree, Join):
        return "+".join(_name(part.reference) for part in tree.parts)
    if isinstance(tree, DatasetReference):
        return tree.path.stem if tree.path.suffix == ".jsonl" else tree.path.absolute().name
    return "+".join(_name(part) for part, _ in tree.parts)


def _dataset_name(samples: Dataset) -> str:
    names = [leaf.name for leaf in Builder(samples.tree).leaves]
    return names[0] if len(names) == 1 else "dataset"


def _known(samples: Dataset) -> Counts | None:
    try:
        return sharded_counts(len(samples))
    except TypeError:
        return None
