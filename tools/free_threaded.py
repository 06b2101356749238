"""The tests of the threads executor on a free-threaded Python, in a venv of its own; skipped with a
reason without one.

    python tools/free_threaded.py [PYTHON]

An interpreter that is named must be one; else python3.13t, python3.14t and python3.15t are looked
for, on the path and under pyenv.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
TESTS = [
    "tests/engine/runtime/executors/test_threads.py",
    "tests/engine/runtime/executors/test_closing.py",
    "tests/engine/streams",
]
LOCK = "import sys; sys.exit(getattr(sys, '_is_gil_enabled', lambda: True)())"
THREADS = """
import sys, time, penstock as ps
assert not sys._is_gil_enabled(), "what was imported turned the lock on again"
def work(x):
    return sum(i * i for i in range(20_000 + x % 7))
ds = ps.from_sequence(range(600)).shuffle(seed=1).map(work).batch(8)
took = {}
for workers in (0, 2):
    with ps.Loader(ds, workers=workers) as loader:
        began = time.perf_counter()
        took[workers] = [batch.tolist() for batch in loader], time.perf_counter() - began
assert took[0][0] == took[2][0], "another stream"
print(f"2 threads are {took[0][1] / took[2][1]:.2f} times as fast as none, and give the same stream")
"""


def found(named: list[str]) -> str | None:
    """An interpreter that runs without its lock."""
    pyenv = Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser() / "versions"
    names = [f"python3.{minor}t" for minor in (13, 14, 15)]
    places = named or [
        *filter(None, map(shutil.which, names)),
        *map(str, pyenv.glob("3.*t*/bin/python")),
    ]
    return next((one for one in places if subprocess.run([one, "-c", LOCK]).returncode == 0), None)


def main() -> None:
    python = found(sys.argv[1:])
    if python is None:
        said = (
            f"{sys.argv[1]} holds the interpreter lock"
            if sys.argv[1:]
            else "no free-threaded Python is found here"
        )
        print(f"skipped: {said} (python3.13t, say; FREE=PATH names one)")
        raise SystemExit(bool(sys.argv[1:]))
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([python, "-m", "venv", folder], check=True)
        own = f"{folder}/bin/python"
        wanted = [f"{ROOT}[processes]", "pytest", "hypothesis"]
        subprocess.run(
            [own, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *wanted],
            check=True,
        )
        subprocess.run([own, "-c", THREADS], check=True)
        subprocess.run(
            [own, "-m", "pytest", "-q", "-p", "no:cacheprovider", *TESTS], check=True, cwd=ROOT
        )


if __name__ == "__main__":
    main()
