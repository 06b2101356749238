"""A post-training that is simulated: rollouts in flight that finish in random order, are filtered, fail, and are killed.

As a script it runs until it is killed: it reads from standard input where to begin, and writes every checkpoint.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import penstock as ps

Make = Callable[[], ps.Dataset]


@dataclass
class Rollouts:
    """A run on some ranks, which settles what it takes: half is filtered, some fails, some is asked for again. `settled`
    is what became of which uid.
    """

    make: Make
    ranks: int = 1
    in_flight: int = 64
    seed: int = 0
    settled: list[list[Any]] = field(default_factory=list[list[Any]])

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.over = [False] * self.ranks
        self.flight: list[dict[str, Any]] = [{} for _ in range(self.ranks)]
        self.loaders = [
            ps.Loader(self.make(), rank=r, world_size=self.ranks, lanes=48)
            for r in range(self.ranks)
        ]

    def load(self, saved: dict[str, Any] | None) -> Rollouts:
        """Go on from a checkpoint, whatever the ranks were then."""
        if saved is not None:
            self.settled = [*saved["settled"]]
            for loader in self.loaders:
                loader.load_state_dict(saved["states"])
        return self

    def save(self) -> dict[str, Any]:
        """A checkpoint, as it is when it was written and read."""
        states = [loader.state_dict() for loader in self.loaders]
        return json.loads(json.dumps({"states": states, "settled": self.settled}))

    def fill(self, rank: int) -> None:
        """Take as many as may be in flight, up to the end of a pass."""
        flight = self.flight[rank]
        while not self.over[rank] and len(flight) < self.in_flight:
            items = self.loaders[rank].lease(self.random.randint(1, self.in_flight - len(flight)))
            self.over[rank] = not items
            for item in items:
                assert item.uid not in flight, "an item that is in flight was given"
                flight[item.uid] = item.value

    def step(self) -> bool:
        """One rollout finishes on a rank; False where all are done."""
        rank = self.random.randrange(self.ranks)
        self.fill(rank)
        if not (flight := self.flight[rank]):
            return not all(self.over) or any(self.flight)
        uid = self.random.choice([*flight])
        value, dice = flight.pop(uid), self.random.random()
        if dice < 0.05:
            self.over[rank] = False
            self.loaders[rank].settle(uid, "requeue")
            return True
        settlement = "failed" if dice < 0.1 else "filtered" if dice < 0.55 else "trained"
        self.loaders[rank].settle(uid, settlement)
        self.settled.append([uid, value, settlement])
        return True

    def close(self) -> None:
        for loader in self.loaders:
            loader.close()


def prompts() -> ps.Dataset:
    """900 prompts of two sources, each a number of its own."""
    inputs = {
        "easy": ps.from_sequence(range(600)).shuffle(),
        "hard": ps.from_sequence(range(1000, 1300)).shuffle(),
    }
    return ps.mix(inputs, {"easy": 2, "hard": 1}, seed=4, stop="all_exhausted")


if __name__ == "__main__":
    asked = json.load(sys.stdin)
    run = Rollouts(prompts, asked["ranks"], seed=asked["seed"]).load(asked["saved"])
    while run.step():
        if run.random.random() < 0.1:
            sys.stdout.write(json.dumps(run.save()) + "\n")
            sys.stdout.flush()
    sys.stdout.write(json.dumps({**run.save(), "done": True}) + "\n")
