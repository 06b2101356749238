"""Flows that should go on and give nothing: noted where that is found out, refused where no lane gives anything."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..errors import DataError


@dataclass
class Barren:
    """What gave no sample in a whole pass of a lane's share, by name and lane: it ends there. Where all of the `lanes`
    of a rank say so, or a run that never ends would end, that is an error.
    """

    lanes: int
    endless: bool
    found: dict[str, set[int]] = field(default_factory=dict[str, set[int]])

    def note(self, name: str, lane: int) -> None:
        """A lane found nothing."""
        self.found.setdefault(name, set()).add(lane)
        if len(self.found[name]) == self.lanes:
            raise DataError("a whole pass gave no sample, so it cannot be repeated", where=name)

    def check(self, given: bool) -> None:
        """Refuse the end of a run that had more to give, or gave nothing."""
        if self.found and (self.endless or not given):
            names = ", ".join(sorted(self.found)[:5])
            raise DataError("a whole pass gave no sample, so it cannot be repeated", where=names)
