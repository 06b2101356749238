"""llm-foundry: the samples of its finetuning loader as `chat` and `pack`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...mixture_files import Chatting
from .account import Section
from .prompts import ALPACA, PromptStyle

_UNKNOWN_FUNCTION = "this function makes the prompts: map the rows in Python"
_DOLLY = PromptStyle(ALPACA.plain, ALPACA.plain.replace("{instruction}", "{instruction}\n{input}"))
"""Alpaca's prompt without an input, in which an input is a line behind the instruction."""
_FUNCTIONS: dict[str, dict[str, Any]] = {
    "HuggingFaceH4/databricks_dolly_15k": {"format": "alpaca", "template": _DOLLY.template()},
    "teknium/OpenHermes-2.5": {"format": "sharegpt"},
    "AI-MO/NuminaMath-CoT": {"format": "messages"},
}
"""Datasets, and names of functions, whose prompts a chat makes."""
_OTHER_FUNCTIONS = (
    "tatsu-lab/alpaca", "bigscience/P3", "Muennighoff/P3", "Muennighoff/flan", "math-ai/StackMathQA",
)  # fmt: skip
"""Datasets whose prompts the tool makes by functions without a counterpart."""
_USUAL = {"target_prompts": "none", "target_responses": "last"}


def read_chat(
    top: Section, dataset: Section, resolve: Callable[[Any], Any]
) -> tuple[Chatting, dict[str, Any] | None] | None:
    """Return the chat of a finetuning dataset and its packed rows; `None` if none can be named.

    Args:
        top: the training file.
        dataset: the dataset of the train loader.
        resolve: replaces a reference to a variable by its value.
    """
    part = top.part("tokenizer") if isinstance(top.peek("tokenizer"), dict) else None
    tokenizer = resolve(part.text("name")) if part is not None else None
    part.pass_over("kwargs") if part is not None else None
    options = _read_function(dataset)
    if part is None or not isinstance(tokenizer, str) or options is None:
        return None
    length: Any = resolve(dataset.get("max_seq_len"))
    if not isinstance(length, int):
        dataset.report("max_seq_len", f"{length!r} is not a number of tokens")
        return None
    for key, usual in _USUAL.items():
        dataset.get(key) if dataset.peek(key) == usual else dataset.report(
            key, "answers alone are learned"
        )
    dataset.pass_over("allow_pad_trimming", "decoder_only_format")
    return Chatting(tokenizer, max_length=length, truncate="right", **options), _pack(
        dataset, length
    )


def _read_function(dataset: Section) -> dict[str, Any] | None:
    """Return the form of the samples: of a known function, of named columns, or the usual one."""
    named, setting = dataset.peek("hf_name"), dataset.peek("preprocessing_fn")
    if isinstance(setting, dict):
        part = dataset.part("preprocessing_fn")
        assert part is not None
        fields = {"prompt": part.text("prompt"), "completion": part.text("response")}
        return {
            "format": "completion",
            "fields": {name: text for name, text in fields.items() if text},
        }
    key = "hf_name" if setting in (None, "") else "preprocessing_fn"
    function = named if setting in (None, "") else setting
    if function in _FUNCTIONS:
        dataset.get("preprocessing_fn")
        return _FUNCTIONS[function]
    if key == "preprocessing_fn" or function in _OTHER_FUNCTIONS:
        dataset.report(key, _UNKNOWN_FUNCTION)
        return None
    return {"format": "completion", "fields": {"completion": "response"}}


def _pack(dataset: Section, length: int) -> dict[str, Any] | None:
    """Return packed rows, if samples share rows."""
    if not dataset.has("packing_ratio"):
        return None
    dataset.get("packing_ratio")
    dataset.note(
        "packing_ratio", "rows are filled as far as they go; the ratio only sizes the buffer"
    )
    dataset.pass_over("max_leftover_bins_to_keep")
    return {"length": length, "method": "first_fit"}
