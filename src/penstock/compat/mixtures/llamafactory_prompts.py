"""LLaMA-Factory: the formats and templates of its datasets as settings of `chat`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...mixture_files import Chatting
from ...text.chat import TrainOn
from .account import Section
from .prompts import TemplateNames, with_default_system
from .trainers import NO_TOKENIZER

PICTURES = "images, audio and video need the processor of the model: map the rows in Python"
UNKNOWN_TEMPLATE = "the template {!r} is not built in: give a template that writes the same as chat.template in Python"
STAGES = ("sft", "rm", "dpo", "kto")
"""Stages whose samples are conversations."""
MEDIA = ("images", "videos", "audios")

_TEMPLATES = TemplateNames(
    families={
        "chatml": "chatml", "llama3": "llama3", "qwen3": "qwen", "qwen3_5": "qwen", "qwen3_nothink": "chatml",
        "qwen3_5_nothink": "chatml", "gemma": "gemma", "gemma2": "gemma", "gemma3": "gemma", "gemma3n": "gemma",
        "deepseek3": "deepseek", "deepseekr1": "deepseek",
    },
    copies={},
)  # fmt: skip
_SYSTEMS = {"qwen": "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."}
"""Templates of ChatML, with the system message of conversations without one."""
_DIFFERENCES = {
    "white space around contents is left out; LLaMA-Factory keeps it": ("llama3", "gemma", "qwen"),
    "the line break behind an answer is not learned; LLaMA-Factory learns it": (
        "chatml",
        "gemma",
        "qwen",
    ),
    "an empty reasoning is before the last answer; LLaMA-Factory writes it before each": ("qwen",),
}
"""Differences of built-in templates, with the templates that have them."""
_ROLES = {
    "user_tag": ("user", ("human", "user")),
    "assistant_tag": ("assistant", ("gpt", "assistant")),
    "observation_tag": ("tool", ("observation", "tool")),
    "function_tag": ("function_call", ("function_call",)),
    "system_tag": ("system", ("system",)),
}
"""Tags of roles, with the roles of templates and their names that need no setting."""


@dataclass(frozen=True)
class Prompts:
    """Settings of a training file that the prompts of its datasets share."""

    tokenizer: str
    template: str | None
    max_length: int
    train_on: TrainOn
    input_separator: str = "\n"


def read_prompts(top: Section) -> Prompts | None:
    """Return the settings of the prompts; `None`, with a report, if they cannot be carried over.

    Args:
        top: the training file, of a stage with conversations.
    """
    tokenizer = top.text("model_name_or_path")
    if tokenizer is None:
        top.account.note(top.node, "", NO_TOKENIZER)
        return None
    name = top.text("template")
    template, is_known = _TEMPLATES.find(name, tokenizer) if name is not None else (None, True)
    if name in _SYSTEMS:
        template, is_known = with_default_system("chatml", _SYSTEMS[name]), True
    if not is_known:
        top.report("template", UNKNOWN_TEMPLATE.format(name))
        return None
    if name is not None and template is None:
        top.note(
            "template", "the template of the tokenizer is used: LLaMA-Factory has a copy of it"
        )
    for difference, families in _DIFFERENCES.items():
        if template in families or (name in _SYSTEMS and "chatml" in families):
            top.note("template", difference)
    train_on: TrainOn = "assistant"
    if top.flag("mask_history"):
        train_on = "last"
    if top.flag("train_on_prompt"):
        train_on = "all"
    length = top.count("cutoff_len")
    top.note(
        "cutoff_len",
        "longer samples are cut on the right; LLaMA-Factory cuts a prompt and its answer in proportion",
    )
    return Prompts(tokenizer, template, length or 2048, train_on)


def read_chat(item: Section, prompts: Prompts) -> Chatting | None:
    """Return the chat of a dataset; `None`, with a report, if it cannot be carried over.

    Args:
        item: the description of the dataset.
        prompts: settings of the training file.
    """
    columns, tags = item.part("columns"), item.part("tags")
    if columns is not None and (media := [name for name in MEDIA if columns.has(name)]):
        for name in media:
            columns.report(name, PICTURES)
        for part in (columns, tags):
            part.pass_over(*(name for name in part.table if name not in media)) if part else None
        item.pass_over("formatting", "ranking")
        return None
    formatting = item.text("formatting") or "alpaca"
    form, fields = _read_fields(item, columns, formatting)
    if form is None:
        item.report("formatting", f"{formatting!r} is no format of rows that is known")
        return None
    roles = _read_tags(tags, fields) if tags is not None else {}
    if columns is None or not columns.has("system"):
        item.account.note(
            item.node,
            item.key_path,
            "fields such as system and history are read if rows have them; LLaMA-Factory reads those "
            "that columns names",
        )
    if formatting != "alpaca":
        item.note(
            "formatting",
            "conversations whose turns do not alternate are samples; LLaMA-Factory drops them",
        )
    return make_chat(prompts, form, fields, roles)


def make_chat(
    prompts: Prompts, form: str, fields: Mapping[str, str], roles: Mapping[str, str]
) -> Chatting:
    """Return a chat with the settings of a training file."""
    options: dict[str, Any] = {}
    if form in ("alpaca", "preference", "kto"):
        options["input_separator"] = prompts.input_separator
    return Chatting(
        prompts.tokenizer,
        format=form,
        template=prompts.template,
        train_on="assistant" if form in ("preference", "kto") else prompts.train_on,
        fields={name: text for name, text in fields.items() if name != text} or None,
        roles=dict(roles) or None,
        max_length=prompts.max_length,
        truncate="right",
        **options,
    )


def _read_fields(
    item: Section, columns: Section | None, formatting: str
) -> tuple[str | None, dict[str, str]]:
    """Return the format of the rows, and the names of their fields."""
    names = {
        "alpaca": {
            "prompt": "instruction",
            "query": "input",
            "response": "output",
            "history": "history",
        },
        "sharegpt": {"messages": "conversations"},
        "openai": {"messages": "messages"},
    }.get(formatting)
    if names is None:
        return None, {}
    ranking = item.flag("ranking")
    common = ("system", "tools", *(("chosen", "rejected") if ranking else ()))
    names |= {name: name for name in common} | {"kto_tag": "label"}
    fields = dict[str, str]()
    for key, field in names.items():
        if columns is not None and (text := columns.text(key)):
            fields[field] = text
    form = {"openai": "messages"}.get(formatting, formatting)
    if form == "sharegpt" and ranking:
        fields.setdefault("conversations", "conversations")
    if ranking:
        return "preference", fields
    return ("kto" if "label" in fields else form), fields


def _read_tags(tags: Section, fields: dict[str, str]) -> dict[str, str]:
    """Add the keys of messages to the fields, and return roles of templates by those of the data."""
    for tag, field, usual in (("role_tag", "role", "from"), ("content_tag", "content", "value")):
        fields[field] = tags.text(tag) or usual
    roles = dict[str, str]()
    for tag, (role, usual_names) in _ROLES.items():
        name = tags.text(tag)
        if name is not None and name not in usual_names:
            roles[name] = role
    return roles
