"""Documents of two sources, or of two values of a key, never in one row."""

from __future__ import annotations

from collections import Counter
from itertools import islice
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, note
from hypothesis import strategies as st

import penstock as ps
import penstock.engine.steps.group as group
from example_counts import examples
from penstock.engine.steps.compiled import Compiled
from penstock.engine.steps.pack import PackOp
from penstock.engine.steps.pack_windows import WindowPackOp
from penstock.errors import ConfigError, DataError
from penstock.testing import assert_resumes
from trees import Grown, assert_plan_tells_packs, build, delivered, other_order, show, woven

SOURCE = "__source__"

HOW: list[dict[str, Any]] = [
    {},
    {"method": "best_fit"},
    {"method": "best_fit", "pad_to_multiple": 2, "bos": 97},
    {"pad_to_multiple": 3, "eos": 98},
    {"method": "first_fit"},
    {"method": "best_fit", "overflow": "never", "long": "truncate"},
]


def sources(plan: Any, row: int) -> set[str]:
    return {sample.source for sample in plan.at(row)}


@st.composite
def known(draw: Any) -> Grown:
    """Any tree of documents whose lengths are known, repeated for ever or not."""
    flow = woven(draw, "", "documents", kinds=("mix", "mix", "concat"))
    alike = flow.ds._size is not None and Compiled(flow.ds.tree).op.repeats
    return flow.then("repeat") if flow.ds._size and not (alike and draw(st.booleans())) else flow


def rows_of(flow: Grown, length: int, options: dict[str, Any], planned: bool) -> list[Any]:
    """The rows of two passes of a flow that ends; `planned` as those of passes that differ are."""
    with pytest.MonkeyPatch.context() as patch:
        if planned:
            patch.setattr(group, "has_independent_rows", lambda fold: False)
        packed = build(flow.tree).pack(length, **options)
        assert isinstance(Compiled(packed.tree).op.inputs[0], PackOp if planned else WindowPackOp)
        return [
            {name: column.tolist() for name, column in row.items()}
            for row in islice(packed.repeat(), 2 * (packed.plan.size or 0))
        ]


@st.composite
def ending(draw: Any) -> Grown:
    """A tree of documents whose lengths are known, of which every pass gives the same."""
    flow = woven(draw, "", "documents", kinds=("concat", "concat", "mix"))
    assume(flow.ds._size and Compiled(flow.ds.tree).op.repeats)
    return flow


@examples(60)
@given(
    ending(),
    st.integers(2, 9),
    st.sampled_from(HOW[:4]),
    st.sampled_from([None, SOURCE]),
    st.sampled_from([22, 30]),
)
def test_what_is_found_by_sums_is_what_a_plan_of_the_pass_gives(
    flow: Grown, length: int, how: dict[str, Any], by: str | None, rows: int
) -> None:
    """An edit of the run makes passes differ, and the rows that were given stay as they were."""
    options, length = {**how, "group_by": by, "rows": rows}, length * how.get("pad_to_multiple", 1)
    if not by and "method" not in how:
        del options["rows"]
    note(f"{show(flow.tree)}.pack({length}, **{options})")
    assert rows_of(flow, length, options, True) == rows_of(flow, length, options, False)


@examples(60)
@given(
    known(), st.integers(2, 4), st.sampled_from(HOW), st.sampled_from([None, 22, 30]), st.randoms()
)
def test_a_row_is_of_one_source(
    flow: Grown, length: int, how: dict[str, Any], rows: int | None, random: Any
) -> None:
    options, ds = {**how, "group_by": SOURCE}, flow.ds
    length *= options.get("pad_to_multiple", 1)
    if options.get("method") == "first_fit" or "overflow" in options:
        ds = ds.limit(20) if ds._size is None else ds
    elif rows:
        options["rows"] = max(rows, 2 * len(ds.plan.sources) + 2)
    note(f"{show(flow.tree)}.pack({length}, **{options})")
    packed = ds.pack(length, **options)
    many = min(2 * (packed.plan.size if packed.plan.size is not None else 40), 60)
    run = list(islice(packed.repeat() if packed.plan.size else packed, many))
    assert len(run) == many
    for number, row in enumerate(run):
        assert (
            len(sources(packed.plan, number)) == 1
            and 0 < np.count_nonzero(row["segment_ids"]) <= length
        )
    order = list(range(many))
    random.shuffle(order)
    again = packed.repeat() if packed.plan.size else packed
    for row in order[:9]:
        assert again[row]["tokens"].tolist() == run[row]["tokens"].tolist()
    assert_plan_tells_packs(packed.plan, min(many, packed.plan.size or many))
    if ds is flow.ds:
        assert delivered(build(other_order(flow.tree)).pack(length, **options), 5) == delivered(
            packed, 5
        )


@examples(60)
@given(known(), st.sampled_from(HOW[:4]))
def test_every_pass_has_every_token_once(flow: Grown, how: dict[str, Any]) -> None:
    note(show(flow.tree))
    packed = flow.ds.pack(6, **how, group_by=SOURCE, pad=-1)
    if not (size := packed.plan.size) or not isinstance(
        Compiled(packed.tree).op.inputs[0], WindowPackOp
    ):
        return
    added = {how.get("bos"), how.get("eos"), -1}
    for epoch in range(2):
        documents = islice(flow.ds.repeat(), epoch * len(flow.ds), (epoch + 1) * len(flow.ds))
        want = Counter(
            int(token) for document in documents for token in document if token not in added
        )
        rows = islice(packed.repeat(), epoch * size, (epoch + 1) * size)
        assert (
            Counter(int(token) for row in rows for token in row["tokens"] if token not in added)
            == want
        )


def languages(n: int = 60) -> ps.Dataset:
    docs = [
        {"ids": np.full(1 + i % 5, i), "lang": ("de", "en", "fr")[i % 7 % 3], "n": i % 2}
        for i in range(n)
    ]
    return ps.from_sequence(docs, name="docs")


@pytest.mark.parametrize("method", ["concat_split", "first_fit", "best_fit"])
@pytest.mark.parametrize("by", ["lang", "n"])
def test_a_row_is_of_one_value_of_a_key(method: Any, by: str) -> None:
    packed = languages().pack(8, method, group_by=by, unpacked=("n", "lang"))
    rows = list(ps.Loader(packed, lanes=2))
    assert all(len(set(row[by])) == 1 for row in rows) and len({row[by][0] for row in rows}) > 1
    tokens = Counter(int(token) for row in rows for token in row["ids"][row["segment_ids"] > 0])
    assert tokens == Counter(int(token) for document in languages() for token in document["ids"])
    assert_resumes(lambda: packed, steps=6)


def test_the_key_is_listed_without_being_asked_for() -> None:
    docs = ps.from_sequence(
        [{"ids": np.arange(3), "lang": "de"}, {"ids": np.arange(2), "lang": "de"}]
    )
    (row,) = ps.Loader(docs.pack(8, group_by="lang"), lanes=1)
    assert row["lang"] == ["de", "de"] and row["ids"].tolist() == [0, 1, 2, 0, 1, 0, 0, 0]


@pytest.mark.parametrize("method", ["concat_split", "first_fit", "best_fit"])
def test_rows_of_streams_are_of_one_source(method: Any) -> None:
    flows = {
        name: ps.from_sequence([[i] * (1 + i % 5) for i in range(k, k + 40)], name=name)
        for name, k in (("a", 0), ("b", 100))
    }
    packed = (
        ps.mix(flows, {"a": 1, "b": 3}, stop="all_exhausted")
        .map(np.asarray)
        .pack(8, method, group_by=SOURCE)
    )
    for row in ps.Loader(packed, lanes=2):
        assert len({token >= 100 for token in row["tokens"][row["segment_ids"] > 0].tolist()}) == 1
    assert_resumes(lambda: packed, steps=6)


def test_rows_are_nearly_as_full_as_without() -> None:
    sizes = np.clip(np.random.default_rng(1).lognormal(4, 1, 3000), 1, 2000).astype(int)
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])
    flows = {
        name: ps.from_tokens(np.arange(offsets[-1]), offsets, name=name).shuffle()
        for name in "abcd"
    }
    mix = ps.mix(flows, {"a": 60, "b": 30, "c": 9, "d": 1}, seed=1)
    for method in ("concat_split", "best_fit"):
        plan = mix.pack(512, method, group_by=SOURCE).plan
        tokens = sum(plan.counts(256 * 8, unit="tokens").values())
        assert tokens > 0.97 * 256 * 8 * 512
        assert tokens / sum(mix.pack(512, method).plan.counts(256 * 8, unit="tokens").values()) < 1


def test_what_cannot_be_grouped_is_named() -> None:
    with pytest.raises(DataError, match="no 'dialect'; add the key"):
        list(ps.Loader(languages().pack(8, group_by="dialect", unpacked=("lang", "n")), lanes=1))
    with pytest.raises(
        DataError, match="'ids' of a document is a ndarray; use a text or an integer"
    ):
        list(
            ps.Loader(
                languages().pack(8, group_by="ids", features=("ids",), unpacked=("lang", "n")),
                lanes=1,
            )
        )
    with pytest.raises(ConfigError, match="group_by=3"):
        languages().pack(8, group_by=3)  # type: ignore[arg-type]
    flows = {name: ps.from_tokens(np.arange(8), [0, 3, 8], name=name) for name in "abc"}
    with pytest.raises(ConfigError, match="3 sources need windows of at least 8 rows"):
        len(ps.concat(*flows.values()).pack(4, group_by=SOURCE, rows=7))
    with pytest.raises(ps.IndexedError, match="needs values of the samples"):
        len(flows["a"].pack(4, group_by="lang"))
