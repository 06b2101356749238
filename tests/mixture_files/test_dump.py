"""A dataset or a description, written and read again, is the same; what a file cannot hold is refused by name."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from example_counts import examples
from penstock.engine.base.canonical_json import compute_fingerprint
from penstock.mixture_files import build, describe_dataset, dump, read_model
from penstock.mixture_files.reading import ProblemLog, read_text
from penstock.mixture_files.write import format_yaml


def round_trip(ds: ps.Dataset, path: Path) -> str:
    ps.dump(ds, path)
    again = ps.load(path)
    assert compute_fingerprint(again.tree.description()) == compute_fingerprint(
        ds.tree.description()
    )
    for got, want in zip(islice(again, 60), islice(ds, 60), strict=True):
        np.testing.assert_equal(got, want)
    return path.read_text()


def double(row: Any) -> Any:
    return row


def sources(data: Path) -> dict[str, ps.Dataset]:
    return {
        "code": ps.read(
            data / "code", columns=["text", "stars"], where={"lang": "py", "stars": {"min": 3}}
        ).shuffle(),
        "text": ps.read(str(data / "text/*.jsonl"), name="text").shuffle(seed=4, block=(5, 2)),
        "some": ps.read(data / "text/0.jsonl", format="jsonl", columns=["text"])[2:9:2],
    }


def test_stretches_of_one_source(data: Path) -> None:
    inputs = {name: ds for name, ds in sources(data).items() if name != "some"}
    for per in (3, "global_step"):
        mixed = ps.mix(inputs, one_source_per=per).batch(global_batch_size=6, collate=list)
        assert f"one_source_per: {per}" in round_trip(mixed, data / "mixture.yaml")
    for name in "ab":
        np.arange(90, dtype=np.uint16).tofile(data / f"{name}.bin")
    tokens = {
        name: ps.read(data / f"{name}.bin", "tokens", name=name, dtype="uint16", eos=7).shuffle()
        for name in "ab"
    }
    packed = ps.mix(tokens, one_source_per="global_step").pack(8)
    text = round_trip(packed.batch(global_batch_size=6), data / "mixture.yaml")
    assert "pack:" in text and "one_source_per: global_step" in text


def test_loss_weights(data: Path) -> None:
    inputs, path = sources(data), data / "mixture.yaml"
    inner = ps.mix({"code": inputs["code"]}, loss_weights={"code": 0.5})
    ds = ps.mix({"in": inner, "text": inputs["text"]}, loss_weights={"in": 0.5, "text": 0})
    assert round_trip(ds, path).count("loss_weight: ") == 3
    assert ps.load(path).loss_weights == ds.loss_weights == (0.25, 0)
    assert "loss_weight" not in round_trip(ps.mix({"text": inputs["text"]}), path)
    path.write_text("sources: {a: {path: code, loss_weight: -1}}")
    with pytest.raises(ps.ConfigError, match="sources.a.loss_weight: expected a number at least 0"):
        ps.load(path)


def test_round_trips(data: Path) -> None:
    path, inputs = data / "out/mixture.yaml", sources(data)
    (data / "out").mkdir()
    weights = {"code": 3, "text": 1.5, "some": 0.1}
    text = round_trip(ps.mix(inputs, weights, seed=3, block_size=7, max_epochs={"some": 1.5}), path)
    assert str(data / "code") in text
    round_trip(ps.mix(inputs, stop="all_exhausted", max_epochs=2).batch(3, collate=list), path)
    round_trip(ps.mix(inputs, temperature=2.0), data / "mixture.yaml")
    points = [(0, {"code": 1, "text": 0, "some": 1}), (50, {"code": 0, "text": 1.0, "some": 1})]
    schedule = ps.Schedule(points, "cosine", start={"some": 5}, stop={"code": 40})
    text = round_trip(ps.mix(inputs, schedule, block_size=4), data / "mixture.yaml")
    assert "path: code" in text and str(data) not in text
    nested = ps.mix(
        {"in": ps.mix(inputs, weights, seed=9), "out": inputs["text"]},
        seed=1,
        stop="first_exhausted",
    )
    round_trip(nested, path)


def test_pack_options_come_back(data: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = [{"ids": np.arange(2 + i % 5, dtype=np.uint16)} for i in range(50)]
    pq.write_table(pa.Table.from_pylist(rows), data / "ids.parquet")
    ids = ps.read(data / "ids.parquet", lengths="ids").shuffle()
    packed = ps.mix({"ids": ids}, seed=1, stop="all_exhausted").pack(
        16, "first_fit", eos={"ids": 7}, dtype={"ids": np.uint16}, features=["ids"]
    )
    text = round_trip(packed.batch(2), data / "mixture.yaml")
    assert "eos: {ids: 7}" in text and "dtype: {ids: uint16}" in text


def test_tokenize_comes_back(data: Path) -> None:
    pytest.importorskip("tokenizers")
    from tokenizers import Tokenizer, models

    from penstock.text import Tokenize

    Tokenizer(models.WordLevel({"a": 0}, unk_token="a")).save(str(data / "tokenizer.json"))
    tokens = Tokenize(str(data / "tokenizer.json"))
    for counted in (False, True):
        text = ps.read(data / "text", lengths=tokens if counted else None).shuffle().map(tokens)
        written = round_trip(ps.mix({"text": text}), data / "mixture.yaml")
        assert "tokenizer: tokenizer.json" in written and ("counted: true" in written) == counted
    other = ps.read(data / "text", lengths=tokens).map(
        Tokenize(str(data / "tokenizer.json"), special_tokens=True)
    )
    with pytest.raises(ps.ConfigError, match="dump"):
        round_trip(ps.mix({"text": other}), data / "mixture.yaml")


def test_what_a_file_cannot_hold_is_named(data: Path) -> None:
    text = ps.read(data / "text")
    refused = {
        r"text: map\(double\) cannot be written": ps.mix({"text": text.map(double)}),
        r"text: filter\(.*<lambda>\)": ps.mix({"text": text.filter(lambda row: row)}),
        r"map\(double\) cannot be written: a mixture file holds a mixture": ps.mix(
            {"text": text}
        ).map(double),
        r"batch\(collate=double\)": ps.mix({"text": text}).batch(2, collate=double),
        r"memory: a mixture file names files, but this source is a Memory": ps.mix(
            {"memory": ps.from_sequence([1])}
        ),
        r"shuffle_buffer\(4\) cannot": ps.mix({"text": text}).shuffle_buffer(4),
        r"a source without a mixture cannot": text,
        r"text: repeat\(2\) cannot": ps.mix({"text": text.repeat(2)}),
        r"text: slice\(.*\) cannot": ps.mix({"text": text[::-1]}),
        r"text: select\(1 row\) cannot": ps.mix({"text": text.select([0])}),
        r"out/in: shuffle\(seed=0\) cannot": ps.mix({"out": ps.mix({"in": text.shuffle()[:9]})}),
    }
    for message, ds in refused.items():
        with pytest.raises(ps.ConfigError, match=message):
            ps.dump(ds, data / "never.yaml")
    assert not (data / "never.yaml").exists()


def test_a_description_comes_back(data: Path, write: Any) -> None:
    path = write(
        """
        seed: 1
        horizon: {steps: 500}
        shuffle: {rows: 4, window: 2}
        cache: kept
        sources:
          code: {path: [code/0.parquet, code/1.parquet], epochs: 2, label: c, where: {lang: null, stars: {not: [1, 2]}}}
          more: {mixture: {sources: {x: {path: text, slice: [5]}}, seed: 2}, tokens: 1e6}
        schedule: {unit: steps}
        batch: {size: 3, ranks: 2}
        """
    )
    model, problems = read_model(path)
    assert model is not None and not problems
    (data / "sub").mkdir()
    dump(model, data / "sub/again.yaml")
    again, problems = read_model(data / "sub/again.yaml")
    assert again == model and not problems
    assert str(data / "code/0.parquet") in (data / "sub/again.yaml").read_text()


def test_a_model_of_a_dataset_builds_to_it(data: Path) -> None:
    ds = ps.mix(sources(data))
    assert build(describe_dataset(ds)).tree.description() == ds.tree.description()


SCALARS = st.one_of(
    st.text(
        st.characters(
            exclude_categories=["Cs", "Cc"], exclude_characters="\x85\u2028\u2029\ufeff\ufffe\uffff"
        ),
        max_size=8,
    ),
    st.integers(-(10**18), 10**18),
    st.floats(allow_nan=False, allow_infinity=False),
    st.booleans(),
    st.none(),
    st.sampled_from(
        [
            "no",
            "1e5",
            "012",
            "~",
            "null",
            "1:30",
            "2024-01-02",
            "${X}",
            "$${X}",
            "0x1f",
            "+1",
            ".5",
            "1_0",
            " a",
            "a: b",
            "#",
        ]
    ),
)


@examples(300)
@given(
    st.dictionaries(
        st.text("abno1~", min_size=1, max_size=4),
        st.lists(SCALARS, min_size=1, max_size=4),
        max_size=4,
    )
)
def test_values_come_back(tree: dict[str, list[Any]]) -> None:
    notes = ProblemLog()
    node = read_text(format_yaml({"all": tree}), "here", notes)
    assert node is not None and not notes.problems
    top = node.value
    assert isinstance(top, dict)
    inner = top["all"].value
    assert isinstance(inner, dict)
    got = {name: [item.value for item in child.value] for name, child in inner.items()}  # type: ignore[union-attr]
    assert got == tree and [list(map(type, row)) for row in got.values()] == [
        list(map(type, row)) for row in tree.values()
    ]
