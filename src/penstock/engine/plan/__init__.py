"""Questions about any step, answered without reading data.

`Plan` tells which samples a step holds, when a sample is seen, what was counted by then, and how
two plans differ. `audit` compares a plan with what was delivered. May import every folder of the
engine.
"""

from .audit import Audit
from .packing import PackedShares
from .plan import Plan
from .records import Difference, Exhaustion, Sample, Samples
from .seen import Seen

__all__ = ["Audit", "Difference", "Exhaustion", "PackedShares", "Plan", "Sample", "Samples", "Seen"]
