"""Which pipelines can be planned: what is endless is packed as it comes."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.engine.steps import mix_history as history
from penstock.engine.steps.exclude import ExcludeSamples
from penstock.engine.steps.mix_op import MixOp
from penstock.engine.steps.op import Op
from penstock.engine.steps.pack import PackOp
from penstock.engine.steps.step import Builder
from penstock.testing import assert_resumes


def documents(n: int = 15) -> ps.Dataset:
    return ps.from_tokens(np.arange(7 * n), np.arange(0, 7 * n + 1, 7))


@pytest.mark.parametrize(
    ("method", "options"), [("first_fit", {}), ("best_fit", {"overflow": "never"})]
)
def test_an_endless_mixture_of_known_lengths_is_packed_as_it_comes(
    method: Any, options: Any
) -> None:
    ds = (
        ps.mix({"a": documents(), "b": documents(9)}, seed=3)
        .pack(16, method=method, **options)
        .batch(2)
    )
    rows = list(islice(ds, 30))
    assert len(rows) == 30
    with pytest.raises(
        ps.IndexedError, match=r"endless dataset cannot be planned ahead \(limit\(n\)"
    ):
        ds[0]
    assert_resumes(lambda: iter(ds), steps=12, at_most=4)
    assert (
        len(
            ps.mix({"a": documents(), "b": documents(9)}, seed=3)
            .limit(40)
            .pack(16, method=method, **options)
        )
        > 0
    )


def test_sizes_that_a_function_gives_are_not_taken_for_lengths() -> None:
    ds = documents(10).batch_by_tokens(10, size=lambda doc: 5, collate=list)
    assert [len(group) for group in ps.Loader(ds, lanes=1)] == [2] * 5
    with pytest.raises(
        ps.IndexedError, match=r"batch_by_tokens\(\) needs sizes that a function gives"
    ):
        ds[0]
    groups = documents(10).batch_by_tokens(14, collate=list)
    assert [group[0].tolist() for group in groups] == [groups[i][0].tolist() for i in range(5)]
    assert len(groups) == 5


def test_a_shuffle_buffer_over_a_token_store_is_one_over_samples() -> None:
    ds = documents(10).shuffle_buffer(3)
    assert sorted(map(len, ds)) == sorted(map(len, documents(10)))
    with pytest.raises(ps.IndexedError, match="shuffle_buffer|ShuffleBuffer"):
        ds[0]


def below(op: Op) -> list[Op]:
    return [op, *(each for inner in op.inputs for each in below(inner))]


def test_what_is_known_of_a_tree_is_not_worked_out_again_for_those_that_go_on_from_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = list[MixOp]()

    class Counted(MixOp):
        def __init__(self, *args: Any, **more: Any) -> None:
            made.append(self)
            super().__init__(*args, **more)

    monkeypatch.setattr(history, "MixOp", Counted)
    inputs = {"a": documents().shuffle(), "b": documents(9)}
    mixture = ps.mix(inputs, {"a": 2, "b": 1}, stop="all_exhausted", seed=3)
    rows = mixture.pack(16)
    for ds in (
        mixture,
        rows,
        rows.limit(4).batch(2),
        rows.map_with_index(lambda row, index: (row, index))[1:5],
        mixture.skip(3),
    ):
        assert [str(sample) for sample in ds.plan.at(0)] and len(ds)
        found, alone = below(ds.compiled.op), below(Builder(ds.tree).op(ds.tree))
        assert [type(op) for op in found] == [type(op) for op in alone]
        assert [getattr(op, "node", None) for op in found] == [
            getattr(op, "node", None) for op in alone
        ]
        assert [str(key) for key in ds.plan.audit(range(2)).table().to_pylist()] == [
            str(key) for key in ps.Dataset(ds.tree).plan.audit(range(2)).table().to_pylist()
        ]
    assert sum(op in made for op in below(rows.limit(4).batch(2).compiled.op)) == 1
    kept = [
        op for op in below(rows.limit(4).batch(2).compiled.op) if isinstance(op, MixOp | PackOp)
    ]
    assert [id(op) for op in kept] == [
        id(op) for op in below(rows.compiled.op) if isinstance(op, MixOp | PackOp)
    ]


def test_a_tree_whose_sources_get_other_names_is_compiled_by_itself() -> None:
    one, other = documents().shuffle(seed=1), documents(9)
    both = one.concat(other)
    assert len(one) + len(other) == len(both)
    assert [leaf.name for leaf in both.compiled.builder.leaves] == ["data/0", "data/1"]
    assert both.plan.at(0)[0].source == "data/0" and one.plan.at(0)[0].source == "data"
    assert one.plan.at(0)[0].index == both.plan.at(0)[0].index


def test_orders_over_other_numbers_of_rows() -> None:
    source = ps.from_sequence(range(9), name="a")
    below = ExcludeSamples(source.shuffle(seed=1).tree, (0,), ((2,),))
    tree = ps.Dataset(below)[1:8].tree
    builder = Builder(tree)
    assert builder.other_rows({"a": 9, "b": 3}) == {}
    rows = builder.other_rows({"a": 6, "b": 3})
    assert rows == {"a": 6} and tree.has_exclusions
    former = builder.with_rows(rows).op(tree)
    expected = ps.from_sequence(range(6), name="a").shuffle(seed=1)[1:6].tree
    assert former.size == 5
    positions = np.arange(5)
    index = Builder(expected).op(expected).locate(positions).index
    assert former.locate(positions).index.tolist() == index.tolist()


def test_mixtures_by_weight_stay_those_of_the_present_rows() -> None:
    mix = ps.mix({"x": ps.from_sequence(range(9), name="a")}, stop="all_exhausted")
    tree = mix.shuffle(seed=1).tree
    builder = Builder(tree)
    then = builder.with_rows({"x/a": 6, "x": 6})
    assert then.op(mix.tree) is builder.op(mix.tree)
    assert not tree.ordered_sources(builder, ()) and not tree.has_exclusions


@pytest.mark.parametrize(
    ("group", "said"),
    [
        (lambda ds: ds.pack(8), r"pack\(\) needs the lengths"),
        (lambda ds: ds.pack(8, method="first_fit"), r"pack\(\) needs the lengths"),
        (lambda ds: ds.pack(8, method="best_fit"), r"pack\(\) needs the lengths"),
        (lambda ds: ds.pack(8, group_by="__source__"), r"pack\(\) needs the lengths"),
        (lambda ds: ds.pack_features({"a": 8}), r"pack_features\(\) needs values"),
        (lambda ds: ds.bucket_by_length([4], 3), r"bucket_by_length\(\) needs the lengths"),
        (
            lambda ds: ds.shuffle_buffer(3),
            r"shuffle_buffer\(\) needs the samples in its buffer",
        ),
    ],
)
def test_a_step_without_random_access_goes_by_its_method(
    group: Callable[[ps.Dataset], ps.Dataset], said: str
) -> None:
    with pytest.raises(ps.IndexedError, match=f"but {said}"):
        assert group(documents(10).map(list)).plan
