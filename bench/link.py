"""A full shuffle of shards behind a slow link, ours and the peers': `python -m bench.link`.

The server is a process of its own that waits before each answer, as a far one would, and speaks as
much of S3 as the readers ask. Every reader goes once through all samples in a process of its own,
with a cache that is empty, and with as many bytes to fetch; rounds alternate. Ours reads MDS shards
with and without a cache on disk, shuffled within blocks, and one sample after the other, without
anything asked for ahead.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

WIDE = 40_000
KEYS = {
    "AWS_ACCESS_KEY_ID": "link",
    "AWS_SECRET_ACCESS_KEY": "link",
    "AWS_DEFAULT_REGION": "us-east-1",
}


def serve(folder: str, wait: float) -> None:
    """Files of a folder, whole or in part, each answer after so many seconds; writes the port that
    it listens on."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self, body: bool) -> None:
            time.sleep(wait)
            asked = urlsplit(self.path)
            path = Path(folder, unquote(asked.path).strip("/"))
            if "list-type" in (told := parse_qs(asked.query)):
                return self.listing(path, told.get("prefix", [""])[0])
            if not path.is_file():
                return self.said(404, b"")
            size, stat = path.stat().st_size, path.stat()
            part = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
            start, stop = (int(part[1]), min(int(part[2]) + 1, size)) if part else (0, size)
            more = {"Content-Range": f"bytes {start}-{stop - 1}/{size}"} if part else {}
            more |= {"ETag": f'"{stat.st_mtime_ns:x}-{size:x}"', "Accept-Ranges": "bytes"}
            more |= {"Last-Modified": formatdate(stat.st_mtime, usegmt=True)}
            with path.open("rb") as file:
                file.seek(start)
                self.said(
                    206 if part else 200,
                    file.read(stop - start) if body else b"",
                    stop - start,
                    more,
                )

        def listing(self, folder: Path, prefix: str) -> None:
            found = ""
            for path in sorted(each for each in folder.rglob("*") if each.is_file()):
                name, stat = str(path.relative_to(folder)), path.stat()
                if name.startswith(prefix):
                    at = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(stat.st_mtime))
                    etag = f'"{stat.st_mtime_ns:x}-{stat.st_size:x}"'
                    found += f"<Contents><Key>{name}</Key><LastModified>{at}</LastModified><ETag>{etag}</ETag>"
                    found += f"<Size>{stat.st_size}</Size></Contents>"
            about = f"<Name>{folder.name}</Name><Prefix>{prefix}</Prefix><IsTruncated>false</IsTruncated>"
            self.said(200, f"<ListBucketResult>{about}{found}</ListBucketResult>".encode())

        def said(
            self,
            status: int,
            body: bytes,
            length: int | None = None,
            more: dict[str, str] | None = None,
        ) -> None:
            self.send_response(status)
            for name, value in {
                "Content-Length": str(len(body) if length is None else length),
                **(more or {}),
            }.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def do_GET(self) -> None:
            self.answer(body=True)

        def do_HEAD(self) -> None:
            self.answer(body=False)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    print(server.server_port, flush=True)
    server.serve_forever()


# ---------------------------------------------------------------- the readers: seconds for so many
# samples


def row(number: int) -> dict[str, bytes]:
    """One of the rows of 40 kB."""
    return {"x": number.to_bytes(8, "little") * (WIDE // 8)}


def ours(samples: int, cache: str | None = None) -> tuple[int, float]:
    import penstock as ps

    ds = ps.read("s3://bucket/mds", cache=cache).shuffle(seed=1)
    began = time.perf_counter()
    return len([len(sample["x"]) for sample in islice(ds, samples)]), time.perf_counter() - began


def blocks(samples: int) -> tuple[int, float]:
    """Blocks of 200 rows in a random order, each shuffled in itself, and kept on disk: as LitData
    has its shards."""
    import penstock as ps

    ds = ps.read("s3://bucket/mds", cache="cache").shuffle(seed=1, block=(200, 1))
    began = time.perf_counter()
    return len([len(sample["x"]) for sample in islice(ds, samples)]), time.perf_counter() - began


def on_disk(samples: int) -> tuple[int, float]:
    return ours(samples, "cache")


def alone(samples: int) -> tuple[int, float]:
    import penstock as ps

    ds = ps.read("s3://bucket/mds").shuffle(seed=1)
    few, began = max(8, samples // 40), time.perf_counter()
    return len([len(ds[index]["x"]) for index in range(few)]), time.perf_counter() - began


def mosaicml(samples: int) -> tuple[int, float]:
    from .peers import mosaicml as peer

    ds: Any = peer.open_remote("s3://bucket/mds", "cache")
    began = time.perf_counter()
    return len([len(sample["x"]) for sample in islice(ds, samples)]), time.perf_counter() - began


def litdata(samples: int) -> tuple[int, float]:
    from .peers import litdata as peer

    ds: Any = peer.open_remote("s3://bucket/litdata", "cache", os.environ["AWS_ENDPOINT_URL"])
    began = time.perf_counter()
    return len([len(sample["x"]) for sample in islice(ds, samples)]), time.perf_counter() - began


READERS: dict[str, Callable[[int], tuple[int, float]]] = {
    each.__name__: each for each in (ours, on_disk, blocks, alone, mosaicml, litdata)
}


def written(folder: Path, rows: int, shard: int) -> None:
    """Write rows as MDS and as LitData, in shards of `shard` bytes."""
    from .peers import litdata, mosaicml

    mosaicml.write(str(folder / "mds"), map(row, range(rows)), shard)
    with contextlib.redirect_stdout(sys.stderr):
        litdata.write(str(folder / "litdata"), rows, row, shard)


def rate(reader: str, samples: int, port: int) -> float:
    """Samples a second of one reader, in a process of its own."""
    url = f"http://127.0.0.1:{port}"
    with tempfile.TemporaryDirectory() as home:
        env = {
            **os.environ,
            **KEYS,
            "HOME": home,
            "PENSTOCK_PROGRESS": "0",
            "AWS_ENDPOINT_URL": url,
        }
        env |= {"S3_ENDPOINT_URL": url, "PYTHONPATH": str(Path(__file__).parents[1])}
        env.pop("PENSTOCK_CACHE", None)
        code = f"import bench.link as link; print(*link.{reader}({samples}))"
        told = subprocess.run(
            [sys.executable, "-c", code], cwd=home, env=env, capture_output=True, text=True
        )
    try:
        count, seconds = told.stdout.split()[-2:]
        return int(count) / float(seconds)
    except (ValueError, IndexError):
        raise SystemExit(f"{reader}: {told.stdout[-500:]}{told.stderr[-3000:]}") from None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--wait", type=float, default=0.05, help="seconds before each answer")
    parser.add_argument("--samples", type=int, default=3_000)
    parser.add_argument("--shard", type=float, default=8, help="MiB of a shard")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--readers", default=",".join(READERS))
    given = parser.parse_args()
    readers, found = given.readers.split(","), dict[str, list[float]]()
    with tempfile.TemporaryDirectory() as scratch:
        written(Path(scratch, "bucket"), given.samples, int(given.shard * (1 << 20)))
        serving = f"from bench.link import serve; serve({scratch!r}, {given.wait})"
        server = subprocess.Popen(
            [sys.executable, "-c", serving], stdout=subprocess.PIPE, text=True
        )
        try:
            assert server.stdout is not None
            port = int(server.stdout.readline())
            for _ in range(given.rounds):
                for reader in readers:
                    found.setdefault(reader, []).append(rate(reader, given.samples, port))
        finally:
            server.terminate()
            server.wait()
    print(
        json.dumps({reader: round(statistics.median(rates), 1) for reader, rates in found.items()})
    )


if __name__ == "__main__":
    main()
