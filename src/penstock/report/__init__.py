"""Reports of a mixture file's plan: rows, tables and pictures, for the CLI and the demo.

Numbers come from the plan; nothing here computes an order. May import everything but `demo` and
`cli`.
"""

from . import shares
from .remarks import Row
from .shares import rows
from .target import Target, open_target

__all__ = ["Row", "Target", "open_target", "rows", "shares"]
