"""verl: prompts in plan order as `data.custom_cls`, and a sampler over passes.

verl finds both by name; see the page "Trainers". The classes derive from verl's own and are made on
first access.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, cast

from ..errors import ConfigError
from ..mixture_files import load


def __getattr__(name: str) -> Any:
    if name in ("Prompts", "Passes"):
        return _define_classes()[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


@cache
def _define_classes() -> Mapping[str, Any]:
    """Return both classes; imports verl."""
    try:
        from verl.experimental.dataset.sampler import AbstractSampler  # pyright: ignore[reportMissingImports, reportUnknownVariableType]
        from verl.utils.dataset.rl_dataset import RLHFDataset  # pyright: ignore[reportMissingImports, reportUnknownVariableType]
    except ImportError:
        raise ImportError(
            "penstock.integrations.verl needs the package 'verl': install it with your training "
            "stack"
        ) from None
    from .torch import MapDataset, Sampler

    prompts, sampler = cast("Any", RLHFDataset), cast("Any", AbstractSampler)

    class Rows:
        """Table for verl: a row by its number, counted over all passes."""

        def __init__(self, data: MapDataset) -> None:
            self.data = data

        def __len__(self) -> int:
            return len(self.data)

        def __getitem__(self, item: int) -> dict[str, Any]:
            return dict(self.data[item])  # verl adds keys to it

    class Prompts(prompts):
        """Rows of one mixture file (`data.train_files`), in the form of verl's tables."""

        def _download(self, use_origin_parquet: bool = False) -> None:
            """Do nothing: files are read in place."""

        def _read_files_and_tokenize(self) -> None:
            files = [str(file) for file in self.data_files]
            if len(files) != 1 or not files[0].endswith((".yaml", ".yml", ".json")):
                raise ConfigError(
                    f"data.train_files must be one mixture file (.yaml), not {', '.join(files)}"
                )
            if self.filter_overlong_prompts:
                raise ConfigError(
                    "data.filter_overlong_prompts=True would drop rows after the plan was made: "
                    "set it to False, and drop them in the mixture file with where or exclude"
                )
            rows = load(files[0])
            if self.max_samples > 0:
                rows = rows.limit(self.max_samples)
            self.dataframe = Rows(MapDataset(rows, rank=0, world_size=1))

        def resume_dataset_state(self) -> None:
            """Do nothing: the sampler stores the position of the run."""

    class Passes(sampler):
        """Yield the prompts in order, pass after pass; `StatefulDataLoader` saves its state."""

        def __init__(self, data_source: Any, data_config: Any) -> None:
            if not isinstance(data_source, Prompts):
                raise ConfigError(
                    "Passes needs data.custom_cls=Prompts of penstock.integrations.verl"
                )
            self._steps = Sampler(data_source.dataframe.data)

        def __iter__(self) -> Iterator[int]:
            return iter(self._steps)

        def __len__(self) -> int:
            return len(self._steps)

        def state_dict(self) -> dict[str, Any]:
            return self._steps.state_dict()

        def load_state_dict(self, state: Mapping[str, Any]) -> None:
            self._steps.load_state_dict(state)

    return {"Prompts": Prompts, "Passes": Passes}
