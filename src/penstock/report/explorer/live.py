"""History of a running job, from its stats file."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeAlias

from penstock.errors import ConfigError, PenstockError
from penstock.explore.run_stats import RankStats, StatsFollower

from .values import make_printable

_MAX_POINTS = 300  # of a curve

Json: TypeAlias = dict[str, Any]


class LiveStats:
    """Follows the stats file that `ps.Loader(stats=...)` writes.

    Args:
        path: The file, or a folder that holds it; it need not exist yet.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._follower: StatsFollower | None = None

    def read(self) -> Json:
        """Return a summary of the job, and its history on each rank.

        Returns:
            `summary` (as `penstock top --json`) and `history`; or `waiting`, the reason why there
            is nothing to show yet.
        """
        try:
            if self._follower is None:
                self._follower = StatsFollower(self._path)
            stats = self._follower.poll()
        except (ConfigError, PenstockError) as error:
            return {"waiting": make_printable(str(error))}
        if not stats.ranks:
            return {"waiting": f"{self._path} holds no records yet"}
        summary = stats.summary()
        summary["warnings"] = [make_printable(str(text)) for text in summary.get("warnings", ())]
        rank = stats.ranks.get(0) or next(iter(stats.ranks.values()))
        return {"summary": summary, "history": _list_history(rank), "starts": _list_starts(rank)}


def _list_history(rank: RankStats) -> list[Json]:
    records = rank.records
    spacing = -(-len(records) // _MAX_POINTS) or 1
    chosen = records[::-spacing][::-1]
    return [
        {
            "time": record["time"],
            "step": record["step"],
            "session": record["session"],
            "samples_per_s": record.get("samples_per_s"),
            "tokens_per_s": record.get("tokens_per_s"),
            "waited": record.get("waited"),
            "resident": sum(
                size
                for size in dict(record.get("resident_bytes") or {}).values()
                if isinstance(size, int)
            ),
        }
        for record in chosen
    ]


def _list_starts(rank: RankStats) -> list[Json]:
    """Return the starts of loaders: the second and later ones follow a kill or a resume."""
    return [{"time": start.get("time"), "pid": start.get("pid")} for start in rank.starts[-50:]]
