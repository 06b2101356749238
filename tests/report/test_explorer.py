"""The explorer's answers: steps as a loader delivers them, documents, comparisons, edits, hostile data."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import penstock as ps
from penstock.report.explorer import Explorer
from penstock.report.explorer.budget import TimeBudget
from penstock.report.explorer.steps import MAX_TOKENS
from penstock.report.explorer.timeline import TimelineQuery
from penstock.report.explorer.values import TEXT_WINDOW

WHOLE = TimeBudget(1e9)


def write_world(folder: Path, settings: str, rows: Mapping[str, int]) -> Path:
    for name, size in rows.items():
        lines = [json.dumps({"id": f"{name}-{i}", "text": f"{name} {i}"}) for i in range(size)]
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    path = folder / "mixture.yaml"
    path.write_text(settings)
    return path


def keys_of(answer: Mapping[str, Any]) -> list[tuple[str, int, int]]:
    return [(s["source"], s["epoch"], s["index"]) for s in answer["samples"]]


def test_steps_are_those_that_a_loader_delivers(mixture: Path) -> None:
    explorer = Explorer(mixture)
    with ps.Loader(ps.load(mixture), rank=0, world_size=1) as loader:
        for step, _ in enumerate(loader):
            if step in (0, 1, 137):
                assert keys_of(explorer.main.reader.list_samples(step)) == loader.keys()
            if step == 137:
                break


def test_steps_of_a_run_before_and_after_its_changes(mixture: Path, tmp_path: Path) -> None:
    delivered = dict[int, list[tuple[str, int, int]]]()
    with ps.Loader(ps.load(mixture)) as loader:
        for step, _ in enumerate(loader):
            delivered[step] = loader.keys()
            if step == 49:
                loader.set_weights({"code": 1, "text": 8, "math": 1})
            if step == 59:
                break
        ps.save(tmp_path / "run", loader)
        explorer = Explorer(mixture, tmp_path / "run")
        for step, _ in enumerate(loader, 60):
            delivered[step] = loader.keys()
            if step == 80:
                break
    for step in (3, 49, 50, 59, 60, 80):
        answer = explorer.main.reader.list_samples(step)
        assert keys_of(answer) == delivered[step]
        assert answer["is_delivered"] == (step < 60)
    marks = [(mark["kind"], mark["step"]) for mark in explorer.main.timeline.marks]
    assert ("state", 60) in marks and ("change", 50) in marks
    timeline = explorer.main.timeline.compute(TimelineQuery(40, 60, points=2), WHOLE)
    text = next(band for band in timeline["bands"] if band["name"] == "text")
    assert text["share"][0] < 0.6 < text["share"][1]


def test_samples_have_rank_row_and_file(tmp_path: Path) -> None:
    path = write_world(
        tmp_path, "sources: {a: {path: a.jsonl}}\nbatch: {size: 2, ranks: 3}\n", {"a": 60}
    )
    samples = Explorer(path).main.reader.list_samples(1)["samples"]
    assert [(s["rank"], s["row"]) for s in samples] == [(r, i) for r in range(3) for i in range(2)]
    assert all(s["file"] == "a.jsonl" and s["row_in_file"] == s["index"] for s in samples)


def test_a_step_with_many_samples_comes_in_pages(tmp_path: Path) -> None:
    settings = "sources: {a: {path: a.jsonl}}\nbatch: {size: 600, collate: list}\n"
    reader = Explorer(write_world(tmp_path, settings, {"a": 700})).main.reader
    pages = [reader.list_samples(0, start) for start in (0, 256, 512, 768)]
    assert [len(page["samples"]) for page in pages] == [256, 256, 88, 0]
    assert {page["total"] for page in pages} == {600}
    assert len({s["index"] for page in pages for s in page["samples"]}) == 600


@pytest.mark.parametrize("step", [300, 10**17])
def test_a_step_after_the_run_is_an_error(mixture: Path, step: int) -> None:
    with pytest.raises(IndexError, match="steps 0 to 299"):
        Explorer(mixture).main.reader.list_samples(step)


def test_the_steps_of_a_document_are_those_that_hold_it(mixture: Path) -> None:
    main = Explorer(mixture).main
    steps = [
        step
        for step in range(300)
        for sample in main.reader.list_samples(step)["samples"]
        if (sample["source"], sample["index"]) == ("text", 17)
    ]
    answer = main.finder.list_views("text", 17, budget=WHOLE)
    assert [view["step"] for view in answer["views"]] == steps and answer["next"] is None
    views, first = list[int](), 0
    while first is not None:  # a part at a time
        part = main.finder.list_views("text", 17, first, TimeBudget(0))
        views += [view["step"] for view in part["views"]]
        first = part["next"]
    assert views == steps


def test_search_by_key_and_text_comes_in_parts(tmp_path: Path) -> None:
    settings = "sources: {a: {path: a.jsonl}, b: {path: b.jsonl}}\n"
    finder = Explorer(write_world(tmp_path, settings, {"a": 200, "b": 200})).main.finder
    for text, by in (("b-150", "key"), ("id=b-150", "key"), ("b 150", "text")):
        hits, start = list[Any](), [0, 0]
        while start is not None:
            part = finder.search(text, by, None, (start[0], start[1]), TimeBudget(0))
            hits += part["hits"]
            start = part["next"]
        assert [(hit["source"], hit["index"]) for hit in hits] == [("b", 150)]
    with pytest.raises(ps.ConfigError, match="no source 'c'"):
        finder.search("x", source="c")


def test_a_timeline_sums_to_one_and_fills_up_part_by_part(mixture: Path) -> None:
    timeline = Explorer(mixture).main.timeline
    query, parts = TimelineQuery(points=20), list[dict[str, Any]]()
    while not parts or not parts[-1]["complete"]:
        parts.append(timeline.compute(query, TimeBudget(0)))
        timeline.compute(query, WHOLE)
    assert len(parts[0]["steps"]) < len(parts[-1]["steps"]) == 21
    for column in ("share", "requested"):
        for values in zip(*(band[column] for band in parts[-1]["bands"]), strict=True):
            assert sum(values) == pytest.approx(1, abs=1e-4)


def test_many_sources_become_bands_and_a_rest(tmp_path: Path) -> None:
    names = [f"s{i:02}" for i in range(40)]
    sources = "\n".join(
        f"  {name}: {{path: s.jsonl, group: {'x' if i < 20 else 'y'}, weight: {i + 1}}}"
        for i, name in enumerate(names)
    )
    settings = f"groups: {{x: 1, y: 3}}\nsources:\n{sources}\nhorizon: {{samples: 4000}}\n"
    timeline = Explorer(write_world(tmp_path, settings, {"s": 300})).main.timeline
    bands = timeline.compute(TimelineQuery(pinned=("s00",), bands=5), WHOLE)["bands"]
    assert bands[-1]["name"] == "34 others" and bands[0]["name"] == "s00" and len(bands) == 7
    folded = timeline.compute(TimelineQuery(groups=True), WHOLE)["bands"]
    assert [(band["name"], round(band["total"], 2)) for band in folded] == [
        ("x", 0.25),
        ("y", 0.75),
    ]
    open_x = timeline.compute(TimelineQuery(groups=True, unfolded=("x",), bands=30), WHOLE)["bands"]
    assert [band["name"] for band in open_x] == ["y", *names[:20]]


def test_compare_finds_the_first_step_that_differs(mixture: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.yaml"
    other.write_text(mixture.read_text().replace("max_epochs: 0.5", "max_epochs: 0.4"))
    explorer = Explorer(mixture, others=[other])
    one, two = (ps.load(path).plan for path in (mixture, other))
    first = next(step for step in range(300) if one.at(step) != two.at(step))
    answer = explorer.compare("other1")
    while answer["next"] is not None:
        answer |= explorer.compare("other1", row=answer["next"])
    assert answer["first"] == first and "max_epochs" in " ".join(answer["settings"])
    assert explorer.compare("main")["first"] is None


def test_an_edit_is_planned_and_saved(mixture: Path) -> None:
    explorer = Explorer(mixture)
    edit = {"weights": {"math": 0.4}, "caps": {"math": None}, "horizon": 200}
    answer = explorer.edit(edit)
    assert answer["steps"] == 200 and answer["after"]["math"][0] == pytest.approx(0.31, abs=0.02)
    saved = explorer.save_edit(edit, "new.yaml")
    assert Path(saved["path"]) == mixture.parent / "new.yaml"
    with ps.Loader(ps.load(saved["path"])) as loader:
        for step, _ in enumerate(loader):
            if step in (0, 150):
                edited = explorer.get_plan("edited").reader.list_samples(step)
                assert keys_of(edited) == loader.keys()
    with pytest.raises(ps.ConfigError, match="exists already"):
        explorer.save_edit(edit, "new.yaml")


@pytest.mark.parametrize(
    "name", ["../x.yaml", "/tmp/x.yaml", ".x.yaml", "a\\b.yaml", "x", "", "x\0.yaml"]
)
def test_an_edit_is_saved_beside_the_mixture_only(mixture: Path, name: str) -> None:
    with pytest.raises(ps.ConfigError):
        Explorer(mixture).save_edit({}, name)


@pytest.mark.parametrize(
    "edit",
    [[], {"weights": {"nope": 1}}, {"weights": {"code": -1}}, {"weights": {"code": float("nan")}},
     {"weights": {"code": "1"}}, {"caps": {"code": True}}, {"weights": {"code": 0, "text": 0, "math": 0}}],
)  # fmt: skip
def test_an_invalid_edit_is_an_error(mixture: Path, edit: Any) -> None:
    with pytest.raises(ps.ConfigError):
        Explorer(mixture).edit(edit)


def test_an_edit_of_a_run_is_adopted_at_its_position(mixture: Path, tmp_path: Path) -> None:
    with ps.Loader(ps.load(mixture)) as loader:
        for step, _ in enumerate(loader):
            if step == 59:
                break
        ps.save(tmp_path / "run", loader)
    explorer, edit = Explorer(mixture, tmp_path / "run"), {"weights": {"text": 9}}
    explorer.edit(edit)
    before, after = (explorer.get_plan(name).reader for name in ("main", "edited"))
    assert keys_of(before.list_samples(59)) == keys_of(after.list_samples(59))
    saved = explorer.save_run(edit, "changed")["path"]
    new = explorer.save_edit(edit, "new.yaml")["path"]
    with ps.Loader(ps.load(new)) as loader:
        assert ps.restore(saved, loader) == 60
        for step, _ in enumerate(loader, 60):
            if step in (60, 75):
                assert keys_of(after.list_samples(step)) == loader.keys()
            if step == 75:
                break
    assert keys_of(before.list_samples(75)) != keys_of(after.list_samples(75))


def test_hostile_samples_are_bounded_and_printable(tmp_path: Path) -> None:
    rows = [
        {"text": "x" * 3_000_000},
        {"text": "\u202egpj.exe\x00\x1b[31m", "id": "<script>"},
        {"text": "\ud800"},
        {f"f{i}": [[[[[1] * 99] * 99] * 3]] for i in range(200)},
    ]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    path = tmp_path / "mixture.yaml"
    path.write_text("sources: {a: {path: a.jsonl, shuffle: none}}\nstop: all_exhausted\n")
    reader = Explorer(path).main.reader
    big = reader.read_sample("a", 0, 2_999_000)["value"]
    assert len(json.dumps(reader.read_sample("a", 0))) < 2 * TEXT_WINDOW
    text = dict(big["items"])["text"]
    assert text["size"] == 3_000_000 and text["text"] == "x" * 1000
    odd = reader.read_sample("a", 1)
    assert dict(odd["value"]["items"])["text"]["text"] == "·gpj.exe··[31m"
    assert odd["key"] == "<script>"  # the page shows it as a text node
    assert dict(reader.read_sample("a", 2)["value"]["items"])["text"]["text"] == "\ufffd"
    assert len(json.dumps(reader.read_sample("a", 3))) < 300_000
    with pytest.raises(ps.DataError, match="no image"):
        reader.read_media("a", 1, ["text"])
    with pytest.raises(IndexError, match="4 samples"):
        reader.read_sample("a", 4)


def test_tokens_of_a_row_and_their_loss_mask(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    words = {word: i for i, word in enumerate(("a", "b", "0", "1", "2", "<unk>"))}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(tmp_path / "tok.json"))
    settings = """\
sources: {a: {path: a.jsonl}, b: {path: b.jsonl}}
tokenize: {tokenizer: tok.json, counted: true}
pack: {length: 7}
batch: {size: 2}
horizon: {steps: 12}
"""
    explorer = Explorer(write_world(tmp_path, settings, {"a": 9, "b": 9}))
    with ps.Loader(ps.load(explorer.main.target.path)) as loader:
        for step, batch in enumerate(loader):
            for row in range(2):
                shown = explorer.main.reader.read_tokens(step, 0, row)["documents"]
                ids = [i for document in shown for i in document["ids"]]
                used = batch["tokens"][row][batch["segment_ids"][row] > 0]
                assert ids == used.tolist()[:MAX_TOKENS]
            answer = explorer.main.reader.list_samples(step)
            assert keys_of(answer) == loader.keys()
            assert sum(s["stop"] - s["start"] for s in answer["samples"]) == int(
                (batch["segment_ids"] > 0).sum()
            )
    texts = explorer.main.reader.read_tokens(0, 0, 0)["documents"][0]["texts"]
    assert texts[0].strip() in ("a", "b")


def test_live_waits_for_the_file_and_shows_a_resumed_run(mixture: Path, tmp_path: Path) -> None:
    explorer = Explorer(mixture, stats=tmp_path / "stats.jsonl")
    assert "waiting" in explorer.read_live()
    for _ in range(2):  # the second loader appends
        with ps.Loader(ps.load(mixture), stats=tmp_path / "stats.jsonl") as loader:
            for step, _ in enumerate(loader):
                if step == 20:
                    break
    answer = explorer.read_live()
    assert answer["summary"]["status"] == "closed" and len(answer["starts"]) == 2
    assert set(answer["planned"]) == {"code", "text", "math"} and answer["history"]
    with (tmp_path / "stats.jsonl").open("a") as file:
        file.write('{"kind": "reco')  # a kill tore the line
    assert explorer.read_live()["history"] == answer["history"]
