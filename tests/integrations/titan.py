"""torchtitan's own Trainer on a CPU, over its smallest Llama; what it takes from CUDA is stubbed here.

Stubbed: the name and the memory of the device, FlexAttention (no backward pass on a CPU), and the shorter timeout after
the first step. The data loader, its checkpoints by DCP, the process groups and the training loop are torchtitan's.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from importlib import import_module
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch

import penstock as ps
from penstock.integrations.torchtitan import ProcessInfo, data_loader

if TYPE_CHECKING:
    from .training import Run

ROW = 16


def nothing(*args: Any, **kwargs: Any) -> None:
    """In the place of what a CPU does not have."""


def on_cpu() -> None:
    stubs = {
        "get_device_name": lambda *args: "cpu",
        "get_device_properties": lambda *args: SimpleNamespace(total_memory=1),
        "memory_stats": lambda *args: {},
        "reset_peak_memory_stats": nothing,
        "empty_cache": nothing,
    }
    for name, stub in stubs.items():
        setattr(torch.cpu, name, stub)
    setattr(import_module("torch._utils"), "_get_available_device_type", lambda: "cpu")  # noqa: B010

    from torchtitan.distributed import utils  # pyright: ignore[reportMissingImports]
    from torchtitan.models.common.attention import FlexAttention  # pyright: ignore[reportMissingImports]

    def attention(q: Any, k: Any, v: Any, enable_gqa: bool = False, **kwargs: Any) -> Any:
        return torch.nn.functional.scaled_dot_product_attention(
            q, k, v, is_causal=True, enable_gqa=enable_gqa
        ), None

    FlexAttention._compiled_flex_attn = staticmethod(attention)
    utils.set_pg_timeouts = nothing


def pair(batch: Any) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    tokens = torch.as_tensor(batch["tokens"])
    return {
        "input": tokens[:, :-1],
        "positions": torch.arange(ROW).expand(len(tokens), -1),
    }, tokens[:, 1:]


def loader(packed: Any, place: ProcessInfo) -> ps.Loader:
    batches = packed(place.seq_len + 1).batch(place.batch_size).map(pair)
    return ps.Loader(batches, rank=place.rank, world_size=place.world_size, lanes=12)


def train(run: Run, packed: Any, told: Any, batches: int) -> None:
    """Train by torchtitan.

    Args:
        run: what to do.
        packed: makes the dataset of rows of so many tokens.
        told: takes note of what was trained, and of the loss.
        batches: how many to train.
    """
    on_cpu()
    from torchtitan.components.tokenizer import BaseTokenizer  # pyright: ignore[reportMissingImports]
    from torchtitan.models.llama3.config_registry import llama3_debugmodel  # pyright: ignore[reportMissingImports]
    from torchtitan.trainer import Trainer  # pyright: ignore[reportMissingImports]

    class Tokenizer(BaseTokenizer):
        @dataclass(kw_only=True, slots=True)
        class Config(BaseTokenizer.Config):
            pass

        def __init__(self, config: Any, **kwargs: Any) -> None:
            self.eos_id = 0

        encode = decode = get_vocab_size = nothing

    class Watched(Trainer):
        def forward_backward_step(
            self, *, input_dict: Any, labels: Any, global_valid_tokens: Any
        ) -> Any:
            loss = super().forward_backward_step(
                input_dict=input_dict, labels=labels, global_valid_tokens=global_valid_tokens
            )
            told(
                torch.cat([input_dict["input"], labels[:, -1:]], 1), loss * run.world
            )  # a rank's share of the mean
            return loss

    config = llama3_debugmodel()
    config.dataloader, config.tokenizer = data_loader(partial(loader, packed)), Tokenizer.Config()
    config.dump_folder, config.validator.enable, config.checkpoint.enable = run.folder, False, True
    config.checkpoint.interval, config.checkpoint.last_save_model_only = run.every, False
    config.checkpoint.initial_load_path, config.checkpoint.initial_load_model_only = (
        run.begin or None,
        False,
    )
    training = config.training
    training.steps, training.seq_len, training.disable_cuda_graphs = batches // run.step, ROW, True
    training.local_batch_size, training.global_batch_size = 8 // run.world, 8 * run.step
    training.mixed_precision_param = "float32"
    config.parallelism.spmd_backend = "partial_dtensor"
    trainer = Watched(config=config)
    trainer.train()
    trainer.close()
