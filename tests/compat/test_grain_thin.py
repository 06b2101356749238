"""`compat.grain` owns no order, buffer or cursor, save Grain's order and what a user asks for."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import penstock.compat.grain as grain

FOLDER = Path(grain.__file__).parent

ORDERS = {"order.py"}
"""Reproduces Grain's own order, and reshuffles slices."""

STATES = {
    "iterator.py": "the run of the core, and the base class of a user",
    "data_loader.py": "bytes of the state of a run; a state of Grain beside it",
    "elastic.py": "the position of a run, counted in elements of all shards",
    "operations.py": "the number of records of a function without a state",
    "prefetch.py": "the state of the iterator behind a thread",
    "prefetch_iterator.py": "the same for an iterator of a user",
    "tfrecord_dataset.py": "the position of a file that a user opens",
}
"""Modules with a method that returns a state, and whose state it is."""

BUFFERS = {"prefetch.py"}
"""Elements in flight to a device."""


def walk() -> Iterator[tuple[str, ast.AST]]:
    for path in sorted(FOLDER.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            yield path.relative_to(FOLDER).as_posix(), node


def test_orders_are_in_one_module() -> None:
    orders = {
        name
        for name, node in walk()
        if isinstance(node, ast.ClassDef)
        and {"down", "up"} <= {item.name for item in node.body if isinstance(item, ast.FunctionDef)}
    }
    assert orders == ORDERS


def test_states_are_those_of_runs_and_users() -> None:
    methods = {"get_state", "state_dict", "cursor", "capture_state"}
    owners = {
        name for name, node in walk() if isinstance(node, ast.FunctionDef) and node.name in methods
    }
    assert owners == STATES.keys()


def test_nothing_holds_elements() -> None:
    queues = {"deque", "Queue", "SimpleQueue"}
    owners = {name for name, node in walk() if isinstance(node, ast.Name) and node.id in queues}
    assert owners == BUFFERS
    streams = {"pull", "seek_to", "take_buffered"}
    assert not {
        name for name, node in walk() if isinstance(node, ast.FunctionDef) and node.name in streams
    }
