"""Keys that files of trainers share: length of a run, batches, transformers' arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ...mixture_files import Batching, SourceEntry, Splitting
from .account import Reasons, Section

Horizon = tuple[str, float] | None
NO_RANKS = (
    "it counts samples per rank, but the file has no number of ranks: set --ranks (ranks=) to the "
    "number of ranks that read their own samples"
)
NO_TOKENIZER = "rows are read as stored: no key names a tokenizer"
SHARED_RANKS = "ranks that work on the same samples count once in --ranks"
MAY_STOP = "the run may end before its horizon"
OTHER_RUN = "the position of another run is not carried over: resume from a Penstock state"
RANK_SHARING = (
    "it shards batches across ranks: the loader gives every rank the same number of samples"
)


def per_rank(size: int | None, part: Section, key: str, **options: Any) -> Batching | None:
    """Return a batch of each rank, with gradient accumulation.

    The caller gives the number of ranks.
    """
    accumulation = part.count("gradient_accumulation_steps") or 1
    return per_rank_batch(size * accumulation if size else None, part, key, **options)


def per_rank_batch(size: int | None, part: Section, key: str, **options: Any) -> Batching | None:
    """Return a batch of each rank; without a number of ranks the key is reported."""
    if not size:
        return None
    ranks = part.account.ranks
    if ranks is None:
        part.report(key, NO_RANKS) if part.has(key) else part.account.report(
            part.node, part.key_path, f"{key}: {NO_RANKS}"
        )
    return Batching(size, ranks=ranks or 1, **options)


def shared(size: int | None, part: Section, key: str, **options: Any) -> Batching | None:
    """Return a batch of all ranks together, divided by their number if the caller gives one."""
    if not size:
        return None
    ranks = part.account.ranks
    if ranks is None:
        return Batching(size, over_ranks=True, **options)
    if size % ranks:
        part.report(key, f"a batch of {size} is not divisible by {ranks} ranks")
        return None
    return Batching(size // ranks, ranks=ranks, **options)


def count_or_default(part: Section, key: str, default: int, library: str) -> int:
    """Return a count, or the library's default with a note."""
    if not part.has(key):
        part.account.note(
            part.node, part.key_path, f"{key} is missing: the default of {library} is {default}"
        )
    return part.count(key) or default


def length(
    part: Section, epochs: str, default: float, steps: str = "max_steps"
) -> tuple[Horizon, float | None]:
    """Return the horizon if the file sets steps, else the number of passes over all data."""
    count = part.integer(steps)
    if count is not None and count > 0:
        part.pass_over(epochs)
        return ("steps", count), None
    passes = part.number(epochs)
    if passes == 0:
        part.report(epochs, "a run of 0 passes trains on no data")
        passes = None
    return None, default if passes is None else passes


def put_together(
    sources: Sequence[SourceEntry], passes: float | None
) -> tuple[tuple[SourceEntry, ...], dict[str, Any]]:
    """Combine datasets, each sample once per pass, and return sources and mixture options.

    With `passes` the run ends after exactly that number; without, at its horizon.
    """
    if passes == 1:
        return tuple(sources), {"temperature": 1, "stop": "all_exhausted"}
    if passes is None:
        return tuple(sources), {"temperature": 1}
    return tuple(replace(source, epochs=passes, max_epochs=passes) for source in sources), {}


def hold_out(
    part: Section, key: str, sources: Sequence[SourceEntry], tool: str
) -> tuple[list[SourceEntry], Splitting | None]:
    """Return the sources and the split for the samples that a trainer holds out: a share or a number.

    A number counts samples of all datasets together, so these become one source, if they can.

    Args:
        part: the settings.
        key: the key of the share or number.
        sources: the datasets that the trainer combines.
        tool: the name of the trainer, for notes.
    """
    size = part.number(key)
    if not size:
        return [*sources], None
    if any(source.split is not None for source in sources):
        part.report(key, "a dataset that is read in part has no other split")
        return [*sources], None
    if size < 1 or len(sources) == 1:
        amount = "this share" if size < 1 else "this number"
        part.note(key, f"{amount} of every source is held out by hash; {tool} draws other samples")
        return [*sources], Splitting(size if size < 1 else int(size))
    if (joined := _join(sources)) is None:
        part.report(
            key,
            "this number of samples of the combined datasets is held out: give each source its split",
        )
        return [*sources], None
    part.note(
        key,
        f"the datasets are one source here, and this number of its rows is held out by hash; {tool} draws other "
        "samples",
    )
    return [joined], Splitting(int(size))


def _join(sources: Sequence[SourceEntry]) -> SourceEntry | None:
    """Return datasets as one source; `None` if they differ, or may have different columns."""
    first = sources[0]
    if first.columns is None:
        return None
    paths = tuple(path for source in sources for path in source.path)
    alike = all(replace(source, name=first.name, path=first.path) == first for source in sources)
    return replace(first, path=paths) if alike else None


def seed_of(part: Section, default: int | None = 42) -> int | None:
    """Return the seed of the order of samples: `data_seed`, else `seed`.

    Beside `data_seed`, `seed` only seeds the model.
    """
    if part.has("data_seed"):
        part.pass_over("seed")
        return part.integer("data_seed", default)
    return part.integer("seed", default)


def settle_ranks(part: Section, keys: Sequence[str]) -> None:
    """Account for ranks that share samples: a loss, unless the caller gives the number of ranks."""
    record = {SHARED_RANKS: keys}
    usual = dict.fromkeys(keys, 1)
    if part.account.ranks is None:
        part.settle(reported=record, usual=usual)
    else:
        part.settle(noted=record, usual=usual)


def settle_accelerator(part: Section) -> None:
    """Account for `accelerator_config`, which may share batches among ranks in other ways."""
    if not isinstance(part.peek("accelerator_config"), dict):
        part.report("accelerator_config", RANK_SHARING)
    elif (inside := part.part("accelerator_config")) is not None:
        keys = ("split_batches", "dispatch_batches", "even_batches")
        inside.settle(
            ("gradient_accumulation_kwargs", "use_seedable_sampler", "non_blocking"),
            {RANK_SHARING: keys},
            usual={"even_batches": True},
        )


_EXP_MANAGER = frozenset(
    "name version exp_dir explicit_log_dir use_datetime_version create_wandb_logger "
    "wandb_logger_kwargs create_tensorboard_logger summary_writer_kwargs "
    "create_mlflow_logger mlflow_logger_kwargs create_clearml_logger "
    "clearml_logger_kwargs create_dllogger_logger dllogger_logger_kwargs "
    "create_checkpoint_callback checkpoint_callback_params files_to_copy log_step_timing "
    "step_timing_kwargs log_local_rank_0_only log_global_rank_0_only model_parallel_size "
    "resume_ignore_no_checkpoint".split()
)


def settle_exp_manager(part: Section) -> None:
    """Account for NeMo's `exp_manager`, which may end a run or resume another one."""
    if (
        isinstance(part.peek("exp_manager"), dict)
        and (inside := part.part("exp_manager")) is not None
    ):
        reported: Reasons = {
            MAY_STOP: (
                "create_early_stopping_callback",
                "early_stopping_callback_params",
                "max_time_per_run",
            ),
            OTHER_RUN: ("resume_if_exists", "resume_past_end", "resume_from_checkpoint"),
        }
        inside.settle(_EXP_MANAGER, reported)


_DEEPSPEED = frozenset(
    "zero_optimization optimizer scheduler fp16 bf16 amp gradient_clipping "
    "prescale_gradients communication_data_type gradient_predivide_factor "
    "sparse_gradients activation_checkpointing flops_profiler steps_per_print "
    "wall_clock_breakdown dump_state comms_logger tensorboard wandb csv_monitor aio "
    "zero_allow_untested_optimizer zero_force_ds_cpu_optimizer fp32_allreduce "
    "disable_allgather seq_parallel_communication_data_type checkpoint data_types compile "
    "torch_autocast".split()
)


def settle_deepspeed(part: Section) -> None:
    """Account for inline DeepSpeed settings: its batches, and its sampling of data."""
    if isinstance(part.peek("deepspeed"), dict) and (inside := part.part("deepspeed")) is not None:
        reported: Reasons = {
            "the trainer's settings decide the batches here": (
                "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps",
            ),
            "it samples the data, or "
            "changes batches": ("data_efficiency", "curriculum_learning", "autotuning"),
        }  # fmt: skip
        inside.settle(
            _DEEPSPEED,
            reported,
            usual=dict.fromkeys((key for keys in reported.values() for key in keys), "auto"),
        )


LIKE_LENGTHS = "samples are grouped by length, which has no counterpart in a mixture file"
TRANSFORMERS_REPORTED: Reasons = {
    LIKE_LENGTHS: ("group_by_length", "length_column_name"),
    "another sampler orders the samples": ("train_sampling_strategy",),
    "without a fixed order, batches arrive as workers finish": ("dataloader_in_order",),
    RANK_SHARING: ("split_batches", "dispatch_batches", "even_batches"),
    SHARED_RANKS: ("parallelism_config",),
    "the batch shrinks if memory runs out": ("auto_find_batch_size",),
    OTHER_RUN: ("resume_from_checkpoint", "ignore_data_skip"),
    "training is disabled": ("do_train",),
}
TRANSFORMERS_NOTED: Reasons = {"the newest revision of the tokenizer is read": ("model_revision",)}
TRANSFORMERS_USUAL: Mapping[str, Any] = {
    "do_train": True,
    "dataloader_in_order": True,
    "model_revision": "main",
}
"""Values without effect; false by default."""
WORKERS = (
    "dataloader_num_workers", "dataloader_prefetch_factor", "dataloader_persistent_workers", "dataloader_pin_memory",
    "dataloader_multiprocessing_context",
)  # fmt: skip
"""Harmless if rows are read by index; with a stream, each worker reads its own part."""
TRANSFORMERS_HARMLESS = frozenset(
    # optimiser and computation
    "learning_rate lr_scheduler_type lr_scheduler_kwargs warmup_steps warmup_ratio optim "
    "optim_args weight_decay adam_beta1 adam_beta2 adam_epsilon optim_target_modules "
    "max_grad_norm label_smoothing_factor bf16 fp16 tf32 bf16_full_eval fp16_full_eval "
    "half_precision_backend fp16_opt_level fp16_backend activation_checkpointing "
    "activation_checkpointing_kwargs gradient_checkpointing gradient_checkpointing_kwargs "
    "torch_compile torch_compile_backend torch_compile_mode torchdynamo use_liger_kernel "
    "liger_kernel_config use_cache neftune_noise_alpha torch_empty_cache_steps "
    "average_tokens_across_devices full_determinism use_cpu no_cuda use_mps_device use_ipex "
    "jit_mode_eval adafactor sharded_ddp "
    # logs, checkpoints, uploads
    "output_dir overwrite_output_dir logging_strategy logging_steps logging_first_step "
    "logging_dir log_on_each_node logging_nan_inf_filter include_num_input_tokens_seen "
    "include_tokens_per_second log_level log_level_replica disable_tqdm report_to run_name "
    "project trackio_space_id trackio_bucket_id trackio_static_space_id save_only_model "
    "save_strategy save_steps save_on_each_node save_total_limit save_safetensors "
    "enable_jit_checkpoint push_to_hub push_to_hub_model_id push_to_hub_token "
    "push_to_hub_organization hub_token hub_private_repo hub_model_id hub_model_revision "
    "hub_strategy hub_always_push hub_revision restore_callback_states_from_checkpoint debug "
    "skip_memory_metrics "
    # evaluation
    "do_eval do_predict eval_strategy evaluation_strategy eval_steps eval_delay "
    "per_device_eval_batch_size prediction_loss_only eval_on_start eval_do_concat_batches "
    "eval_use_gather_object eval_accumulation_steps include_for_metrics "
    "include_inputs_for_metrics batch_eval_metrics load_best_model_at_end metric_for_best_model "
    "greater_is_better predict_with_generate generation_max_length generation_num_beams "
    "generation_config "
    # processes
    "ddp_find_unused_parameters ddp_bucket_cap_mb ddp_broadcast_buffers ddp_static_graph "
    "ddp_backend ddp_timeout fsdp fsdp_config fsdp_transformer_layer_cls_to_wrap deepspeed "
    "local_rank "
    # the model, and its columns
    "remove_unused_columns label_names model_name_or_path model_revision "
    "trust_remote_code torch_dtype dtype attn_implementation use_flash_attention_2 "
    "low_cpu_mem_usage cache_dir".split()
)
