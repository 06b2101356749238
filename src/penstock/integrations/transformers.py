"""transformers: its Trainer, and TRL's, trains on a loader and resumes it exactly.

The trainer's own checkpoints store the states of all ranks.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np

from ..arguments import check_choice, make_not_dataset_error
from ..dataset import Dataset as Samples
from ..engine.runtime.run_options import RunOptions
from ..engine.runtime.session import Session
from ..errors import ConfigError, DataError, StateError, make_missing_extra_error
from ..loader import Loader
from ..stores.storage import write_atomically
from .losses import make_flattened_error
from .trainers import (
    EvalLoader,
    gather_objects,
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

_LIBRARIES = ("transformers", "trl")
"""Packages whose losses of batches with `labels` of `[B, T]` are means over tokens."""

_BATCH_FIELDS = frozenset(
    ("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k", "use_cache")
)
"""Fields of `penstock.text.TRANSFORMERS` that describe a whole batch."""


class FromLoader(_Trainer):
    """Mixin that makes a Trainer train and evaluate on loaders.

    Usage: `class MyTrainer(FromLoader, Trainer): ...`, or with a trainer of TRL, such as
    `SFTTrainer` or `DPOTrainer`, which then prepares no data. Only the loader shards and batches.
    `train(resume_from_checkpoint=...)` continues after the last step of the checkpoint and reads no
    trained data again. Any number of processes with the same global batch can resume.

    The loss of an evaluation is the mean over all learned tokens, or over all rows if batches have
    no `labels` of `[B, T]`. So it depends on no batch size and no number of processes. Rows that
    `remainder="pad"` adds do not count, and reach neither `compute_metrics` nor the result of
    `predict`.

    A class with a `compute_loss` of its own, and such labels, must set the attribute
    `eval_loss_over`. It is "tokens" if the loss of a batch is the mean over its learned tokens, and
    "rows" if it is the mean over rows or pairs, as in DPO.

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
            objects that are no loaders. In `train` and `evaluate`, for a missing `eval_loss_over`, and
            for batches of NumPy arrays. In a `class` statement, for a Trainer before the mixin.

    >>> import penstock as ps
    >>> from transformers import Trainer
    >>> class MyTrainer(FromLoader, Trainer): ...
    >>> loader = ps.Loader(batches, to="torch")  # doctest: +SKIP
    >>> trainer = MyTrainer(model, args, train_loader=loader)  # doctest: +SKIP
    >>> trainer.train(resume_from_checkpoint="auto")  # doctest: +SKIP
    """

    eval_loss_over: Literal["tokens", "rows"] | None = None
    """Elements of a batch that the loss of an evaluation is the mean of; None for the rule above."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)  # pyright: ignore[reportUnknownMemberType]
        for kind in cls.__mro__[: cls.__mro__.index(FromLoader)]:
            if not issubclass(kind, FromLoader) and "get_train_dataloader" in vars(kind):
                base = next(base.__name__ for base in cls.__bases__ if issubclass(base, kind))
                raise ConfigError(
                    f"class {cls.__name__}: {base} comes before FromLoader and hides its methods; "
                    f"write class {cls.__name__}(FromLoader, {base})"
                )

    def __init__(
        self,
        *args: Any,
        train_loader: Loader | None = None,
        eval_loader: Loader | Mapping[str, Loader] | None = None,
        **kwargs: Any,
    ) -> None:
        if isinstance(kwargs.get("train_dataset"), Loader):
            train_loader = kwargs.pop("train_dataset")
        _require_length(kwargs.get("train_dataset"), "train_dataset")
        _require_length(kwargs.get("eval_dataset"), "eval_dataset")
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
        self._eval_losses: list[tuple[float, int]] | None = None
        self._valid: Any = None  # of the rows of the batch that is evaluated
        self._planned_tokens: tuple[int, int] | None = None
        self._tokens_unknown = False
        self._placeholder: Any = None
        if train_loader is not None and hasattr(super(), "_prepare_dataset"):
            # TRL's trainers need a dataset, look at its first row, and preprocess it.
            self._placeholder = _make_placeholder()
            kwargs["train_dataset"] = self._placeholder
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
        _require_length(data, "eval_dataset")
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
        _require_length(test_dataset, "test_dataset")
        trainer: Any = super()
        return trainer.get_test_dataloader(test_dataset)

    def _prepare_dataset(self, dataset: Any, *args: Any, **kwargs: Any) -> Any:
        """Return a loader, and the dataset in its place, as it is; TRL prepares other datasets."""
        if dataset is self._placeholder or isinstance(dataset, Loader | EvalLoader):
            return dataset
        trainer: Any = super()
        return trainer._prepare_dataset(dataset, *args, **kwargs)

    def get_batch_samples(self, epoch_iterator: Any, num_batches: int, *args: Any) -> Any:
        """Return the batches of an optimizer step, and the number of their tokens that carry loss.

        With `average_tokens_across_devices`, several processes count all of their batches, as the
        Trainer does. The number comes from the plan if it is known (`loader.loss_tokens`), and no
        process communicates; else the Trainer gathers it.

        Args:
            epoch_iterator: the batches.
            num_batches: the number of batches of the step.
            args: arguments of the Trainer's own method.

        Returns:
            The result of the Trainer's own method.
        """
        self._planned_tokens = self._plan_tokens(num_batches)
        trainer: Any = super()
        try:
            return trainer.get_batch_samples(epoch_iterator, num_batches, *args)
        finally:
            self._planned_tokens = None

    def _plan_tokens(self, num_batches: int) -> tuple[int, int] | None:
        """Return a number of batches with their tokens that carry loss, on all processes, if known."""
        args, sizes = self.args, ("get_tp_size", "get_cp_size", "get_sp_size")
        is_split = any(getattr(self, name, lambda: 1)() > 1 for name in sizes)
        if self._loader is None or args.world_size == 1 or args.n_gpu > 1 or is_split:
            return None
        if not args.average_tokens_across_devices or self._tokens_unknown:
            return None
        try:
            return num_batches, self._loader.loss_tokens(num_batches)
        except ConfigError:  # equal on all processes
            self._tokens_unknown = True
            return None

    def _get_num_items_in_batch(self, batch_samples: list[Any], *args: Any) -> Any:
        """Return the planned number of tokens, and no number in an evaluation.

        The losses of an evaluation are weighted here.
        """
        if self._eval_losses is not None:
            return None
        trainer: Any = super()
        is_counted = self.model_accepts_loss_kwargs or self.compute_loss_func is not None
        batches, planned = self._planned_tokens or (0, 0)
        # A pass that ends within the step gives fewer batches, on all processes.
        is_planned = is_counted and batches == len(batch_samples) > 0
        if is_planned and _has_token_labels(first := batch_samples[0]) and "valid" not in first:
            return _torch.tensor(planned, device=self.args.device)
        return trainer._get_num_items_in_batch(batch_samples, *args)

    def prediction_step(
        self, model: Any, inputs: Any, prediction_loss_only: bool, *args: Any, **kwargs: Any
    ) -> Any:
        """Evaluate a batch, and record its loss with the number of tokens or rows of its mean.

        Args:
            model: the model.
            inputs: the batch.
            prediction_loss_only: whether to return no predictions.
            args: arguments of the Trainer's own method.
            kwargs: arguments of the Trainer's own method.

        Returns:
            The result of the Trainer's own method.
        """
        trainer: Any = super()
        if self._eval_losses is None:
            return trainer.prediction_step(model, inputs, prediction_loss_only, *args, **kwargs)
        self._valid = (
            cast("Mapping[str, Any]", inputs).get("valid") if isinstance(inputs, Mapping) else None
        )
        inputs, weight = _weigh_batch(inputs, self._get_loss_unit(inputs))
        result = trainer.prediction_step(model, inputs, prediction_loss_only, *args, **kwargs)
        if result[0] is not None and weight:  # a batch without learned tokens has no mean
            self._eval_losses.append((float(result[0]), weight))
        return result

    def evaluation_loop(
        self, dataloader: Any, *args: Any, metric_key_prefix: str = "eval", **kwargs: Any
    ) -> Any:
        """Evaluate, with a loss that counts every learned token, or every row, once.

        Predictions and labels have no rows that `remainder="pad"` added.

        Args:
            dataloader: the batches.
            args: arguments of the Trainer's own method.
            metric_key_prefix: the prefix of the metrics.
            kwargs: arguments of the Trainer's own method.

        Returns:
            The result of the Trainer's own method.
        """
        trainer: Any = super()
        is_own = isinstance(dataloader.dataset, _BatchDataset)
        self._eval_losses = [] if is_own else None
        if is_own:
            self.gather_function = partial(self._gather_valid, self.gather_function)
        try:
            output = trainer.evaluation_loop(
                dataloader, *args, metric_key_prefix=metric_key_prefix, **kwargs
            )
            if is_own and (name := f"{metric_key_prefix}_loss") in output.metrics:
                own = self._eval_losses or []
                losses = [pair for part in gather_objects(own) or [own] for pair in part]
                total = sum(weight for _, weight in losses)
                mean = sum(loss * weight for loss, weight in losses) / (total or 1)
                output.metrics[name] = mean
        finally:
            self._eval_losses = self._valid = None
            self.gather_function = self.accelerator.gather_for_metrics  # as the Trainer itself
        return output

    def _gather_valid(self, gather: Any, values: Any) -> Any:
        """Gather values of the rows of a batch from all processes, without rows that were added."""
        gathered = gather(values)
        if self._valid is None:
            return gathered
        valid, masks = _torch.as_tensor(self._valid), dict[int, Any]()

        def select(value: Any, rows: Any) -> Any:
            if isinstance(rows, Mapping):
                parts = cast("Mapping[str, Any]", rows).items()
                return {name: select(value[name], part) for name, part in parts}
            if isinstance(rows, list | tuple):
                pairs = zip(value, cast("Sequence[Any]", rows), strict=True)
                return type(value)(select(*pair) for pair in pairs)
            size = len(rows) if getattr(rows, "ndim", 0) else 0
            if not size or size % len(valid):
                return value
            if size not in masks:  # of pairs both halves have all rows
                own = valid.to(rows.device).repeat(size // len(valid))
                masks[size] = self.accelerator.gather(own)
            return value[masks[size]]

        return select(gathered, values)

    def _get_loss_unit(self, batch: Any) -> Literal["tokens", "rows"]:
        """Return the elements of an evaluation's batch that its loss is the mean of."""
        if self.eval_loss_over is not None:
            check_choice(self.eval_loss_over, ("tokens", "rows"), "eval_loss_over={}")
            return self.eval_loss_over
        if not _has_token_labels(batch):
            return "rows"
        owner = next(kind for kind in type(self).__mro__[:-1] if _overrides_loss(kind))
        if owner.__module__.partition(".")[0] not in _LIBRARIES:
            raise ConfigError(
                f"{owner.__name__}.compute_loss makes a loss of its own, and batches of the "
                "evaluation have labels for each token, so the loss may be a mean over tokens or "
                f'over rows: set {type(self).__name__}.eval_loss_over = "rows" (DPO and other losses '
                'of rows or pairs) or "tokens"'
            )
        return "tokens"

    def _check_loss_unit(self) -> None:
        """Check the first batch of every evaluation, so that none fails in the middle of a run."""
        data = self.eval_dataset
        if self.args.eval_strategy == "no":
            return
        parts = cast("Mapping[str, Any]", data).values() if isinstance(data, Mapping) else [data]
        for part in parts:
            if isinstance(part, EvalLoader):
                for batch in part:
                    self._get_loss_unit(batch)
                    _require_valid_rows(batch)
                    break

    def train(
        self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any
    ) -> Any:
        """Train, from the last step of a checkpoint if one is named.

        Args:
            resume_from_checkpoint: the folder of a checkpoint; True for the latest in the output
                folder; "auto" for the latest complete one, or the beginning if there is none.
            args: arguments of the Trainer's own method.
            kwargs: arguments of the Trainer's own method.

        Returns:
            The result of the Trainer's own method.

        Raises:
            StateError: for a checkpoint without the states of the loader.
            ConfigError: if an evaluation would need `eval_loss_over`.
        """
        self._check_loss_unit()
        if resume_from_checkpoint == "auto":
            resume_from_checkpoint = _find_complete_checkpoint(Path(self.args.output_dir))
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
        DataError: during iteration, for samples that are not mappings, and for the fields of
            `CausalLM` that describe a whole batch, such as `use_cache`.

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
            if fields := _BATCH_FIELDS & sample.keys():
                raise DataError(
                    f"hf_dataset(ds): sample {number} has {', '.join(sorted(fields))}, which "
                    "describe a whole batch, and the Trainer makes the batches: take "
                    'CausalLM(("input_ids", "labels", "position_ids")) and set '
                    "model.config.use_cache = False, or train on a loader of batches with FromLoader"
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


def _find_complete_checkpoint(folder: Path) -> str | None:
    """Return the latest checkpoint in a folder that has the states of the loader."""
    steps = [
        (int(step), file.parent)
        for file in folder.glob(f"checkpoint-*/{FILE}")
        if (step := file.parent.name.partition("-")[2]).isdecimal()
    ]
    return str(max(steps)[1]) if steps else None


def _make_placeholder() -> Any:
    """Return the dataset that a trainer of TRL gets in place of a loader."""
    import datasets  # pyright: ignore[reportMissingTypeStubs]

    return cast("Any", datasets.Dataset).from_dict({"input_ids": [[0]], "labels": [[0]]})


def _has_token_labels(batch: Any) -> bool:
    labels = cast("Mapping[str, Any]", batch).get("labels") if isinstance(batch, Mapping) else None
    return getattr(labels, "ndim", 0) > 1


def _overrides_loss(kind: type) -> bool:
    return kind is not FromLoader and "compute_loss" in vars(kind)


def _weigh_batch(batch: Any, unit: Literal["tokens", "rows"]) -> tuple[Any, int]:
    """Return a batch for evaluation, with the number of its learned tokens, or of its rows.

    With tokens, the labels of rows that `remainder="pad"` added are ignored.

    Raises:
        ConfigError: if rows with marks in `valid` were flattened to one.
    """
    if not isinstance(batch, Mapping):
        return batch, 1
    fields = {**cast("Mapping[str, Any]", batch)}
    _require_valid_rows(fields)
    valid = fields.pop("valid", None)
    valid = None if valid is None else _torch.as_tensor(valid)
    if unit == "tokens" and _has_token_labels(fields):
        labels = fields["labels"]
        if valid is not None and not valid.all():
            marks = valid.to(labels.device).repeat(len(labels) // len(valid))  # both rows of pairs
            fields["labels"] = labels = labels.masked_fill(~marks[:, None], -100)
        return fields, int((labels[:, 1:] != -100).sum())
    if valid is not None:
        return fields, int(valid.sum())
    rows = (len(value) for value in fields.values() if getattr(value, "ndim", 0))
    return fields, next(rows, 1)


def _require_valid_rows(batch: Any) -> None:
    """Raise if `valid` of a batch marks rows that were flattened to one."""
    fields = cast("Mapping[str, Any]", batch if isinstance(batch, Mapping) else {})
    valid: Any = fields.get("valid")
    values: Any = fields.get("labels", fields.get("input_ids"))
    if valid is not None and getattr(values, "ndim", 0) and len(values) % len(valid):
        raise make_flattened_error("evaluation", valid, values)


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


def _require_length(data: Any, name: str) -> None:
    """Raise for a dataset without a length, which the Trainer cannot sample; a loader can."""
    for key, part in cast("Mapping[str, Any]", data).items() if isinstance(data, Mapping) else ():
        _require_length(part, f"{name}, {key}")
    if isinstance(data, Samples) and not hasattr(data, "__len__"):
        require_loader(data, name)


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
        batch = next(self._items)
        _require_tensors(batch)
        return batch


def _require_tensors(batch: Any) -> None:
    """Raise for a batch of NumPy arrays without any tensor, which no model of torch takes."""
    values = cast("Mapping[str, Any]", batch).values() if isinstance(batch, Mapping) else [batch]
    arrays = [isinstance(value, np.ndarray) for value in values]
    if any(arrays) and not any(isinstance(value, _torch.Tensor) for value in values):
        raise ConfigError(
            "the batches of the loader are NumPy arrays, and the Trainer takes tensors: "
            'make it with ps.Loader(ds, to="torch")'
        )


def _return_batch(batch: Any) -> Any:
    return batch
