"""`ps.load` returns the datasets of the equivalent calls in Python."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.engine.base.canonical_json import compute_fingerprint
from penstock.testing import assert_resumes


def same(ds: ps.Dataset, other: ps.Dataset, n: int = 200) -> None:
    assert compute_fingerprint(ds.tree.description()) == compute_fingerprint(
        other.tree.description()
    )
    for got, want in zip(islice(ds, n), islice(other, n), strict=True):
        np.testing.assert_equal(got, want)


def of(data: Path, **more: Any) -> dict[str, ps.Dataset]:
    return {
        "code": ps.read(data / "code", name="code", **more).shuffle(),
        "text": ps.read(data / "text/*.jsonl", name="text").shuffle(),
    }


def test_plain_mixture(data: Path, write: Any) -> None:
    path = write(
        """
        seed: 7
        block_size: 10
        stop: all_exhausted
        sources:
          code: {path: code, weight: 3}
          text: {path: "text/*.jsonl", weight: 1}
        """
    )
    same(
        ps.load(path),
        ps.mix(of(data), {"code": 3, "text": 1}, seed=7, block_size=10, stop="all_exhausted"),
    )


def test_relative_paths_are_relative_to_the_file(
    data: Path, write: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(
        "sources: {text: {path: [../text/0.jsonl, ../text/1.jsonl]}}\nstop: all_exhausted\n",
        "sub/m.yaml",
    )
    monkeypatch.chdir("/")
    assert len(ps.load(path)) == 40


def test_a_loaded_pipeline_resumes(write: Any) -> None:
    path = write(
        """
        seed: 1
        block_size: 8
        stop: first_exhausted
        sources:
          code: {path: code, weight: 2, where: {lang: py}}
          text: {path: text, weight: 1}
        batch: {size: 4, collate: list}
        """
    )
    assert_resumes(lambda: ps.load(path), at_most=12)


def test_schedule_in_steps(data: Path, write: Any) -> None:
    path = write(
        """
        sources: {code: {path: code, stop: 30}, text: {path: text, start: 5}}
        schedule:
          unit: steps
          interpolation: linear
          points:
            0: {code: 1, text: 1}
            1_0: {code: 1, text: 3}
        batch: {size: 4, ranks: 2, collate: list}
        """
    )
    points = [(0, {"code": 1, "text": 1}), (80, {"code": 1, "text": 3})]
    schedule = ps.Schedule(points, "linear", start={"text": 40}, stop={"code": 240})
    same(ps.load(path), ps.mix(of(data), schedule).batch(4, collate=list))


def test_presence_without_a_schedule(data: Path, write: Any) -> None:
    path = write("sources: {code: {path: code}, text: {path: text, start: 20}}\nblock_size: 1")
    schedule = ps.Schedule([(0, {"code": 1.0, "text": 1.0})], start={"text": 20})
    ds = ps.load(path)
    same(ds, ps.mix(of(data), schedule, block_size=1))
    assert not any(row["text"].startswith("text") for row in ds[:20])
    assert sum(row["text"].startswith("text") for row in ds[20:40]) == 10


def test_order_and_shape_of_a_source(data: Path, write: Any) -> None:
    path = write(
        """
        shuffle: none
        max_epochs: 2
        sources:
          a: {path: code, columns: [stars], slice: [1, 50, 3], label: other}
          b: {path: "text/{0..1}.jsonl", shuffle: {rows: 5, window: 2, seed: 9}, max_epochs: 1.5}
        """
    )
    inputs = {
        "a": ps.read(data / "code", columns=["stars"], name="other")[1:50:3],
        "b": ps.read(str(data / "text/*.jsonl"), name="b").shuffle(9, (5, 2)),
    }
    same(ps.load(path), ps.mix(inputs, max_epochs={"a": 2, "b": 1.5}))


def test_rows_by_column(data: Path, write: Any) -> None:
    def rows(where: str) -> list[int]:
        path = write(
            f"sources: {{code: {{path: code/0.parquet, where: {where}, shuffle: none}}}}\nstop: all_exhausted"
        )
        return [row["stars"] for row in ps.load(path)[:]]

    whole = range(30)
    assert rows("{lang: py}") == [i for i in whole if i % 3 == 0]
    assert rows("{lang: [py, c]}") == [i for i in whole if i % 3 < 2]
    assert rows("{lang: null}") == [i for i in whole if i % 3 == 2]
    assert rows("{lang: {not: py}}") == [i for i in whole if i % 3]
    assert rows("{stars: {min: 5, max: 7}}") == [5, 6, 7]
    assert rows("{stars: {above: 5, below: 7}, lang: py}") == [6]
    assert rows("{day: {min: 2024-01-29}}") == [28, 29]
    with pytest.raises(ps.ConfigError, match="'stars' holds int64 and cannot be compared with"):
        rows("{stars: {min: many}}")
    with pytest.raises(ps.ConfigError, match="no column 'satrs'; did you mean 'stars'"):
        rows("{satrs: 1}")


def test_rows_are_found_once_and_again_when_the_file_is_another(data: Path) -> None:
    lines, cache = data / "text/0.jsonl", data / "cache"
    assert len(ps.read(lines, columns=["text"], where={"lang": "de"}, cache=cache)) == 10
    kept = list(cache.rglob("*.penstock-rows"))
    assert len(kept) == 1
    kept[0].write_bytes(b"damaged")
    assert len(ps.read(lines, where={"lang": "de"}, cache=cache)) == 10
    table = data / "code/0.parquet"
    assert len(ps.read(table, where={"lang": "py"}, cache=cache)) == 10
    table.write_bytes((data / "code/1.parquet").read_bytes())
    other = ps.read(table, where={"lang": "py"}, cache=cache)
    assert other[0]["text"].startswith("code 1")


def test_nested_mixtures_take_what_they_do_not_say_from_outside(data: Path, write: Any) -> None:
    write(
        "sources: {one: {path: ../text/0.jsonl}, two: {path: ../text/1.jsonl}}\nseed: 5",
        "more/inner.yaml",
    )
    path = write(
        """
        seed: 3
        block_size: 4
        sources:
          code: {path: code, weight: 1}
          file: {mixture: more/inner.yaml, weight: 2}
          here: {mixture: {sources: {x: {path: code/0.parquet}}, stop: first_exhausted}, weight: 1}
        """
    )
    inner = {
        name: ps.read(data / f"text/{i}.jsonl", name=name).shuffle()
        for i, name in enumerate(("one", "two"))
    }
    inputs = {
        "code": ps.read(data / "code", name="code").shuffle(),
        "file": ps.mix(inner, seed=5, block_size=4),
        "here": ps.mix(
            {"x": ps.read(data / "code/0.parquet", name="x").shuffle()},
            seed=3,
            block_size=4,
            stop="first_exhausted",
        ),
    }
    same(ps.load(path), ps.mix(inputs, {"code": 1, "file": 2, "here": 1}, seed=3, block_size=4))


def test_include(data: Path, write: Any) -> None:
    write(
        "sources: {text: {path: ../text, weight: 1}}\nseed: 1\nblock_size: 7\n", "parts/text.yaml"
    )
    write("seed: 2\nstop: all_exhausted\n", "settings.yaml")
    path = write(
        "include: [parts/text.yaml, settings.yaml]\nblock_size: 9\nsources: {code: {path: code, weight: 3}}"
    )
    inputs = {name: of(data)[name] for name in ("text", "code")}
    wanted = ps.mix(
        {"text": ps.read(data / "text", name="text").shuffle(), "code": inputs["code"]},
        {"text": 1, "code": 3},
        seed=2,
        block_size=9,
        stop="all_exhausted",
    )
    same(ps.load(path), wanted)


def test_variables(data: Path, write: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PART", "code")
    monkeypatch.setenv("WEIGHT", "3")
    path = write(
        """
        seed: ${SEED:-7}
        sources:
          code: {path: "${PART}", weight: "${WEIGHT}"}
          text: {path: "text/${NUMBER:-*}.jsonl", weight: 1}
        """
    )
    same(ps.load(path), ps.mix(of(data), {"code": 3, "text": 1}, seed=7))


def test_anchors_and_merges(data: Path, write: Any) -> None:
    path = write(
        """
        sources:
          code: &files {path: code, shuffle: none, weight: 3}
          text: {<<: *files, path: text/0.jsonl}
        """
    )
    inputs = {
        "code": ps.read(data / "code", name="code"),
        "text": ps.read(data / "text/0.jsonl", name="text"),
    }
    same(ps.load(path), ps.mix(inputs, {"code": 3, "text": 3}))


def test_epochs_and_tokens_are_amounts(data: Path, write: Any) -> None:
    # 60 rows twice and 40 rows half: 120 to 20.
    path = write(
        "sources: {code: {path: code, epochs: 2}, text: {path: text/*.jsonl, epochs: 0.5}}"
    )
    same(ps.load(path), ps.mix(of(data), {"code": 120.0, "text": 20.0}))
    # Beside weights: what the horizon leaves is shared by weight.
    path = write(
        """
        horizon: {samples: 1000}
        sources:
          code: {path: code, epochs: 2}
          text: {path: text/*.jsonl, weight: 3}
          more: {path: code/0.parquet, weight: 1}
        """
    )
    inputs = {**of(data), "more": ps.read(data / "code/0.parquet", name="more").shuffle()}
    same(ps.load(path), ps.mix(inputs, {"code": 120.0, "text": 660.0, "more": 220.0}).limit(1000))


def test_energon_epochised_blend_is_epochs_with_caps(write: Any) -> None:
    path = write(
        """
        block_size: 1
        sources:
          code: {path: code, epochs: 2, max_epochs: 2}
          text: {path: text, epochs: 0.5, max_epochs: 0.5}
        """
    )
    rows = [row["text"] for row in ps.load(path)]
    assert len(rows) == 140
    assert sum(row.startswith("text") for row in rows) == 20


@pytest.fixture
def tokenizer(data: Path) -> Path:
    tokenizers = pytest.importorskip("tokenizers")
    words = [word for row in ps.read(data / "code") for word in row["text"].split()]
    words += [word for row in ps.read(data / "text") for word in row["text"].split()]
    vocabulary = {"<pad>": 0, "<end>": 1} | {
        word: i + 2 for i, word in enumerate(sorted(set(words)))
    }
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="<pad>"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    path = data / "tokenizer.json"
    made.save(str(path))
    return path


def test_tokenize_pack_batch(data: Path, write: Any, tokenizer: Path) -> None:
    from penstock.text import Tokenize

    path = write(
        """
        seed: 4
        tokenize: {tokenizer: tokenizer.json}
        sources: {code: {path: code, weight: 1}, text: {path: "text/*.jsonl", weight: 1}}
        pack: {length: 32, eos: <end>, dtype: int32, method: first_fit, long: truncate}
        batch: {size: 2, drop_remainder: true}
        """
    )
    tokenize = Tokenize(str(tokenizer))
    inputs = {name: ds.map(tokenize) for name, ds in of(data).items()}
    wanted = ps.mix(inputs, {"code": 1, "text": 1}, seed=4)
    wanted = wanted.pack(32, "first_fit", eos=1, dtype="int32", long="truncate").batch(
        2, drop_remainder=True
    )
    same(ps.load(path), wanted, 20)
    assert next(iter(ps.load(path)))["tokens"].shape == (2, 32)
    assert_resumes(lambda: ps.load(path), steps=6, at_most=3)


def test_weights_in_tokens(write: Any, tokenizer: Path) -> None:
    path = write(
        """
        unit: tokens
        block_size: 1
        tokenize: {tokenizer: tokenizer.json}
        sources: {code: {path: code, tokens: 3e3}, text: {path: text, tokens: 1_000}}
        """
    )
    drawn = {"code": 0, "text": 0}
    for row, key in _with_keys(ps.load(path), 2_000):
        drawn[key] += len(row)
    assert abs(drawn["code"] / sum(drawn.values()) - 0.75) < 0.01


def test_tokens_that_are_counted_make_a_packed_run_indexed(
    data: Path, write: Any, tokenizer: Path
) -> None:
    path = write(
        """
        unit: tokens
        tokenize: {tokenizer: tokenizer.json, counted: true}
        sources: {code: {path: code, weight: 3}, text: {path: text, weight: 1}}
        pack: {length: 16, eos: <end>}
        batch: {size: 2}
        """
    )
    ds = ps.load(path)
    run = list(islice(iter(ds), 30))
    assert all(np.array_equal(ds[i]["tokens"], batch["tokens"]) for i, batch in enumerate(run))
    assert len(ds.plan.at(10**9)) >= 2
    with pytest.raises(ps.ConfigError, match="lengths names a column, and tokenize counts tokens"):
        ps.load(write(path.read_text().replace("path: code,", "path: code, lengths: text,")))


def test_steps_of_packed_batches_count_tokens(data: Path, write: Any, tokenizer: Path) -> None:
    from penstock.text import Tokenize

    path = write(
        """
        tokenize: {tokenizer: tokenizer.json}
        sources: {code: {path: code}, text: {path: "text/*.jsonl", start: 10}}
        schedule: {unit: steps}
        pack: {length: 16}
        batch: {size: 2, ranks: 3}
        """
    )
    inputs = {name: ds.map(Tokenize(str(tokenizer))) for name, ds in of(data).items()}
    schedule = ps.Schedule(
        [(0, {"code": 1.0, "text": 1.0})], unit="tokens", start={"text": 10 * 16 * 2 * 3}
    )
    same(ps.load(path), ps.mix(inputs, schedule).pack(16).batch(2), 10)


def test_amounts_beyond_the_horizon_are_refused(write: Any) -> None:
    path = write(
        "horizon: {samples: 50}\nsources: {a: {path: code, epochs: 2}, b: {path: text, weight: 1}}"
    )
    with pytest.raises(
        ps.ConfigError, match="the amounts sum to 120 samples, more than the horizon of 50"
    ):
        ps.load(path)
    path = write(
        "horizon: {tokens: 50}\nsources: {a: {path: code, epochs: 2}, b: {path: text, weight: 1}}"
    )
    with pytest.raises(
        ps.ConfigError, match="the horizon counts tokens, the weights of the mixture samples"
    ):
        ps.load(path)


def test_texts_of_tokens_need_a_tokenizer(write: Any) -> None:
    path = write("sources: {a: {path: code}}\npack: {length: 8, eos: <end>}")
    with pytest.raises(
        ps.ConfigError,
        match="eos is '<end>'; a text needs exactly one tokenizer in the mixture",
    ):
        ps.load(path)


def test_slices_in_percent(data: Path, write: Any) -> None:
    sizes = [
        len(ps.load(write(f"stop: all_exhausted\nsources: {{a: {{path: code, slice: {bounds}}}}}")))
        for bounds in ("[0%, 30%]", "[30%, 100%]", "[50%]", "[12.5%, 59]", "[0%, 100%, 7]")
    ]
    assert sizes == [18, 42, 30, 52, 9]


def test_the_tokenizers_own_end(data: Path, write: Any, tokenizer: Path) -> None:
    text = "sources: {a: {path: code, tokenize: {tokenizer: %s}}}\npack: {length: 8, eos: true, dtype: int32}"
    with pytest.raises(ps.ConfigError, match="does not name its eos token"):
        ps.load(write(text % "tokenizer.json"))
    (data / "folder").mkdir()
    (data / "folder" / "tokenizer.json").write_text(tokenizer.read_text())
    own = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<end>"}
    (data / "folder" / "tokenizer_config.json").write_text(json.dumps(own))
    own_end, named = (
        ps.load(write(text % "folder")).head(20),
        ps.load(write((text % "tokenizer.json").replace("true", "<end>"))).head(20),
    )
    for row, other in zip(own_end, named, strict=True):
        assert row["tokens"].tolist() == other["tokens"].tolist()
    both = (text % "folder").replace(
        "eos: true", "eos: true, bos: true"
    )  # it has no token for a beginning
    same(ps.load(write(text % "folder")), ps.load(write(both)), 20)


def _with_keys(ds: ps.Dataset, n: int) -> list[tuple[Any, str]]:
    it = iter(ds)
    return [(row, it.keys()[0][0]) for row in islice(it, n)]


def test_a_tokenizer_is_known_by_what_it_holds(data: Path, tokenizer: Path) -> None:
    from penstock.text import Tokenize

    other = data / "elsewhere.json"
    other.write_bytes(tokenizer.read_bytes())
    names = [Tokenize(str(path)).__qualname__ for path in (tokenizer, other)]
    assert names[0] == names[1]
    other.write_bytes(tokenizer.read_bytes() + b"\n")
    assert Tokenize(str(other)).__qualname__ != names[0]


def test_a_sample_without_the_field_is_named(write: Any, tokenizer: Path) -> None:
    path = write(
        "tokenize: {tokenizer: tokenizer.json, field: body}\nsources: {code: {path: code}}"
    )
    with pytest.raises(
        ps.DataError, match="the field 'body' holds no text; the sample has text, lang, stars, day"
    ):
        next(iter(ps.load(path)))


def test_files_are_imported_when_they_are_used() -> None:
    code = "import sys, penstock; print('penstock.mixture_files' in sys.modules, callable(penstock.load), 'yaml' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=600
    )
    assert done.stdout.split() == ["False", "True", "False"]
    with pytest.raises(AttributeError, match="no 'laod'; did you mean 'load'"):
        ps.laod  # type: ignore[attr-defined]  # noqa: B018


def next_keys(loader: ps.Loader) -> list[Any]:
    next(iter(loader))
    return loader.keys()


def test_steps_of_one_source(data: Path, write: Any, tokenizer: Path) -> None:
    text = (
        "seed: 3\none_source_per: global_step\nsources: {code: {path: code}, text: {path: text}}\n"
    )
    by_hand = ps.mix(of(data), seed=3, one_source_per="global_step")
    same(ps.load(write(text + "global_batch_size: 8")), by_hand.batch(global_batch_size=8))
    ds = ps.load(write(text + "batch: {size: 4, ranks: 2, collate: list}\nhorizon: {steps: 9}"))
    assert [len({s.source for s in ds.plan.at(slice(k, k + 2))}) for k in range(0, 18, 2)] == [
        1
    ] * 9
    for file in (text, text + "batch: {size: 4}"):
        alone = ps.load(write(file))
        with pytest.raises(ps.ConfigError, match="one_source_per=<rows>"):
            alone[0]
    assert len({key[0] for key in next_keys(ps.Loader(alone, rank=0, world_size=1))}) == 1
    nested = "{one_source_per: global_step, sources: {a: {path: code}, b: {path: text}}}"
    inner = f"sources: {{in: {{mixture: {nested}}}, out: {{path: text}}}}\nglobal_batch_size: 8\n"
    ds = ps.load(write("one_source_per: global_step\n" + inner))
    names = [sorted({s.source for s in ds.plan.at(step=k)}) for k in range(40)]
    assert [len(each) for each in names] == [1] * 40 and ["in/a"] in names
    with pytest.raises(ps.ConfigError, match="comes after mix"):
        ps.load(write(inner))
    tokens = f"tokenize: {{tokenizer: {tokenizer}}}\npack: {{length: 16}}\n"
    packed = ps.load(write(text + tokens + "global_batch_size: 4"))
    assert packed.tree.reason_not_indexed and next(iter(packed))["tokens"].shape == (4, 16)
    with pytest.raises(ps.ConfigError, match="give steps or tokens"):
        ps.load(write(text + tokens + "global_batch_size: 4\nhorizon: {samples: 50}"))
    amounts = "one_source_per: 4\nsources: {code: {path: code, epochs: 2}, text: {path: text, epochs: 1}}\n"
    with pytest.raises(ps.ConfigError, match="add 'unit: tokens'"):
        ps.load(write(amounts + tokens))
