"""LLaMA-Factory: `dataset_info.json`, or a training file that mixes datasets of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...errors import ConfigError
from ...mixture_files import MixtureFile, Shuffling, SourceEntry, Tokenizing
from ...mixture_files.reading import MixtureNode, ProblemLog, read_file
from .account import EVALUATION, Account, Reasons, Section, nothing
from .llamafactory_prompts import PICTURES, STAGES, Prompts, read_chat, read_prompts
from .locations import Hub, Names
from .trainers import (
    TRANSFORMERS_HARMLESS,
    TRANSFORMERS_NOTED,
    TRANSFORMERS_REPORTED,
    TRANSFORMERS_USUAL,
    WORKERS,
    count_or_default,
    hold_out,
    length,
    per_rank,
    put_together,
    seed_of,
    settle_accelerator,
    settle_deepspeed,
    settle_ranks,
)
from .trl import plain_split

_LOCATION_KEYS = (
    "hf_hub_url",
    "ms_hub_url",
    "om_hub_url",
    "script_url",
    "cloud_file_name",
    "file_name",
)
_STOPS = {
    "interleave_under": "first_exhausted",
    "interleave_over": "all_exhausted_oversample",
    "interleave_once": "all_exhausted",
}
_PROMPTS = (
    "LLaMA-Factory makes prompts of its rows: convert the training file that names its template"
)
_TOKENS = "it changes the tokens: give a tokenizer that has these settings"
_STREAMS = (
    "a stream uses a shuffle buffer and is sharded across workers: rows are read by index here"
)
_ENTRY_REPORTED: Reasons = {_PROMPTS: ("formatting", "columns", "tags", "ranking")}
_REPORTED: Reasons = {
    **TRANSFORMERS_REPORTED,
    "it changes the prompts: give chat a template that has it": (
        "tool_format", "default_system", "enable_thinking", "preserve_thinking", "ignore_pad_token_for_loss",
    ),
    PICTURES: ("crop_to_patches", "media_dir"),
    "the trainer generates answers": ("stage", "ppo_buffer_size", "ppo_epochs"),
    "no dataset uses it": ("template", "train_on_prompt", "mask_history", "cutoff_len", "neat_packing"),
    "it changes rows": (
        "packing", "model_max_length", "use_packed_sequences", "efficient_eos", "block_diag_attn",
    ),
    _TOKENS: (
        "add_tokens", "add_special_tokens", "new_special_tokens_config", "init_special_tokens", "split_special_tokens",
        "use_fast_tokenizer",
    ),
    "rows that are already tokenized are read from this path, and other "
    "settings are ignored": ("tokenized_path",),
    _STREAMS: ("streaming", "buffer_size"),
    "arguments of another trainer may change the samples": (
        "use_mca", "use_megatron_bridge", "megatron_bridge_args", "use_hyper_parallel", "hyper_parallel_args",
        "extra_config",
    ),
}  # fmt: skip
_RANKS = (
    "tensor_model_parallel_size", "pipeline_model_parallel_size", "expert_model_parallel_size",
    "context_parallel_size", "virtual_pipeline_model_parallel_size", "sequence_parallel", "ray_num_workers",
    "hyper_parallel_cp_size", "sequence_parallel_size",
)  # fmt: skip
_WHOLE_FOLDER = (
    "all files of the folder are read, of any subset and split: name the files with files"
)
_USUAL = {
    **TRANSFORMERS_USUAL,
    "enable_thinking": True,
    "ignore_pad_token_for_loss": True,
    "use_fast_tokenizer": True,
}
_NOTED: Reasons = {
    **TRANSFORMERS_NOTED,
    EVALUATION: ("eval_dataset",),
    "no dataset of this file has images, audio or video": (
        "image_max_pixels", "image_min_pixels", "image_do_pan_and_scan", "video_max_pixels", "video_min_pixels",
        "video_fps", "video_maxlen", "use_audio_in_video", "audio_sampling_rate",
    ),
}  # fmt: skip
_PREPARING = ("preprocessing_num_workers", "preprocessing_batch_size")
_HARMLESS = TRANSFORMERS_HARMLESS | frozenset(
    # the model and its adapters
    "stage finetuning_type adapter_name_or_path adapter_folder resize_vocab rope_scaling "
    "flash_attn shift_attn mixture_of_depths use_unsloth use_unsloth_gc enable_liger_kernel "
    "moe_aux_loss_coef disable_gradient_checkpointing use_reentrant_gc upcast_layernorm "
    "upcast_lmhead_output train_from_scratch infer_backend infer_dtype offload_folder "
    "use_kv_cache use_v1_kernels hf_hub_token ms_hub_token om_hub_token print_param_status "
    "compute_dtype device_map quantization_method quantization_bit quantization_type "
    "double_quantization quantization_device_map freeze_trainable_layers freeze_trainable_modules "
    "freeze_extra_modules additional_target lora_alpha lora_dropout lora_rank lora_target "
    "loraplus_lr_ratio loraplus_lr_embedding use_rslora use_dora pissa_init pissa_iter "
    "pissa_convert create_new_adapter module_dropout oft_rank oft_block_size oft_target "
    "freeze_vision_tower freeze_multi_modal_projector freeze_language_model use_llama_pro use_kt "
    "kt_cpu_activation kt_weight_path kt_non_expert_weight_path kt_expert_checkpoint_path "
    "kt_use_lora_experts kt_lora_expert_num kt_lora_expert_intermediate_size kt_config "
    "moe_grouped_gemm moe_token_dispatcher_type "
    # loss and optimiser
    "pref_beta pref_ftx pref_bco_weight pref_loss dpo_label_smoothing kto_chosen_weight "
    "kto_rejected_weight simpo_gamma ppo_score_norm ppo_target ppo_whiten_rewards ref_model "
    "ref_model_adapters ref_model_quantization_bit reward_model reward_model_adapters "
    "reward_model_quantization_bit reward_model_type ld_alpha use_galore galore_target "
    "galore_rank galore_update_interval galore_scale galore_proj_type galore_layerwise use_apollo "
    "apollo_target apollo_rank apollo_update_interval apollo_scale apollo_proj apollo_proj_type "
    "apollo_scale_type apollo_layerwise apollo_scale_front use_badam badam_mode badam_start_block "
    "badam_switch_mode badam_switch_interval badam_update_ratio badam_mask_mode badam_verbose "
    "use_adam_mini use_muon use_dft_loss use_asft_loss asft_alpha use_eaft_loss eaft_alpha "
    "calculate_per_token_loss "
    # computation
    "pure_bf16 fp8 fp8_backend fp8_enable_fsdp_float8_all_gather mixed_precision "
    "recompute_granularity recompute_method recompute_num_layers "
    "account_for_embedding_in_pipeline_split account_for_loss_in_pipeline_split "
    "bias_activation_fusion apply_rope_fusion masked_softmax_fusion cross_entropy_loss_fusion "
    "use_distributed_optimizer overlap_param_gather overlap_grad_reduce "
    "megatron_pretrained_checkpoint ray_init_kwargs ray_run_name ray_storage_path "
    "resources_per_worker placement_strategy master_addr master_port "
    # evaluation, generation, logs, checkpoints
    "compute_accuracy plot_loss include_effective_tokens_per_second eval_num_beams "
    "eval_on_each_dataset do_sample temperature top_p top_k num_beams max_length max_new_tokens "
    "repetition_penalty length_penalty skip_special_tokens vllm_maxlen vllm_gpu_util "
    "vllm_enforce_eager vllm_max_lora_rank vllm_config use_swanlab swanlab_project "
    "swanlab_workspace swanlab_run_name swanlab_mode swanlab_api_key swanlab_logdir "
    "swanlab_lark_webhook_url swanlab_lark_secret export_hf_on_finish enable_torch_profiler "
    "profiler_output_dir profiler_wait_steps profiler_warmup_steps profiler_active_steps "
    "profiler_repeat profiler_record_shapes profiler_profile_memory profiler_with_stack "
    "profile_modules "
    # storage of prepared data
    "overwrite_cache data_shared_file_system".split()
)


def is_mine(tree: MixtureNode) -> bool:
    value = tree.value
    if not isinstance(value, dict) or not value:
        return False
    if _is_info(tree):
        return True
    named = value.get("dataset")
    known = {"dataset_dir", "stage", "template", "finetuning_type"}
    return named is not None and isinstance(named.value, str | tuple) and bool(known & value.keys())


def _is_info(tree: MixtureNode) -> bool:
    values = list(tree.value.values()) if isinstance(tree.value, dict) else []
    return bool(values) and all(
        isinstance(node.value, dict) and set(_LOCATION_KEYS) & node.value.keys() for node in values
    )


def convert(tree: MixtureNode, account: Account) -> MixtureFile:
    """Convert the datasets of a `dataset_info.json`, or those that a training file names."""
    if _is_info(tree):
        names, described = Names(), account.open(tree).named()
        sources = [_source(names.of(name), item, None, None, None) for name, item in described]
        return _model(
            [source for source in sources if source is not None],
            Path(tree.file),
            temperature=1,
            stop="all_exhausted",
        )
    top = account.open(tree)
    dataset_names = _dataset_names(top)
    info = account.open(_read_descriptions(top, dataset_names))
    stage = top.peek("stage") or "sft"
    pretraining = stage == "pt"
    if pretraining or stage in STAGES:
        top.get("stage")
    tokenizer = top.text("model_name_or_path") if pretraining else None
    prompts = read_prompts(top) if stage in STAGES else None
    sources = _sources(top, info, dataset_names, top.count("max_samples"), tokenizer, prompts)
    if not sources:
        raise nothing(Path(tree.file), "LLaMA-Factory")
    strategy = top.text("mix_strategy") or "concat"
    horizon, passes = length(top, "num_train_epochs", 3)
    options: dict[str, Any] = {}
    ordered = top.flag("disable_shuffling")
    if strategy in _STOPS:
        sources, options["stop"] = (
            _with_probabilities(top, dataset_names, sources),
            _STOPS[strategy],
        )
        if passes != 1:
            reason = (
                "a pass ends with the first source, and then starts over: one pass is carried over"
            )
            if horizon:
                top.report("max_steps", f"{reason}, which may end before this number of steps")
            elif top.has("num_train_epochs"):
                top.report("num_train_epochs", reason)
            else:
                account.report(
                    tree,
                    "",
                    f"num_train_epochs is missing, so the run has {passes} passes: {reason}",
                )
    else:
        if strategy != "concat":
            top.report("mix_strategy", f"{strategy!r} is not a stop rule of a mixture file")
        combined, options = put_together(list(sources.values()), passes)
        sources = dict(zip(sources, combined, strict=True))
        if ordered and len(sources) > 1:
            top.report(
                "disable_shuffling",
                "datasets are concatenated: here they are mixed evenly, in order",
            )
    parts, split = hold_out(top, "val_size", [*sources.values()], "LLaMA-Factory")
    model = _model(
        parts,
        Path(tree.file),
        seed=seed_of(top),
        shuffle=Shuffling("none") if ordered else None,
        split=split,
        horizon=horizon,
        **(
            _rows(top, pretraining)
            if prompts is None
            else _chat_rows(top, prompts, sources.values())
        ),
        **options,
    )
    settle_deepspeed(top)
    if pretraining:
        top.settle(reported={_TOKENS: ("model_revision",)}, usual={"model_revision": "main"})
    if top.peek("streaming"):
        top.settle(reported={_STREAMS: WORKERS})
    if pretraining or top.peek("packing") or top.peek("neat_packing"):
        reason = "rows are packed over all data here; LLaMA-Factory packs per group and worker"
        top.settle(noted={reason: _PREPARING})
    settle_accelerator(top)
    settle_ranks(top, _RANKS)
    top.settle({*_HARMLESS, *WORKERS, *_PREPARING}, _REPORTED, _NOTED, _USUAL)
    return model


def _dataset_names(top: Section) -> list[str]:
    """Return the names of the datasets, with repetitions."""
    setting = top.get("dataset")
    names = (
        [name.strip() for name in setting.split(",")]
        if isinstance(setting, str)
        else top.texts("dataset")
    )
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        top.report(
            "dataset",
            f"{', '.join(repeated)} is repeated, and counts each time; newer versions count it "
            "once, regardless of probabilities",
        )
    return names


def _read_descriptions(top: Section, dataset_names: list[str]) -> MixtureNode:
    """Return the described datasets of those names.

    The description is in the folder `dataset_dir`, relative to the folder where LLaMA-Factory
    starts: the root of its checkout, or of the project around the file.
    """
    setting = top.text("dataset_dir") or "data"
    if setting.startswith("REMOTE:"):
        raise ConfigError(
            f"{top.node.file}: its dataset_info.json is on a hub, in {setting[7:]!r}: download "
            "that folder, and set dataset_dir to it"
        )
    file = Path(top.path(setting)) / "dataset_info.json"
    for folder in top.folder.parents:
        if file.is_file():
            break
        if (folder / setting / "dataset_info.json").is_file():
            file = folder / setting / "dataset_info.json"
    info = read_file(file, ProblemLog(), variables=False) if file.is_file() else None
    if info is None or not _is_info(info):
        expected_path = (
            f"{Path(top.path(setting)) / 'dataset_info.json'}, or in {setting!r} of a folder above"
        )
        raise ConfigError(
            f"{top.node.file}: its dataset descriptions are missing: expected {expected_path}"
        )
    table = info.value if isinstance(info.value, dict) else {}
    return replace(
        info, value={name: table[name] for name in dict.fromkeys(dataset_names) if name in table}
    )


def _rows(top: Section, pretraining: bool) -> dict[str, Any]:
    """Return tokens, rows and batches.

    Plain texts (`stage: pt`) are concatenated and split, or truncated one by one.
    """
    key = "per_device_train_batch_size"
    size, drop = count_or_default(top, key, 8, "transformers"), top.flag("dataloader_drop_last")
    packing = top.flag("packing") if pretraining and top.has("packing") else None
    packing = True if top.peek("neat_packing") is True else packing
    if not pretraining or not top.has("model_name_or_path") or packing is False:
        reason = "model_name_or_path is missing, which names the tokenizer"
        if pretraining and packing is False:
            reason = (
                "texts are truncated one by one and padded: only packed rows have a length here"
            )
        for name in ("packing", "neat_packing", "cutoff_len"):
            top.report(name, reason)
        return {"batch": per_rank(size, top, key, collate="list", drop_remainder=drop)}
    row_length = top.count("cutoff_len") or 2048
    row_length -= int(packing is True)  # LLaMA-Factory reserves one token with packing
    top.get("neat_packing")
    eos = "<|end_of_text|>" if top.text("template") == "llama3" else True
    top.note(
        "stage",
        "texts are shuffled, concatenated and split; LLaMA-Factory does so for 1,000 at a time, "
        "and shuffles rows",
    )
    return {
        "pack": {"length": row_length, "method": "concat_split", "eos": eos},
        "batch": per_rank(size, top, key, drop_remainder=drop),
    }


def _chat_rows(top: Section, prompts: Prompts, sources: Iterable[SourceEntry]) -> dict[str, Any]:
    """Return rows and batches of chats: packed whole, or each for itself."""
    key = "per_device_train_batch_size"
    size, drop = count_or_default(top, key, 8, "transformers"), top.flag("dataloader_drop_last")
    packs = [top.flag("packing"), top.flag("neat_packing")]
    if not any(packs):
        return {"batch": per_rank(size, top, key, collate="list", drop_remainder=drop)}
    forms = {source.chat.format for source in sources if source.chat is not None}
    if forms & {"preference", "kto"}:
        top.report("packing", "pairs and samples with labels are not packed")
    if not packs[1]:
        top.note(
            "packing", "samples of a row are apart here; LLaMA-Factory needs neat_packing for that"
        )
    return {
        "pack": {"length": prompts.max_length, "method": "best_fit"},
        "batch": per_rank(size, top, key, drop_remainder=drop),
    }


def _model(sources: list[SourceEntry], file: Path, **options: Any) -> MixtureFile:
    if not sources:
        raise nothing(file, "LLaMA-Factory")
    return MixtureFile(tuple(sources), **options)


def _sources(
    top: Section,
    info: Section,
    dataset_names: list[str],
    max_samples: int | None,
    tokenizer: str | None,
    prompts: Prompts | None,
) -> dict[int, SourceEntry]:
    """Return the named datasets by their position among the names."""
    names, sources = Names(), dict[int, SourceEntry]()
    for number, name in enumerate(dataset_names):
        item = info.part(name) if name in info.table else None
        if item is None:
            top.report("dataset", f"{name!r} is not in {info.node.file}: its share is lost")
        else:
            if (
                source := _source(names.of(name), item, max_samples, tokenizer, prompts)
            ) is not None:
                sources[number] = source
    return sources


def _source(
    name: str,
    item: Section,
    max_samples: int | None,
    tokenizer: str | None,
    prompts: Prompts | None,
) -> SourceEntry | None:
    location_key = next((key for key in _LOCATION_KEYS if item.has(key)), None)
    if location_key is None:
        item.drop("its location is missing: its share is lost")
        return None
    setting = item.text(location_key) or ""
    item.pass_over(
        *(other for other in _LOCATION_KEYS if other != location_key)
    )  # other locations of the same dataset
    if location_key == "hf_hub_url":
        split = plain_split(item, "split", item.text("split")) or "train"
        hub = Hub(setting, item.text("subset"), split, tuple(item.texts("folder")))
        paths = item.dataset(location_key, name, hub, "subset", "split")
        if item.has("folder"):
            item.report("folder", _WHOLE_FOLDER)
            for key in ("subset", "split"):
                item.report(key, _WHOLE_FOLDER)
    elif location_key == "file_name":
        paths = item.local(location_key, name, [setting])
    else:
        paths = item.local(
            location_key,
            name,
            [setting if "://" in setting else f"{location_key.removesuffix('_url')}://{setting}"],
        )
    for key in ("subset", "split", "folder") if location_key != "hf_hub_url" else ():
        if item.peek(key) != "train":
            item.report(key, f"the selected part of a {location_key} is lost: name its files")
        else:
            item.pass_over(key)
    item.note(
        "num_samples",
        "the first samples are taken; LLaMA-Factory draws random ones, with repetitions if needed",
    )
    counts = [count for count in (item.count("num_samples"), max_samples) if count is not None]
    tokenize = None
    if tokenizer is not None:
        columns = item.part("columns")
        field = (columns.text("prompt") if columns else None) or "instruction"
        tokenize = Tokenizing(tokenizer, field)
        columns.pass_over(*columns.table) if columns else None  # other columns are not read
    chat = read_chat(item, prompts) if prompts is not None else None
    item.settle(("ranking",) if tokenize else (), _ENTRY_REPORTED)
    rows = (0, min(counts)) if counts else None
    return SourceEntry(name, paths, slice=rows, tokenize=tokenize, chat=chat)


def _with_probabilities(
    top: Section, dataset_names: list[str], sources: dict[int, SourceEntry]
) -> dict[int, SourceEntry]:
    """Apply the interleaving probabilities, in the order of the datasets."""
    setting = top.get("interleave_probs")
    if setting is None:
        return sources
    texts: list[Any] = (
        setting.split(",") if isinstance(setting, str) else top.texts("interleave_probs")
    )
    try:
        shares = [float(text) for text in texts]
    except ValueError:
        shares = []
    if len(shares) != len(dataset_names):
        top.report(
            "interleave_probs", f"expected one number for each of {len(dataset_names)} datasets"
        )
        return sources
    return {number: replace(source, weight=shares[number]) for number, source in sources.items()}
