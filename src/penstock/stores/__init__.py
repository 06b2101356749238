"""Object stores: URLs opened for reading like local files.

May import `engine.base` and `errors`. Importing this package installs `Stores` as the store of the
process.
"""

from __future__ import annotations

from ..engine.base import seams
from .listings import home
from .prefetch import Range, Reach
from .remote import RemoteFile, RemotePath, at, beside, display_path, is_remote, located
from .stores import Stores

__all__ = [
    "Range",
    "Reach",
    "RemoteFile",
    "RemotePath",
    "Stores",
    "at",
    "beside",
    "display_path",
    "home",
    "is_remote",
    "located",
]

if not isinstance(seams.world.store, Stores):
    seams.world.store = Stores(seams.world.store)
