"""TRL over a plan: its own sampler and trainer take groups in the order of the plan, and go on there from a checkpoint."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import Any

import pytest

import penstock as ps

trl: Any = pytest.importorskip("trl")


def prompts() -> ps.Dataset:
    return ps.from_sequence([{"prompt": f"p{i}"} for i in range(40)], name="prompts").shuffle(
        seed=3
    )


def test_the_sampler_makes_the_groups_of_repeat_each() -> None:
    from trl.trainer.utils import RepeatSampler  # pyright: ignore[reportMissingImports]

    ds, groups = prompts(), prompts().repeat_each(4)
    sampler: Any = RepeatSampler(ds, mini_repeat_count=4, batch_size=8, shuffle=False)  # pyright: ignore[reportUnknownVariableType]
    assert [ds[i] for i in sampler] == [*groups]


def trained(folder: Path, steps: int, resume: bool) -> list[list[str]]:
    """The prompts of every step of a tiny model."""
    import datasets
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

    words = {f"p{i}": i for i in range(40)} | {"<eos>": 40, "<pad>": 41, "<unk>": 42}
    inner: Any = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    tokens = PreTrainedTokenizerFast(
        tokenizer_object=inner, eos_token="<eos>", pad_token="<pad>", unk_token="<unk>"
    )
    sizes: dict[str, Any] = {
        "vocab_size": 43,
        "n_positions": 32,
        "n_embd": 8,
        "n_layer": 1,
        "n_head": 1,
    }
    model = GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=40, eos_token_id=40, pad_token_id=41))
    seen = list[list[str]]()

    def reward(prompts: list[str], completions: list[str], **_: Any) -> list[float]:
        seen.append(prompts)
        return [float(len(text)) for text in completions]

    config: Any = trl.GRPOConfig(
        output_dir=str(folder), per_device_train_batch_size=8, num_generations=4, steps_per_generation=1,
        max_completion_length=4, max_steps=steps, save_steps=2, shuffle_dataset=False, use_cpu=True, bf16=False,
        report_to=[],
    )  # fmt: skip
    rows = datasets.Dataset.from_list([*prompts()])
    trainer: Any = trl.GRPOTrainer(
        model=model, reward_funcs=reward, args=config, train_dataset=rows, processing_class=tokens
    )
    trainer.train(resume_from_checkpoint=resume)
    return seen


@pytest.mark.filterwarnings("ignore")  # of the trainer about itself
def test_the_trainer_goes_on_with_the_next_groups(tmp_path: Path) -> None:
    due = [row["prompt"] for row in prompts().repeat_each(4)]
    assert [*chain(*trained(tmp_path, 2, False))] == due[:16]
    assert [*chain(*trained(tmp_path, 4, True))] == due[16:32]
