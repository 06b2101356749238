"""Files in a store that are read whole at a load: each load reads their current version."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import penstock as ps
from penstock.integrations.steering import FileWatched
from penstock.mixture_files import lint
from penstock.stores import storage
from penstock.stores.limits import read_within
from penstock.text import Chat, Tokenize

fsspec: Any = pytest.importorskip("fsspec")
_NUMBERS = itertools.count()

Put = Callable[..., str]


@pytest.fixture
def put(monkeypatch: pytest.MonkeyPatch) -> Put:
    """Put files into a folder of a store; return its URL."""
    monkeypatch.setenv("PENSTOCK_STORE_SECONDS", "0")
    folder, fs = f"/changed-{next(_NUMBERS)}", fsspec.filesystem("memory")

    def put_files(**contents: str | bytes) -> str:
        for name, content in contents.items():
            data = content.encode() if isinstance(content, str) else content
            fs.pipe_file(f"{folder}/{name.replace('__', '.')}", data)
        return f"memory:/{folder}"

    put_files(x__jsonl=_rows("x", 10), y__jsonl=_rows("y", 4))
    return put_files


def _rows(name: str, count: int) -> str:
    return "".join(json.dumps({"text": f"{name}{row}"}) + "\n" for row in range(count))


def _mixture(weight: float, folder: str = "") -> str:
    names = {"x": weight, "y": 1}
    sources = "".join(
        f"  {name}: {{path: '{folder}{name}.jsonl', weight: {share}, shuffle: none}}\n"
        for name, share in names.items()
    )
    return f"sources:\n{sources}"


def test_a_mixture_file_is_loaded_again_after_it_changed(put: Put) -> None:
    path = f"{put(mix__yaml=_mixture(1))}/mix.yaml"
    assert ps.load(path).plan.counts(20) == {"x": 10, "y": 10}
    put(mix__yaml=_mixture(19))
    assert ps.load(path).plan.counts(20) == {"x": 19, "y": 1}
    put(mix__yaml="sources: {x: {path: x.jsonl, wieght: 1}}")
    with pytest.raises(ps.ConfigError, match="wieght"):
        ps.load(path)
    put(mix__yaml=_mixture(9))
    assert ps.load(path).plan.counts(20) == {"x": 18, "y": 2}
    put(mix__yaml=_mixture(0))
    assert [problem.key for problem in lint(path)] == ["sources.x.weight"]
    put(mix__yaml=_mixture(1), x__jsonl=_rows("x", 3))
    assert {row["text"] for row in ps.load(path).limit(12)} >= {"x0", "x2"}


def test_an_included_and_a_nested_file_are_read_again(put: Put, tmp_path: Path) -> None:
    folder = put(mix__yaml=_mixture(1))
    (tmp_path / "top.yaml").write_text(f"seed: 1\ninclude: ['{folder}/mix.yaml']\n")
    nested = f"sources:\n  n: {{mixture: '{folder}/mix.yaml'}}\n"
    (tmp_path / "nested.yaml").write_text(nested)
    for weight, count in ((1, 10), (19, 19), (9, 18)):
        put(mix__yaml=_mixture(weight))
        assert ps.load(tmp_path / "top.yaml").plan.counts(20)["x"] == count
        assert sum(ps.load(tmp_path / "nested.yaml").plan.counts(20).values()) == 20
        keys = [
            key.source
            for row in range(20)
            for key in ps.load(tmp_path / "nested.yaml").plan.at(row)
        ]
        assert keys.count("n/x") == count


def test_excluded_keys_are_read_again(put: Put, tmp_path: Path) -> None:
    folder = put(keys__jsonl='["x", 0]\n')
    (tmp_path / "mix.yaml").write_text(
        f"exclude: {folder}/keys.jsonl\nstop: all_exhausted\n{_mixture(1, folder + '/')}"
    )
    for rows in ([0], [0, 4], [7]):
        put(keys__jsonl="".join(f'["x", {row}]\n' for row in rows))
        texts = {row["text"] for row in ps.load(tmp_path / "mix.yaml").limit(16)}
        assert {f"x{row}" for row in range(10)} - texts >= {f"x{row}" for row in rows}


def _tokenizer(words: list[str]) -> str:
    from tokenizers import Tokenizer, models, pre_tokenizers

    tokenizer: Any = Tokenizer(
        models.WordLevel({word: number for number, word in enumerate(words)}, unk_token=words[0])
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return tokenizer.to_str()


def test_tokenizers_and_templates_are_read_again(put: Put) -> None:
    pytest.importorskip("tokenizers")
    words = ["?", *(f"y{row}" for row in range(4)), *(f"x{row}" for row in range(10))]
    folder = put(
        tokenizer__json=_tokenizer(words),
        mix__yaml="tokenize: {tokenizer: tokenizer.json}\n" + _mixture(0),
    )
    first = Tokenize(f"{folder}/tokenizer.json")
    for extra in ([], ["a"], ["a", "b", "c"]):
        put(tokenizer__json=_tokenizer([words[0], *extra, *words[1:]]))
        expected = [1 + len(extra)]
        assert ps.load(f"{folder}/mix.yaml")[0].tolist() == expected
        assert Tokenize(f"{folder}/tokenizer.json")("y0").tolist() == expected
    with pytest.raises(ps.ConfigError, match="is another one than when the pipeline was made"):
        first("y0")  # as of a local file
    for before in ("", "x1 ", "x2 x3 "):
        put(chat__jinja="{% for m in messages %}" + before + "{{ m.content }}{% endfor %}")
        chat = Chat(f"{folder}/tokenizer.json", template=f"{folder}/chat.jinja", untrained="keep")
        tokens = chat({"messages": [{"role": "user", "content": "y0"}]})["tokens"]
        assert len(tokens) == 1 + len(before.split())


def test_a_watched_file_is_read_again(put: Put) -> None:
    watched = FileWatched(f"{put(weights__json=json.dumps({'x': 1}))}/weights.json")
    assert watched.propose({"x": 1.0}, {}) == {"x": 1.0}
    assert watched.propose({"x": 1.0}, {}) is None
    put(weights__json=json.dumps({"x": 2}))
    assert watched.propose({"x": 1.0}, {}) == {"x": 2.0}


def test_a_pinned_version_stays(put: Put) -> None:
    path = f"{put(table__csv='1,2')}/table.csv"
    assert read_within(path, 100, pinned=True) == b"1,2"
    put(table__csv="1,2,3")
    with pytest.raises(ps.PenstockError, match="was changed while it was in use"):
        read_within(path, 100, pinned=True)
    assert read_within(path, 100) == storage.world.store.read(path) == b"1,2,3"
