"""Writes the JSON Schema of mixture files where it is shipped: `python tools/mixture_schema.py`."""

from __future__ import annotations

import json
from pathlib import Path

from penstock.mixture_files import build_schema

ROOT = Path(__file__).resolve().parent.parent

if __name__ == "__main__":
    text = json.dumps(build_schema(), indent=2) + "\n"
    for path in ("src/penstock/mixture_files/mixture.schema.json", "docs/mixture.schema.json"):
        (ROOT / path).write_text(text, encoding="utf-8")
