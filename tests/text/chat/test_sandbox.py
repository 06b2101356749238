"""Chat templates from files: their work and their texts have bounds, and their results are Jinja's."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.errors import ConfigError
from penstock.stores import limits
from penstock.text.chat import sandbox
from penstock.text.chat.templates import ChatTemplate

MESSAGES: list[Any] = [
    {"role": "user", "content": "a question"},
    {"role": "assistant", "content": "an answer", "tool_calls": [{"function": {"name": "f"}}]},
]
TWICE = (
    "{%% set n = namespace(s='x') %%}{%% for i in range(99) %%}{%% set n.s = %s %%}{%% endfor %%}"
)
LONG = "{% set s = 'x' * 60000000 %}"
LISTS = "{% set l = ['x' * 1000000] * 1000000 %}"

STEPS = {
    "loops": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "literal loops": "{% for i in [1, 2, 3] %}" * 16 + "{% endfor %}" * 16,
    "macros": "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}"
    "{{ f(60) }}",
    "recursive loops": "{% for x in range(3) recursive %}{% if loop.depth < 50 %}"
    "{{ loop(range(3)) }}{% endif %}{% endfor %}",
    "filters": "{% for i in range(9999) %}{{ range(99999)|map('string')|list|length }}{% endfor %}",
}
TEXTS = {
    "product": "{{ 'x' * 10**10 }}",
    "constant product": "{{ 'x' * 10000000000 }}",
    "list": "{{ ([1] * 10**9)|length }}",
    "power": "{{ 10 ** (10 ** 9) }}",
    "squares": TWICE % "(n.s|length + 2) ** 9999999",
    "sums": TWICE % "n.s + n.s",
    "joined": TWICE % "n.s ~ n.s",
    "join filter": TWICE % "[n.s, n.s]|join",
    "join method": TWICE % "''.join([n.s, n.s])",
    "format method": TWICE % "'{0}{0}'.format(n.s)",
    "percent": TWICE % "'%s%s' % (n.s, n.s)",
    "slices": LONG + TWICE % "[s[i:], n.s]",
    "upper case": LONG + TWICE % "[s.upper(), n.s]",
    "replace": "{% set s = 'x' * 100000 %}{{ s.replace('x', s) }}",
    "replace filter": "{% set s = 'x' * 100000 %}{{ s|replace('x', s) }}",
    "width": "{{ 'x'.ljust(10**10) }}",
    "center": "{{ 'x'|center(10000000000) }}",
    "percent width": "{{ '%10000000000d' % 1 }}",
    "percent star": "{{ '%*d' % (10**10, 1) }}",
    "format width": "{{ '{:>10000000000}'.format(1) }}",
    "nested format width": "{{ '{:{}}'.format(1, 10**9) }}",
    "indent": "{{ [[1]]|tojson(indent=10**9) }}",
    "output of a list": LISTS + "{{ l }}",
    "JSON of a list": LISTS + "{{ l|tojson }}",
    "output": "{% for i in range(99999) %}" + "x" * 1000 + "{% endfor %}",
    "split": "{{ ('x ' * 30000000).split()|length }}",
    "batch": "{{ [1]|batch(10**9, 0)|list }}",
    "bytes": "{{ (1).to_bytes(10**10, 'big') }}",
    "rounding": "{{ 1|round(10**9, 'ceil') }}",
}


@pytest.mark.parametrize("name", TEXTS)
def test_a_template_makes_no_text_beyond_the_limit(name: str) -> None:
    template = ChatTemplate(TEXTS[name], {}, None)
    with pytest.raises(ConfigError, match="characters|bits"):
        template.render(MESSAGES, None)


@pytest.mark.parametrize("name", STEPS)
def test_a_template_takes_no_more_steps_than_the_limit(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert limits.TEMPLATE_STEPS == sandbox.TEMPLATE_STEPS
    monkeypatch.setattr(sandbox, "TEMPLATE_STEPS", 100_000)
    template = ChatTemplate(STEPS[name], {}, None)
    with pytest.raises(ConfigError, match="100,000 steps"):
        template.render(MESSAGES, None)


def test_a_rendering_has_its_own_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "TEMPLATE_STEPS", 10_000)
    template = ChatTemplate("{% for i in range(9000) %}{% endfor %}end", {}, None)
    assert [template.render(MESSAGES, None) for _ in range(3)] == ["end"] * 3


def test_a_lack_of_memory_names_the_template() -> None:
    def fail() -> None:
        raise MemoryError

    template = ChatTemplate("{{ fail() }}", {"fail": fail}, None)
    with pytest.raises(ConfigError, match="not enough memory for the chat template"):
        template.render(MESSAGES, None)


@pytest.mark.parametrize(
    ("template", "text"),
    [
        (
            "{% for m in messages %}{{ loop.index ~ m.role ~ loop.last }}{% endfor %}",
            "1userFalse2assistantTrue",
        ),
        ("{% for i in range(5000) %}{{ loop.length if loop.last }}{% endfor %}", "5000"),
        ("{% for x in missing %}x{% else %}none{% endfor %}", "none"),
        (
            "{{ 'a' + 'b' + 'c' }}{% set x = [1] + [2] %}{{ x }}{{ messages[::-1][0].role }}",
            "abc[1, 2]assistant",
        ),
        (
            "{{ 2 ** 10 }}{{ 7 % 3 }}{{ '%03d' % 7 }}{{ 'ab' * 2 }}{{ [0] * 2 }}",
            "10241007abab[0, 0]",
        ),
        (
            "{{ '{:>4}|{}'.format(1, 10**12) }}{{ 'a b'.split() | join('-') }}",
            "   1|1000000000000a-b",
        ),
        ("{{ messages | map(attribute='role') | join(', ') }}", "user, assistant"),
        ("{{ {'a': [1]} | tojson(indent=1) }}", '{\n "a": [\n  1\n ]\n}'),
        (
            "{% macro f(x) %}<{{ x }}{{ caller() }}>{% endmacro %}{% call f(1) %}2{% endcall %}",
            "<12>",
        ),
        ("{% set x %}a{{ 1 }}{% endset %}{% filter upper %}{{ x }}{% endfilter %}", "A1"),
        (
            "{% for x in [1, [2, [3]]] recursive %}{{ loop(x) if x is iterable else x }}{% endfor %}",
            "123",
        ),
    ],
)
def test_bounds_change_no_result(template: str, text: str) -> None:
    assert ChatTemplate(template, {}, None).render(MESSAGES, None) == text
