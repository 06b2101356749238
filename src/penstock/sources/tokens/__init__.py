"""Token stores: documents concatenated in flat files, as several tools write them."""

from __future__ import annotations

from .file import TokenFile, lengths_of_files, open_tokens, require_same_dtype
from .forms import Ids
from .levanter import is_cache, open_cache
from .windows import Windows

__all__ = [
    "Ids",
    "TokenFile",
    "Windows",
    "is_cache",
    "lengths_of_files",
    "open_cache",
    "open_tokens",
    "require_same_dtype",
]
