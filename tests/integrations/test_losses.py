"""Losses by source: sums of every library, and packed runs against padded ones on two processes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from example_counts import examples
from integrations.forked_ranks import run_script
from integrations.source_losses import STEPS
from jax_ranks import crew, free_port
from penstock.integrations.losses import (
    count_loss_tokens,
    mean_by_source,
    reduce_loss_tokens,
    sum_by_source,
    weigh_losses,
)

SCRIPT = Path(__file__).parent / "source_losses.py"
LIBRARIES = ("numpy", "torch", "jax")
SHAPES: list[tuple[int, ...]] = [
    (0,),
    (1,),
    (7,),
    (2048,),
    (1, 1),
    (3, 33),
    (4, 1024),
    (0, 4),
    (4, 0),
]
"""Few, because JAX compiles for each."""


def convert(library: str) -> Callable[[Any], Any]:
    if library == "numpy":
        return np.asarray
    if library == "torch":
        return pytest.importorskip("torch").tensor
    return pytest.importorskip("jax.numpy").asarray


@examples(60)
@given(
    seed=st.integers(0, 2**32 - 1),
    shape=st.sampled_from(SHAPES),
    sources=st.sampled_from([1, 4]),
    given_by=st.sets(st.sampled_from(["labels", "mask", "rows"])),
    flat=st.booleans(),
    library=st.sampled_from(LIBRARIES),
)
def test_sums_are_those_of_a_loop(
    seed: int, shape: tuple[int, ...], sources: int, given_by: set[str], flat: bool, library: str
) -> None:
    rng, array = np.random.default_rng(seed), convert(library)
    losses = rng.gamma(2, 2, shape).astype(np.float32)
    ids = rng.integers(-1, sources, shape).astype(rng.choice(["int16", "int32"]))
    options, kept = dict[str, Any](), ids >= 0
    if "labels" in given_by:
        labels = rng.integers(0, 4, shape)
        labels[labels == 0] = -100
        options["labels"], kept = array(labels), kept & (labels != -100)
    if given_by & {"mask", "rows"}:
        mask = rng.random(shape[:1] if "rows" in given_by else shape) < 0.7
        options["mask"] = array(mask)
        kept = kept & mask.reshape(mask.shape + (1,) * (len(shape) - mask.ndim))
    losses[~kept & (rng.random(shape) < 0.5)] = np.nan  # what is left out may be anything
    sums = sum_by_source(
        array(losses.reshape(-1) if flat else losses), array(ids), sources, **options
    )
    means = dict[str, float]()
    for source in range(sources):
        mine = kept & (ids == source)
        assert float(sums[1][source]) == mine.sum()
        np.testing.assert_allclose(
            float(sums[0][source]), losses[mine].sum(dtype=np.float64), rtol=1e-6
        )
        if mine.any():
            means[f"source {source}"] = losses[mine].mean(dtype=np.float64)
    found = mean_by_source(sums, [f"source {source}" for source in range(sources)])
    assert found == pytest.approx(means, rel=1e-6) and list(found) == list(means)


@pytest.mark.parametrize("library", LIBRARIES)
def test_many_tokens_lose_no_small_loss(library: str) -> None:
    losses = np.full((1 << 22) + 1024, 0.1, np.float32)
    sums = sum_by_source(convert(library)(losses), np.zeros(losses.shape, np.int16), 2)
    np.testing.assert_allclose(
        mean_by_source(sums, ("a", "b"))["a"], float(np.float32(0.1)), rtol=1e-6
    )


@pytest.mark.parametrize("library", LIBRARIES)
def test_wrong_shapes_and_sources_are_named(library: str) -> None:
    array = convert(library)
    losses, ids = array(np.ones((2, 8), np.float32)), array(np.ones((2, 8), np.int16))
    with pytest.raises(ps.ConfigError, match=r"give source_ids\[:, 1:\]"):
        sum_by_source(losses[:, 1:], ids, 2)
    with pytest.raises(ps.ConfigError, match="labels of shape"):
        sum_by_source(losses, ids, 2, labels=ids[:1])
    with pytest.raises(ps.ConfigError, match="mask of shape"):
        sum_by_source(losses, ids, 2, mask=ids[:, :3])
    with pytest.raises(ps.ConfigError, match=r"sum_by_source\(sources=0\)"):
        sum_by_source(losses, ids, 0)
    with pytest.raises(ps.ConfigError, match="none of the 1 sources"):
        mean_by_source(sum_by_source(losses, ids, 1), ("a",))
    with pytest.raises(ps.ConfigError, match=r"sum_by_source\(\.\.\., 3\)"):
        mean_by_source(sum_by_source(losses, ids, 2), ("a", "b", "c"))
    with pytest.raises(ps.ConfigError, match=r"sums of shape \[\]"):
        mean_by_source(0, ("a",))  # no batch was added up


@pytest.mark.parametrize("library", LIBRARIES)
def test_weighed_losses_are_those_of_a_loop(library: str) -> None:
    rng, array = np.random.default_rng(4), convert(library)
    losses = rng.gamma(2, 2, (3, 33)).astype(np.float32)
    ids = rng.integers(-1, 3, losses.shape).astype(np.int16)
    labels = rng.choice([-100, 7], losses.shape)
    weights, names = {"b": 0.25, "c": 0}, ("a", "b", "c")
    found = weigh_losses(array(losses), array(ids), weights, names, labels=array(labels))
    for place in np.ndindex(losses.shape):
        known = ids[place] >= 0 and labels[place] != -100
        weight = weights.get(names[ids[place]], 1) if known else 0
        assert float(found[place]) == pytest.approx(losses[place] * weight)
    assert str(found.dtype).endswith("float32")
    unknown = weigh_losses(array(losses), array(ids), {}, ("a", "b"))
    assert np.isnan(np.asarray(unknown)[ids == 2]).all()
    assert not np.isnan(np.asarray(unknown)[ids != 2]).any()


def test_gradients_are_weighed_and_left_out_losses_have_none() -> None:
    torch = pytest.importorskip("torch")
    losses = torch.tensor([1.0, 2.0, float("nan")], requires_grad=True)
    total = weigh_losses(losses, torch.tensor([0, 1, -1]), {"b": 0.5}, ("a", "b")).sum()
    total.backward()
    assert float(total.detach()) == 2 and losses.grad.tolist() == [1, 0.5, 0]
    with pytest.raises(ps.ConfigError, match="name 'd', and the sources are"):
        weigh_losses(losses, [0, 0, 0], {"d": 1}, ("a", "b"))
    with pytest.raises(ps.ConfigError, match="weight of 'a' is -1"):
        weigh_losses(losses, [0, 0, 0], {"a": -1}, ("a", "b"))
    with pytest.raises(ps.ConfigError, match="weigh_losses: losses of shape"):
        weigh_losses(losses, torch.zeros(4), {}, ("a",))


@pytest.mark.parametrize("library", LIBRARIES)
def test_weights_of_a_dataset_are_those_of_its_sources_by_name(library: str) -> None:
    array = convert(library)
    inputs = {name: ps.from_sequence([name]) for name in "ab"}
    nested = ps.mix(
        {"x": ps.mix(inputs, loss_weights={"a": 0.5}), "y": inputs["a"], "z": inputs["b"]},
        loss_weights={"x": 0.25, "y": 0},
    )
    assert dict(zip(nested.sources, nested.loss_weights, strict=True)) == {
        "x/a": 0.125, "x/b": 0.25, "y": 0, "z": 1,
    }  # fmt: skip
    losses, ids = np.arange(1.0, 6, dtype=np.float32), np.array([0, 1, 2, 3, -1])
    by_name = dict(zip(nested.sources, nested.loss_weights, strict=True))
    found = weigh_losses(array(losses), array(ids), nested.loss_weights)
    expected = weigh_losses(array(losses), array(ids), by_name, nested.sources)
    assert np.asarray(found).tolist() == np.asarray(expected).tolist() == [0.125, 0.5, 0, 4, 0]
    with pytest.raises(ps.ConfigError, match="3 weights for the 4 sources"):
        weigh_losses(array(losses), array(ids), (1, 1, 1), nested.sources)
    with pytest.raises(ps.ConfigError, match="weight of source 1 is -1"):
        weigh_losses(array(losses), array(ids), (1, -1))


def test_inputs_of_a_rule_have_loss_weights() -> None:
    class Alternate:
        def size(self, sizes: Any) -> int | None:
            return None

        def at(self, positions: Any) -> Any:
            return positions % 2, positions // 2

        def describe(self) -> str:
            return "alternate"

    inputs = {name: ps.from_sequence([name]).map(str) for name in "ab"}
    inner = ps.mix(inputs, rule=Alternate(), loss_weights={"b": 0.5})
    both = ps.mix({"x": inner, "y": inputs["a"]}, loss_weights={"x": 3}).batch(2)
    names = [name.split("/")[0] for name in both.sources]
    assert sorted(zip(names, both.loss_weights, strict=True)) == [("x", 1.5), ("x", 3), ("y", 1)]
    assert inputs["a"].zip(inputs["b"]).loss_weights == (1, 1)


def test_loss_weights_change_no_order_and_may_change_at_a_resume() -> None:
    def make(weights: dict[str, float] | None) -> ps.Dataset:
        inputs = {name: ps.from_sequence(range(40)).shuffle() for name in "ab"}
        return ps.mix(inputs, {"a": 1, "b": 3}, seed=1, loss_weights=weights)

    plain, weighed = make(None), make({"a": 2})
    assert plain.loss_weights == (1, 1) and weighed.loss_weights == (2, 1)
    assert list(plain[:100]) == list(weighed[:100])
    assert plain.tree.description() == weighed.tree.description()
    batches = iter(loader := ps.Loader(plain.batch(4)))
    for _ in range(5):
        next(batches)
    resumed = ps.Loader(weighed.batch(4))
    resumed.load_state_dict(loader.state_dict())
    assert next(iter(resumed)).tolist() == next(batches).tolist()
    assert weighed.shuffle_buffer(4).map(str).batch(2).loss_weights == (2, 1)
    for wrong, message in (
        ({"c": 1}, "names 'c'|names \\['c'\\]"),
        ({"a": -1}, "the weight of 'a' is -1; give a number of at least 0"),
        ({"a": float("nan")}, "the weight of 'a' is nan"),
        ({"a": float("inf")}, "the weight of 'a' is inf"),
        ({"a": "2"}, "the weight of 'a' is '2'"),
        ({"a": True}, "the weight of 'a' is True"),
    ):
        with pytest.raises(ps.ConfigError, match=message):
            make(wrong)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("library", LIBRARIES)
def test_tokens_of_batches_are_counted_in_every_library(library: str) -> None:
    array = convert(library)
    labels = np.array([[-100, 5, 6, -100], [-100, -100, 1, 2]])
    segments = np.array([[1, 1, 2, 2], [1, 1, 1, 0]])
    rows = {"segment_ids": segments, "positions": segments, "loss_mask": segments != 2}
    cases: list[tuple[dict[str, Any], int]] = [
        ({"labels": labels}, 4),
        ({"labels": labels, "valid": np.array([True, False])}, 2),
        (rows, 3),
        ({**rows, "labels": labels}, 2),
    ]
    for batch, expected in cases:
        count = count_loss_tokens({name: array(value) for name, value in batch.items()})
        assert int(count) == expected == reduce_loss_tokens(count)
        assert type(count).__module__.partition(".")[0] in (library, "jaxlib")
    assert int(count_loss_tokens(array(labels))) == 6
    for batch in ({"labels": labels[0]}, {"x": labels}, 3, labels[0]):
        with pytest.raises(ps.ConfigError, match="count_loss_tokens takes batches"):
            count_loss_tokens(batch)


@pytest.mark.parametrize("library", LIBRARIES)
def test_flattened_rows_with_padding_rows_are_not_counted(library: str) -> None:
    array = convert(library)
    batch = {"labels": array(np.array([[-100, 5, 6, -100, 7]]))}
    assert int(count_loss_tokens({**batch, "valid": array(np.array([True]))})) == 3
    assert int(count_loss_tokens({**batch, "valid": array(np.array([False]))})) == 0
    with pytest.raises(ps.ConfigError, match=r"rows of shape \[2\].*'drop' or 'keep'"):
        count_loss_tokens({**batch, "valid": array(np.array([True, False]))})


def test_sources_of_equal_names_are_added_up() -> None:
    sums = np.array([[4.0, 6.0, 5.0], [1.0, 4.0, 1.0]])
    assert mean_by_source(sums, ("web", "web", "code")) == {"web": 2.0, "code": 5.0}


def test_torch_sums_compile_and_never_wait_for_the_device() -> None:
    torch = pytest.importorskip("torch")
    losses = torch.empty(4, 8, device="meta")  # a device that has no values to wait for
    ids = torch.empty(4, 8, dtype=torch.int16, device="meta")
    sums = sum_by_source(losses, ids, 3, labels=ids.long(), mask=ids[:, 0])
    assert sums.shape == (2, 3) and sums.device.type == "meta"
    learned = torch.ones(4, requires_grad=True)
    assert not sum_by_source(learned, torch.zeros(4), 1).requires_grad


def test_jax_sums_trace_and_carry_no_gradient() -> None:
    jax = pytest.importorskip("jax")
    losses, ids = np.ones((2, 4), np.float32), np.array([[0, 1, 1, -1], [0, 0, 1, 2]], np.int16)
    jitted = jax.jit(lambda losses, ids: sum_by_source(losses, ids, 3, mask=ids[:, 0] == 0))
    assert jitted(losses, ids).tolist() == [[3, 3, 1], [3, 3, 1]]
    grad = jax.grad(lambda losses: (sum_by_source(losses, ids, 3)[0] + losses.sum()).sum())
    assert grad(jax.numpy.asarray(losses)).tolist() == [[3.0] * 4] * 2


def check_forms(reports: list[Any], rtol: float) -> None:
    """Assert that packed and padded runs measured equal losses, equal on all ranks."""
    assert reports[0] == reports[1]
    both = reports[0]
    assert len(both["packed"]) == len(both["padded"]) == STEPS
    for one, other in zip(both["packed"], both["padded"], strict=True):
        assert one.keys() == other.keys() == {"code", "math", "web"}
        np.testing.assert_allclose(list(one.values()), [other[name] for name in one], rtol=rtol)
    first, last = both["packed"][0], both["packed"][-1]
    assert all(last[name] < first[name] for name in first)  # it learns
    assert len({round(value, 3) for value in first.values()}) == 3


@pytest.mark.slow  # two processes that train
def test_packed_and_padded_runs_of_torch_measure_equal_losses(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    run_script(SCRIPT, free_port(), tmp_path)
    reports = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    check_forms(reports, rtol=1e-12)


@pytest.mark.slow  # two processes of JAX
def test_packed_and_padded_runs_of_jax_measure_equal_losses() -> None:
    pytest.importorskip("jax")
    check_forms(crew(2, "integrations.source_losses", "by_jax"), rtol=1e-5)
