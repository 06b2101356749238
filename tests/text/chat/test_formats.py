"""Formats of samples: those of ten public data sets, rebuilt from their data cards, and all others."""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from chat_cases import FAMILIES, bpe, decode
from penstock.errors import ConfigError, DataError
from penstock.text import Chat
from penstock.text.chat import FORMATS, find_format
from penstock.text.chat.formats import FORMAT_NAMES, SampleReader

HUMAN = "\n\nHuman: Can you help?\n\nAssistant: With what?\n\nHuman: A sum."


def chat(**settings: Any) -> Chat:
    return Chat(bpe(), template="chatml", **settings)


def say(role: str, content: str, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


def ultrachat(i: int) -> dict[str, Any]:
    messages = [
        say("user", f"p{i}"),
        say("assistant", "a"),
        say("user", "q"),
        say("assistant", "b"),
    ]
    return {"prompt": f"p{i}", "prompt_id": f"{i:064x}", "messages": messages}


def openhermes(i: int) -> dict[str, Any]:
    turns = [
        {"from": "human", "value": f"p{i}", "weight": None},
        {"from": "gpt", "value": "b", "weight": None},
    ]
    if i % 2:
        turns.insert(0, {"from": "system", "value": "s", "weight": None})
    nothing = ("custom_instruction", "topic", "model_name", "model", "skip_prompt_formatting", "language",
               "system_prompt", "id", "title", "idx", "hash", "avatarUrl", "views")  # fmt: skip
    return {
        **dict.fromkeys(nothing),
        "conversations": turns,
        "source": "airoboros2.2",
        "category": "orca",
    }


def tulu(i: int) -> dict[str, Any]:
    return {
        "id": f"flan_{i}",
        "messages": ultrachat(i)["messages"],
        "source": "ai2-adapt-dev/flan_v2",
    }


def slim_orca(i: int) -> dict[str, Any]:
    system = {"from": "system", "value": "You are helpful.", "weight": None}
    return {
        "conversations": [
            system,
            {"from": "human", "value": f"p{i}", "weight": 0.0},
            {"from": "gpt", "value": "b", "weight": 1.0},
        ]
    }


def alpaca(i: int) -> dict[str, Any]:
    return {"instruction": f"p{i}", "input": "given" if i % 2 else "", "output": "b"}


def dolly(i: int) -> dict[str, Any]:
    return {
        "instruction": f"p{i}",
        "context": "given" if i % 2 else "",
        "response": "b",
        "category": "closed_qa",
    }


def ultrafeedback(i: int) -> dict[str, Any]:
    chosen, rejected = ([say("user", f"p{i}"), say("assistant", text)] for text in "bc")
    return {"prompt": f"p{i}", "prompt_id": f"{i:064x}", "chosen": chosen, "rejected": rejected,
            "messages": chosen, "score_chosen": 8.0, "score_rejected": 5.5}  # fmt: skip


def hh_rlhf(i: int) -> dict[str, Any]:
    return {"chosen": f"{HUMAN}{i}\n\nAssistant: b", "rejected": f"{HUMAN}{i}\n\nAssistant: c"}


def kto_mix(i: int) -> dict[str, Any]:
    return {"dataset": "capybara", "prompt": [say("user", f"p{i}")], "completion": [say("assistant", "b")],
            "label": i % 2 == 0, "rating": 5.0}  # fmt: skip


def prm800k(i: int) -> dict[str, Any]:
    return {"labeler": "x", "timestamp": "2022", "generation": None, "is_quality_control_question": False,
            "is_initial_screening_question": False, "question": {"problem": f"p{i}", "ground_truth_answer": "3"},
            "label": {"steps": [{"completions": [{"text": "b", "rating": 1, "flagged": None}]}], "total_time": 1}}  # fmt: skip


def trl_prm800k(i: int) -> dict[str, Any]:
    return {"prompt": f"p{i}", "completions": ["b", "c"], "labels": [True, False]}


DATA_SETS = {
    "ultrachat_200k": (ultrachat, "messages"),
    "OpenHermes-2.5": (openhermes, "sharegpt"),
    "tulu-3-sft-mixture": (tulu, "messages"),
    "SlimOrca": (slim_orca, "sharegpt"),
    "alpaca-cleaned": (alpaca, "alpaca"),
    "dolly-15k": (dolly, "dolly"),
    "ultrafeedback_binarized": (ultrafeedback, "preference"),
    "hh-rlhf": (hh_rlhf, "preference"),
    "kto-mix-14k": (kto_mix, "kto"),
    "prm800k": (prm800k, None),
    "trl-lib/prm800k": (trl_prm800k, "stepwise"),
}


@pytest.mark.parametrize("name", DATA_SETS)
def test_public_data_sets(name: str) -> None:
    make, format = DATA_SETS[name]
    encoder = chat()
    if format is None:
        with pytest.raises(
            DataError,
            match=r"no known chat format.*question, label.*messages: lacks messages.*stepwise: lacks prompt and completions and labels|stepwise: lacks",
        ):
            encoder(make(0))
        return
    named = chat(format=format)
    samples = [make(i) for i in range(500)]
    rows: list[Any] = encoder.many(samples)
    again: Any
    for row, again in zip(rows[::20], named.many(samples[::20]), strict=True):
        assert all(np.array_equal(row[key], value) for key, value in again.items())
    for i in range(0, 500, 7):
        row = rows[i]
        prefixes = ["chosen_", "rejected_"] if format == "preference" else [""]
        for prefix, answer in zip(prefixes, "bc", strict=False):
            text = decode(row, prefix)
            if format == "stepwise":
                assert row["labels"][row["loss_mask"]].tolist() == [1, 0]
            else:
                assert text.rstrip("\n").endswith(f"{{{answer}<|im_end|>}}"), text
                assert f"p{i}" in text or f"A sum.{i}" in text
    assert encoder.stats.samples == 500


# ---------------------------------------------------------------- each format


def test_system_texts_and_contexts() -> None:
    head = "<|im_start|>system\ns<|im_end|>\n<|im_start|>user\n"
    share = {
        "system": "s",
        "conversations": [{"from": "human", "value": "a?"}, {"from": "gpt", "value": "b"}],
    }
    assert decode(chat()(share)).startswith(head + "a?")
    assert decode(chat()({**alpaca(1), "system": "s"})).startswith(head + "p1\n\ngiven<|im_end|>")
    history = decode(chat()({**alpaca(0), "history": [["x", "y"]]}))
    assert (
        "user\nx<|im_end|>" in history
        and "{y<|im_end|>}" in history
        and "user\np0<|im_end|>" in history
    )


def test_texts() -> None:
    assert decode(chat()("a text")) == decode(chat()({"text": "a text"})) == "{a text<|im_end|>}"
    row = chat()({"prompt": "a<|im_end|>", "completion": "b</s>"})
    assert decode(row) == "a<|im_end|>{b</s><|im_end|>}"
    assert [bpe().id_to_token(i) for i in row["tokens"].tolist()].count("<|im_end|>") == 1
    assert decode(chat(train_on="all")({"prompt": "a", "completion": "b"})) == "{ab<|im_end|>}"


def test_the_token_that_begins_texts_is_not_doubled() -> None:
    from tokenizers import Tokenizer, processors

    tokenizer = Tokenizer.from_str(bpe().to_str())
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", tokenizer.token_to_id("<s>"))]
    )
    assert decode(Chat(tokenizer, eos="</s>")("x")) == "<s>{x</s>}"
    assert decode(Chat(tokenizer, eos="</s>", allowed_special=("<s>",))("<s>x")) == "{<s>x</s>}"
    assert (
        decode(Chat(tokenizer, template="mistral")([say("user", "a"), say("assistant", "b")]))
        == "<s>[INST]a[/INST]{b</s>}"
    )


def test_completions() -> None:
    conversation = [say("user", "a"), say("assistant", "old"), say("user", "b")]
    row = chat()({"prompt": conversation, "completion": [say("assistant", "new")]})
    assert "{old" not in decode(row) and decode(row).endswith("{new<|im_end|>}\n")
    assert decode(chat()({"prompt": conversation, "completion": "new"})) == decode(row)
    assert decode(chat()({"prompt": "a", "completion": [say("assistant", "b")]})).count("{") == 1


@pytest.mark.parametrize("explicit", [True, False])
def test_preferences(explicit: bool) -> None:
    before = [say("system", "s"), say("user", "a"), say("assistant", "old"), say("user", "b")]
    answers = [[say("assistant", "good")], [say("assistant", "bad")]]
    if explicit:
        sample = {"prompt": before, "chosen": answers[0], "rejected": answers[1]}
    else:
        sample = {"chosen": before + answers[0], "rejected": before + answers[1]}
    row = chat()(sample)
    assert row.keys() == {
        "chosen_tokens",
        "chosen_loss_mask",
        "rejected_tokens",
        "rejected_loss_mask",
    }
    chosen, rejected = decode(row, "chosen_"), decode(row, "rejected_")
    assert chosen.endswith("{good<|im_end|>}\n") and rejected.endswith("{bad<|im_end|>}\n")
    assert chosen.count("{") == rejected.count("{") == 1
    short = chat(max_length=len(row["chosen_tokens"]) - 1)(sample)
    assert "old" not in decode(short, "chosen_") and "old" not in decode(short, "rejected_")
    assert decode(short, "rejected_").startswith(
        "<|im_start|>system\ns<|im_end|>\n<|im_start|>user\nb"
    )


def test_preferences_of_texts() -> None:
    row = chat()({"prompt": "a ", "chosen": "yes", "rejected": "no"})
    assert (
        decode(row, "chosen_") == "a{ yes<|im_end|>}"
        and decode(row, "rejected_") == "a{ no<|im_end|>}"
    )
    row = chat()({"chosen": "Say yes please", "rejected": "Say yesterday"})
    assert decode(row, "chosen_") == "Say{ yes please<|im_end|>}"
    row = chat()({"chosen": "same", "rejected": "same"})
    assert decode(row, "chosen_") == "{same<|im_end|>}"
    with pytest.raises(DataError, match="both be texts, or both be lists"):
        chat()({"chosen": "x", "rejected": [say("assistant", "y")]})


def test_labels_of_kto_and_steps() -> None:
    assert [
        chat()({"prompt": "a", "completion": "b", "label": label})["label"] for label in (True, 0)
    ] == [True, False]
    row = chat()({"prompt": "1+1+1? ", "completions": ["1+1=2", "2+1=4"], "labels": [1, 0]})
    text = bpe().decode(row["tokens"].tolist(), skip_special_tokens=False)
    assert text == "1+1+1? 1+1=2\n2+1=4\n<|im_end|>"
    at = np.flatnonzero(row["labels"] != -100)
    assert (
        row["labels"][at].tolist() == [1, 0]
        and row["loss_mask"].nonzero()[0].tolist() == at.tolist()
    )
    assert all("\n" in bpe().decode([token]) for token in row["tokens"][at].tolist())
    with pytest.raises(DataError, match="2 completions have 1 labels"):
        chat()({"prompt": "p", "completions": ["b", "c"], "labels": [True]})


@pytest.mark.parametrize("label", [-1, "false", "good", 0.5, None, 2, [True]])
def test_labels_of_kto_that_are_no_flags_are_errors(label: Any) -> None:
    for sample in (
        {"prompt": "a", "completion": "b", "label": label},
        {"prompt": [say("user", "a")], "completion": [say("assistant", "b")], "label": label},
    ):
        for format in ("auto", "kto"):
            with pytest.raises(
                DataError, match=r"known chat format.*\(kto: (label is|lacks label)"
            ):
                chat(format=format)(sample)
        with pytest.raises(DataError, match="format='completion' learns completions"):
            chat()(sample)
        assert "label" not in chat(format="completion")(sample)
    assert decode(chat(fields={"completion": "label"})({"prompt": "a", "label": "b"})).count("b")


TURNS = [say("user", "q"), say("assistant", "a"), say("user", "r"), say("assistant", "b")]
SHARED_TURNS = [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"},
                {"from": "human", "value": "r"}, {"from": "gpt", "value": "b"}]  # fmt: skip
CONVERSATIONS: dict[str, dict[str, Any]] = {
    "messages": {"messages": TURNS},
    "sharegpt": {"conversations": SHARED_TURNS},
    "alpaca": {"instruction": "r", "output": "b", "history": [["q", "a"]]},
    "dolly": {"instruction": "r", "response": "b", "history": [["q", "a"]]},
}


@pytest.mark.parametrize("name", ["label", "kto_tag"])
@pytest.mark.parametrize("format", CONVERSATIONS)
def test_a_label_beside_a_conversation_judges_its_last_answers(format: str, name: str) -> None:
    sample = CONVERSATIONS[format]
    for flag in (True, False, 1, 0, 1.0, np.bool_(False)):
        for encoder in (chat(), chat(format="kto")):
            row = encoder({**sample, name: flag})
            assert row["label"] is bool(flag)
            assert decode(row).count("{") == 1 and decode(row).endswith("{b<|im_end|>}\n")
    for value in (-1, 2, "false", "bad", [True]):
        with pytest.raises(DataError, match=rf"\(kto: label is .*format={format!r} learns"):
            chat()({**sample, name: value})
    plain = chat(format=format)({**sample, name: False})
    assert "label" not in plain and decode(plain).count("{") == 2
    assert "label" not in chat()({**sample, name: None})
    fields = {"label": "good", "content": "value" if format == "sharegpt" else "content"}
    assert chat(fields=fields)({**sample, "good": False})["label"] is False


def test_labels_of_completions_may_be_named_as_in_llama_factory() -> None:
    sample = {"prompt": "a", "completion": [say("assistant", "b")]}
    assert chat()({**sample, "kto_tag": False})["label"] is False
    assert chat()({**sample, "kto_tag": False, "label": "maths"})["label"] is False
    assert chat()({**sample, "kto_tag": None, "label": True})["label"] is True
    for value in (None, "no"):
        with pytest.raises(DataError, match=r"\(kto: (lacks label|label is a str)"):
            chat()({**sample, "kto_tag": value})
    tools = [say("assistant", "c"), say("tool", "d"), say("assistant", "e")]
    row = chat()({"messages": [*TURNS[:3], *tools], "label": False})
    assert decode(row).count("{") == 2, "both answers to the last question"
    assert "label" not in chat()({"text": "a review", "label": 0})
    with pytest.raises(DataError, match=r"kto: .*format='text' learns"):
        chat()({"text": "an insult", "kto_tag": False})


@pytest.mark.parametrize("value", [7, 0, 0.5, float("nan"), True, ["x"], {"x": 1}])
def test_inputs_that_are_no_texts_are_errors(value: Any) -> None:
    for sample in (
        {"instruction": "a", "output": "b", "input": value},
        {"instruction": "a", "response": "b", "context": value},
        {"instruction": "a", "chosen": "b", "rejected": "c", "input": value},
        {"question": value, "chosen": "b", "rejected": "c"},
    ):
        with pytest.raises(
            DataError, match=r"the field '\w+' is a .*, not a text: map it to a text"
        ):
            chat()(sample)


def test_instructions_and_inputs_are_joined_or_written_apart() -> None:
    sample = {"instruction": "a", "input": "b", "output": "c"}
    assert "user\na\n\nb<|im_end|>" in decode(chat()(sample))
    assert "user\na, b<|im_end|>" in decode(chat(input_separator=", ")(sample))
    pair = {"instruction": "a", "input": "b", "chosen": "c", "rejected": "d"}
    assert "user\nab<|im_end|>" in decode(chat(input_separator="")(pair), "chosen_")
    apart = "{{ text_prefix }}{% for m in messages %}{{ m.input ~ m.instruction ~ m.content }}{% endfor %}"
    encoded = Chat(bpe(), template=apart, bos="<s>", eos="", train_on="all")
    assert decode(encoded(sample)) == "{<s>baa\n\nbc}"
    assert "input_separator" not in chat().__qualname__ and encoded.stats.dropped_messages == 0


def test_missing_inputs_and_histories_are_left_out() -> None:
    expected = decode(chat()({"instruction": "a", "output": "b"}))
    for more in ({"input": None}, {"input": ""}, {"history": None}, {"history": ""},
                 {"history": []}, {"history": np.array([], object)}):  # fmt: skip
        assert decode(chat()({"instruction": "a", "output": "b", **more})) == expected


@pytest.mark.parametrize("pairs", [
    [["q", None]], [{"q": "x", "r": "y"}], [say("user", "x"), say("assistant", "y")], ["qr"],
    [["q"]], [["q", "r", "s"]], [["q", 7]], "text", 7, {"q": "r"}, [["q", "r"], 3],
])  # fmt: skip
def test_histories_that_are_no_pairs_are_errors(pairs: Any) -> None:
    for answer in ("output", "response"):
        with pytest.raises(DataError, match="history must be a list of pairs of texts.*map it"):
            chat()({"instruction": "a", answer: "b", "history": pairs})


def test_histories_of_every_list() -> None:
    pairs = [["x", "y"], ["z", "w"]]
    forms: list[Any] = [pairs, [tuple(pair) for pair in pairs], np.array(pairs, object)]
    forms.append([np.array(pair, object) for pair in pairs])
    texts = {decode(chat()({"instruction": "a", "output": "b", "history": form})) for form in forms}
    assert len(texts) == 1


def test_fields_and_roles() -> None:
    sample = {"dialog": [{"speaker": "customer", "said": "a?"}, {"speaker": "agent", "said": "b"}]}
    encoder = chat(
        fields={"messages": "dialog", "role": "speaker", "content": "said"},
        roles={"customer": "user", "agent": "assistant"},
    )
    assert decode(encoder(sample)).endswith(
        "user\na?<|im_end|>\n<|im_start|>assistant\n{b<|im_end|>}\n"
    )
    assert (
        decode(chat(fields={"completion": "answer"})({"prompt": "a", "answer": "b"}))
        == "a{b<|im_end|>}"
    )
    with pytest.raises(DataError, match="messages: lacks messages"):
        chat(fields={"messages": "dialogue"})(sample)


def test_tools_as_json_text_and_samples_of_columns() -> None:
    tool = {"type": "function", "function": {"name": "f"}}
    messages = [say("user", "a?"), say("assistant", "b")]
    rows = [
        Chat(bpe(), template="qwen")({"messages": given, "tools": tools})["tokens"].tolist()
        for given, tools in (
            (messages, [tool]),
            (tuple(messages), json.dumps([tool])),
            (np.array(messages, object), np.array([tool], object)),
        )
    ]
    assert rows[0] == rows[1] == rows[2]
    with pytest.raises(DataError, match="JSON lists"):
        chat()({"messages": messages, "tools": "{"})


def test_samples_of_arrow_files(tmp_path: Any) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    messages = [
        say("user", "a?"),
        say("assistant", "", tool_calls=[call]),
        say("tool", "x", tool_call_id="1"),
        say("assistant", "b"),
    ]
    pq.write_table(pa.Table.from_pylist([{"messages": messages}] * 3), tmp_path / "chats.parquet")
    rows = list(ps.read(tmp_path / "chats.parquet").map(Chat(bpe(), template="qwen")))
    assert rows[0]["tokens"].tolist() == Chat(bpe(), template="qwen")(messages)["tokens"].tolist()


# ---------------------------------------------------------------- samples of no format


@pytest.mark.parametrize(
    ("sample", "match"),
    [
        ({"question": "a", "answer": "b"}, r"it has question, answer \(stepwise: lacks.*alpaca: lacks instruction and output"),
        ({"messages": "a text"}, "messages is a str, not a list of messages"),
        ({"messages": ["a"]}, "messages is a list of str, not a list of messages"),
        ({"messages": None, "text": None}, "text: lacks text"),
        ({}, "it has no keys"),
        (7, "the sample is a int"),
        ({"messages": []}, "no messages"),
        ({"messages": [{"content": "x"}]}, "message 0 has no role, only content"),
        ({"messages": [say("user", "a"), {"role": "assistant"}]}, "message 1 has no content, only role"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}]}, "part of type 'image_url'"),
        ({"messages": [say("assistant", "", tool_calls=["x"])]}, "a tool call is a str"),
    ],
)  # fmt: skip
def test_samples_without_a_format(sample: Any, match: str) -> None:
    with pytest.raises(DataError, match=match):
        chat()(sample)


def test_a_named_format_is_the_only_one_that_is_tried() -> None:
    with pytest.raises(DataError, match=r"\(text: lacks text\)"):
        chat(format="text")(alpaca(0))
    assert {entry.name for entry in FORMATS} | {"auto"} == {*FORMAT_NAMES}
    assert SampleReader("messages", {}, {}).read([say("user", "a")]).sequences[""] is not None


def learned_and_rest(row: dict[str, Any], side: str) -> tuple[str, str]:
    ids, mask = row[f"{side}tokens"], row[f"{side}loss_mask"]
    parts = [bpe().decode(ids[each].tolist(), skip_special_tokens=False) for each in (mask, ~mask)]
    return parts[0], parts[1]


PAIRS: dict[str, dict[str, Any]] = {
    "Intel/orca_dpo_pairs": {"system": "s!", "question": "q?", "chosen": "yes", "rejected": "no"},
    "argilla/distilabel-intel-orca": {"system": "s!", "input": "q?", "chosen": "yes", "rejected": "no"},
    "alpaca pairs": {"system": "s!", "instruction": "q?", "input": "", "chosen": "yes", "rejected": "no"},
    "text prompt": {"system": "s!", "prompt": "q?", "chosen": "yes", "rejected": "no"},
    "message prompt": {
        "system": "s!", "prompt": [say("user", "q?")],
        "chosen": [say("assistant", "yes")], "rejected": [say("assistant", "no")],
    },
    "conversations": {
        "system": "s!", "conversations": [{"from": "human", "value": "q?"}],
        "chosen": {"from": "gpt", "value": "yes"}, "rejected": {"from": "gpt", "value": "no"},
    },
    "messages of answers": {
        "system": "s!", "question": "q?", "chosen": {"role": "assistant", "content": "yes"},
        "rejected": [say("assistant", "no")],
    },
    "answers with a system message": {
        "instruction": "q?", "input": None, "chosen": [say("system", "s!"), say("assistant", "yes")],
        "rejected": [say("system", "s!"), say("assistant", "no")],
    },
    "whole sides": {
        "system": "s!", "chosen": [say("user", "q?"), say("assistant", "yes")],
        "rejected": [say("user", "q?"), say("assistant", "no")],
    },
}  # fmt: skip


@pytest.mark.parametrize("name", PAIRS)
def test_pairs_have_the_system_message_and_the_question(name: str) -> None:
    row = chat()(PAIRS[name])
    for side, answer in (("chosen_", "yes"), ("rejected_", "no")):
        learned, rest = learned_and_rest(row, side)
        assert learned == f"{answer}<|im_end|>"
        assert rest.startswith("<|im_start|>system\ns!<|im_end|>\n<|im_start|>user\nq?<|im_end|>")


def test_a_completion_has_the_system_message() -> None:
    for prompt, completion in (("q?", "yes"), ([say("user", "q?")], [say("assistant", "yes")])):
        row = chat()({"system": "s!", "prompt": prompt, "completion": completion})
        learned, rest = learned_and_rest(row, "")
        assert learned == "yes<|im_end|>" and rest.startswith("<|im_start|>system\ns!<|im_end|>")


def test_a_dialogue_that_ends_with_a_question_is_an_error() -> None:
    whole, cut = "\n\nHuman: a\n\nAssistant: b", "\n\nHuman: a\n\nAssistant: c\n\nHuman: d"
    with pytest.raises(DataError, match="ends with a turn of the human"):
        chat()({"chosen": whole, "rejected": cut})


def test_tools_that_the_template_does_not_write_are_counted() -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    sample = {"messages": [say("user", "q"), say("assistant", "a")], "tools": tools}
    encoders = chat(), Chat(bpe(), template="qwen")
    for encoder in encoders:
        encoder(sample)
    assert [encoder.stats.dropped_tools for encoder in encoders] == [1, 0]


def test_tool_calls_that_the_template_does_not_write_are_counted() -> None:
    call = {"type": "function", "function": {"name": "f", "arguments": {"x": 1}}}
    asked = {"role": "assistant", "content": None, "tool_calls": [call]}
    sample = {"messages": [say("user", "q"), asked, say("tool", "r"), say("assistant", "a")]}
    families = "llama3", "gemma", "phi4", "chatml", "qwen", "mistral", "deepseek"
    encoders = [Chat(bpe(), template=family) for family in families]
    for encoder in encoders:
        encoder(sample)
    assert [encoder.stats.dropped_calls for encoder in encoders] == [1, 1, 1, 0, 0, 0, 0]
    assert not any(encoder.stats.dropped_messages for encoder in encoders)


def test_messages_that_the_template_does_not_write_are_counted() -> None:
    talk = [say("user", "q"), say("critic", "f(2)"), say("assistant", "a")]
    for family, dropped in (("qwen", 1), ("deepseek", 1), ("chatml", 0), ("gemma", 0)):
        encoder = Chat(bpe(), template=family)
        encoder({"messages": talk})
        assert encoder.stats.dropped_messages == dropped
    encoder = Chat(bpe(), template="mistral-v3")
    encoder({"messages": [say("system", "s!"), say("assistant", "a")]})
    assert encoder.stats.dropped_messages == 1


def test_a_system_message_before_an_answer_is_not_lost() -> None:
    talk = [say("system", "s!"), say("assistant", "hi"), say("user", "q?"), say("assistant", "a")]
    for family in FAMILIES:
        encoder = Chat(bpe(), template=family)
        text = decode(encoder({"messages": talk}))
        assert text.count("s!") == 1 and text.index("s!") < text.index("q?")
        assert not encoder.stats.dropped_messages


# ---------------------------------------------------------------- prompts and answers that overlap


def joined(prompt: Any, answer: Any) -> tuple[list[Any], int]:
    """Return the roles and contents of a prompt with its answer, and the length of the prompt."""
    rows = [
        SampleReader("auto", {}, {}).read(sample).sequences
        for sample in (
            {"prompt": prompt, "completion": answer},
            {"prompt": prompt, "completion": answer, "label": True},
            {"prompt": prompt, "chosen": answer, "rejected": answer},
        )
    ]
    sequences: list[Any] = [sequence for row in rows for sequence in row.values()]
    assert all(sequence == sequences[0] for sequence in sequences)
    messages = [(message["role"], message["content"]) for message in sequences[0].messages]
    return messages, sequences[0].prompt_length


@given(st.data())
def test_every_overlap_of_a_prompt_and_its_answer_is_merged(data: st.DataObject) -> None:
    roles = ["user", "assistant"] * 4
    dialog = [say(role, f"{role} {number}") for number, role in enumerate(roles)]
    system = [say("system", "s")]
    end = data.draw(st.sampled_from([1, 3, 5, 7]), "end of the prompt")
    start = data.draw(st.integers(0, end - 1), "start of the prompt")
    # An answer that begins with an answer cannot have messages before the prompt.
    first = data.draw(st.integers(0, end).filter(lambda i: not i % 2 or start <= i), "answer")
    heads = [data.draw(st.booleans(), f"system of {side}") for side in ("prompt", "answer")]
    prompt = [{**message, "id": number} for number, message in enumerate(dialog[start:end])]
    answer: list[Any] = dialog[first : data.draw(st.sampled_from([end + 1, len(dialog)]), "stop")]
    answer = [{**message, "content": f"{message['content']} "} for message in answer]
    is_text = data.draw(st.booleans()) and start == end - 1
    if is_text:
        heads[0], given_prompt = False, dialog[start]["content"]
    elif heads[1] and not heads[0] and first == end:
        heads[1] = False  # a system message between messages stays there
        given_prompt = prompt
    else:
        given_prompt = system * heads[0] + prompt
    messages, length = joined(given_prompt, system * heads[1] + answer)
    begin = min(start, first)
    whole = system * any(heads) + dialog[begin : first + len(answer)]
    got = [(role, content.strip()) for role, content in messages]
    assert got == [(message["role"], message["content"]) for message in whole]
    assert length == any(heads) + end - begin


@pytest.mark.parametrize(("prompt", "answer", "expected", "length"), [
    ("q?", [say("system", "s"), say("assistant", "a")], "s q? | a", 2),
    ("q?", [say("tool", "t"), say("assistant", "a")], "q? | t a", 1),
    ("q?", [say("system", "s"), say("user", "q?"), say("assistant", "a")], "s q? | a", 2),
    ([say("user", "q?")], [say("tool", "t"), say("assistant", "a")], "q? | t a", 1),
    ([say("user", "q?")], [say("system", "s"), say("assistant", "a")], "q? | s a", 1),
    ([say("system", "s"), say("user", "q?")], [say("system", "s"), say("assistant", "a")], "s q? | a", 2),
    ([say("system", "s")], [say("system", "s"), say("user", "q?"), say("assistant", "a")], "s | q? a", 1),
    ([say("system", "s")], [say("user", "q?"), say("assistant", "a")], "s | q? a", 1),
    ([say("user", "q?"), say("assistant", "a")], [say("user", "r?"), say("assistant", "b")], "q? a | r? b", 2),
    ([say("user", "q?"), say("assistant", "a")], [say("assistant", "a")], "q? a | a", 2),
    ("q?", [say("assistant", "a"), say("user", "q?"), say("assistant", "b")], "q? | a q? b", 1),
    ("", [say("user", "q?"), say("assistant", "a")], "q? | a", 1),
    (" ", [say("system", "s"), say("assistant", "a")], "s | a", 1),
])  # fmt: skip
def test_prompts_and_answers_without_an_overlap_stay_whole(
    prompt: Any, answer: Any, expected: str, length: int
) -> None:
    messages, got_length = joined(prompt, answer)
    contents = [content for _, content in messages]
    contents.insert(got_length, "|")
    assert (" ".join(contents), got_length) == (expected, length)


@pytest.mark.parametrize(("prompt", "answer", "match"), [
    ("Context: A.", [say("user", "Q?"), say("assistant", "a")], "user message 'Context: A.'.*user message 'Q"),
    ([say("user", "q?")], [say("user", "r?"), say("assistant", "a")], "neither repeats the prompt nor answers"),
    ([say("user", "q?", id=1)], [say("user", "q?", id=2), say("assistant", "a")], "neither repeats"),
    ([say("user", "q?"), say("assistant", "a"), say("user", "r?")],
     [say("user", "q?"), say("assistant", "b"), say("user", "r?"), say("assistant", "c")], "neither repeats"),
    ([say("user", "q?"), say("assistant", "a")], [say("user", "q?"), say("assistant", "b")], "neither repeats"),
    ([say("system", "s"), say("user", "q?")], [say("system", "t"), say("user", "q?"), say("assistant", "a")],
     "system message 's', and the answer, which repeats the prompt, with the system message 't'"),
])  # fmt: skip
def test_prompts_that_answers_repeat_in_part_are_errors(
    prompt: Any, answer: Any, match: str
) -> None:
    with pytest.raises(DataError, match=match):
        chat()({"prompt": prompt, "completion": answer})
    with pytest.raises(DataError, match=match):
        chat()({"prompt": prompt, "chosen": answer, "rejected": answer})


# ---------------------------------------------------------------- steps that are empty


def make_words(pre_tokenizer: Any) -> Any:
    """Return a tokenizer of the pieces of a pre-tokenizer."""
    from tokenizers import Tokenizer, models

    tokenizer = Tokenizer(models.WordLevel({"?": 0}, unk_token="?"))
    if pre_tokenizer is not None:
        tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.add_special_tokens(["</s>"])
    return tokenizer


@given(st.data())
def test_no_label_of_a_step_is_lost_to_empty_steps(data: st.DataObject) -> None:
    from tokenizers import Regex, pre_tokenizers

    pieces = data.draw(st.sampled_from([r"\n+|[^\n]", r"\s+|\S", r"\n\n|.|\n"]), "tokens")
    steps = data.draw(
        st.lists(st.sampled_from(["", "", " ", "a", "ab", "a\n", "\nb", " a"]), min_size=1)
    )
    labels = [data.draw(st.integers(0, 1)) for _ in steps]
    prompt = data.draw(st.sampled_from(["", "p", "p\n"]), "prompt")
    encoder = Chat(
        make_words(pre_tokenizers.Split(Regex(pieces), "isolated")), "stepwise", eos="</s>"
    )
    row = encoder({"prompt": prompt, "completions": steps, "labels": labels})
    ends = [
        match.end()
        for match in re.finditer(pieces, prompt + "".join(f"{step}\n" for step in steps))
    ]
    owners = dict[int, tuple[bool, int]]()  # by token: whether its step has a text, and the label
    position = len(prompt)
    for step, label in zip(steps, labels, strict=True):
        position += len(step) + 1
        token = sum(end < position for end in ends)
        if step.strip() or not owners.get(token, (False, 0))[0]:
            owners[token] = bool(step.strip()), label
    found = {at: row["labels"][at] for at in np.flatnonzero(row["labels"] != -100).tolist()}
    assert found == {token: label for token, (_, label) in owners.items()}
    assert row["loss_mask"].nonzero()[0].tolist() == sorted(owners)
    assert encoder.stats.dropped_labels == len(steps) - len(owners)


def test_steps_without_a_token_of_their_own() -> None:
    from tokenizers import pre_tokenizers

    encoder = Chat(make_words(pre_tokenizers.Whitespace()), "stepwise", eos="</s>")
    row = encoder({"prompt": "p", "completions": ["", "a", ""], "labels": [0, 1, 0]})
    assert row["labels"].tolist() == [-100, 1, -100], "the prompt and the end have no label"
    assert encoder.stats.dropped_labels == 2
    row = encoder({"prompt": "", "completions": ["", "a"], "labels": [0, 1]})
    assert row["labels"].tolist() == [1, -100]
    whole = Chat(make_words(None), "stepwise", eos="</s>")
    with pytest.raises(DataError, match=r"step 1 .* since step 0 ends in the same token: join"):
        whole({"prompt": "p", "completions": ["a", "b"], "labels": [0, 1]})


def test_fields_that_the_user_names_choose_the_format() -> None:
    talk = [say("user", "other"), say("assistant", "x")]
    sample = {"problem": "P", "solution": "S", "messages": talk, "body": "B", "good": True}
    named = {"prompt": "problem", "completion": "solution"}
    assert decode(chat(fields=named)(sample)) == "P{S<|im_end|>}"
    assert decode(chat(fields={"text": "body"})(sample)) == "{B<|im_end|>}"
    labelled = chat(fields={**named, "label": "good"})(sample)
    assert (decode(labelled), labelled["label"]) == ("P{S<|im_end|>}", True)
    assert find_format(sample, named) == "completion"
    pair = {"talk": talk[:1], "chosen": talk[1:], "rejected": [say("assistant", "y")]}
    assert "chosen_tokens" in chat(fields={"messages": "talk"})(pair)


def test_messages_as_json_text_are_refused_with_a_remedy() -> None:
    with pytest.raises(DataError, match="messages is JSON text.*json.loads"):
        chat()({"messages": json.dumps([say("user", "a"), say("assistant", "b")])})


def test_roles_in_capitals_are_refused_with_a_remedy() -> None:
    talk = [say("User", "a"), say("Assistant", "b")]
    with pytest.raises(DataError, match=r"message 1 has the role 'Assistant'.*roles=\{'Assistant'"):
        chat()(talk)
    roles = {"Assistant": "assistant", "User": "user"}
    assert "{b<|im_end|>}" in decode(chat(roles=roles)(talk))
    wrong: Any = {"Assistant": 1}
    with pytest.raises(ConfigError, match=r"roles=\{'Assistant': 1\}"):
        chat(roles=wrong)
