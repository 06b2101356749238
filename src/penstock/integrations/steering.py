"""Weights that follow training: controllers propose, and `Steering` limits, sets and logs.

A controller is any object with `propose`. A proposal becomes a change at a position of the run,
stored in the state and in a log. A run therefore resumes and replays without its controller.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from math import exp, fsum, inf, isfinite, log, sqrt
from typing import Any, Protocol, cast

from ..arguments import check_int
from ..errors import ConfigError
from ..loader import Loader
from ..stores import parse_location
from ..stores.limits import MIXTURE_FILE, read_within
from ..types import Json
from .scaling_laws import LossCurve, ScalingLaw

Weights = dict[str, float]


def _check_range(controller: str, name: str, value: float, low: float, high: float) -> None:
    if not isinstance(value, int | float) or not low <= value <= high:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigError(f"{controller}({name}={value!r}): give a number from {low} to {high:g}")


class Controller(Protocol):
    """Propose weights from training signals; `None` leaves the weights unchanged."""

    def propose(
        self, weights: Mapping[str, float], signals: Mapping[str, float]
    ) -> Mapping[str, float] | None: ...


class OnlineMixing:
    """Online data mixing (Albalak et al. 2023): an Exp3 bandit, rewarded by source losses.

    A source with a high loss is drawn more often; none drops to zero. Signals are losses by source,
    for the sources of the last steps. The reward estimates are its state.

    Args:
        smoothing: fraction of the old estimate that remains, from 0 to below 1.

    Raises:
        ConfigError: for a smoothing out of range.

    >>> odm, weights = OnlineMixing(), {"code": 0.5, "text": 0.5}
    >>> for _ in range(20):
    ...     weights = odm.propose(weights, {"code": 2.0, "text": 4.0})
    >>> 0.5 < weights["text"] < 0.9
    True
    """

    def __init__(self, smoothing: float = 0.9) -> None:
        if not isinstance(smoothing, int | float) or not 0 <= smoothing < 1:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(
                f"OnlineMixing(smoothing={smoothing!r}): give a number of at least 0 and below 1; "
                "pass weights to Steering"
            )
        self.smoothing, self._step, self._rewards = smoothing, 0, Weights()

    def propose(self, weights: Mapping[str, float], signals: Mapping[str, float]) -> Weights:
        """Return the weights to use after another round of losses.

        Args:
            weights: current weight by source.
            signals: loss by source.
        """
        self._step += 1
        count = len(weights)
        for name, loss in signals.items():
            old = self._rewards.get(name, 0.0)
            self._rewards[name] = self.smoothing * old + (1 - self.smoothing) * loss / max(
                weights[name], 1e-9
            )
        explored = [
            min(1 / count, sqrt(log(count) / (count * turn)))
            for turn in (max(self._step - 1, 1), self._step)
        ]
        top = max(self._rewards.values(), default=0.0)
        raw = {name: exp(explored[0] * (self._rewards.get(name, 0.0) - top)) for name in weights}
        total = fsum(raw.values())
        return {
            name: (1 - count * explored[1]) * value / total + explored[1]
            for name, value in raw.items()
        }

    def state_dict(self) -> dict[str, Json]:
        """Return the reward estimates as JSON."""
        return {"turn": self._step, "rewards": dict(self._rewards)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the reward estimates.

        Args:
            state: the return value of `state_dict()`.
        """
        self._step, self._rewards = int(state["turn"]), dict(state["rewards"])


class LossRatio:
    """Weight sources by excess loss: `prior * (loss / reference) ** strength`.

    Args:
        prior: name -> weight at the reference loss.
        reference: name -> reachable loss, measured on a smaller or older model.
        strength: 0 leaves the prior unchanged; larger values follow the ratio more.

    >>> rule = LossRatio({"code": 1, "text": 1}, {"code": 1.0, "text": 2.0})
    >>> rule.propose({"code": 0.5, "text": 0.5}, {"code": 3.0, "text": 2.0})
    {'code': 0.75, 'text': 0.25}
    """

    def __init__(
        self, prior: Mapping[str, float], reference: Mapping[str, float], strength: float = 1.0
    ) -> None:
        self.prior, self.reference, self.strength = dict(prior), dict(reference), strength

    def propose(self, weights: Mapping[str, float], signals: Mapping[str, float]) -> Weights:
        """Return the weights for these losses; a source without a loss counts as its reference.

        Args:
            weights: current weight by source.
            signals: loss by source.
        """
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


class DoReMi:
    """DoReMi (Xie et al. 2023): exponentiated gradient ascent on excess losses over a reference.

    A round multiplies each weight by `exp(rate * excess)`, normalises, and mixes in a uniform share.
    A source without a loss in a round keeps its last excess. The paper trains a small proxy model
    this way, and a large model with the `average` of the weights.

    Args:
        reference: name -> loss of the reference model. Without it signals are excess losses: the
            means over tokens of `max(loss - reference loss, 0)`, as in the paper.
        rate: step size of the gradient.
        smoothing: share of the uniform distribution, from 0 to 1.

    Raises:
        ConfigError: for a rate or a smoothing out of range.

    >>> doremi = DoReMi({"code": 1.0, "text": 3.0})
    >>> weights = doremi.propose({"code": 0.5, "text": 0.5}, {"code": 2.0, "text": 2.5})
    >>> {name: round(weight, 3) for name, weight in weights.items()}
    {'code': 0.731, 'text': 0.269}
    """

    def __init__(
        self,
        reference: Mapping[str, float] | None = None,
        rate: float = 1.0,
        smoothing: float = 1e-3,
    ) -> None:
        _check_range("DoReMi", "rate", rate, 0, inf)
        _check_range("DoReMi", "smoothing", smoothing, 0, 1)
        self.reference = None if reference is None else dict(reference)
        self.rate, self.smoothing = rate, smoothing
        self._rounds, self._sums, self._excess = 0, Weights(), Weights()

    @property
    def average(self) -> Weights:
        """The mean of all proposals: the weights for a large model; empty before the first."""
        return {name: value / self._rounds for name, value in self._sums.items()}

    def propose(self, weights: Mapping[str, float], signals: Mapping[str, float]) -> Weights:
        """Return the weights after another round of losses.

        Args:
            weights: current weight by source.
            signals: loss by source; excess loss without a reference.

        Raises:
            ConfigError: if the reference lacks a source.
        """
        for name, loss in signals.items():
            if self.reference is not None:
                if name not in self.reference:
                    raise ConfigError(
                        f"DoReMi: the reference has no loss of {name!r}; add it to reference="
                    )
                loss -= self.reference[name]
            if isfinite(loss):
                self._excess[name] = max(loss, 0.0)
        excess = {name: self.rate * self._excess.get(name, 0.0) for name in weights}
        top = max(excess.values())
        raw = {name: weight * exp(excess[name] - top) for name, weight in weights.items()}
        total = fsum(raw.values())
        new = {
            name: (1 - self.smoothing) * value / total + self.smoothing / len(raw)
            for name, value in raw.items()
        }
        self._rounds += 1
        self._sums = {name: self._sums.get(name, 0.0) + value for name, value in new.items()}
        return new

    def state_dict(self) -> dict[str, Json]:
        """Return the last excess losses and the sums of weights as JSON."""
        return {"rounds": self._rounds, "sums": dict(self._sums), "excess": dict(self._excess)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the excess losses and the sums of weights.

        Args:
            state: the return value of `state_dict()`.
        """
        self._rounds, self._sums = int(state["rounds"]), dict(state["sums"])
        self._excess = dict(state["excess"])


class ADO:
    """Adaptive data optimisation (Jiang et al. 2024): draw what the model learns fastest.

    The losses of each source are fitted by a scaling law of the rounds, `floor + scale * n ** -power`.
    Its slope is the learning speed. A source is preferred by its prior, times its speed, times the
    credit for the progress: its recent share to a power. Proposals lie between the preferences and
    the mean of all earlier ones.

    A round is a call of `propose`, so `Steering(every=k)` makes one of `k` steps. Rounds should have
    equal numbers of tokens.

    Args:
        prior: name -> weight, often the sizes of the sources. Begin with these weights: nothing is
            proposed before the first fit.
        warmup: rounds before the first fit, whose losses are not fitted.
        refit: rounds between two fits.
        preference: weight of the preferences in a proposal (gamma 1 of the paper), from 0 to 1.
        memory: weight of a round in the recent shares (gamma 2), from 0 to 1.
        credit: power of the recent shares (s), from 0 to 1.
        smallest: lowest share of a preference, at most 1 / sources.

    Raises:
        ConfigError: for numbers out of range.

    >>> ado, weights = ADO({"fast": 1, "slow": 1}, warmup=10, refit=10), {"fast": 0.5, "slow": 0.5}
    >>> for n in range(1, 200):
    ...     losses = {"fast": 1 + 3 * n**-0.5, "slow": 1 + 3 * n**-0.1}
    ...     weights = ado.propose(weights, losses) or weights
    >>> {name: round(law.power, 2) for name, law in ado.scaling_laws.items()}
    {'fast': 0.5, 'slow': 0.1}
    """

    def __init__(
        self,
        prior: Mapping[str, float],
        *,
        warmup: int = 100,
        refit: int = 20,
        preference: float = 0.1,
        memory: float = 0.1,
        credit: float = 0.5,
        smallest: float = 0.01,
    ) -> None:
        total = fsum(prior.values())
        if not prior or min(prior.values()) <= 0 or not isfinite(total):
            raise ConfigError(
                f"ADO(prior={dict(prior)}): give each source a weight above 0, such as its tokens"
            )
        warmup, refit = check_int(warmup, "ADO(warmup={})", 1), check_int(refit, "ADO(refit={})", 1)
        for name, value in (("preference", preference), ("memory", memory), ("credit", credit)):
            _check_range("ADO", name, value, 0, 1)
        _check_range("ADO", "smallest", smallest, 0, 1 / len(prior))
        self.prior: Weights = {name: weight / total for name, weight in prior.items()}
        self.warmup, self.refit = warmup, refit
        self.preference, self.memory, self.credit = preference, memory, credit
        self.smallest = smallest
        self.scaling_laws: dict[str, ScalingLaw] = {}
        self._rounds, self._recent, self._mean = 0, dict(self.prior), dict(self.prior)
        self._curves = {name: LossCurve() for name in self.prior}

    def propose(self, weights: Mapping[str, float], signals: Mapping[str, float]) -> Weights | None:
        """Return the weights after another round of losses; `None` until the first fit.

        Args:
            weights: current weight by source.
            signals: loss by source.

        Raises:
            ConfigError: if the sources of the weights are not those of the prior.
        """
        if weights.keys() != self.prior.keys():
            raise ConfigError(
                f"ADO: the prior has {', '.join(self.prior)}, and the weights are of "
                f"{', '.join(weights)}; give a prior for these"
            )
        self._rounds += 1
        for name, share in weights.items():
            self._recent[name] = self.memory * share + (1 - self.memory) * self._recent[name]
        if self._rounds > self.warmup:
            for name, loss in signals.items():
                self._curves[name].add(self._rounds, loss)
        due = self._rounds > self.warmup and (self._rounds - self.warmup) % self.refit == 0
        for name, curve in self._curves.items() if due else ():
            if (law := curve.fit()) is not None:
                self.scaling_laws[name] = law
        if not self.scaling_laws:
            return None
        preferred = self._preferences()
        kept, self._mean = (
            self._mean,
            {
                name: mean + (preferred[name] - mean) / (self._rounds + 1)
                for name, mean in self._mean.items()
            },
        )
        return {
            name: self.preference * share + (1 - self.preference) * kept[name]
            for name, share in preferred.items()
        }

    def _preferences(self) -> Weights:
        speeds = {name: law.speed(self._rounds) for name, law in self.scaling_laws.items()}
        middle = fsum(speeds.values()) / len(speeds)  # for sources that had no losses to fit
        raw = {
            name: prior * speeds.get(name, middle) * self._recent[name] ** self.credit
            for name, prior in self.prior.items()
        }
        total = fsum(raw.values())
        raw = {name: value / total for name, value in raw.items()} if total else self.prior
        raised = {name: max(value, self.smallest) for name, value in raw.items()}
        total = fsum(raised.values())
        return {name: value / total for name, value in raised.items()}

    def state_dict(self) -> dict[str, Json]:
        """Return the fitted laws, the losses and the shares as JSON; its size is bounded."""
        return {
            "rounds": self._rounds,
            "recent": dict(self._recent),
            "mean": dict(self._mean),
            "laws": {name: list(law) for name, law in self.scaling_laws.items()},
            "curves": {name: curve.to_json() for name, curve in self._curves.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the fitted laws, the losses and the shares.

        Args:
            state: the return value of `state_dict()`.

        Raises:
            ConfigError: if the state is of other sources.
        """
        if state["recent"].keys() != self.prior.keys():
            raise ConfigError(
                f"ADO: the state has the sources {', '.join(state['recent'])}, and the prior "
                f"{', '.join(self.prior)}; load it into a controller of the same sources"
            )
        self._rounds = int(state["rounds"])
        self._recent, self._mean = dict(state["recent"]), dict(state["mean"])
        self.scaling_laws = {name: ScalingLaw(*law) for name, law in state["laws"].items()}
        self._curves = {name: LossCurve.from_json(each) for name, each in state["curves"].items()}


class FileWatched:
    """Read weights from a JSON file that a user edits during the run.

    The file holds `{"code": 0.3, "text": 0.7}`. A missing or half-written file changes nothing. On
    several ranks the file must name the first position of the mixture with the new weights, `{"at":
    1200000, "weights": {...}}`, so that all ranks change there.

    Args:
        path: the JSON file.

    >>> FileWatched("no/such/file.json").propose({"a": 1.0}, {}) is None
    True
    """

    def __init__(self, path: str) -> None:
        self.path, self._seen = path, b""
        self.at: int | None = None

    def propose(self, weights: Mapping[str, float], signals: Mapping[str, float]) -> Weights | None:
        """Return the weights of the file if it changed, else None.

        Args:
            weights: not used.
            signals: not used.
        """
        try:
            text = read_within(str(parse_location(self.path)), MIXTURE_FILE)
        except OSError:
            return None
        if text == self._seen:
            return None
        try:
            content = json.loads(text)
            has_position = "weights" in content
            at, weights_read = (
                (content.get("at"), content["weights"]) if has_position else (None, content)
            )
            new = {str(name): float(weight) for name, weight in weights_read.items()}
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            logging.getLogger("penstock").warning(
                "%s: weights not read, keeping the current ones: %s", self.path, error
            )
            return None
        self._seen, self.at = text, at
        return new


class Steering:
    """Set the weights of a loader from a controller, within limits; every change is logged.

    Call it after a step, on every rank with the same signals (all-reduce losses first). The
    loader's state stores the changes, as for any `set_weights`. Its own state stores the weights
    and the state of the controller.

    Args:
        loader: a loader over a mixture of these sources.
        controller: `OnlineMixing()`, `LossRatio(...)`, `DoReMi(...)`, `ADO(...)`,
            `FileWatched(...)`, or any `Controller`.
        weights: the initial weights.
        floor: lowest share of a source.
        cap: highest share of a source.
        largest_step: maximum change of a share at a time.
        every: steps between proposals; signals in between are averaged.

    Raises:
        ConfigError: for limits that no weights satisfy.

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
        self._sums, self._counts, self._step = Weights(), dict[str, int](), 0

    def __call__(self, signals: Mapping[str, float] | None = None) -> Mapping[str, float]:
        """Record the signals of a step; propose, limit and set weights when due.

        Args:
            signals: loss or other measurement by source.

        Returns:
            The weights now in force.

        Raises:
            ConfigError: for an unknown source, or for weights that do not name the sources.
        """
        for name, value in (signals or {}).items():
            if name not in self.weights:
                raise ConfigError(
                    f"Steering: unknown source {name!r}; the sources are {', '.join(self.weights)}"
                )
            if isfinite(value):
                self._sums[name] = self._sums.get(name, 0.0) + value
                self._counts[name] = self._counts.get(name, 0) + 1
        self._step += 1
        if self._step % self.every:
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
                f"Steering: give weights for {', '.join(self.weights)}, not {', '.join(proposed)}"
            )
        new = limit_weights(proposed, self.weights, self.floor, self.cap, self.largest_step)
        if new == self.weights:
            return
        at = cast("int | None", getattr(self.controller, "at", None))
        if isinstance(self.controller, FileWatched) and at is None and self.loader.world_size > 1:
            raise ConfigError(
                f"{self.controller.path}: `at` is missing: on several ranks, name the position "
                "where the weights begin"
            )
        self.log.append((self.loader.set_weights(new, at), new))
        self.weights = new

    def state_dict(self) -> dict[str, Json]:
        """Return weights, log and controller state as JSON, beside the loader's own state."""
        learned = getattr(self.controller, "state_dict", None)
        return {
            "weights": dict(self.weights),
            "log": [[at, dict(weights)] for at, weights in self.log],
            "turn": self._step,
            "sums": dict(self._sums),
            "counts": dict(self._counts),
            "controller": learned() if learned else None,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore weights, log and controller; the loader's own state already has its weights.

        Args:
            state: the return value of `state_dict()`.
        """
        self.weights, self._step = dict(state["weights"]), int(state["turn"])
        self.log = [(int(at), dict(weights)) for at, weights in state["log"]]
        self._sums, self._counts = dict(state["sums"]), dict(state["counts"])
        if state["controller"] is not None:
            cast("Any", self.controller).load_state_dict(state["controller"])


def limit_weights(
    proposed: Mapping[str, float],
    before: Mapping[str, float],
    floor: float,
    cap: float,
    largest_step: float,
) -> Weights:
    """Return the weights closest to a proposal that respect the limits and sum to 1.

    Args:
        proposed: proposed weight by source.
        before: current share by source.
        floor: lowest share.
        cap: highest share.
        largest_step: maximum change of a share.

    Raises:
        ConfigError: for weights that are negative, all zero, or not finite.

    >>> limit_weights({"a": 1, "b": 0, "c": 0}, {"a": 0.4, "b": 0.3, "c": 0.3}, 0.1, 0.5, 0.05)
    {'a': 0.45, 'b': 0.275, 'c': 0.275}
    """
    total = fsum(proposed.values())
    if not isfinite(total) or total <= 0 or min(proposed.values()) < 0:
        raise ConfigError(f"give weights of at least 0, not all 0, instead of {dict(proposed)}")
    low = {
        name: min(max(floor, share - largest_step), share + largest_step)
        for name, share in before.items()
    }
    high = {
        name: max(min(cap, share + largest_step), share - largest_step)
        for name, share in before.items()
    }
    shares = {name: proposed[name] / total for name in before}
    offset_low, offset_high = -1.0, 1.0
    for _ in range(60):  # bisection: the offset at which the clipped shares sum to 1
        middle = (offset_low + offset_high) / 2
        if (
            fsum(min(max(share + middle, low[name]), high[name]) for name, share in shares.items())
            < 1
        ):
            offset_low = middle
        else:
            offset_high = middle
    return {
        name: round(min(max(share + offset_high, low[name]), high[name]), 9)
        for name, share in shares.items()
    }


def replay(loader: Loader, log: Sequence[tuple[int, Mapping[str, float]]]) -> None:
    """Apply all changes of a log to a new loader.

    The loader then reproduces the run without the controller, on any number of ranks.

    Args:
        loader: a new loader over the same mixture.
        log: `Steering.log`: pairs of position and weights.

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
