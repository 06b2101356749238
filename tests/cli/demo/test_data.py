"""The demo's data: cut in pieces without losing a character, and every format holds the rows it says."""

from __future__ import annotations

import ast
from pathlib import Path

import pyarrow.ipc as ipc
import pyarrow.parquet as pq

from penstock.cli.demo.data import (
    MAX_PIECE_LENGTH,
    PIECE_LENGTH,
    WrittenSource,
    build,
    iter_documented_pairs,
    pieces,
)

SOURCE = '''
@decorator
def first(a, *, b=1):
    """Add two numbers, or do not."""

class Second:
    """A class that is documented."""

    async def third(self):
        """A method that is documented."""

    def fourth(self):
        "short"
'''


def test_pieces_are_the_text() -> None:
    text = "".join(f"@decorator\ndef f{i}():\n    return {i}\n\n" for i in range(500))
    found = list(pieces(text, starts=("def ", "@")))
    assert len(found) > 5
    assert "".join(piece for _, piece in found) == text
    lines = text.splitlines()
    for first, piece in found:
        assert len(piece) < PIECE_LENGTH + 60
        assert lines[first - 1] == piece.splitlines()[0] == "@decorator"


def test_a_text_without_good_places_is_cut_all_the_same() -> None:
    text = "x = 1\n" * 10_000
    found = list(pieces(text, starts=("def ",)))
    assert "".join(piece for _, piece in found) == text
    assert max(len(piece) for _, piece in found) <= MAX_PIECE_LENGTH + 6


def test_signatures_and_docstrings_make_pairs() -> None:
    found = {
        pair["instruction"]: pair["answer"]
        for pair in iter_documented_pairs(ast.parse(SOURCE).body, "m")
    }
    assert found == {
        "What does `m.first(a, *, b=1)` do?": "Add two numbers, or do not.",
        "What does `m.Second` do?": "A class that is documented.",
        "What does `m.Second.third(self)` do?": "A method that is documented.",
    }


def test_build_writes_what_it_says(tmp_path: Path) -> None:
    made: dict[str, WrittenSource] = {one.name: one for one in build(tmp_path)}
    assert set(made) == {"code", "prose", "pairs"}
    rows = {
        "code": sum(
            pq.ParquetFile(path).metadata.num_rows for path in tmp_path.glob("code/*.parquet")
        ),
        "prose": sum(
            len(path.read_bytes().splitlines()) for path in tmp_path.glob("prose/*.jsonl")
        ),
        "pairs": sum(
            ipc.open_file(path).read_all().num_rows
            for path in map(str, tmp_path.glob("pairs/*.arrow"))
        ),
    }
    for name, one in made.items():
        assert one.samples == rows[name] > 100
