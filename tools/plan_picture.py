"""Draw the plan that the README shows: `python tools/plan_picture.py docs/pictures/plan.svg`."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

SIZES = {"web": 6_000, "code": 1_500, "books": 700, "math": 300}
MIXTURE = """
seed: 42
horizon: {steps: 1000}
sources:
  web: {path: web.jsonl}
  code: {path: code.jsonl}
  books: {path: books.jsonl}
  math: {path: math.jsonl, max_epochs: 4}
stages:
  - {name: warm-up, until: 20%, weights: {web: 80, code: 15, books: 5}}
  - {name: main, until: 75%, weights: {web: 60, code: 20, books: 15, math: 5}, interpolation: linear}
  - {name: anneal, weights: {web: 20, code: 30, books: 20, math: 30}}
global_batch_size: 8
"""


def main() -> None:
    """Write sources of a few sizes and a mixture of three stages, and draw its plan."""
    picture = Path(sys.argv[1] if len(sys.argv) > 1 else "docs/pictures/plan.svg").resolve()
    with tempfile.TemporaryDirectory() as folder:
        for name, size in SIZES.items():
            rows = "".join(json.dumps({"text": f"{name} {row}"}) + "\n" for row in range(size))
            Path(folder, f"{name}.jsonl").write_text(rows, encoding="utf-8")
        Path(folder, "mixture.yaml").write_text(MIXTURE, encoding="utf-8")
        command = [sys.executable, "-m", "penstock", "plan", "mixture.yaml", "-o", str(picture)]
        subprocess.run(command, cwd=folder, check=True)


if __name__ == "__main__":
    main()
