"""A task encoder that wraps another one."""

from __future__ import annotations

from typing import Any

from .encoder import TaskEncoder


class AugmentTaskEncoder(TaskEncoder[Any, Any, Any, Any]):
    """Wrap an encoder and override some of its hooks; `super()` calls the wrapped hooks.

    Args:
        task_encoder: the wrapped encoder.

    >>> import penstock as ps
    >>> from penstock.tasks import DefaultTaskEncoder, TextSample
    >>> class Loud(AugmentTaskEncoder):
    ...     def encode_sample(self, sample):
    ...         sample = super().encode_sample(sample)
    ...         sample.text += "!"
    ...         return sample
    >>> texts = ps.from_sequence([TextSample(__key__=word, text=word) for word in ["one", "two"]])
    >>> Loud(DefaultTaskEncoder(batch_type=dict)).build(texts, batch_size=2)[0]["text"]
    ['one!', 'two!']
    """

    def __init__(self, task_encoder: TaskEncoder[Any, Any, Any, Any]) -> None:
        self._task_encoder = task_encoder
        self.cookers = type(self).cookers or task_encoder.cookers  # pyright: ignore[reportAttributeAccessIssue]

    @property
    def decoder(self) -> Any:
        """The decoder of the wrapped encoder."""
        return getattr(self._task_encoder, "decoder")  # noqa: B009 - it may be missing, and is then missing here

    def cook_crude_sample(self, sample: Any) -> Any:
        return self._task_encoder.cook_crude_sample(sample)

    def encode_sample(self, sample: Any) -> Any:
        return self._task_encoder.encode_sample(sample)

    def preencode_sample(self, sample: Any) -> Any:
        return self._task_encoder.preencode_sample(sample)

    def postencode_sample(self, sample: Any) -> Any:
        return self._task_encoder.postencode_sample(sample)

    def select_samples_to_pack(self, samples: list[Any]) -> list[list[Any]]:
        return self._task_encoder.select_samples_to_pack(samples)

    def pack_selected_samples(self, samples: list[Any]) -> Any:
        return self._task_encoder.pack_selected_samples(samples)

    def batch_group_criterion(self, sample: Any) -> tuple[Any, int | None]:
        return self._task_encoder.batch_group_criterion(sample)

    def batch(self, samples: list[Any]) -> Any:
        return self._task_encoder.batch(samples)

    def encode_batch(self, batch: Any) -> Any:
        return self._task_encoder.encode_batch(batch)

    def defines(self, hook: str) -> bool:
        """Return whether this encoder or the wrapped one overrides a hook.

        Args:
            hook: name of the hook.
        """
        changed = getattr(type(self), hook) is not getattr(AugmentTaskEncoder, hook)
        return changed or self._task_encoder.defines(hook)
