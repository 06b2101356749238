"""Chat templates: where they come from, and how Jinja's immutable sandbox renders them."""

from __future__ import annotations

import datetime
import importlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any, cast

from ...arguments import suggest_names
from ...errors import (
    ConfigError,
    DataError,
    PenstockError,
    convert_storage_errors,
    make_missing_extra_error,
)
from ...stores import display_path, parse_location
from ...stores.limits import MIXTURE_FILE, read_within
from .conversation import Message
from .loop_tracing import add_loop_filters, parse_traced, trace_loops
from .marks import GENERATION_END, GENERATION_START, MEDIA_KINDS
from .sandbox import bound_rendering, make_environment

_MEDIA_MARK = re.compile(f"([{''.join(MEDIA_KINDS)}])")


@dataclass(frozen=True)
class Family:
    """A built-in template.

    Attributes:
        file: the template, in the folder `families`.
        bos: the token that begins a text, unless the tokenizer names another.
        eos: the token that ends a text, unless the tokenizer names another.
        tokens: the control tokens that a tokenizer needs for it.
    """

    file: str
    bos: str | None
    eos: str
    tokens: tuple[str, ...]


_CHATML_TOKENS = ("<|im_start|>", "<|im_end|>")
_LLAMA3_TOKENS = ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")
_MISTRAL_TOKENS = ("[INST]", "[/INST]", "</s>")
_DEEPSEEK_TOKENS = ("<｜User｜>", "<｜Assistant｜>", "<｜end▁of▁sentence｜>")

FAMILIES: Mapping[str, Family] = {
    "chatml": Family("chatml", None, "<|im_end|>", _CHATML_TOKENS),
    "qwen": Family("qwen", None, "<|im_end|>", _CHATML_TOKENS),
    "llama3": Family("llama3", "<|begin_of_text|>", "<|eot_id|>", _LLAMA3_TOKENS),
    "llama3.1": Family("llama3.1", "<|begin_of_text|>", "<|eot_id|>", _LLAMA3_TOKENS),
    "mistral": Family(
        "mistral", "<s>", "</s>", (*_MISTRAL_TOKENS, "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]")
    ),
    "mistral-v3": Family("mistral-v3", "<s>", "</s>", _MISTRAL_TOKENS),
    "gemma": Family("gemma", "<bos>", "<eos>", ("<start_of_turn>", "<end_of_turn>")),
    "phi": Family("phi", None, "<|endoftext|>", ("<|user|>", "<|assistant|>", "<|end|>")),
    "phi4": Family("phi4", None, "<|im_end|>", (*_CHATML_TOKENS, "<|im_sep|>")),
    "deepseek": Family(
        "deepseek", "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", _DEEPSEEK_TOKENS
    ),
}
"""Built-in templates by name. They follow the public templates of the models that are named."""


def find_template(template: Any, tokenizer: Any) -> tuple[str | None, Family | None]:
    """Return the source of a template, and its family if it is built in.

    Args:
        template: the name of a family, a path, a template itself, or `None` for the default
            template of the tokenizer.
        tokenizer: an object, for its own template.

    Returns:
        `None` as source if the tokenizer has no template.

    Raises:
        ConfigError: if there is no such family or file.
    """
    if template is None:
        return list_templates(tokenizer).get("default"), None
    if isinstance(template, str) and template in FAMILIES:
        path = Path(__file__).with_name("families") / f"{FAMILIES[template].file}.jinja"
        return path.read_text(encoding="utf-8"), FAMILIES[template]
    if isinstance(template, str) and not is_template_file(template):
        return template, None
    if not isinstance(template, str | Path):
        raise ConfigError(
            f"Chat(template={template!r}): give a family ({', '.join(FAMILIES)}), a path, or a text"
        )
    path = parse_location(template)
    with convert_storage_errors(path):
        if not path.is_file():
            raise ConfigError(
                f"Chat(template={display_path(path)!r}): there is no such family or file"
                f"{suggest_names(path.name, FAMILIES)}; the families are {', '.join(FAMILIES)}"
            )
        return read_within(str(path), MIXTURE_FILE).decode("utf-8"), None


def list_templates(tokenizer: Any) -> Mapping[str, str]:
    """Return the templates of a tokenizer by their names.

    A single template is the "default". Of several, transformers takes "tool_use" for conversations
    with tools, if there is one.

    Args:
        tokenizer: an object.
    """
    templates = getattr(tokenizer, "chat_template", None)
    if not isinstance(templates, Mapping):
        return {"default": templates} if isinstance(templates, str) else {}
    items = cast("Mapping[str, Any]", templates).items()
    return {name: source for name, source in items if isinstance(source, str)}


def is_template_file(template: str) -> bool:
    """Return whether a text names a file, not a family, and is no template itself.

    Args:
        template: the text.
    """
    return template not in FAMILIES and "{{" not in template and "{%" not in template


class ChatTemplate:
    """A compiled chat template.

    The sandbox has the globals and filters that transformers gives to templates:
    `raise_exception`, `strftime_now`, `tojson`, loop controls, and `{% generation %}`, whose blocks
    are put between marks.

    Args:
        source: the template.
        variables: values for the template, such as `bos_token` or `enable_thinking`.
        date: the date for `strftime_now` and `date_string`.
        takes_parts: whether the template takes contents as lists of typed parts.

    Raises:
        ConfigError: if the template is not valid Jinja.
    """

    def __init__(
        self,
        source: str,
        variables: Mapping[str, Any],
        date: datetime.date | None,
        takes_parts: bool = False,
    ) -> None:
        self.source, self._date, self._takes_parts = source, date, takes_parts
        self.has_generation = "endgeneration" in source
        self._compiled = _compile(source)
        self._variables = {**variables, "strftime_now": self._strftime_now}
        if date is not None:
            self._variables.setdefault("date_string", date.strftime("%d %b %Y"))

    @cached_property
    def takes_text_arguments(self) -> bool:
        """True if the template joins the arguments of tool calls as text, as that of DeepSeek V3."""

        def is_refused(arguments: Any) -> bool:
            function = {"name": "f", "arguments": arguments}
            call = {"id": "call00000", "type": "function", "function": function}
            question: Message = {"role": "user", "content": "a"}
            answer: Message = {"role": "assistant", "content": "", "tool_calls": [call]}
            try:
                self.render([question, answer], None)
            except DataError:
                return True
            return False

        return is_refused({"a": 1}) and not is_refused('{"a": 1}')

    def _strftime_now(self, format: str) -> str:
        if self._date is None:
            raise ConfigError(
                "the template asks for the date of today, which would change its tokens from day to "
                "day: fix it, such as Chat(..., date='2024-07-26')"
            )
        return self._date.strftime(format)

    def render(
        self, messages: list[Message], tools: list[Any] | None, add_generation_prompt: bool = False
    ) -> str:
        """Return a conversation as text with marks.

        Args:
            messages: plain JSON values.
            tools: schemas of tools.
            add_generation_prompt: end with the header of an answer.

        Raises:
            DataError: if the template refuses the messages.
            ConfigError: if the template asks for a date that is not given, or exceeds a limit.
        """
        return self._render(self._compiled, messages, tools, add_generation_prompt)

    def trace(self, messages: list[Message], tools: list[Any] | None, /) -> str:
        """Return a conversation as text with marks of the message that the template writes.

        Args:
            messages: plain JSON values.
            tools: schemas of tools.

        Raises:
            DataError: if the template refuses the messages.
        """
        distinct = [{**message} for message in messages]
        return self._render(_compile(self.source, True), distinct, tools, False)

    def _render(
        self,
        compiled: Any,
        messages: list[Message],
        tools: list[Any] | None,
        add_generation_prompt: bool,
    ) -> str:
        messages = [*map(_split_parts, messages)] if self._takes_parts else messages
        try:
            with bound_rendering(), trace_loops(messages):
                return compiled.render(
                    messages=messages,
                    tools=tools,
                    documents=None,
                    add_generation_prompt=add_generation_prompt,
                    **self._variables,
                )
        except PenstockError:
            raise
        except Exception as error:
            raise DataError(
                f"the chat template fails on this conversation: {error or type(error).__name__}; "
                "its roles are "
                + ", ".join(str(message["role"]) for message in messages[:8])
                + ", ..." * (len(messages) > 8)
            ) from error


def _split_parts(message: Message) -> Message:
    """Return a message whose content is a list of parts: texts, and places for media."""
    pieces = [piece for piece in _MEDIA_MARK.split(message["content"]) if piece]
    parts = [
        {"type": MEDIA_KINDS[piece]} if piece in MEDIA_KINDS else {"type": "text", "text": piece}
        for piece in pieces or [""]
    ]
    return {**{key: value for key, value in message.items() if key != "media"}, "content": parts}


@cache
def _compile(source: str, is_traced: bool = False) -> Any:
    """Compile a template, once in a process."""
    environment = _make_environment()
    try:
        with bound_rendering():
            return environment.from_string(
                parse_traced(environment, source) if is_traced else source
            )
    except Exception as error:
        raise ConfigError(f"the chat template is not valid Jinja: {error}") from error


@cache
def _make_environment() -> Any:
    try:
        jinja2: Any = importlib.import_module("jinja2")
        extensions: Any = importlib.import_module("jinja2.ext")
    except ModuleNotFoundError:
        raise make_missing_extra_error("jinja2", "hf", "chat templates") from None
    nodes, runtime = jinja2.nodes, jinja2.utils

    class Generation(extensions.Extension):
        """Puts the text of `{% generation %}` blocks between marks."""

        tags = frozenset({"generation"})

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
            call = self.call_method("_mark")
            return nodes.CallBlock(call, [], [], body).set_lineno(line)

        def _mark(self, caller: Any) -> str:
            return f"{GENERATION_START}{caller()}{GENERATION_END}"

    class SafeNamespace(runtime.Namespace):
        """A namespace without attributes of Python's own."""

        def __init__(*args: Any, **values: Any) -> None:
            self, *rest = args
            values = dict(*rest, **values)
            for name in values:
                check_name(name)
            runtime.Namespace.__init__(self, values)

        def __setitem__(self, name: str, value: Any) -> None:
            check_name(name)
            runtime.Namespace.__setitem__(self, name, value)

    def check_name(name: Any) -> None:
        if isinstance(name, str) and name.startswith("_"):
            raise jinja2.exceptions.SecurityError(f"a namespace has no attribute {name!r}")

    def make_dict(*args: Any, **values: Any) -> dict[Any, Any]:
        return dict(*args, **values)

    def raise_exception(message: str) -> None:
        raise jinja2.exceptions.TemplateError(message)

    def tojson(
        value: Any,
        ensure_ascii: bool = False,
        indent: Any = None,
        separators: Any = None,
        sort_keys: bool = False,
    ) -> str:
        return json.dumps(
            value,
            ensure_ascii=ensure_ascii,
            indent=indent,
            separators=separators,
            sort_keys=sort_keys,
        )

    environment = make_environment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, extensions.loopcontrols]
    )
    add_loop_filters(environment)
    environment.filters["tojson"] = environment.bound_filter("tojson", tojson)
    environment.globals.update(
        raise_exception=raise_exception, dict=make_dict, namespace=SafeNamespace
    )
    return environment
