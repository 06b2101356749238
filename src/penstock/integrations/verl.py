"""verl: prompts in the order of a plan as `data.custom_cls`, and its sampler, which goes on pass
after pass.

verl finds both by name; see the page "Trainers". The classes are made when they are asked for, from
verl's own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, cast

from ..errors import ConfigError
from ..mixture_files import load


def __getattr__(name: str) -> Any:
    if name in ("Prompts", "Passes"):
        return _classes()[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


@cache
def _classes() -> Mapping[str, Any]:
    """Both classes; verl is imported here."""
    try:
        from verl.experimental.dataset.sampler import AbstractSampler  # pyright: ignore[reportMissingImports, reportUnknownVariableType]
        from verl.utils.dataset.rl_dataset import RLHFDataset  # pyright: ignore[reportMissingImports, reportUnknownVariableType]
    except ImportError:
        raise ImportError(
            "penstock.integrations.verl needs the package 'verl', which is installed with what "
            "trains"
        ) from None
    from .torch import MapDataset, Sampler

    prompts, sampler = cast("Any", RLHFDataset), cast("Any", AbstractSampler)

    class Rows:
        """What verl takes for its table: a row by its number, counted over all passes."""

        def __init__(self, data: MapDataset) -> None:
            self.data = data

        def __len__(self) -> int:
            return len(self.data)

        def __getitem__(self, item: int) -> dict[str, Any]:
            return dict(self.data[item])  # verl adds to it

    class Prompts(prompts):
        """`data.train_files` is one mixture file; its rows are what verl expects of a table's."""

        def _download(self, use_origin_parquet: bool = False) -> None:
            """Files are read where they lie."""

        def _read_files_and_tokenize(self) -> None:
            files = [str(file) for file in self.data_files]
            if len(files) != 1 or not files[0].endswith((".yaml", ".yml", ".json")):
                raise ConfigError(
                    f"data.train_files is one mixture file (.yaml), not {', '.join(files)}"
                )
            if self.filter_overlong_prompts:
                raise ConfigError(
                    "data.filter_overlong_prompts=True would leave out rows after the plan was "
                    "made: leave them out in the mixture file, with where or exclude, and say "
                    "False"
                )
            rows = load(files[0])
            if self.max_samples > 0:
                rows = rows.limit(self.max_samples)
            self.dataframe = Rows(MapDataset(rows, rank=0, world_size=1))

        def resume_dataset_state(self) -> None:
            """Nothing: where the run stands is the sampler's."""

    class Passes(sampler):
        """The prompts in their order, pass after pass; `StatefulDataLoader` saves where it
        stands."""

        def __init__(self, data_source: Any, data_config: Any) -> None:
            if not isinstance(data_source, Prompts):
                raise ConfigError(
                    "Passes goes with data.custom_cls Prompts of penstock.integrations.verl"
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
