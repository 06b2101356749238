"""Write constraints.txt, the versions that development and its checks install.

    python tools/lock.py [--upgrade]

Versions that are in the file stay, if pyproject.toml allows them; `--upgrade` takes the newest.
Needs the package `uv`, and uses the indexes that it is configured for; the file names none.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "constraints.txt"
HEADER = "# Versions of all packages of development, for pip. `make lock` writes this file.\n"
TORCH = "torch==2.13.0"
# What builds of torch for GPUs bring; torch itself pins them.
ACCELERATORS = re.compile(r"^(nvidia-|cuda-|triton==)")


def clean(text: str) -> str:
    """Return the lines of a lock without those of a GPU build of torch.

    >>> clean("numpy==2.4.1\\ntriton==3.7.1 ; sys_platform == 'linux'\\n")
    'numpy==2.4.1\\n'
    """
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return "".join(f"{line}\n" for line in lines if not ACCELERATORS.match(line))


def main(arguments: list[str]) -> None:
    """Run uv and write the file.

    Args:
        arguments: The command line: perhaps `--upgrade`.
    """
    with tempfile.TemporaryDirectory() as folder:
        pins, output = Path(folder, "pins.txt"), Path(folder, "constraints.txt")
        pins.write_text(f"{TORCH}\n", encoding="utf-8")
        if LOCK.exists():  # uv keeps the versions of its output
            output.write_text(LOCK.read_text(encoding="utf-8"), encoding="utf-8")
        command = ["uv", "pip", "compile", ROOT / "pyproject.toml", "--universal", "--no-header"]
        command += ["--no-annotate", "--no-emit-index-url", "--no-emit-find-links", "--quiet"]
        command += ["--python-version", "3.11", "--extra", "dev", "--extra", "publish"]
        command += ["--constraint", pins, "--output-file", output, *arguments]
        subprocess.run([sys.executable, "-m", *map(str, command)], check=True)
        text = clean(output.read_text(encoding="utf-8"))
    LOCK.write_text(HEADER + text, encoding="utf-8")
    print(f"{LOCK.name}: {text.count('==')} versions")


if __name__ == "__main__":
    main(sys.argv[1:])
