"""Prompts of other tools as settings of `chat`: styles of prompts, and names of chat templates."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

from ...text.chat.templates import find_template

_FIELD = re.compile(r"\{(instruction|input|system)\}")


@dataclass(frozen=True)
class PromptStyle:
    """Texts around an instruction, its optional input, and the answer.

    The texts hold `{instruction}` and `{input}`; `system` holds `{system}`. Without `system`, system
    messages are not written, as in tools that ignore them.

    >>> PromptStyle("Q: {instruction}\\n", "Q: {instruction} ({input})\\n").template()[:60]
    '{{ text_prefix }}{% for message in messages %}{% if message.'
    """

    plain: str
    with_input: str
    system: str = ""
    answer: str = ""

    def template(self) -> str:
        """Return a chat template for samples of the format `alpaca`.

        A text begins with the token that the tokenizer adds to texts, and each answer ends with its
        EOS token, as tools do that encode prompts without a chat template.
        """
        answer = "message.content + eos_token"
        if self.answer:
            answer = f"{_quote(self.answer)} + {answer}"
        content, apart = "message.content", {"instruction": "message.instruction"}
        plain = _expression(self.plain, {"instruction": content})
        with_input = _expression(self.with_input, {**apart, "input": "message.input"})
        system = _expression(self.system, {"system": content})
        branches = [
            (
                "message.role == 'assistant'",
                f"{{% generation %}}{{{{ {answer} }}}}{{% endgeneration %}}",
            ),
            ("message.role == 'user' and message.input", f"{{{{ {with_input} }}}}"),
            ("message.role == 'user'", f"{{{{ {plain} }}}}"),
            *([("message.role == 'system'", f"{{{{ {system} }}}}")] if self.system else []),
        ]
        chosen = "".join(
            f"{{% {'elif' if number else 'if'} {condition} %}}{text}"
            for number, (condition, text) in enumerate(branches)
        )
        return f"{{{{ text_prefix }}}}{{% for message in messages %}}{chosen}{{% endif %}}{{% endfor %}}"


def _expression(text: str, values: Mapping[str, str]) -> str:
    """Return a Jinja expression for a text with fields."""
    pieces = [
        values.get(piece, "''") if number % 2 else _quote(piece)
        for number, piece in enumerate(_FIELD.split(text))
        if piece
    ]
    return " + ".join(pieces) or "''"


def _quote(text: str) -> str:
    return json.dumps(text)


_ALPACA = (
    "Below is an instruction that describes a task. Write a response that appropriately completes the "
    "request.\n\n"
)
_ALPACA_WITH_INPUT = (
    "Below is an instruction that describes a task, paired with an input that provides further "
    "context. Write a response that appropriately completes the request.\n\n"
)
ALPACA = PromptStyle(
    f"{_ALPACA}### Instruction:\n{{instruction}}\n\n### Response:\n",
    f"{_ALPACA_WITH_INPUT}### Instruction:\n{{instruction}}\n\n### Input:\n{{input}}\n\n### Response:\n",
)
"""The prompts of Stanford Alpaca."""


def styled(head: str, head_with_input: str, plain: str, with_input: str) -> PromptStyle:
    """Return a style whose texts begin with a head."""
    return PromptStyle(head + plain, head_with_input + with_input)


def with_preamble(form: str, plain: str, with_input: str) -> PromptStyle:
    """Return a style that begins with the preambles of Alpaca, in a form with `{system}`."""
    heads = [form.replace("{system}", text.rstrip("\n")) for text in (_ALPACA, _ALPACA_WITH_INPUT)]
    return styled(heads[0], heads[1], plain, with_input)


def with_default_system(family: str, text: str) -> str:
    """Return a built-in template that gives conversations a system message, if they have none.

    Args:
        family: the template, one of ChatML.
        text: the message.
    """
    source, _ = find_template(family, None)
    message = _quote(f"<|im_start|>system\n{text}<|im_end|>\n")
    return f"{{%- if messages[0].role != 'system' %}}{{{{- {message} }}}}{{%- endif %}}{source}"


@dataclass(frozen=True)
class TemplateNames:
    """Names of the chat templates of a tool.

    Attributes:
        families: names of templates that write what a built-in template writes.
        copies: names of templates that copy those of models, with a pattern of the names of these
            models. Their tokenizers have the template.
    """

    families: Mapping[str, str]
    copies: Mapping[str, str]

    def find(self, name: str, model: str) -> tuple[str | None, bool]:
        """Return the built-in template of a name, and whether there is one.

        `None` stands for the template of the tokenizer.
        """
        if name in self.families:
            return self.families[name], True
        pattern = self.copies.get(name)
        return None, pattern is not None and re.search(pattern, model.lower()) is not None
