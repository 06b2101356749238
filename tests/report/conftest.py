"""The fixtures of the command line's tests."""

from __future__ import annotations

from cli_world import mixture, penstock

__all__ = ["mixture", "penstock"]
