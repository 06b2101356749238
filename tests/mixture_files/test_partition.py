"""Sources for each value of a column, and fractions of a source, in mixture files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

import penstock as ps
from penstock.engine.base.canonical_json import compute_fingerprint
from penstock.mixture_files import lint, read_model
from penstock.mixture_files.tokenize import tokenize
from penstock.report.target import open_target

ROWS = [
    {"lang": ["de", "en", None, "fr"][7 * i % 11 % 4], "q": i % 2, "text": f"text {i}", "id": i}
    for i in range(100)
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "web").mkdir()
    for part, rows in enumerate((ROWS[:60], ROWS[60:])):
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / f"web/{part}.parquet")
    (tmp_path / "book.jsonl").write_text("\n".join(map(json.dumps, ROWS)))
    return tmp_path


def load(folder: Path, web: str, above: str = "", **options: Any) -> ps.Dataset:
    return ps.load(write(folder, web, above), **options)


def write(folder: Path, web: str, above: str = "") -> Path:
    path = folder / "mixture.yaml"
    path.write_text(
        f"{above}\nsources:\n  web: {{path: web, {web}}}\n"
        f"  book: {{path: book.jsonl{', weight: 1' * (' weight:' in f' {web}')}}}\n"
    )
    return path


def describe(ds: ps.Dataset) -> str:
    return compute_fingerprint(ds.tree.description())


def read_parts(folder: Path, columns: Any, **options: Any) -> dict[str, ps.Dataset]:
    return ps.read(folder / "web", name="web").partition_by(columns, **options)


def book(folder: Path) -> ps.Dataset:
    return ps.read(folder / "book.jsonl", name="book").shuffle()


def test_a_partition_is_a_nested_mixture(folder: Path) -> None:
    web = "partition_by: [lang, q], min_size: 12, rest: other, mix: {temperature: 2, max_epochs: {other: 3}}"
    parts = read_parts(folder, ["lang", "q"], min_size=12, rest="other")
    assert len(parts) > 3 and "other" in parts
    inner = ps.mix(
        {name: part.shuffle() for name, part in parts.items()},
        temperature=2,
        max_epochs={"other": 3},
        seed=4,
    )
    by_hand = ps.mix({"web": inner, "book": book(folder)}, seed=4)
    ds = load(folder, web, "seed: 4")
    assert describe(ds) == describe(by_hand)
    assert {"web/other", "web/de:0", "book"} <= {*ds.plan.sources}
    assert open_target(folder / "mixture.yaml").caps == {"web/other": 3}


def test_a_partitioned_source_has_one_loss_weight(folder: Path) -> None:
    ds = load(folder, "partition_by: lang, loss_weight: 0.5")
    assert {*zip((name.split("/")[0] for name in ds.sources), ds.loss_weights, strict=True)} == {
        ("web", 0.5),
        ("book", 1.0),
    }


def test_weights_of_parts(folder: Path) -> None:
    weights = {"de": 3, "en": 1, "fr": 0, "null": 2}
    ds = load(
        folder,
        f"weight: 2, partition_by: lang, mix: {{weights: {json.dumps(weights)}}}".replace('"', ""),
    )
    names = ("web/de", "web/en", "web/null", "book")
    counts = {name: int(n) for name, n in ds.plan.counts(900).items() if n}
    assert counts.keys() <= {*names}
    assert abs(counts["web/de"] - 300) <= 6 and abs(counts["web/null"] - 200) <= 6


def test_parts_and_fractions_are_written_back(folder: Path) -> None:
    parts = read_parts(folder, ["lang", "q"], min_size=12, rest="other")
    flat = ps.mix(
        {name: part.shuffle() for name, part in parts.items()},
        seed=7,
        unique_fraction={"other": 0.5},
    )
    half = ps.read(folder / "book.jsonl").split("10%", seed=2)[0].shuffle()
    nested = ps.mix({"all": flat, "book": half}, seed=7, unique_fraction={"book": "25%"})
    for ds in (flat, nested):
        ps.dump(ds, folder / "again.yaml")
        assert describe(ps.load(folder / "again.yaml")) == describe(ds)
        assert [p for p in lint(folder / "again.yaml") if p.severity == "error"] == []
    written = yaml.safe_load((folder / "again.yaml").read_text())["sources"]
    assert written["book"]["unique_fraction"] == "25%"
    other = written["all"]["mixture"]["sources"]["other"]
    assert other["input"] == other["rest"] == "rest" and other["unique_fraction"] == "50%"
    assert not [
        p for p in lint(folder / "again.yaml") if "reads" in p.message
    ]  # parts are disjoint


def test_a_part_of_a_part_is_not_written(folder: Path) -> None:
    part = read_parts(folder, "lang")["de"].partition_by("q")
    with pytest.raises(ps.ConfigError, match="a mixture file partitions a source once"):
        ps.dump(ps.mix(part), folder / "again.yaml")


def test_one_part(folder: Path) -> None:
    ds = load(folder, "partition_by: lang, input: null", "shuffle: none")
    assert describe(ds) == describe(
        ps.mix(
            {
                "web": read_parts(folder, "lang")["null"],
                "book": ps.read(folder / "book.jsonl", name="book"),
            }
        )
    )


def test_every_part_is_split(folder: Path) -> None:
    text, ids = "partition_by: lang, mix: {weights: {de: 1, en: 0, fr: 1, null: 1}}", list[int]()
    train = load(folder, text, "split: {held_out: 20%}\nstop: all_exhausted")
    held_out = load(folder, text, "split: {held_out: 20%}\nstop: all_exhausted", part="held_out")
    for ds, zero in ((train, "en"), (held_out, "")):
        ids += [row["id"] for row in ds.with_source() if row["__source__"] != "book"]
        assert (f"web/{zero}" in ds.plan.sources) == bool(zero)
    english = [row["id"] for row in ROWS if row["lang"] == "en"]
    held = [row["id"] for row in held_out.with_source() if row["__source__"] == "web/en"]
    assert len(held) == len(english) // 5  # the weights of the run do not count
    assert sorted(ids) == sorted({i for i in range(100) if i not in english or i in held})


def test_excluded_rows_of_a_part(folder: Path) -> None:
    third = read_parts(folder, "lang")["de"][2]["id"]
    (folder / "out.jsonl").write_text('["web/de", 2]\n')
    above = "stop: all_exhausted\nexclude: out.jsonl"
    rows = load(folder, "partition_by: lang", above).with_source()
    assert (
        third not in [row["id"] for row in rows if row["__source__"] == "web/de"]
        and len(rows) == 199
    )
    (folder / "out.jsonl").write_text('["web/dee", 2]\n')
    with pytest.raises(ps.ConfigError, match="names .'web/dee'.; did you mean 'web/de'"):
        load(folder, "partition_by: lang", above)


def test_a_fraction_stays_when_samples_are_excluded(folder: Path) -> None:
    def ids() -> set[int]:
        ds = load(folder, "unique_fraction: 30%", "stop: all_exhausted\nexclude: out.jsonl")
        return {row["id"] for row in ds.with_source() if row["__source__"] == "web"}

    (folder / "out.jsonl").write_text("")
    before = ids()
    assert len(before) == 30
    gone = min(before)
    (folder / "out.jsonl").write_text(f'["web", {gone}]\n')
    assert ids() == before - {gone}


def test_fractions_of_parts_and_of_sources(folder: Path) -> None:
    above = "seed: 3\nstop: all_exhausted"
    ds = load(folder, "partition_by: lang, unique_fraction: 0.5", above)
    parts = {name: part.shuffle() for name, part in read_parts(folder, "lang").items()}
    inner = ps.mix(parts, seed=3, stop="all_exhausted", unique_fraction=0.5)
    assert describe(ds) == describe(
        ps.mix({"web": inner, "book": book(folder)}, seed=3, stop="all_exhausted")
    )
    assert describe(load(folder, "unique_fraction: 100%", above)) == describe(
        load(folder, "weight: 1", above).pipe(lambda ds: load(folder, "unique_fraction: 1", above))
    )


def test_tokens_of_parts_are_stored_by_part(folder: Path) -> None:
    pytest.importorskip("tokenizers")
    from chat_cases import bpe

    bpe().save(str(folder / "t.json"))
    path = write(
        folder,
        "weight: 2, partition_by: lang, mix: {weights: {de: 1, en: 2, fr: 1, null: 1}}",
        "tokenize: {tokenizer: t.json}\nstop: all_exhausted",
    )
    model, problems = read_model(path)
    assert model is not None and not problems
    stored = tokenize(model, folder / "store")
    assert stored["web/de"].documents == sum(row["lang"] == "de" for row in ROWS)
    again = ps.load(folder / "store/mixture.yaml")
    assert again.plan.sources == ps.load(path).plan.sources
    now, wanted = [list(map(list, ds)) for ds in (again, ps.load(path))]
    assert [list(map(int, row)) for row in now] == [list(map(int, row)) for row in wanted]


@pytest.mark.parametrize(
    ("web", "message"),
    [
        ("partition_by: lagn", "sources.web.partition_by: there is no column 'lagn'; did you mean 'lang'"),
        ("partition_by: []", "sources.web.partition_by: expected a list of at least one value"),
        ("partition_by: [lang, lang]", "sources.web.partition_by: a column is named twice"),
        ("min_size: 3", "sources.web.min_size: min_size needs partition_by"),
        ("mix: {temperature: 2}", "sources.web.mix: mix needs partition_by"),
        ("partition_by: lang, min_size: 0", "sources.web.min_size: expected a whole number at least 1"),
        ("partition_by: lang, rest: o", "sources.web.rest: every value has an input of its own"),
        ("partition_by: lang, rest: a/b, min_size: 9", "sources.web.rest: give a name, not empty"),
        ("partition_by: lang, only: [de], min_size: 3", "sources.web.only: only= fixes the inputs"),
        ("partition_by: lang, only: [de], input: en", "sources.web.input: only has no 'en'"),
        ("partition_by: lang, input: de, mix: {temperature: 1}", "sources.web.mix: input reads one part"),
        ("partition_by: lang, max_epochs: 2", "sources.web.max_epochs: the parts repeat by themselves"),
        ("partition_by: lang, mix: {weights: {de: 1}, temperature: 2}", "sources.web.mix: temperature derives"),
        ("partition_by: lang, mix: {weights: {de: 0}}", "sources.web.mix.weights: all weights are 0"),
        ("unique_fraction: 0", "sources.web.unique_fraction: expected a share such as 25%"),
        ("unique_fraction: 1.5", "sources.web.unique_fraction: expected a share such as 25%"),
        ("unique_fraction: true", "sources.web.unique_fraction: expected a share such as 25%"),
        ("unique_fraction: 0.1%", "unique_fraction of 'web' is 0.001, which is less than one of its 100"),
    ],
)  # fmt: skip
def test_errors_with_their_lines(web: str, message: str, folder: Path) -> None:
    with pytest.raises(ps.ConfigError, match="mixture.yaml, line") as raised:
        load(folder, web)
    assert message in str(raised.value)
    assert any(message in str(problem) for problem in lint(folder / "mixture.yaml"))


@pytest.mark.parametrize(
    ("web", "message"),
    [
        ("partition_by: lang, min_size: 30", "source 'web': partition_by('lang', min_size=30)"),
        ("partition_by: lang, input: dee", "no row has the values of 'dee'; did you mean 'de'"),
        ("partition_by: lang, min_size: 30, rest: o, input: de", "there is no input 'de'"),
        ("partition_by: lang, only: [xx]", "no row has the values of 'xx'"),
        ("partition_by: lang, mix: {weights: {de: 1}}", "source 'web': mix.weights must name"),
        ("partition_by: lang, mix: {max_epochs: {xx: 1}}", "source 'web': mix.max_epochs names ['xx']"),
        ("partition_by: text, min_size: 2, rest: o", ""),
    ],
)  # fmt: skip
def test_errors_of_the_data(web: str, message: str, folder: Path) -> None:
    """Lint reads no rows, so it cannot know them."""
    if not message:
        assert "web/o" in load(folder, web).plan.sources
        return
    with pytest.raises(ps.ConfigError) as raised:
        load(folder, web)
    assert message in str(raised.value)
    assert not [p for p in lint(folder / "mixture.yaml") if p.severity == "error"]


def test_a_nested_mixture_takes_no_partition(folder: Path) -> None:
    (folder / "mixture.yaml").write_text(
        "sources: {a: {mixture: {sources: {b: {path: web}}}, partition_by: lang, unique_fraction: 0.5}}"
    )
    with pytest.raises(ps.ConfigError) as raised:
        ps.load(folder / "mixture.yaml")
    for key in ("partition_by", "unique_fraction"):
        assert f"sources.a.{key}: {key} applies to sources of files" in str(raised.value)


def test_passes_of_a_partitioned_source_or_a_nested_mixture_are_counted(folder: Path) -> None:
    (folder / "inner.yaml").write_text("sources: {x: {path: book.jsonl}}")
    path = folder / "mixture.yaml"
    path.write_text(
        "sources:\n  web: {path: web, partition_by: lang, epochs: 2}\n"
        "  in: {mixture: inner.yaml, epochs: 1}\n  book: {path: book.jsonl, epochs: 1}\n"
    )
    assert not [problem for problem in lint(path) if problem.severity == "error"]
    ds = ps.load(path)
    counts = ds.plan.counts(400)
    assert sum(n for name, n in counts.items() if name.startswith("web/")) == 200
    assert counts["in/x"] == counts["book"] == 100
