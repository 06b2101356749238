"""Ratios of a step with `Loader(device=)` to one on data that is on the device already, one a line.

    python tools/copies_ahead.py --device cuda

A step is matrix products of a set time; batches are as large as a plain copy of a share of a step
can move. Both kinds of steps are measured in turn, several times, and the median ratio is printed.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import torch

import penstock as ps

SHARES = (0.2, 0.9)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--step", type=float, default=0.015, help="seconds of a step")
    parser.add_argument("--steps", type=int, default=60, help="steps of a measurement")
    parser.add_argument("--rounds", type=int, default=5, help="measurements of each kind")
    parser.add_argument("--wait", type=int, default=1, help="wait for the loss every so many steps")
    parser.add_argument("--unpinned", action="store_true", help="copy from plain memory")
    return parser.parse_args()


def waited(device: torch.device) -> None:
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def seconds(device: torch.device, work: Callable[[], object], times: int) -> float:
    """Return the mean duration of the work in seconds, over `times` calls."""
    work()
    waited(device)
    began = perf_counter()
    for _ in range(times):
        work()
    waited(device)
    return (perf_counter() - began) / times


def step_of(device: torch.device, took: float) -> Callable[[torch.Tensor], torch.Tensor]:
    """A step that takes so long on the device, and looks at its batch."""
    weight = torch.randn(1024, 1024, device=device)
    many = max(1, round(took / seconds(device, lambda: weight @ weight, 20)))

    def step(batch: torch.Tensor) -> torch.Tensor:
        found = weight
        for _ in range(many):
            found = torch.tanh(weight @ found)
        return found.sum() + batch[:1024].float().sum()

    return step


def floats(device: torch.device, took: float, pinned: bool) -> int:
    """Return the number of floats that a copy of `took` seconds moves."""
    plain = torch.zeros(1 << 22)
    plain = plain.pin_memory() if pinned else plain
    each = seconds(device, lambda: plain.to(device, non_blocking=True, copy=True), 5) / len(plain)
    return max(1024, int(took / each))


def timed(step: Callable[[Any], Any], batches: Iterator[Any], steps: int, every: int) -> float:
    """Seconds of a step and of fetching its batch."""
    for _ in range(3):
        float(step(next(batches)))
    began = perf_counter()
    for i in range(steps):
        loss = step(next(batches))
        if i % every == every - 1 or i == steps - 1:
            float(loss)
    return (perf_counter() - began) / steps


def measured(options: argparse.Namespace, share: float) -> dict[str, Any]:
    device, pinned = (
        torch.device(options.device),
        torch.device(options.device).type == "cuda" and not options.unpinned,
    )
    step = step_of(device, options.step)
    arrays = [
        np.random.default_rng(i).random(floats(device, share * options.step, pinned), np.float32)
        for i in range(4)
    ]
    lying, ratios = [torch.as_tensor(array).to(device) for array in arrays], list[float]()
    with ps.Loader(
        ps.from_sequence(arrays, name="arrays").repeat(),
        to="torch",
        device=device,
        pin_memory=pinned,
    ) as to:
        for _ in range(options.rounds):
            there = timed(step, iter(lying * (options.steps + 3)), options.steps, options.wait)
            ratios.append(timed(step, iter(to), options.steps, options.wait) / there)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    size = arrays[0].nbytes
    return {
        "device": name,
        "pinned": pinned,
        "wait": options.wait,
        "copy": share,
        "bytes": size,
        "ratio": median(ratios),
    }


if __name__ == "__main__":
    for share in SHARES:
        print(json.dumps(measured(arguments(), share)), flush=True)
