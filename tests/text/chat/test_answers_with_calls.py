"""Masks of answers with tool calls, in templates without `{% generation %}`.

Brackets in the templates here stand around what is learned.
"""

from __future__ import annotations

import random
import re
from itertools import groupby
from typing import Any

import pytest

from chat_cases import make_bpe
from example_counts import rounds
from penstock.errors import DataError
from penstock.text import Chat
from penstock.text.chat.templates import ChatTemplate

TOKENS = (
    "<|q|>", "<|a|>", "<|end|>", "<|call|>", "<|done|>", "<|result|>", "<|/result|>", "<|say|>",
    "<|think|>", "<|/think|>", "</s>",
)  # fmt: skip

NO_PROMPT = """
{%- for m in messages -%}
{%- if m.role == 'user' -%}<|q|>{{ m.content }}<|a|>
{%- elif m.role == 'tool' -%}<|result|>{{ m.content }}<|/result|>
{%- else -%}⟦
{%- if m.tool_calls -%}<|call|>[{% for c in m.tool_calls %}{"name": "{{ c.function.name }}", "with": {{ c.function.arguments | tojson }}}{% endfor %}]
{%- else -%}{{ m.content }}{%- endif -%}<|end|>⟧
{%- endif -%}
{%- endfor -%}
"""
EMPTY_THOUGHT = """
{%- for m in messages -%}
{%- if m.role == 'assistant' -%}<|a|>
{%- if m.thinking -%}<|think|>
⟦{{ m.thinking }}<|/think|>
{%- else -%}<|think|><|/think|>⟦{%- endif -%}
{{ m.content }}{% for c in m.tool_calls %}<|call|>
f={{ c.function.name }}{% for k, v in c.function.arguments.items() %} {{ k }}={{ v }}{% endfor %}
{% endfor %}<|end|>⟧
{%- else -%}<|q|>{{ m.role }} {{ m.content }}<|end|>{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}<|a|><|think|>
{% endif -%}
"""
NAMES_IN_RESULTS = """
{%- set last = namespace(name='') -%}
{%- for m in messages -%}
{%- if m.role == 'assistant' -%}<|a|>⟦
{%- if m.thinking and not (m.tool_calls and messages[-1].role == 'assistant') -%}<|say|>thought {{ m.thinking }}<|end|><|a|>{%- endif -%}
{%- if m.tool_calls -%}{%- set last.name = m.tool_calls[0].function.name -%}
 to={{ last.name }}<|say|>{{ m.tool_calls[0].function.arguments | tojson }}<|call|>
{%- else -%}<|say|>{{ m.content }}{{ '<|done|>' if loop.last else '<|end|>' }}
{%- endif -%}⟧
{%- elif m.role == 'tool' -%}<|q|>{{ last.name }} to=assistant<|say|>{{ m.content }}<|end|>
{%- else -%}<|q|>{{ m.role }}<|say|>{{ m.content }}<|end|>{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}<|a|>{%- endif -%}
"""
RESULTS_IN_ANSWERS = """
{%- for m in messages -%}
{%- if m.role == 'user' -%}<|q|>{{ m.content }}<|end|>
{%- elif m.role == 'assistant' -%}
{%- if messages[loop.index0 - 1].role != 'tool' -%}<|a|>{%- endif -%}
⟦{% for c in m.tool_calls %}<|call|>{{ c.function.name }}{}<|done|>{% endfor %}
{%- if m.tool_calls -%}<|result|>⟧
{%- for r in messages[loop.index0 + 1:] if r.role == 'tool' and r.turn == m.turn -%}
{{ '' if loop.first else '<|result|>' }}{{ m.tool_calls[0].function.name }}: {{ r.content }}<|/result|>
{%- endfor -%}
{%- if m.content -%}⟦{{ m.content }}<|end|>⟧{%- endif -%}
{%- else -%}{{ m.content }}<|end|>⟧{%- endif -%}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt and messages[-1].role != 'tool' -%}<|a|><|think|><|/think|>{%- endif -%}
"""
RESULTS_BY_INDEX = RESULTS_IN_ANSWERS.replace(
    "{%- for r in messages[loop.index0 + 1:] if r.role == 'tool' and r.turn == m.turn -%}",
    "{%- for i in range(loop.index0 + 1, messages | length) -%}{%- set r = messages[i] -%}"
    "{%- if r.role == 'tool' and r.turn == m.turn -%}",
).replace("<|/result|>\n{%- endfor", "<|/result|>{%- endif -%}\n{%- endfor")
SHAPES = {
    "no prompt": NO_PROMPT,
    "empty thought": EMPTY_THOUGHT,
    "names in results": NAMES_IN_RESULTS,
    "results in answers": RESULTS_IN_ANSWERS,
    "results by index": RESULTS_BY_INDEX,
}


def make_tokenizer() -> Any:
    tokenizer: Any = make_bpe(False)
    tokenizer.add_special_tokens(list(TOKENS))
    return tokenizer


def make_call(name: str, **arguments: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "arguments": arguments}}


def make_talk(rng: random.Random) -> list[dict[str, Any]]:
    """Return a talk with calls in sequence and in parallel, blank results, and names in results."""
    talk = list[dict[str, Any]]()
    for number in range(rng.choice([1, 2, 3])):
        talk.append({"role": "user", "content": rng.choice(["q", "get", "what is it?"])})
        for step in range(rng.choice([0, 1, 2, 3])):
            names = [rng.choice(["get", "put"]) for _ in range(rng.choice([1, 1, 2]))]
            calls = [
                make_call(name, **rng.choice([{}, {"x": 1}, {"city": "Rome"}])) for name in names
            ]
            content, turn = rng.choice(["", "", "I look"]), f"{number}.{step}"
            talk.append(
                {"role": "assistant", "content": content, "tool_calls": calls, "turn": turn}
            )
            if rng.random() < 0.5:
                talk[-1]["thinking"] = rng.choice(["so", "a\nb"])
            for name in names:
                content = rng.choice(["", "sunny", name, "get put"])
                talk.append({"role": "tool", "content": content, "turn": turn})
        talk.append({"role": "assistant", "content": rng.choice(["yes", "put", "no\n1"])})
        if rng.random() < 0.3:
            talk[-1]["thinking"] = "hm"
    return talk


def show_learned(template: str, talk: list[dict[str, Any]], **options: Any) -> str:
    tokenizer = make_tokenizer()
    row = Chat(tokenizer, template=template, eos="</s>", untrained="keep", **options)(talk)
    pairs = zip(row["tokens"].tolist(), row["loss_mask"].tolist(), strict=True)
    out = ""
    for learned, some in groupby(pairs, key=lambda pair: bool(pair[1])):
        text = tokenizer.decode([token for token, _ in some], skip_special_tokens=False)
        out += f"⟦{text}⟧" if learned else text
    return out


def remove_brackets(text: str) -> str:
    return re.sub("[⟦⟧]", "", text)


@pytest.mark.parametrize("shape", SHAPES)
def test_answers_are_learned_from_their_headers_to_their_ends(shape: str) -> None:
    rng = random.Random(shape)
    for _ in range(rounds(40, 1000)):
        talk = make_talk(rng)
        expected = ChatTemplate(SHAPES[shape], {}, None).render(talk, None)
        expected = expected.replace("⟧⟦", "").replace("⟦⟧", "")
        assert show_learned(remove_brackets(SHAPES[shape]), talk) == expected, talk


NO_END = """
{%- set ns = namespace(last=-1) -%}
{%- for m in messages -%}{%- if m.role == 'user' -%}{%- set ns.last = loop.index0 -%}{%- endif -%}{%- endfor -%}
{%- for m in messages -%}
{%- if m.role == 'user' -%}<|q|>{{ m.content }}
{%- elif m.role == 'tool' -%}<|result|>{{ m.content }}
{%- else -%}<|a|><|think|>{{ m.reasoning_content if loop.index0 > ns.last }}<|/think|>{{ m.content }}
{%- for c in m.tool_calls -%}(call {{ c.function.name }}
{%- for k, v in c.function.arguments.items() %} {{ k }}={{ v }}{% endfor -%}){%- endfor -%}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}<|a|>{%- endif -%}
"""


def test_calls_of_earlier_turns_are_learned_to_the_header_of_their_results() -> None:
    talk: list[dict[str, Any]] = [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": "", "reasoning_content": "r1"},
        {"role": "tool", "content": "sunny"},
        {"role": "assistant", "content": "done", "reasoning_content": "r2"},
        {"role": "user", "content": "w"},
        {"role": "assistant", "content": "bye", "reasoning_content": "r3"},
    ]
    talk[1]["tool_calls"] = [make_call("get", city="Rome", days=3)]
    assert show_learned(NO_END, talk) == (
        "<|q|>q<|a|>⟦<|think|><|/think|>(call get city=Rome days=3)<|result|>⟧sunny"
        "<|a|>⟦<|think|><|/think|>done<|q|>⟧w<|a|>⟦<|think|>r3<|/think|>bye⟧"
    )


LOOKUP = RESULTS_IN_ANSWERS.replace(
    "{%- for r in messages[loop.index0 + 1:] if r.role == 'tool' and r.turn == m.turn -%}\n"
    "{{ '' if loop.first else '<|result|>' }}",
    "{%- if not loop.last -%}",
).replace(
    "{{ r.content }}<|/result|>\n{%- endfor -%}",
    "{{ messages[loop.index0 + 1].content }}<|/result|>{%- endif -%}",
)


def test_a_result_that_no_loop_writes_is_not_learned() -> None:
    talk = [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": "", "tool_calls": [make_call("get")]},
        {"role": "tool", "content": "get"},
        {"role": "assistant", "content": "", "tool_calls": [make_call("put")]},
        {"role": "tool", "content": "ok"},
        {"role": "assistant", "content": "done"},
    ]
    assert show_learned(remove_brackets(LOOKUP), talk) == (
        "<|q|>q<|end|><|a|>⟦<|call|>get{}<|done|><|result|>⟧get: get<|/result|>"
        "⟦<|call|>put{}<|done|><|result|>⟧put: ok<|/result|>⟦done<|end|>⟧"
    )


def test_an_uncertain_call_is_refused_with_a_remedy() -> None:
    template = (  # the results stand before the calls
        "{% for m in messages %}{% if m.role == 'user' %}<|q|>{{ m.content }}<|end|>"
        "{% elif m.tool_calls %}<|a|>{{ messages[loop.index].content }}"
        "<|call|>{{ m.tool_calls[0].function.name }}<|end|>"
        "{% elif m.role == 'assistant' %}<|a|>{{ m.content }}<|end|>{% endif %}{% endfor %}"
    )
    talk = [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": "", "tool_calls": [make_call("get")]},
        {"role": "tool", "content": "sunny"},
        {"role": "assistant", "content": "done"},
    ]
    with pytest.raises(DataError, match=r"message 1, which calls tools: put \{% generation %\}"):
        show_learned(template, talk)
    assert "<|a|>⟦done<|end|>⟧" in show_learned(template, talk, train_on="last")


def test_an_empty_answer_is_learned_behind_a_header_that_ends_earlier() -> None:
    template = (
        "{% for m in messages %}{% if m.role == 'user' %}<|q|>{{ m.content }}<|end|>"
        "{% else %}<|a|>{{ '<|think|><|/think|>' if m.content }}{{ m.content }}<|end|>{% endif %}"
        "{% endfor %}{% if add_generation_prompt %}<|a|><|think|><|/think|>{% endif %}"
    )
    talk = [{"role": "user", "content": "q"}, {"role": "assistant", "content": ""}] * 2
    assert show_learned(template, talk) == "<|q|>q<|end|><|a|>⟦<|end|>⟧" * 2


def test_long_talks_with_calls_take_no_more_renderings(monkeypatch: pytest.MonkeyPatch) -> None:
    renderings, render = list[int](), ChatTemplate.render

    def count(self: ChatTemplate, messages: list[Any], *rest: Any) -> str:
        renderings.append(len(messages))
        return render(self, messages, *rest)

    chat = Chat(make_tokenizer(), template=remove_brackets(EMPTY_THOUGHT), eos="</s>")
    step = [
        {"role": "assistant", "content": "", "tool_calls": [make_call("get", x=1)]},
        {"role": "tool", "content": "ok"},
    ]
    chat([{"role": "user", "content": "q"}, *step])
    monkeypatch.setattr(ChatTemplate, "render", count)
    for length in (2, 40):
        renderings.clear()
        chat([{"role": "user", "content": "q"}, *step * length])
        assert len(renderings) <= 5


def test_empty_calls_that_a_template_does_not_write_are_no_error() -> None:
    template = "{% for m in messages %}{{ '<|q|>' if m.role == 'user' else '<|a|>' if m.role == 'assistant' }}{{ m.content if m.role != 'tool' }}{% endfor %}</s>"
    talk: list[dict[str, Any]] = [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": "", "tool_calls": [make_call("get")]},
        {"role": "tool", "content": "sunny"},
        {"role": "assistant", "content": "", "tool_calls": [make_call("put")]},
        {"role": "tool", "content": "ok"},
        {"role": "assistant", "content": "done"},
    ]
    assert show_learned(template, talk) == "<|q|>q<|a|><|a|><|a|>⟦done</s>⟧"


LOOPS = {
    "list": "{% set ns = namespace(all=[]) %}{% for m in messages %}{% set ns.all = ns.all + [m] %}{% endfor %}"
    "{% for m in ns.all %}@{% endfor %}",
    "macro": "{% macro show(talk) %}{% for m in talk %}@{% endfor %}{% endmacro %}{{ show(messages) | trim }}",
    "indices": "{% for i in range(messages | length) %}{% set m = messages[i] %}@{% endfor %}",
    "batches": "{% for some in messages | batch(2) %}{% for m in some %}@{% endfor %}{% endfor %}",
    "copies": "{% set ns = namespace(all=[]) %}{% for m in messages %}{% set ns.all = ns.all + [dict(m)] %}"
    "{% endfor %}{% for m in ns.all %}@{% endfor %}",
    "recursive": "{% for m in messages recursive %}@{% endfor %}",
    "stored": "{% set ns = namespace(all='') %}{% for m in messages %}{% set turn %}@{% endset %}"
    "{% set ns.all = ns.all + turn %}{% endfor %}{{ ns.all }}",
    "continue": "{% for m in messages %}{% if m.role == 'user' %}<|q|>{{ m.content }}<|end|>{% continue %}{% endif %}"
    "@{% endfor %}",
}  # fmt: skip
HEADERS = ("<|a|>", "<|a|>\n", "A:\n", "<|q|>assistant\n", "### Assistant:\n")
ENDS = ("<|end|>", "<|end|>⟧\n", "\n### End⟧\n", " ###⟧\n", "<|end|></s>")
THOUGHTS = ("<|think|>@<|/think|>", "(thought: @)\n", "<|say|>@<|end|>")
CALLS = (
    "<|call|>{{ c.function.name }} {{ c.function.arguments | tojson }}",
    "[call {{ c.function.name }}({% for k, v in c.function.arguments.items() %}{{ k }}={{ v }},{% endfor %})]",
    "<|call|>{{ c.function | tojson }}<|done|>",
)  # fmt: skip
QUESTIONS = ("<|q|>@<|end|>", "<|q|>user\n@<|end|>\n", "Q: @\n", "### User:\n@\n")
RESULTS = ("<|result|>@<|/result|>", "<|q|>tool\n@<|end|>\n", "Result: @\n")


def make_template(rng: random.Random, loop: str) -> str:
    """Return a template of random headers, ends, reasoning, calls and results."""
    header, end = rng.choice(HEADERS), rng.choice(ENDS)
    parts = [
        "{% if m.thinking %}"
        + rng.choice(THOUGHTS).replace("@", "{{ m.thinking }}")
        + "{% endif %}",
        "{{ m.content }}",
        "{% for c in m.tool_calls %}" + rng.choice(CALLS) + "{% endfor %}",
    ]
    if rng.random() < 0.3:
        parts = [parts[0], parts[2], parts[1]]
    question, result = (
        rng.choice(forms).replace("@", "{{ m.content }}") for forms in (QUESTIONS, RESULTS)
    )
    body = (
        "{% if m.role == 'user' %}" + question + "{% elif m.role == 'tool' %}" + result
        + "{% else %}" + header + "⟦" + "".join(parts) + end + "⟧" * ("⟧" not in end) + "{% endif %}"
    )  # fmt: skip
    template = loop.replace("@", body)
    if rng.random() < 0.7:
        template += "{% if add_generation_prompt %}" + header + "{% endif %}"
    return template.replace("\n", "{{ '\\n' }}")


@pytest.mark.parametrize("loop", LOOPS)
def test_answers_are_found_in_any_loop_and_form(loop: str) -> None:
    rng = random.Random(loop)
    for _ in range(rounds(8, 200)):
        template = make_template(rng, LOOPS[loop])
        for _ in range(4):
            talk = make_talk(rng)
            expected = ChatTemplate(template, {}, None).render(talk, None)
            assert show_learned(remove_brackets(template), talk) == expected, template
