"""A training that any scheduler may stop: it saves at SIGTERM, and resumes when it starts again.

Exit codes: 0 the run is complete, 75 it was stopped and saved, anything else is an error. The log
is one JSON object a line. Replace `train_step`; the rest is what every job needs.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

import penstock as ps

COMPLETE, STOPPED = 0, 75  # 75 is EX_TEMPFAIL: run it again
STEPS_BETWEEN_SAVES = 10


class JsonLines(logging.Formatter):
    """One JSON object a line, as log collectors read them."""

    def format(self, record: logging.LogRecord) -> str:
        entry = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(record.created)),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "data", {}),
        }
        if record.exc_info:
            entry["error"] = self.formatException(record.exc_info)
        return json.dumps(entry)


def train_step(batch: Any, seconds: float) -> float:
    """Stand in for forward, backward and the optimizer; return the loss."""
    time.sleep(seconds)
    return float(np.mean(batch) % 1)


def any_rank(flag: bool) -> bool:
    """Return whether the flag is set on some rank, so that all ranks stop at one step."""
    if not (torch := sys.modules.get("torch")) or not torch.distributed.is_initialized():
        return flag
    value = torch.tensor(int(flag))
    torch.distributed.all_reduce(value, op=torch.distributed.ReduceOp.MAX)
    return bool(value)


def make_loader() -> ps.Loader:
    """Return the data of the run; rank and world size come from the launcher."""
    inputs = {
        "web": ps.from_sequence(range(5_000), name="web").shuffle(),
        "code": ps.from_sequence(range(5_000, 6_000), name="code").shuffle(),
    }
    mixture = ps.mix(inputs, {"web": 3, "code": 1}, seed=1).batch(global_batch_size=12)
    return ps.Loader(mixture, workers=2)


def main() -> int:
    """Train until the last step or a signal."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--folder", type=Path, default=Path("run"), help="on shared storage")
    parser.add_argument("--seconds", type=float, default=0.01, help="of a step")
    parser.add_argument("--distributed", action="store_true", help="under torchrun")
    options = parser.parse_args()
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines())
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    log = logging.getLogger("train")
    if options.distributed:
        import torch

        torch.distributed.init_process_group("gloo")
    stopping = False

    def stop(number: int, stack: Any) -> None:
        nonlocal stopping
        stopping = True

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
        signal.signal(number, stop)
    with make_loader() as loader:
        rank = loader.rank
        options.folder.mkdir(parents=True, exist_ok=True)
        started = step = ps.restore(options.folder / "data", loader) or 0
        log.info("started", extra={"data": {"step": step, "rank": rank, "pid": os.getpid()}})
        with open(options.folder / f"steps-{rank}.jsonl", "a", encoding="utf-8") as journal:
            for step, batch in enumerate(loader, started + 1):
                loss = train_step(batch, options.seconds)
                journal.write(json.dumps({"step": step, "batch": batch.tolist()}) + "\n")
                journal.flush()
                # Save the model and the optimizer of this step beside it.
                is_stopping, is_last = any_rank(stopping), step >= options.steps
                if is_stopping or is_last or step % STEPS_BETWEEN_SAVES == 0:
                    ps.save(options.folder / "data", loader, keep=3)
                    log.info("saved", extra={"data": {"step": step, "loss": loss}})
                if is_last or is_stopping:
                    break
    if step < options.steps:
        log.warning("stopped", extra={"data": {"step": step}})
        return STOPPED
    (options.folder / "complete").touch()
    return COMPLETE


if __name__ == "__main__":
    sys.exit(main())
