"""Global arrays: the rows of every process in their places, states of what was given, the same run as without."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from functools import cache
from itertools import islice
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import penstock as ps
from example_counts import examples
from jax_ranks import crew
from jax_tasks import LAYOUTS, rows
from penstock.errors import ConfigError, DataError, StateError
from penstock.integrations.jax_form import JaxForm
from penstock.stores.storage import override_world
from penstock.testing import SimulatedScheduler


@cache
def here() -> NamedSharding:
    """Return the sharding of one device, which holds all rows."""
    return NamedSharding(Mesh(np.array(jax.devices()[:1]), "data"), PartitionSpec("data"))


def bad(x: int) -> int:
    if x == 7:
        raise ValueError("seven")
    return x


def numbers(n: int = 30, name: str = "numbers") -> ps.Dataset:
    return ps.from_sequence(range(n), name=name).shuffle(seed=2)


def mixture() -> ps.Dataset:
    return ps.mix({"a": numbers(20, "a"), "b": numbers(50, "b")}, {"a": 1, "b": 2}, seed=3)


FLOWS: dict[str, Callable[[], tuple[ps.Dataset, dict[str, Any]]]] = {
    "batches": lambda: (numbers().batch(4), {}),
    "mixed": lambda: (mixture().batch(4), {"epoch_length": 5}),
    "filtered": lambda: (numbers().filter(lambda x: x % 3).batch(2), {}),
    "packed": lambda: (
        numbers().map(lambda x: np.full(x % 5 + 1, x, np.int32)).pack(8).batch(2),
        {"lanes": 2},
    ),
    "padded": lambda: (numbers(10).batch(4), {"remainder": "pad"}),
    "quarantined": lambda: (numbers().map(bad).batch(4), {"on_error": "quarantine"}),
    "no numbers": lambda: (numbers().map(str).batch(4), {}),
    "objects": lambda: (numbers().batch(4, collate=list), {}),
    "empty": lambda: (ps.from_sequence(list[int]()).batch(4), {}),
    "threads": lambda: (numbers(60).batch(4), {"workers": 2}),
}


def loader(name: str, **more: Any) -> ps.Loader:
    ds, options = FLOWS[name]()
    return ps.Loader(ds, **options, **more)


def sharded(flow: str | ps.Dataset, **more: Any) -> ps.Loader:
    """Batches as global arrays."""
    usual: Any = {"to": "jax", "device": here(), **more}
    return loader(flow, **usual) if isinstance(flow, str) else ps.Loader(flow, **usual)


def plain(item: Any) -> Any:
    """A batch without arrays of either kind."""
    return ps.arrays.trees.map_leaves(lambda x: x.tolist() if hasattr(x, "tolist") else x, item)


def joined(shards: list[Any]) -> Any:
    """A global array, from what each process has of it: [shape, [[begin, values], ...]]."""
    (shape,) = {tuple(each[0]) for each in shards}
    out = np.full(shape, np.nan)
    for begin, values in (piece for each in shards for piece in each[1]):
        out[tuple(slice(b, b + n) for b, n in zip(begin, np.shape(values), strict=True))] = values
    return out


@pytest.fixture(scope="module")
def said() -> list[Any]:
    """Return the observations of four processes with two devices each, for all layouts."""
    return crew(4, "jax_tasks", "places", devices=2)


@pytest.mark.slow  # four processes of JAX
def test_rows_of_every_process_lie_where_the_layout_says(said: list[Any]) -> None:
    assert [each["found"] for each in said] == [[rank, 4] for rank in range(4)]
    worlds = {
        "data": 4,
        "data and model": 4,
        "wide model": 2,
        "model first": 1,
        "two axes": 4,
        "columns": 2,
    }
    for name in LAYOUTS:
        seen = [each["seen"][name] for each in said]
        places = [tuple(each["place"]) for each in seen]
        world = worlds.get(name, 1 if name == "no axis" else 4)
        assert places == [(process * world // 4, world) for process in range(4)]
        shares = [
            ps.Loader(rows().batch(24 // world), rank=rank, world_size=world)
            for rank in range(world)
        ]
        for step, want in enumerate(islice(zip(*shares, strict=True), 2)):
            for x, whole in (
                ("x", [part["x"] for part in want]),
                ("y", [part["inner"]["y"] for part in want]),
            ):
                assert np.array_equal(
                    joined([each[x][step] for each in seen]), np.concatenate(whole)
                )
            assert [each["names"][step] for each in seen] == [
                want[rank]["name"] for rank, _ in places
            ]
        assert [each["keys"] for each in seen] == [
            [list(key) for key in shares[rank].keys()] for rank, _ in places
        ]
    assert [each["itself"] for each in said] == [each["seen"]["data"]["x"] for each in said]


@pytest.mark.slow
def test_layouts_and_loaders_that_cannot_be_are_refused_in_every_process(said: list[Any]) -> None:
    for rank, one in enumerate(said):
        overlap, other, ragged, uneven = one["refused"]
        assert (
            "process 0 holds [0, 1], process 1 holds [0, 1], process 2 holds [2], process 3 holds [3]"
            in overlap
        )
        assert (
            f"the loader is rank 0 of 1, but the devices of this process hold share {rank} of 4"
            in other
        )
        assert "remainder='keep' ends ranks at different steps" in ragged
        assert "x has 3 rows, which cannot be split over the 2 pieces of this process" in uneven
        assert (
            one["few"] == [rank, 3]
            if rank < 3
            else "process 3 has no device in the mesh" in one["few"]
        )


def standing(loader: ps.Loader) -> dict[str, Any]:
    """The state without its journal, which has bad samples of items made ahead as well."""
    return {
        name: value
        for name, value in loader.state_dict().items()
        if name not in ("journal", "check")
    }


@pytest.mark.parametrize("name", FLOWS)
def test_items_keys_and_states_are_those_of_the_loader(name: str) -> None:
    want, with_ahead = loader(name), sharded(name)
    for _ in range(3):  # passes
        steps = iter(want)
        for item in with_ahead:
            assert plain(item) == plain(next(steps))
            assert with_ahead.keys() == want.keys()
            assert standing(with_ahead) == standing(want)
        assert list(steps) == []
        assert with_ahead.state_dict() == want.state_dict()
    with_ahead.close()
    want.close()


@given(st.data())
@examples(12)
def test_resumes_anywhere_whatever_is_ahead(data: st.DataObject) -> None:
    # The simulated scheduler lets a task that waits run others, also of a single thread: no workers under it.
    name = data.draw(st.sampled_from(sorted(FLOWS.keys() - {"empty", "threads"})))
    many = data.draw(st.integers(0, 12))

    def given_out(batches: Any, n: int) -> list[Any]:
        found = list[Any]()
        while len(found) < n:  # over the ends of passes
            found += [plain(item) for item in islice(batches, n - len(found))]
        return found

    with override_world(sched=SimulatedScheduler(data.draw(st.integers(0, 99)), twice=0.3)):
        first, again, alone = (sharded(name) for _ in range(3))
        given_out(first, many)
        state = first.state_dict()
        given_out(again, data.draw(st.integers(0, 5)))
        again.load_state_dict(state)
        assert again.keys() == []
        assert given_out(again, 6) == given_out(first, 6)
        assert given_out(alone, many + 6)[many:] == given_out(resumed(name, state), 6)


def resumed(name: str, state: Any) -> ps.Loader:
    again = sharded(name)
    again.load_state_dict(state)
    return again


def test_weights_set_are_those_from_the_last_batch_given_on() -> None:
    def run(given: Any) -> list[Any]:
        keys = list[Any]()
        for step, _ in zip(range(12), given, strict=False):
            keys.append(given.keys())
            if step == 3:
                assert given.set_weights({"a": 5, "b": 1}) == 16
        return [*keys, given.state_dict()]

    endless = mixture().batch(4)
    with sharded(endless) as batches:
        assert run(batches) == run(ps.Loader(endless))


def test_seek_and_a_state_that_does_not_fit() -> None:
    with sharded("batches") as loader:
        loader.seek(3)
        batches = iter(loader)
        at_three = next(batches)
        with pytest.raises(StateError):
            loader.load_state_dict({})
        assert np.array_equal(np.asarray(at_three), numbers().batch(4)[3])
        assert np.array_equal(np.asarray(next(batches)), numbers().batch(4)[4])
        loader.seek(2)
        assert np.array_equal(np.asarray(next(iter(loader))), numbers().batch(4)[2])


def test_an_error_comes_at_its_place_and_loses_nothing() -> None:
    broken = {20, 32}

    def flaky(x: int) -> int:
        if x in broken:
            raise ValueError(f"row {x}")
        return x

    ds = ps.from_sequence(range(40)).map(flaky).batch(4)
    seen, failed = list[Any](), list[int]()
    with sharded(ds) as loader:
        batches = iter(loader)
        while True:
            try:
                seen.append(np.asarray(next(batches)).tolist())
            except StopIteration:
                break
            except Exception as error:
                assert f"row {4 * len(seen)}" in str(error)
                failed.append(len(seen))
                broken.discard(4 * len(seen))
    assert seen == [list(range(i, i + 4)) for i in range(0, 40, 4)]
    assert set(failed) == {5, 8}


def test_after_the_end_only_a_new_pass_gives_more() -> None:
    with sharded("batches") as loader:
        batches = iter(loader)
        assert len(loader) == len(list(batches)) == 8
        with pytest.raises(StopIteration):
            next(batches)
        assert len(list(loader)) == 8


def test_threads_end_with_it() -> None:
    before = threading.active_count()
    for name in ("threads", "packed", "empty"):
        with sharded(name) as batches:
            next(iter(batches), None)
    assert threading.active_count() == before
    with pytest.raises(ConfigError, match="closed"):
        next(iter(batches))


def test_what_is_no_number_stays_and_numbers_are_not_cut() -> None:
    form = JaxForm(here())
    item = {
        "int": np.arange(3), "bool": np.ones(3, bool), "half": np.ones((3, 2), np.float16), "names": ["a", "b", "c"],
        "words": np.array(["x", "y", "z"]), "when": np.zeros(3, "M8[s]"), "none": None, "alone": 7, "scalar": np.float32(2),
        "tuple": (np.zeros((3, 0)), b"raw"), "brain": np.ones(3, jax.numpy.bfloat16), "samples": [np.arange(2)],
    }  # fmt: skip
    got = form.copy(item)()
    assert list(got) == list(item)
    arrays = {name for name, value in got.items() if isinstance(value, jax.Array)}
    assert arrays == {"int", "bool", "half", "brain"}
    assert isinstance(got["tuple"][0], jax.Array)
    assert got["brain"].dtype == jax.numpy.bfloat16
    for name in ("names", "words", "when", "none", "alone", "scalar", "samples"):
        assert got[name] is item[name]
    with pytest.raises(
        DataError,
        match=r"a\.b has int64 between 0 and 2147483648, which JAX would silently truncate to int32",
    ):
        form.copy({"a": {"b": np.array([0, 1 << 31])}})
    with pytest.raises(DataError, match="the batch has uint32|the batch has uint64"):
        form.copy(np.array([1 << 40], np.uint64))
    for large in (np.array([1.0, -1e300]), np.array([1e300j]), np.array([[1e39, np.nan]])):
        with pytest.raises(DataError, match="x has .* which would be infinite as JAX's"):
            form.copy({"x": large})
    assert form.copy(np.array([np.inf, np.nan, 3e38]))().tolist()[0] == np.inf
    for kept in (np.ones(2, np.longdouble), np.ma.masked_equal([1, 2], 1)):
        assert form.copy({"x": kept})()["x"] is kept
    assert form.copy(np.array([-(1 << 31), (1 << 31) - 1]))().tolist() == [
        -(1 << 31),
        (1 << 31) - 1,
    ]


def test_arrays_lie_on_a_device_where_no_layout_is_given() -> None:
    for device in (None, jax.devices()[0]):
        found = next(iter(ps.Loader(numbers().batch(4), to="jax", device=device)))
        assert isinstance(found, jax.Array) and found.tolist() == numbers().batch(4)[0].tolist()
    wrongs: list[dict[str, Any]] = [{"device": "cpu:0"}, {"pin_memory": True}]
    for wrong in wrongs:
        with pytest.raises(
            ConfigError, match="device='cpu:0': give a jax.Device|pin_memory=True is for"
        ):
            ps.Loader(numbers(), to="jax", **wrong)


def test_copies_are_made_ahead() -> None:
    made = list[int]()
    ds = ps.from_sequence(range(40)).map(lambda x: made.append(x) or x).batch(1)
    with override_world(sched=SimulatedScheduler(1)), sharded(ds, prefetch=1) as batches:
        assert np.asarray(next(iter(batches))).tolist() == [0]
        assert 3 <= len(made)


def test_without_jax_the_loader_says_what_to_install() -> None:
    code = "import sys; sys.modules['jax'] = None\nimport penstock as ps\nps.Loader(ps.from_sequence([1]), to='jax')"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=300
    )
    assert (
        "Loader(to='jax') needs the package 'jax': pip install 'penstock-data[jax]'" in done.stderr
    )


def test_durations_stay_arrays_of_numpy() -> None:
    (batch,) = ps.Loader(ps.from_sequence([{"x": np.timedelta64(1, "s")}]).batch(1), to="jax")
    assert batch["x"].tolist() == [np.timedelta64(1, "s").item()]


def to_array(x: int) -> dict[str, Any]:
    row = jax.numpy.full(3, x)
    return {
        "row": row,
        "scalar": row[0],
        "half": row.astype(jax.numpy.bfloat16),
        "key": jax.random.key(x),
    }


@pytest.mark.parametrize("run", [{}, {"workers": 2, "executor": "processes"}])
def test_arrays_of_functions_are_stacked(run: dict[str, Any]) -> None:
    ds = ps.from_sequence(range(8)).map(to_array).batch(4)
    batch = ds[1]
    assert batch["row"].tolist() == [[x] * 3 for x in range(4, 8)]
    assert {name: type(batch[name]) for name in ("row", "scalar", "half")} == dict.fromkeys(
        ("row", "scalar", "half"), np.ndarray
    )
    assert len(batch["key"]) == 4  # random keys are no numbers
    with ps.Loader(ds, to="jax", device=here(), **run) as loader:
        first, last = loader
    assert first["half"].dtype == jax.numpy.bfloat16
    assert last["row"].sharding == here() and (last["row"] == batch["row"]).all()
    ragged = ps.from_sequence(range(1, 3)).map(jax.numpy.ones).batch(2)
    with pytest.raises(DataError, match="do not stack"):
        ragged[0]


def double(batch: dict[str, Any]) -> dict[str, Any]:
    row = jax.numpy.asarray(batch["row"]) * 2
    return {"row": row, "sum": row.sum(), "key": jax.random.split(jax.random.key(0), len(row))}


def test_arrays_of_functions_of_batches_are_placed() -> None:
    ds = ps.from_sequence(range(8)).map(lambda x: {"row": np.full(3, x)}).batch(4).map(double)
    for device in (here(), jax.devices()[0]):
        with ps.Loader(ds, to="jax", device=device) as loader:
            batch = next(iter(loader))
        assert batch["row"].tolist() == [[2 * x] * 3 for x in range(4)]
        expected = device if device is here() else jax.sharding.SingleDeviceSharding(device)
        assert batch["row"].sharding == expected
        assert isinstance(batch["key"], jax.Array) and int(batch["sum"]) == 36
