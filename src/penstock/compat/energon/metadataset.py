"""Metadatasets as objects: their datasets, a flat list of them, and their preparation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

from ...errors import ConfigError
from .config import WorkerConfig
from .encoder import DatasetBlendMode, LoadedDataset, LoadedDatasetList
from .joins import match_keys
from .reading import Reading
from .references import Blend, DatasetReference, Join, Tree, list_leaves, parse, references


@dataclass
class TraversedDatasetReference:
    """A dataset that a metadataset names.

    Args:
        path: its path.
        split_part: its split.
        aux: paths of its auxiliary files, by name.
        subflavors: its labels.
    """

    path: Path
    split_part: str
    aux: dict[str, str]
    subflavors: dict[str, Any]


class DatasetLoaderInterface:
    """A dataset or metadataset, opened by its path.

    Args:
        path: a prepared folder, a `.jsonl` file, a `.yaml` file, or a mapping.
        options: settings of a `DatasetReference`.
    """

    def __init__(self, path: Any, **options: Any) -> None:
        self.path, self._options = path, options

    def _parse(self, split_part: str | None, **settings: Any) -> Tree:
        settings = {
            name: value
            for name, value in {**self._options, **settings}.items()
            if value is not None
        }
        split = self._options.get("split_part") or split_part or "train"
        return parse(
            self.path, replace(DatasetReference(Path(), split), **{**settings, "split_part": split})
        )

    def post_initialize(self, mds_path: Any = None) -> None:
        """Do nothing: files are read when the datasets are asked for.

        Args:
            mds_path: not used.
        """

    def prepare(self, split_part: str | None = None) -> Sequence[Path]:
        """Check the joins; their index is computed when they are opened, so nothing is written.

        Args:
            split_part: name of the split.

        Returns:
            No paths.

        Raises:
            DataError: for a key that a dataset of a join lacks, unless it may.
        """
        for leaf in list_leaves(self._parse(split_part)):
            if isinstance(leaf, Join):
                match_keys(leaf)
        return ()

    def traverse(self, mds_path: Any = None, *, split_part: str) -> list[TraversedDatasetReference]:
        """Return all datasets as a flat list, without opening them.

        Args:
            mds_path: not used.
            split_part: name of the split.

        Raises:
            ConfigError: for a join.
        """
        leaves = list_leaves(self._parse(split_part))
        if any(isinstance(leaf, Join) for leaf in leaves):
            raise ConfigError("traverse: a join has no flat list of datasets")
        return [
            TraversedDatasetReference(
                reference.path,
                reference.split_part,
                dict(reference.aux),
                dict(reference.subflavors),
            )
            for leaf in leaves
            for reference in references(leaf)
        ]

    def get_datasets(
        self,
        *,
        training: bool,
        split_part: str,
        worker_config: WorkerConfig | None = None,
        subflavors: Mapping[str, Any] | None = None,
        shuffle_over_epochs_multiplier: int | None = 1,
        subset: Any = None,
        allow: Sequence[str] = (),
        decoder: Any = None,
        **options: Any,
    ) -> LoadedDatasetList:
        """Return the factories of all datasets with their weights or repetitions.

        Args:
            training: whether to shuffle.
            split_part: name of the split.
            worker_config: ranks, threads, seed and error handling.
            subflavors: labels, which override those of the datasets.
            shuffle_over_epochs_multiplier: passes that are shuffled as one.
            subset: not supported: name it in the metadataset.
            allow: names of code and pickles that may run.
            decoder: decoder of the parts; None leaves bytes.
            options: settings of the factories.

        Returns:
            The factories.

        Raises:
            ConfigError: for a subset, or a blend and an epochized blend in one tree.
        """
        if subset is not None:
            raise ConfigError("get_datasets(subset=): name the subset in the metadataset")
        tree = self._parse(
            split_part, subflavors=subflavors or {}, multiplier=shuffle_over_epochs_multiplier
        )
        reading = Reading(None, None, None, None, allow)
        reading.decode = decoder
        return load_datasets(tree, reading, training, worker_config=worker_config, **options)


class DatasetLoader(DatasetLoaderInterface):
    """One dataset, opened by its path.

    Args:
        path: a prepared folder or a `.jsonl` file.
        split_part: name of the split.
        subflavors: labels of the samples.
        shuffle_over_epochs_multiplier: passes that are shuffled as one.
        dataset_config: name of the file that describes the samples.
        split_config: name of the file that describes the splits.
    """

    def __init__(
        self,
        *,
        path: Any,
        split_part: str | None = None,
        subflavors: Mapping[str, Any] | None = None,
        shuffle_over_epochs_multiplier: int | None = 1,
        dataset_config: str | None = None,
        split_config: str | None = None,
    ) -> None:
        super().__init__(
            path,
            split_part=split_part,
            subflavors=subflavors,
            dataset_config=dataset_config,
            split_config=split_config,
        )
        self.split_part, self.subflavors = split_part, subflavors
        self.shuffle_over_epochs_multiplier = shuffle_over_epochs_multiplier
        self.dataset_config, self.split_config = dataset_config, split_config

    def get_dataset(self, *, training: bool, split_part: str | None = None, **options: Any) -> Any:
        """Return the factory of the dataset.

        Args:
            training: whether to shuffle.
            split_part: name of the split.
            options: settings of `get_datasets`.
        """
        [loaded] = self.get_datasets(
            training=training, split_part=split_part or "train", **options
        ).datasets
        return loaded.dataset


class Metadataset(DatasetLoaderInterface):
    """A metadataset of the first format.

    Args:
        path: its `.yaml` file, to which its paths are relative.
        splits: its splits.
    """

    kind = "Metadataset"

    def __init__(self, path: Any = None, splits: Mapping[str, Any] | None = None) -> None:
        content = None if splits is None else {"__class__": self.kind, "splits": splits}
        super().__init__(path if content is None else content)


class MetadatasetV2(Metadataset):
    """A metadataset of the second format.

    Args:
        path: its `.yaml` file, to which its paths are relative.
        splits: its splits.
    """

    kind = "MetadatasetV2"


def load_dataset(path: Any, **options: Any) -> DatasetLoaderInterface:
    """Open a dataset or metadataset.

    Args:
        path: a prepared folder, a `.jsonl` file, a `.yaml` file, or a mapping.
        options: settings of a `DatasetLoader`.

    Returns:
        The dataset or metadataset.
    """
    if isinstance(path, Mapping) or str(path).endswith((".yaml", ".yml")):
        return DatasetLoaderInterface(path)
    return DatasetLoader(path=path, **options)


def prepare_metadataset(path: Any) -> None:
    """Check the joins of all splits of a metadataset; nothing is written.

    Args:
        path: its `.yaml` file.
    """
    from ...sources import meta

    location = Path(str(path))
    content = meta.require_mapping(meta.read(location), location)
    for split in meta.require_mapping(content.get("splits"), location, "splits"):
        load_dataset(location).prepare(split_part=split)


def traverse_metadataset(path: Any, *, split_part: str, **options: Any) -> list[Any]:
    """Return all datasets of a metadataset as a flat list, without opening them.

    Args:
        path: its `.yaml` file.
        split_part: name of the split.
        options: not used.
    """
    return load_dataset(path).traverse(split_part=split_part)


def load_datasets(
    tree: Tree, reading: Reading, training: bool, **options: Any
) -> LoadedDatasetList:
    """Return the factories of the datasets of a tree.

    Weights and repetitions are multiplied along the tree; weights are shares of their blend.

    Raises:
        ConfigError: for a blend and an epochized blend in one tree.
    """
    leaves = list_shares(tree)
    mode = DatasetBlendMode.NONE
    if isinstance(tree, Blend):
        mode = (
            DatasetBlendMode.SAMPLE_REPETITIONS
            if tree.epochized
            else DatasetBlendMode.DATASET_WEIGHT
        )
    datasets = list[LoadedDataset]()
    for leaf, share in leaves:
        number = int(share) if share == int(share) else float(share)
        loaded = LoadedDataset(dataset=reading.make_factory(leaf, training, **options))
        if mode is DatasetBlendMode.DATASET_WEIGHT:
            loaded.weight = float(share)
        elif mode is DatasetBlendMode.SAMPLE_REPETITIONS:
            loaded.repetitions = number
        if isinstance(leaf, DatasetReference) and leaf.aux:
            loaded.aux = reading.open_stores(leaf)
        datasets.append(loaded)
    return LoadedDatasetList(datasets=datasets, blend_mode=mode)


def list_shares(tree: Tree) -> list[tuple[DatasetReference | Join, Fraction]]:
    """Return the datasets of a tree with the product of their weights or repetitions.

    Raises:
        ConfigError: for a blend and an epochized blend in one tree.
    """
    if not isinstance(tree, Blend):
        return [(tree, Fraction(1))]
    total = (
        Fraction(1)
        if tree.epochized
        else sum((Fraction(str(share)) for _, share in tree.parts), Fraction())
    )
    leaves = list[tuple[DatasetReference | Join, Fraction]]()
    for part, share in tree.parts:
        if isinstance(part, Blend) and part.epochized != tree.epochized:
            raise ConfigError(
                f"{tree.location}: a blend is endless, so blend_epochized cannot be mixed with it: "
                "use one of them throughout"
            )
        own = Fraction(str(share)) / total
        leaves += [(leaf, own * inner) for leaf, inner in list_shares(part)]
    return leaves
