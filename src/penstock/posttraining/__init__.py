"""Items that a trainer finishes out of order: `Loader.lease`, `settle` and `compensate`.

- `leases`: leases items of a run, and reads them again after a resume.
- `in_flight`: the items that are not settled, as a section of the state.
- `compensation`: replaces lost items in `mix(count="settled")`.

The engine knows none of this. A session has two hooks: `section` adds a section to the state, and
`begin_items`, `reopen_items` and `reopen_lane` deliver whole items, also again.
"""

from .in_flight import InFlight, Settlement
from .leases import LeasedItem, Leases

__all__ = ["InFlight", "LeasedItem", "Leases", "Settlement"]
