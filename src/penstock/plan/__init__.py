"""The plan of a dataset: what any step holds, when a sample is seen, what has been seen by then. Nothing is read."""

from .packing import PackedShares
from .plan import Plan
from .records import Difference, Exhaustion, Sample, Samples

__all__ = ["Difference", "Exhaustion", "PackedShares", "Plan", "Sample", "Samples"]
