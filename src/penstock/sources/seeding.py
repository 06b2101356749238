"""Random generators with known seeds, so that reading a row draws the same numbers everywhere."""

from __future__ import annotations

import contextlib
import copy
import random
import sys
import threading
from collections.abc import Generator
from typing import Any, cast

import numpy as np

_seeding_lock = threading.RLock()


@contextlib.contextmanager
def seed_globals(seed: int) -> Generator[None]:
    """Seed the global generators for a block, and restore them afterwards.

    It seeds `random`, `np.random` and, if torch is loaded, its CPU generator. One thread at a time
    runs such a block. The seed is 0 to 2**32 - 1.
    """
    torch: Any = sys.modules.get("torch")
    with _seeding_lock:
        saved = random.getstate(), np.random.get_state(), torch.get_rng_state() if torch else None
        try:
            random.seed(seed)
            np.random.seed(seed)
            if torch:
                torch.default_generator.manual_seed(seed)
            yield
        finally:
            random.setstate(saved[0])
            np.random.set_state(saved[1])
            if torch:
                torch.set_rng_state(saved[2])


def create_like_generator(original: object) -> Any:
    """Return a new random generator of the same type with seed 0, or None for other objects.

    Types are `random.Random`, NumPy's generators, and torch's for the CPU.
    """
    torch: Any = sys.modules.get("torch")
    if torch and isinstance(original, torch.Generator) and cast(Any, original).device.type == "cpu":
        return torch.Generator().manual_seed(0)
    if not isinstance(original, random.Random | np.random.Generator | np.random.RandomState):
        return None
    try:
        generator: Any = copy.deepcopy(original)
        if isinstance(generator, np.random.Generator):
            generator.bit_generator.state = type(generator.bit_generator)(0).state
        else:
            generator.seed(0)
    except Exception:  # a user's subclass that accepts no seed
        return None
    return generator
