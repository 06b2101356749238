"""Object stores: URLs opened for reading like local files.

May import `engine.base` and `errors`. Importing this package installs `CompositeStore` as the store of the
process.
"""

from __future__ import annotations

from . import storage
from .listings import get_default_cache
from .prefetch import ByteRange
from .remote import (
    RemoteFile,
    RemotePath,
    display_path,
    is_remote,
    parse_listed_name,
    parse_location,
    resolve_beside,
)
from .stores import CompositeStore

__all__ = [
    "ByteRange",
    "CompositeStore",
    "RemoteFile",
    "RemotePath",
    "display_path",
    "get_default_cache",
    "is_remote",
    "parse_listed_name",
    "parse_location",
    "resolve_beside",
]

if not isinstance(storage.world.store, CompositeStore):
    storage.world.store = CompositeStore(storage.world.store)
