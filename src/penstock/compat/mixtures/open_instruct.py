"""open-instruct: the `dataset_mixer`, `dataset_mixer_list` or `dataset_name` of a training file."""

from __future__ import annotations

from pathlib import Path

from ...mixture_files import Chatting, MixtureFile, SourceEntry
from ...mixture_files.reading import MixtureNode
from .account import EVALUATION, Account, Reasons, Section, nothing
from .handbook import MIXERS, read_mixer
from .locations import Hub, Names
from .trainers import (
    NO_TOKENIZER,
    OTHER_RUN,
    TRANSFORMERS_NOTED,
    count_or_default,
    length,
    per_rank,
    put_together,
    seed_of,
)
from .trl import paths_of
from .trl_prompts import is_preference

ARGUMENTS = frozenset(
    "with_tracking checkpointing_steps use_slow_tokenizer tokenizer_name max_train_steps add_bos "
    "dataset_mix_dir dataset_mixer_list dataset_mixer_list_splits chat_template_name use_qlora "
    "try_launch_beaker_eval_jobs keep_last_n_checkpoints dataset_train_splits".split()
)
"""Keys that distinguish its files from those of alignment-handbook."""
_TULU = (
    "{% for message in messages %}{% if message.role == 'assistant' %}{{ '<|assistant|>\\n' }}"
    "{% generation %}{{ message.content + eos_token }}{% endgeneration %}"
    "{{ '' if loop.last else '\\n' }}"
    "{% else %}{{ '<|' + message.role + '|>\\n' + message.content + '\\n' }}{% endif %}{% endfor %}"
    "{{ '<|assistant|>\\n' if add_generation_prompt else '' }}"
)
"""The template `tulu`: the role in a line of its own, and the EOS token behind answers."""
_TEMPLATES = {None: None, "tulu": _TULU}
_REPORTED: Reasons = {
    OTHER_RUN: ("resume_from_checkpoint",),
    "it limits the number of samples: give each source a slice": ("max_train_samples",),
    "it changes the tokens: give a tokenizer that has these settings": (
        "tokenizer_revision", "get_tokenizer_fn",
    ),
    "these functions make the samples: map the rows in Python": (
        "dataset_transform_fn", "dataset_target_columns", "sft_messages_key", "dataset_config_name",
    ),
    "samples share rows, which have no fixed length": ("packing", "padding_free"),
}  # fmt: skip
_NOTED: Reasons = {
    **TRANSFORMERS_NOTED,
    EVALUATION: (
        "dataset_mixer_eval_list", "dataset_mixer_eval_list_splits", "dataset_eval_mixer",
        "dataset_eval_mixer_list", "dataset_eval_splits",
    ),
}  # fmt: skip
_USUAL = {"tokenizer_revision": "main", "model_revision": "main"}
_HARMLESS = frozenset(
    # the model and the loss
    "model_name_or_path config_name trust_remote_code low_cpu_mem_usage torch_dtype "
    "use_flash_attn use_lora use_qlora use_8bit_optimizer lora_rank lora_alpha lora_dropout "
    "load_balancing_loss load_balancing_weight reduce_loss use_liger_kernel gradient_checkpointing "
    "beta loss_type gamma_beta_ratio label_smoothing dpo_loss_type dpo_beta dpo_gamma_beta_ratio "
    "dpo_use_paged_optimizer use_paged_optimizer additional_model_arguments "
    # the optimizer
    "learning_rate lr_scheduler_type warmup_ratio warmup_steps final_lr_ratio weight_decay "
    "clip_grad_norm max_grad_norm fused_optimizer timeout "
    # logs, checkpoints, uploads, evaluation
    "exp_name run_name do_not_randomize_output_dir output_dir with_tracking report_to logging_steps "
    "checkpointing_steps keep_last_n_checkpoints clean_checkpoints_at_end wandb_entity "
    "wandb_project_name push_to_hub save_to_hub hf_entity hf_repo_id hf_repo_revision hf_repo_url "
    "try_launch_beaker_eval_jobs hf_metadata_dataset try_auto_save_to_beaker gs_bucket_path "
    "oe_eval_tasks oe_eval_max_length eval_workspace eval_priority add_seed_and_date_to_exp_name "
    # storage of prepared data, and a flag that it ignores
    "preprocessing_num_workers overwrite_cache dataset_mix_dir dataset_cache_mode "
    "dataset_local_cache_dir dataset_config_hash dataset_skip_cache cache_dataset_only "
    "use_slow_tokenizer use_fast".split()
)


def is_mine(tree: MixtureNode) -> bool:
    value = tree.value if isinstance(tree.value, dict) else {}
    named = any(key in value and value[key].value for key in (*MIXERS, "dataset_name"))
    return named and "dataset_mixture" not in value and bool(ARGUMENTS & value.keys())


def convert(tree: MixtureNode, account: Account) -> MixtureFile:
    """Convert the datasets, or parts of them, concatenated and shuffled."""
    top, names = account.open(tree), Names()
    if any(top.has(key) for key in MIXERS):
        sources = list(read_mixer(top, names))
        top.report("dataset_name", "the mixer takes precedence, so this is not read")
    else:
        hub = Hub(top.text("dataset_name") or "", None, "train")
        name = names.of(hub.source_name)
        sources = [SourceEntry(name, paths_of(top, "dataset_name", name, hub, "", ""))]
    if not sources:
        raise nothing(Path(tree.file), "open-instruct")
    epochs = "num_train_epochs" if top.has("num_train_epochs") else "num_epochs"
    horizon, passes = length(top, epochs, 2, "max_train_steps")
    combined, options = put_together(sources, passes)
    key = "per_device_train_batch_size"
    size = count_or_default(top, key, 8, "open-instruct")
    batch = per_rank(size, top, key, collate="list")
    seed, chat = seed_of(top), _read_chat(top)
    top.settle(_HARMLESS, _REPORTED, _NOTED, _USUAL)
    return MixtureFile(combined, seed=seed, chat=chat, horizon=horizon, batch=batch, **options)


def _read_chat(top: Section) -> Chatting | None:
    """Return the chat: answers are learned, and longer samples are cut on the right."""
    keys = ("tokenizer_name", "tokenizer_name_or_path", "model_name_or_path")
    key = next((key for key in keys if top.has(key)), None)
    if key is None:
        top.account.note(top.node, "", NO_TOKENIZER)
        return None
    tokenizer, name = top.text(key) or "", top.text("chat_template_name")
    top.pass_over(*(other for other in keys if other != key))
    if name not in _TEMPLATES:
        top.report(
            "chat_template_name", f"the template {name!r} is not built in: give chat its file"
        )
    elif name is None:
        top.account.note(
            top.node,
            "",
            "the template of the tokenizer is used; older versions use their template tulu: if the "
            "tokenizer has none, set chat_template_name",
        )
    template = _TEMPLATES.get(name)
    if top.flag("add_bos"):
        if template is None:
            top.report("add_bos", "give chat a template that begins with the BOS token")
        else:
            template = "{{ bos_token }}" + template
    limit = top.count("max_seq_length")
    form = "preference" if is_preference(top) or top.has("loss_type") else "messages"
    return Chatting(tokenizer, format=form, template=template, max_length=limit, truncate="right")
