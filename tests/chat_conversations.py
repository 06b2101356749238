"""Random conversations as fine-tuning sets hold them: tools, reasoning, parts, scripts, code, long turns."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from functools import cache
from typing import Any

from tokenizers import AddedToken

from chat_cases import CONTROL, MARKUP, NOT_SPECIAL, make_bpe

Messages = list[dict[str, Any]]

SENTENCES = (
    "Yes.", "No!", "The answer is 42.", "is it?", "ok", "user", "assistant", "model",
    "I'm not sure - let me think about it.", "Ünïcödé naïve café", "e\u0301a\u0308o\u0302 n\u0303",
    "你好，世界。", "これはテストです", "한국어 문장", "مرحبا بالعالم", "\u200fשלום עולם\u200e", "हिन्दी में", "👩‍👩‍👧 family 🏳️‍🌈", "🙂🙃",
    "a\u200bb\u00a0c", "x < y && y > z", "a|b||c", "[1, 2], [[3]]", "{'a': \"b\"}", "{{ x }} {% if %}", "C:\\new\\table",
    "1.\n2.\n\n3.", "tab\there", "# Title", "> quoted", "- item\n- item", "</b><b>", "\r\n",
)  # fmt: skip
CODE = (
    'def end(text):\n    return text + "{}"\n', "assert '{}' not in prompt  # {}\n",
    "```python\nprint(f\"{}\")\n```", "`{}`", "{}", "{}\n{}",
)  # fmt: skip
EDGES = ("", "", "", " ", "\n", "\n\n", "  \t", "\r\n")
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": f"Run {name}.",
            "parameters": {"type": "object", "properties": {"q": {"type": "string"}}},
        },
    }
    for name in ("search", "get_weather")
]


TOOL_TOKENS = (
    "[TOOL_CALLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]", "<|python_tag|>", "<|eom_id|>",
    *(f"<｜tool▁{part}▁{edge}｜>" for part in ("call", "calls", "output", "outputs") for edge in ("begin", "end")),
    "<｜tool▁sep｜>",
)  # fmt: skip
"""Control tokens of tools, in several families."""


@dataclass(frozen=True)
class Abilities:
    """The parts of conversations that a template accepts.

    Attributes:
        calls: the most tool calls in a message; 0 if the template has no tools.
        episodes: the most calls of tools in a conversation.
        repeats: whether messages of one role may follow each other.
        system: whether there may be a system message.
        thinks: whether answers may have reasoning.
        weights: whether answers may say that they are not learned.
    """

    calls: int = 0
    episodes: int = 12
    repeats: bool = True
    system: bool = True
    thinks: bool = True
    weights: bool = True


ABILITIES = {
    "chatml": Abilities(calls=3),
    "qwen": Abilities(calls=3),
    "llama3": Abilities(),
    "llama3.1": Abilities(calls=1),
    "mistral": Abilities(calls=3),
    "mistral-v3": Abilities(),
    "gemma": Abilities(),
    "phi": Abilities(),
    "phi4": Abilities(),
    "deepseek": Abilities(calls=3),
}
"""The abilities of the built-in templates."""


@cache
def tool_bpe(pre: bool = True, control: bool = True) -> Any:
    """Return a toy tokenizer that has the control tokens of tools too.

    Args:
        pre: whether words are split before merges.
        control: whether it has control tokens.
    """
    tokenizer = make_bpe(False, pre)
    if control:
        tokenizer.add_special_tokens([*CONTROL, *TOOL_TOKENS])
        tokenizer.add_tokens(
            [AddedToken(token, normalized=False) for token in (*NOT_SPECIAL, *MARKUP)]
        )
    return tokenizer


class ConversationMaker:
    """Makes random conversations.

    Args:
        rng: the source of randomness.
        abilities: what the template accepts.
        control: control tokens, which occur in texts.
        markup: tokens such as <think>, which occur in texts other than answers.
    """

    def __init__(
        self,
        rng: random.Random,
        abilities: Abilities,
        control: tuple[str, ...],
        markup: tuple[str, ...],
    ) -> None:
        self.rng, self.abilities = rng, abilities
        self._control, self._markup = control, markup
        self._seen = ["ok"]

    def conversation(self) -> dict[str, Any]:
        """Return a sample with messages and maybe tools."""
        rng, messages, episodes = self.rng, list[dict[str, Any]](), 0
        if self.abilities.system and rng.random() < 0.5:
            messages.append({"role": "system", "content": self.content(False)})
        for _ in range(rng.choice([1, 1, 2, 3, 5, 8, 12])):
            for _ in range(self._repeats()):
                messages.append({"role": "user", "content": self.content(False)})
            if self.abilities.calls and episodes < self.abilities.episodes and rng.random() < 0.3:
                for _ in range(rng.choice([1, 1, 2, 3]) if self.abilities.episodes > 1 else 1):
                    messages += self.episode()
                episodes += 1
            for _ in range(self._repeats()):
                messages.append(self.answer())
        sample: dict[str, Any] = {"messages": messages}
        if self.abilities.calls and rng.random() < 0.5:
            sample["tools"] = rng.choice([TOOLS, json.dumps(TOOLS)])
        return sample

    def answer(self) -> dict[str, Any]:
        """Return an answer; it may be empty, or have reasoning in one of two forms."""
        rng = self.rng
        message: dict[str, Any] = {"role": "assistant", "content": self.content(True)}
        if rng.random() < 0.06:
            message["content"] = rng.choice(["", " ", "\n"])
        if self.abilities.weights and rng.random() < 0.05:
            message |= rng.choice([{"train": False}, {"weight": 0}, {"weight": 1}])
        if self.abilities.thinks and rng.random() < 0.25:
            reasoning = rng.choice([self.text(True, plain=True), ""])
            if rng.random() < 0.5:
                message[rng.choice(["reasoning_content", "reasoning", "thinking"])] = reasoning
            elif isinstance(message["content"], str):
                opening = rng.choice(["<think>\n", "<think>", ""])
                space = rng.choice(["\n\n", "\n", ""])
                message["content"] = f"{opening}{reasoning}\n</think>{space}{message['content']}"
        return message

    def episode(self) -> Messages:
        """Return a call of tools and its results."""
        rng, calls = self.rng, list[dict[str, Any]]()
        for number in range(rng.randint(1, self.abilities.calls)):
            arguments: Any = {"q": self.text(False), "n": [number, None, 1.5, {"a": True}]}
            if rng.random() < 0.5:
                arguments = json.dumps(arguments, ensure_ascii=rng.random() < 0.5)
            function = {"name": rng.choice(["search", "get_weather"]), "arguments": arguments}
            calls.append({"id": f"call{number:05}", "type": "function", "function": function})
        message = self.answer() | {"tool_calls": calls}
        if rng.random() < 0.6:
            message["content"] = rng.choice(["", None])
        results = [
            {
                "role": "tool",
                "content": rng.choice([self.text(False)] * 3 + ["", call["function"]["name"]]),
                "tool_call_id": call["id"],
            }
            for call in calls
        ]
        return [message, *results]

    def content(self, is_answer: bool) -> Any:
        """Return a text, or a list of its parts.

        Args:
            is_answer: whether it is a part of an answer.
        """
        text = self.text(is_answer)
        if self.rng.random() < 0.15:
            cut = self.rng.randint(0, len(text))
            return [{"type": "text", "text": part} for part in (text[:cut], text[cut:])]
        return text

    def text(self, is_answer: bool, plain: bool = False) -> str:
        """Return a text in several scripts, with code and white space around it.

        Args:
            is_answer: whether it is a part of an answer.
            plain: whether it has no control tokens.
        """
        rng = self.rng
        if rng.random() < 0.15:  # an answer repeats a question, or another answer
            return rng.choice(self._seen)
        parts = [rng.choice(SENTENCES) for _ in range(rng.choice([1, 1, 2, 3, 6]))]
        if rng.random() < 0.02:
            parts *= rng.randint(100, 400)
        if rng.random() < 0.3 and not plain:
            tokens = self._control if is_answer else (*self._control, *self._markup)
            tokens = tokens or ("END",)
            code = rng.choice(CODE)
            for _ in range(code.count("{}")):
                code = code.replace("{}", rng.choice(tokens), 1)
            parts.insert(rng.randrange(len(parts) + 1), code)
        text = rng.choice([" ", "", "\n"]).join(parts)
        text = rng.choice(EDGES) + text.strip() + rng.choice(EDGES)
        if not any(token in text for token in self._markup):  # or else no answer may repeat it
            self._seen.append(text)
        return text

    def _repeats(self) -> int:
        return self.rng.choice([1] * 9 + [2]) if self.abilities.repeats else 1
