"""The fixtures of the command line's tests."""

from __future__ import annotations

import pytest

from cli_world import mixture, penstock

__all__ = ["mixture", "penstock"]


@pytest.fixture(autouse=True)
def _in_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:  # pyright: ignore[reportUnusedFunction]
    """Remove the terminal width that the user may have set in the environment."""
    monkeypatch.delenv("COLUMNS", raising=False)
