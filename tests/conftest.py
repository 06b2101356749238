"""Hypothesis profiles and the seed of a run; fixtures that every test uses.

Property tests take 25 examples (`default`), 100 in `make soak` (`soak`) and 4 for a quick look (`glance`). The seed is
derived from the commit, so every commit tries other examples and a failure repeats. The summary prints the seed.
"""

from __future__ import annotations

import gc
import hashlib
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from example_counts import done
from leak_check import no_leaks

__all__ = ["no_leaks"]

ROOT = Path(__file__).resolve().parent.parent

settings.register_profile(
    "default",
    deadline=None,
    derandomize=False,
    database=None,  # examples of earlier runs would depend on the machine
    print_blob=True,
    max_examples=25,
    stateful_step_count=25,
    suppress_health_check=[
        HealthCheck.too_slow,
        HealthCheck.data_too_large,
        HealthCheck.filter_too_much,
    ],
)
settings.register_profile("glance", settings.get_profile("default"), max_examples=4)
settings.register_profile(
    "soak", settings.get_profile("default"), max_examples=100, stateful_step_count=60
)
settings.load_profile("default")


def commit() -> str:
    """The commit of this checkout, or the version of the package where there is no git."""
    try:
        git = subprocess.run(
            ["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
        )
        if git.returncode == 0:
            return git.stdout.strip()
    except OSError:
        pass
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"][
        "version"
    ]


def seed_of(commit: str) -> int:
    """The seed of the property tests of a commit."""
    return int.from_bytes(hashlib.sha256(commit.encode()).digest()[:4])


@pytest.hookimpl(tryfirst=True)  # before the plugin of Hypothesis reads its options
def pytest_configure(config: pytest.Config) -> None:
    if config.option.hypothesis_seed is None:
        config.option.hypothesis_seed = str(seed_of(commit()))


@pytest.fixture(scope="session", autouse=True)
def own_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Give each run of the tests a new user cache, as the next run may reuse file names."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(tmp_path_factory.mktemp("home")))
        patch.setenv(
            "RAY_worker_niceness", "0"
        )  # at Ray's own 15, actors stand still beside whatever else is busy
        yield


def pytest_collection_finish() -> None:
    """Exempt imported objects from garbage collection, which runs often during tests."""
    gc.collect()
    gc.freeze()


def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workeroutput"):  # one of several processes
        session.config.workeroutput["done"] = dict(done)  # pyright: ignore[reportAttributeAccessIssue]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    done.update(getattr(node, "workeroutput", {}).get("done", {}))


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    if done:
        terminalreporter.write_line(
            "done at random: " + ", ".join(f"{n:,} {what}" for what, n in sorted(done.items()))
        )
    seed = config.option.hypothesis_seed
    terminalreporter.write_line(
        f"seed of the property tests: {seed}; repeat with --hypothesis-seed={seed}"
    )
