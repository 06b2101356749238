"""One pipeline over a mixture file, for frameworks of both kinds: run by itself, as a rank of torch.distributed."""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np

import penstock as ps

MIXTURE = """
seed: 42
sources:
  code: {path: code.jsonl}
  text: {path: text.jsonl}
schedule:
  unit: samples
  points:
    0: {code: 0.9, text: 0.1}
    120: {code: 0.2, text: 0.8}
"""


def letters(row: dict[str, Any]) -> Any:
    return np.frombuffer(row["text"].encode(), np.uint8).astype(np.int32)


def flow(mixture: str, rows: int) -> ps.Dataset:
    return ps.load(mixture).map(letters).pack(32).batch(rows)


def main(mixture: str, rank: int, meeting: str, steps: int) -> None:
    import torch.distributed as distributed

    distributed.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
    loader = ps.Loader(flow(mixture, 4))
    sys.stdout.write(json.dumps([loader.keys() for _ in zip(range(steps), loader, strict=False)]))
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4]))
