"""transformers: its Trainer, and TRL's, trains on a loader and resumes it with its own
checkpoints."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any, cast

from ..dataset import Dataset as Samples
from ..engine.base.hints import no_dataset
from ..engine.base.seams import write_whole
from ..engine.runtime.session import Session
from ..engine.runtime.setting import Setting
from ..errors import DataError, StateError, missing_extra
from ..loader import Loader
from .trainers import EvalLoader, require_ranks, rest_or_next, states_of_all

try:
    from torch import Generator
    from torch.utils.data import BatchSampler, DataLoader, Dataset, Sampler
    from transformers import TrainerCallback
    from transformers.trainer_utils import get_last_checkpoint  # pyright: ignore[reportUnknownVariableType]
except ImportError as error:
    raise missing_extra(
        error.name or "transformers", "trainers", "penstock.integrations.transformers"
    ) from None

_Trainer = cast(Any, object)  # beside the Trainer that it is mixed into

FILE = "penstock.json"
"""The file in the folder of a checkpoint that has the states of all ranks."""


class FromLoader(_Trainer):
    """Mixed into a Trainer, has it train and evaluate on loaders: `class MyTrainer(FromLoader,
    Trainer): ...`.

    The loader alone shares out and batches. `train(resume_from_checkpoint=...)` goes on after the
    last step of the checkpoint and reads nothing of what was trained; on any number of processes
    that make the same global batch.

    Args:
        args: of the Trainer.
        train_loader: gives batches as the model takes them, tensors on the CPU. A loader given as
            `train_dataset=` is the same.
        eval_loader: the batches of an evaluation; each evaluation is a whole pass; or a mapping of
            several loaders by name. Loaders given as `eval_dataset=`, here or to `evaluate`, or to
            `predict`, are the same.
        kwargs: of the Trainer.

    Raises:
        ConfigError: for loaders that were made before the ranks were known, and for evaluations
            that never end.

    >>> import penstock as ps
    >>> from transformers import Trainer
    >>> class MyTrainer(FromLoader, Trainer): ...
    >>> trainer = MyTrainer(model, args, train_loader=ps.Loader(batches))  # doctest: +SKIP
    >>> trainer.train(resume_from_checkpoint=True)  # doctest: +SKIP
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
        if isinstance(data, Mapping):
            data = {name: _for_eval(part) for name, part in cast("Mapping[str, Any]", data).items()}
        data = _for_eval(data)
        if _is_for_eval(data):
            # TRL's trainers prepare what they get as a dataset; one of its own kind stands in for
            # the loaders.
            kwargs["eval_dataset"] = kwargs.get("train_dataset", data)
        super().__init__(*args, **kwargs)  # pyright: ignore[reportUnknownMemberType]
        if _is_for_eval(data):
            self.eval_dataset = data
        self._loader = train_loader
        if train_loader is not None:
            require_ranks(train_loader, self.args.world_size)
            self.add_callback(_Saved(train_loader))

    def get_train_dataloader(self) -> DataLoader[Any]:
        """The loader, as a `DataLoader` whose indices only count: the Trainer skips indices, and no
        data with them."""
        if self._loader is None:
            trainer: Any = super()
            return trainer.get_train_dataloader()
        return _batches_of(self._loader)

    def get_eval_dataloader(self, eval_dataset: Any = None) -> DataLoader[Any]:
        """A pass of an eval loader, as a `DataLoader`.

        Args:
            eval_dataset: a loader, or the name of one; the Trainer's own when not given.
        """
        data = self.eval_dataset if eval_dataset is None else eval_dataset
        if isinstance(data, str):
            data = self.eval_dataset[data]
        data = _for_eval(data)
        if not isinstance(data, EvalLoader):
            trainer: Any = super()
            return trainer.get_eval_dataloader(eval_dataset)
        require_ranks(data.loader, self.args.world_size)
        return _batches_of(data)

    def get_test_dataloader(self, test_dataset: Any) -> DataLoader[Any]:
        """A pass of the loader that `predict` was given, as a `DataLoader`.

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
        """Train, after the last step of a checkpoint if one is named.

        Args:
            resume_from_checkpoint: the folder of a checkpoint; True for the last in the output
                folder.
            args: of the Trainer's own method.
            kwargs: of the Trainer's own method.

        Raises:
            StateError: for a checkpoint without the states of the loader.
        """
        if resume_from_checkpoint is True:
            resume_from_checkpoint = (
                cast(str | None, get_last_checkpoint(self.args.output_dir)) or True
            )
        if isinstance(resume_from_checkpoint, str) and self._loader is not None:
            self._loader.load_state_dict(_saved_in(Path(resume_from_checkpoint)))
        trainer: Any = super()  # of the Trainer that this is mixed into
        return trainer.train(resume_from_checkpoint, *args, **kwargs)


def hf_dataset(dataset: Samples) -> Any:
    """The samples of a dataset as a `datasets.IterableDataset`, which TRL's trainers and others ask
    for by its type.

    The trainer then prepares, batches and shares out the samples, also between processes, each of
    which computes all of them. A `for` that went to its end is followed by the next pass. What
    `FromLoader` resumes exactly in any pass, the trainer resumes by computing the batches of the
    pass again.

    Args:
        dataset: of mappings, such as a mixture; without end it is for a run of `max_steps`.

    Raises:
        ConfigError: for what is no dataset, such as a loader.
        DataError: in the iteration, for samples that are no mappings.

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
        raise missing_extra(
            "datasets", "hf", "penstock.integrations.transformers.hf_dataset"
        ) from None
    if not isinstance(dataset, Samples):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise no_dataset("hf_dataset", dataset)
    return datasets.IterableDataset(ExamplesIterable(_Passes(dataset), {}))


class _Passes:
    """One pass of a dataset after the other; what is only looked into, as trainers do for names of
    columns, is none."""

    def __init__(self, dataset: Samples) -> None:
        self._dataset, self._ended = dataset, 0

    def __call__(self) -> Iterator[tuple[int, dict[str, Any]]]:
        session = Session(self._dataset.compiled, Setting(0, 1), None)
        if self._ended:
            session.next_pass(self._ended)
        for number in count():
            try:
                sample = session.out.next()
            except StopIteration:
                break
            if not isinstance(sample, Mapping):
                raise DataError(
                    f"hf_dataset(ds): sample {number} is of type {type(sample).__name__}, and "
                    "`datasets` holds mappings: name the fields with .map(...)"
                )
            yield number, dict(cast("Mapping[str, Any]", sample))
        self._ended += 1


class _Saved(TrainerCallback):
    """Writes the states of all ranks into every checkpoint."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        states = states_of_all(self._loader.state_dict(), self._loader.world_size)
        if args.should_save:
            write_whole(
                Path(args.output_dir) / f"checkpoint-{state.global_step}" / FILE,
                json.dumps(states).encode(),
            )


def _saved_in(folder: Path) -> list[dict[str, Any]]:
    file = folder / FILE
    if not file.exists():
        raise StateError(
            f"{folder}: there is no {FILE}; the checkpoint was not finished, or its run trained on "
            "no loader: name an older one"
        )
    try:
        return json.loads(file.read_bytes())
    except ValueError as error:
        raise StateError(f"{file}: not a whole JSON file ({error})") from error


def _for_eval(data: Any) -> Any:
    return EvalLoader(data) if isinstance(data, Loader) else data


def _is_for_eval(data: Any) -> bool:
    parts = cast("Mapping[str, Any]", data).values() if isinstance(data, Mapping) else [data]
    return any(isinstance(part, EvalLoader) for part in parts)


def _batches_of(loader: Loader | EvalLoader) -> DataLoader[Any]:
    aside = (
        Generator()
    )  # else a DataLoader draws from the process's own, and a resumed run draws other numbers
    steps = BatchSampler(_Steps(loader), batch_size=1, drop_last=False)
    return DataLoader(_Batches(loader), batch_sampler=steps, collate_fn=_as_it_is, generator=aside)


class _Steps(Sampler[int]):
    """Numbers the batches of a pass. It ends when the batches do."""

    def __init__(self, loader: Loader | EvalLoader) -> None:
        self._loader = loader

    def __iter__(self) -> Iterator[int]:
        return count()

    def __len__(self) -> int:
        return len(self._loader)


class _Batches(Dataset[Any]):
    """The next batch of the loader, whatever its number: 0 begins a pass."""

    def __init__(self, loader: Loader | EvalLoader) -> None:
        self._loader = loader
        self._items: Iterator[Any] | None = None

    def __getitems__(self, steps: Sequence[int]) -> Any:
        if self._items is None or steps[0] == 0:
            self._items = rest_or_next(self._loader)
        return next(self._items)


def _as_it_is(batch: Any) -> Any:
    return batch
