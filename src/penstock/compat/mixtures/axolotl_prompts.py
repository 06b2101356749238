"""axolotl: the types of its datasets as settings of `chat`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ...mixture_files import Chatting, Tokenizing
from ...text.chat import Truncate
from .account import Section
from .prompts import ALPACA, PromptStyle, TemplateNames, with_preamble

UNKNOWN_TYPE = "this type makes prompts that a mixture file cannot express: map the rows in Python"
PICTURES = "images need the processor of the model, which is an object: map the rows in Python"
GENERATED = "the trainer generates the answers itself"
_LEARNED = (
    "a chat template learns the answers and the tokens that end them: other choices need Python"
)
_DATED = ("llama4", "llama3_2_vision", "mistral_v7_tekken")
"""Templates that write the date of today, unless `date` of the chat names another."""
_ROLES = {
    "user": {"human", "user"},
    "assistant": {"assistant", "gpt"},
    "system": {"system"},
    "tool": {"tool"},
}
PREFERENCES = ("dpo", "ipo", "orpo", "simpo", "kto")
_GENERATING = ("grpo", "gdpo", "ebft", "ppo")

_STYLES: Mapping[str, PromptStyle] = {
    "instruct": ALPACA,
    "chat": with_preamble(
        "SYSTEM: {system}\n",
        "USER: {instruction}\nASSISTANT:",
        "USER: {instruction}\n{input}\nASSISTANT:",
    ),
    "chatml": with_preamble(
        "<|im_start|>system\n{system}<|im_end|>\n",
        "<|im_start|>user\n{instruction}<|im_end|>\n<|im_start|>assistant\n",
        "<|im_start|>user\n{instruction}\n{input}<|im_end|>\n<|im_start|>assistant\n",
    ),
    "phi": with_preamble(
        "<|system|>\n{system}<|end|>\n",
        "<|user|>\n{instruction}<|end|>\n<|assistant|>\n",
        "<|user|>\n{instruction}<|end|>{input}<|assistant|>",
    ),
}
"""Styles of the type `alpaca`, such as `alpaca:chat`."""
_FIELDS: Mapping[str, Mapping[str, str]] = {
    "alpaca": {},
    "jeopardy": {"instruction": "question", "input": "category", "output": "answer"},
    "gpteacher": {"output": "response"},
    "oasst": {"instruction": "INSTRUCTION", "output": "RESPONSE"},
}
"""Types in the styles of `alpaca`, with the fields that they read."""
_ANSWERS = {"jeopardy": "what is "}
"""Texts before the answers of a type."""

_TEMPLATES = TemplateNames(
    families={
        "chatml": "chatml", "nemotron_h": "chatml", "llama3": "llama3", "gemma": "gemma", "gemma3": "gemma",
        "gemma3n": "gemma", "qwen3": "qwen", "qwen3_5": "qwen", "deepseek_v3": "deepseek",
    },
    copies={
        "gemma4": r"gemma-?4", "gemma4_unified": r"gemma-?4", "llama4": r"llama-?4", "falcon_h1": r"falcon-?h1",
        "llama3_2_vision": r"llama-?3\.2", "qwen_25": r"qwen2\.5", "qwen2_vl": r"qwen2(\.5)?-?vl",
        "phi_3": r"phi-?3", "phi_35": r"phi-?3", "phi_4": r"phi-?4", "cohere": r"command|cohere|c4ai",
        "command_a": r"command-a", "aya": r"aya", "jamba": r"jamba", "deepseek_v2": r"deepseek", "llava": r"llava",
        "exaone": r"exaone", "exaone4": r"exaone-?4", "pixtral": r"pixtral", "mistral_v1": r"mistral|mixtral",
        "mistral_v2v3": r"mistral|mixtral", "mistral_v3_tekken": r"mistral|nemo", "mistral_v7_tekken": r"mistral",
    },
)  # fmt: skip


@dataclass(frozen=True)
class Prompts:
    """Settings of a file that all its prompts share: tokenizer, lengths, template, what is learned."""

    top: Section
    tokenizer: str
    max_length: int
    truncate: Truncate
    learns_all: bool
    rl: str | None
    bos: str | None
    eos: str | None

    def chatting(self, **options: Any) -> Chatting:
        """Return a chat with the settings of the file."""
        chat = Chatting(
            self.tokenizer,
            max_length=self.max_length,
            truncate=self.truncate,
            train_on="all" if self.learns_all else "assistant",
            eos=self.eos,
        )
        return replace(chat, **options)


def read_encoding(item: Section, prompts: Prompts) -> Chatting | None:
    """Return the chat of a dataset by its type; `None` if it is lost, with a report.

    Args:
        item: the dataset.
        prompts: settings of the file.
    """
    kind = item.peek("type")
    if prompts.rl in _GENERATING:
        item.report("type", GENERATED)
        return None
    if isinstance(kind, dict):
        return _read_own_style(item, prompts)
    if not isinstance(kind, str):
        item.report_at("type", UNKNOWN_TYPE) if "type" in item.table else item.account.report(
            item.node, item.key_path, f"type is missing: {UNKNOWN_TYPE}"
        )
        return None
    base, _, style = kind.partition(":")
    if prompts.rl in PREFERENCES:
        return _read_preferences(item, prompts, kind)
    if base in _FIELDS and (style or "instruct") in _STYLES:
        item.get("type")
        return _read_style(item, prompts, base, style or "instruct")
    if kind in ("chat_template", "chat_template.default"):
        item.get("type")
        return _read_messages(item, prompts, "messages")
    if kind == "stepwise_supervised":
        return _read_steps(item, prompts)
    if kind == "bradley_terry.chat_template":
        item.get("type")
        chat = _read_messages(item, prompts, "preference")
        return chat and replace(chat, truncate="right")
    item.report("type", UNKNOWN_TYPE)
    return None


def chat_of_texts(texts: Tokenizing, prompts: Prompts) -> Chatting:
    """Return the chat of completions beside prompts: every token is learned, long texts are split."""
    fields = None if texts.field == "text" else {"text": texts.field}
    return prompts.chatting(format="text", fields=fields, max_length=None, truncate="turns")


def _read_steps(item: Section, prompts: Prompts) -> Chatting:
    """Return the chat of steps with labels, each with a line break behind it."""
    item.get("type")
    prompts.top.get("process_reward_model")
    separator = item.peek("step_separator")
    item.get("step_separator") if separator in (None, "\n") else item.report(
        "step_separator", "a line break is behind each step"
    )
    return prompts.chatting(format="stepwise", truncate="right", eos="")


def _read_style(item: Section, prompts: Prompts, base: str, style: str) -> Chatting:
    """Return the chat of samples in a style of Alpaca."""
    item.note(
        "type",
        "a prompt and its answer are encoded as one text; axolotl encodes them apart, so tokens "
        "where they meet may differ",
    )
    template = replace(_STYLES[style], answer=_ANSWERS.get(base, "")).template()
    return prompts.chatting(format="alpaca", template=template, fields=_FIELDS[base] or None)


def _read_own_style(item: Section, prompts: Prompts) -> Chatting | None:
    """Return the chat of a `type` that defines its prompts."""
    part = item.part("type")
    assert part is not None
    system = part.text("system_prompt")
    if system:
        part.report("system_prompt", UNKNOWN_TYPE)
        return None
    with_input = part.text("format") or "{instruction} {input} "
    plain = part.text("no_input_format") or "{instruction} "
    style = PromptStyle(plain, with_input, part.text("system_format") or "{system}")
    names = ("instruction", "input", "output", "system")
    given = {name: part.text(f"field_{name}") for name in names}
    fields = {name: text for name, text in given.items() if text and text != name}
    return prompts.chatting(format="alpaca", template=style.template(), fields=fields or None)


def _read_messages(item: Section, prompts: Prompts, form: str) -> Chatting | None:
    """Return the chat of messages, or of pairs, with a chat template."""
    template, is_known = _read_template(item, prompts)
    fields = _read_names(item, form)
    roles = _read_roles(item)
    _settle_learned(item)
    if prompts.learns_all:
        prompts.top.note("train_on_inputs", "what the template writes is learned too")
    if form == "messages":
        item.account.note(
            item.node,
            item.key_path,
            "the token that ends an answer is learned; axolotl learns it if it is the EOS token, or "
            "in eot_tokens",
        )
    if not item.has("message_field_training"):
        item.account.note(
            item.node,
            item.key_path,
            "messages with weight 0 or train false are not learned; axolotl learns them, unless "
            "message_field_training names the key",
        )
    if not is_known:
        return None
    kwargs = prompts.top.get("chat_template_kwargs")
    return prompts.chatting(
        format=form,
        template=template,
        fields=fields or None,
        roles=roles or None,
        variables=kwargs if isinstance(kwargs, dict) and kwargs else None,
        bos=prompts.bos,
    )


def _read_names(item: Section, form: str) -> dict[str, str]:
    """Return the fields of messages and pairs that have other names than the format."""
    fields = dict[str, str]()
    keys = {"messages": "field_messages"}
    if form == "preference":
        keys |= {"chosen": "field_chosen", "rejected": "field_rejected"}
    for name, key in keys.items():
        fields[name] = item.text(key) or name
    mapping = item.peek("message_property_mappings")
    if isinstance(mapping, dict) and mapping.keys() <= {"role", "content"}:
        part = item.part("message_property_mappings")
        assert part is not None
        fields |= {name: part.text(name) or name for name in ("role", "content")}
    elif mapping:
        item.report("message_property_mappings", "only role and content can be renamed")
    for name in ("role", "content"):
        if item.has(f"message_field_{name}"):
            fields[name] = item.text(f"message_field_{name}") or name
    for name in ("system", "tools"):
        fields[name] = item.text(f"field_{name}") or name
    return {name: text for name, text in fields.items() if text != name}


def _read_roles(item: Section) -> dict[str, str]:
    """Return roles of the template by those of the data, where they differ."""
    if not item.has("roles"):
        return {}
    part = item.part("roles")
    roles = dict[str, str]()
    for target in part.table if part is not None else ():
        assert part is not None
        for name in part.texts(target):
            if name not in _ROLES.get(target, {target}):
                roles[name] = target
    return roles


def _settle_learned(item: Section) -> None:
    """Account for keys that choose what is learned: the usual choices are carried."""
    usual = {
        "roles_to_train": (["assistant"], ["gpt"], ["assistant", "gpt"]),
        "train_on_eos": ("turn",),
        "train_on_eot": ("turn",),
        "message_field_training": ("train", "weight"),
    }
    for key, values in usual.items():
        item.get(key) if item.peek(key) in values else item.report(key, _LEARNED)
    thinking = item.peek("field_thinking"), item.peek("template_thinking_key")
    same = thinking[0] == thinking[1] and thinking[0] in (
        "thinking",
        "reasoning_content",
        "reasoning",
    )
    for key in ("field_thinking", "template_thinking_key"):
        item.get(key) if same else item.report(
            key, "reasoning keeps the key that it has in the data"
        )


def _read_template(item: Section, prompts: Prompts) -> tuple[str | None, bool]:
    """Return the template of a dataset or of the file, and whether it can be named."""
    part = item if item.has("chat_template") else prompts.top
    name = part.text("chat_template")
    if name is None or name == "tokenizer_default":
        return None, True
    if name == "jinja":
        text = part.text("chat_template_jinja")
        if text and "{" not in text:
            text = str(Path(part.path(text)))
        return text, text is not None
    template, is_known = _TEMPLATES.find(name, prompts.tokenizer)
    if template == "qwen":
        part.note(
            "chat_template",
            "an empty reasoning before an answer is learned too; axolotl learns the answer alone",
        )
    if name in _DATED:
        part.note("chat_template", "the template writes the date of today: set date of the chat")
    if not is_known:
        part.report(
            "chat_template", f"the template {name!r} is not built in: give its file, with jinja"
        )
    elif template is None:
        part.note(
            "chat_template",
            "the template of the tokenizer is used: axolotl has a copy of one of its versions",
        )
    return template, is_known


def _read_preferences(item: Section, prompts: Prompts, kind: str) -> Chatting | None:
    """Return the chat of preference pairs."""
    family, _, form = kind.partition(".")
    if prompts.rl != "kto":
        if family == "chat_template" and form in ("default", "argilla", "argilla_chat", ""):
            item.get("type")
            return _read_messages(item, prompts, "preference")
        if family in ("chatml", "llama3") and form in ("ultra", "argilla_chat", "intel", "icr"):
            item.get("type")
            return prompts.chatting(format="preference", template=family)
    item.report("type", UNKNOWN_TYPE)
    return None
