"""Install packages with pip, and show in one line what it does.

    python tools/install.py PYTHON ARGUMENTS...      as `PYTHON -m pip install ARGUMENTS...`

If pip fails, its last lines follow. Versions are those of `constraints.txt`, unless an argument
begins with `--no-lock`.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections import deque
from pathlib import Path

LOCK = Path(__file__).resolve().parent.parent / "constraints.txt"
SHOWN_LINES = 30
SECONDS_BETWEEN_LINES = 10.0  # where the output is a file


def describe(line: str) -> str | None:
    """Return what a line of pip says about its progress; `None` for other lines.

    >>> describe("Collecting numpy>=2.0 (from penstock-data==0.1.0)")
    'collecting numpy'
    >>> describe("  Downloading numpy-2.4.1-cp311-cp311-manylinux.whl (16.9 MB)")
    'downloading numpy-2.4.1-cp311-cp311-manylinux.whl (16.9 MB)'
    >>> describe("Installing collected packages: numpy, pyarrow")
    'installing 2 packages'
    >>> describe("Looking in indexes: here")
    """
    word, _, rest = line.strip().partition(" ")
    if word == "Collecting":
        return f"collecting {rest.split()[0].split('>')[0].split('=')[0].split('<')[0]}"
    if word in ("Downloading", "Processing", "Building"):
        return f"{word.lower()} {rest.rpartition('/')[2] if word == 'Processing' else rest}"
    if word == "Installing" and rest.startswith("collected packages:"):
        return f"installing {rest.count(',') + 1} packages"
    return None


def main(arguments: list[str]) -> int:
    """Run pip and show its progress.

    Args:
        arguments: The interpreter, then the arguments of `pip install`.

    Returns:
        The exit status of pip.
    """
    python, *rest = arguments
    is_locked = "--no-lock" not in rest
    rest = [argument for argument in rest if argument != "--no-lock"]
    command = [python, "-m", "pip", "install", "--no-compile", "--disable-pip-version-check"]
    command += ["--progress-bar", "off", "--no-input", *rest]
    command += ["--constraint", str(LOCK)] if is_locked else []
    title = " ".join(word for word in rest if not word.startswith("-"))
    if len(title) > 40:
        title = f"{title[:37]}..."
    print(f"pip install {title}", flush=True)
    started = shown = time.monotonic()
    tail, packages, is_terminal = deque[str](maxlen=SHOWN_LINES), 0, sys.stdout.isatty()
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            tail.append(line)
            message = describe(line)
            if message is None:
                continue
            packages += message.startswith("collecting")
            now = time.monotonic()
            is_last = message.startswith("installing")
            if is_terminal or is_last or now - shown > SECONDS_BETWEEN_LINES:
                text = f"  {now - started:4.0f} s, {packages} packages: {message}"
                # Erase the line and write it again.
                print(f"\r\x1b[K{text[:79]}" if is_terminal else text, end="", flush=True)
                print("" if is_terminal else "\n", end="", flush=True)
                shown = now
    if is_terminal:
        print("\r\x1b[K", end="")
    if process.returncode:
        print("".join(tail), end="")
        print(f"pip failed after {time.monotonic() - started:.0f} s: see above")
    else:
        print(f"  {time.monotonic() - started:4.0f} s, done", flush=True)
    return process.returncode


if __name__ == "__main__":
    if len(sys.argv) < 3:
        raise SystemExit(__doc__)
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
