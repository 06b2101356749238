"""The report of a mixture or run: headline facts first, and everything else after them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import penstock as ps
from penstock.report.full_report import collect_facts, render_report, write_picture
from penstock.report.shares import list_run_changes, rows
from penstock.report.target import Target, open_target


def write_packed(folder: Path, text: str) -> Path:
    for name in ("web", "code"):
        tokens = [list(range(1, 2 + n % 40)) for n in range(400)]
        pq.write_table(pa.table({"tokens": tokens}), folder / f"{name}.parquet")
    file = folder / "mixture.yaml"
    file.write_text(
        "seed: 1\nsources:\n"
        "  web: {path: web.parquet, columns: [tokens], lengths: tokens, weight: 1}\n"
        "  code: {path: code.parquet, columns: [tokens], lengths: tokens, weight: 2}\n" + text
    )
    return file


def write_lines(folder: Path, count: int = 2) -> Path:
    for n in range(count):
        lines = [json.dumps({"text": f"{n} {i}"}) for i in range(200)]
        (folder / f"s{n}.jsonl").write_text("\n".join(lines) + "\n")
    sources = "".join(f"  s{n}: {{path: s{n}.jsonl, weight: {n + 1}}}\n" for n in range(count))
    file = folder / "mixture.yaml"
    file.write_text(f"seed: 1\nsources:\n{sources}batch: {{size: 4}}\nhorizon: {{steps: 30}}\n")
    return file


def facts_of(target: Target, steps: int) -> dict[str, str]:
    return {fact.name: fact.value for fact in collect_facts(target, steps, rows(target, steps))}


def test_the_facts_of_packed_rows(tmp_path: Path) -> None:
    file = write_packed(tmp_path, "pack: {length: 64}\nbatch: {size: 4}\nhorizon: {steps: 20}\n")
    facts = facts_of(open_target(file), 20)
    assert list(facts) == [
        *("tokens", "parts of documents", "epochs", "horizon"),
        *("batch", "row length", "sources", "warnings"),
    ]
    assert facts["tokens"] == "5,120" and facts["horizon"] == "20 steps"
    assert (facts["batch"], facts["row length"]) == ("4 rows", "64 tokens")
    assert (facts["sources"], facts["warnings"]) == ("2", "none")


def test_the_facts_of_lengths_and_batches_that_change(tmp_path: Path) -> None:
    text = (
        "pack: {length: 64}\nglobal_batch_size: 8\nhorizon: {steps: 20}\n"
        "stages:\n  - {until: {steps: 10}}\n  - {length: 32, global_batch_size: 16}\n"
    )
    facts = facts_of(open_target(write_packed(tmp_path, text)), 20)
    assert facts["batch"] == "8 to 16 rows" and facts["row length"] == "32 to 64 tokens"


def test_a_page_holds_everything_and_no_script(tmp_path: Path) -> None:
    file = write_lines(tmp_path)
    page = render_report(open_target(file), 30)
    headings = re.findall("<h2>(.*?)</h2>", page)
    assert headings == [
        *("The run, step by step", "Sources", "Warnings", "Fingerprint", "The mixture file")
    ]
    assert page.count("<svg") == 3 and "Warnings: none" in page
    assert page.index("<dt>samples</dt><dd>120</dd>") < page.index("<svg")
    assert "<script" not in page and not re.findall(r'(?:src|href)="', page)
    changed = render_report(open_target(file), 30, changed=True)
    assert "mixture.yaml, changed" in changed and "The mixture file" not in changed


def test_a_run_shows_its_changes(tmp_path: Path) -> None:
    file = write_lines(tmp_path)
    with ps.Loader(ps.load(file), rank=0, world_size=1) as loader:
        next(iter(loader))
        loader.exclude([("s1", 17)])
        loader.set_weights({"s0": 1, "s1": 1})
        ps.save(tmp_path / "run", loader)
    target = open_target(file, state=tmp_path / "run")
    changes = list_run_changes(target)
    assert changes[0] == (1, "step 1: 1 sample of 's1' excluded")
    assert changes[1][0] is None and changes[1][1].startswith("set weights from sample")
    page = render_report(target, 30)
    assert "<h2>Changes of the run</h2>" in page and "position of the state" in page
    assert list_run_changes(open_target(file)) == []


def test_many_sources_are_listed_by_share(tmp_path: Path) -> None:
    target = open_target(write_lines(tmp_path, 70))
    page = render_report(target, 30)
    assert "30 more rows" in page and "60 others" in page
    names = re.findall(r'role="rowheader">(s\d+)<', page)
    shares = {row.source: row.share for row in rows(target, 30)}
    assert len(names) == 70 and [shares[n] for n in names] == sorted(shares.values(), reverse=True)


def test_a_picture_begins_with_the_facts(tmp_path: Path) -> None:
    write_picture(tmp_path / "plan.svg", open_target(write_lines(tmp_path)), 30)
    text = (tmp_path / "plan.svg").read_text()
    assert "horizon 30 steps, batch 4 rows, warnings none" in text
    assert np.all([name in text for name in ("s0: ", "s1: ")])
