"""The settings that choose a shuffle."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from ...dataset import Dataset
from ...errors import ConfigError


@dataclass(frozen=True)
class Order:
    """The settings that choose a shuffle."""

    buffer: int | None
    rows: int | None
    windows: int | None

    def __post_init__(self) -> None:
        for name, value, minimum in (
            ("shuffle_buffer_size", self.buffer, 0),
            ("max_samples_per_sequence", self.rows, 1),
            ("parallel_shard_iters", self.windows, 1),
        ):
            if value is not None and value < minimum:
                raise ConfigError(f"{name}={value}: give at least {minimum}, or None")

    def apply(self, samples: Dataset, multiplier: int | None) -> Dataset:
        """Shuffle one dataset as set."""
        if multiplier is None:
            return (
                samples.shuffle_buffer(self.buffer) if self.buffer and self.buffer > 1 else samples
            )
        if multiplier < 1:
            raise ConfigError(
                f"shuffle_over_epochs_multiplier={multiplier}: give a number of passes, or None; "
                "sampling with replacement (-1) is not supported, since it repeats some samples "
                "and omits others"
            )
        samples = samples.repeat(multiplier) if multiplier > 1 else samples
        if self.rows is None:
            return samples.shuffle()
        return samples.shuffle(
            block=(self.rows, max(self.windows or 16, ceil((self.buffer or 0) / self.rows)))
        )
