"""`simulate` predicts for a change exactly the run of the changed file."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import penstock as ps
from cli_world import Penstock

FILE = """\
seed: 4
horizon: {steps: 60}
sources:
  web: {path: web.jsonl, weight: 6}
  code: {path: code.jsonl, weight: 3, max_epochs: 4}
  math: {path: math.jsonl, weight: 1}
batch: {size: 4}
stages:
  - {name: stable, until: 60%}
  - {name: anneal, interpolation: linear, weights: {web: 3, math: 6}}
"""
SCHEDULE = "{unit: steps, points: {0: {web: 1, code: 1, math: 0}, 30: {web: 0, code: 0, math: 1}}}"
CHANGES: dict[str, tuple[list[str], Callable[[str], str]]] = {
    "a stage's weight": (
        ["--set", "stages.anneal.weights.math=1"],
        lambda text: text.replace("math: 6", "math: 1"),
    ),
    "where a stage ends, and how the next is reached": (
        ["--set", "stages.stable.until=25%", "--set", "stages.anneal.interpolation=cosine"],
        lambda text: text.replace("60%", "25%").replace("linear", "cosine"),
    ),
    "a cap": (
        ["--max-epochs", "code=1.5"],
        lambda text: text.replace("max_epochs: 4", "max_epochs: 1.5"),
    ),
    "a cap of all": (["--set", "max_epochs=3"], lambda text: f"max_epochs: 3\n{text}"),
    "the length and the batch": (
        ["--set", "horizon.steps=35", "--batch", "8"],
        lambda text: text.replace("steps: 60", "steps: 35").replace("size: 4", "size: 8"),
    ),
    "a number and a path, written as in a file": (
        ["--set", "horizon.steps=4e1", "--set", "sources.web.path=code.jsonl"],
        lambda text: text.replace("steps: 60", "steps: 40").replace("web.jsonl", "code.jsonl"),
    ),
    "other weights, no stages": (
        ["--weight", "web=1", "--weight", "code=3", "--weight", "math=2"],
        lambda text: (
            text[: text.index("stages")]
            .replace("weight: 6", "weight: 1")
            .replace("t: 1}\nb", "t: 2}\nb")
        ),
    ),
    "a schedule": (
        [
            *("--set", "stages=", "--set", "sources.web.weight=", "--set", "sources.code.weight="),
            *("--set", "sources.math.weight=", "--set", f"schedule={SCHEDULE}"),
        ],
        lambda text: (
            f"{re.sub(', weight: [0-9]', '', text[: text.index('stages')])}schedule: {SCHEDULE}\n"
        ),
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_it_is_what_a_run_made_that_way_gives(change: str, tmp_path: Path, penstock: Any) -> None:
    for name, rows in (("web", 200), ("code", 20), ("math", 30)):
        (tmp_path / f"{name}.jsonl").write_text(
            "".join(f'{{"text": "{name} {i}"}}\n' for i in range(rows))
        )
    (tmp_path / "run.yaml").write_text(FILE)
    options, by_hand = CHANGES[change]
    done = penstock("simulate", tmp_path / "run.yaml", *options, "--json")
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    (tmp_path / "changed.yaml").write_text(by_hand(FILE))
    for which, file in (("as_it_is", "run.yaml"), ("changed", "changed.yaml")):
        with ps.Loader(ps.load(tmp_path / file)) as loader:
            given, steps, first = Counter[str](), 0, dict[str, int]()
            for steps, _ in enumerate(loader, 1):
                for source, epoch, _ in loader.keys():
                    given[source] += 1
                    if epoch:
                        first.setdefault(source, steps - 1)
        assert told[which]["steps"] == steps
        assert {
            row["source"]: row["samples"] for row in told[which]["sources"] if row["samples"]
        } == given
        assert {
            row["source"]: row["first_repeat"]
            for row in told[which]["sources"]
            if row["first_repeat"]
        } == first
    assert told["as_it_is"] != told["changed"]


def test_a_group_has_a_cap_of_its_own_for_each_of_its_sources(
    mixture: Path, penstock: Penstock
) -> None:
    grouped = "sources:\n" + "".join(
        f"  {name}: {{path: {name}.jsonl, group: {group}}}\n"
        for name, group in (("code", "big"), ("text", "small"), ("math", "small"))
    )
    rest = "groups: {big: 1, small: 9}\nbatch: {size: 8, collate: list}\nhorizon: {steps: 300}\n"
    mixture.write_text(grouped + rest + "group_max_epochs: {small: 0.5}\n")
    capped = ps.load(mixture).plan.counts(step=300)
    assert (capped["text"], capped["math"]) == (550, 125)
    lines = penstock("plan", mixture).output
    assert penstock("lint", mixture).exit_code == 0 and "0.5" in lines
    mixture.write_text(grouped + rest)
    found = json.loads(penstock("simulate", mixture, "--max-epochs", "small=0.5", "--json").stdout)
    changed = {source["source"]: source["samples"] for source in found["changed"]["sources"]}
    assert (changed["text"], changed["math"]) == (550, 125)
    none = penstock("simulate", mixture, "--max-epochs", "small=0")
    assert none.exit_code == 2 and "give a number above 0" in none.output, none.output
    refused = penstock("simulate", mixture, "--max-epochs", "smal=0.5")
    assert (
        refused.exit_code == 2
        and "no source or group 'smal'; did you mean 'small'" in refused.output
    )
    mixture.write_text(grouped + rest + "group_max_epochs: {smal: 0.5}\n")
    assert "there is no group 'smal'; did you mean 'small'" in penstock("lint", mixture).output


def test_a_condition_is_a_text_where_a_mixture_file_has_a_text(
    tmp_path: Path, penstock: Penstock
) -> None:
    (tmp_path / "a.jsonl").write_text('{"lang": "no"}\n{"lang": "de"}\n' * 9)
    (tmp_path / "m.yaml").write_text("sources: {a: {path: a.jsonl}}\nhorizon: {samples: 20}\n")
    done = penstock(
        "simulate", tmp_path / "m.yaml", "--set", "sources.a.where={lang: no}", "--json"
    )
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["changed"]["sources"][0]["size"] == 9


@pytest.mark.parametrize(
    "value", ["[1", "*x", "!!python/name:os.system", "{a: 1, a: 2}", "[" * 5000, "2001-99-99"]
)
def test_a_setting_that_is_no_value_is_named(value: str, mixture: Path, penstock: Penstock) -> None:
    done = penstock("simulate", mixture, "--set", f"seed={value}")
    assert done.exit_code == 2 and "--set" in done.output, done.output
    done = penstock(
        "simulate", mixture, "--set", f"seed={value} http://u:kanarie@host/x?sig=kanarie"
    )
    assert done.exit_code == 2 and "kanarie" not in done.output, done.output


def test_headings_are_readable_in_a_narrow_terminal(mixture: Path, penstock: Penstock) -> None:
    done = penstock("simulate", mixture, "--weight", "code=0.9")
    assert done.exit_code == 0, done.output
    assert "samples now" in done.output and "share changed" in done.output
