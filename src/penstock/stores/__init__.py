"""Object stores: what URLs name, read as files of this machine are."""

from __future__ import annotations

from ..engine.base import seams
from .prefetch import Range, Reach
from .remote import Far, FarFile, at, beside, is_far, located, told
from .listings import home
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
