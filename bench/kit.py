"""The conformance kit over any loader: which of the checks of `penstock.testing` it passes, and how
it fails the rest.

A peer's "kit" row gives a mapping from the names in `CHECKS` to what that check needs (or to a text
that says why there is nothing to check). Comparisons are by what is delivered; the states
themselves may look as they like.
"""

from __future__ import annotations

import base64
import pickle
from collections.abc import Callable, Iterable
from typing import Any

from .savable import SavablePipeline
from .table import Row

SMALL, WORLDS = 60, (1, 2, 3)
WEIGHTS = {"a": 0.5, "b": 0.3, "c": 0.2}


def resumes(make: Callable[[], SavablePipeline]) -> None:
    """Saved at every position, loaded into a new object and a used one, twice, three times in a
    row."""
    from penstock.testing import assert_resumes

    assert_resumes(
        lambda: Boxed(make()), steps=24, at_most=12, json=False, equal_states=False, same=is_equal
    )


def workers(make: Callable[[int], Iterable[Any]]) -> None:
    """Two workers give the samples of an inline run, in the same order."""
    from penstock.testing import assert_same_run

    inline, pooled = plain(make(0)), plain(make(2))
    assert_same_run(lambda: inline, lambda: pooled, steps=max(len(inline), len(pooled)))


def one_order(make: Callable[[int, int], SavablePipeline]) -> None:
    """Any number of ranks gives one global sequence, also when it changes half-way."""
    from penstock.testing import assert_elastic

    assert_elastic(lambda r, w: Posted(make(r, w), r), worlds=WORLDS, steps=SMALL, same=is_equal)


def nothing_lost(make: Callable[[int, int], SavablePipeline]) -> None:
    """Two ranks until half of the pass, three for the rest: every sample once."""
    from penstock.testing import assert_covers

    before = [Posted(make(r, 2), r) for r in range(2)]
    given = [value(next(rank)) for _ in range(SMALL // 4) for rank in before]
    states = [rank.state_dict() for rank in before]
    after = [Posted(make(r, 3), r) for r in range(3)]
    for rank in after:
        rank.load_state_dict(states)
    assert_covers([*given, *(x for rank in after for x in plain(rank))], range(SMALL))


def same_batches(make: Callable[[int, int], SavablePipeline]) -> None:
    """Compare global batches of 6 on 1, 2 and 3 ranks, in any order inside, also when the ranks
    change.
    """
    from penstock.testing import assert_same_run

    whole = batches([Posted(make(0, 1), 0)], SMALL // 6)
    for before in WORLDS:
        ranks = [Posted(make(r, before), r) for r in range(before)]
        first = batches(ranks, SMALL // 12)
        states = [rank.state_dict() for rank in ranks]
        for after in (w for w in WORLDS if w != before):
            others = [Posted(make(r, after), r) for r in range(after)]
            for rank in others:
                rank.load_state_dict(states)
            run = [*first, *batches(others, SMALL // 6 - len(first))]
            try:
                assert_same_run(lambda: whole, lambda run=run: run, steps=len(whole))
            except AssertionError as error:
                raise AssertionError(f"{before} ranks, then {after}: {error}") from None


def batches(ranks: list[Any], steps: int) -> list[list[int]]:
    """Return the samples that all ranks together receive in each step."""
    its = [iter(rank) for rank in ranks]
    each = 6 // len(its)
    return [sorted(value(next(it, -1)) for it in its for _ in range(each)) for _ in range(steps)]


def covers(make: Callable[[int, int], Iterable[Any]]) -> None:
    """One pass over three ranks gives every sample once; the number of samples is no multiple of
    three."""
    from penstock.testing import assert_covers

    assert_covers([x for r in range(3) for x in plain(make(r, 3))], range(SMALL + 1))


def mixture(sources: Callable[[], Iterable[str]]) -> None:
    """Within two samples of what the weights ask, after any number of samples, for 10,000 of
    them."""
    from itertools import islice

    from penstock.testing import assert_mixture

    assert_mixture(list(islice(sources(), 10_000)), WEIGHTS, within=2)


CHECKS: dict[str, tuple[str, Callable[[Any], None]]] = {
    "resume": ("resumes a full shuffle", resumes),
    "resume_buffer": ("resumes a shuffle buffer", resumes),
    "resume_mix": ("resumes a mixture", resumes),
    "resume_pack": ("resumes packing", resumes),
    "workers": ("same run with 2 workers", workers),
    "covers": ("3 ranks, every sample once", covers),
    "elastic_set": ("2 to 3 ranks, nothing lost", nothing_lost),
    "elastic_batches": ("1, 2, 3 ranks, same batches", same_batches),
    "elastic_order": ("1, 2, 3 ranks, one order", one_order),
    "mixture": ("mixture within 2", mixture),
}


class Box:
    """A state of any make; equal when its parts are, tensors too."""

    def __init__(self, state: Any) -> None:
        self.state = state

    def __eq__(self, other: object) -> bool:
        from penstock.testing.asserts import describe_difference

        return isinstance(other, Box) and not describe_difference(self.state, other.state)

    __hash__ = None  # type: ignore[assignment]


class Boxed(SavablePipeline):
    """A loader whose states come in boxes."""

    def __init__(self, pipeline: SavablePipeline) -> None:
        self.pipeline = pipeline

    def __iter__(self) -> Any:
        return iter(self.pipeline)

    def state_dict(self) -> Box:
        return Box(self.pipeline.state_dict())

    def load_state_dict(self, state: Box) -> None:
        self.pipeline.load_state_dict(state.state)


class Posted(SavablePipeline):
    """A rank whose state is sent as text, and which is handed the states of all ranks that were."""

    def __init__(self, pipeline: SavablePipeline, rank: int) -> None:
        self.pipeline, self.rank = pipeline, rank

    def __iter__(self) -> Any:
        return iter(self.pipeline)

    def state_dict(self) -> Any:
        return base64.b64encode(pickle.dumps(self.pipeline.state_dict())).decode()

    def load_state_dict(self, state: Any) -> None:
        states = [pickle.loads(base64.b64decode(text)) for text in state]
        if getattr(
            self.pipeline, "takes_all", False
        ):  # some libraries want the states of all ranks
            self.pipeline.load_state_dict(states)
        else:  # the others the one of this rank; a rank that was not there takes that of another
            self.pipeline.load_state_dict(states[self.rank % len(states)])


def value(sample: Any) -> int:
    """A delivered sample as a plain integer."""
    if isinstance(sample, dict):
        sample = next(v for k, v in sample.items() if not k.startswith("_"))
    return int(sample)


def plain(samples: Iterable[Any]) -> list[int]:
    return [value(sample) for sample in samples]


def is_equal(a: Any, b: Any) -> bool:
    from .measure import same

    return same(a, b)


def conformance(row: Row, scale: Any) -> dict[str, Any]:
    """A verdict for every check: "yes", "no: how it failed", or "none: why there is nothing to
    check"."""
    import penstock.testing  # noqa: F401 - if this fails it is no peer's failure

    given = row.make()
    found = dict[str, str]()
    for name, (_, check) in CHECKS.items():
        subject = given.get(name, "not offered")
        if isinstance(subject, str):
            found[name] = f"none: {subject}"
            continue
        try:
            check(subject)
            found[name] = "yes"
        except AssertionError as error:
            found[name] = f"no: {' '.join(str(error).split())[:240]}"
        except Exception as error:
            found[name] = f"no: {type(error).__name__}: {' '.join(str(error).split())[:240]}"
    return found
