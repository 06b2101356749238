"""Mixture files from URLs: they name stores of the network alone, until the caller allows them more."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import penstock as ps
from penstock.cli.app import app
from penstock.mixture_files import lint

fsspec: Any = pytest.importorskip("fsspec")
_NUMBERS = itertools.count()

Remote = Callable[[str], str]


@pytest.fixture
def remote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Remote:
    """Put a mixture file, with data beside it, into a store; return its URL."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PENSTOCK_SECRET", "canary")
    monkeypatch.setenv("PENSTOCK_STORE_SECONDS", "0")
    (tmp_path / "local.jsonl").write_text('{"x": "local"}\n')

    def put(text: str) -> str:
        folder = f"/trust-{next(_NUMBERS)}"
        fsspec.filesystem("memory").pipe(
            {f"{folder}/m.yaml": text.encode(), f"{folder}/x.jsonl": b'{"x": "far"}\n'}
        )
        return f"memory:/{folder}/m.yaml"

    return put


REFUSED = {
    "sources: {a: {path: '${PENSTOCK_SECRET}.jsonl'}}": "env",
    "sources: {a: {path: 'x.jsonl', label: '${PENSTOCK_UNSET:-a}'}}": "env",
    "sources: {a: {path: 'file://LOCAL/local.jsonl'}}": "local_files",
    "sources: {a: {path: ['x.jsonl', 'FILE:LOCAL/local.jsonl']}}": "local_files",
    "sources: {a: {path: '~/local.jsonl'}}": "local_files",
    "sources: {a: {path: 'simplecache::file://LOCAL/local.jsonl'}}": "local_files",
    "sources: {a: {path: 'simplecache::memory://x.jsonl'}}": "local_files",
    "sources: {a: {mixture: 'file://LOCAL/local.yaml'}}": "local_files",
    "include: 'file://LOCAL/local.yaml'\nsources: {a: {path: x.jsonl}}": "local_files",
    "exclude: '~/keys'\nsources: {a: {path: x.jsonl}}": "local_files",
    "tokenize: {tokenizer: '/LOCAL'}\nsources: {a: {path: x.jsonl}}": "local_files",
    "tokenize: {tokenizer: '../x'}\nsources: {a: {path: x.jsonl}}": "local_files",
    "sources: {a: {path: x.jsonl, tokenize: {tokenizer: 'file://LOCAL/t.json'}}}": "local_files",
    "sources: {a: {path: x.jsonl, chat: {tokenizer: 'file://LOCAL/t.json'}}}": "local_files",
    "chat: {tokenizer: t.json, template: '~/x.jinja'}\nsources: {a: {path: x.jsonl}}": "local_files",
    "cache: /LOCAL/cache\nsources: {a: {path: x.jsonl}}": "cache",
    "sources: {a: {mixture: {sources: {b: {path: 'file://LOCAL/local.jsonl'}}}}}": "local_files",
}


@pytest.mark.parametrize("text", REFUSED)
def test_a_file_from_a_url_uses_nothing_of_this_machine(
    text: str, remote: Remote, tmp_path: Path
) -> None:
    url = remote(text.replace("LOCAL", str(tmp_path)))
    with pytest.raises(ps.ConfigError, match=f"--allow {REFUSED[text]}") as error:
        ps.load(url)
    assert "canary" not in str(error.value)
    assert any("may not" in problem.message for problem in lint(url))
    assert not (tmp_path / "cache").exists()


def test_what_the_caller_allows_is_used(
    remote: Remote, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NAME", "x")
    cache = tmp_path / "cache"
    text = f"cache: {cache}\nsources: {{a: {{path: '${{NAME}}.jsonl'}}, b: {{path: 'file://{tmp_path}/local.jsonl'}}}}"
    url = remote(f"{text}\nstop: all_exhausted")
    with pytest.raises(ps.ConfigError, match="3 problems"):
        ps.load(url)
    with pytest.raises(ps.ConfigError, match=r"line 1, cache: .*--allow cache"):
        ps.load(url, allow=["env", "local_files"])
    rows = ps.load(url, allow=["env", "local_files", "cache"])
    assert sorted(row["x"] for row in rows) == ["far", "local"]


def test_a_file_in_a_store_names_data_beside_it_and_in_other_stores(remote: Remote) -> None:
    assert next(iter(ps.load(remote("sources: {a: {path: x.jsonl}}"))))["x"] == "far"
    said = [
        problem.message
        for problem in lint(remote("sources: {a: {path: 'http://127.0.0.1:1/x.parquet'}}"))
    ]
    assert not any("may not" in message for message in said)


def test_a_local_file_that_includes_one_from_a_url_lends_it_nothing(
    remote: Remote, tmp_path: Path
) -> None:
    url = remote("sources: {a: {path: '${PENSTOCK_SECRET}.jsonl'}}")
    (tmp_path / "m.yaml").write_text(
        f"include: {url}\nsources: {{b: {{path: local.jsonl, label: '${{HOME}}'}}}}\n"
    )
    with pytest.raises(ps.ConfigError, match=r"memory://.*line 1.*--allow env"):
        ps.load(tmp_path / "m.yaml")


def test_a_grant_that_there_is_not_is_refused(remote: Remote) -> None:
    with pytest.raises(ps.ConfigError, match="did you mean 'env'"):
        ps.load(remote("sources: {a: {path: x.jsonl}}"), allow=["envs"])  # pyright: ignore[reportArgumentType]


def test_commands_take_grants(remote: Remote, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NAME", "x")
    url = remote("sources: {a: {path: '${NAME}.jsonl'}}")
    refused = CliRunner().invoke(app, ["lint", url, "--json"])
    assert refused.exit_code == 1
    assert "--allow env" in json.loads(refused.stdout)["problems"][0]["message"]
    assert CliRunner().invoke(app, ["lint", url, "--allow", "env"]).exit_code == 0
    assert CliRunner().invoke(app, ["at", url, "0"]).exit_code == 2
    assert CliRunner().invoke(app, ["at", url, "0", "--allow", "env"]).exit_code == 0
