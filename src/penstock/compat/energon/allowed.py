"""Code and pickles of a data folder, which run only if the caller allows them by name."""

from __future__ import annotations

import importlib
import importlib.util
import io
import pickle
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from ...errors import ConfigError, DataError
from ...sources import meta
from ...stores.urls import require_local

PICKLES = ("pth", "pickle", "pkl", "pyd")
"""Extensions of members that are pickles."""


def require_allowed(name: str, allow: Collection[str], where: str) -> None:
    """Raise unless the caller allows code or pickles of a data folder by name.

    Args:
        name: name of the code, or extension of the pickles.
        allow: names that the caller allows.
        where: the place of the name, for the message.

    Raises:
        ConfigError: if the name is not allowed.
    """
    if name not in allow:
        raise ConfigError(
            f"{where} needs {name!r}, which can run any code: if you trust its author, pass "
            f"allow=[{', '.join(map(repr, sorted({*allow, name})))}]"
        )


def load_code(name: str, allow: Collection[str], folder: Path | None, where: str) -> Any:
    """Return a function or class that a data folder names.

    Args:
        name: `file.py:function` beside the description, or `package.module.Class`.
        allow: names that the caller allows.
        folder: the prepared folder, for `file.py:function`.
        where: the place of the name, for messages.

    Raises:
        ConfigError: if the name is not allowed, or if there is no such code.
    """
    require_allowed(name, allow, where)
    file, colon, attribute = name.rpartition(":")
    if colon and file.endswith(".py") and folder is not None:
        path = meta.config(require_local(folder), file)
        spec = importlib.util.spec_from_file_location(f"penstock_allowed_{path.stem}", path)
        if spec is None or spec.loader is None or not path.is_file():
            raise ConfigError(f"{where}: there is no file {path}")
        module: Any = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    else:
        module_name = file if colon else name.rpartition(".")[0]
        attribute = attribute if colon else name.rpartition(".")[2]
        try:
            module = importlib.import_module(module_name)
        except ImportError as error:
            raise ConfigError(f"{where}: {name} cannot be imported: {error}") from error
    value: Callable[..., Any] | None = getattr(module, attribute, None)
    if value is None:
        raise ConfigError(f"{where}: there is no {attribute!r} in {module.__name__}")
    return value


def unpickle(data: bytes, extension: str, allow: Collection[str], where: str) -> Any:
    """Load a member that is a pickle.

    Args:
        data: its bytes.
        extension: one of `PICKLES`.
        allow: extensions that the caller allows.
        where: name of the member, for messages.

    Raises:
        ConfigError: if the extension is not allowed.
        DataError: if the bytes are no such pickle.
    """
    require_allowed(extension, allow, f"the part {where}")
    try:
        if extension == "pth":
            torch: Any = importlib.import_module("torch")
            return torch.load(io.BytesIO(data), map_location="cpu", weights_only=False)
        return pickle.loads(data)
    except Exception as error:  # a pickle raises any type
        raise DataError(f"the part cannot be unpickled: {error}", where=where) from error
