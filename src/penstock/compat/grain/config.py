"""Settings of Grain, which change nothing here."""

from __future__ import annotations

from typing import Any

from ...errors import ConfigError

_DEFAULTS: dict[str, Any] = {
    "py_debug_mode": False,
    "py_dataset_visualization_output_dir": None,
    "py_relay_sigterm_to_main": False,
    "py_traceback_filtering": "auto",
}


class Config:
    """Accept the settings of Grain's Python API; `print(ds)` and `Loader.metrics` replace them.

    >>> config.update("py_debug_mode", True)
    >>> config.py_debug_mode
    False
    """

    def update(self, name: str, value: Any) -> None:
        """Accept a setting without effect.

        Args:
            name: name of the setting.
            value: ignored.

        Raises:
            ConfigError: for an unknown name.
        """
        self.get_or_default(name)

    def get_or_default(self, name: str) -> Any:
        """Return the default of a setting.

        Args:
            name: name of the setting.

        Raises:
            ConfigError: for an unknown name.
        """
        if name not in _DEFAULTS:
            raise ConfigError(f"config.{name}: choose one of {sorted(_DEFAULTS)}")
        return _DEFAULTS[name]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self.get_or_default(name)


config = Config()
