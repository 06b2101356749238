"""Penstock decides, reads, mixes, packs and delivers the data that models are trained on.

The order of training data is a pure function of position, not a side effect of iteration. Exact
resume, other numbers of ranks and workers, and the provenance of every step follow from it.

>>> import penstock as ps
>>> ds = ps.mix({"a": ps.from_sequence("aaaa"), "b": ps.from_sequence("bbbb")}, {"a": 3, "b": 1})
>>> "".join(ds.limit(8))
'baaaabaa'
"""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .dataset import Dataset
    from .engine.runtime.iterator import DatasetIterator
    from .errors import (
        ConfigError,
        DataError,
        IndexedError,
        PenstockError,
        Skip,
        StateError,
        StorageError,
    )
    from .inputs import (
        concat,
        from_iterable,
        from_sequence,
        from_tokens,
        interleave,
        mix,
        read,
        windows,
        zip,
    )
    from .integrations.evaluation import eval_loaders
    from .loader import Loader
    from .mixture_files import dump, load
    from .saves import restore, save
    from .schedule import Schedule
    from .text.ragged import jagged, pad
    from .tuning import autotune
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
    "eval_loaders",
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

# The module that defines each public name, imported at the first use of the name. So a command
# that prints its version, or a program that uses one function, imports nothing else.
_HOMES = {
    "dataset": ("Dataset",),
    "errors": (
        "ConfigError",
        "DataError",
        "IndexedError",
        "PenstockError",
        "Skip",
        "StateError",
        "StorageError",
    ),
    "inputs": tuple(
        "concat from_iterable from_sequence from_tokens interleave mix read windows zip".split()
    ),
    "integrations.evaluation": ("eval_loaders",),
    "loader": ("Loader",),
    "mixture_files": ("dump", "load"),
    "engine.runtime.iterator": ("DatasetIterator",),
    "saves": ("restore", "save"),
    "schedule": ("Schedule",),
    "text.ragged": ("jagged", "pad"),
    "tuning": ("autotune",),
    "writing": ("write",),
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Import a public name, or a module of the package, at its first use."""
    if name in _HOME:
        globals()[name] = value = getattr(import_module(f".{_HOME[name]}", __name__), name)
        return value
    if name.isidentifier() and not name.startswith("_") and find_spec(f"{__name__}.{name}"):
        return import_module(f".{name}", __name__)
    from .arguments import make_attribute_error

    raise make_attribute_error(__name__, name, __all__)


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
