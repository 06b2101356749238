"""An empty torchvision: mosaicml-streaming imports it for helpers that are not used here, and its
builds from the registry cannot load beside a CPU build of torch."""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

NAMES = (
    "torchvision",
    "torchvision.datasets",
    "torchvision.transforms",
    "torchvision.transforms.functional",
)


def no_torchvision() -> None:
    """Put the stand-in where the import will look first."""
    if "torchvision" in sys.modules:
        return
    found = {name: ModuleType(name) for name in NAMES}
    for name, module in found.items():
        module.__path__, module.__spec__ = [], ModuleSpec(name, None)
        parent, _, last = name.rpartition(".")
        if parent:
            setattr(found[parent], last, module)
    found[NAMES[1]].VisionDataset = object  # type: ignore[attr-defined]
    found[NAMES[3]].to_tensor = None  # type: ignore[attr-defined]
    sys.modules |= found
