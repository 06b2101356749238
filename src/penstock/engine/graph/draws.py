"""The draws of a mix of streams, as a lane has them."""

from __future__ import annotations

from dataclasses import replace

from ...errors import ConfigError
from ..mixing import Mixture
from ..mixing.rules import ByWeight, Draws, Weighted, caps_of
from ..streams.rounds import Share
from .history import history
from .nodes import Mix, Path


def draws_of(flow: Mix, path: Path, lane: int = 0, lanes: int = 1) -> Draws:
    """The rule of a mix of streams at run time, as a lane has it."""
    share, rule = Share(lane, lanes, mixed=True), flow.rule
    if not isinstance(rule, Weighted):
        return rule.draws(len(flow.flows), share)
    if rule.unit == "tokens":
        raise ConfigError(
            "mix(unit='tokens') needs inputs with random access, to know their lengths; filter "
            "before writing the data, or weight by samples"
        )
    if (
        key := (flow.names, path)
    ) not in rule.compiled:  # apart from those of the same inputs as positions
        endless = (None,) * len(flow.flows)
        restarting = replace(rule, max_epochs=None, stop="restart")
        vars(restarting)["changed"] = rule.changed.setdefault("streams", {})
        rule.compiled[key] = mixture(restarting, flow.names, endless, path)
    return ByWeight(
        rule.compiled[key], share, rule.stop, caps_of(rule, flow.names), (0,) * len(flow.flows)
    )


def mixture(
    rule: Weighted, names: tuple[str, ...], sizes: tuple[int | None, ...], path: Path
) -> Mixture:
    """The schedule of a mix of streams in the pass in which the run stands."""
    found = history(rule, names, sizes, path).present
    assert isinstance(found, Mixture), "streams are taken over by their cursors"
    return found
