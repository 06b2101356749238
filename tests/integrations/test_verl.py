"""verl's plug-in points, over small stand-ins for the two classes of its that are built on: prompts come as planned."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import penstock as ps

torch: Any = pytest.importorskip("torch")
stateful: Any = pytest.importorskip("torchdata.stateful_dataloader")


@pytest.fixture
def verl(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The module, with stand-ins for verl's own: what they call of a dataset and in which order is verl's."""

    class RLHFDataset(torch.utils.data.Dataset):
        def __init__(
            self,
            data_files: Any,
            tokenizer: Any,
            config: Any,
            processor: Any = None,
            max_samples: int = -1,
        ):
            self.data_files = data_files if isinstance(data_files, list) else [data_files]
            self.max_samples, self.prompt_key = max_samples, "prompt"
            self.filter_overlong_prompts = config.get("filter_overlong_prompts", True)
            self._download()
            self._read_files_and_tokenize()

        def __len__(self) -> int:
            return len(self.dataframe)

        def __getitem__(self, item: int) -> dict[str, Any]:
            row = self.dataframe[item]
            row["raw_prompt"] = row[self.prompt_key]
            return row

    names = (
        "verl",
        "verl.experimental",
        "verl.experimental.dataset",
        "verl.utils",
        "verl.utils.dataset",
    )
    for name in names:
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    sampler: Any = ModuleType("verl.experimental.dataset.sampler")
    sampler.AbstractSampler = type("AbstractSampler", (torch.utils.data.Sampler,), {})
    dataset: Any = ModuleType("verl.utils.dataset.rl_dataset")
    dataset.RLHFDataset = RLHFDataset
    monkeypatch.setitem(sys.modules, sampler.__name__, sampler)
    monkeypatch.setitem(sys.modules, dataset.__name__, dataset)
    from penstock.integrations import verl as module

    module._define_classes.cache_clear()
    yield module
    module._define_classes.cache_clear()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    for name, rows in (("math", 30), ("code", 10)):
        lines = [
            json.dumps({"prompt": [{"role": "user", "content": f"{name} {i}"}]})
            for i in range(rows)
        ]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    path = tmp_path / "prompts.yaml"
    path.write_text(
        "sources: {math: {path: math.jsonl, weight: 3}, code: {path: code.jsonl, weight: 1}}\n"
    )
    return path


def loader(verl: Any, file: Path) -> Any:
    """As `RayPPOTrainer` makes it."""
    prompts = verl.Prompts(str(file), None, {"filter_overlong_prompts": False})
    sampler = verl.Passes(data_source=prompts, data_config={})
    return stateful.StatefulDataLoader(
        prompts, batch_size=4, num_workers=0, drop_last=True, collate_fn=list, sampler=sampler
    )


def texts(batch: list[dict[str, Any]]) -> list[str]:
    return [row["raw_prompt"][0]["content"] for row in batch]


@pytest.mark.filterwarnings("ignore:'set_vital'")  # torchdata's
def test_prompts_come_as_planned_and_go_on_in_another_process(verl: Any, file: Path) -> None:
    file.write_text(file.read_text() + "horizon: {samples: 40}\n")
    planned = ps.load(file)
    wanted = [
        [row["prompt"][0]["content"] for row in planned[at : at + 4]] for at in range(0, 40, 4)
    ]
    first = loader(verl, file)
    whole = [texts(batch) for _ in range(2) for batch in first]
    assert whole[:10] == wanted and len(whole) == 20
    begun = loader(verl, file)
    for _, _ in zip(range(7), begun, strict=False):
        pass
    state = begun.state_dict()
    again = loader(verl, file)
    again.load_state_dict(state)
    assert [texts(batch) for _ in range(2) for batch in again] == whole[7:]
    some = verl.Prompts([str(file)], None, {"filter_overlong_prompts": False}, max_samples=8)
    assert len(some) == 8 and texts([some[0]]) == whole[0][:1]


def test_what_does_not_fit_is_refused(verl: Any, file: Path) -> None:
    with pytest.raises(ps.ConfigError, match="one mixture file"):
        verl.Prompts("train.parquet", None, {"filter_overlong_prompts": False})
    with pytest.raises(ps.ConfigError, match="filter_overlong_prompts=True would drop rows"):
        verl.Prompts(str(file), None, {})
    with pytest.raises(ps.ConfigError, match="needs data.custom_cls=Prompts"):
        verl.Passes([1, 2], {})
    with pytest.raises(AttributeError, match="no attribute 'Other'"):
        _ = verl.Other


def test_without_verl_its_name_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    from penstock.integrations import verl as module

    module._define_classes.cache_clear()
    monkeypatch.setitem(sys.modules, "verl", None)
    with pytest.raises(ImportError, match="verl"):
        _ = module.Prompts
