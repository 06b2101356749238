"""The training as tasks of Ray: a rank that dies is started again, and all resume."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

import ray
from ray.exceptions import RayError

TRAIN = Path(__file__).resolve().parent / "train.py"


@ray.remote(max_retries=0)
def run_rank(rank: int, world_size: int, arguments: list[str]) -> int:
    """Run one rank to its end; return its exit code."""
    environment = {**os.environ, "RANK": str(rank), "WORLD_SIZE": str(world_size)}
    return subprocess.run([sys.executable, str(TRAIN), *arguments], env=environment).returncode


def main() -> None:
    """Start all ranks, again if one was stopped or its node was lost."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--folder", type=Path, default=Path("run").absolute())
    parser.add_argument("--most-restarts", type=int, default=20)
    parser.add_argument("options", nargs="*", help="for train.py, after --")
    options = parser.parse_args()
    arguments = ["--folder", str(options.folder), *options.options]
    ray.init(log_to_driver=True)
    for _ in range(options.most_restarts + 1):
        ranks = [run_rank.remote(rank, options.ranks, arguments) for rank in range(options.ranks)]
        try:
            codes = ray.get(ranks)
        except RayError as error:  # the worker or its node was lost
            print(f"a rank was lost: {error}", flush=True)
            continue
        if not any(codes):
            return
        print(f"exit codes {codes}: start all ranks again", flush=True)
    raise SystemExit("too many restarts")


if __name__ == "__main__":
    main()
