"""One process of the benchmark: `python -m bench.child '{...}'` measures rows and prints a line for
each."""

from __future__ import annotations

import json
import os
import sys
import traceback
from typing import Any

from . import fresh
from .table import CASES, Row, find

BARE = fresh.memory_now()[0]  # NumPy is not imported yet


def measured(row: Row, order: dict[str, Any]) -> dict[str, Any]:
    """The operations that the order asks of a row. NumPy is imported only where its import is not
    measured.
    """
    kind = CASES[row.case].kind
    if kind == "start":
        return fresh.start(row)
    if kind == "workers":
        return fresh.workers(row)
    if kind == "memory":
        return fresh.memory(row, order["size"], BARE)
    from . import measure
    from .kit import conformance

    scale = measure.Scale(**order["scale"])
    if order.get("step") is not None:
        return measure.go_on(row, order["step"])
    kinds = {
        "stream": measure.stream,
        "resume": measure.run_to,
        "kit": conformance,
        "times": measure.times,
    }
    return kinds[kind](row, scale)


def main() -> None:
    order = json.loads(sys.argv[1])
    for peer, case, how in order["rows"]:
        row = find(peer, case, how)
        answer: dict[str, Any] = {"peer": peer, "case": case, "how": how}
        try:
            answer["found"] = measured(row, order)
        except BaseException as error:
            answer["failed"] = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
            traceback.print_exc()
        print("\n@" + json.dumps(answer), flush=True)
    os._exit(0)  # the thread pools and workers of abandoned iterators are not waited for


if __name__ == "__main__":
    main()
