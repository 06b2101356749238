"""Build the distribution, and try it in new environments that know nothing of the repository.

    python tools/distribution.py build                  wheel and sdist in dist/, equal when built twice
    python tools/distribution.py wheel [3.12 3.13]      README, quickstart and demo with the wheel
    python tools/distribution.py extras [NAMES]         each extra alone, see tools/extra_checks.py
    python tools/distribution.py sbom                   dist/sbom.json, by the package cyclonedx-bom

`build` needs the packages `build` and `hatchling`. Environments are made below `build/` and
removed again. Only the index of pip is used.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import tomllib
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DIST = ROOT / "dist"
MOST_BYTES = 2_500_000
NEVER_SHIPPED = re.compile(
    r"(^|/)(tests?|docs|bench|\.git|__pycache__)/|\.(png|jpg|svg|ipynb|pyc)$"
)
# For developers, and sets of the other extras.
UNTESTED = {"bench", "dev", "publish", "test"}
# Installed together: the first has no use without the second.
WITH = {"plot": "cli,plot"}
TORCH = "torch==2.13.0"
NEED_TORCH = {"torch", "trainers", "torchtitan", "olmo"}
# Their errors appear only in a call of the trainer; the tests of the integrations check them.
NO_MISSING_CHECK = {"demo", "plot", "torchtitan", "olmo", "tensorflow"}


def run(
    *command: str | Path, folder: Path | None = None, variables: Mapping[str, str] | None = None
) -> str:
    """Run a command; return what it prints.

    Args:
        command: The program and its arguments.
        folder: The working folder.
        variables: Additions to the environment.

    Raises:
        RuntimeError: It failed; the message ends with its output.
    """
    # Variables of Python and of this environment would let the repository in.
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("PYTHON") and name != "VIRTUAL_ENV"
    }
    ended = subprocess.run(
        [str(part) for part in command],
        cwd=folder,
        env={**environment, **(variables or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if ended.returncode:
        text = "\n".join(ended.stdout.splitlines()[-25:])
        raise RuntimeError(f"{' '.join(str(part) for part in command)}\n{text}")
    return ended.stdout


def source_date() -> str:
    """Return the time of the last commit in seconds, which archives store for all files."""
    if stamp := os.environ.get("SOURCE_DATE_EPOCH"):
        return stamp
    return run("git", "log", "-1", "--format=%ct", folder=ROOT).strip()


def shipped_names(archive: Path) -> list[str]:
    """Return the names of the files in a wheel or an sdist."""
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as file:
            return file.namelist()
    with tarfile.open(archive) as file:
        return file.getnames()


def check_wheel(wheel: Path) -> None:
    """Raise `RuntimeError` if a wheel is large, or has or lacks files.

    Args:
        wheel: The file.
    """
    names = shipped_names(wheel)
    surplus = [name for name in names if NEVER_SHIPPED.search(name)]
    if surplus:
        raise RuntimeError(f"{wheel.name} has {', '.join(surplus[:5])}: leave it out")
    ends = ("penstock/py.typed", ".dist-info/licenses/LICENSE", "penstock/__init__.py")
    for end in ends:
        if not any(name.endswith(end) for name in names):
            raise RuntimeError(f"{wheel.name} has no {end}")
    if wheel.stat().st_size > MOST_BYTES:
        raise RuntimeError(f"{wheel.name} has {wheel.stat().st_size:,} bytes, above {MOST_BYTES:,}")


def build() -> None:
    """Build wheel and sdist twice, compare them byte by byte, and put them into dist/.

    Raises:
        RuntimeError: Two builds differ, or the wheel is not as it should be.
    """
    variables = {"SOURCE_DATE_EPOCH": source_date()}
    digests = list[dict[str, str]]()
    with tempfile.TemporaryDirectory() as temporary:
        for number in range(2):
            folder = Path(temporary, str(number))
            run(
                *(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT),
                variables=variables,
            )
            digests.append(
                {
                    path.name: hashlib.sha256(path.read_bytes()).hexdigest()
                    for path in sorted(folder.iterdir())
                }
            )
        if digests[0] != digests[1]:
            raise RuntimeError(f"two builds differ: {digests[0]} and {digests[1]}")
        (wheel,) = Path(temporary, "0").glob("*.whl")
        check_wheel(wheel)
        shutil.rmtree(DIST, ignore_errors=True)
        shutil.copytree(Path(temporary, "0"), DIST)
    for name, digest in digests[0].items():
        print(f"{digest}  {name}  {(DIST / name).stat().st_size:,} bytes, equal in two builds")


def find_wheel() -> Path:
    """Return the wheel in dist/.

    Raises:
        RuntimeError: There is not exactly one.
    """
    wheels = list(DIST.glob("*.whl"))
    if len(wheels) != 1:
        raise RuntimeError(f"{len(wheels)} wheels in dist/: run `make dist`")
    return wheels[0]


def find_python(version: str) -> str | None:
    """Return an interpreter of a version such as "3.12", on the path or under pyenv; else `None`.

    Args:
        version: The first two numbers.
    """
    pyenv = Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser() / "versions"
    candidates = [
        shutil.which(f"python{version}"),
        *map(str, sorted(pyenv.glob(f"{version}.*/bin/python"), reverse=True)),
    ]
    code = f"import sys; sys.exit('%d.%d' % sys.version_info[:2] != {version!r})"
    for path in candidates:
        # A shim of pyenv is on the path and fails, unless its version is chosen.
        if path and subprocess.run([path, "-c", code], capture_output=True).returncode == 0:
            return path
    return None


@contextmanager
def environment(python: str, *requirements: str) -> Iterator[Path]:
    """Make an environment with packages in a temporary folder; yield the folder of its programs.

    Args:
        python: The interpreter.
        requirements: What pip installs, one call each.
    """
    (ROOT / "build").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=ROOT / "build", prefix="env-") as folder:
        run(python, "-m", "venv", folder)
        programs = Path(folder, "bin")
        for requirement in requirements:
            run(
                *(programs / "python", "-m", "pip", "install", "--quiet", "--no-compile"),
                *("--disable-pip-version-check", requirement),
            )
        yield programs


def run_wheel(versions: Sequence[str]) -> None:
    """Run the README, the quickstart and the demo with the wheel, and print how long each took.

    Args:
        versions: Versions of Python; those that are not installed are named and left out.
    """
    wheel = find_wheel()
    for version in versions:
        python = find_python(version)
        if python is None:
            print(f"{version}: not installed here, not run")
            continue
        steps = (
            ("core", "README.md", ""),
            ("cli", "docs/quickstart.md", "[cli]"),
            ("demo", "", "[demo]"),
        )
        for name, page, extra in steps:
            started = time.monotonic()
            with environment(python, f"{wheel}{extra}") as programs:
                installed = time.monotonic()
                with tempfile.TemporaryDirectory() as temporary:
                    # docs_page.py looks for the repository beside itself.
                    folder = Path(temporary)
                    for file in ("tests/docs_page.py", "README.md", "docs/quickstart.md"):
                        (folder / file).parent.mkdir(exist_ok=True)
                        shutil.copy(ROOT / file, folder / file)
                    if page:
                        arguments = [programs / "python", folder / "tests/docs_page.py"]
                        run(*arguments, folder / page, folder=folder)
                        result = f"{page} runs"
                    else:
                        output = run(programs / "penstock", "demo", folder=folder)
                        result = next(row for row in output.splitlines() if "steps equal" in row)
            took, ran = installed - started, time.monotonic() - installed
            print(
                f"{version} {name:5} install {took:5.1f} s, run {ran:5.1f} s: {result}", flush=True
            )


def run_extras(names: Sequence[str]) -> None:
    """Install each extra alone and check it; first check the errors of a core without extras.

    Args:
        names: The extras; all if empty.

    Raises:
        SystemExit: Some failed.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = [name for name in project["optional-dependencies"] if name not in UNTESTED]
    wheel, checks = find_wheel(), ROOT / "tools" / "extra_checks.py"
    failed = list[str]()
    unknown = set(names) - set(extras)
    if unknown:
        raise SystemExit(f"no such extra: {', '.join(sorted(unknown))}")
    names = names or extras

    def check(name: str, *arguments: str | Path) -> None:
        started = time.monotonic()
        try:
            text = run(*arguments).strip().splitlines()[-1]
        except RuntimeError as error:
            failed.append(name)
            text = f"{name}: FAILED\n{error}"
        print(f"{text}  ({time.monotonic() - started:.0f} s)", flush=True)

    print("without extras:")
    with environment(sys.executable, str(wheel)) as programs:
        for name in names:
            if name not in NO_MISSING_CHECK:
                check(name, programs / "python", checks, "--missing", name)
    print("each alone:")
    for name in names:
        first = [TORCH] if name in NEED_TORCH else []
        try:
            with environment(
                sys.executable, *first, f"{wheel}[{WITH.get(name, name)}]"
            ) as programs:
                check(name, programs / "python", checks, name)
        except RuntimeError as error:
            failed.append(name)
            print(f"{name}: cannot be installed\n{error}", flush=True)
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")


def write_bill() -> None:
    """Write dist/sbom.json: what the wheel with its command line installs, as CycloneDX."""
    programs = Path(sys.executable).parent
    with environment(sys.executable, f"{find_wheel()}[cli]") as installed:
        run(installed / "python", "-m", "pip", "uninstall", "--quiet", "--yes", "pip", "setuptools")
        output = DIST / "sbom.json"
        run(
            *(programs / "cyclonedx-py", "environment", "--output-reproducible"),
            *("--output-format", "JSON", "--output-file", output, installed / "python"),
        )
    components = json.loads(output.read_text(encoding="utf-8"))["components"]
    names = sorted(component["name"] for component in components)
    print(f"dist/sbom.json: {len(names)} packages: {', '.join(names)}")


def main(arguments: Sequence[str]) -> None:
    """Run the command.

    Args:
        arguments: The command line, without the program.
    """
    command, names = (arguments[0] if arguments else ""), list(arguments[1:])
    if command == "build":
        build()
    elif command == "wheel":
        run_wheel(names or [f"{sys.version_info.major}.{sys.version_info.minor}"])
    elif command == "sbom":
        write_bill()
    elif command == "extras":
        run_extras(names)
    else:
        raise SystemExit(__doc__)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except RuntimeError as error:
        raise SystemExit(f"error: {error}") from None
