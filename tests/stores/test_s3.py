"""A real server of S3, asked by obstore and by fsspec."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import penstock as ps
from penstock.engine.base import seams
from penstock.errors import StorageError
from penstock.sources.paths import find
from penstock.stores import CompositeStore, obstore_client, storage
from penstock.stores import client as client_module
from penstock.stores.client import NotFound, RetryableError

from . import servers
from .conftest import Clock

pytestmark = pytest.mark.slow  # a server of S3

pytest.importorskip("moto.server")
boto3: Any = pytest.importorskip("boto3")

ROWS = [{"id": i, "text": "x" * (i % 90)} for i in range(600)]


@pytest.fixture(scope="module")
def bucket() -> Iterator[servers.Site]:
    """A bucket, behind what can make its server misbehave."""
    with servers.s3() as url, servers.site(upstream=url) as proxy:
        client = boto3.client(
            "s3",
            endpoint_url=url,
            region_name="us-east-1",
            aws_access_key_id="a",
            aws_secret_access_key="b",
        )
        client.create_bucket(Bucket="bucket")
        for number in range(3):
            body = "".join(
                json.dumps(row) + "\n" for row in ROWS[number * 200 : number * 200 + 200]
            )
            client.put_object(Bucket="bucket", Key=f"web/{number}.jsonl", Body=body.encode())
        yield proxy


@pytest.fixture(params=["obstore", "fsspec"])
def by(
    request: pytest.FixtureRequest, bucket: servers.Site, monkeypatch: pytest.MonkeyPatch
) -> str:
    name: str = request.param
    if importlib.util.find_spec("obstore" if name == "obstore" else "s3fs") is None:
        pytest.skip(f"{name} is not installed")
    if name == "fsspec":
        monkeypatch.setattr(obstore_client, "is_usable", lambda url: False)
    for variable, value in {
        "AWS_ENDPOINT_URL": bucket.url,
        "AWS_ACCESS_KEY_ID": "kanarie-key",
        "AWS_SECRET_ACCESS_KEY": "kanarie-secret",
        "AWS_DEFAULT_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(variable, value)
    bucket.faults, bucket.always = [], None
    bucket.asked.clear()
    return name


def test_a_bucket_is_read_as_a_folder_is(by: str, bucket: servers.Site, tmp_path: Path) -> None:
    ds = ps.read("s3://bucket/web/*.jsonl", cache=tmp_path)
    assert list(ds) == ROWS
    assert sum("list-type" in path for _, path, _ in bucket.asked) == 1
    assert (
        len([path for method, path, _ in bucket.asked if method == "GET" and ".jsonl" in path]) == 3
    )
    run = ds.shuffle().batch(20)
    with ps.Loader(run, workers=2, executor="threads") as loader:
        assert [batch["id"].tolist() for batch in loader] == [batch["id"].tolist() for batch in run]
    assert len(ps.read("s3://bucket/web")) == 600
    with pytest.raises(ps.ConfigError, match="no object"):
        ps.read("s3://bucket/web/9.jsonl")


def put(bucket: servers.Site, name: str, *keys: str) -> None:
    """A bucket with these objects: empty ones, and ones of a row."""
    client = boto3.client("s3", endpoint_url=bucket.upstream)
    client.create_bucket(Bucket=name)
    for key in keys:
        client.put_object(
            Bucket=name, Key=key, Body=b'{"id": 1}\n' if key.endswith(".jsonl") else b""
        )
    bucket.asked.clear()


def names(given: str) -> list[str]:
    return [str(path) for path in find(given)]


def test_a_bucket_alone_is_a_folder(by: str, bucket: servers.Site) -> None:
    put(bucket, "alone", "b.jsonl", "a.jsonl", "deep/c.jsonl")
    assert (
        names("s3://alone") == names("s3://alone/") == ["s3://alone/a.jsonl", "s3://alone/b.jsonl"]
    )
    assert len(ps.read("s3://alone")) == 2
    with pytest.raises(ps.ConfigError, match="no object 's3://nothing'"):
        client = boto3.client("s3", endpoint_url=bucket.upstream)
        client.create_bucket(Bucket="nothing")
        find("s3://nothing")


@pytest.mark.parametrize("key", ["d//e.jsonl", "d/../f.jsonl", "d/./g.jsonl", "d/s/"])
def test_odd_keys_stop_no_listing(by: str, bucket: servers.Site, key: str) -> None:
    name = f"odd-{sum(key.encode())}"
    put(bucket, name, "d/x.jsonl", "e/y.jsonl", key)
    root = f"s3://{name}"
    assert names(f"{root}/d/*.jsonl") == names(f"{root}/d") == [f"{root}/d/x.jsonl"]
    odd = [f"{root}/{key}"] if "//" in key else []
    assert (
        names(f"{root}/**")
        == names(f"{root}/**/*.jsonl")
        == [*odd, f"{root}/d/x.jsonl", f"{root}/e/y.jsonl"]
    )


def test_what_only_writes_folders_is_no_file(by: str, bucket: servers.Site) -> None:
    put(bucket, "folders", "d/", "d/x.jsonl", "d/s/", "d/s/y.jsonl", "d/e/", "d/z")
    assert names("s3://folders/d/*") == ["s3://folders/d/x.jsonl", "s3://folders/d/z"]
    assert names("s3://folders/d") == ["s3://folders/d/x.jsonl"]
    assert names("s3://folders/**") == [
        f"s3://folders/d/{name}" for name in ("s/y.jsonl", "x.jsonl", "z")
    ]
    with pytest.raises(ps.ConfigError, match="matches no object"):
        find("s3://folders/*")


def test_a_glob_of_one_folder_lists_that_folder(by: str, bucket: servers.Site) -> None:
    put(bucket, "flat", "d/x.jsonl", *(f"d/{number}.jsonl/part" for number in range(9)))
    assert isinstance(storage.world.store, CompositeStore)
    for glob, lists in {
        "x*.jsonl": 1,
        "*.jsonl": 2,
    }.items():  # each of many folders would be asked for
        bucket.asked.clear()
        with storage.world.store.looking(None):
            assert names(f"s3://flat/d/{glob}") == ["s3://flat/d/x.jsonl"]
        asked = [path for _, path, _ in bucket.asked if "list-type" in path]
        assert ["delimiter=%2F" in path for path in asked] == [True, False][:lists]


def test_failures_of_a_bucket(by: str, bucket: servers.Site, clock: Clock) -> None:
    ds = ps.read("s3://bucket/web/*.jsonl")
    expected = [ds[i] for i in range(0, 600, 50)]
    faults = (
        [servers.status(503), servers.cut]
        if by == "fsspec"
        else [
            servers.status(503),
            servers.status(500),
            servers.status(429),
            servers.reset,
            servers.cut,
        ]
    )
    for fault in faults:
        storage.world.store.close()  # type: ignore[attr-defined]  # nothing is held that was read before
        bucket.faults = [fault, fault]
        assert [ds[i] for i in range(0, 600, 50)] == expected
        assert not bucket.faults
    storage.world.store.close()  # type: ignore[attr-defined]
    bucket.always = servers.status(403)
    with pytest.raises(StorageError, match="s3://bucket/web/0.jsonl: .*credentials") as caught:
        storage.world.store.read("s3://bucket/web/0.jsonl", 1, 10)
    assert "kanarie" not in str(caught.value)


def test_an_answer_of_a_bucket_that_stops_half_way_is_asked_for_again(
    by: str, bucket: servers.Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "TIMEOUT_SECONDS", 0.5)
    monkeypatch.setenv("PENSTOCK_STORE_SECONDS", "4")
    storage.world.store.close()  # type: ignore[attr-defined]  # clients keep their timeouts
    over = threading.Event()

    def stall(handler: servers.Handler) -> bool:
        code, body, headers = handler.asked_upstream()
        handler.send_response(code)
        for name, value in headers.items():
            handler.send_header(name, value)
        handler.end_headers()
        handler.wfile.write(body[: len(body) // 2])
        handler.wfile.flush()
        over.wait(60)
        handler.close_connection = True
        return True

    url = "s3://bucket/web/0.jsonl"
    ps.read(url)
    monkeypatch.setattr(seams.world, "sched", seams.LocalSched())
    try:
        expected = storage.world.store.read(url, 5, 40)
        storage.world.store.close()  # type: ignore[attr-defined]
        bucket.faults = [stall]
        start = time.monotonic()
        assert storage.world.store.read(url, 5, 40) == expected
        assert not bucket.faults
        bucket.always = stall
        with pytest.raises(StorageError, match=r"tried \d+ times within .*STORE_SECONDS=4"):
            storage.world.store.read(url, 5, 40)
        assert time.monotonic() - start < 20
    finally:
        over.set()
        storage.world.store.close()  # type: ignore[attr-defined]


def test_an_answer_of_a_bucket_without_an_end_is_not_taken(by: str, bucket: servers.Site) -> None:
    if by == "fsspec":
        pytest.skip("s3fs reads the whole answer")
    sent = 0

    def flood(handler: servers.Handler) -> bool:
        nonlocal sent
        code, body, headers = handler.asked_upstream()
        handler.send_response(code)
        for name, value in {**headers, "Content-Length": str(1 << 30)}.items():
            handler.send_header(name, value)
        handler.end_headers()
        handler.close_connection = True
        with contextlib.suppress(OSError):
            handler.wfile.write(body)
            for _ in range(1023):
                handler.wfile.write(bytes(1 << 20))
                sent += 1
        return True

    url = "s3://bucket/web/0.jsonl"
    ps.read(url)
    expected = storage.world.store.read(url, 5, 40)
    storage.world.store.close()  # type: ignore[attr-defined]
    bucket.faults = [flood]
    assert storage.world.store.read(url, 5, 40) == expected
    assert not bucket.faults and sent < 200  # MiB


def test_a_failing_bucket_is_given_up_in_time(
    by: str, bucket: servers.Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_STORE_SECONDS", "2")
    url = "s3://bucket/web/0.jsonl"
    ps.read(url)
    monkeypatch.setattr(seams.world, "sched", seams.LocalSched())
    bucket.always = servers.status(503)
    start = time.monotonic()
    with pytest.raises(StorageError, match=r"503 .*tried \d+ times within [0-2] s"):
        storage.world.store.read(url, 5, 40)
    assert time.monotonic() - start < 4


def test_a_bucket_that_changes(by: str, bucket: servers.Site) -> None:
    client = boto3.client("s3", endpoint_url=bucket.upstream)
    client.put_object(Bucket="bucket", Key="own/x.jsonl", Body=b'{"id": 1}\n' * 50)
    ds = ps.read("s3://bucket/own/x.jsonl")
    assert len(ds) == 50
    client.put_object(Bucket="bucket", Key="own/x.jsonl", Body=b'{"id": 2}\n' * 50)
    with pytest.raises(StorageError, match="s3://bucket/own/x.jsonl was changed"):
        list(ds)


def test_empty_names_of_folders_stay(by: str, bucket: servers.Site, tmp_path: Path) -> None:
    client = boto3.client("s3", endpoint_url=bucket.upstream)
    keys = ["deep/a/x.jsonl", "deep/a//x.jsonl", "deep/a///b/x.jsonl"]
    for number, key in enumerate(keys):
        client.put_object(
            Bucket="bucket", Key=key, Body=json.dumps({"id": number}).encode() + b"\n"
        )
    for number, key in enumerate(keys):
        assert list(ps.read(f"s3://bucket/{key}", cache=tmp_path)) == [{"id": number}]
    assert sorted(row["id"] for row in ps.read("s3://bucket/deep/**/*.jsonl", cache=tmp_path)) == [
        0,
        1,
        2,
    ]
    assert [row["id"] for row in ps.read("s3://bucket/deep/a//*.jsonl", cache=tmp_path)] == [1]


def test_numbers_in_names_and_times_are_no_status(by: str) -> None:
    if by != "obstore":
        pytest.skip("the texts of obstore")
    from obstore.exceptions import GenericError

    judge = obstore_client.ObstoreClient("s3://bucket")._to_store_error  # pyright: ignore[reportPrivateUsage]
    for told in (
        "HEAD http://x/part-404.jsonl in 415.615148ms",
        "GET http://x/step-403/a in 0.5s, 500 bytes",
    ):
        assert isinstance(
            judge(GenericError(f"Generic S3 error: Error performing {told} - HTTP error: reset")),
            RetryableError,
        )
    said = "Server returned non-2xx status code: 404 Not Found: <Code>NoSuchKey</Code>"
    assert isinstance(judge(GenericError(f"Generic S3 error: {said}")), NotFound)
