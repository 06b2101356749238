"""Questions about any step, answered without reading data.

`Plan` tells which samples a step holds, when a sample is seen, what was counted by then, and how
two plans differ. May import every folder of the engine. `penstock.plan` adds audits and
the states in folders.
"""

from .packing import MethodShares, PackedShares
from .plan import Plan
from .records import Difference, Exhaustion, Removal, Sample, Samples
from .seen import Seen

__all__ = [
    "Difference",
    "Exhaustion",
    "MethodShares",
    "PackedShares",
    "Plan",
    "Removal",
    "Sample",
    "Samples",
    "Seen",
]
