"""Sample descriptions of prepared folders: their `dataset.yaml`.

Only data is read. Classes are taken by name, nothing is imported, and code in such a folder is
never run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, cast

from ...errors import ConfigError, DataError
from ...sources import meta

_MODULES = ("megatron.energon", "penstock.compat.energon")


@dataclass(frozen=True)
class Form:
    """Content of `dataset.yaml`. Classes are plain names; `code` lists the code it refers to.

    `sample_type` is a name such as "CaptioningSample" or "CrudeSample"; `None` if the file names a
    class of another library. `options` are all other settings. `factory` and `foreign` are the
    factory and the sample type of another library, by name.
    """

    sample_type: str | None
    field_map: Mapping[str, str] | None
    subflavors: Mapping[str, Any]
    code: tuple[str, ...]
    options: Mapping[str, Any]
    location: str
    factory: str | None = None
    foreign: str | None = None

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of a factory: the field map or loader, the parts, and the labels."""
        named = {"field_map": self.field_map, "subflavors": self.subflavors or None, **self.options}
        return {
            name: value
            for name, value in named.items()
            if value is not None and name not in ("split_config", "subflavor")
        }

    @property
    def parts(self) -> list[str] | None:
        """The parts that `part_filter` lists; `None` for all."""
        named: Any = self.options.get("part_filter")
        return [str(part) for part in cast("list[Any]", named)] if isinstance(named, list) else None

    @cached_property
    def fields(self) -> Fields:
        """The mapping from decoded parts to fields; raises `ConfigError` if only code defines it."""
        if self.code:
            raise ConfigError(
                f"{self.location} refers to the code {', '.join(self.code)}, which is never run "
                "unless you allow it: pass your own function that makes a sample from its parts, "
                f"or allow=[{', '.join(map(repr, self.code))}]"
            )
        if self.field_map is None:
            raise ConfigError(
                f"{self.location} has no field_map: pass a function that makes a sample from its "
                "parts"
            )
        return Fields(self.field_map)


class Fields:
    """Map decoded parts of a sample to fields.

    `"jpg,png"` takes the first part that exists, `"json[a]"` a value in one. `parts` are the names
    of all parts that may be needed.

    >>> fields = Fields({"image": "jpg,png", "text": "json[lines][1]"})
    >>> fields({"__key__": "001", "png": "<image>", "json": {"lines": ["a", "b"]}})
    {'image': '<image>', 'text': 'b'}
    """

    def __init__(self, field_map: Mapping[str, str]) -> None:
        self._steps = {
            name: [_access(path) for path in paths.split(",")] for name, paths in field_map.items()
        }
        self._map = dict(field_map)
        self.parts = sorted({steps[0] for options in self._steps.values() for steps in options})

    def __call__(self, sample: Mapping[str, Any]) -> dict[str, Any]:
        return {name: self._value(sample, name, options) for name, options in self._steps.items()}

    def _value(self, sample: Mapping[str, Any], name: str, options: Sequence[Sequence[str]]) -> Any:
        location = str(sample.get("__key__", ""))
        for part, *steps in options:
            if steps and isinstance(sample.get(part), bytes):
                raise DataError(
                    f"the field {name!r} is a value in {part!r}, which is still bytes: decode the "
                    "parts first with penstock.media.Decode",
                    where=location,
                )
            try:
                value: Any = sample[part]
                for step in steps:
                    value = _item(value, step)
            except (KeyError, IndexError, ValueError, TypeError):
                continue
            return value
        has = ", ".join(part for part in sample if not part.startswith("__"))
        raise DataError(
            f"the field {name!r} maps to {self._map[name]!r}, which is not in this sample; its "
            f"parts are {has}",
            where=location,
        )


def load(folder: str | Path, dataset_config: str = "dataset.yaml") -> Form:
    """Read the description of samples in a prepared folder."""
    location = meta.config(Path(folder).expanduser(), dataset_config)
    settings = dict(meta.require_mapping(meta.read(location), location))
    code: Sequence[str] = (
        [str(settings["sample_loader"])] if settings.get("sample_loader") is not None else []
    )
    if settings.get("part_filter") is not None and not isinstance(settings["part_filter"], list):
        code = [*code, str(settings["part_filter"])]
    sample_type, foreign = _class(settings)
    factory, sample_class = next(iter(foreign), None), None
    named = settings.pop("sample_type", None)
    if named is not None:
        sample_type, more = _class(named)
        foreign += more
        sample_class = next(iter(more), None)
    elif sample_type is not None and sample_type.endswith("Webdataset"):
        sample_type = f"{sample_type.removesuffix('Webdataset')}Sample"  # the older spelling
    fields = settings.pop("field_map", None)
    if fields is not None:
        fields = {
            str(name): str(paths)
            for name, paths in meta.require_mapping(fields, location, "field_map").items()
        }
    subflavors = meta.require_mapping(
        settings.pop("subflavors", None) or {}, location, "subflavors"
    )
    options = {name: value for name, value in settings.items() if not name.startswith("__")}
    code = (*code, *foreign)
    return Form(
        sample_type, fields, subflavors, code, options, str(location), factory, sample_class
    )


def names_energon(module: str) -> bool:
    """Return whether a module that a file names is Energon, or this package in its place.

    >>> names_energon("megatron.energon.flavors"), names_energon("megatron.energonx")
    (True, False)
    """
    return any(f"{module}.".startswith(f"{name}.") for name in _MODULES)


def _item(value: Any, step: str) -> Any:
    return value[int(step) if isinstance(value, list) else step]


def _access(path: str) -> list[str]:
    """Split `json[a][b]` into its steps."""
    part, *rest = path.split("[")
    if not part or any(
        not step.endswith("]") or "]" in step[:-1] or len(step) < 2 for step in rest
    ):
        raise ConfigError(
            f"{path!r} is not a path to a part: write 'json', 'json[a]' or 'json[a][0]'"
        )
    return [part, *(step[:-1] for step in rest)]


def _class(setting: Any) -> tuple[str | None, tuple[str, ...]]:
    """Return the name of an Energon class, or else the foreign class that it would import."""
    if not isinstance(setting, Mapping):
        return (str(setting), ()) if isinstance(setting, str) else (None, ())
    module, name = (
        str(cast("Mapping[str, Any]", setting).get(key, "")) for key in ("__module__", "__class__")
    )
    if not name:
        return None, ()
    if names_energon(module):
        return name, ()
    return None, (f"{module}.{name}",)
