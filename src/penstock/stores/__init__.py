"""Object stores: URLs opened for reading like local files.

May import `engine.base` and `errors`. Importing this package installs `Stores` as the store of the
process.
"""

from __future__ import annotations

from ..engine.base import seams
from .listings import default_cache
from .prefetch import Range, Reach
from .remote import (
    RemoteFile,
    RemotePath,
    display_path,
    is_remote,
    listed_location,
    parse_location,
    resolve_beside,
)
from .stores import Stores

__all__ = [
    "Range",
    "Reach",
    "RemoteFile",
    "RemotePath",
    "Stores",
    "default_cache",
    "display_path",
    "is_remote",
    "listed_location",
    "parse_location",
    "resolve_beside",
]

if not isinstance(seams.world.store, Stores):
    seams.world.store = Stores(seams.world.store)
