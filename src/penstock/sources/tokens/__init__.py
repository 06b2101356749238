"""Token stores: documents that lie end to end in flat files, as those who write them lay them
out."""

from __future__ import annotations

from .file import TokenFile, lengths_of_files, of_one_type, open_tokens
from .forms import Ids
from .levanter import is_cache, open_cache
from .windows import Windows

__all__ = [
    "Ids",
    "TokenFile",
    "Windows",
    "is_cache",
    "lengths_of_files",
    "of_one_type",
    "open_cache",
    "open_tokens",
]
