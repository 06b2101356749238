"""One item in a notebook: its shapes, and the documents of packed rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.explore import show


def html(value: Any) -> str:
    return value._repr_html_()


def test_a_batch_shows_its_shapes() -> None:
    rows = [{"text": f"<b>{i}", "x": np.full((2, 3), i, np.float32)} for i in range(9)]
    batch = ps.from_sequence(rows).batch(4)[1]
    assert "x: float32[4, 2, 3], 4.0 to 7.0" in str(show(batch))
    assert "text: list of 4: ['<b>4'" in str(show(batch)) and "<b>" not in html(show(batch))
    torch = pytest.importorskip("torch")
    assert str(show({"t": torch.zeros(2, 3)})).endswith("t: float32[2, 3], 0.0 to 0.0")


def test_a_packed_row_shows_its_documents() -> None:
    documents = [np.arange(1, n + 1) for n in (3, 2, 4, 1)]
    row = ps.from_sequence(documents).pack(8, "first_fit").head(1)[0]
    assert "row 0: 3 documents of 3, 2, 1 tokens, 2 of padding" in str(show(row))
    batch = ps.from_sequence(documents * 40).pack(8).batch(20).head(1)[0]
    assert "... 12 more rows" in str(show(batch))


def test_a_notebook_draws_the_documents_of_packed_rows() -> None:
    documents = [np.arange(1, n + 1) for n in (3, 2, 4, 1)]
    shown = html(show(ps.from_sequence(documents).pack(8, "first_fit").head(1)[0]))
    assert "<td>tokens</td><td>int32[8]</td><td>0 to 3</td>" in shown
    assert "documents, 75% full" in shown and "3 documents, 75% full" in shown
    assert [f"width: {part}%" in shown for part in ("37.50", "25.00", "12.50")] == [True] * 3
    many = ps.from_sequence([[1]] * 5_000).pack(1_000).batch(9).head(1)[0]
    assert "936 more documents" in html(show(many)) and len(html(show(many))) < 100_000
    evil = show({"<b>": "<i>", "list": ["<u>"], "deep": {"<s>": 1}, "segment_ids": "wrong"})
    assert not {"<b>", "<i>", "<u>", "<s>"} & set(html(evil).replace(">", "> ").split())
    assert "... 30 more" in html(show({str(i): i for i in range(50)}))


def test_other_items_show_something() -> None:
    class Unprintable:
        def __repr__(self) -> str:
            raise RuntimeError

    assert str(show(Unprintable())) == "Unprintable"
    assert str(show(3)) == "3" and str(show(("a", 1))) == "tuple of 2: ['a', 1]"
    assert "... 30 more" in str(show({str(i): i for i in range(50)}))
    nested: Any = []
    nested.append(nested)
    assert str(show(nested)).startswith("list of 1")


def test_a_loader_shows_its_progress() -> None:
    with ps.Loader(ps.from_sequence(range(40)).batch(4)) as loader:
        for _ in range(3):
            next(iter(loader))
        assert '<progress value="3" max="10"></progress> 3 of 10 items<br>' in html(loader)
        assert "samples/s" in html(loader)
    assert "closed" in html(loader) and "samples/s" in html(loader)
    stream = ps.Loader(ps.from_sequence(range(9)).filter(bool))
    assert "<progress" not in html(stream) and "samples/s" not in html(stream)
    next(iter(stream))
    assert "samples/s" in html(stream)
    stream.close()
