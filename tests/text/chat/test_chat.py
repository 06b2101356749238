"""Chat as a transform: what is learned, what is dropped, what is kept, and what goes wrong."""

from __future__ import annotations

import logging
import pickle
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from chat_cases import CONTROL, NOT_SPECIAL, bpe, decode, random_conversation
from penstock.errors import ConfigError, DataError, Skip
from penstock.testing import assert_resumes
from penstock.text import TRANSFORMERS, CausalLM, Chat
from penstock.text.chat import FAMILIES, ChatStats


def turns(*texts: str, system: str | None = None) -> list[dict[str, Any]]:
    roles = ["user", "assistant"] * len(texts)
    messages = [{"role": role, "content": text} for role, text in zip(roles, texts, strict=False)]
    return [{"role": "system", "content": system}, *messages] if system else messages


def chatml(**settings: Any) -> Chat:
    return Chat(bpe(), template="chatml", **settings)


TWO = turns("a?", "b.", "c?", "d.")
TEXT = "<|im_start|>user\na?<|im_end|>\n<|im_start|>assistant\n{b.<|im_end|>}\n<|im_start|>user\nc?<|im_end|>\n<|im_start|>assistant\n{d.<|im_end|>}\n"


def test_answers_and_the_tokens_that_end_them_are_learned() -> None:
    assert decode(chatml()(TWO)) == decode(chatml()({"messages": TWO})) == TEXT


@pytest.mark.parametrize(
    ("settings", "learned"),
    [
        ({"train_on": "last"}, ["d.<|im_end|>"]),
        ({"train_on": lambda message: message["content"] in ("a?", "d.")}, ["a?<|im_end|>", "d.<|im_end|>"]),
        ({"train_on": "all"}, [TEXT.replace("{", "").replace("}", "")]),
    ],
    ids=["last", "function", "all"],
)  # fmt: skip
def test_train_on(settings: dict[str, Any], learned: list[str]) -> None:
    text = decode(chatml(**settings)(TWO))
    assert [piece.partition("}")[0] for piece in text.split("{")[1:]] == learned


@pytest.mark.parametrize("key", [{"weight": 0}, {"weight": 0.0}, {"train": False}])
def test_messages_that_are_not_learned(key: dict[str, Any]) -> None:
    messages = turns("a?", "b.", "c?", "d.")
    messages[1] |= key
    messages[3] |= {"weight": None, "train": True}
    text = decode(chatml()(messages))
    assert "{b" not in text and "{d.<|im_end|>}" in text
    assert "{d" not in decode(
        chatml(train_on="last", untrained="keep")({"messages": [*messages[:3], messages[3] | key]})
    )
    text = decode(chatml(train_on="all")(messages))
    assert text.count("{") == 2 and "assistant\n}b.<|im_end|>{\n" in text
    with pytest.raises(DataError, match="weight 0.5"):
        chatml()([messages[0], messages[1] | {"weight": 0.5, "train": True}])
    with pytest.raises(DataError, match="weight '0': .*the numbers 0 and 1"):
        chatml()([messages[0], messages[1] | {"weight": "0", "train": True}])
    with pytest.raises(DataError, match="train 'false': give true or false"):
        chatml()([messages[0], messages[1] | {"weight": None, "train": "false"}])


@pytest.mark.parametrize("place", [0, 1])
def test_half_a_surrogate_pair_is_an_error(place: int) -> None:
    messages = turns("What now?", "This is it")
    messages[place]["content"] += "\ud83d"
    for family in ("chatml", "llama3"):
        with pytest.raises(
            DataError, match=r"half a surrogate pair, '.ud83d', behind '.*(now\?|it)'"
        ):
            Chat(bpe(), template=family)(messages)
    with pytest.raises(DataError, match="repair the text or leave it out"):
        chatml()({"prompt": "a", "completion": "\ud83d"})


def test_fields_of_the_chat_cannot_be_kept() -> None:
    for name in ("tokens", "chosen_loss_mask"):
        with pytest.raises(ConfigError, match=f"Chat makes '{name}' itself"):
            chatml(keep=[name])
    sample = {"prompt": "p", "completions": ["b"], "labels": [1], "id": 3}
    row = chatml(keep=("labels", "id"))(sample)
    assert row["labels"].shape == row["tokens"].shape and row["id"] == 3


def test_roles_other_than_answers_can_be_learned_with_any_template() -> None:
    def tools(message: Any) -> bool:
        return message["role"] == "tool"

    messages = [*turns("a?", "b."), {"role": "tool", "content": "sun"}, *turns("c?", "d.")[1:]]
    assert "tool\n{sun<|im_end|>}" in decode(chatml(train_on=tools)(messages))
    plain = "{% for m in messages %}{{ m.role }}: {{ m.content }}<|im_end|>{% endfor %}"
    assert "tool: {sun<|im_end|>}" in decode(Chat(bpe(), template=plain, train_on=tools)(messages))


# ---------------------------------------------------------------- as a transform


def test_it_packs_batches_resumes_and_runs_in_processes() -> None:
    rng = random.Random(1)
    samples = [{"messages": random_conversation(rng, i % 5 == 0)} for i in range(60)]
    chat = chatml(max_length=200)
    encoded = ps.from_sequence(samples, name="chats").shuffle(seed=1).map(chat, may_skip=True)
    rows = encoded.pack(256, method="first_fit").batch(2).map(CausalLM(TRANSFORMERS))
    batch = next(iter(rows))
    assert batch["input_ids"].shape == (2, 256) and (batch["labels"] >= 0).any()
    assert_resumes(lambda: ps.Loader(encoded.pack(256, method="first_fit")), steps=6)
    each = ps.from_sequence(samples[:8], name="chats").map(chatml())
    with ps.Loader(each, workers=2, executor="processes") as loader:
        found = [row["tokens"].tolist() for row in loader]
    assert found == [row["tokens"].tolist() for row in each]


def test_many_is_one_by_one() -> None:
    rng = random.Random(2)
    samples = [{"messages": random_conversation(rng, i % 2 == 0), "id": i} for i in range(40)]
    chat = chatml(keep=("id",))
    for row, sample in zip(chat.many(samples), samples, strict=True):
        alone = chat(sample)
        assert not isinstance(row, Skip)
        assert row.keys() == alone.keys() == {"tokens", "loss_mask", "id"}
        assert all(np.array_equal(row[name], alone[name]) for name in row)


def test_it_describes_itself_by_content(tmp_path: Path) -> None:
    bpe().save(str(tmp_path / "tokenizer.json"))
    template = tmp_path / "mine.jinja"
    template.write_text("{% for m in messages %}{{ m.content }}{% endfor %}")
    names = [
        chatml().__qualname__,
        Chat(bpe(), template="qwen").__qualname__,
        chatml(max_length=9).__qualname__,
        chatml(max_length=9, truncate="left").__qualname__,
        chatml(train_on="last").__qualname__,
        chatml(fields={"messages": "m"}).__qualname__,
        chatml(date="2024-07-26").__qualname__,
        chatml(variables={"x": 1}).__qualname__,
        Chat(bpe(), template=template).__qualname__,
    ]
    assert len({*names}) == len(names)
    path = tmp_path / "tokenizer.json"
    assert chatml().__qualname__ == names[0]
    by_path = Chat(path, template=template)
    assert Chat(str(path), template=template.read_text()).__qualname__ == by_path.__qualname__
    sent, expected = pickle.loads(pickle.dumps(by_path)), by_path(TWO)
    template.unlink()
    assert sent.__qualname__ == by_path.__qualname__
    assert sent(TWO)["tokens"].tolist() == expected["tokens"].tolist()


@pytest.mark.parametrize("form", ["file", "tokenizers", "transformers", "folder"])
def test_every_form_of_a_tokenizer(form: str, tmp_path: Path) -> None:
    from transformers import PreTrainedTokenizerFast

    bpe().save(str(tmp_path / "tokenizer.json"))
    fast: Any = PreTrainedTokenizerFast(
        tokenizer_object=bpe(), eos_token="<|im_end|>", pad_token="<eos>"
    )
    fast.chat_template = "{{ bos_token }}{% for m in messages %}{{ m.role }}{% generation %}{{ m.content + eos_token }}{% endgeneration %}{% endfor %}"
    fast.save_pretrained(tmp_path / "folder")
    given = {
        "file": tmp_path / "tokenizer.json",
        "tokenizers": bpe(),
        "transformers": fast,
        "folder": tmp_path / "folder",
    }[form]
    assert decode(Chat(given, template="chatml")(TWO)) == TEXT
    if form in ("transformers", "folder"):
        assert decode(Chat(given, train_on="last")(TWO)).endswith("assistant{d.<|im_end|>}")
        bpe().no_padding()
        fast.backend_tokenizer.enable_padding(length=50)
        assert decode(Chat(given, template="chatml")(TWO)) == TEXT
    else:
        with pytest.raises(ConfigError, match="no chat template.*template='chatml'"):
            Chat(given)(TWO)


# ---------------------------------------------------------------- control tokens in data


@pytest.mark.parametrize("family", FAMILIES)
def test_no_message_can_hold_control_tokens(family: str) -> None:
    """Each control token of the tokenizer in each kind of text of a conversation."""
    chat, tokenizer = Chat(bpe(), template=family, untrained="keep"), bpe()
    added = [*CONTROL, *(NOT_SPECIAL if family == "deepseek" else ())]
    ids = {tokenizer.token_to_id(token) for token in added}

    def controls(messages: Any) -> list[str]:
        found = [i for i in chat({"messages": messages})["tokens"].tolist() if i in ids]
        return [tokenizer.id_to_token(i) for i in found]

    usual = controls(turns("q", "a", "r", "b", system="s"))
    for token in added:
        for text in (token, f"x{token}y{token}", f" {token}\n", f"{token[:2]}{token}{token[2:]}"):
            assert controls(turns(text, text, text, text, system=text)) == usual, (family, text)
    injected = turns("".join(added), "a", "r", "b", system="s")
    assert controls(injected) == usual
    row = chat({"messages": injected})
    assert tokenizer.decode(row["tokens"], skip_special_tokens=False).count("".join(added)) == 1


def test_tokens_that_a_template_joins_are_text_too() -> None:
    template = "{% for m in messages %}{{ m.content }}{{ m.more }}|im_end|>{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}"
    chat = Chat(bpe(), template=template)
    message = {"role": "assistant", "content": "a<|im_", "more": "end|>b<"}
    ids = chat([message])["tokens"].tolist()
    assert all(not bpe().id_to_token(i).startswith("<|") for i in ids)
    assert bpe().decode(ids) == "a<|im_end|>b<|im_end|>a<|im_"
    parts = [{"type": "text", "text": "<|im_"}, {"type": "text", "text": "end|>"}]
    row = chatml()([{"role": "user", "content": parts}, *turns("a?", "b.")[1:]])
    assert decode(row).startswith("<|im_start|>user\n<|im_end|><|im_end|>\n")
    assert [bpe().id_to_token(i) for i in row["tokens"].tolist()].count("<|im_end|>") == 2


def test_tools_and_calls_hold_no_control_tokens() -> None:
    bad = "<|im_end|>"
    call = {
        "type": "function",
        "function": {"name": f"f{bad}", "arguments": {bad: [bad, 1.5, None]}},
    }
    messages = [
        {"role": "user", "content": "a?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": bad, "name": bad},
        {"role": "assistant", "content": "done"},
    ]
    tool = {"type": "function", "function": {"name": bad, "parameters": {bad: bad}}}
    chat = Chat(bpe(), template="qwen")
    row = chat({"messages": messages, "tools": [tool]})
    names = [bpe().id_to_token(i) for i in row["tokens"].tolist()]
    assert names.count("<|im_end|>") == 5 and names.count("<tool_call>") == 3
    assert decode(row).count(bad) == 5 + 7


def test_a_role_cannot_build_a_control_token() -> None:
    template = "{% for m in messages %}<|{{ m.role }}|>{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}"
    chat = Chat(bpe(), template=template)
    with pytest.raises(DataError, match="role 'im_end' is a part of a control token"):
        chat([{"role": "im_end", "content": "x"}, *turns("a", "b")])
    with pytest.raises(DataError, match=r"role '<\|user\|>'.*roles="):
        chat([{"role": "<|user|>", "content": "x"}])


def test_control_tokens_can_be_allowed() -> None:
    text = "x<|im_end|>y</s>"
    names = [
        bpe().id_to_token(i)
        for i in chatml(allowed_special=("</s>",))(turns(text, "b"))["tokens"].tolist()
    ]
    assert names.count("<|im_end|>") == 2 and names.count("</s>") == 1
    names = [
        bpe().id_to_token(i)
        for i in chatml(allowed_special="all")(turns(text, "b"))["tokens"].tolist()
    ]
    assert names.count("<|im_end|>") == 3 and names.count("</s>") == 1
    ids = Chat(bpe(), eos="</s>", allowed_special="all")("x<|im_end|>")["tokens"].tolist()
    assert [bpe().id_to_token(i) for i in ids] == ["x", "<|im_end|>", "</s>"]


def test_markup_is_a_token_in_answers_and_text_in_questions() -> None:
    row = chatml()(turns("<think>a</think>", "<think>b</think>"))
    names = [bpe().id_to_token(i) for i in row["tokens"].tolist()]
    assert names.count("<think>") == names.count("</think>") == 1


def test_special_tokens_of_reasoning_are_tokens_in_answers_and_others_are_text() -> None:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_str(bpe().to_str())
    tokenizer.add_special_tokens(["<think>", "</think>", "[INST]", "[/INST]"])
    chat = Chat(tokenizer, template="chatml")
    row = chat(turns("<think>a</think>", "<think>b</think>[INST]c[/INST]"))
    names = [tokenizer.id_to_token(i) for i in row["tokens"].tolist()]
    assert names.count("<think>") == names.count("</think>") == 1
    assert "[INST]" not in names


def test_noncharacters_in_data_do_no_harm() -> None:
    text = "".join(map(chr, range(0xFDD0, 0xFDF0)))
    row = chatml()(turns(f"a{text}b", f"c{text}", f"{text}<|im_end|>", "d"))
    assert decode(row).count("{") == 2 and decode(row).count("\ufffd") == 96
    segments = Chat(bpe(), eos="</s>")({"text": f"a{text}b"})
    assert decode(segments) == "{a" + "\ufffd" * 32 + "b</s>}"


def words_tokenizer(kind: str) -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers

    vocab = {
        "<unk>": 0,
        "<|im_start|>": 1,
        "<|im_end|>": 2,
        "user": 3,
        "assistant": 4,
        "hi": 5,
        "\n": 6,
        "▁": 7,
        "x": 8,
    }
    if kind == "WordLevel":
        tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
        tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    elif kind == "WordPiece":
        tokenizer = Tokenizer(
            models.WordPiece(vocab, unk_token="<unk>", max_input_chars_per_word=99)
        )
        tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    else:
        tokenizer = Tokenizer(
            models.Unigram([(token, -float(i)) for i, token in enumerate(vocab)], unk_id=0)
        )
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    tokenizer.add_special_tokens(["<unk>", "<|im_start|>", "<|im_end|>"])
    return tokenizer


@pytest.mark.parametrize("kind", ["WordLevel", "WordPiece", "Unigram"])
def test_vocabularies_that_hold_control_tokens_are_safe(kind: str) -> None:
    tokenizer = words_tokenizer(kind)
    ids = Chat(tokenizer, template="chatml")(turns("hi <|im_end|> hi", "hi"))["tokens"].tolist()
    assert ids.count(1) == 2 and ids.count(2) == 2
    assert tokenizer.encode("hi <|im_end|>").ids.count(2) == 1


# ---------------------------------------------------------------- templates


def test_a_template_without_blocks_that_changes_answers(caplog: Any) -> None:
    template = "{% for m in messages %}{{ m.role }}:{{ m.content | upper if m.role == 'assistant' else m.content }}<|im_end|>{% endfor %}"
    text = decode(Chat(bpe(), template=template)(turns("yes", "yes", "no yes", "yes")))
    assert (
        text
        == "user:yes<|im_end|>assistant:{YES<|im_end|>}user:no yes<|im_end|>assistant:{YES<|im_end|>}"
    )
    template = "{% for m in messages %}{{ m.role }}:{{ m.content[:3] }}<|im_end|>{% endfor %}"
    with caplog.at_level(logging.WARNING, "penstock"):
        chat = Chat(bpe(), template=template)
        text = decode(chat(turns("abcdef", "abcdef", "abcdef", "abc")))
    assert (
        text
        == "user:abc<|im_end|>assistant:{abc<|im_end|>}user:abc<|im_end|>assistant:{abc<|im_end|>}"
    )
    assert chat.stats.changed_answers == 1 and "the chat template changed or dropped" in caplog.text
    template = "{{ messages | length }}{% for m in messages %}{{ m.content | length }}{{ m.content[:3] }}{% endfor %}"
    with pytest.raises(DataError, match="message 1 cannot be found.*generation"):
        Chat(bpe(), template=template)(turns("abcdefghi", "abcdefghi"))


PLAIN_HEADERS = {
    "(INST) ": (" (/INST)", " "),
    "USER: ": (" ASSISTANT:", " "),
    "### Instruction:\n": ("\n\n### Response:\n", ""),
}
"""Texts before questions, behind them, and before the content of answers."""
STARTS = [
    "(/INST)",
    "ASSISTANT:",
    "ASSISTANT: ",
    "### Response:\n",
    "(INST) ",
    "yes",
    ": ",
    " (/INST)",
]


@given(st.data())
def test_answers_that_begin_like_a_header_are_learned_whole(data: st.DataObject) -> None:
    before = data.draw(st.sampled_from(sorted(PLAIN_HEADERS)), "question")
    header, space = PLAIN_HEADERS[before]
    template = (
        "{% for m in messages %}{% if m.role == 'user' %}"
        f"{{{{ {before!r} + m.content.strip() + {header!r} }}}}{{% else %}}"
        f"{{{{ {space!r} + m.content.strip() + eos_token }}}}{{% endif %}}{{% endfor %}}"
    )
    text = st.lists(st.sampled_from(STARTS), min_size=1, max_size=4).map(
        lambda parts: "".join(parts).strip()
    )
    messages = turns(*(data.draw(text) for _ in range(2 * data.draw(st.integers(1, 3)))))
    chat = Chat(bpe(), template=template, eos="</s>")
    pieces = [
        f"{before}{question['content']}{header}{{{space}{answer['content']}</s>}}"
        for question, answer in zip(messages[::2], messages[1::2], strict=True)
    ]
    assert decode(chat(messages)) == "".join(pieces)
    assert chat.stats == ChatStats(samples=1)


def test_white_space_ends_an_answer_that_no_token_ends() -> None:
    template = "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
    chat = Chat(bpe(), template=template, untrained="keep")
    for answer in ("b", "b ", "b \n", "", " ", "b\n\n"):
        text = decode(chat(turns("a", "x ", "a ", answer)))
        # The token of the next question ends an answer before it.
        assert text == f"<|user|>\na<|assistant|>{{\nx <|user|>}}\na <|assistant|>{{\n{answer}}}"


def test_the_end_of_text_behind_an_answer_that_is_left_out_is_not_learned() -> None:
    messages = turns("a?", "b.", "c?", "d.")
    messages[3]["weight"] = 0
    text = decode(Chat(bpe(), template="phi", train_on="all")(messages))
    learned = [piece.partition("}")[0] for piece in text.split("{")[1:]]
    assert "b.<|end|>" in learned[0] and "".join(learned[1:]) == "\n"


def test_dropped_reasoning_is_reported_once(caplog: Any) -> None:
    messages = turns("a?", "<think>\nr\n</think>\n\nb.", "c?", "<think>\ns\n</think>\n\nd.")
    with caplog.at_level(logging.WARNING, "penstock"):
        chat = Chat(bpe(), template="qwen")
        for _ in range(5):
            text = decode(chat(messages))
    assert text.count("<think>") == 1 and "{b.<|im_end|>}" in text
    assert "{<think>\ns\n</think>\n\nd.<|im_end|>}" in text
    assert chat.stats.changed_answers == 5
    assert len([record for record in caplog.records if "dropped" in record.message]) == 1


@pytest.mark.parametrize("key", ["reasoning_content", "reasoning", "thinking"])
@pytest.mark.parametrize("train_on", ["assistant", "last", "all"])
@pytest.mark.parametrize("family", FAMILIES)
def test_dropped_reasoning_in_a_key_is_reported(family: str, train_on: Any, key: str) -> None:
    messages: list[dict[str, Any]] = turns("a?", "b.", "c?", "d.")
    chat = Chat(bpe(), template=family, train_on=train_on)
    messages[3][key] = "because"
    row = decode(chat(messages))
    assert chat.stats.changed_answers == ("because" not in row) == (family != "qwen")
    messages[1][key] = "earlier"
    chat = Chat(bpe(), template=family, train_on=train_on)
    chat(messages)
    dropped = [i for i in (1, 3) if (i, family) != (3, "qwen") and (i, train_on) != (1, "last")]
    assert chat.stats.changed_answers == len(dropped)


def test_blocks_that_leave_out_the_end_of_an_answer_are_followed_and_reported(caplog: Any) -> None:
    template = "{% for m in messages %}{{ m.role }}{% generation %}{{ m.content }}{% endgeneration %}<|im_end|>{% endfor %}"
    with caplog.at_level(logging.WARNING, "penstock"):
        chat = Chat(bpe(), template=template)
    assert "end before <|im_end|>" in caplog.text and "{% endgeneration %} behind" in caplog.text
    assert decode(chat(turns("a", "b"))).endswith("assistant{b}<|im_end|>")


def test_reasoning_content_is_part_of_the_answer() -> None:
    messages = [
        *turns("a?"),
        {"role": "assistant", "content": "b.", "reasoning_content": "because"},
    ]
    text = decode(Chat(bpe(), template="qwen")(messages))
    assert text.endswith("{<think>\nbecause\n</think>\n\nb.<|im_end|>}\n")


def test_tool_calls_are_learned_with_and_without_blocks() -> None:
    call = {
        "id": "1",
        "type": "function",
        "function": {"name": "weather", "arguments": '{"city": "Bern"}'},
    }
    messages = [
        *turns("a?"),
        {"role": "assistant", "tool_calls": [call, call]},
        {"role": "tool", "content": "sun"},
        {"role": "assistant", "content": "b.", "tool_calls": None},
    ]
    expected = '<tool_call>\n{"name": "weather", "arguments": {"city": "Bern"}}\n</tool_call>'
    for family in ("chatml", "qwen"):
        text = decode(Chat(bpe(), template=family)(messages))
        assert "assistant\n{" + expected + "\n" + expected + "<|im_end|>}" in text
    plain = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}{% for c in m.tool_calls or [] %}"
        "<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    text = decode(Chat(bpe(), template=plain)(messages))
    call_text = expected.replace("\n", "")
    assert (
        "assistant\n{" + call_text + call_text + "<|im_end|>}" in text and "{b.<|im_end|>}" in text
    )


def test_dates_are_fixed() -> None:
    template = "{{ strftime_now('%d %B %Y') }}{% for m in messages %}{{ m.content }}{% endfor %}"
    with pytest.raises(ConfigError, match="date of today.*date='2024-07-26'"):
        Chat(bpe(), template=template)
    assert decode(Chat(bpe(), template=template, date="2025-02-03")(TWO)).startswith(
        "03 February 2025"
    )
    llama = decode(Chat(bpe(), template="llama3.1", date="2025-02-03")(TWO))
    assert "Today Date: 03 Feb 2025" in llama
    assert "Today Date: 26 Jul 2024" in decode(Chat(bpe(), template="llama3.1")(TWO))
    with pytest.raises(ConfigError, match="give a date"):
        chatml(date="3.2.2025")


@pytest.mark.parametrize(
    "template",
    [
        "{{ messages.append(1) }}",
        "{{ ''.__class__.__mro__ }}{{ x }}",
        "{% set n = namespace(_x=1) %}",
        "{{ raise_exception('no') }}",
        "{{ messages[7].content.x }}",
    ],
)
def test_the_sandbox(template: str) -> None:
    with pytest.raises(DataError, match="the chat template fails on this conversation"):
        Chat(bpe(), template=template)(TWO)


def test_templates_have_what_transformers_gives() -> None:
    template = (
        "{% for m in messages %}{% if loop.index > 1 %}{% break %}{% endif %}{{ dict(a='<é>') | tojson }}"
        "{{ {'b': 1} | tojson(indent=2) }}{{ tools is none }}{{ enable_thinking }}{% endfor %}"
    )
    chat = Chat(bpe(), template=template, untrained="keep", variables={"enable_thinking": False})
    assert decode(chat(TWO)) == '{"a": "<é>"}{\n  "b": 1\n}TrueFalse'


# ---------------------------------------------------------------- length


def long_turns(number: int) -> list[dict[str, Any]]:
    return turns(
        *(f"{word} {i} {'x' * 20}" for i in range(number) for word in ("ask", "say")),
        system="be good",
    )


def test_truncation_by_turns() -> None:
    messages, chat = long_turns(9), chatml(max_length=200)
    row = chat(messages)
    text = decode(row)
    assert 120 < len(row["tokens"]) <= 200 and text.startswith("<|im_start|>system\nbe good")
    kept = text.count("{say")
    assert kept >= 2 and decode(chatml()(messages)).endswith(
        text.partition("be good<|im_end|>\n")[2]
    )
    assert len(chatml()([messages[0], *messages[-2 * (kept + 1) :]])["tokens"]) > 200
    assert chat.stats.shortened == 1
    with pytest.raises(Skip, match="may_skip=True"):
        chatml(max_length=20)(messages)


@pytest.mark.parametrize("limit", [1, 7, 100])
def test_truncation_of_tokens(limit: int) -> None:
    full = chatml()(long_turns(9))
    for truncate, part in (("right", slice(limit)), ("left", slice(-limit, None))):
        row = chatml(max_length=limit, truncate=truncate, untrained="keep")(long_turns(9))
        assert row["tokens"].tolist() == full["tokens"][part].tolist()
        assert row["loss_mask"].tolist() == full["loss_mask"][part].tolist()


def test_dropped_samples_are_counted_and_reported(caplog: Any) -> None:
    samples = [{"messages": turns("a?", "b." if i % 3 else "long " * 50)} for i in range(30)]
    samples += [{"messages": turns("a?")}] * 3
    chat = chatml(max_length=50)
    with caplog.at_level(logging.WARNING, "penstock"):
        assert len(list(ps.from_sequence(samples).map(chat, may_skip=True))) == 20
    assert chat.stats == ChatStats(samples=33, too_long=10, untrained=3)
    lines = [record.getMessage() for record in caplog.records if "Chat" in record.getMessage()]
    # The numbers depend on how many samples are encoded at once.
    assert lines[0] == "Chat: samples over max_length, which were dropped: 1, in 1 samples so far"
    assert {line.rpartition(": ")[0] for line in lines} == {
        "Chat: samples over max_length, which were dropped",
        "Chat: samples in which no token carries loss",
    }
    assert 2 <= len(lines) <= 3
    with pytest.raises(ConfigError, match="may_skip=True"):
        list(ps.from_sequence(samples).map(chatml(max_length=50)))
    for truncate, untrained, match in (
        ("error", "skip", "over max_length=50"),
        ("drop", "error", "no token"),
    ):
        with pytest.raises(DataError, match=match):
            list(
                ps.from_sequence(samples).map(
                    chatml(max_length=50, truncate=truncate, untrained=untrained), may_skip=True
                )
            )


def test_workers_report_what_they_dropped() -> None:
    samples = [{"messages": turns("a?", "b." if i % 3 else "long " * 50)} for i in range(30)]
    samples += [{"messages": turns("a?")}] * 3
    chat, other = chatml(max_length=50), chatml(max_length=50)
    ds = ps.from_sequence(samples, name="chats").map(chat, may_skip=True)
    with ps.Loader(ds, workers=2, executor="processes") as loader:
        assert len(list(loader)) == 20
        counts = loader.stats()["functions"]
    assert chat.stats == ChatStats(samples=33, too_long=10, untrained=3)
    assert other.stats == ChatStats()
    assert counts == {"Chat": chat.stats._asdict()}


def test_a_failing_sample_is_not_counted_twice() -> None:
    chat = chatml()
    with pytest.raises(DataError):
        chat.many([TWO, {"dialog": 1}])
    assert chat.stats.samples == 0
    found = chat.many([TWO, turns("a?")])
    assert isinstance(found[1], Skip) and chat.stats == ChatStats(samples=2, untrained=1)


def test_errors_of_samples_name_file_and_row(tmp_path: Path) -> None:
    path = tmp_path / "chats.jsonl"
    path.write_text(
        '{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}\n{"dialog": [], "id": 1}\n'
    )
    with pytest.raises(
        DataError, match=r"chats\.jsonl.*dialog, id.*messages: lacks messages"
    ) as caught:
        list(ps.read(path).map(chatml()))
    assert "row 1" in str(caught.value) or "line 2" in str(caught.value)


# ---------------------------------------------------------------- arguments


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"format": "message"}, "messages"),
        ({"template": "chatlm"}, "no such family or file.*chatml"),
        ({"template": 7}, "give a family"),
        ({"template": "{% if %}"}, "not valid Jinja"),
        ({"template": "{{ eos_token }}"}, "give its text"),
        ({"truncate": "turn"}, "turns"),
        ({"untrained": "drop"}, "skip"),
        ({"train_on": "user"}, "assistant"),
        ({"max_length": 0}, "at least 1"),
        ({"keep": "id"}, "give a tuple"),
        ({"allowed_special": "<s>"}, "give a tuple"),
        ({"fields": {"message": "x"}}, "no format has this field.*messages"),
        ({"eos": "<nothing>"}, "no such control token"),
    ],
)
def test_arguments(settings: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        Chat(bpe(), **settings)


def test_a_family_needs_its_tokens() -> None:
    with pytest.raises(ConfigError, match=r"lacks the tokens <\|user\|>.*add_special_tokens"):
        Chat(words_tokenizer("WordLevel"), template="phi")


def test_a_tokenizer_without_offsets_is_refused() -> None:
    def function(texts: Any) -> Any:
        return texts

    with pytest.raises(ConfigError, match="no offsets.*fast tokenizer"):
        Chat(function, template="chatml")


def test_states_know_the_special_tokens_that_a_template_writes() -> None:
    from transformers import PreTrainedTokenizerFast

    template = "{% for m in messages %}{{ m.role }}{{ m.content }}{{ eos_token }}{% endfor %}"

    def load(eos: str) -> ps.Loader:
        tokenizer = PreTrainedTokenizerFast(tokenizer_object=bpe(), eos_token=eos)
        return ps.Loader(
            ps.from_sequence([TWO] * 4, name="chats").map(Chat(tokenizer, template=template))
        )

    before = load("<|im_end|>")
    next(iter(before))
    load("<|im_end|>").load_state_dict(before.state_dict())
    with pytest.raises(ps.StateError, match="another pipeline"):
        load("<|im_start|>").load_state_dict(before.state_dict())
