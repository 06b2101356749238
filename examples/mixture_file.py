"""A training's data as a file: loaded, checked, changed in Python, written back."""

from __future__ import annotations

import json
import os
from pathlib import Path

import penstock as ps
from penstock.mixture_files import lint

here = Path.cwd()
for name in ("code", "text"):
    (here / name).mkdir()
    rows = [
        {"text": f"{name} {i}", "license": ["mit", "gpl"][i % 2], "stars": i} for i in range(400)
    ]
    (here / name / "part.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

os.environ["DATA"] = str(here)
mixture = Path(__file__).parent / "mixture.yaml"

train = ps.load(mixture)
first = next(iter(train))
print(f"a batch of {len(first)}, the first of them {first[0]['text']!r}")

# A typo is named with its file, line and key; nothing is guessed.
(here / "wrong.yaml").write_text(mixture.read_text().replace("max_epochs", "max_epoch"))
for problem in lint(here / "wrong.yaml"):
    print(f"{Path(problem.file).name}, line {problem.line}, {problem.key}: {problem.message}")

# What Python made can be written, as long as it is made of files and known steps.
small = ps.mix({"text": ps.read(here / "text").shuffle()}, seed=1).batch(4)
ps.dump(small, here / "small.yaml")
print((here / "small.yaml").read_text())
assert next(iter(ps.load(here / "small.yaml")))["text"] == next(iter(small))["text"]
