"""The questions on the command line, held against what a run of the same file delivers."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock as ps
from cli_world import Penstock

SOURCES = ("code", "text", "math")


def keys(mixture: Path, steps: int) -> list[list[tuple[str, int, int]]]:
    with ps.Loader(ps.load(mixture), rank=0, world_size=1) as loader:
        return [loader.keys() for _, _ in zip(range(steps), loader, strict=False)]


def said(penstock: Penstock, *arguments: Any) -> Any:
    result = penstock(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.output)


def test_plan_counts_what_a_run_gives(mixture: Path, penstock: Penstock) -> None:
    found = said(penstock, "plan", mixture)
    given = Counter(source for step in keys(mixture, 300) for source, _, _ in step)
    assert found["steps"] == 300 and found["samples"] == 2_400
    rows = {row["source"]: row for row in found["sources"]}
    assert {name: row["samples"] for name, row in rows.items()} == given
    assert [rows[name]["requested"] for name in SOURCES] == pytest.approx([0.5, 0.4, 0.1])
    assert rows["math"]["samples"] == 125 and rows["math"]["ends"] is not None
    last = max(
        step for step, its in enumerate(keys(mixture, 300)) if any(key[0] == "math" for key in its)
    )
    assert rows["math"]["ends"] in (last, last + 1)


def test_a_fingerprint_for_an_appendix(mixture: Path, penstock: Penstock) -> None:
    def prints() -> dict[str, str]:
        return said(penstock, "plan", mixture, "--digest")["fingerprint"]

    first = prints()
    line = penstock("plan", mixture, "--digest").output.splitlines()[-1]
    assert (
        line
        == f"fingerprint: order {first['order']}, data {first['data']}, penstock {ps.__version__}"
    )
    assert "data" not in said(penstock, "plan", mixture)["fingerprint"]
    moved = mixture.parent / "elsewhere"
    moved.mkdir()
    rows = (mixture.parent / "math.jsonl").read_text()
    (mixture.parent / "math.jsonl").rename(moved / "math.jsonl")
    text = mixture.read_text()
    mixture.write_text(text.replace("path: math.jsonl", "path: elsewhere/math.jsonl"))
    assert prints() == first, "wherever the data lies"
    (moved / "math.jsonl").write_text(rows.replace("math", "mash"))
    for left in moved.glob(".*"):
        left.unlink()
    other = prints()
    assert other["order"] == first["order"] and other["data"] != first["data"]
    mixture.write_text(mixture.read_text().replace("seed: 7", "seed: 8"))
    assert prints()["order"] != first["order"]


def test_steps_that_a_run_took_after_its_horizon_are_told(
    mixture: Path, penstock: Penstock, tmp_path: Path
) -> None:
    mixture.write_text(mixture.read_text().replace("steps: 300", "samples: 30"))
    given = list[list[Any]]()
    with ps.Loader(ps.load(mixture), rank=0, world_size=1) as loader:
        for _ in range(2):
            given += [[list(key) for key in loader.keys()] for _ in loader]
        (tmp_path / "state.json").write_text(json.dumps(loader.state_dict()))
    result = penstock(
        "at", mixture, 0, "--to", len(given), "--state", tmp_path / "state.json", "--json"
    )
    samples = json.loads(result.stdout)["samples"]
    told = [
        [[s["source"], s["epoch"], s["index"]] for s in samples if s["step"] == n]
        for n in range(len(given))
    ]
    assert len(given) == 8 and told == given
    refused = penstock("at", mixture, 8, "--state", tmp_path / "state.json")
    assert refused.exit_code == 2 and "the run ends at its horizon" in refused.output


def test_nothing_comes_after_the_horizon(mixture: Path, penstock: Penstock) -> None:
    assert penstock("at", mixture, 299).exit_code == 0
    for asked in ((300,), (298, "--to", 301)):
        refused = penstock("at", mixture, *asked)
        assert (
            refused.exit_code == 2
            and "step 300: the run ends at its horizon, after 300" in refused.output
        )


def test_plan_for_people_says_what_is_odd(mixture: Path, penstock: Penstock) -> None:
    mixture.write_text(mixture.read_text().replace("steps: 300", "steps: 5k"))
    shown = penstock("plan", mixture).output
    assert (
        "40,000 samples" in shown
        and "each of its samples is seen" in shown
        and "math: used up at" in shown
    )


def test_plan_draws(mixture: Path, penstock: Penstock, tmp_path: Path) -> None:
    for name in ("plan.svg", "plan.html"):
        assert penstock("plan", mixture, "-o", tmp_path / name).exit_code == 0
        assert "used up at 162" in (tmp_path / name).read_text()
    result = penstock("plan", mixture, "-o", tmp_path / "plan.gif")
    assert result.exit_code == 2 and ".svg, .png, .html" in result.stderr


def test_at_is_what_a_run_delivers(mixture: Path, penstock: Penstock) -> None:
    rows = said(penstock, "at", mixture, 40, "--to", 60)["samples"]
    given = [
        (step, *key) for step, its in enumerate(keys(mixture, 60)) if step >= 40 for key in its
    ]
    assert [(row["step"], row["source"], row["epoch"], row["index"]) for row in rows] == given


def test_at_can_read_the_samples(mixture: Path, penstock: Penstock) -> None:
    for row in said(penstock, "at", mixture, 3, "--read")["samples"]:
        assert row["text"] == repr({"text": f"{row['source']} {row['index']}"})


def test_find_is_where_a_run_delivers(mixture: Path, penstock: Penstock) -> None:
    given = keys(mixture, 300)
    for source, index in (("text", 17), ("math", 3), ("code", 2_899)):
        wanted = [
            step
            for step, its in enumerate(given)
            if any(key[0] == source and key[2] == index for key in its)
        ]
        found = said(penstock, "find", mixture, source, index)
        assert found["samples"] == [{"source": source, "index": index, "steps": wanted}]
        shown = penstock("find", mixture, source, index, "--all").output.splitlines()
        assert [int(line.split()[1].replace(",", "")) for line in shown[1:-1]] == wanted


def test_find_tells_passes_and_pieces_of_packed_documents_apart(
    tmp_path: Path, penstock: Penstock
) -> None:
    pq.write_table(pa.table({"ids": [list(range(n)) for n in (90, 40, 7)]}), tmp_path / "a.parquet")
    path = tmp_path / "packed.yaml"
    pack = "{length: 32, method: concat_split}"
    path.write_text(
        f"horizon: {{epochs: 2}}\npack: {pack}\nsources: {{a: {{path: a.parquet, lengths: ids}}}}\n"
    )
    (found,) = said(penstock, "find", path, "a", 0)["samples"]
    assert found["passes"] == 2 and found["steps"] == sorted(
        {piece["step"] for piece in found["pieces"]}
    )
    for epoch in (0, 1):
        pieces = [piece for piece in found["pieces"] if piece["epoch"] == epoch]
        assert len(pieces) in (3, 4) and [pieces[0]["start"], pieces[-1]["stop"]] == [0, 90]
        assert all(one["stop"] == next_["start"] for one, next_ in itertools.pairwise(pieces))
    lines = penstock("find", path, "a", 0).output.splitlines()
    assert lines[-1] == f"  seen twice, in {len(found['pieces'])} pieces"
    assert (
        lines[1] == f"  step {found['steps'][0]}, pass 0, tokens 0 to {found['pieces'][0]['stop']}"
    )
    (other,) = said(penstock, "find", path, "a", 2, "--to", 4)["samples"]
    pieces = len(other["pieces"])
    end = "" if pieces == 1 else f", in {pieces} pieces"
    assert penstock("find", path, "a", 2, "--to", 4).output.splitlines()[-1] == f"  seen once{end}"


def test_find_by_a_name_or_by_words(mixture: Path, penstock: Penstock) -> None:
    by_index = said(penstock, "find", mixture, "text", 17)["samples"]
    for asked in (
        ("--name", "text=text 17"),
        ("--words", "text 17", "text"),
        ("text", "--words", "t 17"),
    ):
        found = said(penstock, "find", mixture, *asked)["samples"]
        assert found[0] == by_index[0] and all(one["source"] == "text" for one in found)
    assert [one["index"] for one in found] == [17, *range(170, 180)]
    assert penstock("find", mixture, "--name", "text=17").output == "no such sample in any source\n"
    for asked, needle in (
        ((), "give SOURCE INDEX"),
        ((17,), "give SOURCE INDEX"),
        (("txt", "--name", "x"), "'text'"),
        (("--name", "text 17"), "no column '__key__' or"),
        (("text", "--name", "urls=x"), "'text' has no column 'urls'"),
    ):
        refused = penstock("find", mixture, *asked)
        assert refused.exit_code == 2 and needle in refused.output


def test_find_by_a_column_that_the_mixture_does_not_read(
    tmp_path: Path, penstock: Penstock
) -> None:
    rows = [{"text": f"text {i}", "url": f"https://host/{i}"} for i in range(20)]
    data = tmp_path / "pages.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    path = tmp_path / "narrow.yaml"
    path.write_text(f"horizon: {{steps: 20}}\nsources: {{a: {{path: {data}, columns: [text]}}}}\n")
    for name in ("https://host/7", "url=https://host/7"):
        assert [
            one["index"] for one in said(penstock, "find", path, "--name", name)["samples"]
        ] == [7]


def test_find_tells_fifty_and_then_all_that_there_are(mixture: Path, penstock: Penstock) -> None:
    mixture.write_text(mixture.read_text().replace("steps: 300", "steps: 100k"))
    few = penstock("find", mixture, "text", 17).output.splitlines()
    assert len(few) == 52 and few[-1].endswith("(--all prints them)")
    every = penstock("find", mixture, "text", 17, "--all").output.splitlines()
    assert (
        every[:51] == few[:51]
        and len(every) > 200
        and every[-1] == f"  seen {len(every) - 2:,} times"
    )


def test_find_names_no_step_after_the_horizon(mixture: Path, penstock: Penstock) -> None:
    (to_end,) = said(penstock, "find", mixture, "text", 17)["samples"]
    result = said(penstock, "find", mixture, "text", 17, "--to", 100_000)
    assert result["to"] == 300 and result["samples"] == [to_end]
    refused = penstock("find", mixture, "text", 17, "--from", 300, "--to", 400)
    assert penstock("find", mixture, "text", 17, "--to", 1).output.endswith("  not seen\n")
    assert refused.exit_code == 2
    assert "--from 300: the run ends at its horizon, after 300 steps" in refused.output
    mixture.write_text(mixture.read_text().replace("horizon: {steps: 300}\n", ""))
    assert said(penstock, "find", mixture, "text", 17, "--to", 1_000)["to"] == 1_000


def test_find_refuses_what_is_not_there(mixture: Path, penstock: Penstock) -> None:
    result = penstock("find", mixture, "txt", 17)
    assert result.exit_code == 2 and "'text'" in result.stderr
    result = penstock("find", mixture, "text", 1_100)
    assert result.exit_code == 2 and "1100" in result.stderr


def test_diff_finds_the_first_step_and_says_what_was_changed(
    mixture: Path, penstock: Penstock
) -> None:
    other = mixture.with_name("other.yaml")
    other.write_text(mixture.read_text().replace("seed: 7", "seed: 8"))
    result = penstock("diff", mixture, other, "--json")
    found = json.loads(result.output)
    assert result.exit_code == 1
    one, two = keys(mixture, 300), keys(other, 300)
    assert found["first"] == next(step for step in range(300) if one[step] != two[step])
    assert any("seed" in line for line in found["says"])
    same = penstock("diff", mixture, mixture)
    assert same.exit_code == 0 and "the same samples in steps 0 to 300" in same.output


def test_diff_says_in_words_what_was_changed(mixture: Path, penstock: Penstock) -> None:
    other, text = mixture.with_name("other.yaml"), mixture.read_text()
    text = text.replace("weight: 0.1, max_epochs: 0.5", "weight: 0.3").replace(
        "steps: 300", "steps: 200"
    )
    other.write_text(
        text.replace("  text: {path: text.jsonl, weight: 0.4}\n", "").replace(
            "size: 8", "size: 8, ranks: 2"
        )
    )
    said = penstock("diff", mixture, other).output.splitlines()
    assert [line.strip() for line in said[:6]] == [
        "gone: text",
        "horizon steps 300 -> 200",
        "batch ranks nothing -> 2",
        "math: weight 0.1 -> 0.3",
        "math: max_epochs 0.5 -> nothing",
        next(line for line in said if line.startswith("other samples from step ")),
    ]
    assert said[-1] == "one ends after 300 steps, the other after 200"
    longer = mixture.with_name("longer.yaml")
    longer.write_text(mixture.read_text().replace("steps: 300", "steps: 400"))
    said = penstock("diff", mixture, longer).output
    assert "the same samples in steps 0 to 300" in said and "the other after 400" in said


def test_simulate_puts_the_change_beside_the_plan(mixture: Path, penstock: Penstock) -> None:
    found = said(
        penstock,
        "simulate",
        mixture,
        "--weight",
        "code=0.9",
        "--max-epochs",
        "math=0.1",
        "--batch",
        16,
    )
    now, then = (
        {row["source"]: row for row in found[name]["sources"]} for name in ("as_it_is", "changed")
    )
    assert now["code"]["requested"] == pytest.approx(0.5) and then["code"][
        "requested"
    ] == pytest.approx(0.9 / 1.4)
    assert then["math"]["samples"] == 25
    assert sum(row["samples"] for row in then.values()) == 2 * sum(
        row["samples"] for row in now.values()
    )
    assert "changed" in penstock("simulate", mixture, "--weight", "code=0.9").output


def test_simulate_shows_sources_that_one_plan_has(tmp_path: Path, penstock: Penstock) -> None:
    rows = "".join(f'{{"lang": "{"de" if i % 3 else "en"}"}}\n' for i in range(60))
    (tmp_path / "web.jsonl").write_text(rows)
    mixture = tmp_path / "mixture.yaml"
    mixture.write_text(
        "horizon: {samples: 100}\n"
        "sources: {web: {path: web.jsonl, partition_by: lang, min_size: 5, rest: other}}\n"
    )
    output = penstock("simulate", mixture, "--set", "sources.web.min_size=30").output
    lines = {line.split()[0]: line.split()[1:] for line in output.splitlines() if "web/" in line}
    assert lines.keys() >= {"web/de", "web/en", "web/other"}
    assert len(lines["web/en"]) == len(lines["web/other"]) == 3 and len(lines["web/de"]) == 6


def test_simulate_changes_stages_caps_and_the_horizon(mixture: Path, penstock: Penstock) -> None:
    stages = "stages:\n  - {name: first, until: 50%}\n  - {name: last, interpolation: linear, weights: {math: 0.1}}\n"
    mixture.write_text(mixture.read_text().replace("max_epochs: 0.5", "max_epochs: 5") + stages)
    settings = (
        "--set",
        "stages.last.weights.math=2.7",
        "--set",
        "stages.1.until=20%",
        "--set",
        "horizon.steps=200",
    )
    changed = said(
        penstock, "simulate", mixture, *settings, "--set", "sources.code.max_epochs=0.1"
    )["changed"]
    text = (
        mixture.read_text().replace("steps: 300", "steps: 200").replace("until: 50%", "until: 20%")
    )
    text = text.replace("{math: 0.1}", "{math: 2.7}").replace(
        "weight: 0.5", "weight: 0.5, max_epochs: 0.1"
    )
    other = mixture.with_name("other.yaml")
    other.write_text(text)
    plan = said(penstock, "plan", other)
    assert changed["sources"] == plan["sources"] and changed["steps"] == plan["steps"] == 200
    for wrong, needle in (
        ("stages.mid.until=1%", "there is no key 'mid'"), ("sources.cod.weight=1", "did you mean 'code'"),
        ("stages", "KEY=VALUE"), ("seed=x", "seed"), ("sead=3", "did you mean 'seed'"),
    ):  # fmt: skip
        refused = penstock("simulate", mixture, "--set", wrong)
        assert refused.exit_code == 2 and needle in refused.stderr, refused.stderr


def test_simulate_refuses_what_makes_no_sense(mixture: Path, penstock: Penstock) -> None:
    for change, needle in (
        ("cod=1", "'code'"),
        ("code", "NAME=NUMBER"),
        ("code=much", "'much' is not a number"),
    ):
        result = penstock("simulate", mixture, "--weight", change)
        assert result.exit_code == 2 and needle in result.stderr, result.stderr


def test_lint_names_all_in_one_go(mixture: Path, penstock: Penstock) -> None:
    text = (
        mixture.read_text()
        .replace("weight: 0.5", "wieght: 0.5")
        .replace("text.jsonl", "txet.jsonl")
    )
    mixture.write_text(text)
    result = penstock("lint", mixture, "--json")
    found = {
        (problem["severity"], problem["line"], problem["key"])
        for problem in json.loads(result.output)["problems"]
    }
    assert result.exit_code == 1
    assert ("error", 2, "sources.code.wieght") in found and (
        "error",
        3,
        "sources.text.path",
    ) in found
    assert "did you mean 'weight'?" in penstock("lint", mixture).output
    refused = penstock("plan", mixture)
    assert refused.exit_code == 2 and "line 2" in refused.stderr


def test_lint_passes_a_good_file(mixture: Path, penstock: Penstock) -> None:
    mixture.write_text(mixture.read_text().replace(", max_epochs: 0.5", ""))
    result = penstock("lint", mixture)
    assert result.exit_code == 0 and "nothing wrong" in result.output


def test_questions_start_without_what_they_do_not_need(mixture: Path) -> None:
    code = (
        "import sys\nfrom penstock.cli.app import app\n"
        f"app(['at', {str(mixture)!r}, '3'], standalone_mode=False)\n"
        "print(*sorted({'torch', 'jax', 'datasets', 'pandas', 'matplotlib', 'pydantic', 'numpy.ma', 'pyarrow.dataset'}"
        " & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=600, check=True
    )
    assert done.stdout.splitlines()[-1] == ""


def test_names_and_figures_are_whole_in_a_narrow_window(
    mixture: Path, penstock: Penstock, monkeypatch: pytest.MonkeyPatch
) -> None:
    wide = penstock("plan", mixture).output
    monkeypatch.setenv("COLUMNS", "40")
    narrow = penstock("plan", mixture).output
    assert [
        word for word in wide.split() if any(map(str.isdigit, word)) and word not in narrow
    ] == []
    assert all(name in wide for name in (*SOURCES, "samples", "epochs"))


def test_errors_are_json_where_it_is_asked(mixture: Path, penstock: Penstock) -> None:
    refused = penstock("find", mixture, "tex", 3, "--json")
    found = json.loads(refused.stdout)
    assert refused.exit_code == 2 and found["version"] == 1
    assert (
        found["error"]["kind"] == "ConfigError"
        and "did you mean 'text'" in found["error"]["message"]
    )
    mixture.write_text(
        mixture.read_text().replace("code.jsonl", "cod.jsonl").replace("math.jsonl", "mth.jsonl")
    )
    message = json.loads(penstock("plan", mixture, "--json").stdout)["error"]["message"]
    assert "cod.jsonl" in message and "mth.jsonl" in message, "all that is missing is named at once"


def test_the_version_is_told(penstock: Penstock) -> None:
    assert penstock("--version").output == f"penstock {ps.__version__}\n"


def test_plan_tells_how_full_packed_rows_are(tmp_path: Path, penstock: Penstock) -> None:
    lengths = [3, 40, 7, 12, 30] * 20
    pq.write_table(pa.table({"ids": [list(range(n)) for n in lengths]}), tmp_path / "a.parquet")
    path = tmp_path / "m.yaml"
    path.write_text(
        "horizon: {epochs: 1}\npack: {length: 32}\nsources: {a: {path: a.parquet, lengths: ids}}\n"
    )
    found = said(penstock, "plan", path)["packing"]
    assert (
        0.99 < found["fill"] < 1
        and 0.2 < found["split"] < 0.8
        and found["cut"] == 0
        and found["sampled"] > 50
    )
    assert "packing: " in (shown := penstock("plan", path).output) and "99.14% full" in shown


def test_a_state_that_is_not_there_is_asked_for_in_words(mixture: Path, penstock: Penstock) -> None:
    for words in (("plan", mixture), ("at", mixture, 3), ("audit", mixture)):
        refused = penstock(*words, "--state", mixture / "nosuch")
        assert (
            refused.exit_code == 2 and "no state found: pass the folder given to" in refused.stderr
        ), refused.stderr


def test_a_repeat_behind_the_last_step_is_none(tmp_path: Path, penstock: Penstock) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "x"}\n' * 11)
    path = tmp_path / "mixture.yaml"
    path.write_text("sources: {a: {path: a.jsonl}}\nhorizon: {samples: 13}\nglobal_batch_size: 4\n")
    (row,) = said(penstock, "plan", path)["sources"]
    assert (row["samples"], row["first_repeat"]) == (12, 2)
    path.write_text("sources: {a: {path: a.jsonl}}\nhorizon: {samples: 13}\nglobal_batch_size: 5\n")
    (row,) = said(penstock, "plan", path)["sources"]
    assert (row["samples"], row["first_repeat"]) == (10, None)
