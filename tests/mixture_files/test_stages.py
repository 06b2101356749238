"""Stages and groups are schedules and weights as one would write them by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from example_counts import examples
from penstock.cli.settings import override_weights
from penstock.mixture_files import MixtureFile, RunPosition, SourceEntry, Stage, lint, read_model
from penstock.mixture_files.stages import build_stage_schedule

SOURCES = "sources: {a: {path: code}, b: {path: text}, c: {path: code/0.parquet}}\n"
GROUPED = (
    "groups: {code: 30, text: 70}\n"
    "sources: {a: {path: code, group: code, weight: 2}, b: {path: text, group: text},"
    " c: {path: code/0.parquet, group: code, weight: 1}}\n"
)


def inputs(data: Path) -> dict[str, ps.Dataset]:
    found = {
        "a": ps.read(data / "code", name="a"),
        "b": ps.read(data / "text", name="b"),
        "c": ps.read(data / "code/0.parquet", name="c"),
    }
    return {name: ds.shuffle() for name, ds in found.items()}


def test_weights_within_weights(data: Path, write: Any) -> None:
    by_hand = ps.mix(inputs(data), {"a": 20.0, "b": 70.0, "c": 10.0})
    assert ps.load(write(GROUPED)).tree.description() == by_hand.tree.description()
    outside = GROUPED.replace(
        "b: {path: text, group: text}", "b: {path: text, weight: 70}"
    ).replace(", text: 70", "")
    assert ps.load(write(outside)).tree.description() == by_hand.tree.description()


def test_a_group_may_be_weighed_by_sizes(write: Any) -> None:
    path = write(GROUPED.replace(", weight: 2", "").replace(", weight: 1", "") + "temperature: 2\n")
    counts = ps.load(path).plan.counts(10_000)
    assert counts["b"] == pytest.approx(7_000, abs=2)
    assert counts["a"] / counts["c"] == pytest.approx(2**0.5, rel=0.01)


def test_stages_are_a_schedule(data: Path, write: Any) -> None:
    path = write(
        SOURCES + "horizon: {steps: 100}\nbatch: {size: 4, ranks: 2, collate: list}\n"
        "stages:\n"
        "  - {until: 10%, weights: {a: 3, b: 1}}\n"
        "  - {until: {steps: 50}, interpolation: linear, weights: {b: 3}}\n"
        "  - {until: {samples: 600}, weights: {a: 0, c: 1}}\n"
        "  - {interpolation: cosine, weights: {a: 1}}\n"
    )
    w = [
        {"a": 3, "b": 1, "c": 0},
        {"a": 3, "b": 3, "c": 0},
        {"a": 0, "b": 3, "c": 1},
        {"a": 1, "b": 3, "c": 1},
    ]
    points = [(0, w[0]), (80, w[0]), (399, w[1]), (400, w[2]), (600, w[2]), (800, w[3])]
    by_hand = ps.Schedule(points, ["step", "linear", "step", "step", "cosine"])
    assert ps.load(path).tree.description() == (
        ps.mix(inputs(data), by_hand).limit(800).batch(4, collate=list).tree.description()
    )


def test_a_warm_up_begins_with_the_weights_of_the_file(data: Path, write: Any) -> None:
    path = write(
        GROUPED + "horizon: {samples: 1k}\n"
        "stages:\n  - {name: warm-up, until: 20%, interpolation: linear, weights: {code: 0}}\n  - {}\n"
    )
    begun = ps.Schedule(
        [(0, {"a": 20, "b": 70, "c": 10}), (200, {"a": 0, "b": 70, "c": 0})], ["linear"]
    )
    assert (
        ps.load(path).tree.description()
        == ps.mix(inputs(data), begun).limit(1_000).tree.description()
    )


WEIGHTS = st.dictionaries(st.sampled_from("abc"), st.integers(0, 9), max_size=3)
STAGES = st.lists(
    st.builds(Stage, WEIGHTS, st.none(), st.sampled_from(["step", "linear", "cosine"])),
    min_size=1,
    max_size=4,
)


@examples(150)
@given(STAGES, st.data())
def test_each_stage_has_its_weights_where_it_says(stages: list[Stage], data: st.DataObject) -> None:
    ends = sorted(
        data.draw(
            st.sets(
                st.integers(2, 500).map(lambda n: 2 * n), min_size=len(stages), max_size=len(stages)
            )
        )
    )
    placed = tuple(
        Stage(s.weights, RunPosition("samples", end), s.interpolation)
        for s, end in zip(stages, ends, strict=True)
    )
    own = {"a": 1.0, "b": 2.0, "c": 0.0}
    model = MixtureFile(tuple(SourceEntry(name) for name in own), stages=placed)
    wanted, rows = dict(own), list[dict[str, float]]()
    for stage in placed:
        wanted |= stage.weights
        rows.append(dict(wanted))
    if not all(any(row.values()) for row in rows):
        return
    made, start = build_stage_schedule(model, own, None), 0
    for stage, end, row in zip(placed, ends, rows, strict=True):
        shares = {name: weight / sum(row.values()) for name, weight in row.items()}
        places = (start, end - 1) if stage.interpolation == "step" else (end - 1,)
        for place in places:
            exact = stage.interpolation == "step" or made.weights(end) != pytest.approx(shares)
            near = 1e-9 if exact else 2 * (1 / (end - start))
            assert made.weights(place) == pytest.approx(shares, abs=near), (place, made)
        start = end


def test_a_description_comes_back_and_so_does_the_dataset(data: Path, write: Any) -> None:
    path = write(
        GROUPED + "horizon: {tokens: 15k}\npack: {length: 8}\ntokenize: {tokenizer: none.json}\n"
        "stages:\n  - {name: one, until: 12.5%}\n  - {until: {tokens: 9k}, interpolation: cosine, weights: {a: 1, code: 0.5}}\n  - {}\n"
    )
    model, problems = read_model(path)
    assert model is not None and not problems
    ps.dump(model, data / "again.yaml")
    assert read_model(data / "again.yaml") == (model, [])
    points = [
        (0, {"a": 1, "b": 1, "c": 0}),
        (9, {"a": 1, "b": 3, "c": 0}),
        (20, {"a": 1, "b": 1, "c": 1}),
    ]
    ds = ps.mix(inputs(data), ps.Schedule(points, ["cosine", "step"]))
    ps.dump(ds, data / "dataset.yaml")
    assert ps.load(data / "dataset.yaml").tree.description() == ds.tree.description()


WRONG = {
    "groups: {web: 1}\n": "groups.web: the group has no source: set group: web",
    "groups: {a: 1}\n": "'a' is also the name of a source",
    "stages: [{weights: {d: 1}}]\n": "stages[0].weights.d: there is no source or group 'd'",
    "stages: [{weights: {a: 1}}, {weights: {b: 1}}]\n": "stages[0]: until is missing",
    "stages: [{until: 50%, weights: {a: 1}}, {}]\n": "a percentage needs a horizon",
    "stages: [{until: soon, weights: {a: 1}}, {}]\n": "a position such as 40%, {steps: 1000} or {tokens: 2T}, not 'soon'",
    "stages: [{until: {steps: 1, tokens: 2}}]\n": "a position such as 40%",
    "stages: [{weights: {a: 1}}]\nschedule: {points: {0: {a: 1, b: 1, c: 1}}}\n": "the stages define the weights",
}


@pytest.mark.parametrize("text", WRONG)
def test_mistakes_are_named(text: str, write: Any) -> None:
    problems = [str(problem) for problem in lint(write(SOURCES + text))]
    assert any(WRONG[text] in problem for problem in problems), problems


@pytest.mark.parametrize(
    ("horizon", "until", "counted"),
    [
        ("{tokens: 9k}", "loss_tokens", "tokens"),
        ("{steps: 9}", "loss_tokens", "steps (in samples)"),
        ("{tokens: 9k}", "samples", "tokens"),
        ("{epochs: 2}", "tokens", "epochs (in samples)"),
    ],
)
def test_another_unit_than_that_of_the_horizon_is_an_error_of_the_stages(
    horizon: str, until: str, counted: str, write: Any
) -> None:
    path = write(
        f"{SOURCES}unit: tokens\nhorizon: {horizon}\n"
        f"stages: [{{until: {{{until}: 5}}, weights: {{a: 1}}}}, {{weights: {{b: 1}}}}]\n"
    )
    said = f"stages end at {until} and the horizon counts {counted}: use one unit"
    assert (4, "stages", said) in [(each.line, each.key, each.message) for each in lint(path)]
    with pytest.raises(ps.ConfigError, match=r"line 4, stages: stages end at"):
        ps.load(path)


def test_what_only_building_tells_is_said_then(write: Any) -> None:
    for text, said in {
        "horizon: {samples: 9}\nstages: [{until: {samples: 5}, weights: {a: 1}}, {until: 20%, weights: {b: 1}}]": "each must end after",
        "stages: [{until: {samples: 5}, interpolation: linear, weights: {a: 1}}, {}]": "ramps from weights that are all 0",
        "stages: [{until: {samples: 5}, weights: {a: 1}}, {interpolation: linear, weights: {b: 1}}]": "ramps without an end",
        "stages: [{until: {samples: 5}, weights: {a: 1}}, {until: {tokens: 9}}]": "use one unit",
    }.items():
        with pytest.raises(ps.ConfigError, match=said):
            ps.load(write(SOURCES + text))
    with pytest.raises(
        ps.ConfigError, match="the group 'code' has a weight, but all its sources have weight 0"
    ):
        ps.load(write(GROUPED.replace("weight: 2", "weight: 0").replace("weight: 1", "weight: 0")))


def test_temperature_is_of_tokens_where_tokens_count() -> None:
    short, long = (np.arange(0, 100 * n + 1, n) for n in (1, 9))
    stores = {"a": ps.from_tokens(np.arange(100), short), "b": ps.from_tokens(np.arange(900), long)}
    for temperature, share in ((1, 0.9), (2, 0.75), (1e9, 0.5)):
        counts = ps.mix(stores, unit="tokens", temperature=temperature).plan.counts(
            100_000, unit="tokens"
        )
        assert counts["b"] / sum(counts.values()) == pytest.approx(share, abs=1e-3)
    assert ps.mix(stores, temperature=2).plan.counts(1_000) == {"a": 500, "b": 500}


def test_lint_counts_stages_and_groups(write: Any) -> None:
    text = GROUPED + "horizon: {samples: 1k}\n"
    ps.load(write(text))  # the rows of lines are known once they are indexed
    assert "sources.b: the source is read about 17.5 times over the run (40 rows)" in " ".join(
        map(str, lint(write(text)))
    )
    staged_text = text + "stages: [{until: 50%}, {weights: {text: 0}}]\n"
    assert "sources.b: the source is read about 8.8 times" in " ".join(
        map(str, lint(write(staged_text)))
    )
    never = (
        SOURCES.replace("b: {path: text}", "b: {path: text, weight: 0}")
        + "horizon: {samples: 40}\n"
    )
    assert not any(
        "never read" in str(one)
        for one in lint(write(never + "stages: [{weights: {a: 1, b: 1, c: 1}}]"))
    )


def test_other_weights_than_those_of_groups(write: Any) -> None:
    model, _ = read_model(write(GROUPED))
    assert model is not None and model.shares() == {"a": 0.2, "b": 0.7, "c": 0.1}
    assert override_weights(model, ["a=1"], []).shares() == {"a": 0.15, "b": 0.7, "c": 0.15}
    with pytest.raises(ps.ConfigError, match="the group 'text' has a weight"):
        override_weights(model, ["b=0"], []).shares()


def test_other_weights_than_those_of_a_file_with_stages(write: Any) -> None:
    model, _ = read_model(
        write(SOURCES + "horizon: {samples: 40}\nstages: [{until: 50%}, {weights: {a: 4}}]\n")
    )
    assert model is not None
    new = override_weights(model, ["b=3"], [])
    assert [source.weight for source in new.sources] == [1.0, 3.0, 1.0]
    assert [stage.weights for stage in new.stages] == [{}, {"a": 4}]
    with pytest.raises(ps.ConfigError, match="give a weight for every source"):
        override_weights(replace(model, temperature=2.0), ["b=3"], [])


def test_percentages_of_passes(data: Path, write: Any) -> None:
    path = write(
        SOURCES
        + "horizon: {epochs: 2}\nstages: [{until: 50%, weights: {a: 1}}, {weights: {a: 0, b: 1}}]\n"
    )
    assert [str(problem) for problem in lint(path) if problem.severity == "error"] == []
    ds = ps.load(path)
    assert len(ds) == 260 and ds.plan.counts(260) == {"a": 130, "b": 130, "c": 0}
    assert ds.plan.counts(130)["b"] == 0


def test_groups_and_stages_over_a_nested_mixture(data: Path, write: Any) -> None:
    path = write(
        "horizon: {samples: 400}\ngroups: {x: 1, y: 3}\nsources:\n"
        "  in: {group: x, mixture: {groups: {u: 1, v: 1}, sources: {a: {path: code, group: u}, b: {path: text, group: v}}}}\n"
        "  c: {path: code/0.parquet, group: y}\nstages: [{until: 50%}, {weights: {x: 3, y: 1}}]\n"
    )
    assert [str(problem) for problem in lint(path) if problem.severity == "error"] == []
    assert ps.load(path).plan.counts(400) == pytest.approx(
        {"in/a": 100, "in/b": 100, "c": 200}, abs=2
    )
