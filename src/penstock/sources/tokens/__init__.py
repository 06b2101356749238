"""Token stores: documents concatenated in flat files, as several tools write them."""

from __future__ import annotations

from .file import TokenFile, open_tokens, read_file_lengths, require_same_dtype
from .forms import TokenIdOptions, list_companions
from .levanter import is_cache, open_cache
from .windows import Windows

__all__ = [
    "TokenFile",
    "TokenIdOptions",
    "Windows",
    "is_cache",
    "list_companions",
    "open_cache",
    "open_tokens",
    "read_file_lengths",
    "require_same_dtype",
]
