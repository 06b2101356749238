"""Schedules: the numbers of the documents, exact integrals, and refusals that name what is wrong."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import penstock as ps
from helpers import through_json
from penstock.errors import ConfigError
from penstock.schedule import Schedule, compute_cosine_ease

POINTS: list[tuple[int, dict[str, float]]] = [
    (50_000, {"code": 0.8, "text": 0.2}),
    (0, {"code": 0.2, "text": 0.8}),
    (10_000, {"code": 0.5, "text": 0.5}),
]


@given(
    rows=st.lists(
        st.lists(st.floats(0, 1e12) | st.floats(0, 1e-300), min_size=3, max_size=3),
        min_size=1,
        max_size=4,
    ),
    interpolation=st.sampled_from(["step", "linear", "cosine"]),
    step=st.integers(0, 50) | st.floats(0, 50),
    begins=st.tuples(*[st.integers(0, 30)] * 3),
)
def test_weights_equal_those_of_fractions(
    rows: list[list[float]], interpolation: Any, step: float, begins: tuple[int, int, int]
) -> None:
    assume(all(any(row) for row in rows))
    points = [(10 * i, dict(zip("abc", row, strict=True))) for i, row in enumerate(rows)]
    try:
        schedule = Schedule(points, interpolation, start=dict(zip("abc", begins, strict=True)))
    except ConfigError:
        assume(False)
        return
    before = min(int(step // 10), len(rows) - 1)
    after = min(before + 1, len(rows) - 1)
    exact = [[Fraction(repr(weight)) for weight in rows[i]] for i in (before, after)]
    first, last = ([weight / sum(row) for weight in row] for row in exact)
    t = Fraction(0) if before == after else Fraction(step) / 10 - before
    eased = {
        "step": Fraction(0),
        "linear": t,
        "cosine": Fraction(float(compute_cosine_ease(np.asarray([float(t)]))[0])),
    }[interpolation]
    active = [begin <= step for begin in begins]
    if not any(weight for weight, on in zip(first, active, strict=True) if on):
        first = last
    weights = [(a + (b - a) * eased) * on for a, b, on in zip(first, last, active, strict=True)]
    assume(sum(weights))
    assert list(schedule.weights(step).values()) == [float(w / sum(weights)) for w in weights]


@pytest.mark.parametrize(
    "step,code,text",
    [
        (0, 0.2, 0.8),
        (5_000, 0.35, 0.65),
        (10_000, 0.5, 0.5),
        (30_000, 0.65, 0.35),
        (50_000, 0.8, 0.2),
    ],
)
def test_linear_gives_the_numbers_of_the_documents(step: int, code: float, text: float) -> None:
    assert Schedule(POINTS, "linear").weights(step) == {"code": code, "text": text}


def test_cosine_gives_the_number_of_the_documents() -> None:
    ramp = Schedule(sorted(POINTS)[:2], "cosine")
    assert ramp.weights(2_500)["code"] == pytest.approx(0.24393398282201786, abs=1e-15)
    assert ramp.weights(5_000) == {"code": 0.35, "text": 0.65}


@pytest.mark.parametrize("interpolation", ["step", "linear", "cosine"])
def test_the_end_weights_hold_before_and_after(interpolation: Any) -> None:
    schedule = Schedule([(100, {"a": 1, "b": 3}), (200, {"a": 3, "b": 1})], interpolation)
    assert (
        schedule.weights(0)
        == schedule.weights(100)
        == schedule.weights(-5)
        == {"a": 0.25, "b": 0.75}
    )
    assert schedule.weights(200) == schedule.weights(10**12) == {"a": 0.75, "b": 0.25}


def test_steps_switch_at_the_point_and_not_before() -> None:
    schedule = Schedule([(10, {"a": 0, "b": 1}), (0, {"a": 1, "b": 0})])
    assert [schedule.weights(step)["b"] for step in (0, 9, 10, 11)] == [0, 0, 1, 1]


def test_every_point_is_normalised_before_interpolation() -> None:
    schedule = Schedule([(0, {"a": 1, "b": 1}), (10, {"a": 300, "b": 100})], "linear")
    assert schedule.weights(5) == {"a": 0.625, "b": 0.375}


@pytest.mark.parametrize("interpolation", ["linear", "cosine"])
def test_ramps_are_monotone_and_sum_to_one(interpolation: Any) -> None:
    schedule = Schedule([(0, {"a": 0.1, "b": 0.9}), (97, {"a": 0.7, "b": 0.3})], interpolation)
    rows = [schedule.weights(step) for step in range(98)]
    assert all(x["a"] < y["a"] for x, y in itertools.pairwise(rows))
    assert all(abs(sum(row.values()) - 1) < 1e-15 for row in rows)


def test_easing_agrees_with_the_cosine() -> None:
    t = np.linspace(0, 1, 10_001)
    expected = [(1 - math.cos(math.pi * x)) / 2 for x in t.tolist()]
    assert float(np.abs(compute_cosine_ease(t) - expected).max()) < 1e-12
    assert compute_cosine_ease(np.asarray([0.0, 0.5, 1.0])).tolist() == pytest.approx(
        [0, 0.5, 1], abs=1e-15
    )


def test_start_and_stop_take_sources_out() -> None:
    points = [(0, {"a": 1, "b": 1, "c": 2})]
    schedule = Schedule(points, start={"b": 10}, stop={"c": 20})
    assert schedule.weights(9) == {"a": 1 / 3, "b": 0, "c": 2 / 3}
    assert schedule.weights(10) == {"a": 0.25, "b": 0.25, "c": 0.5}
    assert schedule.weights(20) == {"a": 0.5, "b": 0.5, "c": 0}


@pytest.mark.parametrize("interpolation", ["linear", "cosine"])
@pytest.mark.parametrize("block,blocks", [(1, 1), (1, 7), (10, 1), (10, 13), (7, 50)])
def test_a_stair_has_the_mean_weights_of_its_blocks(
    interpolation: Any, block: int, blocks: int
) -> None:
    schedule = Schedule(POINTS, interpolation)
    ramp = schedule.spans(("text", "code"))[0]
    first = np.arange(0, 10_000 - block * blocks, 1_111)
    means = ramp.means(first, np.full(len(first), blocks), block)
    for start, found in zip(first.tolist(), means.tolist(), strict=True):
        rows = [schedule.weights(start + j * block) for j in range(blocks)]
        assert found == pytest.approx(
            [sum(row[name] for row in rows) / blocks for name in ("text", "code")], abs=1e-12
        )


def test_spans_follow_points_starts_and_stops() -> None:
    schedule = Schedule(
        [(5, {"a": 1, "b": 1}), (20, {"a": 1, "b": 3})], "linear", start={"a": 3}, stop={"b": 30}
    )
    spans = schedule.spans(("b", "a"))
    assert [(span.begin, span.end, span.constant) for span in spans] == [
        (0, 3, True),
        (3, 5, True),
        (5, 20, False),
        (20, 30, True),
        (30, None, True),
    ]
    assert spans[0].first.tolist() == [1, 0]
    assert spans[-1].first.tolist() == [0, 1]


def test_json_brings_back_the_same_schedule() -> None:
    schedule = Schedule(POINTS, "cosine", "steps", start={"code": 7}, stop={"text": 60_000})
    again = Schedule.from_json(through_json(schedule.to_json()))
    assert again == schedule
    assert again.weights(3_000) == schedule.weights(3_000)


def test_training_steps_become_samples() -> None:
    schedule = Schedule(
        [(0, {"a": 1, "b": 0}), (15, {"a": 0, "b": 1})], unit="steps", stop={"a": 30}
    )
    converted = schedule.in_samples(256)
    assert converted.unit == "samples"
    assert [step for step, _ in converted.points] == [0, 15 * 256]
    assert converted.stop == {"a": 30 * 256}
    with pytest.raises(ConfigError, match="at least 1"):
        schedule.in_samples(0)


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"points": []}, "at least one point"),
    ({"points": [(0, {})]}, "step 0 has no weights"),
    ({"interpolation": "quadratic"}, "'quadratic'.*'step', 'linear' or 'cosine'"),
    ({"unit": "parsecs"}, "'parsecs'.*samples"),
    ({"points": [(0, {"a": 1, "b": -1})]}, "step 0.*'b' is -1"),
    ({"points": [(0, {"a": float("nan"), "b": 1})]}, "'a' is nan"),
    ({"points": [(0, {"a": float("inf"), "b": 1})]}, "'a' is inf"),
    ({"points": [(0, {"a": 10**400, "b": 1})]}, "'a'"),
    ({"points": [(0, {"a": "much", "b": 1})]}, "'a' is 'much'"),
    (
        {"points": [(0, {"a": 1, "b": 1}), (9, {"a": 0, "b": 0})]},
        "step 9.*all weights are 0.*'a', 'b'",
    ),
    ({"points": [(0, {"a": 1, "b": 1}), (9, {"a": 1})]}, "step 9.*'b' is missing"),
    ({"points": [(0, {"a": 1}), (9, {"a": 1, "c": 1})]}, "step 9.*'c' is unknown"),
    ({"points": [(-1, {"a": 1})]}, "-1.*0 or more"),
    ({"points": [(0.5, {"a": 1})]}, "0.5.*integer"),
    ({"points": [(7, {"a": 1}), (7, {"a": 2})]}, "two points.*step 7"),
    ({"start": {"z": 3}}, "'z'"),
    ({"stop": {"a": -3}}, "stop of 'a'"),
    ({"stop": {"a": 5, "b": 9}}, "from step 9 on every source has weight 0"),
    ({"start": {"a": 5, "b": 9}}, "from step 0 to step 5"),
]


@pytest.mark.parametrize("changes,message", REFUSED)
def test_what_makes_no_sense_is_refused_by_name(changes: dict[str, Any], message: str) -> None:
    settings: dict[str, Any] = {"points": [(0, {"a": 1, "b": 1})], **changes}
    with pytest.raises(ConfigError, match=message):
        Schedule(**settings)


@pytest.mark.parametrize(
    "changes,message",
    [
        ({"points": 3}, "from_json.*to_json"),
        ({"points": [[0]]}, "from_json.*to_json"),
        ({"points": [["soon", {"a": 1}]]}, "from_json.*to_json"),
        ({"points": [[0, 1]]}, "from_json.*to_json"),
        ({"start": 3}, "from_json.*to_json"),
        ({"stop": None}, "from_json.*to_json"),
        ({"interpolation": 5}, "5.*'step', 'linear' or 'cosine'"),
        ({"unit": "parsecs"}, "'parsecs'.*samples"),
        ({"points": [[0, {"a": -1}]]}, "'a' is -1"),
    ],
)
def test_json_of_no_schedule_is_refused(changes: dict[str, Any], message: str) -> None:
    data: Any = {**Schedule([(0, {"a": 1})]).to_json(), **changes}
    with pytest.raises(ConfigError, match=message):
        Schedule.from_json(data)


@pytest.mark.parametrize("key", [*Schedule([(0, {"a": 1})]).to_json()])
def test_json_that_lacks_a_key_is_refused(key: str) -> None:
    data = Schedule([(0, {"a": 1})]).to_json()
    del data[key]
    with pytest.raises(ConfigError, match=f"from_json.*{key}.*to_json"):
        Schedule.from_json(data)


@pytest.mark.parametrize("data", [None, [], "points", 7])
def test_other_json_is_refused(data: Any) -> None:
    with pytest.raises(ConfigError, match=f"{type(data).__name__}.*to_json"):
        Schedule.from_json(data)


def test_an_interpolation_for_each_two_neighbours() -> None:
    points = [
        (0, {"a": 1, "b": 0}),
        (10, {"a": 1, "b": 1}),
        (20, {"a": 0, "b": 1}),
        (30, {"a": 1, "b": 1}),
    ]
    mixed = Schedule(points, ["step", "linear", "cosine"])
    for law, steps in (("step", range(10)), ("linear", range(10, 20)), ("cosine", range(20, 40))):
        same = Schedule(points, law)  # pyright: ignore[reportArgumentType]
        assert [mixed.weights(step) for step in steps] == [same.weights(step) for step in steps]
    assert Schedule.from_json(mixed.to_json()) == mixed
    assert Schedule(points, ["linear", "linear", "linear"]) == Schedule(points, "linear")
    assert mixed.in_samples(4).weights(4 * 15) == mixed.weights(15)
    bent = Schedule(points, ["step", "linear", "cosine"], "tokens").in_tokens(
        {"a": 0.25, "b": 0.25}, False
    )
    assert [bent.weights(4 * step) for step in (3, 12, 35)] == [
        pytest.approx(mixed.weights(step)) for step in (3, 12, 35)
    ]
    with pytest.raises(ConfigError, match="4 points have 3 intervals between them; give one"):
        Schedule(points, ["step"])
    with pytest.raises(ConfigError, match="did you mean 'linear'"):
        Schedule(points, ["step", "lineer", "step"])  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("width", [0.1, 1 / 3, 0.5, 0.77, 1.0])
@pytest.mark.parametrize("sizes", [None, [5, 1, 30, 2]])
def test_a_window_moves_over_sources(width: float, sizes: list[float] | None) -> None:
    """At every step the weights are how much of each source the window covers."""
    names, until = ["d", "b", "a", "c"], 10_000
    schedule = Schedule.window(names, until, width, sizes=sizes)
    wide = sizes or [1.0] * 4
    total = math.fsum(wide)
    for step in (*range(0, until + 1, 97), until, 3 * until):
        start = min(step / until, 1) * (1 - width) * total
        low, weights = 0.0, schedule.weights(step)
        for name, size in zip(names, wide, strict=True):
            inside = max(0.0, min(low + size, start + width * total) - max(low, start))
            assert abs(weights[name] - inside / (width * total)) < 2e-3
            low += size


@pytest.mark.parametrize(
    ("names", "options", "said"),
    [
        (["a", "b"], {"width": 0.0}, "above 0 and at most 1"),
        (["a", "b"], {"width": 1.1}, "above 0 and at most 1"),
        (["a", "b"], {"sizes": [1]}, "a size above 0 for each of 2"),
        (["a", "b"], {"sizes": [1, 0]}, "a size above 0 for each of 2"),
        (["a", "a"], {}, "each source once"),
        ([], {}, "at least one"),
    ],
)
def test_windows_that_cannot_be(names: list[str], options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Schedule.window(names, 10, **options)


@given(
    points=st.dictionaries(st.floats(0, 1), st.integers(1, 9), min_size=1, max_size=4),
    length=st.integers(200, 10**6),
)
def test_fractions_are_the_first_places_at_or_after_them(
    points: dict[float, int], length: int
) -> None:
    rows = [(at, {"a": 1, "b": weight}) for at, weight in points.items()]
    schedule = ps.Schedule(rows, unit="fraction")
    assert ps.Schedule.from_json(through_json(schedule.to_json())) == schedule
    places = sorted(math.ceil(Fraction(repr(at)) * length) for at in points)
    assume(len({*places}) == len(places))
    found = schedule.resolve_fractions(length)
    assert [place for place, _ in found.points] == places and found.unit == "samples"
    for at in points:
        assert schedule.weights(at) == found.weights(math.ceil(Fraction(repr(at)) * length))


def test_fractions_move_starts_and_stops_too() -> None:
    schedule = ps.Schedule(
        {0: {"a": 1, "b": 1}}, unit="fraction", start={"a": 0.25}, stop={"b": 0.75}
    )
    found = schedule.resolve_fractions(100, "tokens")
    assert (found.unit, found.start, found.stop) == ("tokens", {"a": 25}, {"b": 75})
    for act, message in (
        (lambda: schedule.resolve_fractions(0), "at least 1"),
        (lambda: found.resolve_fractions(9), "not 'tokens'"),
        (
            lambda: ps.mix({"a": ps.from_sequence("a"), "b": ps.from_sequence("b")}, schedule),
            "resolve_fractions",
        ),
    ):
        with pytest.raises(ps.ConfigError, match=message):
            act()
