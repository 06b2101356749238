"""A full shuffle of lines on a web server behind a slow link, with read-ahead and without: `python -m bench.link`.

The server is a process of its own that waits before each answer, as a far one would. The order is the same in both:
what differs is whether the bytes of the samples to come are asked for before they are wanted. Rounds alternate.
"""

from __future__ import annotations

import argparse
import email.utils
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

ROWS, WIDE = 1_500, 40_000


def serve(folder: str, wait: float) -> None:
    """Files of a folder, whole or in part, each answer after so many seconds; writes the port that it listens on."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self, body: bool) -> None:
            time.sleep(wait)
            path = Path(folder, unquote(urlsplit(self.path).path).lstrip("/"))
            if not path.is_file():
                self.send_error(404)
                return
            size, stat = path.stat().st_size, path.stat()
            asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
            start, stop = (int(asked[1]), min(int(asked[2]) + 1, size)) if asked else (0, size)
            self.send_response(206 if asked else 200)
            self.send_header("Content-Length", str(stop - start))
            self.send_header("ETag", f'"{stat.st_mtime_ns:x}-{size:x}"')
            self.send_header("Accept-Ranges", "bytes")
            self.send_header("Last-Modified", email.utils.formatdate(stat.st_mtime, usegmt=True))
            if asked:
                self.send_header("Content-Range", f"bytes {start}-{stop - 1}/{size}")
            self.end_headers()
            if body:
                with path.open("rb") as file:
                    file.seek(start)
                    self.wfile.write(file.read(stop - start))

        def do_GET(self) -> None:
            self.answer(body=True)

        def do_HEAD(self) -> None:
            self.answer(body=False)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    print(server.server_port, flush=True)
    server.serve_forever()


def written(folder: Path) -> Path:
    """Rows of 40 kB."""
    path = folder / "rows.jsonl"
    with path.open("w") as file:
        for number in range(ROWS):
            file.write(json.dumps({"id": number, "text": chr(97 + number % 26) * WIDE}) + "\n")
    return path


def rates(url: str, home: Path, samples: int, rounds: int) -> tuple[list[float], list[float]]:
    """Samples a second with read-ahead and without, in alternating rounds; fewer without, as they take longer."""
    os.environ |= {"HOME": str(home), "PENSTOCK_PROGRESS": "0"}  # the index goes there; no block of data is kept
    os.environ.pop("PENSTOCK_CACHE", None)
    import penstock as ps

    ds = ps.read(url).shuffle(seed=1)
    alone = iter(range(len(ds)))
    ahead, single = list[float](), list[float]()
    for number in range(rounds):
        part = ds[number * samples : number * samples + samples]  # nothing of it is asked for before or after
        began = time.perf_counter()
        assert len(list(part)) == samples
        ahead.append(samples / (time.perf_counter() - began))
        few = max(8, samples // 10)
        began = time.perf_counter()
        for index in islice(alone, few):
            assert ds[len(ds) - 1 - index]["text"]
        single.append(few / (time.perf_counter() - began))
    return ahead, single


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--wait", type=float, default=0.05, help="seconds before each answer")
    parser.add_argument("--samples", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        written(Path(scratch))
        serving = f"from bench.link import serve; serve({scratch!r}, {given.wait})"
        server = subprocess.Popen([sys.executable, "-c", serving], stdout=subprocess.PIPE, text=True)
        try:
            assert server.stdout is not None
            url = f"http://127.0.0.1:{int(server.stdout.readline())}/rows.jsonl"
            ahead, single = rates(url, Path(scratch), given.samples, given.rounds)
        finally:
            server.terminate()
            server.wait()
    found = {"ahead": statistics.median(ahead), "one by one": statistics.median(single)}
    found["ratio"] = statistics.median(a / b for a, b in zip(ahead, single, strict=True))
    print(json.dumps({name: round(value, 1) for name, value in found.items()}))


if __name__ == "__main__":
    main()
