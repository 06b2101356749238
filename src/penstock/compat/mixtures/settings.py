"""Names of settings that do not affect samples: models, optimisers, logs, checkpoints.

The converters share them. A converter lists its harmless keys; it reports a key that is in no list.
"""

from __future__ import annotations

MODEL = frozenset(
    "type architecture model_type name hidden_dim hidden_size intermediate_dim "
    "intermediate_size d_model d_ff n_layers n_heads n_kv_heads num_layers num_heads "
    "num_kv_heads num_hidden_layers num_attention_heads num_key_value_heads "
    "num_query_groups head_dim head_size mlp_ratio mlp_hidden_size ffn_hidden_size "
    "kv_channels expansion_ratio gradient_checkpointing activation activation_function "
    "activation_type hidden_act layer_norm_type layer_norm_epsilon layernorm_epsilon "
    "layer_norm_with_affine rms_norm_eps norm_type norm use_bias include_bias "
    "bias_for_layer_norm attention_layer_norm attention_layer_norm_with_affine clip_qkv "
    "rope rope_theta rope_scaling rope_interleaved rotary_pct rotary_base "
    "position_embedding_type alibi attention_bias attention_dropout attention_config "
    "attn_config attn_pdrop attn_backend attn_implementation _attn_implementation "
    "flash_attention flash_attention_block_size embed_pdrop resid_pdrop embedding_dropout "
    "residual_dropout emb_pdrop hidden_dropout weight_tying tie_word_embeddings "
    "share_embeddings_and_output_weights init_method init_method_std initializer_range "
    "init_device init_std init_cutoff_factor init_config scan_layers scale_logits "
    "vocab_size embedding_size padded_vocab_size make_vocab_size_divisible_by upcast_attn "
    "sliding_window use_cache pad_token_id bos_token_id eos_token_id is_llama_config "
    "is_qwen2_config pretraining_tp ddp_bucket_cap_mb dtype make_vocab_size_divisible_by "
    "pretrained pretrained_model_name_or_path use_auth_token precision block_type "
    "activation_checkpointing num_experts moe_num_experts moe_top_k reference_checkpoint "
    "use_layer_norm_weight use_flash_attention".split()
)
"""Settings of a model that do not affect samples; without its row length."""

OPTIMIZER = frozenset(
    "optimizer optim scheduler lr_scheduler learning_rate lr learning_rate_scheduler "
    "weight_decay clip_grad gradient_clipping max_grad_norm warmup warmup_steps "
    "warmup_ratio min_lr lr_decay_style lr_decay_iters".split()
)
TRACKING = frozenset(
    "tracker wandb wandb_project wandb_name wandb_entity tensorboard loggers logging "
    "log_interval log_level console_log_interval progress_bar log_to_console "
    "python_log_level profiler profiling name run_name run_names description exporter".split()
)
"""Without `callbacks`, which may change the samples or end the run."""
CHECKPOINTS = frozenset(
    "checkpointer checkpoints checkpoint save save_folder save_interval save_overwrite "
    "save_filename save_latest_filename save_num_checkpoints_to_keep save_weights_only "
    "save_checkpoint hf_save_path hf_save_steps hf_upload initialize_from_hf "
    "initialize_from_checkpoint_path use_hf_model_config load_weights_only "
    "load_strict_model_weights output_dir".split()
)
