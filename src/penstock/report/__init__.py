"""What a mixture file's plan says, as rows, tables and pictures: for the command line and the
demo."""

from . import shares
from .remarks import Row
from .shares import rows
from .target import Target, opened

__all__ = ["Row", "Target", "opened", "rows", "shares"]
