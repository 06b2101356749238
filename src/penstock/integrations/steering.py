"""Weights that follow the training: controllers that propose, and a hand on the loader that limits,
sets and logs.

A controller is anything with `propose`. What it proposes becomes an event at a position of the run,
in the state and in a log, so that a run is resumed and replayed without it.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from math import exp, fsum, isfinite, log, sqrt
from typing import Any, Protocol, cast

from ..engine.base import seams
from ..errors import ConfigError
from ..loader import Loader
from ..types import Json

Weights = dict[str, float]


class Controller(Protocol):
    """What proposes weights from what the training measured; `None` leaves them as they are."""

    def propose(
        self, weights: Mapping[str, float], signals: Mapping[str, float]
    ) -> Mapping[str, float] | None: ...


class OnlineMixing:
    """Online data mixing (Albalak et al. 2023): an Exp3 bandit whose rewards are the losses of the
    sources.

    A source whose loss is high is drawn from more often; none is forgotten. Signals are losses by
    source, of those that the last steps held. The estimates are its state.

    Args:
        smoothing: the part of the old estimate that is kept.

    >>> odm, weights = OnlineMixing(), {"code": 0.5, "text": 0.5}
    >>> for _ in range(20):
    ...     weights = odm.propose(weights, {"code": 2.0, "text": 4.0})
    >>> 0.5 < weights["text"] < 0.9
    True
    """

    def __init__(self, smoothing: float = 0.9) -> None:
        if not isinstance(smoothing, int | float) or not 0 <= smoothing < 1:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(
                f"OnlineMixing(smoothing={smoothing!r}): a number of at least 0 and below 1; "
                "weights go to Steering"
            )
        self.smoothing, self._turn, self._rewards = smoothing, 0, Weights()

    def propose(self, weights: Mapping[str, float], signals: Mapping[str, float]) -> Weights:
        """The shares from now on, after another round of losses."""
        self._turn += 1
        count = len(weights)
        for name, loss in signals.items():
            old = self._rewards.get(name, 0.0)
            self._rewards[name] = self.smoothing * old + (1 - self.smoothing) * loss / max(
                weights[name], 1e-9
            )
        explored = [
            min(1 / count, sqrt(log(count) / (count * turn)))
            for turn in (max(self._turn - 1, 1), self._turn)
        ]
        top = max(self._rewards.values(), default=0.0)
        raw = {name: exp(explored[0] * (self._rewards.get(name, 0.0) - top)) for name in weights}
        total = fsum(raw.values())
        return {
            name: (1 - count * explored[1]) * value / total + explored[1]
            for name, value in raw.items()
        }

    def state_dict(self) -> dict[str, Json]:
        """What it learned, as JSON."""
        return {"turn": self._turn, "rewards": dict(self._rewards)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there."""
        self._turn, self._rewards = int(state["turn"]), dict(state["rewards"])


class LossRatio:
    """Shares by how far the loss of a source is above that of a reference: `prior * (loss /
    reference) ** strength`.

    Args:
        prior: name -> share where losses are as those of the reference.
        reference: name -> loss that can be reached, of a smaller or older model.
        strength: 0 leaves the prior as it is; larger values follow the ratio more.

    >>> rule = LossRatio({"code": 1, "text": 1}, {"code": 1.0, "text": 2.0})
    >>> rule.propose({"code": 0.5, "text": 0.5}, {"code": 3.0, "text": 2.0})
    {'code': 0.75, 'text': 0.25}
    """

    def __init__(
        self, prior: Mapping[str, float], reference: Mapping[str, float], strength: float = 1.0
    ) -> None:
        self.prior, self.reference, self.strength = dict(prior), dict(reference), strength

    def propose(self, weights: Mapping[str, float], signals: Mapping[str, float]) -> Weights:
        """The shares for these losses; a source without one counts as good as the reference."""
        ratios = {
            name: signals[name] / self.reference[name] if name in signals else 1.0
            for name in weights
        }
        raw = {
            name: self.prior[name] * max(ratio, 0.0) ** self.strength
            for name, ratio in ratios.items()
        }
        total = fsum(raw.values())
        return {name: value / total for name, value in raw.items()} if total else dict(weights)


class FileWatched:
    """Weights from a JSON file that somebody edits while the run goes on: `{"code": 0.3, "text":
    0.7}`.

    A file that is not there, or is just being written, changes nothing. On several ranks it must
    say from which position of the mixture on they hold, `{"at": 1200000, "weights": {...}}`, so
    that all begin there.

    >>> FileWatched("no/such/file.json").propose({"a": 1.0}, {}) is None
    True
    """

    def __init__(self, path: str) -> None:
        self.path, self._seen = path, b""
        self.at: int | None = None

    def propose(self, weights: Mapping[str, float], signals: Mapping[str, float]) -> Weights | None:
        """The weights of the file, where it is another one than before."""
        try:
            text = seams.world.store.read(self.path)
        except OSError:
            return None
        if text == self._seen:
            return None
        try:
            found = json.loads(text)
            at, given = (found.get("at"), found["weights"]) if "weights" in found else (None, found)
            new = {str(name): float(weight) for name, weight in given.items()}
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            logging.getLogger("penstock").warning("%s is not read: %s", self.path, error)
            return None
        self._seen, self.at = text, at
        return new


class Steering:
    """A loader whose weights a controller proposes, within limits; every change is logged.

    Call it after a step, on every rank with the same signals (reduce losses over the ranks first).
    The changes lie in the state of the loader as all of `set_weights`; its own state has the
    weights and what the controller learned.

    Args:
        loader: over a mixture of these sources.
        controller: `OnlineMixing()`, `LossRatio(...)`, `FileWatched(...)`, or any `Controller`.
        weights: the shares with which the run begins.
        floor: the least share of a source.
        cap: the largest.
        largest_step: by how much a share may change at a time.
        every: steps from one proposal to the next; signals in between are averaged.

    >>> import penstock as ps
    >>> mixed = ps.mix({"a": ps.from_sequence(range(9)).repeat(), "b": ps.from_sequence(range(9)).repeat()})
    >>> equal = {"a": 1, "b": 1}
    >>> with ps.Loader(mixed) as loader:
    ...     steering = Steering(loader, LossRatio(equal, reference=equal), equal, largest_step=0.1)
    ...     _ = next(iter(loader)), steering({"a": 9.0, "b": 1.0})
    >>> steering.weights, steering.log
    ({'a': 0.6, 'b': 0.4}, [(1, {'a': 0.6, 'b': 0.4})])
    """

    def __init__(
        self,
        loader: Loader,
        controller: Controller,
        weights: Mapping[str, float],
        *,
        floor: float = 0.0,
        cap: float = 1.0,
        largest_step: float = 1.0,
        every: int = 1,
    ) -> None:
        count, total = len(weights), fsum(weights.values())
        if not (
            0 <= floor * count <= 1 <= cap * count and largest_step > 0 and every > 0 and total > 0
        ):
            raise ConfigError(
                f"Steering: {count} shares between floor={floor} and cap={cap} cannot sum to 1, or "
                f"largest_step={largest_step} or every={every} is not above 0"
            )
        self.loader, self.controller, self.every = loader, controller, every
        self.floor, self.cap, self.largest_step = floor, cap, largest_step
        self.weights: Weights = {name: weight / total for name, weight in weights.items()}
        self.log: list[tuple[int, Weights]] = []
        self._sums, self._counts, self._turn = Weights(), dict[str, int](), 0

    def __call__(self, signals: Mapping[str, float] | None = None) -> Mapping[str, float]:
        """After a step: take what was measured; propose, limit and set where it is time. The
        weights from now on."""
        for name, value in (signals or {}).items():
            if name not in self.weights:
                raise ConfigError(
                    f"Steering: there is no source {name!r}, but {', '.join(self.weights)}"
                )
            if isfinite(value):
                self._sums[name] = self._sums.get(name, 0.0) + value
                self._counts[name] = self._counts.get(name, 0) + 1
        self._turn += 1
        if self._turn % self.every:
            return self.weights
        means = {name: value / self._counts[name] for name, value in self._sums.items()}
        self._sums, self._counts = {}, {}
        new = self.controller.propose(self.weights, means)
        if new is not None:
            self._set(new)
        return self.weights

    def _set(self, proposed: Mapping[str, float]) -> None:
        if proposed.keys() != self.weights.keys():
            raise ConfigError(
                f"Steering: weights for {', '.join(self.weights)} are needed, not "
                f"{', '.join(proposed)}"
            )
        new = limited(proposed, self.weights, self.floor, self.cap, self.largest_step)
        if new == self.weights:
            return
        at = cast("int | None", getattr(self.controller, "at", None))
        if isinstance(self.controller, FileWatched) and at is None and self.loader.world_size > 1:
            raise ConfigError(
                f"{self.controller.path}: on several ranks it must say where its weights begin, as "
                "`at`"
            )
        self.log.append((self.loader.set_weights(new, at), new))
        self.weights = new

    def state_dict(self) -> dict[str, Json]:
        """Weights, log, and what the controller learned, as JSON; beside the loader's own state."""
        learned = getattr(self.controller, "state_dict", None)
        return {
            "weights": dict(self.weights),
            "log": [[at, dict(weights)] for at, weights in self.log],
            "turn": self._turn,
            "sums": dict(self._sums),
            "counts": dict(self._counts),
            "controller": learned() if learned else None,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on; the loader itself is restored by its own state, which has the weights already."""
        self.weights, self._turn = dict(state["weights"]), int(state["turn"])
        self.log = [(int(at), dict(weights)) for at, weights in state["log"]]
        self._sums, self._counts = dict(state["sums"]), dict(state["counts"])
        if state["controller"] is not None:
            cast("Any", self.controller).load_state_dict(state["controller"])


def limited(
    proposed: Mapping[str, float],
    before: Mapping[str, float],
    floor: float,
    cap: float,
    largest_step: float,
) -> Weights:
    """The shares nearest to what is proposed that keep to the limits: they sum to 1, to nine
    digits.

    >>> limited({"a": 1, "b": 0, "c": 0}, {"a": 0.4, "b": 0.3, "c": 0.3}, 0.1, 0.5, 0.05)
    {'a': 0.45, 'b': 0.275, 'c': 0.275}
    """
    total = fsum(proposed.values())
    if not isfinite(total) or total <= 0 or min(proposed.values()) < 0:
        raise ConfigError(f"weights of at least 0 and not all 0 are needed, not {dict(proposed)}")
    low = {
        name: min(max(floor, share - largest_step), share + largest_step)
        for name, share in before.items()
    }
    high = {
        name: max(min(cap, share + largest_step), share - largest_step)
        for name, share in before.items()
    }
    wanted = {name: proposed[name] / total for name in before}
    least, most = -1.0, 1.0
    for _ in range(60):  # the same amount is added to all, until those that fit sum to 1
        middle = (least + most) / 2
        if (
            fsum(min(max(share + middle, low[name]), high[name]) for name, share in wanted.items())
            < 1
        ):
            least = middle
        else:
            most = middle
    return {
        name: round(min(max(share + most, low[name]), high[name]), 9)
        for name, share in wanted.items()
    }


def replay(loader: Loader, log: Sequence[tuple[int, Mapping[str, float]]]) -> None:
    """Give a fresh loader all changes of a log: it makes the same run without the controller, on
    any number of ranks.

    >>> import penstock as ps
    >>> mixed = ps.mix({"a": ps.from_sequence([1]).repeat(), "b": ps.from_sequence([2]).repeat()})
    >>> with ps.Loader(mixed) as loader:
    ...     replay(loader, [(2, {"a": 1, "b": 0})])
    ...     steps = iter(loader)
    ...     [next(steps) for _ in range(6)][2:]
    [1, 1, 1, 1]
    """
    for at, weights in log:
        loader.set_weights(dict(weights), at)
