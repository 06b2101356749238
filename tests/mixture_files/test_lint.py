"""Files that load but probably mean something else, and files with very many sources."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock as ps
from penstock.mixture_files import lint
from penstock.mixture_files.readers import ReaderRegistry
from relative_time import clocked


def found(path: Path, most_epochs: float = 4.0) -> list[tuple[int, str, str, str]]:
    return [(each.line, each.severity, each.key, each.message) for each in lint(path, most_epochs)]


def test_zero_weight(write: Any) -> None:
    path = write("sources:\n  a: {path: code, weight: 1}\n  b:\n    path: text\n    weight: 0\n")
    assert found(path) == [
        (5, "warning", "sources.b.weight", "the weight is 0: the source is never read")
    ]


def test_weights_that_nearly_sum_to_one(write: Any) -> None:
    (only,) = found(
        write("sources:\n  a: {path: code, weight: 0.5}\n  b: {path: text, weight: 0.48}\n")
    )
    assert only[:3] == (1, "warning", "sources")
    assert only[3].startswith("the weights sum to 0.98, not 1;")
    assert (
        found(write("sources: {a: {path: code, weight: 0.7}, b: {path: text, weight: 0.3}}")) == []
    )
    assert found(write("sources: {a: {path: code, weight: 7}, b: {path: text, weight: 3}}")) == []


def test_read_too_often(write: Any) -> None:
    text = "sources:\n  a: {path: code, weight: 1}\n  b: {path: text, weight: 1}\nhorizon: {steps: 100}\nbatch: {size: 4, ranks: 2}"
    ((line, severity, key, said),) = found(write(text))
    assert (line, severity, key) == (2, "warning", "sources.a")
    assert said.startswith("the source is read about 6.7 times over the run (60 rows)")
    assert found(write(text), most_epochs=7) == []
    capped = text.replace("a: {path: code,", "a: {path: code, max_epochs: 2,")
    ((line, severity, _, said),) = found(write(capped))
    assert (line, severity) == (2, "note") and "used up after 2" in said
    assert (
        found(write(text.replace("weight: 1}\nh", "weight: 3}\nh"))) == []
    )  # a quarter of 800 over 60 rows


def test_lines_count_once_they_are_indexed(write: Any) -> None:
    import penstock as ps

    path = write("sources:\n  b: {path: text, weight: 1}\nhorizon: {samples: 400}")
    assert found(path) == []
    ps.load(path)
    assert found(path)[0][3].startswith(
        "the source is read about 10.0 times over the run (40 rows)"
    )


def test_slices_and_schedules_count(write: Any) -> None:
    path = write(
        "block_size: 1\nsources:\n  a: {path: code, slice: [0, 10]}\n  b: {path: code/../text}\n"
        "schedule:\n  interpolation: linear\n  points:\n    0: {a: 1, b: 0}\n    100: {a: 0, b: 1}\nhorizon: {samples: 200}"
    )
    assert found(path)[0][3].startswith("the source is read about 5.0 times over the run (10 rows)")


def test_shares_of_nested_mixtures_multiply(write: Any) -> None:
    text = "sources:\n  n:\n    weight: 1\n    mixture: {sources: {a: {path: code, weight: 1}}}\n  b: {path: text, weight: 3}\n"
    ((line, _, key, said),) = found(write(text + "horizon: {samples: 2400}"))
    assert (line, key) == (4, "sources.n.mixture.sources.a") and said.startswith(
        "the source is read about 10.0 times"
    )


def test_steps_of_one_source_need_their_rows(write: Any) -> None:
    text = "one_source_per: global_step\nsources: {a: {path: code}, b: {path: text}}\n"
    ((line, severity, key, said),) = found(write(text + "batch: {size: 4}\nhorizon: {steps: 9}"))
    assert (line, severity, key) == (1, "warning", "one_source_per") and "global_batch_size" in said
    for batch in ("global_batch_size: 8", "batch: {size: 4, ranks: 2}"):
        assert found(write(f"{text}{batch}\nhorizon: {{steps: 9}}")) == []


def test_never_reached(write: Any) -> None:
    path = write(
        "horizon: {samples: 100}\nsources:\n  a: {path: code}\n  b: {path: text, start: 500}"
    )
    assert found(path) == [
        (4, "warning", "sources.b.start", "the source starts at 500, after the horizon")
    ]
    path = write(
        "sources:\n  a: {path: code}\n  b: {path: text}\nschedule: {points: {0: {a: 1, b: 0}}}"
    )
    assert [each[:3] for each in found(path)] == [(3, "warning", "sources.b")]
    path = write(
        "horizon: {samples: 100}\nsources:\n  a: {path: code, weight: 1000}\n  b: {path: code/0.parquet, weight: 1}"
    )
    assert any("less than one sample" in each[3] for each in found(path))


def test_epochs_asked_for(write: Any) -> None:
    path = write("sources:\n  a: {path: code, epochs: 9}\n  b: {path: text, epochs: 1}")
    assert found(path) == [
        (2, "warning", "sources.a.epochs", "the source is read 9 times over the run")
    ]


def test_a_run_in_tokens_is_not_guessed(write: Any) -> None:
    path = write(
        "sources: {a: {path: code}}\nhorizon: {tokens: 1e9}\npack: {length: 9}\n"
        "tokenize: {tokenizer: org/name}"
    )
    assert [each[:3] for each in found(path)] == [(2, "note", "horizon")]


def test_amounts_of_tokens_against_the_horizon(write: Any) -> None:
    text = "unit: tokens\nhorizon: {tokens: 1000}\nsources:\n  a: {path: code, tokens: 600}\n  b: {path: text, tokens: 600}\ntokenize: {tokenizer: org/name}\n"
    ((line, severity, key, said),) = found(write(text))
    assert (line, severity, key) == (2, "warning", "horizon") and "sum to 1,200 tokens" in said
    assert (
        found(write(text.replace("b: {path: text, tokens: 600}", "b: {path: text, tokens: 400}")))
        == []
    )
    more = text.replace("tokens: 600}\n  b", "tokens: 1200}\n  b").replace(
        "text, tokens: 600", "text, weight: 1"
    )
    assert [each[:3] for each in found(write(more))] == [(2, "error", "horizon")]


def test_nothing_is_read_but_lists_and_footers(write: Any, data: Path) -> None:
    """Rows that are damaged are not looked at, and nothing is written beside the data."""
    (data / "text/0.jsonl").write_text("{not json")
    table = data / "code/0.parquet"
    bytes_ = bytearray(table.read_bytes())
    bytes_[8:200] = bytes(192)
    table.write_bytes(bytes_)
    path = write(
        "sources: {a: {path: code, where: {lang: py}}, b: {path: text}}\nhorizon: {samples: 10}"
    )
    before = sorted(data.rglob("*"))
    assert found(path) == []
    assert sorted(data.rglob("*")) == before


def test_one_file_in_two_sources(write: Any) -> None:
    path = write("sources:\n  a: {path: code}\n  b: {path: code/1.parquet}")
    ((line, severity, key, said),) = found(path)
    assert (line, severity, key) == (3, "warning", "sources.b.path")
    assert said.endswith("1.parquet, as sources.a does")


def test_files_and_columns_that_are_not_there(write: Any, data: Path) -> None:
    path = write(
        "sources:\n  a: {path: nowhere/*.parquet}\n  b:\n    path: code\n    columns: [txt]\n    where: {lnag: py}\n"
        "  c: {path: [code/0.parquet, text/0.jsonl]}\n  d: {path: text}\ntokenize: {tokenizer: gone.json}"
    )
    problems = found(path)
    assert [each[:3] for each in problems if each[1] == "error"] == [
        (2, "error", "sources.a.path"),
        (5, "error", "sources.b.columns"),
        (6, "error", "sources.b.where"),
        (7, "error", "sources.c.path"),
        (9, "error", "tokenize.tokenizer"),
    ]
    assert "did you mean 'text'" in problems[1][3]
    (data / "code/0.parquet").write_bytes(b"PAR1 cut")
    assert any("cannot be read" in each[3] for each in found(path))


def test_what_lines_do_not_have(write: Any, data: Path) -> None:
    (data / "text/0.jsonl").write_text('{"text": "a", "lang": "en"}\n')
    problems = found(
        write(
            "sources:\n  a:\n    path: text\n    lengths: tokens\n    where: {lnag: en, lang: en}"
        )
    )
    assert [each[:3] for each in problems] == [
        (4, "error", "sources.a.lengths"),
        (5, "warning", "sources.a.where"),
    ]
    assert problems[1][3] == "the first row has no 'lnag'; did you mean 'lang'?; it has text, lang"
    (data / "text/0.jsonl").write_text("[1\n")
    assert found(write("sources: {a: {path: text, where: {lnag: en}}}")) == []


def test_ends_of_packed_documents_that_no_tokenizer_knows(write: Any, data: Path) -> None:
    text = "sources: {a: {path: text}}\npack: {length: 8, bos: 1, eos: %s}\n"
    said = {key: said for _, _, key, said in found(write(text % "true"))}
    assert [*said] == ["pack", "pack.eos"] and "exactly one tokenizer" in said["pack.eos"]
    models = pytest.importorskip("tokenizers.models")
    pytest.importorskip("tokenizers").Tokenizer(
        models.WordLevel({"</s>": 0}, unk_token="</s>")
    ).save(f"{data}/t.json")
    text += "tokenize: {tokenizer: t.json}"
    assert "does not name its eos token" in found(write(text % "true"))[0][3]
    assert "has no token '<end>'" in found(write(text % "<end>"))[0][3]
    assert (
        found(write(text % "</s>"))
        == found(write(text.replace("t.json", "some/model") % "true"))
        == []
    )


def test_five_hundred_sources_and_five_mistakes(tmp_path: Path) -> None:
    """A typo, a duplicate, a zero weight, a missing folder and an over-repeated source, all named in one go."""
    lines = ["horizon: {samples: 1_000_000}", "sources:"]
    at: dict[str, int] = {}
    for i in range(500):
        folder = tmp_path / f"s{i:03d}"
        folder.mkdir()
        rows = 10 if i == 400 else 5_000
        pq.write_table(pa.table({"n": pa.array(range(rows), pa.int32())}), folder / "data.parquet")
        lines.append(f"  s{i:03d}:")
        at[f"s{i:03d}"] = len(lines)
        lines.append(f"    path: {'missing' if i == 300 else f's{i:03d}'}")
        lines.append(f"    {'wieght' if i == 100 else 'weight'}: {0 if i == 200 else 1}")
    lines += ["  s007:", "    path: s007", "    weight: 1"]
    path = tmp_path / "mixture.yaml"
    path.write_text("\n".join(lines) + "\n")

    problems = list[Any]()
    took = clocked(lambda _: problems.extend(lint(path)))

    assert [(each.line, each.severity, each.key) for each in problems] == [
        (at["s100"] + 2, "error", "sources.s100.wieght"),
        (at["s200"] + 2, "warning", "sources.s200.weight"),
        (at["s300"] + 1, "error", "sources.s300.path"),
        (at["s400"], "warning", "sources.s400"),
        (len(lines) - 2, "error", "sources.s007"),
    ]
    assert {each.file for each in problems} == {str(path)}
    said = [each.message for each in problems]
    assert said[0] == "unknown key 'wieght'; did you mean 'weight'?"
    assert "there is no folder" in said[2] or "is missing" in said[2]
    assert said[3].startswith("the source is read about 200.")
    assert said[4] == f"'s007' appears twice, first on line {at['s007']}"
    assert took < 8_000, f"{took:.0f} ms for 500 sources"


def test_a_shuffle_that_reads_a_row_group_a_sample(
    write: Any, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for part in range(2):
        rows = {
            "text": [f"{part} {i} " + "x" * 200 for i in range(1_000)],
            "more": ["y" * 900] * 1_000,
        }
        pq.write_table(
            pa.table(rows), data / f"wide-{part}.parquet", row_group_size=500, use_dictionary=False
        )
    path = write('sources: {a: {path: "wide-*.parquet"}}\nhorizon: {samples: 10}')
    assert found(path) == [], "it stays in memory"
    monkeypatch.setattr(sys.modules["penstock.mixture_files.lint"], "DECODED_MEMORY_LIMIT", 100_000)
    ((line, severity, key, said),) = found(path)
    assert (line, severity, key) == (1, "warning", "sources.a.path")
    assert re.search(
        r"about 5\d\d KiB a sample, a row group for 1\.\d+ KiB: shuffle: {rows: 500, window: 8}",
        said,
    )
    for mended in ("shuffle: {rows: 500, window: 8}", "shuffle: none", "shuffle: {buckets: 64}"):
        assert (
            found(
                write(
                    f'sources: {{a: {{path: "wide-*.parquet", {mended}}}}}\nhorizon: {{samples: 10}}'
                )
            )
            == []
        )
    ((_, _, _, said),) = found(
        write('sources: {a: {path: "wide-*.parquet", columns: [text]}}\nhorizon: {samples: 10}')
    )
    assert re.search(r"about 1\d\d KiB a sample", said)


def test_a_source_that_is_nearly_empty(write: Any, data: Path) -> None:
    pq.write_table(pa.table({"n": [1, 2, 3]}), data / "few.parquet")
    (problem,) = found(write("sources: {a: {path: few.parquet}}\nhorizon: {samples: 3}"))
    assert problem[1:3] == ("warning", "sources.a") and "the source has only 3 rows" in problem[3]


READ = "it reads {}, as sources.a does"
TRAIN = "{path: code, split: {held_out: 20%, part: train}}"
HELD = TRAIN.replace("train", "held_out")
BOTH = {
    "two halves of one split": (TRAIN, HELD, None),
    "the same half twice": (TRAIN, TRAIN, READ),
    "other halves of another split": (
        TRAIN,
        "{path: code, split: {held_out: 20%, seed: 1, part: held_out}}",
        "rows of {} are held out here and trained on by sources.a: their splits differ",
    ),
    "of other rows": (
        HELD,
        "{path: code/0.parquet, split: {held_out: 20%}}",
        "rows of {} are trained on here and held out by sources.a: their splits differ",
    ),
    "all of it and a half": (
        "{path: code}",
        HELD,
        "rows of {} are held out here and trained on by sources.a: one of them has no split",
    ),
    "by what a column holds, of other rows": (
        "{path: code, split: {held_out: 0.3, column: lang}}",
        "{path: code/0.parquet, split: {held_out: 0.3, column: lang, part: held_out}}",
        None,
    ),
    "other shares to train on": (
        TRAIN,
        "{path: code, split: {held_out: 10%}}",
        f"{READ}, and what is held out of one is trained on in the other",
    ),
    "slices that do not touch": (
        "{path: code, slice: [0, 50%]}",
        "{path: code, slice: [50%, 100%]}",
        None,
    ),
    "slices that touch": (
        "{path: code, slice: [0, 60%]}",
        "{path: code, slice: [50%, 100%]}",
        READ,
    ),
    "slices from the end": ("{path: code, slice: [0, 10]}", "{path: code, slice: [-5]}", READ),
    "rows and percent": ("{path: code, slice: [0, 10]}", "{path: code, slice: [50%, 100%]}", READ),
}


# Where it is told of rows that may be in both, and here are not: only reading tells.
CAREFUL = ("of other rows", "slices from the end", "rows and percent")


@pytest.mark.parametrize("kind", BOTH)
def test_leaks_between_sources_of_one_file(kind: str, write: Any) -> None:
    a, b, told = BOTH[kind]
    path = write(f"seed: 1\nsources:\n  a: {a}\n  b: {b}\n")
    said = [
        problem.message
        for problem in lint(path)
        if "reads" in problem.message or "held out" in problem.message
    ]
    assert said == ([] if told is None else [told.format(path.parent / "code/0.parquet")])
    path.write_text(f"seed: 1\nstop: all_exhausted\nsources:\n  a: {a}\n  b: {b}\n")
    plan = ps.load(path).plan
    rows: dict[str, set[tuple[str, int]]] = {"a": set(), "b": set()}
    for line in plan.audit(range(plan.size or 0)).table().to_pylist():
        rows[line["source"]].add((line["file"], line["row_in_file"]))
    if kind not in CAREFUL:
        assert bool(rows["a"] & rows["b"]) == (told is not None)


def test_leaks_between_files(write: Any) -> None:
    train = write("split: {held_out: 20%}\nsources: {a: {path: code}, b: {path: text}}")
    held = Path(train).with_name("held.yaml")
    held.write_text(
        "split: {held_out: 20%, part: held_out}\nsources: {a: {path: code}, b: {path: text}}"
    )
    readers = ReaderRegistry()
    assert [*lint(train, readers=readers), *lint(held, readers=readers)] == []
    held.write_text(
        "split: {held_out: 20%, part: held_out}\nsources: {a: {path: code/0.parquet}, b: {path: text}}"
    )
    readers = ReaderRegistry()
    assert lint(train, readers=readers) == []
    (problem,) = lint(held, readers=readers)
    assert (
        problem.key == "sources.a.path"
        and f"trained on by {train}, sources.a: their splits differ" in problem.message
    )
    assert lint(train, readers=ReaderRegistry()) == []


def test_what_is_refused_of_the_whole_is_found_where_files_are_indexed(
    write: Any, data: Path
) -> None:
    for text in (
        "sources: {few: {path: few.jsonl, max_epochs: 0.1}, code: {path: code.jsonl}}",
        "sources: {few: {path: few.jsonl, slice: [0, 10%]}, code: {path: code.jsonl}}",
        "sources: {few: {path: few.jsonl, max_epochs: 1}, code: {path: code.jsonl, start: 100}}",
    ):
        path = write(text)
        for name in ("few", "code"):
            (data / f"{name}.jsonl").write_text('{"text": "x"}\n' * 5)
            len(ps.read(data / f"{name}.jsonl"))
        with pytest.raises(ps.ConfigError) as refused:
            ps.load(path)
        errors = [problem.message for problem in lint(path) if problem.severity == "error"]
        assert len(errors) == 1 and errors[0] in str(refused.value)


WHOLE = {
    "a group without any weight": (
        "groups: {x: 2, y: 1}\nsources:\n  a: {path: data.parquet, group: x, weight: 0}\n"
        "  b: {path: data.parquet, group: y, weight: 1}",
        (1, "groups", "the group 'x' has a weight"),
    ),
    "a filter beside a split that is too large": (
        "sources:\n  a: {path: data.parquet, where: {n: {max: 40}}, weight: 1}\n"
        "  b: {path: data.parquet, split: {held_out: 99}, weight: 1}",
        (3, "sources.b", "split(99): the dataset has 50 samples"),
    ),
    "a filter beside weights of 0": (
        "sources:\n  a: {path: data.parquet, where: {n: {max: 40}}, weight: 0}\n"
        "  b: {path: data.parquet, weight: 0}",
        (1, "sources", "all weights are 0"),
    ),
    "lengths beside a cap below one sample": (
        "unit: tokens\npack: {length: 16}\nsources:\n"
        "  a: {path: data.parquet, lengths: tokens, max_epochs: 0.01}\n"
        "  b: {path: data.parquet, lengths: tokens}",
        (4, "sources.a", "max_epochs=0.01 of 'a' (50 samples) is less than one sample"),
    ),
    "lengths beside an empty slice of a nested mixture": (
        "pack: {length: 16}\nsources:\n  m:\n    mixture:\n      sources:\n"
        "        a: {path: data.parquet, lengths: tokens, slice: [5, 5]}\n"
        "  b: {path: data.parquet, lengths: tokens}",
        (6, "sources.m.mixture.sources.a", "the source 'a' is empty"),
    ),
    "texts where tokens are counted": (
        "unit: tokens\nsources:\n  a: {path: data.parquet, columns: [tokens]}\n  b: {path: texts.jsonl}",
        (1, "unit", "counts tokens, and the samples of 'b' hold none: add 'tokenize: {tokenizer:"),
    ),
    "columns without tokens where tokens are counted": (
        "seed: 1\nunit: tokens\nsources: {a: {path: data.parquet, columns: [n]}}",
        (2, "unit", "counts tokens, and the samples of 'a' hold none"),
    ),
    "texts of a nested mixture that counts tokens": (
        "unit: tokens\nsources:\n  m: {mixture: {sources: {a: {path: texts.jsonl}}}}",
        (1, "unit", "counts tokens, and the samples of 'm/a' hold none"),
    ),
    "texts of a nested mixture in one that counts tokens": (
        "unit: tokens\nsources:\n  m: {mixture: {unit: samples, sources: {a: {path: texts.jsonl}}}}",
        (1, "unit", "counts tokens, and the samples of 'm' hold none"),
    ),
    "texts of a mixture whose nested one alone counts tokens": (
        "sources:\n  m: {mixture: {unit: tokens, sources: {a: {path: texts.jsonl}}}}",
        (2, "sources.m.mixture.unit", "counts tokens, and the samples of 'm/a' hold none"),
    ),
    "texts and an amount of tokens": (
        "sources:\n  a: {path: texts.jsonl, tokens: 100}",
        (2, "sources.a.tokens", "counts tokens, and the samples of 'a' hold none"),
    ),
    "texts and a horizon of tokens": (
        "sources:\n  a: {path: texts.jsonl}\nhorizon: {tokens: 100}",
        (3, "horizon", "counts tokens, and the samples of 'the mixture' hold none"),
    ),
    "texts that are packed": (
        "sources:\n  a: {path: texts.jsonl}\npack: {length: 16}\nhorizon: {steps: 3}",
        (3, "pack", "the samples of 'the mixture' hold none: add 'tokeni"),
    ),
    "texts and a schedule of tokens": (
        "sources:\n  a: {path: texts.jsonl}\nschedule: {unit: tokens, points: {0: {a: 1}, 9: {a: 2}}}",
        (3, "schedule", "counts tokens, and the samples of 'a' hold none"),
    ),
    "a number where texts are": (
        "sources:\n  a:\n    path: data.parquet\n    where:\n      year: 2024",
        (
            5,
            "sources.a.where.year",
            "the column 'year' holds string and cannot be compared with [2024]",
        ),
    ),
    "a text where numbers are": (
        "sources:\n  a: {path: data.parquet, where: {n: {above: x}}}",
        (2, "sources.a.where.n", "the column 'n' holds int64 and cannot be compared with"),
    ),
    "a number where the texts of lines are": (
        "sources:\n  a: {path: texts.jsonl, where: {year: [2024, 2025]}}",
        (2, "sources.a.where.year", "the column 'year' holds string and cannot be compared with"),
    ),
    "a split by lists": (
        "sources:\n  a: {path: data.parquet, split: {held_out: 10%, column: tokens}}",
        (2, "sources.a.split", "the column 'tokens' holds list<element: int64>, and a split needs"),
    ),
    "a file of lines without any": (
        "sources:\n  a: {path: texts.jsonl}\n  b: {path: empty.jsonl}",
        (
            3,
            "sources.b",
            "the source 'b' is empty; leave it out of the mixture, or give it weight 0",
        ),
    ),
    "a file of blank lines beside a run in tokens": (
        "unit: tokens\nsources:\n  a: {path: data.parquet, lengths: tokens}\n  b: {path: blank.txt}",
        (
            4,
            "sources.b",
            "the source 'b' is empty; leave it out of the mixture, or give it weight 0",
        ),
    ),
    "a table without rows beside lines": (
        "sources:\n  a: {path: texts.jsonl}\n  b: {path: empty.parquet}",
        (
            3,
            "sources.b",
            "the source 'b' is empty; leave it out of the mixture, or give it weight 0",
        ),
    ),
    "lengths of numbers": (
        "pack: {length: 16}\nsources:\n  a: {path: data.parquet, lengths: n}",
        (3, "sources.a.lengths", "the column 'n' holds int64, not lists"),
    ),
}


@pytest.mark.parametrize("name", WHOLE)
def test_lint_refuses_what_load_or_plan_refuses(name: str, tmp_path: Path) -> None:
    content, (line, key, message) = WHOLE[name]
    pq.write_table(
        pa.table(
            {
                "n": range(50),
                "tokens": [[n] * 5 for n in range(50)],
                "year": [str(2000 + n) for n in range(50)],
            }
        ),
        tmp_path / "data.parquet",
    )
    pq.write_table(pa.table({"text": pa.array([], pa.string())}), tmp_path / "empty.parquet")
    (tmp_path / "texts.jsonl").write_text('{"text": "a", "year": "2024", "n": 1}\n' * 9)
    (tmp_path / "empty.jsonl").touch()
    (tmp_path / "blank.txt").write_text("\n \n")
    path = tmp_path / "mixture.yaml"
    path.write_text(content)
    errors = [problem for problem in lint(path) if problem.severity == "error"]  # without an index
    with pytest.raises(ps.ConfigError):
        ps.load(path).plan.counts(4)
    assert [(problem.line, problem.key) for problem in errors] == [(line, key)]
    assert message in errors[0].message
    assert [problem for problem in lint(path) if problem.severity == "error"] == errors


@pytest.mark.parametrize(
    ("source", "severity", "message"),
    [
        (
            "texts.jsonl",
            "error",
            "the field 'txt' holds no text; did you mean 'text'?; the first row",
        ),
        ("texts.parquet", "error", "there is no column 'txt'; did you mean 'text'?"),
    ],
)
def test_a_field_that_no_source_has(
    source: str, severity: str, message: str, tmp_path: Path
) -> None:
    pytest.importorskip("tokenizers")
    from tokenizers import Tokenizer, models

    cast(Any, Tokenizer)(models.WordLevel({"a": 0}, unk_token="a")).save(str(tmp_path / "t.json"))
    (tmp_path / "texts.jsonl").write_text('{"text": "a", "n": 1}\n' * 9)
    pq.write_table(pa.table({"text": ["a"] * 9, "n": [1] * 9}), tmp_path / "texts.parquet")
    path = tmp_path / "mixture.yaml"
    path.write_text(
        f"unit: tokens\ntokenize: {{tokenizer: t.json, field: txt}}\nsources: {{a: {{path: {source}}}}}"
    )
    ((_, found_severity, key, found_message),) = found(path)
    assert (found_severity, key) == (severity, "sources.a.tokenize") and message in found_message
    with pytest.raises(ps.DataError, match="the field 'txt' holds no text; the sample has text, n"):
        ps.load(path)
    path.write_text(path.read_text().replace("txt", "n"))
    ((_, found_severity, _, found_message),) = found(path)
    assert found_severity == "error" and "'n' holds" in found_message
    path.write_text(path.read_text().replace("field: n", "field: text"))
    assert [each for each in lint(path) if each.severity != "note"] == []
    assert ps.load(path).plan.counts(4) == {"a": 4}


def test_sources_that_load_without_rows(tmp_path: Path) -> None:
    """Sources that are never drawn, and lists of numbers in lines, are no errors."""
    (tmp_path / "empty.jsonl").touch()
    (tmp_path / "ids.jsonl").write_text('{"n": 1, "tokens": [1, 2]}\n' * 9)
    path = tmp_path / "mixture.yaml"
    for sources in (
        "{a: {path: empty.jsonl, weight: 0}, b: {path: ids.jsonl, weight: 1}}",
        "{a: {path: [empty.jsonl, ids.jsonl]}}",
        "{b: {path: ids.jsonl, where: {n: 1}}}\nunit: tokens",
    ):
        path.write_text(f"sources: {sources}")
        assert [problem for problem in lint(path) if problem.severity == "error"] == []
        ps.load(path).plan.counts(4)


def test_footers_of_a_store(tmp_path: Path) -> None:
    fsspec: Any = pytest.importorskip("fsspec")
    pq.write_table(pa.table({"year": ["2024"] * 9}), tmp_path / "a.parquet")
    data = (tmp_path / "a.parquet").read_bytes()
    fsspec.filesystem("memory").pipe_file("/lint-footers/a.parquet", data)
    path = tmp_path / "mixture.yaml"
    path.write_text("sources: {a: {path: 'memory://lint-footers/a.parquet'}}")
    assert lint(path) == []
    path.write_text(path.read_text().replace("parquet'", "parquet', where: {year: 2024}"))
    assert [problem.key for problem in lint(path)] == ["sources.a.where.year"]


@pytest.mark.parametrize(
    "content",
    [
        "sources:\n  a: {path: data.parquet, where: {n: {max: 40}}, max_epochs: 0.5}",
        "unit: tokens\nhorizon: {tokens: 90}\nsources:\n  a: {path: data.parquet, columns: [tokens], lengths: tokens}",
        "split: {held_out: '10%', column: n}\npack: {length: 16}\nsources:\n"
        "  a: {path: data.parquet, columns: [tokens], lengths: tokens}\n"
        "  m: {mixture: {sources: {a: {path: data.parquet, columns: [tokens], lengths: tokens}}}}",
        "pack: {length: 16}\nsources:\n  a: {path: data.parquet, columns: [tokens], lengths: tokens, weight: 1}\n"
        "  b: {path: data.parquet, columns: [tokens], lengths: tokens, slice: [5, 5], weight: 0}",
    ],
)
def test_lint_accepts_what_loads(content: str, tmp_path: Path) -> None:
    pq.write_table(
        pa.table({"n": range(50), "tokens": [[n] * 5 for n in range(50)]}),
        tmp_path / "data.parquet",
    )
    path = tmp_path / "mixture.yaml"
    path.write_text(content)
    assert not [problem for problem in lint(path) if problem.severity == "error"]
    assert next(iter(ps.load(path)))


@pytest.mark.parametrize(
    "share",
    [
        "unique_fraction: 0.01",
        "split: {held_out: 1%, part: held_out, seed: SEED}, unique_fraction: 0.9",
        "split: {held_out: 1%, part: held_out, by: position}",
        "split: {held_out: 50%, part: held_out}, unique_fraction: 0.02",
    ],
)
def test_a_small_share_is_empty_in_lint_where_it_is_empty_at_loading(
    share: str, write: Any
) -> None:
    outcomes = set[bool]()
    for seed in range(12):
        path = write(
            f"seed: {seed}\nhorizon: {{samples: 100}}\nsources:\n  a: {{path: text, weight: 1}}\n"
            f"  b: {{path: code, weight: 1, {share.replace('SEED', str(seed))}}}"
        )
        is_empty = any(severity == "error" for _, severity, _, _ in found(path))
        try:
            ps.load(path)[0]
        except ps.ConfigError as error:
            assert is_empty, error
        else:
            assert not is_empty
        outcomes.add(is_empty)
    assert "position" in share or outcomes == {True, False}


def test_a_held_out_part_without_rows_is_a_warning_as_loading_leaves_it_out(write: Any) -> None:
    path = write(
        "horizon: {samples: 100}\nsources:\n  a: {path: text, weight: 1}\n"
        "  b: {path: code, weight: 1, split: {held_out: 1%, part: held_out, seed: 1}}"
    )
    ((_, severity, key, said),) = found(path)
    assert (severity, key) == ("warning", "sources.b")
    assert said == "its held-out part has no rows, so the source is left out"
    assert ps.load(path).plan.counts(100) == {"a": 100}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("unit: loss_tokens\nhorizon: {steps: 10}", "the lengths of the samples of 'x' are not"),
        (
            "stop: all_exhausted\nhorizon: {loss_tokens: 40}\npack: {length: 8, method: first_fit}",
            "horizon: loss_tokens needs rows that the plan knows",
        ),
        (
            "max_epochs: 3\nsplit: {held_out: 30%, column: lang}\nhorizon: {steps: 3}\n"
            "global_batch_size: {points: {0: 4, 5: 8}}",
            "every source stops at its max_epochs",
        ),
        ("unit: tokens\nhorizon: {tokens: 9T}\npack: {length: 8, method: best_fit}", None),
    ],
)
def test_the_mixture_as_a_whole_is_checked_without_its_rows(
    tmp_path: Path, settings: str, message: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    rows = {"ids": [[1, 2, 3]] * 100, "lang": ["de", "en"] * 50}
    pq.write_table(pa.table(rows), tmp_path / "b.parquet")
    path = tmp_path / "m.yaml"
    path.write_text(f"{settings}\nsources: {{x: {{path: b.parquet}}}}\n")
    problems = [problem.message for problem in lint(path) if problem.severity == "error"]
    assert not caplog.records  # of a measured length
    if message is None:
        assert problems == []
        return
    assert len(problems) == 1 and message in problems[0]
    with pytest.raises(ps.ConfigError, match=re.escape(message)):
        ps.load(path)


def test_every_file_that_a_file_names(data: Path, write: Any) -> None:
    (data / "broken.json").write_text("{")
    (data / "empty").mkdir()
    (data / "lines.jsonl").write_text('{"text": "a"}\n' * 9)
    for setting, key, message in [
        ("tokenize: {tokenizer: broken.json}", "tokenize.tokenizer", "cannot be opened"),
        ("tokenize: {tokenizer: ./empty}", "tokenize.tokenizer", "/empty' is missing"),
        ("chat: {tokenizer: broken.json}", "chat.tokenizer", "cannot be opened"),
        ("cache: broken.json", "cache", "is a file: name a folder"),
        ("cache: broken.json/deeper", "cache", "is a file: name a folder"),
    ]:
        path = write(f"sources: {{a: {{path: lines.jsonl}}}}\n{setting}\n")
        (problem,) = lint(path)
        assert (problem.line, problem.key, problem.severity) == (2, key, "error")
        assert message in problem.message
        with pytest.raises(ps.ConfigError, match=f"mixture.yaml, line 2, {re.escape(key)}: "):
            ps.load(path)
    path = write("sources: {a: {path: lines.jsonl}}\ncache: /proc/nothing\n")
    with pytest.raises(ps.ConfigError, match=r"line 2, cache: .* cannot be written"):
        ps.load(path)
