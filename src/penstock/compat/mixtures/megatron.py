"""Megatron-LM, GPT-NeoX and NeMo: lists of indexed token files and weights, in a training file."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from ...mixture_files import MixtureFile, SourceEntry, Splitting
from ...mixture_files.reading import MixtureNode
from .account import EVALUATION, Account, Reasons, Section, nothing
from .locations import Names, name_of_path
from .settings import CHECKPOINTS, MODEL, OPTIMIZER, TRACKING
from .trainers import OTHER_RUN, SHARED_RANKS, per_rank_batch, settle_exp_manager, shared

_LISTS = ("train_data_path", "train_data_paths", "data_path", "data_prefix", "blend")
_LENGTHS = ("seq_length", "encoder_seq_length", "max_position_embeddings")
_STEPS = ("train_iters", "max_steps")
_OF_ALL = ("global_batch_size", "train_batch_size")
_OF_EACH = ("train_micro_batch_size_per_gpu", "micro_batch_size")
_TIMES = ("gradient_accumulation_steps", "gas")
_REPORTED: Reasons = {
    "labels and rewards beside the tokens have no counterpart": (
        "train_label_data_paths", "train_reward_data_paths", "pos_train_data_paths", "neg_train_data_paths",
        "pos_train_label_data_paths", "neg_train_label_data_paths",
    ),
    "weights are a power of the sizes: "
    "set temperature": ("weight_by_num_documents", "weighted_sampler_alpha"),
    "documents are concatenated and split without gaps here": (
        "pack_impl", "allow_chopped", "dataset_impl", "train_impl", "data_impl", "curriculum_learning",
        "curriculum_seqlen", "short_seq_prob", "add_bos", "add_eos", "online_dataserver_ips",
        "online_dataserver_ports",
    ),
    "positions and attention restart at each document: configure that in the model": (
        "reset_position_ids", "reset_attention_mask", "eod_mask_loss",
    ),
    "it sets the length of the run in "
    "passes: set horizon": ("train_epochs", "max_epochs", "limit_train_batches"),
    "the batch grows during the run": ("rampup_batch_size",),
    "batches are tuned before the run": ("autotuning", "autotuning_run"),
    "the run may end before its horizon": ("exit_interval", "max_time"),
    OTHER_RUN: ("iteration", "resume_from_checkpoint", "consumed_samples"),
    "training is disabled": ("do_train",),
    "other files are part of the configuration": ("config_files",),
    "the trainer shards samples across ranks again": ("use_distributed_sampler",),
    "the order of samples within a file "
    "differs": ("dataloader_type", "no_seqlen_plus_one_input_tokens"),
}  # fmt: skip
_USUAL = {
    "data_impl": "mmap", "pack_impl": "packed", "dataset_impl": "gpt2", "train_impl": "normal", "allow_chopped": True,
    "do_train": True, "add_eos": True,
}  # fmt: skip
"""Values that match the behaviour here; false by default."""
_NOTED: Reasons = {
    EVALUATION: (
        "valid_data_paths", "valid_data_path", "test_data_paths", "test_data_path", "valid_data_weights",
        "test_data_weights", "valid_label_data_paths", "test_label_data_paths", "valid_reward_data_paths",
        "test_reward_data_paths", "pos_valid_data_paths", "neg_valid_data_paths", "pos_valid_label_data_paths",
        "neg_valid_label_data_paths", "pos_test_data_paths", "neg_test_data_paths", "pos_test_label_data_paths",
        "neg_test_label_data_paths", "validation_ds", "test_ds",
    ),
    OTHER_RUN: ("load",),
    SHARED_RANKS: (
        "model_parallel_size", "pipe_parallel_size", "tensor_model_parallel_size", "pipeline_model_parallel_size",
        "context_parallel_size", "sequence_parallel", "world_size", "global_num_gpus", "num_nodes", "devices",
    ),
}  # fmt: skip
_HARMLESS = MODEL | OPTIMIZER | TRACKING | CHECKPOINTS | frozenset(
    # the model
    "rmsnorm_fusion layernorm_fusion use_qk_layernorm rms_norm_epsilon scalenorm_epsilon pos_emb "
    "rpe_num_buckets rpe_max_distance opt_pos_emb_offset no_weight_tying sparsity_config "
    "num_unique_layers param_sharing_style use_flashattn_swiglu "
    "scaled_upper_triang_masked_softmax_fusion scaled_masked_softmax_fusion bias_gelu_fusion "
    "bias_dropout_fusion rope_fusion fused_kernels_build_path fp16_lm_cross_entropy "
    "apply_query_key_layer_scaling use_cpu_initialization attention_softmax_in_fp32 "
    "rotary_emb_base rotary_save_freqs_buffer sliding_window_width mlp_multiple_of "
    "expansion_factor output_layer_init_method gmlp_attn_dim gpt_j_residual gpt_j_tied "
    "use_bias_in_norms use_bias_in_attn_linear use_bias_in_mlp soft_prompt_tuning "
    "mamba_selective_scan_fusion mamba_causal_conv_fusion mamba_inner_func_fusion "
    "mamba_selective_fp32_params mamba_use_bias_in_conv mamba_use_bias_in_linears "
    "output_layer_parallelism te_columnparallel te_rowparallel te_layernorm_mlp te_mha "
    "te_fp8_format te_fp8_wgrad te_fp8_amax_history_len te_fp8_amax_compute_algo te_fp8_margin "
    "te_fp8_mha dim_att ffn_dim moe_expert_interval moe_router_type moe_lbl_in_fp32 "
    "moe_jitter_eps "
    # loss and optimiser
    "optimizer_type use_bnb_optimizer zero_stage zero_reduce_scatter zero_contiguous_gradients "
    "zero_reduce_bucket_size zero_allgather_bucket_size lr_decay_fraction override_lr_scheduler "
    "use_checkpoint_lr_scheduler dpo_fp32 dpo_reference_free dpo_beta kto_fp32 "
    "kto_desirable_weight kto_undesirable_weight kto_beta z_loss fp32_reinforce kl_impl "
    "kl_div_beta reinforce_leave_one_out use_mup coord_check save_base_shapes base_shapes_file "
    "mup_init_scale mup_attn_temp mup_output_temp mup_embedding_mult mup_rp_embedding_mult "
    "mup_width_scale hysteresis dynamic_loss_scale loss_scale loss_scale_window min_scale "
    # computation
    "pipe_partition_method is_pipe_parallel deepspeed fp32_allreduce prescale_gradients "
    "gradient_predivide_factor sparse_gradients fp16 bf16 amp zero_optimization steps_per_print "
    "wall_clock_breakdown dump_state flops_profiler communication_data_type distributed_backend "
    "local_rank rank lazy_mpu_init onnx_safe deepscale deepscale_config deepspeed_mpi "
    "deepspeed_slurm deepspeed_extra_args hostfile include exclude launcher user_script "
    "checkpoint_activations checkpoint_num_layers deepspeed_activation_checkpointing "
    "contiguous_checkpointing checkpoint_in_cpu synchronize_each_layer profile_backward "
    "partition_activations data_types serve_model_weights weight_server_port accelerator "
    "enable_checkpointing "
    # logs, checkpoints, evaluation
    "use_wandb wandb_group wandb_run_name wandb_team wandb_host wandb_init_all_ranks git_hash "
    "log_dir tensorboard_dir use_comet comet_workspace comet_project comet_experiment_name "
    "comet_tags comet_others comet_experiment peak_theoretical_tflops log_grad_pct_zeros "
    "log_param_norm log_grad_norm log_optimizer_states log_gradient_noise_scale "
    "gradient_noise_scale_n_batches gradient_noise_scale_cpu_offload memory_profiling "
    "memory_profiling_path profile profile_step_start profile_step_stop adlr_autoresume "
    "adlr_autoresume_interval s3_path s3_chunk_size checkpoint_validation_with_forward_pass "
    "checkpoint_scale checkpoint_factor extra_save_iters no_save_optim no_save_rng no_load_optim "
    "no_load_rng finetune keep_last_n_checkpoints eval_iters eval_interval do_valid do_test "
    "eval_results_prefix eval_tasks char_level_ppl log_every_n_steps val_check_interval "
    "limit_val_batches limit_test_batches num_sanity_val_steps logger "
    # generation
    "text_gen_type precompute_model_name temperature top_p top_k return_logits maximum_tokens "
    "prompt_end sample_input_file sample_output_file num_samples recompute "
    # tokenization and file access
    "tokenizer tokenizer_type vocab_file merge_file use_shared_fs num_workers mmap_warmup "
    "index_mapping_dir pin_memory persistent_workers comment".split()
)  # fmt: skip


def is_mine(tree: MixtureNode) -> bool:
    return _blend(Account().open(tree)) is not None


def _key(part: Section, name: str) -> str:
    """Return a key as the file spells it: GPT-NeoX accepts `a-b` and `a_b`."""
    other = name.replace("_", "-")
    return other if other in part.table else name


def _keys(part: Section, names: Iterable[str]) -> list[str]:
    return [_key(part, name) for name in names]


def _sections(top: Section) -> list[Section]:
    """Return the mappings in which training files store their settings."""
    model = top.part("model") if isinstance(top.peek("model"), dict) else None
    inside = model or top
    data = inside.part("data") if isinstance(inside.peek("data"), dict) else None
    if data is None and isinstance(top.peek("data"), dict):
        data = top.part("data")
    trainer = top.part("trainer") if isinstance(top.peek("trainer"), dict) else None
    return [part for part in (top, model, data, trainer) if part is not None]


def _blend(top: Section) -> tuple[Section, str] | None:
    """Return the section and key of the list of datasets."""
    for part in _sections(top):
        for key in _keys(part, _LISTS):
            if part.has(key) and _pairs(_listed(part, key)) is not None:
                return part, key
    return None


def _listed(part: Section, key: str) -> Any:
    setting = part.peek(key)
    if isinstance(setting, dict):
        setting = cast("dict[str, Any]", setting).get("train")
    return setting.split() if isinstance(setting, str) else setting


def _pairs(setting: Any) -> list[tuple[float | None, str]] | None:
    """Return weights and paths of a list `[0.3, a, 0.7, b]`, or of paths alone."""
    listed = cast("list[Any]", setting) if isinstance(setting, list) else []
    values = [setting] if isinstance(setting, str) else listed
    numbers = [_number(value) for value in values]
    if not values or "???" in values:
        return None
    if all(number is None for number in numbers):
        return (
            [(None, str(value)) for value in values]
            if all(isinstance(value, str) for value in values)
            else None
        )
    alternating = len(values) % 2 == 0 and all(
        (number is None) == bool(i % 2) for i, number in enumerate(numbers)
    )
    return (
        [(numbers[i], str(values[i + 1])) for i in range(0, len(values), 2)]
        if alternating
        else None
    )


def _number(value: Any) -> float | None:
    try:
        return None if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        return None


def convert(tree: MixtureNode, account: Account) -> MixtureFile:
    """Convert the mixture; weights are shares of rows in Megatron, of tokens here.

    Megatron's rows all have one length.
    """
    top = account.open(tree)
    sections = _sections(top)
    blend = _blend(top)
    assert blend is not None
    part, key = blend
    pairs = _pairs(_listed(part, key)) or []
    _mark_list(part, key)
    weights: list[Any] = [weight for weight, _ in pairs]
    weights_key = _key(part, "train_data_weights")
    if part.has(weights_key):
        setting = part.get(weights_key)
        weights = (
            [_number(weight) for weight in cast("list[Any]", setting)]
            if isinstance(setting, list)
            else []
        )
        if len(weights) != len(pairs) or None in weights:
            part.report(weights_key, f"expected one number for each of {len(pairs)} paths")
            weights = [None] * len(pairs)
    names, sources = Names(), list[SourceEntry]()
    for (_, path), weight in zip(pairs, weights, strict=True):
        name = names.of(name_of_path(path))
        files = tuple(
            file_path
            if file_path.endswith((".bin", ".npy")) or "*" in file_path
            else f"{file_path}.bin"
            for file_path in part.local(key, name, [path])
        )
        sources.append(SourceEntry(name, files, weight=weight))
    if not sources:
        raise nothing(Path(tree.file), "Megatron")
    if any(source.weight is None for source in sources):
        equal = (
            1.0 if key.replace("-", "_") == "train_data_paths" and len(sources) > 1 else None
        )  # GPT-NeoX's default
        sources = [replace(source, weight=equal) for source in sources]
    list_is_shared = key.replace("-", "_") not in ("train_data_paths", "train_data_path")
    split = _split(part, list_is_shared and not isinstance(part.table[key].value, dict))
    one_pass = sources[0].weight is None and len(sources) > 1
    run = _run(sections)
    settle_exp_manager(top)
    for section in sections:
        _settle(section)
    return MixtureFile(
        tuple(sources),
        unit="tokens",
        temperature=1 if one_pass else None,
        split=split,
        **run,
    )


def _mark_list(part: Section, key: str) -> None:
    """Account for the list, or for its lists of several splits."""
    if not isinstance(part.table[key].value, dict):
        part.get(key)
    elif (inside := part.part(key)) is not None:
        inside.get("train")
        inside.settle(noted={EVALUATION: ("validation", "valid", "test")})


def _settle(section: Section) -> None:
    """Account for the settings beside the mixture, in either spelling."""

    def spelled(reasons: Reasons) -> Reasons:
        return {reason: _keys(section, keys) for reason, keys in reasons.items()}

    usual = {_key(section, name): value for name, value in _USUAL.items()}
    section.settle(set(_keys(section, _HARMLESS)), spelled(_REPORTED), spelled(_NOTED), usual)


def _split(part: Section, list_is_shared: bool) -> Splitting | None:
    """Return the validation and test documents at the end, if one list has all splits."""
    split = None
    for key in _keys(part, ("split", "splits_string")):
        if not list_is_shared:
            part.note(key, "the list has only training data, and is not split")
            continue
        if (setting := part.get(key)) is None:
            continue
        numbers = [_number(number) or 0 for number in str(setting).split(",")]
        total = sum(numbers)
        if not total or numbers[0] <= 0:
            part.report(key, f"{setting!r} has no share for training")
        elif numbers[0] < total and split is None:
            split = Splitting(round(1 - numbers[0] / total, 6), by="position")
    return split


def _first(
    sections: Iterable[Section], names: Iterable[str], minimum: int = 1
) -> tuple[int, Section, str] | None:
    """Return the first whole number among some settings; later ones are not read."""
    for part in sections:
        for key in _keys(part, names):
            if part.has(key):
                value = part.integer(key)
                if value is not None and value >= minimum:
                    return value, part, key
                if value is not None and value != -1:
                    part.report(key, f"{value} is too small")
    return None


def _run(sections: list[Section]) -> dict[str, Any]:
    options: dict[str, Any] = {}
    by_data = [part for part in sections if part.key_path.rpartition(".")[2] == "data"]
    if length := _first((*by_data, *sections), _LENGTHS):
        options["pack"] = {"length": length[0]}
        for section in sections:
            section.pass_over(_key(section, "max_position_embeddings"))
            if length[1] in by_data and section not in by_data:  # the maximum row length
                section.pass_over(_key(section, "encoder_seq_length"))
    if (seed := _first(sections, ("seed",), minimum=0)) is not None:
        options["seed"] = seed[0]
    if steps := _first(sections, _STEPS):
        options["horizon"] = ("steps", steps[0])
    if size := _first(sections, _OF_ALL):
        for section in sections:  # its division across ranks
            section.pass_over(*_keys(section, (*_OF_EACH, *_TIMES)))
        options["batch"] = shared(*size, drop_remainder=True)
    elif size := _first(sections, _OF_EACH):
        accumulation = _first(sections, _TIMES)
        options["batch"] = per_rank_batch(
            size[0] * (accumulation[0] if accumulation else 1), size[1], size[2], drop_remainder=True
        )  # fmt: skip
    return options
