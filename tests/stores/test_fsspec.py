"""Stores that fsspec asks: no answer of theirs tells its version."""

from __future__ import annotations

import json
import socket
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import penstock as ps
from penstock.errors import ConfigError, StorageError
from penstock.sources.paths import find
from penstock.stores import CompositeStore, fsspec_client, resolve_beside, storage
from penstock.stores import blocks as module
from penstock.stores.client import UnresolvedHost
from penstock.stores.fsspec_client import FsspecClient
from penstock.stores.retries import RetryingClients

fsspec: Any = pytest.importorskip("fsspec")


@pytest.fixture
def memory() -> Iterator[Any]:
    fs = fsspec.filesystem("memory")
    fs.store.clear()
    yield fs
    fs.store.clear()


def test_nothing_is_kept_of_what_changed_since(
    memory: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BLOCK_BYTES", 1 << 10)
    store = storage.world.store
    assert isinstance(store, CompositeStore)
    memory.pipe_file("/d/x", b"a" * 4096)
    with store.looking(str(tmp_path)):
        store.look(["memory://d/x"])
    assert store.read("memory://d/x", 0, 10) == b"a" * 10
    memory.pipe_file("/d/x", b"b" * 4096)
    for _ in range(2):
        with pytest.raises(StorageError, match="memory://d/x was changed"):
            store.read("memory://d/x", 2048, 10)
    assert len(list((tmp_path / "blocks").glob("??/*"))) == 1


def test_what_counts_as_an_etag() -> None:
    assert (
        fsspec_client._build_object_info("github://o:r@main/x", {"size": 3, "sha": "4f1c"}).etag
        == "4f1c"
    )  # pyright: ignore[reportPrivateUsage]


def test_a_client_is_of_one_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fsspec.core, "url_to_fs", lambda url, **_: (object(), url))
    asking = RetryingClients(lambda name: name)
    one, other, again = (asking._client(f"github://o:{repo}@main/x") for repo in ("a", "b", "a"))  # pyright: ignore[reportPrivateUsage]
    assert one is again is not other


def test_a_chain_is_read_by_its_own_client(memory: Any, tmp_path: Path) -> None:
    for name in ("a", "b"):
        with zipfile.ZipFile(tmp_path / name, "w") as out:
            out.writestr("x.jsonl", json.dumps({"of": name}) + "\n")
        memory.pipe_file(f"/{name}.zip", (tmp_path / name).read_bytes())
    for name in ("a", "b"):
        url = f"zip://x.jsonl::memory://{name}.zip"
        assert list(ps.read(url, format="jsonl", cache=tmp_path / "cache")) == [{"of": name}]


@pytest.fixture
def hosts(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """File systems of hosts, as HDFS and SFTP are: what is below each, by its name and the login."""
    from fsspec.implementations.memory import MemoryFile, MemoryFileSystem
    from fsspec.utils import infer_storage_options

    found: dict[str, Any] = {}

    class Hosted(MemoryFileSystem):  # type: ignore[misc]
        cachable = False

        def __init__(
            self, host: str = "default", username: str = "", password: str = "", **more: Any
        ) -> None:
            super().__init__(**more)
            self.store = found[f"{username}:{password}@{host}" if username else host]

        @classmethod
        def _strip_protocol(cls, path: str) -> str:
            return str(infer_storage_options(path)["path"]).rstrip("/")

        @staticmethod
        def _get_kwargs_from_urls(path: str) -> dict[str, Any]:
            told = infer_storage_options(path)
            return {name: told[name] for name in ("host", "username", "password") if told.get(name)}

    for scheme in ("hdfs", "sftp"):
        monkeypatch.setitem(sys.modules["fsspec.registry"]._registry, scheme, Hosted)  # type: ignore[attr-defined]
    for name in ("default", "far", "me:pw@far"):
        rows = {
            f"/d/{number}.jsonl": json.dumps({"is": f"{name} {number}"}).encode()
            for number in range(3)
        }
        found[name] = {path: MemoryFile(path=path, data=data) for path, data in rows.items()}
    return found


def test_a_host_is_told_or_left_out(hosts: dict[str, Any]) -> None:
    for place, name in (("hdfs:///d", "default"), ("hdfs://far/d", "far"), ("sftp://far/d", "far")):
        rows = [{"is": f"{name} {number}"} for number in range(3)]
        assert list(ps.read(f"{place}/0.jsonl")) == rows[:1]
        assert list(ps.read(f"{place}/*.jsonl")) == list(ps.read(place)) == rows
        assert list(ps.read(f"{place[:-1]}**/{{1..2}}.jsonl")) == rows[1:]
        assert str(next(iter(find(place)))) == f"{place}/0.jsonl"
        assert (
            resolve_beside(f"{place}/m.yaml", "0.jsonl")
            == resolve_beside(f"{place}/e/m.yaml", "../0.jsonl")
            == f"{place}/0.jsonl"
        )


def test_logins_list_what_is_theirs(hosts: dict[str, Any], tmp_path: Path) -> None:
    place, rows = "sftp://me:pw@far/d", [{"is": f"me:pw@far {number}"} for number in range(3)]
    with storage.world.store.looking(None):  # type: ignore[attr-defined]
        found = [
            [str(path) for path in find(given)]
            for given in ("sftp://far/d/*.jsonl", f"{place}/*.jsonl", place)
        ]
    assert found[1] == found[2] != found[0] and "pw" not in str(found)
    hosts["far"].clear()
    for given in (
        f"{place}/*.jsonl",
        place,
        f"{place[:-1]}**/{{0..2}}.jsonl",
        f"{place}/{{0..1}}.jsonl",
    ):
        ds = ps.read(given, cache=tmp_path)
        assert list(ds) == rows[: len(ds)] and len(ds) >= 2 and "pw" not in repr(ds)
    with pytest.raises(ConfigError, match="no object 'sftp://far/e#~"):
        ps.read("sftp://me:pw@far/e")
    again = CompositeStore(storage.LocalStore())
    with storage.override_world(store=again):
        again.learn_url("sftp://far/d/0.jsonl", "sftp://far/d/0.jsonl")
        with pytest.raises(ConfigError, match="pass the full URL"):
            find(found[1])


def test_an_object_of_unknown_size_is_refused(memory: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    memory.pipe_file("/d/x.jsonl", b"{}\n")
    told = type(memory).info
    monkeypatch.setattr(type(memory), "info", lambda self, path: {**told(self, path), "size": None})
    with pytest.raises(StorageError, match="does not report the size of memory://d/x.jsonl"):
        ps.read("memory://d/x.jsonl")


def test_a_host_that_does_not_resolve_when_a_file_system_opens(
    hosts: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def connect(*_: Any, **__: Any) -> None:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(sys.modules["fsspec.registry"]._registry["sftp"], "__init__", connect)  # type: ignore[attr-defined]
    with pytest.raises(UnresolvedHost, match="does not resolve"):
        FsspecClient("sftp://far/d", lambda url: url)
