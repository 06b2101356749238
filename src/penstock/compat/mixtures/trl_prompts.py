"""TRL: its arguments of templates, lengths and packing as `chat` and `pack`."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from ...mixture_files import Chatting
from ...text.chat import TrainOn, Truncate
from .account import Section

PROMPTS = "the trainer makes prompts of its rows: map the rows in Python"
LENGTHS = "splitting and packing need tokens, and nothing names the tokenizer"
_PREFERENCES = (
    "beta", "max_prompt_length", "rpo_alpha", "reference_free", "f_divergence_type", "precompute_ref_log_probs",
    "simpo_gamma", "cpo_alpha", "desirable_weight", "label_smoothing",
)  # fmt: skip
"""Arguments of trainers of preference pairs."""
_NO_EFFECT = ("add_special_tokens", "append_concat_token")


def is_preference(top: Section) -> bool:
    """Return whether a file is for a trainer of preference pairs, by its arguments."""
    return any(top.has(key) for key in _PREFERENCES)


def read_chat(top: Section) -> tuple[Chatting, dict[str, Any] | None] | None:
    """Return the chat of all datasets and the packed rows; `None` if no key names a tokenizer.

    Args:
        top: the training file.
    """
    key = next(
        (key for key in ("tokenizer_name_or_path", "model_name_or_path") if top.has(key)), None
    )
    if key is None:
        return None
    tokenizer = top.text(key) or ""
    pairs, text_field = is_preference(top), top.text("dataset_text_field")
    form, train_on = ("preference" if pairs else "auto"), _read_train_on(top, pairs)
    if top.flag("completion_only_loss") and not pairs:
        form, train_on = "completion", "assistant"
    limit = (
        "max_length" if top.has("max_length") or not top.has("max_seq_length") else "max_seq_length"
    )
    if limit in top.table and not top.has(limit):
        top.get(limit)
        length = None
    else:
        length = top.count(limit) or 1024
    if not top.has(limit):
        top.account.note(
            top.node, top.key_path, "max_length is missing: the default of TRL is 1024"
        )
    for other in ("max_seq_length", "max_length"):
        top.pass_over(other) if other != limit and other in top.table else None
    top.note("max_prompt_length", "pairs are cut at max_length; TRL cuts longer prompts too")
    pack = None if pairs else _read_packing(top, limit, length)
    truncate: Truncate = "left" if top.text("truncation_mode") == "keep_end" else "right"
    is_wrapped = pack is not None and pack["method"] == "concat_split"
    chat = Chatting(
        tokenizer,
        format=form,
        template=_read_template(top),
        train_on=train_on,
        fields={"text": text_field} if text_field and text_field != "text" else None,
        max_length=None if is_wrapped else length,
        truncate="turns" if is_wrapped else truncate,
        variables=_read_variables(top),
        eos=top.text("eos_token"),
    )
    top.pass_over("pad_token")
    return chat, pack


def _read_train_on(top: Section, pairs: bool) -> TrainOn:
    """Return what is learned: the answers of pairs; else all, unless the file says otherwise."""
    answers = top.flag("assistant_only_loss")
    if pairs or answers:
        return "assistant"
    top.account.note(
        top.node,
        top.key_path,
        "all tokens of a conversation are learned, as by SFTTrainer; for rows with a prompt and a "
        "completion, set train_on to assistant",
    )
    return "all"


def _read_packing(top: Section, limit: str, length: int | None) -> dict[str, Any] | None:
    """Return packed rows: whole samples that fit, or all tokens end to end with `wrapped`."""
    strategy = str(
        top.peek("packing_strategy") or ("bfd" if limit == "max_length" else "wrapped")
    ).strip()
    if not top.flag("packing") or length is None:
        top.pass_over("packing_strategy")
        return None
    methods = {
        "wrapped": "concat_split",
        "bfd": "best_fit",
        "bfd_split": "best_fit",
        "ffd": "first_fit",
    }
    if strategy not in methods:
        top.report("packing_strategy", f"{strategy!r} is no strategy that is known")
    top.get("packing_strategy")
    return {"length": length, "method": methods.get(strategy, "best_fit")}


def _read_template(top: Section) -> str | None:
    """Return the template that a file holds or names; `None` for the one of the tokenizer."""
    text, path = top.text("chat_template"), top.peek("chat_template_path")
    if text and "{" in text:
        top.report("chat_template_path", "chat_template takes precedence")
        return text
    top.report("chat_template", "this is a name, not a template") if text else None
    if isinstance(path, str) and Path(top.path(path)).is_file():
        top.get("chat_template_path")
        return str(Path(top.path(path)))
    top.report("chat_template_path", "the template of another model: give its file")
    return None


def _read_variables(top: Section) -> dict[str, Any] | None:
    """Return values for the template, and account for `dataset_kwargs`."""
    if isinstance(top.peek("dataset_kwargs"), dict):
        part = top.part("dataset_kwargs")
        assert part is not None
        part.settle(_NO_EFFECT)
    variables = top.get("chat_template_kwargs")
    return cast("dict[str, Any]", variables) if isinstance(variables, dict) and variables else None
