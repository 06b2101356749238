"""A run as a tf.data.Dataset; where TensorFlow is not installed, over a stub that reads ahead on a thread as it does."""

from __future__ import annotations

import queue
import sys
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import penstock as ps
from helpers import through_json
from penstock.integrations.tensorflow import TensorFlowData, tracked

try:
    import tensorflow as real  # pyright: ignore[reportMissingImports]
except ImportError:
    real = None


class Data:
    """The parts of tf.data.Dataset that are used: items by way of a thread that is some ahead."""

    def __init__(self, made: Callable[[], Iterator[Any]], ahead: int = 1) -> None:
        self.made, self.ahead = made, ahead

    @staticmethod
    def from_generator(made: Callable[[], Iterator[Any]], output_signature: Any) -> Data:
        return Data(made)

    def prefetch(self, n: int) -> Data:
        return Data(self.made, n)

    def map(self, fn: Callable[[Any], Any]) -> Data:
        return Data(lambda: map(fn, self.made()))

    def batch(self, n: int) -> Data:
        return Data(lambda: map(list, zip(*[self.made()] * n, strict=False)))

    def __iter__(self) -> Iterator[Any]:
        found, end = queue.Queue[Any](self.ahead), object()

        def run() -> None:
            for item in self.made():
                found.put(item)
            found.put(end)

        threading.Thread(target=run, daemon=True).start()
        while (item := found.get()) is not end:
            yield item


class PythonState:
    """The interface that a checkpoint of TensorFlow requires of an object."""


STUB = SimpleNamespace(
    data=SimpleNamespace(Dataset=Data), TensorSpec=lambda shape, dtype: (shape, dtype), as_dtype=np.dtype, string="text",
    train=SimpleNamespace(experimental=SimpleNamespace(PythonState=PythonState)),
)  # fmt: skip


@pytest.fixture(autouse=True)
def tf(monkeypatch: pytest.MonkeyPatch) -> Any:
    if real is None:
        monkeypatch.setitem(sys.modules, "tensorflow", STUB)  # pyright: ignore[reportArgumentType]
    return real or STUB


def batches() -> ps.Dataset:
    inputs = {
        "a": ps.from_sequence(range(30)).shuffle(),
        "b": ps.from_sequence(range(100, 130)).shuffle(),
    }
    rows = ps.mix(inputs, {"a": 2, "b": 1}, seed=3, stop="first_exhausted")
    return rows.map(lambda x: {"x": x, "half": np.float32(x / 2)}).batch(4)


def lists(item: Any) -> list[int]:
    return np.asarray(item["x"]).tolist()


def test_a_pass_is_that_of_the_loader_and_the_next_one_follows() -> None:
    data, plain = TensorFlowData(ps.Loader(batches())), ps.Loader(batches())
    for _ in range(2):
        assert [*map(lists, data)] == [*map(lists, plain)]


def test_the_state_is_that_of_what_was_given_at_every_place() -> None:
    want = [*map(lists, ps.Loader(batches()))]
    data = TensorFlowData(ps.Loader(batches()), prefetch=4)
    for at, item in enumerate(data):
        assert lists(item) == want[at]
        plain = ps.Loader(batches())
        state = through_json(data.state_dict())
        plain.load_state_dict(state)
        assert [*map(lists, plain)][: len(want) - at - 1] == want[at + 1 :]
        if at % 4 == 0:
            again = TensorFlowData(ps.Loader(batches()))
            again.load_state_dict(state)
            assert [*map(lists, again)] == want[at + 1 :]


def test_a_for_that_was_left_goes_on_after_what_it_was_given() -> None:
    want = [*map(lists, ps.Loader(batches()))]
    data = TensorFlowData(ps.Loader(batches()), prefetch=3)
    steps = iter(data)
    assert [lists(next(steps)) for _ in range(3)] == want[:3]
    assert [*map(lists, data)] == want[3:]


def test_steps_of_tf_data_give_an_item_for_each() -> None:
    plain = [*map(lists, ps.Loader(batches()))]
    data = TensorFlowData(
        ps.Loader(batches()), then=lambda ds: ds.map(lambda item: {"x": item["x"] * 2})
    )
    assert [*map(lists, data)] == [[2 * x for x in xs] for xs in plain]
    with pytest.raises(ps.ConfigError, match="fewer items"):
        [*TensorFlowData(ps.Loader(batches().limit(4)), then=lambda ds: ds.batch(2))]


def test_a_checkpoint_keeps_the_place() -> None:
    data = TensorFlowData(ps.Loader(batches()))
    steps = iter(data)
    next(steps)
    saved = tracked(data).serialize()
    rest = [*map(lists, steps)]
    again = TensorFlowData(ps.Loader(batches()))
    tracked(again).deserialize(saved.encode())
    assert [*map(lists, again)] == rest


def test_what_has_no_tensor_is_refused() -> None:
    with pytest.raises(ps.ConfigError, match="spec="):
        TensorFlowData(ps.Loader(ps.from_sequence([{1, 2}])))
    with pytest.raises(ps.ConfigError, match="spec="):
        TensorFlowData(ps.Loader(ps.from_sequence([])))
