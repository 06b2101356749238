"""Hypothesis profiles (`ci` for every run, `dev` and `glance` for a quick look, `nightly` for the many seeds of `make soak`) and the meter.

`ci` is derandomized, so that a failure repeats. Tests say with `amounts.examples` how many examples they take at `ci`.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from amounts import done
from meter import meter

__all__ = ["meter"]

settings.register_profile(
    "ci",
    deadline=None,
    derandomize=True,
    print_blob=True,
    max_examples=100,
    stateful_step_count=25,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)
settings.register_profile("dev", settings.get_profile("ci"), derandomize=False, max_examples=20)
settings.register_profile("glance", settings.get_profile("dev"), max_examples=4)
settings.register_profile("nightly", settings.get_profile("ci"), derandomize=False, stateful_step_count=60)
settings.load_profile("ci")


@pytest.fixture(scope="session", autouse=True)
def own_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What is kept in the cache of a user is kept for one run of the tests: the next may have other files of a name."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(tmp_path_factory.mktemp("home")))
        patch.setenv("RAY_worker_niceness", "0")  # at Ray's own 15, actors stand still beside whatever else is busy
        yield


@pytest.fixture(scope="module")
def one_lane() -> Iterator[None]:
    """Flows in lanes have one by default, so that items come in the order of the stream itself."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("penstock.runtime.opened.LANES", 1)
        yield


def pytest_collection_finish() -> None:
    """What was imported stays: no collection of garbage looks at it again, of which tests and the interpreter do many."""
    gc.collect()
    gc.freeze()


def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workeroutput"):  # one of several processes
        session.config.workeroutput["done"] = dict(done)  # pyright: ignore[reportAttributeAccessIssue]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    done.update(getattr(node, "workeroutput", {}).get("done", {}))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if done:
        terminalreporter.write_line("done at random: " + ", ".join(f"{n:,} {what}" for what, n in sorted(done.items())))
