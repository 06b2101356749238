"""Object stores: URLs opened for reading like local files.

May import `engine.base` and `errors`. Importing this package installs `Stores` as the store of the
process.
"""

from __future__ import annotations

from ..engine.base import seams
from .listings import home
from .prefetch import Range, Reach
from .remote import Far, FarFile, at, beside, is_far, located, told
from .stores import Stores

__all__ = [
    "Far",
    "FarFile",
    "Range",
    "Reach",
    "Stores",
    "at",
    "beside",
    "home",
    "is_far",
    "located",
    "told",
]

if not isinstance(seams.world.store, Stores):
    seams.world.store = Stores(seams.world.store)
