"""Penstock decides, reads, mixes, packs and delivers the data that models are trained on.

The order of training data is a pure function of position, not a side effect of iterating: resuming exactly, changing
the number of ranks and workers, and asking what a step held all follow from it.

>>> import penstock as ps
>>> ds = ps.mix({"a": ps.from_sequence("aaaa"), "b": ps.from_sequence("bbbb")}, {"a": 3, "b": 1})
>>> "".join(ds.limit(8))
'baaaabaa'
"""

from typing import TYPE_CHECKING, Any

from .base.hints import unknown
from .base.ragged import jagged, pad
from .dataset import Dataset
from .errors import ConfigError, DataError, IndexedError, PenstockError, Skip, StateError, StorageError
from .inputs import concat, from_iterable, from_sequence, from_tokens, interleave, mix, read, windows, zip
from .loader import Loader
from .runtime.iterator import DatasetIterator
from .runtime.saves import restore, save
from .schedule import Schedule
from .tuning import autotune

if TYPE_CHECKING:
    from .mixture_files import dump, load
    from .writing import write

__version__ = "0.1.0"

__all__ = [
    "ConfigError",
    "DataError",
    "Dataset",
    "DatasetIterator",
    "IndexedError",
    "Loader",
    "PenstockError",
    "Schedule",
    "Skip",
    "StateError",
    "StorageError",
    "autotune",
    "concat",
    "dump",
    "from_iterable",
    "from_sequence",
    "from_tokens",
    "interleave",
    "jagged",
    "load",
    "mix",
    "pad",
    "read",
    "restore",
    "save",
    "windows",
    "write",
    "zip",
]


def __getattr__(name: str) -> Any:
    """Mixture files and writing are imported when first used: most runs need neither, and the import stays light."""
    if name in ("dump", "load"):
        from . import mixture_files

        return getattr(mixture_files, name)
    if name == "write":
        from .writing import write

        return write
    raise unknown(__name__, name, __all__)
