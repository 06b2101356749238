"""Reads damaged copies of a dataset, in a process of its own whose memory is limited: `python damage_copies.py JSON`.

Each file of it is cut at many lengths, and has a bit flipped at many places. What is then read must be the rows that
were written, or an error of ours that names the file or its folder; `noticed` tells whether other values will do.
Nothing that was kept of it is there. Writes out how many cases there were, and the first that were none of these.
"""

from __future__ import annotations

import faulthandler
import json
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent
MEMORY = 256 << 20
HANGS = 5.0


def assert_damage_is_noticed(
    folder: Path, path: Path, *, noticed: str, open_ended: bool, cases: int, threads: bool, options: Any
) -> None:
    """About so many `cases` of `folder`, which is read as `path`; none of them may give a wrong row unnoticed.

    With `threads` the reader has some of its own, each of which takes addresses, if not memory.
    """
    asked = json.dumps([str(folder), str(path), noticed, open_ended, cases, threads, dict(options)])
    found = {"PYTHONPATH": f"{ROOT.parent / 'src'}:{ROOT}", "PENSTOCK_PROGRESS": "0"}
    done = subprocess.run(
        [sys.executable, __file__, asked], env=os.environ | found, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stdout + done.stderr
    tried, wrong = json.loads(done.stdout)
    assert not wrong and tried, wrong


def _cases(data: bytes, cases: int) -> Iterator[tuple[str, bytes]]:
    for at in sorted({len(data) * number // cases for number in range(cases)}):
        yield f"cut at {at}", data[:at]
        yield f"bit {at % 8} of byte {at}", data[:at] + bytes([data[at] ^ 1 << at % 8]) + data[at + 1 :]


def _main(
    folder: Path, path: Path, noticed: str, open_ended: bool, cases: int, threads: bool, options: Any
) -> tuple[int, list[str]]:
    import numpy as np

    from penstock.errors import PenstockError
    from penstock.sources import open_files
    from penstock.testing.asserts import difference

    def rows() -> Any:
        shutil.rmtree(cache, ignore_errors=True)
        source = open_files(path, cache=cache, **options)
        return source.read(np.arange(min(len(source), 1_000)))

    cache = folder.with_name("cache")
    want, tried, wrong = rows(), 0, list[str]()
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    limit, before = used + MEMORY * (16 if threads else 1), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    files = sorted(one for one in folder.rglob("*") if one.is_file() and ".penstock-" not in one.name)
    for file in files:
        whole, stat = file.read_bytes(), file.stat()
        for what, body in _cases(whole, max(4, cases // len(files))) if whole else ():
            tried += 1
            file.write_bytes(body)
            os.utime(file, ns=(0, stat.st_mtime_ns + tried))  # writes of one tick of the clock have one time
            faulthandler.dump_traceback_later(HANGS, exit=True)
            try:
                found = difference(got := rows(), want)
                found = found and difference(got, want[: len(got)] if open_ended and what.startswith("cut") else want)
                if found and (noticed == "sums" or (noticed == "sizes" and len(got) != len(want))):
                    wrong.append(f"{file.name}, {what}: {found}")
            except PenstockError as error:
                if file.name not in str(error) and folder.name not in str(error):
                    wrong.append(f"{file.name}, {what}: names no file: {error}")
            except BaseException as error:
                wrong.append(f"{file.name}, {what}: {type(error).__name__}: {error}")
            faulthandler.cancel_dump_traceback_later()
        file.write_bytes(whole)
        os.utime(file, ns=(0, stat.st_mtime_ns))
    if (more := resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) > MEMORY >> 10:
        wrong.append(f"{more:,} KiB of memory")
    return tried, wrong[:5]


if __name__ == "__main__":
    _folder, _path, *_rest = json.loads(sys.argv[1])
    sys.stdout.write(json.dumps(_main(Path(_folder), Path(_path), *_rest)))
