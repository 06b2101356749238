"""transformers: its Trainer, and TRL's, trains on a loader and resumes it exactly.

The trainer's own checkpoints store the states of all ranks.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any, cast

from ..arguments import make_not_dataset_error
from ..dataset import Dataset as Samples
from ..engine.runtime.run_options import RunOptions
from ..engine.runtime.session import Session
from ..errors import DataError, StateError, make_missing_extra_error
from ..loader import Loader
from ..stores.storage import write_atomically
from .trainers import (
    EvalLoader,
    gather_states,
    iter_rest_or_next,
    require_loader,
    require_ranks,
)

try:
    import torch
    from torch import Generator
    from torch.utils.data import BatchSampler, DataLoader, Dataset, Sampler
    from transformers import TrainerCallback
    from transformers.trainer_utils import get_last_checkpoint  # pyright: ignore[reportUnknownVariableType]
except ImportError as error:
    raise make_missing_extra_error(
        error.name or "transformers", "trainers", "penstock.integrations.transformers"
    ) from None

_torch = cast("Any", torch)  # without torch the checker knows none of its types
_Trainer = cast(Any, object)  # a mixin: the Trainer is another base of the subclass

FILE = "penstock.json"
"""Name of the file in a checkpoint folder that stores the states of all ranks."""


class FromLoader(_Trainer):
    """Mixin that makes a Trainer train and evaluate on loaders.

    Usage: `class MyTrainer(FromLoader, Trainer): ...`. Only the loader shards and batches.
    `train(resume_from_checkpoint=...)` continues after the last step of the checkpoint and reads no
    trained data again. Any number of processes with the same global batch can resume.

    Args:
        args: arguments of the Trainer.
        train_loader: yields batches as the model takes them, tensors on the CPU. A loader passed as
            `train_dataset=` is equivalent.
        eval_loader: yields the batches of an evaluation, a whole pass each time; or a mapping of
            loaders by name. Loaders passed as `eval_dataset=`, here or to `evaluate`, or to
            `predict`, are equivalent.
        kwargs: arguments of the Trainer.

    Raises:
        ConfigError: for loaders made before the ranks were known, for endless evaluations, and for
            objects that are no loaders.

    >>> import penstock as ps
    >>> from transformers import Trainer
    >>> class MyTrainer(FromLoader, Trainer): ...
    >>> loader = ps.Loader(batches, to="torch")  # doctest: +SKIP
    >>> trainer = MyTrainer(model, args, train_loader=loader)  # doctest: +SKIP
    >>> trainer.train()  # after a restart: resume_from_checkpoint=True  # doctest: +SKIP
    """

    def __init__(
        self,
        *args: Any,
        train_loader: Loader | None = None,
        eval_loader: Loader | Mapping[str, Loader] | None = None,
        **kwargs: Any,
    ) -> None:
        if isinstance(kwargs.get("train_dataset"), Loader):
            train_loader = kwargs.pop("train_dataset")
        data = kwargs.get("eval_dataset") if eval_loader is None else eval_loader
        if eval_loader is not None and not isinstance(eval_loader, Mapping | EvalLoader):
            require_loader(eval_loader, "eval_loader")
        for name, part in eval_loader.items() if isinstance(eval_loader, Mapping) else ():
            if not isinstance(part, EvalLoader):
                require_loader(part, f"eval_loader, {name}")
        if train_loader is not None:
            require_loader(train_loader, "train_loader")
        if isinstance(data, Mapping):
            data = {
                name: _wrap_for_eval(part) for name, part in cast("Mapping[str, Any]", data).items()
            }
        data = _wrap_for_eval(data)
        if _is_for_eval(data):
            # TRL's trainers preprocess eval_dataset: pass the training dataset in its place.
            kwargs["eval_dataset"] = kwargs.get("train_dataset", data)
        super().__init__(*args, **kwargs)  # pyright: ignore[reportUnknownMemberType]
        if _is_for_eval(data):
            self.eval_dataset = data
        self._loader = train_loader
        if train_loader is not None:
            require_ranks(train_loader, self.args.world_size)
            self.add_callback(_StateSaver(train_loader))

    def get_train_dataloader(self) -> DataLoader[Any]:
        """Return the loader as a `DataLoader`.

        Its indices only count: the Trainer skips indices on resume, and no data with them.
        """
        if self._loader is None:
            trainer: Any = super()
            return trainer.get_train_dataloader()
        return _create_data_loader(self._loader)

    def get_eval_dataloader(self, eval_dataset: Any = None) -> DataLoader[Any]:
        """Return one pass of an eval loader as a `DataLoader`.

        Args:
            eval_dataset: a loader, or the name of one; the Trainer's own by default.
        """
        data = self.eval_dataset if eval_dataset is None else eval_dataset
        if isinstance(data, str):
            data = self.eval_dataset[data]
        data = _wrap_for_eval(data)
        if not isinstance(data, EvalLoader):
            trainer: Any = super()
            return trainer.get_eval_dataloader(eval_dataset)
        require_ranks(data.loader, self.args.world_size)
        return _create_data_loader(data)

    def get_test_dataloader(self, test_dataset: Any) -> DataLoader[Any]:
        """Return one pass of the loader passed to `predict` as a `DataLoader`.

        Args:
            test_dataset: a loader.
        """
        if isinstance(test_dataset, Loader | EvalLoader):
            return self.get_eval_dataloader(test_dataset)
        trainer: Any = super()
        return trainer.get_test_dataloader(test_dataset)

    def train(
        self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any
    ) -> Any:
        """Train, from the last step of a checkpoint if one is named.

        Args:
            resume_from_checkpoint: the folder of a checkpoint; True for the latest in the output
                folder.
            args: arguments of the Trainer's own method.
            kwargs: arguments of the Trainer's own method.

        Returns:
            The result of the Trainer's own method.

        Raises:
            StateError: for a checkpoint without the states of the loader.
        """
        if resume_from_checkpoint is True:
            resume_from_checkpoint = (
                cast(str | None, get_last_checkpoint(self.args.output_dir)) or True
            )
        if isinstance(resume_from_checkpoint, str) and self._loader is not None:
            self._loader.load_state_dict(_load_saved_states(Path(resume_from_checkpoint)))
        trainer: Any = super()  # the Trainer's own method
        return trainer.train(resume_from_checkpoint, *args, **kwargs)


def hf_dataset(dataset: Samples) -> Any:
    """Return the samples of a dataset as a `datasets.IterableDataset`.

    TRL's trainers and others require this type. The trainer then preprocesses, batches and shards
    the samples; every process computes all of them. Each completed `for` is followed by the next
    pass. `FromLoader` resumes exactly in any pass; here the trainer resumes by recomputing the
    batches of the pass.

    Args:
        dataset: a dataset of mappings, such as a mixture; an endless one needs a run with
            `max_steps`.

    Raises:
        ConfigError: for an object that is not a dataset, such as a loader.
        DataError: during iteration, for samples that are not mappings.

    >>> import penstock as ps
    >>> texts = {"a": ps.from_sequence([{"text": "x"}]), "b": ps.from_sequence([{"text": "y"}])}
    >>> data = hf_dataset(ps.mix(texts))
    >>> type(data).__name__, next(iter(data))
    ('IterableDataset', {'text': 'x'})
    """
    try:
        import datasets  # pyright: ignore[reportMissingTypeStubs]
        from datasets.iterable_dataset import ExamplesIterable  # pyright: ignore[reportMissingTypeStubs]
    except ImportError:
        raise make_missing_extra_error(
            "datasets", "hf", "penstock.integrations.transformers.hf_dataset"
        ) from None
    if not isinstance(dataset, Samples):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise make_not_dataset_error("hf_dataset", dataset)
    return datasets.IterableDataset(ExamplesIterable(_PassSamples(dataset), {}))


class _PassSamples:
    """Yield one pass of a dataset per call.

    A pass counts only once it is complete: trainers read a few samples for the names of columns.
    """

    def __init__(self, dataset: Samples) -> None:
        self._dataset = dataset
        # In shared memory: a `DataLoader` starts its workers again for every pass.
        self._completed = _torch.zeros(1, dtype=_torch.int64).share_memory_()

    def __call__(self) -> Iterator[tuple[int, dict[str, Any]]]:
        session = Session(self._dataset.compiled, RunOptions(0, 1), None)
        if completed := int(self._completed):
            session.next_pass(completed)
        for number in count():
            try:
                sample = session.out.next()
            except StopIteration:
                break
            if not isinstance(sample, Mapping):
                raise DataError(
                    f"hf_dataset(ds): sample {number} is of type {type(sample).__name__}, but `datasets` "
                    "stores mappings: name the fields with .map(...)"
                )
            yield number, dict(cast("Mapping[str, Any]", sample))
        self._completed += 1


class _StateSaver(TrainerCallback):
    """Write the states of all ranks into every checkpoint."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        states = gather_states(self._loader.state_dict(), self._loader.world_size)
        if args.should_save:
            write_atomically(
                Path(args.output_dir) / f"checkpoint-{state.global_step}" / FILE,
                json.dumps(states).encode(),
            )


def _load_saved_states(folder: Path) -> list[dict[str, Any]]:
    file = folder / FILE
    if not file.exists():
        raise StateError(
            f"{folder}: {FILE} is missing; the checkpoint is incomplete, or its run trained "
            "without a loader: use an older one"
        )
    try:
        return json.loads(file.read_bytes())
    except ValueError as error:
        raise StateError(
            f"{file}: not a complete JSON file ({error}): use an older checkpoint"
        ) from error


def _wrap_for_eval(data: Any) -> Any:
    return EvalLoader(data) if isinstance(data, Loader) else data


def _is_for_eval(data: Any) -> bool:
    parts = cast("Mapping[str, Any]", data).values() if isinstance(data, Mapping) else [data]
    return any(isinstance(part, EvalLoader) for part in parts)


def _create_data_loader(loader: Loader | EvalLoader) -> DataLoader[Any]:
    generator = (
        Generator()
    )  # a DataLoader would draw from the global generator, and a resumed run would differ
    sampler = BatchSampler(_StepSampler(loader), batch_size=1, drop_last=False)
    return DataLoader(
        _BatchDataset(loader), batch_sampler=sampler, collate_fn=_return_batch, generator=generator
    )


class _StepSampler(Sampler[int]):
    """Number the batches of a pass; the batches end it."""

    def __init__(self, loader: Loader | EvalLoader) -> None:
        self._loader = loader

    def __iter__(self) -> Iterator[int]:
        return count()

    def __len__(self) -> int:
        return len(self._loader)


class _BatchDataset(Dataset[Any]):
    """Return the next batch of the loader for any index; index 0 begins a pass."""

    def __init__(self, loader: Loader | EvalLoader) -> None:
        self._loader = loader
        self._items: Iterator[Any] | None = None

    def __getitems__(self, steps: Sequence[int]) -> Any:
        if self._items is None or steps[0] == 0:
            self._items = iter_rest_or_next(self._loader)
        return next(self._items)


def _return_batch(batch: Any) -> Any:
    return batch
