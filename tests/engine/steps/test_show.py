"""Representations of datasets, iterators, loaders and plans are short and read no data."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest
from hypothesis import given

import penstock as ps
from example_counts import examples
from penstock.engine.mixing.rules import Weighted
from penstock.engine.packing import Packing
from penstock.engine.steps.group import Group
from penstock.engine.steps.map import Map
from penstock.engine.steps.mix import Mix
from penstock.engine.steps.read import Read
from penstock.engine.steps.reorder import Reorder
from penstock.plan import Plan
from penstock.testing import build, pipelines
from penstock.types import Ints, Json


def words(n: int = 48, name: str = "words") -> ps.Dataset:
    return ps.from_sequence(range(n), name=name)


def tokens(n: int) -> list[int]:
    return [n]


def mixed(n: int, **options: Any) -> ps.Dataset:
    names = [f"s{i}" for i in range(n)]
    return ps.mix(
        {name: words(9) for name in names}, {name: i + 1 for i, name in enumerate(names)}, **options
    )


CHAINS: list[tuple[Callable[[], ps.Dataset], str]] = [
    (words, "Dataset of 48 items: words (48 rows)"),
    (lambda: words(1).map(str), "Dataset of 1 item: words (1 row) -> map(str)"),
    (lambda: words().shuffle(seed=1).batch(4), "Dataset of 12 items: words (48 rows) -> shuffle(seed=1) -> batch(4)"),
    (lambda: words().filter(bool), "Dataset, not indexed: words (48 rows) -> filter(bool)"),
    (lambda: words().repeat(), "Dataset, endless: words (48 rows) -> repeat()"),
    (lambda: words().repeat(2, reshuffle=False)[3:9:2],
     "Dataset of 3 items: words (48 rows) -> repeat(2, reshuffle=False) -> slice(3, 9, 2)"),
    (lambda: words().map(tokens, may_skip=True).pack(8, "best_fit").batch(2),
     "Dataset, not indexed: words (48 rows) -> map(tokens, may_skip=True) -> pack(8, best_fit) -> batch(2)"),
    (lambda: words().batch(5, drop_remainder=True, collate=list),
     "Dataset of 9 items: words (48 rows) -> batch(5, drop_remainder=True, collate=list)"),
    (lambda: words().shuffle(block=(4, 2)).shuffle(window=3),
     "Dataset of 48 items: words (48 rows) -> shuffle(block=(4, 2)) -> shuffle(window=3)"),
    (lambda: ps.from_iterable(lambda: iter("ab")).map_with_index(lambda i, x: x).limit(4).repeat(2),
     "Dataset, not indexed: data (a stream) -> zip(index) -> map(<lambda>) -> limit(4) -> repeat(2)"),
    (lambda: words().with_source().seed(3).random_map(lambda x, rng: x),
     "Dataset of 48 items: words (48 rows) -> with_source() -> random_map(<lambda>, seed=3)"),
    (lambda: words().map(tokens).shuffle_buffer(5).batch_by_tokens(3),
     "Dataset, not indexed: words (48 rows) -> map(tokens) -> shuffle_buffer(5) -> "
     "batch_by_tokens(max_tokens=3, padded=False)"),
    (lambda: words().plan.exclude([("words", 3)]).dataset,
     "Dataset of 48 items: words (48 rows) -> without 1 sample"),
]  # fmt: skip


@pytest.mark.parametrize("make,line", CHAINS, ids=[line for _, line in CHAINS])
def test_a_chain_is_one_line(make: Callable[[], ps.Dataset], line: str) -> None:
    assert repr(make()) == line


def test_a_mixture_shows_its_sources_the_heaviest_first() -> None:
    ds = ps.mix({"code": words().shuffle(), "text": words(1_200)}, {"code": 3, "text": 7}, seed=42)
    assert repr(ds.map(tokens).pack(8192).batch(8)).splitlines() == [
        "Dataset, not indexed",
        "  mix(2 inputs, seed=42) -> map(tokens) -> pack(8192) -> batch(8)",
        "    70%  text (1,200 rows)",
        "    30%  code (48 rows) -> shuffle()",
    ]


def test_a_schedule_shows_its_first_and_last_shares() -> None:
    ramp = ps.Schedule([(0, {"a": 9, "b": 1}), (100, {"a": 1, "b": 1})], interpolation="linear")
    assert "90% to 50%  a (9 rows)" in repr(ps.mix({"a": words(9), "b": words(9)}, ramp))


def test_what_is_woven_otherwise_has_no_shares() -> None:
    assert repr(words().zip(words(5, "more")).concat(words())).splitlines() == [
        "Dataset of 53 items",
        "  concat(2 inputs)",
        "    zip(2 inputs)",
        "      words (48 rows)",
        "      more (5 rows)",
        "    words (48 rows)",
    ]
    assert "mix(2 inputs, temperature=2)" in repr(
        ps.mix({"a": words(4), "b": words(9)}, temperature=2)
    )
    assert "%" not in repr(ps.mix({"a": words(4), "b": words(9)}, temperature=2))


def test_sixty_sources_are_twelve_lines() -> None:
    lines = repr(mixed(60)).splitlines()
    assert len(lines) == 12
    assert lines[2] == "    3.28%  s59 (9 rows)"
    assert lines[-1] == "    ... 51 more, 72.5% together"


def test_nested_mixtures_share_the_lines() -> None:
    ds = ps.mix({"a": mixed(3), "b": mixed(60), "c": mixed(60)})
    lines = repr(ds).splitlines()
    assert len(lines) <= 12
    assert [line for line in lines if "mix(60 inputs)" in line and ("b:" in line or "c:" in line)]
    assert any("... " in line for line in lines)


def test_many_steps_are_one_short_line() -> None:
    ds = words()
    for _ in range(2_000):
        ds = ds._with(ds.map(str).tree)  # pyright: ignore[reportPrivateUsage]
    assert len(repr(ds)) < 300
    assert "1992 more steps" in repr(ds)


def test_a_plan_shows_what_it_is_of() -> None:
    assert repr(words().batch(4).plan) == "Plan of 12 items: words (48 rows) -> batch(4)"
    assert repr(words().plan.skip(range(3))).startswith("Plan of 45 items: words")


def test_an_iterator_shows_where_it_stands() -> None:
    it = iter(words().batch(4))
    _ = next(it), next(it)
    assert (
        repr(it) == "DatasetIterator of 12 items, at item 2 of pass 0: words (48 rows) -> batch(4)"
    )
    streamed = iter(words().filter(bool))
    next(streamed)
    assert "1 lane, in pass 0, 1 sample given since it was opened" in repr(streamed)


def test_a_loader_shows_its_rank_and_where_it_stands() -> None:
    with ps.Loader(words().batch(4), rank=1, world_size=2, workers=3) as loader:
        next(iter(loader))
        head = "Loader of 6 items, rank 1 of 2, 3 workers"
        assert repr(loader) == f"{head}, at item 1 of pass 0: words (48 rows) -> batch(4)"
    assert repr(loader).startswith(f"{head}, closed, at item 1")
    with ps.Loader(mixed(2), rank=0, world_size=1) as loader:
        loader.set_weights({"s0": 3, "s1": 1})
        assert "75%  s0" in repr(loader)
        assert "changes=1" in repr(loader)


def test_lengths_of_documents_are_not_read_for_it() -> None:
    class Slow:
        asked = 0

        def __len__(self) -> int:
            return 3

        def read(self, indices: Ints, /) -> list[Any]:
            raise AssertionError("read")

        def lengths(self) -> Ints:
            self.asked += 1
            return np.ones(3, np.int64)

        def describe(self) -> Json:
            return {}

    source = Slow()
    ds = ps.from_sequence(source).pack(2)
    assert repr(ds) == "Dataset, length not computed yet: data (3 rows) -> pack(2)"
    assert not source.asked
    assert len(ds) == 2
    assert repr(ds).startswith("Dataset of 2 items")
    assert repr(ds.map(str)).startswith("Dataset, length not computed yet")


class Broken:
    """A source, an order, a fold, a function that nothing can be asked of."""

    def __len__(self) -> int:
        raise RuntimeError("no length")

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError("nothing")


def test_a_broken_pipeline_can_be_shown() -> None:
    broken: Any = Broken()
    odd = Weighted((("a", "much"),), 0, 1, "restart", "samples", None, None)
    for below in (
        None,
        Read(broken, "x"),
        words().tree,
        Map(Read(broken), print),
        Group(broken, broken),
    ):
        flow: Any = below
        trees = [
            flow, Reorder(flow, broken), Map(flow, broken), Mix((flow,), (), broken), Group(flow, broken),
            Mix((flow, flow), ("a", "b"), odd), Map(flow, Packing(4)),
        ]  # fmt: skip
        for each in trees[below is None :]:
            ds = ps.Dataset(each)
            assert repr(ds).startswith("Dataset")
            assert ds._repr_html_()  # pyright: ignore[reportPrivateUsage]


def test_names_from_data_are_hostile() -> None:
    evil = "<script>alert(1)</script>\x1b[2J\n&"
    ds = ps.mix({evil: words(3), "b" * 5_000: words(3)})
    assert "\x1b" not in repr(ds)
    assert len(repr(ds).splitlines()) == 4
    html = ds._repr_html_()  # pyright: ignore[reportPrivateUsage]
    assert "<script" not in html
    assert "&lt;script&gt;" in html
    assert len(html) < 2_000


def test_a_notebook_gets_a_list() -> None:
    opened = list[str]()

    class Reader(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            opened.append(tag)

        def handle_endtag(self, tag: str) -> None:
            assert opened.count(tag)

    for shown in (mixed(3), mixed(3).plan, iter(mixed(3)), ps.Loader(mixed(3))):
        opened.clear()
        Reader().feed(shown._repr_html_())  # pyright: ignore[reportPrivateUsage]
        assert opened[:6] == ["ul", "li", "ul", "li", "li", "li"]
        is_table = isinstance(shown, ps.Dataset | Plan)  # first rows, and shares of sources
        assert ("table" in opened) is is_table


def test_five_hundred_sources_are_shown_in_no_time() -> None:
    ds = mixed(500).map(str).batch(4)
    loader, plan = ps.Loader(ds), ds.plan
    gc.disable()
    try:
        for shown in (ds, loader, plan, mixed(500, stop="all_exhausted")):
            taken = list[float]()
            for _ in range(5):
                began = time.thread_time()
                repr(shown)
                taken.append(time.thread_time() - began)
            assert min(taken) < 0.005, f"{type(shown).__name__}: {min(taken) * 1e3:.1f} ms"
    finally:
        gc.enable()


@examples(60)
@given(pipelines())
def test_every_pipeline_can_be_shown(recipe: Any) -> None:
    ds = build(recipe)
    for shown in (ds, ps.Loader(ds, remainder="keep")):
        lines = repr(shown).splitlines()
        assert len(lines) <= 12
        assert "?" not in repr(shown), "every step has a name"


@pytest.mark.parametrize("many", [39, 40, 41, 200])
def test_names_of_more_than_forty_characters_are_cut(many: int) -> None:
    shown = repr(words(name="n" * many))
    assert ("n" * many if many <= 40 else "n" * 37 + "...") in shown
    assert "n" * 41 not in shown and ("n" * 38 in shown) == (many <= 40)


def test_the_unit_of_a_mixture_is_told_where_it_is_tokens() -> None:
    ds = {"a": ps.from_tokens(range(4), [0, 4], name="a").repeat()}
    assert [
        repr(ps.mix(ds, unit=unit)).split("mix", 1)[1].split("\n")[0]
        for unit in ("tokens", "samples")
    ] == [
        "(1 input, unit=tokens)",
        "(1 input)",
    ]
