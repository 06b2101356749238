"""axolotl: the `datasets` (or `pretraining_dataset`) of a training file."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...mixture_files import MixtureFile, Shuffling, SourceEntry, Splitting, Tokenizing
from ...mixture_files.reading import MixtureNode
from ...sources.paths import FormatName
from ...text.chat import Truncate
from .account import EVALUATION, Account, Reasons, Section, flat, nothing
from .axolotl_prompts import (
    GENERATED,
    PICTURES,
    PREFERENCES,
    UNKNOWN_TYPE,
    Prompts,
    chat_of_texts,
    read_encoding,
)
from .locations import Hub, Names, name_of_path
from .trainers import (
    LIKE_LENGTHS,
    MAY_STOP,
    OTHER_RUN,
    RANK_SHARING,
    TRANSFORMERS_REPORTED,
    count_or_default,
    hold_out,
    length,
    per_rank_batch,
    put_together,
    settle_accelerator,
    settle_deepspeed,
    settle_ranks,
)

ARGUMENTS = frozenset(
    "base_model micro_batch_size num_epochs sequence_len val_set_size adapter "
    "sample_packing dataset_prepared_path optimizer lr_scheduler evals_per_epoch "
    "saves_per_epoch shuffle_merged_datasets train_on_inputs pad_to_sequence_len "
    "tokenizer_type model_type".split()
)
"""Top-level keys that distinguish its files from other formats."""
ENTRY_ARGUMENTS = frozenset(
    "type ds_type shards shards_idx preprocess_shards field field_messages".split()
)
"""Keys of a dataset that distinguish its files from other formats."""
_FORMATS: dict[str, FormatName] = {
    "json": "jsonl",
    "csv": "csv",
    "parquet": "parquet",
    "arrow": "arrow",
    "text": "text",
}
_HUB = re.compile(r"[\w.-]+/[\w.-]+")
_SLICE = re.compile(r"\w+\[(\d*%?):(\d*%?)\]")
_TOKENS = "it changes the tokens: give a tokenizer that has these settings"
_PACKING = "rows are split and packed differently"
_STREAMS = (
    "a stream uses a shuffle buffer and is sharded across workers: rows are read by index here"
)
_ENTRY_REPORTED: Reasons = {
    UNKNOWN_TYPE: (
        "conversation", "input_transform", "input_format", "split_thinking", "logprobs_field", "temperature",
        "message_field_training_detail", "system_prompt", "system_format", "field_instruction", "field_input",
        "field_output", "format", "no_input_format", "field_prompt", "field_completion", "field_label",
        "step_separator", "max_completion_length", "train_on_last_step_only", "field", "text_column",
        "field_messages", "message_property_mappings", "message_field_role", "message_field_content",
        "field_system", "field_tools", "field_chosen", "field_rejected", "chat_template", "chat_template_jinja",
        "roles", "roles_to_train", "train_on_eos", "train_on_eot", "message_field_training", "field_thinking",
        "template_thinking_key", "field_human", "field_model",
    ),
    "system messages of the data are written": ("drop_system_message",),
    "the newest revision of the dataset is read": ("revision",),
}  # fmt: skip
_REPORTED: Reasons = {
    PICTURES: (
        "processor_type", "processor_kwargs", "image_size", "image_resize_algorithm", "skip_prepare_dataset",
    ),
    GENERATED: (
        "rl", "trl", "vllm", "ebft", "diffusion", "trainer_cls", "kd_trainer", "nemo_gym_enabled", "max_prompt_len",
    ),
    "it changes the template: give a template that has this message": ("default_system_message",),
    "it changes what is learned": ("role_boundaries", "process_reward_model", "noisy_embedding_alpha"),
    _TOKENS: (
        "added_tokens_overrides", "tokenizer_type", "tokenizer_use_fast", "tokenizer_legacy",
        "tokenizer_config", "tokenizer_use_mistral_common",
    ),
    _PACKING: (
        "sample_packing_sequentially", "multipack_real_batches", "pad_to_multiple_of", "max_packed_sequence_len",
        "pretraining_sample_concatenation", "pretrain_multipack_attn", "min_sample_len", "use_pose",
        "pose_split_on_token_ids", "pose_max_context_len", "pose_num_chunks", "batch_flattening",
        "pretrain_multipack_buffer_size", "streaming_multipack_buffer_size", "excess_length_strategy",
    ),
    "it determines the number of steps of a run": ("sample_packing_eff_est", "total_num_tokens"),
    "only this part of the combined datasets is read": ("dataset_shard_num", "dataset_shard_idx"),
    "duplicates are dropped: write them to a file, and name it as exclude": (
        "dataset_exact_deduplication",
    ),
    "samples have the same order in every pass": ("curriculum_sampling",),
    _STREAMS: ("streaming", "preprocess_iterable"),
    LIKE_LENGTHS: ("group_by_length",),
    RANK_SHARING: ("split_batches", "dispatch_batches"),
    OTHER_RUN: ("resume_from_checkpoint",),
    **{reason: keys for reason, keys in TRANSFORMERS_REPORTED.items() if "auto_find_batch_size" in keys},
}  # fmt: skip
_RANKS = (
    "tensor_parallel_size", "context_parallel_size", "sequence_parallel_degree", "expert_parallel_size",
    "world_size", "use_ray", "ray_num_workers",
)  # fmt: skip
_NOTED: Reasons = {
    EVALUATION: ("test_datasets", "bench_dataset"),
    MAY_STOP: ("early_stopping_patience", "loss_watchdog_threshold", "loss_watchdog_patience"),
    OTHER_RUN: ("auto_resume_from_checkpoints",),
    "the newest revision of the tokenizer is read": ("revision_of_model",),
    "no type of dataset uses it": (
        "chat_template", "chat_template_jinja", "chat_template_kwargs", "train_on_inputs", "eot_tokens",
    ),
    "bins of another size hold other samples": ("sample_packing_group_size", "sample_packing_bin_size"),
    "rows that are not packed have their lengths: the trainer pads them": ("pad_to_sequence_len",),
    "ranks that shard the model and read their own samples: each counts in --ranks": (
        "dp_shard_size", "dp_replicate_size",
    ),
}  # fmt: skip
_USUAL = {
    "pad_to_sequence_len": None,
    "tokenizer_use_fast": True,
    "pretrain_multipack_attn": True,
    "pretraining_sample_concatenation": None,
}
_PLUGINS = frozenset(
    "liger.LigerPlugin cut_cross_entropy.CutCrossEntropyPlugin spectrum.SpectrumPlugin "
    "kernels.KernelsPlugin swanlab.SwanLabPlugin llm_compressor.LLMCompressorPlugin "
    "expert_parallel.ExpertParallelPlugin densemixer.DenseMixerPlugin "
    "grokfast.GrokfastPlugin lm_eval.LMEvalPlugin mora.MoraPlugin".split()
)
"""Plugins that change the model, its computation or logs, but no samples."""
_HARMLESS = frozenset(
    # the model and its adapters
    "base_model base_model_config base_model_ignore_patterns cls_model_config model_type "
    "type_of_model overrides_of_model_config overrides_of_model_kwargs model_config "
    "model_quantization_config model_quantization_config_kwargs is_falcon_derived_model "
    "is_llama_derived_model is_mistral_derived_model is_qwen_derived_model trust_remote_code "
    "hf_use_auth_token load_in_8bit load_in_4bit adapter lora_model_dir lora_r lora_alpha "
    "lora_fan_in_fan_out lora_target_modules lora_target_parameters lora_target_linear "
    "lora_modules_to_save lora_rank_pattern lora_alpha_pattern lora_dropout lora_on_cpu "
    "lora_mlp_kernel lora_qkv_kernel lora_o_kernel lora_embedding_kernel loraplus_lr_ratio "
    "loraplus_lr_embedding peft peft_layers_to_transform peft_layers_pattern peft_use_dora "
    "peft_use_rslora peft_layer_replication peft_init_lora_weights peft_trainable_token_indices "
    "peft_ensure_weight_tying peft_autocast_adapter_dtype qlora_sharded_model_loading "
    "loftq_config merge_lora merge_method gptq gptq_groupsize gptq_model_v1 gptq_disable_exllama "
    "bnb_config_kwargs relora relora_steps relora_warmup_steps relora_anneal_steps "
    "relora_prune_ratio relora_prune_method relora_cpu_offload unfrozen_parameters "
    "freeze_mm_modules resize_token_embeddings_to_32x mean_resizing_embeddings shrink_embeddings "
    "embeddings_skip_upcast reinit_weights rope_scaling quantize_moe_experts qat quantization "
    "use_onebitllms use_mora mora reward_model num_labels dense_mixer spectrum_top_fraction spectrum_model_name "
    "llmcompressor fix_untrained_tokens tokenizer_save_jinja_files "
    # loss and optimiser
    "learning_rate embedding_lr embedding_lr_scale weight_decay optimizer optim_args "
    "optim_target_modules torchdistx_path lr_scheduler lr_scheduler_kwargs lr_quadratic_warmup "
    "cosine_min_lr_ratio cosine_constant_lr_ratio lr_div_factor lr_groups eta_min adam_eps "
    "adam_epsilon adam_epsilon2 adam_beta1 adam_beta2 adam_beta3 max_grad_norm warmup_steps "
    "warmup_ratio jagged_restart_steps jagged_restart_warmup_steps jagged_restart_anneal_steps "
    "neftune_noise_alpha orpo_alpha simpo_gamma cpo_alpha rpo_alpha kto_desirable_weight "
    "kto_undesirable_weight rl_beta dpo_beta dpo_use_weighting dpo_label_smoothing dpo_loss_type "
    "dpo_loss_weights dpo_norm_loss dpo_use_liger_kernel dpo_padding_free dpo_use_logits_to_keep "
    "dpo_generate_during_eval precompute_ref_log_probs center_rewards_coefficient use_eaft "
    "eaft_alpha eaft_k grokfast_alpha grokfast_lamb lisa_n_layers lisa_step_interval "
    "lisa_layers_attribute chunked_cross_entropy chunked_cross_entropy_num_chunks "
    "cut_cross_entropy liger_rope liger_rms_norm liger_rms_norm_gated liger_layer_norm "
    "liger_swiglu liger_glu_activation liger_cross_entropy liger_fused_linear_cross_entropy "
    "liger_use_token_scaling "
    # computation
    "bf16 fp16 fp8 fp8_enable_fsdp_float8_all_gather bfloat16 float16 tf32 float32 torch_dtype "
    "fp32_norms fp32_norm_classes gradient_checkpointing gradient_checkpointing_kwargs "
    "selective_checkpointing activation_offloading layer_offloading xformers_attention "
    "sdp_attention flex_attention flex_attn_compile_kwargs flash_attention "
    "flash_attn_cross_entropy flash_attn_fuse_mlp flash_attn_rms_norm flash_optimum "
    "sage_attention s2_attention eager_attention attn_implementation gemma4_hybrid_attn_impl "
    "large_head_attention flash_attn_d512 sdpa_varlen fused_attn_kernel experts_implementation "
    "scaling_softmax scaling_softmax_factor scaling_softmax_bias tiled_mlp tiled_mlp_num_shards "
    "tiled_mlp_use_original_mlp llama4_linearized_experts use_kernels use_scattermoe use_sonicmoe "
    "use_dsv4_kernels use_glm_dsa_kernels dsv4_fp4_grouped_mode dsv4_bf16_all expert_backend "
    "nonexpert_quantization nvfp4_merge_aware nvfp4_merge_aware_start_step "
    "expert_parallel_backend expert_parallel_num_nvl_bytes expert_parallel_num_rdma_bytes "
    "expert_parallel_token_capacity heads_k_stride ring_attn_func deepspeed deepcompile fsdp "
    "fsdp_config fsdp_version fsdp_final_state_dict_type device device_map local_rank ddp "
    "ddp_timeout ddp_bucket_cap_mb ddp_broadcast_buffers ddp_find_unused_parameters max_memory "
    "gpu_memory_limit low_cpu_mem_usage experimental_skip_move_to_device torch_compile "
    "torch_compile_backend torch_compile_mode torch_compile_options gc_steps "
    "torch_empty_cache_steps gc_collect_steps resources_per_worker ray_run_name "
    "remove_unused_columns "
    # evaluation, logs, checkpoints, uploads
    "eval_batch_size eval_steps evals_per_epoch eval_strategy evaluation_strategy eval_table_size "
    "eval_max_new_tokens eval_sample_packing eval_sequence_len do_causal_lm_eval "
    "eval_causal_lm_metrics do_bench_eval bench_split metric_for_best_model greater_is_better "
    "load_best_model_at_end generate_samples num_generation_samples generation_max_new_tokens "
    "generation_temperature generation_top_p generation_top_k generation_prompt_ratio "
    "generation_do_sample lm_eval_tasks lm_eval_batch_size lm_eval_post_train lm_eval_model "
    "save_steps saves_per_epoch save_strategy save_total_limit save_first_step save_only_model "
    "save_safetensors dynamic_checkpoint output_dir hub_model_id hub_strategy hub_revision "
    "push_dataset_to_hub logging_steps use_tensorboard profiler_steps profiler_steps_start "
    "include_tokens_per_second include_tkps use_wandb wandb_name wandb_run_id wandb_mode "
    "wandb_project wandb_entity wandb_watch wandb_log_model use_mlflow mlflow_tracking_uri "
    "mlflow_experiment_name mlflow_run_name hf_mlflow_log_artifacts use_comet comet_api_key "
    "comet_workspace comet_project_name comet_experiment_key comet_mode comet_online "
    "comet_experiment_config use_swanlab swanlab_project swanlab_experiment_name "
    "swanlab_description swanlab_mode swanlab_workspace swanlab_api_key swanlab_log_model "
    "swanlab_web_host swanlab_api_host swanlab_lark_webhook_url swanlab_lark_secret "
    "swanlab_log_completions swanlab_completion_log_interval swanlab_completion_max_buffer "
    "use_trackio trackio_project_name trackio_run_name trackio_space_id use_otel_metrics "
    "otel_metrics_host otel_metrics_port gradio_title gradio_share gradio_server_name "
    "gradio_server_port gradio_max_new_tokens gradio_temperature debug axolotl_config_path "
    # storage of prepared data, and argument checks
    "dataset_prepared_path dataset_keep_in_memory num_dataset_shards_to_save "
    "is_preprocess strict".split()
)
_WORKERS = ("dataloader_num_workers", "dataloader_prefetch_factor", "dataloader_pin_memory")
_PREPARING = ("dataset_processes", "dataset_num_proc", "sample_packing_mp_start_method")


_CLASSES = ("Llama", "CodeLlama", "GPT2", "GPTNeoX", "PreTrained", "Qwen2")
_TOKENIZERS = ("tokenizer_config", "base_model_config", "base_model")
"""Keys that may name the tokenizer, by precedence."""


def is_mine(tree: MixtureNode) -> bool:
    return any(lists_paths(tree, key) for key in ("datasets", "pretraining_dataset"))


def lists_paths(tree: MixtureNode, key: str) -> bool:
    """Return whether a top-level key is a list of datasets with paths, as in several formats."""
    items = tree.value[key].value if isinstance(tree.value, dict) and key in tree.value else None
    first = items[0].value if isinstance(items, tuple) and items else None
    return isinstance(first, dict) and "path" in first


def convert(tree: MixtureNode, account: Account) -> MixtureFile:
    """Convert the mixture: every sample once per pass, as axolotl merges its datasets."""
    top = account.open(tree)
    names, sources, streams = Names(), list[SourceEntry](), top.has("pretraining_dataset")
    items = list(top.parts("pretraining_dataset" if streams else "datasets"))
    prompts = _prompts(top, items)
    if streams:
        top.report("datasets", "axolotl reads only pretraining_dataset")
    for number, item in enumerate(items):
        if streams and number:
            item.drop("axolotl streams only the first pretraining_dataset")
            continue
        sources += _sources(item, names, prompts)
    if not sources:
        raise nothing(Path(tree.file), "axolotl")
    if streams:
        top.note("pretraining_dataset", _STREAMS)
    sources = _encode_alike(sources, prompts)
    pack = _pack(top, sources, streams, prompts)
    if pack is None and any(source.tokenize is not None for source in sources):
        account.report(
            tree,
            "",
            "axolotl ends each completion with the EOS token: rows that are not packed have none",
        )
    sources, split = _held_out(top, sources)
    horizon, passes = length(top, "num_epochs", 1)
    combined, options = put_together(sources, passes)
    seed = top.integer("seed", 42)
    batch = _batch(
        top, drop_remainder=top.flag("dataloader_drop_last"), collate="stack" if pack else "list"
    )
    shuffle = _order(top, len(sources), bool(pack), streams)
    _plugins(top)
    settle_deepspeed(top)
    if streams or top.peek("streaming"):
        top.settle(reported={_STREAMS: _WORKERS})
    if top.peek("sample_packing"):
        top.settle(reported={_PACKING: _PREPARING})
    settle_accelerator(top)
    settle_ranks(top, _RANKS)
    top.settle({*_HARMLESS, *_WORKERS, *_PREPARING}, _REPORTED, _NOTED, _USUAL)
    return MixtureFile(
        combined,
        seed=seed,
        shuffle=shuffle,
        split=split,
        pack=pack,
        horizon=horizon,
        batch=batch,
        **options,
    )


def _batch(top: Section, **options: Any) -> Any:
    """Return the batch of each rank; `batch_size` includes gradient accumulation."""
    size = count_or_default(top, "micro_batch_size", 1, "axolotl")
    batch_size, accumulation = top.count("batch_size"), top.count("gradient_accumulation_steps")
    if batch_size and not accumulation:
        accumulation = max(1, batch_size // size)
    elif batch_size and accumulation and batch_size != size * accumulation:
        top.report(
            "batch_size",
            "it differs from micro_batch_size times gradient_accumulation_steps, which are "
            "carried over",
        )
    return per_rank_batch(size * (accumulation or 1), top, "micro_batch_size", **options)


def _order(top: Section, sources: int, packed: bool, streams: bool) -> Shuffling | None:
    """Return the order of samples.

    The trainer shuffles every pass, except with `curriculum_sampling`.
    """
    merged, shuffled_first = (
        top.flag("shuffle_merged_datasets", True),
        top.flag("shuffle_before_merging_datasets"),
    )
    if top.peek("curriculum_sampling") is True or streams:
        if (
            not merged
            and not shuffled_first
            and sources == 1
            and (not packed or top.peek("sample_packing_sequentially"))
        ):
            top.get("curriculum_sampling")
            return Shuffling("none")
        reason = "datasets have this order: here they are mixed evenly, and each is shuffled"
        top.report("shuffle_merged_datasets", reason) if not merged else None
        top.report("shuffle_before_merging_datasets", reason) if shuffled_first else None
    elif not merged:
        top.note("shuffle_merged_datasets", "axolotl's trainer shuffles anyway, and so does this")
    return None


def _plugins(top: Section) -> None:
    """Report plugins, except those that are known to leave samples unchanged."""
    names = [
        str(name).removeprefix("axolotl.integrations.")
        for name in flat([top.peek("plugins") or []])
    ]
    top.pass_over("plugins")
    if unknown := [name for name in names if name not in _PLUGINS]:
        top.report("plugins", f"{', '.join(unknown)} may change the samples, or their order")


def _held_out(
    top: Section, sources: list[SourceEntry]
) -> tuple[list[SourceEntry], Splitting | None]:
    """Return the sources without the samples that axolotl holds out for evaluation."""
    if top.has("test_datasets"):
        top.note("val_set_size", "test_datasets are for evaluation: no samples are held out")
        return sources, None
    return hold_out(top, "val_set_size", sources, "axolotl")


def _prompts(top: Section, items: Sequence[Section]) -> Prompts | None:
    """Return what the prompts of a file share; `None` if no key names a tokenizer."""
    key = next((key for key in _TOKENIZERS if top.has(key)), None)
    tokenizer = top.text(key) if key else None
    if tokenizer is None:
        return None
    known = (
        "AutoTokenizer",
        *(f"{name}Tokenizer{end}" for name in _CLASSES for end in ("", "Fast")),
    )
    if top.peek("tokenizer_type") in known:
        top.note("tokenizer_type", "the class that the files of the tokenizer name opens it")
    special = top.part("special_tokens")
    if special is not None:
        special.pass_over("pad_token", "unk_token")
    if all(isinstance(token, str) for token in flat([top.peek("tokens") or []])):
        top.note("tokens", "the tokenizer must have these tokens: save it with them")
    elif top.has("tokens"):
        top.report("tokens", _TOKENS)
    bos, eos = ((special.text(f"{name}_token") if special else None) for name in ("bos", "eos"))
    is_plain = all(item.peek("type") in ("completion", "pretrain") for item in items)
    top.pass_over("train_on_inputs") if is_plain else None  # all of a completion is learned
    chats = any("chat_template" in str(item.peek("type")) for item in items)
    if chats:
        top.get("eot_tokens")
    if bos and special is not None and not chats:
        special.note("bos_token", "a text begins with the token that the tokenizer adds")
    strategies: dict[Any, Truncate] = {"truncate": "right", "raise": "error"}
    strategy = top.peek("excess_length_strategy")
    if strategy in (None, "drop", *strategies):
        top.get("excess_length_strategy")
    rl = top.peek("rl")
    if rl in PREFERENCES:
        top.get("rl")
    return Prompts(
        top,
        tokenizer,
        count_or_default(top, "sequence_len", 512, "axolotl"),
        strategies.get(strategy, "drop"),
        not is_plain and top.flag("train_on_inputs"),
        rl if isinstance(rl, str) else None,
        bos if chats else None,
        eos,
    )


def _encode_alike(sources: list[SourceEntry], prompts: Prompts | None) -> list[SourceEntry]:
    """Return sources that all have `chat`, or all `tokenize`: completions beside prompts are chats."""
    if prompts is None or all(source.chat is None for source in sources):
        return sources
    return [
        replace(source, tokenize=None, chat=chat_of_texts(source.tokenize, prompts))
        if isinstance(source.tokenize, Tokenizing)
        else source
        for source in sources
    ]


def _pack(
    top: Section, sources: Sequence[SourceEntry], streams: bool, prompts: Prompts | None
) -> dict[str, Any] | None:
    """Return packed rows; chats that are not packed have `sequence_len` as their longest length."""
    buffered = streams and (
        top.has("pretrain_multipack_buffer_size") or top.has("streaming_multipack_buffer_size")
    )
    packing = top.peek("sample_packing") if top.has("sample_packing") else buffered
    chats = all(source.chat is not None for source in sources)
    texts = all(source.tokenize is not None for source in sources)
    if not packing:
        top.pass_over("sample_packing")
        if texts:
            top.report("sequence_len", "texts are split at this length only in packed rows")
        return None
    if prompts is None or not (chats or texts):
        top.report("sample_packing", "packing needs the tokens of all datasets")
        return None
    if not top.has("sequence_len"):
        top.report("sample_packing", "sequence_len is missing, the length of rows")
        return None
    top.get("sample_packing")
    top.pass_over("pad_to_sequence_len")  # packed rows are padded to their length
    end = {} if chats else {"eos": prompts.eos or True}
    return {"length": prompts.max_length, "method": "best_fit", "long": "split", **end}


def _sources(item: Section, names: Names, prompts: Prompts | None) -> list[SourceEntry]:
    """Return the sources of an entry: one per configuration of a hub dataset."""
    if not item.has("path"):
        item.drop("path is missing: its samples are lost")
        return []
    path, files = item.text("path") or "", item.texts("data_files")
    tokenize = _tokenize(item, prompts)
    chat = None if tokenize or prompts is None else read_encoding(item, prompts)
    if prompts is None:
        item.report("type", "there is no tokenizer")
    form, bounds = _format(item), _bounds(item)
    split = item.text("split")
    if path in _FORMATS and files:  # a file format, as in load_dataset
        if item.has("ds_type") and item.peek("ds_type") != path:
            item.report("ds_type", "path names another format, which takes precedence")
        form = _FORMATS[path]
        item.pass_over("name")  # only a name for the configuration
        configs = list[str]()
    else:
        configs = item.texts("name")
    is_local = path in _FORMATS or Path(item.path(path)).exists()
    is_hub = not is_local and bool(_HUB.fullmatch(path)) and not Path(path).suffix
    sources = dict[tuple[str, ...], SourceEntry]()
    for config in configs or [None]:
        hub = Hub(path, config, _without_slice(split), tuple(files))
        name = names.of(hub.source_name if is_hub else config or name_of_path((files or [path])[0]))
        paths = item.dataset("path", name, hub, "name", "split", [] if is_hub else files or [path])
        sources.setdefault(
            paths,
            SourceEntry(name, paths, format=form, slice=bounds, tokenize=tokenize, chat=chat),
        )
    if split and not split.replace("_", "").isalnum() and _part_of(split) is None:
        item.report(
            "split", f"{split!r} is more than one split, or a part that a mixture file cannot name"
        )
    item.settle(("trust_remote_code", "preprocess_shards"), _ENTRY_REPORTED)
    return [*sources.values()]


def _tokenize(item: Section, prompts: Prompts | None) -> Tokenizing | None:
    """Return the tokenizing of completions; other types are prompts."""
    kind = item.peek("type")
    if kind not in ("completion", "pretrain") or prompts is None:
        return None
    item.get("type")
    key = next((key for key in ("field", "text_column") if item.has(key)), None)
    if kind == "pretrain":
        item.note(
            "type",
            "long texts are split at the end of a row; in axolotl the parts overlap by 256 tokens",
        )
    field = (item.text(key) if key else None) or "text"
    return Tokenizing(prompts.tokenizer, field, special_tokens=True)


def _bounds(item: Section) -> tuple[int | str | None, ...] | None:
    """Return the rows to read: a shard, a slice of the split, or all after the first ones."""
    count, index, skipped = item.count("shards"), item.integer("shards_idx", 0), item.count("skip")
    part = _part_of(item.peek("split"))
    if part and any(isinstance(end, str) for end in part):
        item.note(
            "split",
            "percentages are rounded down to whole rows; datasets rounds to the nearest",
        )
    if count:
        item.note("shards", "every n-th row; axolotl draws the same number at random")
        if part or skipped:
            item.report(
                "shards",
                "a shard of a slice has no counterpart: the whole slice is read",
            )
    if part:
        if skipped:
            item.report("skip", "skipping rows of a slice has no counterpart")
        return part
    if skipped:
        return (skipped, None)
    return (index, None, count) if count and index is not None else None


def _format(item: Section) -> FormatName | None:
    setting = item.text("ds_type")
    if setting is None or setting in _FORMATS:
        return _FORMATS.get(setting or "")
    item.report("ds_type", f"{setting!r} is not a format of mixture files")
    return None


def _without_slice(split: str | None) -> str | None:
    return split and split.partition("[")[0]


def _part_of(split: Any) -> tuple[str | int | None, ...] | None:
    """Return the slice in a split such as `train[10%:80%]`."""
    match = _SLICE.fullmatch(split) if isinstance(split, str) else None
    if not match:
        return None
    ends = [int(end) if end.isdigit() else end or None for end in match.groups()]
    return tuple(ends)
