"""Reading from stores: what lies in them is read as it is from a folder of this machine."""

from __future__ import annotations

import base64
import gzip
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import numpy as np
import pytest
from typer.testing import CliRunner

import foreign_formats
import penstock as ps
from penstock.cli.app import app
from penstock.engine.base import seams
from penstock.errors import ConfigError, DataError, StorageError
from penstock.mixture_files import read_model
from penstock.report.changes import list_changes
from penstock.sources import open_files
from penstock.sources.paths import find
from penstock.stores import ByteRange, CompositeStore, display_path, storage
from penstock.text import Tokenize

from . import servers

fsspec: Any = pytest.importorskip("fsspec")

ROWS = [{"id": i, "text": "ü" * (i % 60)} for i in range(300)]


def lines(rows: list[Any]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    (folder / "a").mkdir()
    for number in range(3):
        (folder / "a" / f"{number}.jsonl").write_bytes(
            lines(ROWS[number * 100 : number * 100 + 100])
        )
    (folder / "b").mkdir()
    (folder / "b" / "x.jsonl.gz").write_bytes(gzip.compress(lines(ROWS)))
    return folder


@pytest.fixture(scope="module")
def web(data: Path) -> Iterator[servers.Site]:
    with servers.site(data) as found:
        yield found


@pytest.fixture
def memory(data: Path) -> Iterator[str]:
    fs = fsspec.filesystem("memory")
    fs.store.clear()
    copy(data, fs, "/d")
    yield "memory://d"
    fs.store.clear()


def copy(folder: Path, fs: Any, to: str) -> None:
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            fs.pipe_file(f"{to}/{path.relative_to(folder).as_posix()}", path.read_bytes())


def same(one: Any, other: Any) -> bool:
    if isinstance(one, np.ndarray):
        return np.array_equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    return bool(one == other) or (one != one and other != other)


def test_paths_globs_braces_and_folders(memory: str) -> None:
    def names(given: Any) -> list[str]:
        return [str(path) for path in find(given)]

    three = [f"{memory}/a/{number}.jsonl" for number in range(3)]
    assert names(f"{memory}/a/1.jsonl") == three[1:2]
    assert (
        names(f"{memory}/a/*.jsonl")
        == names(f"{memory}/a")
        == names(f"{memory}/a/[!x].js*")
        == three
    )
    assert (
        names(f"{memory}/**/{{0,2}}.jsonl")
        == names(f"{memory}/a/{{0,2}}.jsonl")
        == [three[0], three[2]]
    )
    assert names([three[2], three[0]]) == [three[0], three[2]]
    assert names(f"{memory}/**/*.jsonl*") == [*three, f"{memory}/b/x.jsonl.gz"]
    with pytest.raises(ConfigError, match=r"no object 'memory://d/a/7.jsonl'"):
        find(f"{memory}/a/7.jsonl")
    with pytest.raises(ConfigError, match="matches no object"):
        find(f"{memory}/a/*.parquet")
    with pytest.raises(ConfigError, match="named twice"):
        find([three[0], f"{memory}/a/*"])


def test_lines_and_archives_over_http(web: servers.Site, tmp_path: Path) -> None:
    ds = ps.read(f"{web.url}/a/{{0..2}}.jsonl", cache=tmp_path)
    assert list(ds) == ROWS and ds[299] == ROWS[299]
    assert list(ps.read(f"{web.url}/b/x.jsonl.gz", cache=tmp_path)) == ROWS
    with pytest.raises(ConfigError, match="a web server does not list its files"):
        ps.read(f"{web.url}/a/*.jsonl")


@pytest.mark.skipif(not Path("/proc/net/if_inet6").exists(), reason="no IPv6 here")
def test_an_address_in_brackets_is_no_glob(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    with servers.site(data, host="::1") as web:
        for direct in ("::1", "[::1]"):
            monkeypatch.setenv("no_proxy", direct)
            assert list(ps.read(f"{web.url}/a/{{0..2}}.jsonl", cache=tmp_path / direct)) == ROWS
        assert list(ps.read(f"{web.url.replace('[', 'me:pw@[')}/a/1.jsonl")) == ROWS[100:200]
        with pytest.raises(
            ConfigError,
            match=r"no object 'http://\[::1\]:\d+/c.jsonl'.*compare its spelling with the store",
        ):
            ps.read(f"{web.url}/c.jsonl")
        with pytest.raises(
            ConfigError,
            match=r"'http://\[::1\]:\d+/a/\*.jsonl': a web server does not list its files",
        ):
            ps.read(f"{web.url}/a/*.jsonl")


def test_threads_that_open_at_once_keep_to_their_own_caches(memory: str) -> None:
    store, begun, over = storage.world.store, threading.Event(), threading.Event()
    assert isinstance(store, CompositeStore)

    def other() -> None:
        with store.looking("theirs"):
            begun.set()
            over.wait(60)
            store.look([f"{memory}/a/1.jsonl"])

    thread = threading.Thread(target=other)
    with store.looking("outer"):
        with store.looking("mine"):
            thread.start()
            assert begun.wait(60)
            store.look([f"{memory}/a/0.jsonl"])
        store.look([f"{memory}/a/2.jsonl"])
        over.set()
        thread.join()
    kept = [store.known(f"{memory}/a/{number}.jsonl") for number in range(3)]
    assert [one and one.cache for one in kept] == ["mine", "theirs", "outer"]


def csv(folder: Path) -> foreign_formats.Made:
    path = folder / "t.csv"
    path.write_text("".join(f"{i},{i * i}\n" if i else "a,b\n" for i in range(50)))
    return foreign_formats.Made(path, [{"a": i, "b": i * i} for i in range(1, 50)])


def tables(folder: Path, kind: str) -> foreign_formats.Made:
    import pyarrow as pa
    import pyarrow.parquet as pq

    table, path = pa.Table.from_pylist(ROWS), folder / f"t.{kind}"
    if kind == "parquet":
        pq.write_table(table, path, row_group_size=70)
    else:
        with pa.ipc.new_file(str(path), table.schema) as out:
            out.write_table(table, 70)
    return foreign_formats.Made(path, ROWS)


def tar(folder: Path) -> foreign_formats.Made:
    import io
    import tarfile

    with tarfile.open(folder / "t.tar", "w") as out:
        for i in range(40):
            info = tarfile.TarInfo(f"{i:03}.txt")
            info.size = i
            out.addfile(info, io.BytesIO(b"x" * i))
    return foreign_formats.Made(
        folder / "t.tar",
        [{"__key__": f"{i:03}", "__shard__": "t.tar", "txt": b"x" * i} for i in range(40)],
    )


def tokens(folder: Path) -> foreign_formats.Made:
    values = np.arange(1, 401, dtype=np.uint16)
    values[9::10] = 0
    np.save(folder / "t.npy", values)
    return foreign_formats.Made(folder / "t.npy", [], options={"eos": 0})


MADE: dict[str, Callable[[Path], foreign_formats.Made]] = {
    "csv": csv,
    "parquet": lambda folder: tables(folder, "parquet"),
    "arrow": lambda folder: tables(folder, "arrow"),
    "tar": tar,
    "tokens": tokens,
    "mds": foreign_formats.mds,
    "tfrecord": foreign_formats.tfrecord,
    "litdata": foreign_formats.litdata,
    "saved": foreign_formats.saved,
    "array_record": foreign_formats.array_record,
    "hdf5": foreign_formats.hdf5,
    "vortex": foreign_formats.vortex,
}


@pytest.mark.parametrize("kind", MADE)
def test_every_format(kind: str, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    try:
        made = MADE[kind](folder)
    except ImportError as error:
        pytest.skip(str(error))
    fs = fsspec.filesystem("memory")
    fs.store.clear()
    copy(tmp_path / "data", fs, "/d")
    url = f"memory://d/{made.path.relative_to(folder).as_posix()}".removesuffix("/.")
    here = open_files(made.path, cache=tmp_path / "one", **made.options)
    there = open_files(url, cache=tmp_path / "two", **made.options)
    assert len(here) == len(there) > 0 and here.describe() == there.describe()
    order = np.random.default_rng(1).permutation(len(here))
    assert all(same(a, b) for a, b in zip(here.read(order), there.read(order), strict=True))
    if kind == "tokens":
        assert np.array_equal(*(source.lengths()[:] for source in (here, there)))  # type: ignore[index]
        one, two = (ps.read(at, cache=tmp_path, **made.options) for at in (made.path, url))
        assert all(same(a, b) for a, b in zip(one.pack(32), two.pack(32), strict=True))
    assert here.digest() == there.digest()
    fs.store.clear()


@pytest.mark.parametrize("kind", ["zarr", "lance"])
def test_folders_of_others_are_refused_by_name(kind: str) -> None:
    fs = fsspec.filesystem("memory")
    fs.pipe_file("/f/zarr.json" if kind == "zarr" else "/f/_versions/1.manifest", b"{}")
    with pytest.raises(ConfigError, match="copy it to one"):
        ps.read("memory://f")
    fs.store.clear()


def test_a_run_over_a_store_is_the_run_over_a_folder(
    web: servers.Site, data: Path, tmp_path: Path
) -> None:
    def run(source: Any, **options: Any) -> list[Any]:
        ds = ps.read(source, name="x", cache=tmp_path).shuffle().batch(7)
        with ps.Loader(ds, rank=0, world_size=1, **options) as loader:
            return [
                [row["id"] for row in batch] if isinstance(batch, list) else batch["id"].tolist()
                for batch in loader
            ]

    url = f"{web.url}/a/{{0..2}}.jsonl"
    here = run(str(data / "a" / "*.jsonl"))
    assert sorted(number for batch in here for number in batch) == list(range(300))
    assert run(url) == run(url, workers=2, executor="threads") == here


def test_workers_open_stores_themselves(web: servers.Site, data: Path, tmp_path: Path) -> None:
    ds = ps.read(f"{web.url}/a/{{0..2}}.jsonl", name="x", cache=tmp_path).shuffle().batch(10)
    list(ds)
    web.asked.clear()
    with (
        storage.override_world(sched=seams.LocalSched()),
        ps.Loader(ds, workers=2, executor="processes") as loader,
    ):
        found = list(loader)
    assert len(found) == 30 and found[3]["id"].tolist() == ds[3]["id"].tolist()
    assert not any(
        method == "HEAD" for method, *_ in web.asked
    )  # the version that is pinned travels with the work


def test_what_changed_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(lines(ROWS))
    with servers.site(tmp_path) as site:
        ds = ps.read(f"{site.url}/x.jsonl")
        assert ds[0] == ROWS[0]
        path.write_bytes(lines(ROWS[::-1]))
        with pytest.raises(
            StorageError,
            match=r"http://127.*/x.jsonl was changed.*it had .* version \w+, now .* version",
        ) as caught:
            list(ds)
        assert not isinstance(caught.value, DataError)
        assert ps.read(f"{site.url}/x.jsonl")[0] == ROWS[-1]


def test_a_time_tells_what_changed_where_there_is_no_etag(tmp_path: Path) -> None:
    path, times = tmp_path / "x.bin", ["Sat, 01 Aug 2026 10:00:00 GMT"]
    path.write_bytes(b"a" * 100)
    with servers.site(tmp_path) as site:
        site.always = servers.told(lambda: {"Last-Modified": times[-1]})
        assert storage.world.store.read(f"{site.url}/x.bin", 0, 50) == b"a" * 50
        path.write_bytes(b"b" * 100)
        times.append("Sat, 01 Aug 2026 10:00:02 GMT")
        with pytest.raises(
            StorageError,
            match=r"x.bin was changed.*modified \d+\.000 s after 1970, now .* modified",
        ):
            storage.world.store.read(f"{site.url}/x.bin", 50, 50)


def test_queries_and_users_tell_objects_apart(tmp_path: Path) -> None:
    def answers(handler: Any) -> bool:
        parts = parse_qs(urlsplit(handler.path).query)
        who = (
            base64.b64decode((handler.headers.get("Authorization") or "Basic ")[6:])
            .decode()
            .partition(":")[0]
        )
        handler.path = f"/{who or parts['id'][0]}"
        return False

    for one in range(3):
        (tmp_path / str(one)).write_bytes(lines([{"of": one, "id": i} for i in range(5)]))
    with servers.site(tmp_path) as site:
        site.always = answers
        urls = [f"{site.url}/x.jsonl?id={one}&sig=a" for one in range(3)]
        urls += [f"{site.url.replace('//', f'//{one}:pw@')}/x.jsonl" for one in range(3)]
        for _ in range(2):
            for number, url in enumerate(urls):
                assert {row["of"] for row in ps.read(url, cache=tmp_path / "c")} == {number % 3}
        whole = ps.read(f"{site.url}/x.jsonl?id={{0..2}}&sig=a", cache=tmp_path / "c", name="x")
        assert sorted(row["of"] for row in whole) == [0] * 5 + [1] * 5 + [2] * 5
        site.asked.clear()
        again = ps.read(
            f"{site.url}/x.jsonl?id=1&sig=b", cache=tmp_path / "c"
        )  # another signature, the same object
        assert len(list(again)) == 5 and not any(method == "GET" for method, *_ in site.asked)
        name = display_path(urls[0])
        with (
            storage.override_world(store=CompositeStore(storage.LocalStore())),
            pytest.raises(ConfigError, match="pass the full URL"),
        ):
            ps.read(name)


def test_no_blocks_are_kept_of_what_tells_no_version(tmp_path: Path) -> None:
    path, store = tmp_path / "x.bin", storage.world.store
    assert isinstance(store, CompositeStore)
    with servers.site(tmp_path) as site:
        site.always = servers.told(dict)
        for body in (b"a" * 100, b"b" * 100):
            path.write_bytes(body)
            with store.looking(str(tmp_path / "cache")):
                store.look([f"{site.url}/x.bin"])
            store.prefetch(
                [ByteRange(f"{site.url}/x.bin", 0, 100)]
            )  # forgotten when the object is read again
            assert store.read(f"{site.url}/x.bin") == body
    assert not (tmp_path / "cache").exists()


def test_what_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.util

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    for url, extra in {
        "s3://b/x.jsonl": "s3",
        "gs://b/x.jsonl": "gcs",
        "az://b/x.jsonl": "azure",
        "hf://datasets/x": "hf",
    }.items():
        with pytest.raises(ImportError, match=rf"penstock-data\[{extra}\]"):
            ps.read(url)
    with pytest.raises(ImportError, match=r"penstock-data\[remote\]"):
        ps.read("memory://x.jsonl")


def test_a_mixture_file_gives_its_login_to_what_is_beside_it(tmp_path: Path) -> None:
    www = tmp_path / "www"
    (www / "d").mkdir(parents=True)
    for number in range(3):
        (www / "d" / f"{number}.jsonl").write_bytes(lines(ROWS[number * 100 : number * 100 + 100]))
    (www / "base.yaml").write_text("seed: 3\n")
    (www / "mix.yaml").write_text(
        "include: base.yaml\nsources: {a: {path: 'd/{0..1}.jsonl'}, in: {mixture: /in.yaml}}\n"
    )
    (www / "in.yaml").write_text("sources: {b: {path: ./d/2.jsonl}}\n")
    (www / "bad.yaml").write_text(
        "sources: {a: {path: d/7.jsonl}, b: {path: d/0.jsonl, split: x}}\n"
    )
    with servers.site(www) as web, servers.site(www) as other:
        web.login = f"Basic {base64.b64encode(b'me:p@w').decode()}"
        url = web.url.replace("//", "//me:p%40w@")
        ds = ps.load(f"{url}/mix.yaml?token=signed")
        assert list(ds.limit(30)) == list(ps.load(f"{other.url}/mix.yaml").limit(30))
        assert all("?" not in path or path.startswith("/mix.yaml") for _, path, _ in web.asked)
        with pytest.raises(
            ConfigError, match=r"no object 'http://127.0.0.1:\d+/d/7.jsonl"
        ) as caught:
            ps.load(f"{url}/bad.yaml")
        assert "p%40w" not in str(caught.value) + repr(ds)
        told = list_changes(*(read_model(f"{place}/mix.yaml")[0] for place in (url, other.url)))  # type: ignore[arg-type]
        assert told and "p%40w" not in str(told)
        (www / "far.yaml").write_text(f"sources: {{a: {{path: '{other.url}/d/0.jsonl'}}}}\n")
        other.always = lambda handler: bool(
            handler.headers.get("Authorization") and handler.answer(400, b"")
        )
        assert list(ps.load(f"{url}/far.yaml").limit(2))


def test_the_command_line_takes_mixture_files_of_stores(tmp_path: Path) -> None:
    def run(*words: Any) -> tuple[int, str]:
        done = CliRunner().invoke(app, [str(word) for word in words])
        assert "p%40w" not in done.output and "p@w" not in done.output
        return done.exit_code, done.output

    (tmp_path / "x.jsonl").write_bytes(lines(ROWS))
    text = "seed: 3\nsources: {a: {path: x.jsonl}}\nbatch: {size: 8}\nhorizon: {steps: 20}\n"
    (tmp_path / "mix.yaml").write_text(text)
    (tmp_path / "other.yaml").write_text(text.replace("3", "4") + "split: {held_out: 10%}\n")
    with servers.site(tmp_path) as web:
        web.login = f"Basic {base64.b64encode(b'me:p@w').decode()}"
        one, two = (
            f"{web.url.replace('//', '//me:p%40w@')}/{name}.yaml" for name in ("mix", "other")
        )
        near, far = (run("plan", where, "--json") for where in (tmp_path / "mix.yaml", one))
        plans = [json.loads(told) | {"mixture": ""} for _, told in (near, far)]
        assert plans[0] == plans[1] and near[0] == far[0] == 0
        asked = [
            ("at", one, 3, "--read"),
            ("find", one, "a", 3),
            ("simulate", one, "--batch", 4),
            ("lint", one, two),
        ]
        for words in (
            *asked,
            ("seen", one),
            ("leaks", two),
            ("report", one, "-o", tmp_path / "r.html"),
        ):
            assert run(*words)[0] == 0, (words, run(*words)[1])
        assert "p%40w" not in (tmp_path / "r.html").read_text()
        assert run("diff", one, two)[0] == run("leaks", one, two)[0] == 1
        assert (
            run("run", one, "--steps", 5)[0] == run("plan", f"file://{tmp_path}/mix.yaml")[0] == 0
        )
        code, told = run("plan", one.replace("mix", "none"))
        assert code == 2 and "none.yaml" in told and "there is no such object" in told
    assert (
        run("plan", "s3://bucket/x?sig=p%40w")[0]
        == run("plan", tmp_path)[0]
        == run("plan", "none.yaml")[0]
        == 2
    )


def test_a_tokenizer_lies_beside_its_mixture_file(tmp_path: Path) -> None:
    tokenizers: Any = pytest.importorskip("tokenizers")
    words = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({"<unk>": 0, "a": 1, "b": 2}, unk_token="<unk>")
    )
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    words.save(str(tmp_path / "tok.json"))
    (tmp_path / "x.jsonl").write_bytes(lines([{"text": "a b a"}, {"text": "b c"}]))
    text = "seed: 3\ntokenize: {tokenizer: tok.json}\nsources: {a: {path: x.jsonl}}\nbatch: {size: 1}\n"
    (tmp_path / "mix.yaml").write_text(text)
    (tmp_path / "bad.yaml").write_text(text.replace("tok.json", "none.json"))
    with servers.site(tmp_path) as web:
        web.login = f"Basic {base64.b64encode(b'me:pw').decode()}"
        url = web.url.replace("//", "//me:pw@")
        near, far = ps.load(tmp_path / "mix.yaml"), ps.load(f"{url}/mix.yaml")
        assert same(far[0], near[0]) and "pw" not in repr(far)
        with ps.Loader(far, executor="processes", workers=1) as loader:
            assert same(next(iter(loader)), near[0])
        assert (
            Tokenize(f"{url}/tok.json").__qualname__ == Tokenize(tmp_path / "tok.json").__qualname__
        )
        with pytest.raises(
            ConfigError, match=r"the tokenizer file 'http://127.0.0.1:\d+/none.json.* is missing"
        ):
            Tokenize(f"{url}/none.json")
        with pytest.raises(
            ConfigError, match=r"tokenize.tokenizer: the tokenizer file 'http://127.0.0.1"
        ) as caught:
            ps.load(f"{url}/bad.yaml")
        assert "pw" not in str(caught.value)


def test_mixture_files_lie_in_stores_too(memory: str, tmp_path: Path) -> None:
    fs = fsspec.filesystem("memory")
    text = "cache: {cache}\nsources:\n  a: {{path: a/*.jsonl}}\n  b: {{path: b/x.jsonl.gz}}\n"
    fs.pipe_file("/d/base.yaml", b"seed: 3\n")
    fs.pipe_file("/d/mix.yaml", ("include: base.yaml\n" + text.format(cache=tmp_path)).encode())
    for name, to in {"up": "../", "out": "../x/./../../", "top": "/"}.items():
        body = f"include: {to}base.yaml\n" + text.format(cache=tmp_path).replace(
            "path: ", f"path: {to}"
        )
        fs.pipe_file(f"/d/sub/{name}.yaml", body.encode())
        fs.pipe_file(
            f"/d/sub/{name}-in.yaml", f"sources: {{m: {{mixture: {to}sub/{name}.yaml}}}}\n".encode()
        )
    local = tmp_path / "mix.yaml"
    local.write_text(
        "seed: 3\n" + text.format(cache=tmp_path).replace("path: ", f"path: {memory}/")
    )
    ds = ps.load(f"{memory}/mix.yaml", allow=["cache"])
    expected = [ps.load(local)[i] for i in range(20)]
    assert [ds[i] for i in range(20)] == expected
    for name in ("up", "out", "top"):
        ds = ps.load(f"{memory}/sub/{name}.yaml", allow=["cache"])
        assert [ds[i] for i in range(20)] == expected
        assert ps.load(f"{memory}/sub/{name}-in.yaml", allow=["cache"])[0] in ROWS
    fs.pipe_file(
        "/d/abs.yaml", f"include: {local}\nsources: {{a: {{path: {tmp_path}/*.jsonl}}}}".encode()
    )
    with pytest.raises(ConfigError, match=f"there is no file '{memory}{local}'"):
        ps.load(f"{memory}/abs.yaml")
