"""Tool calls and schemas of tools from every form and file, and the roles of their turns."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import penstock as ps
from chat_cases import bpe, decode
from penstock.errors import ConfigError, DataError
from penstock.text import Chat

WITH_CALLS = ("chatml", "qwen", "llama3.1", "mistral", "deepseek")
WITHOUT_CALLS = ("llama3", "gemma", "phi", "phi4", "mistral-v3")
OWN = (
    "{% for m in messages %}<|im_start|>{{ m.role }}{{ m.content }}{% for c in m.tool_calls or [] %}"
    "{{ c | tojson }}{% endfor %}<|im_end|>{% endfor %}{{ tools | tojson if tools }}"
)


def say(role: str, content: str | None, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


def make_tool(name: str, **properties: Any) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


def make_call(name: str, arguments: Any, **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "arguments": arguments}, **more}


CALLS = [
    make_call("weather", {"city": "Rome", "days": [1, 2], "at": {"lat": 1.5}}),
    make_call("add", {"x": 1, "how": [{"mode": "a"}, {"size": 2}]}, id="c00000001"),
    make_call("now", {"at": {"zone": "CET"}}),
]
TOOLS = [
    make_tool("weather", city={"type": "string", "enum": ["Rome", "Bern"]}),
    make_tool("add", x={"type": "number", "description": "a number"}),
    {"type": "function", "function": {"name": "now", "description": "the time"}},
]
TALKS = [
    [
        say("user", f"question {i}"),
        say("assistant", "", tool_calls=[call]),
        say("tool", "r"),
        say("assistant", f"answer {i}"),
    ]
    for i, call in enumerate(CALLS)
]
FORMS: dict[str, list[dict[str, Any]]] = {
    "messages": [
        {"messages": talk, "tools": [tool]} for talk, tool in zip(TALKS, TOOLS, strict=True)
    ],
    "preference": [
        {
            "prompt": talk[:1],
            "chosen": talk[1:],
            "rejected": [say("assistant", "no", tool_calls=[call])],
            "tools": [tool],
        }
        for talk, call, tool in zip(TALKS, CALLS, TOOLS, strict=True)
    ],
    "implicit": [
        {"chosen": talk, "rejected": [*talk[:3], say("assistant", "no")], "tools": [tool]}
        for talk, tool in zip(TALKS, TOOLS, strict=True)
    ],
    "completion": [{"prompt": talk[:1], "completion": talk[1:]} for talk in TALKS],
}


def write_arrow(rows: list[dict[str, Any]], folder: Path) -> Any:
    table = pa.Table.from_pylist(rows)
    with pa.ipc.new_file(str(folder / "x.arrow"), table.schema) as file:
        file.write_table(table)
    return folder / "x.arrow"


def write_hugging_face(rows: list[dict[str, Any]], folder: Path) -> Any:
    return pytest.importorskip("datasets").Dataset.from_list(rows)


def write_parquet(rows: list[dict[str, Any]], folder: Path) -> Any:
    (folder / "x.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (path,) = ps.read(folder / "x.jsonl").write(folder / "x.parquet")
    return path


@pytest.mark.parametrize("write", [write_parquet, write_arrow, write_hugging_face])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("template", [*WITH_CALLS, OWN], ids=[*WITH_CALLS, "own"])
def test_columnar_files_give_the_tokens_of_json_lines(
    template: str, form: str, write: Callable[..., Any], tmp_path: Path
) -> None:
    rows = FORMS[form]
    if template == "llama3.1":  # which gives tools to a first question
        rows = [{**row, "tools": None} for row in rows]
    encode = Chat(bpe(), template=template)
    expected = [encode(row) for row in rows]
    assert not encode.stats.dropped_nulls
    found = [encode(row) for row in ps.read(write(rows, tmp_path))]
    for row, other in zip(expected, found, strict=True):
        assert [*row] == [*other]
        assert all(row[name].tolist() == other[name].tolist() for name in row)
    assert encode.stats.dropped_nulls > 0


@pytest.mark.parametrize("template", [*WITH_CALLS, OWN], ids=[*WITH_CALLS, "own"])
def test_null_keys_of_calls_and_tools_are_left_out_and_counted(template: str, caplog: Any) -> None:
    call = make_call("f", {"a": None, "b": [None, {"c": None, "d": 1}]}, id=None)
    tool = make_tool("f", a={"type": "string", "default": None}, b=None)
    talk = [say("user", "q"), say("assistant", "", tool_calls=[call])]
    encode = Chat(bpe(), template=template)
    with caplog.at_level(logging.WARNING, "penstock"):
        text = decode(encode({"messages": talk, "tools": [tool]}))
    assert '{"b": [null, {"d": 1}]}' in text
    assert text.count("null") == 1
    assert encode.stats.dropped_nulls == 5
    assert "null keys of tool calls and tools" in caplog.text


@pytest.mark.parametrize("template", [*WITH_CALLS, OWN], ids=[*WITH_CALLS, "own"])
def test_json_text_keeps_its_nulls(template: str) -> None:
    call = make_call("f", json.dumps({"a": None}))
    tools = json.dumps([make_tool("f", a={"type": "string", "default": None})])
    texts = list[str]()
    for calls in ([call], json.dumps([make_call("f", {"a": None})])):
        talk = [say("user", "q"), say("assistant", "", tool_calls=calls)]
        encode = Chat(bpe(), template=template)
        texts.append(decode(encode({"messages": talk, "tools": tools})))
        assert '{"a": null}' in texts[-1] and not encode.stats.dropped_nulls
        assert '"default": null' in texts[-1] or template not in ("qwen", "llama3.1", OWN)
    assert texts[0] == texts[1]


@pytest.mark.parametrize("template", [*WITH_CALLS, OWN], ids=[*WITH_CALLS, "own"])
def test_calls_without_arguments_have_none(template: str) -> None:
    encode = Chat(bpe(), template=template)
    functions = [{"arguments": {}}, {"arguments": None}, {}, {"arguments": {"x": None}}]
    calls = [{"type": "function", "function": {"name": "f", **more}} for more in functions]
    talks = [[say("user", "q"), say("assistant", "", tool_calls=[call])] for call in calls]
    texts = {decode(encode(talk)) for talk in talks}
    assert len(texts) == 1


# ---------------------------------------------------------------- turns of calls


def glaive(call: str, role: str = "function_call", result: str = "observation") -> dict[str, Any]:
    turns = [("human", "2+2?"), (role, call), (result, '{"sum": 4}'), ("gpt", "It is 4.")]
    return {
        "conversations": [{"from": speaker, "value": value} for speaker, value in turns],
        "tools": json.dumps([make_tool("add", x={"type": "number"})]),
    }


def openai(*calls: dict[str, Any], content: str = "") -> dict[str, Any]:
    asked = say("assistant", content, **({"tool_calls": [*calls]} if calls else {}))
    return {
        "messages": [
            say("user", "2+2?"),
            asked,
            say("tool", '{"sum": 4}'),
            say("assistant", "It is 4."),
        ],
        "tools": [make_tool("add", x={"type": "number"})],
    }


def require_equal(encode: Chat, first: Any, second: Any) -> str:
    rows = encode(first), encode(second)
    assert decode(rows[0]) == decode(rows[1])
    return decode(rows[0])


@pytest.mark.parametrize("role", ["function_call", "tool_call", "function-call"])
@pytest.mark.parametrize("template", [*WITH_CALLS, OWN], ids=[*WITH_CALLS, "own"])
def test_turns_of_calls_are_answers_with_tool_calls(template: str, role: str) -> None:
    encode = Chat(bpe(), template=template)
    call = make_call("add", {"x": [2, 2], "y": None})
    # The arguments of the other form are text, which keeps null.
    expected = openai(make_call("add", json.dumps(call["function"]["arguments"])))
    for value in (call, call["function"]):
        text = require_equal(encode, glaive(json.dumps(value), role), expected)
        assert '"y": null' in text and f"<|im_start|>{role}" not in text
    assert not encode.stats.unknown_roles and not encode.stats.dropped_nulls


def test_turns_of_several_calls() -> None:
    encode, calls = Chat(bpe(), template="qwen"), [make_call("add", {"x": i}) for i in range(2)]
    value = json.dumps([call["function"] for call in calls])
    text = require_equal(encode, glaive(value, result="function_response"), openai(*calls))
    assert text.count("<tool_call>") == 4  # the system message names one more pair


@pytest.mark.parametrize("template", ["llama3", "gemma", "phi4"])
def test_turns_of_calls_are_text_where_the_template_writes_no_calls(template: str) -> None:
    encode, call = Chat(bpe(), template=template), '{"name": "add", "arguments": {"x": 2}}'
    text = require_equal(encode, glaive(call), openai(content=call))
    assert "{" + call + ("<|eot_id|>}" if template == "llama3" else "<") in text
    assert not encode.stats.dropped_calls


@pytest.mark.parametrize("value", ["add(2)", "3", "[]", '{"x": 2}', "[1]", '{"function": "add"}'])
def test_other_texts_of_turns_of_calls_are_answers(value: str) -> None:
    encode = Chat(bpe(), template="qwen")
    assert "{" + value + "<|im_end|>}" in require_equal(
        encode, glaive(value), openai(content=value)
    )


def test_turns_of_calls_from_columnar_files() -> None:
    encode = Chat(bpe(), template="qwen")
    talk = glaive("")
    talk["conversations"][1]["value"] = {"name": "add", "arguments": {"x": 2, "y": None}}
    require_equal(encode, talk, openai(make_call("add", {"x": 2})))


def test_roles_of_the_user_come_first() -> None:
    call = '{"name": "add", "arguments": {"x": 2}}'
    encode = Chat(bpe(), template="qwen", roles={"function_call": "assistant", "ask": "tool_call"})
    assert "{" + call + "<|im_end|>}" in require_equal(encode, glaive(call), openai(content=call))
    encode = Chat(bpe(), template="qwen", roles={"ask": "function_call"})
    require_equal(encode, glaive(call, "ask"), openai(make_call("add", {"x": 2})))


def test_a_template_that_names_the_role_of_calls_gets_it() -> None:
    template = (
        "{% for m in messages %}{{ m.role }}:{% if m.role == 'function_call' %}{{ m.content }}{% else %}"
        "{{ m.content }}{% endif %}<|im_end|>{% endfor %}"
    )
    encode = Chat(bpe(), template=template)
    assert "function_call:f(2)<|im_end|>" in decode(encode(glaive("f(2)")))
    assert not encode.stats.unknown_roles


def test_the_earlier_function_calls_of_openai_are_calls() -> None:
    encode, call = Chat(bpe(), template="qwen"), {"name": "add", "arguments": '{"x": 2}'}
    talk = openai()
    talk["messages"][1] = say("assistant", None, function_call=call)
    require_equal(encode, talk, openai(make_call("add", {"x": 2})))
    talk["messages"][1] = say("assistant", "a", function_call={"name": None, "arguments": None})
    require_equal(encode, talk, openai(content="a"))


@pytest.mark.parametrize("template", [*WITH_CALLS, OWN], ids=[*WITH_CALLS, "own"])
def test_empty_arguments_are_missing_arguments(template: str) -> None:
    encode = Chat(bpe(), template=template)
    given = [{}, {"arguments": ""}, {"arguments": " "}, {"arguments": "null"}, {"arguments": None}]
    functions = [{"name": "add", **more} for more in given]
    calls = [{"type": "function", "function": function} for function in functions]
    talks = [[say("user", "q"), say("assistant", "", tool_calls=[call])] for call in calls]
    talks += [[say("user", "q"), say("assistant", "", function_call=each)] for each in functions]
    talks += [[say("user", "q"), say("function_call", json.dumps(each))] for each in functions]
    texts = {decode(encode(talk)) for talk in talks}
    assert len(texts) == 1 and "{}" in texts.pop()


# ---------------------------------------------------------------- forms of tools


@pytest.mark.parametrize("template", ["qwen", "llama3.1", OWN], ids=["qwen", "llama3.1", "own"])
def test_tools_of_every_form_give_equal_tokens(template: str) -> None:
    encode, tool = Chat(bpe(), template=template), make_tool("f", a={"type": "string"})
    function: dict[str, Any] = tool["function"]
    forms: list[Any] = [
        [tool],
        json.dumps([tool]),
        [json.dumps(tool)],
        [{**tool, "function": json.dumps(function)}],
        [{**tool, "function": {**function, "parameters": json.dumps(function["parameters"])}}],
    ]
    talk = [say("user", "q"), say("assistant", "a")]
    texts = {decode(encode({"messages": talk, "tools": form})) for form in forms}
    for functions in ([function], json.dumps([function]), [json.dumps(function)]):
        for more in ({}, {"tools": []}, {"tools": None}):
            texts.add(decode(encode({"messages": talk, "functions": functions, **more})))
    assert len(texts) == 1 and '"name": "f"' in texts.pop()


def test_a_field_functions_that_is_no_list_of_tools_is_another_field() -> None:
    encode, talk = Chat(bpe(), template="qwen"), [say("user", "q"), say("assistant", "a")]
    for functions in ("print", ["print"], [], 3, [{"x": 1}]):
        require_equal(encode, {"messages": talk, "functions": functions}, talk)


def test_tools_and_calls_that_are_no_json_are_errors() -> None:
    encode = Chat(bpe(), template="qwen")
    talk = [say("user", "q"), say("assistant", "a")]
    with pytest.raises(DataError, match="no JSON text"):
        encode({"messages": talk, "tools": ['{"type": ']})
    call = make_call("add", {"x": 2})
    require_equal(encode, openai(call), openai(json.dumps(call)))  # pyright: ignore[reportArgumentType]


def test_tools_beside_instructions() -> None:
    encode, tool = Chat(bpe(), template="qwen"), make_tool("f")
    talk = [say("user", "q"), say("assistant", "a")]
    for name in ("output", "response"):
        sample = {"instruction": "q", name: "a", "tools": [tool]}
        require_equal(encode, sample, {"messages": talk, "tools": [tool]})


def test_tools_beside_texts_are_counted() -> None:
    encode = Chat(bpe(), template="qwen")
    encode({"prompt": "q", "completion": "a", "tools": [make_tool("f")]})
    encode({"prompt": "q", "completion": "a", "tools": []})
    assert encode.stats.dropped_tools == 1


# ---------------------------------------------------------------- roles


@pytest.mark.parametrize("template", [*WITH_CALLS, OWN], ids=[*WITH_CALLS, "own"])
def test_results_of_functions_are_results_of_tools(template: str) -> None:
    encode, call = Chat(bpe(), template=template), {"name": "add", "arguments": '{"x": 2}'}
    talk = openai(make_call("add", '{"x": 2}'))
    older: list[Any] = [*talk["messages"]]
    older[1] = say("assistant", None, function_call=call)
    older[2] = say("function", '{"sum": 4}', name="add")
    functions = [tool["function"] for tool in talk["tools"]]
    text = require_equal(encode, {"messages": older, "functions": functions}, talk)
    assert '"sum' in text.replace("\\", "") and not encode.stats.dropped_messages
    ipython = [*older[:2], say("ipython", "r"), older[3]]
    if template in ("qwen", "mistral", "deepseek"):
        require_equal(encode, ipython, [*older[:2], say("tool", "r"), older[3]])


def test_a_template_that_names_the_role_of_functions_gets_it() -> None:
    template = "{% for m in messages %}{{ 'F:' if m.role == 'function' }}{{ m.content }}<|im_end|>{% endfor %}"
    talk = [say("user", "q"), say("function", "r"), say("assistant", "a")]
    assert "F:r<|im_end|>" in decode(Chat(bpe(), template=template)(talk))
    template = (
        "{% for m in messages %}{{ 'T:' if m.role == 'tool' }}{{ m.content }}{% for c in m.tool_calls "
        "or [] if c.type == 'function' %}{{ c.name }}{% endfor %}<|im_end|>{% endfor %}"
    )
    assert "T:r<|im_end|>" in decode(Chat(bpe(), template=template)(talk))


ZEPHYR = (
    "{% for m in messages %}{% if m['role'] == 'user' %}{{ '<|user|>' + m['content'] + eos_token }}"
    "{% elif m['role'] == 'system' %}{{ '<|system|>' + m['content'] + eos_token }}"
    "{% elif m['role'] == 'assistant' %}{{ '<|assistant|>' + m['content'] + eos_token }}"
    "{% endif %}{% endfor %}"
)


@pytest.mark.parametrize("role", ["tool", "observation", "function", "ipython", "critic"])
def test_dropped_messages_of_every_role_are_counted(role: str, caplog: Any) -> None:
    talk = [say("user", "q"), say("assistant", "f(1)"), say(role, "sun"), say("assistant", "sun!")]
    encode = Chat(bpe(), template=ZEPHYR, eos="</s>")
    with caplog.at_level(logging.WARNING, "penstock"):
        text = decode(encode(talk))
    assert text.count("sun") == 1 and encode.stats.dropped_messages == 1
    assert "messages that the chat template does not write" in caplog.text


def test_dropped_questions_and_answers_that_are_not_learned_are_counted() -> None:
    last = (
        "{% for m in messages[-2:] %}<|im_start|>{{ m.role }}{{ m.content }}<|im_end|>{% endfor %}"
    )
    talk = [say("user", "one"), say("assistant", "two"), say("user", "3"), say("assistant", "4")]
    encode = Chat(bpe(), template=last, train_on="last")
    encode(talk)
    assert encode.stats.dropped_messages == 2 and not encode.stats.changed_answers
    encode = Chat(bpe(), template=last)
    encode(talk)
    assert encode.stats.dropped_messages == 1 and encode.stats.changed_answers == 1


@pytest.mark.parametrize("write", ["| tojson", "| upper", "| tojson(ensure_ascii=True)", "[:9]"])
def test_changed_results_of_tools_are_not_dropped(write: str) -> None:
    template = f"{{% for m in messages %}}<|im_start|>{{{{ m.content {write} if m.role == 'tool' else m.content }}}}<|im_end|>{{% endfor %}}"
    talk = [
        say("user", "q"),
        say("tool", ' a "long" résult\n'),
        say("tool", ""),
        say("assistant", "a"),
    ]
    encode = Chat(bpe(), template=template)
    encode(talk)
    assert not encode.stats.dropped_messages


def test_unknown_roles_are_counted_and_reported(caplog: Any) -> None:
    talk = [say("user", "q"), say("critic", "c"), say("assistant", "a")]
    for family in ("chatml", "llama3", "llama3.1", "gemma", "phi4", "qwen", "deepseek"):
        caplog.clear()
        encode = Chat(bpe(), template=family)
        with caplog.at_level(logging.WARNING, "penstock"):
            encode(talk)
        assert encode.stats.unknown_roles == 1
        assert "roles that the chat template does not name" in caplog.text
    encode = Chat(bpe(), template="chatml", roles={"critic": "critic"})
    assert "<|im_start|>critic\nc<|im_end|>" in decode(encode(talk))
    assert not encode.stats.unknown_roles


@pytest.mark.parametrize(
    "test", ["m.role == 'critic'", 'm.role in ["user", "critic"]', "m['role'] in ('x','critic')"]
)
def test_roles_that_a_template_names_are_known(test: str) -> None:
    template = f"{{% for m in messages %}}{{{{ m.content if {test} else m.content }}}}<|im_end|>{{% endfor %}}"
    encode = Chat(bpe(), template=template)
    encode([say("user", "q"), say("critic", "c"), say("assistant", "a")])
    assert not encode.stats.unknown_roles


def test_a_system_field_beside_a_system_message_is_counted(caplog: Any) -> None:
    talk = {"system": "one", "messages": [say("system", "one"), *TALKS[0]]}
    encode = Chat(bpe(), template="qwen")
    encode(talk)
    assert not encode.stats.dropped_systems
    with caplog.at_level(logging.WARNING, "penstock"):
        assert "two" not in decode(encode({**talk, "system": "two"}))
    assert encode.stats.dropped_systems == 1 and "fields system" in caplog.text
    encode({**talk, "system": {"content": "two"}})
    encode({"system": ["two"], "prompt": "q", "completion": "a"})
    assert encode.stats.dropped_systems == 3


@pytest.mark.parametrize("key", ["reasoning_content", "reasoning", "thinking"])
@pytest.mark.parametrize("read", ["reasoning_content", "thinking"])
def test_templates_read_reasoning_by_either_name(key: str, read: str) -> None:
    template = OWN.replace("{{ m.content }}", f"{{{{ m.{read} }}}}{{{{ m.content }}}}")
    row = Chat(bpe(), template=template)([say("user", "q"), say("assistant", "a", **{key: "so"})])
    assert "{soa<|im_end|>}" in decode(row)


def test_the_template_for_tools_encodes_samples_with_tools() -> None:
    from transformers import PreTrainedTokenizerFast

    tokenizer: Any = PreTrainedTokenizerFast(tokenizer_object=bpe(), eos_token="<|im_end|>")
    plain = OWN.partition("{% for c")[0] + "<|im_end|>{% endfor %}"
    tokenizer.chat_template = {"default": plain, "tool_use": OWN}
    encode = Chat(tokenizer)
    for tools in (None, TOOLS):
        expected = tokenizer.apply_chat_template(TALKS[0], tools=tools, tokenize=False)
        row = encode({"messages": TALKS[0], "tools": tools})
        assert decode(row).replace("{{", "{").replace("{", "").replace("}", "") == (
            expected.replace("{", "").replace("}", "")
        )
    assert encode.stats.dropped_calls == 1
    single = Chat(tokenizer, template=plain)
    assert single.__qualname__ != encode.__qualname__
    tokenizer.chat_template = {"rag": plain, "short": plain}
    with pytest.raises(ConfigError, match=r"templates rag, short.*chat_template\['rag'\]"):
        Chat(tokenizer)(TALKS[0])
