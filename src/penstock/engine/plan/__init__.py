"""The plan of a dataset: what any step holds, when a sample is seen, what has been seen by then.
Nothing is read."""

from .audit import Audit
from .packing import PackedShares
from .plan import Plan
from .records import Difference, Exhaustion, Sample, Samples
from .seen import Seen

__all__ = ["Audit", "Difference", "Exhaustion", "PackedShares", "Plan", "Sample", "Samples", "Seen"]
