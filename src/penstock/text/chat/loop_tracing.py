"""Traced templates: which message a template writes, by the loops that come to it.

A template writes a conversation in a loop over its messages. A traced template also writes a mark
wherever a loop comes to another message. All text behind the mark belongs to this message: its
header, reasoning and tool calls, in any format. A loop inside another one, such as over the results
of a call, writes marks of later messages too.
"""

from __future__ import annotations

import importlib
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from .marks import mark_switch

_ENTER, _COME, _ASSIGN, _LEAVE = " enter", " come", " assign", " leave"
"""Filters that templates cannot name."""


class _LoopState:
    """The loops that a rendering is in, each with the message that it has come to.

    Args:
        messages: the objects that the template gets.
    """

    def __init__(self, messages: Sequence[Any]) -> None:
        self._numbers = {id(message): number for number, message in enumerate(messages)}
        self._loops: list[int | None] = [None]
        self._counts = [False]  # for each loop, whether it is over indices

    def enter(self) -> str:
        """Begin a loop."""
        self._loops.append(None)
        self._counts.append(False)
        return ""

    def come(self, item: Any) -> str:
        """Return the mark of an item, if the loop comes to another message."""
        self._counts[-1] = type(item) is int
        return self._switch(self._numbers.get(id(item)))

    def assign(self, value: Any) -> str:
        """Return the mark of a message that a loop over indices looks up."""
        number = self._numbers.get(id(value))
        is_first = self._counts[-1] and self._loops[-1] is None and number is not None
        return self._switch(number) if is_first else ""

    def leave(self) -> str:
        """End a loop; return the mark of the message around it."""
        self._counts.pop()
        return self._mark() if self._loops.pop() is not None else ""

    def _switch(self, number: int | None) -> str:
        outer = self._find_message(self._loops[:-1])
        if number is not None and outer is not None and number < outer:
            number = None  # a look at an earlier message, such as for the name of a call
        previous, self._loops[-1] = self._loops[-1], number
        return self._mark() if number != previous else ""

    def _mark(self) -> str:
        return mark_switch(self._find_message(self._loops))

    def _find_message(self, loops: Sequence[int | None]) -> int | None:
        return next((number for number in reversed(loops) if number is not None), None)


_STATE = ContextVar[_LoopState]("loops")


@contextmanager
def trace_loops(messages: Sequence[Any]) -> Generator[None]:
    """Let traced templates write marks of messages.

    Args:
        messages: the objects that the template gets.
    """
    token = _STATE.set(_LoopState(messages))
    try:
        yield
    finally:
        _STATE.reset(token)


def add_loop_filters(environment: Any) -> None:
    """Add the filters of traced templates to an environment.

    Args:
        environment: the environment, which is changed.
    """
    jinja2: Any = importlib.import_module("jinja2")

    @jinja2.pass_context  # which keeps Jinja from running it once, at compilation
    def enter(_context: Any, _: Any) -> str:
        return _STATE.get().enter()

    @jinja2.pass_context
    def come(_: Any, item: Any) -> str:
        return _STATE.get().come(item)

    @jinja2.pass_context
    def assign(_: Any, value: Any) -> str:
        return _STATE.get().assign(value)

    @jinja2.pass_context
    def leave(_context: Any, _: Any) -> str:
        return _STATE.get().leave()

    environment.filters |= {_ENTER: enter, _COME: come, _ASSIGN: assign, _LEAVE: leave}


def parse_traced(environment: Any, source: str) -> Any:
    """Return the syntax tree of a template that writes marks of messages.

    Args:
        environment: an environment with the filters of traced templates.
        source: the template.
    """
    nodes: Any = importlib.import_module("jinja2").nodes
    transformer: Any = importlib.import_module("jinja2.visitor").NodeTransformer

    def write(value: Any, name: str) -> Any:
        return nodes.Output([nodes.Filter(value, name, [], [], None, None)])

    class Tracer(transformer):
        """Puts filters into loops, whose results are marks."""

        depth = 0

        def visit_For(self, node: Any) -> Any:
            self.depth += 1
            node = transformer.generic_visit(self, node)
            self.depth -= 1
            if node.recursive or not isinstance(node.target, nodes.Name):
                return node
            node.body.insert(0, write(nodes.Name(node.target.name, "load"), _COME))
            return [write(nodes.Const(""), _ENTER), node, write(nodes.Const(""), _LEAVE)]

        def visit_Assign(self, node: Any) -> Any:
            node = transformer.generic_visit(self, node)
            if not self.depth or not isinstance(node.target, nodes.Name):
                return node
            return [node, write(nodes.Name(node.target.name, "load"), _ASSIGN)]

    tree = Tracer().visit(environment.parse(source))
    for node in (tree, *tree.find_all(nodes.Node)):
        node.lineno = node.lineno or 1
    return tree.set_environment(environment)
