"""`chat:` in mixture files: the pipeline, the errors by line and key, and what is written back."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tokenizers")

import penstock as ps
from chat_cases import bpe
from helpers import as_lists, pairwise_first
from penstock.errors import DataError
from penstock.mixture_files import check_round_trip, lint, read_model
from penstock.testing import assert_resumes
from penstock.text import Chat
from penstock.text.chat import MarkDropped, find_drop_reason, remove_dropped

ALL_KEYS = """
chat:
  tokenizer: t.json
  format: messages
  template: chatml
  train_on: last
  fields: {messages: dialog, role: who, content: text}
  roles: {customer: user, agent: assistant}
  max_length: 40
  truncate: right
  untrained: keep
  keep: [id]
  allowed_special: [<s>]
  variables: {enable_thinking: false, nested: {list: [1, two]}}
  date: 2024-07-26
  input_separator: ": "
  bos: <s>
  eos: <|im_end|>
"""


def turns(*texts: str) -> list[dict[str, str]]:
    roles = ["user", "assistant"] * len(texts)
    return [{"role": role, "content": text} for role, text in zip(roles, texts, strict=False)]


@pytest.fixture
def chats(data: Path) -> Path:
    """`a.jsonl`: 40 chats, every eighth without an answer; `b.jsonl`: 20 of ShareGPT."""
    bpe().save(str(data / "t.json"))
    rows = [turns(*[f"turn {i} {k}" for k in range(2 + 2 * (i % 3))]) for i in range(40)]
    rows = [row[:1] if i % 8 == 3 else row for i, row in enumerate(rows)]
    lines = [json.dumps({"messages": row, "id": i}) for i, row in enumerate(rows)]
    (data / "a.jsonl").write_text("\n".join(lines) + "\n")
    pairs = [
        [{"from": "human", "value": f"q {i}"}, {"from": "gpt", "value": "a"}] for i in range(20)
    ]
    (data / "b.jsonl").write_text(
        "".join(json.dumps({"conversations": pair}) + "\n" for pair in pairs)
    )
    return data


MIXTURE = """
seed: 3
chat: {tokenizer: t.json, template: chatml}
sources:
  a: {path: a.jsonl, weight: 2}
  b: {path: b.jsonl, weight: 1, chat: {tokenizer: t.json, template: llama3, train_on: last}}
pack: {length: 64, method: first_fit}
global_batch_size: 2
"""


def rows_of(ds: Any, count: int) -> list[Any]:
    return list(islice(iter(ds), count))


def same(left: list[Any], right: list[Any]) -> None:
    assert len(left) == len(right)
    for one, other in zip(left, right, strict=True):
        assert one.keys() == other.keys()
        assert all(np.array_equal(one[name], other[name]) for name in one)


def test_a_file_gives_packed_rows_with_masks(chats: Path, write: Any) -> None:
    path = write(MIXTURE)
    assert not [problem for problem in lint(path) if problem.severity == "error"]
    chatml = Chat(str(chats / "t.json"), template="chatml")
    llama = Chat(str(chats / "t.json"), template="llama3", train_on="last")
    inputs = {
        "a": ps.read(chats / "a.jsonl", name="a").shuffle().map(MarkDropped(chatml)),
        "b": ps.read(chats / "b.jsonl", name="b").shuffle().map(MarkDropped(llama)),
    }
    wanted = ps.mix(inputs, {"a": 2, "b": 1}, seed=3).map(remove_dropped, may_skip=True)
    wanted = wanted.pack(64, "first_fit").batch(global_batch_size=2)
    ds = ps.load(path)
    assert ds.tree.description() == wanted.tree.description()
    got = rows_of(ds, 8)
    same(got, rows_of(wanted, 8))
    assert got[0]["tokens"].shape == got[0]["loss_mask"].shape == (2, 64)
    assert 0 < got[0]["loss_mask"].mean() < 1
    assert_resumes(lambda: ps.load(path), steps=6, at_most=3)


def test_dropped_samples_are_gone_and_the_mixture_below_has_a_plan(chats: Path, write: Any) -> None:
    path = write(
        "stop: all_exhausted\nchat: {tokenizer: t.json, template: chatml}\n"
        "sources: {a: {path: a.jsonl}, b: {path: b.jsonl}}"
    )
    rows = list(ps.load(path))
    assert len(rows) == 60 - 5 and all(row["loss_mask"].any() for row in rows)
    kept = write(path.read_text().replace("chatml}", "chatml, untrained: keep}"))
    ds = ps.load(kept)
    assert len(ds) == 60 and sum(not row["loss_mask"].any() for row in ds) == 5


def test_dropped_samples_are_encoded_together_with_others(monkeypatch: pytest.MonkeyPatch) -> None:
    chat = Chat(bpe(), template="chatml", max_length=30)
    rows = [{"messages": turns(*["a"] * (1 + i % 3))} for i in range(20)]
    calls, encode = list[int](), Chat.many
    monkeypatch.setattr(
        Chat, "many", lambda self, given: calls.append(len(given)) or encode(self, given)
    )
    found = MarkDropped(chat).many(rows)
    assert calls == [len(rows)]
    singles = [MarkDropped(chat)(row) for row in rows]
    assert [as_lists(row) for row in found] == [as_lists(row) for row in singles]
    reasons = [find_drop_reason(row) for row in found]
    assert reasons.count("untrained") == 7 and reasons.count(None) > 0


def test_the_loader_counts_what_the_chats_of_a_file_dropped(chats: Path, write: Any) -> None:
    text = """
    stop: all_exhausted
    chat: {tokenizer: t.json, template: chatml}
    sources:
      a: {path: a.jsonl}
      b: {path: b.jsonl}
      c: {path: b.jsonl, chat: {tokenizer: t.json, template: llama3, untrained: keep}}
    """
    for options in ({}, {"workers": 2, "executor": "processes"}):
        with ps.Loader(ps.load(write(text)), **options) as loader:
            assert len(list(loader)) == 35 + 20 + 20
            counts = loader.stats()["functions"]
        # One chat serves two sources, and is counted once.
        assert sorted(counts) == ["Chat", "Chat 2"]
        shared, kept = sorted(counts.values(), key=lambda each: -each["samples"])
        assert shared["samples"] >= 60 and shared["untrained"] >= 5
        assert kept["samples"] >= 20 and not kept["untrained"]


def test_weights_in_tokens_count_the_tokens_of_chats(chats: Path, write: Any) -> None:
    path = write(MIXTURE.replace("seed: 3", "unit: tokens").replace("weight: 2", "weight: 1"))
    assert next(iter(ps.load(path)))["tokens"].shape == (2, 64)


def test_all_settings_reach_the_chat(chats: Path, write: Any) -> None:
    path = write("sources: {a: {path: a.jsonl}}" + ALL_KEYS)
    model, problems = read_model(path)
    assert model is not None and not problems
    dialog = [{"who": "customer", "text": "2+2?"}, {"who": "agent", "text": "4"}]
    (chats / "a.jsonl").write_text(json.dumps({"dialog": dialog, "id": 7}) + "\n")
    chat = Chat(
        str(chats / "t.json"),
        "messages",
        template="chatml",
        train_on="last",
        fields={"messages": "dialog", "role": "who", "content": "text"},
        roles={"customer": "user", "agent": "assistant"},
        max_length=40,
        truncate="right",
        untrained="keep",
        keep=["id"],
        allowed_special=["<s>"],
        variables={"enable_thinking": False, "nested": {"list": [1, "two"]}},
        date="2024-07-26",
        input_separator=": ",
        bos="<s>",
        eos="<|im_end|>",
    )
    ds = ps.load(path)
    wanted = ps.mix({"a": ps.read(chats / "a.jsonl", name="a").shuffle().map(chat)})
    assert ds.tree.description() == wanted.tree.description()
    same(rows_of(ds, 1), [chat({"dialog": dialog, "id": 7})])
    assert check_round_trip(model, path) == []


@pytest.mark.parametrize("text", [MIXTURE, "sources: {a: {path: a.jsonl}}" + ALL_KEYS])
def test_it_is_written_back(text: str, chats: Path, write: Any) -> None:
    ds = ps.load(write(text))
    ps.dump(ds, chats / "again.yaml")
    again = ps.load(chats / "again.yaml")
    assert again.tree.description() == ds.tree.description()
    assert "tokenizer: t.json" in (chats / "again.yaml").read_text()


def test_templates_are_files_families_or_texts(chats: Path, write: Any) -> None:
    source = (
        "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' }}{% generation %}"
        "{{ m.content + '<|im_end|>' }}{% endgeneration %}{{ '\\n' }}{% endfor %}"
    )
    (chats / "mine.jinja").write_text(source)
    text = "sources: {{a: {{path: a.jsonl}}}}\nchat: {{tokenizer: t.json, template: {}}}\n"
    named = ps.load(write(text.format("mine.jinja")))
    inline = ps.load(write(text.format(json.dumps(source)), "inline.yaml"))
    same(rows_of(named, 5), rows_of(inline, 5))
    ps.dump(named, chats / "again.yaml")
    assert "template: mine.jinja" in (chats / "again.yaml").read_text()
    ps.dump(inline, chats / "again.yaml")
    same(rows_of(ps.load(chats / "again.yaml"), 5), rows_of(inline, 5))


def test_functions_and_objects_are_not_written(chats: Path) -> None:
    data = ps.read(chats / "a.jsonl", name="a").shuffle()
    for chat in (
        Chat(bpe(), template="chatml", untrained="keep"),
        Chat(str(chats / "t.json"), template="chatml", untrained="keep", train_on=lambda m: True),
    ):
        with pytest.raises(ps.ConfigError, match="cannot hold a tokenizer in memory"):
            ps.dump(ps.mix({"a": data.map(chat)}), chats / "never.yaml")


def test_sources_choose_between_tokens_of_texts_and_of_chats(chats: Path, write: Any) -> None:
    path = write(
        """
        tokenize: {tokenizer: t.json}
        stop: all_exhausted
        sources:
          text: {path: text}
          chat: {path: b.jsonl, chat: {tokenizer: t.json, template: chatml, untrained: keep}}
          nested: {mixture: {chat: {tokenizer: t.json, template: phi}, sources: {b: {path: b.jsonl}}}}
          inner: {mixture: {sources: {text: {path: text}}}}
        """
    )
    rows, kinds = iter(ps.load(path)), dict[str, list[str]]()
    for row in rows:
        kinds[rows.keys()[0][0]] = sorted(row) if isinstance(row, dict) else []
    assert kinds["chat"] == kinds["nested/b"] == ["loss_mask", "tokens"]
    assert kinds["text"] == kinds["inner/text"] == []


BAD = {
    "chat:\n  tokenizer: t.json\n  tempalte: x": (3, "chat.tempalte", "did you mean 'template'"),
    "chat:\n  tokenizer: t.json\n  template: chatlm": (
        3,
        "chat.template",
        "no such family or file",
    ),
    "chat:\n  tokenizer: t.json\n  fields:\n    mesages: x": (
        4,
        "chat.fields.mesages",
        "did you mean",
    ),
    "chat:\n  tokenizer: t.json\n  template: chatml\n  eos: <x>": (
        4,
        "chat.eos",
        "no such control",
    ),
    "chat:\n  tokenizer: t.json\n  date: soon": (3, "chat.date", "a date such as 2024-07-26"),
    "chat:\n  tokenizer: t.json\n  train_on: none": (3, "chat.train_on", "not one of assistant"),
    "chat:\n  tokenizer: t.json\n  truncate: middle": (3, "chat.truncate", "not one of turns"),
    "chat:\n  tokenizer: t.json\n  format: chat": (3, "chat.format", "not one of auto"),
    "chat:\n  tokenizer: t.json\n  untrained: drop": (3, "chat.untrained", "not one of skip"),
    "chat:\n  tokenizer: t.json\n  max_length: 0": (3, "chat.max_length", "at least 1"),
    "chat:\n  tokenizer: t.json\n  variables: x": (3, "chat.variables", "a mapping"),
    "chat:\n  tokenizer: t.json\n  roles: [x]": (3, "chat.roles", "a mapping"),
    "chat: {tokenizer: gone.json}": (1, "chat.tokenizer", "gone.json' is missing: check the path"),
    "chat: {template: chatml}": (1, "chat", "'tokenizer' is missing"),
    "tokenize: {tokenizer: t.json}\nchat: {tokenizer: t.json}": (2, "chat", "remove one of"),
    "chat: {tokenizer: bare.json, template: chatml}": (1, "chat.template", "lacks the tokens"),
}


@pytest.mark.parametrize("text", BAD)
def test_errors_have_line_and_key(text: str, chats: Path, write: Any) -> None:
    from chat_cases import bare_bpe

    bare_bpe().save(str(chats / "bare.json"))
    line, key, message = BAD[text]
    path = write(text + "\nsources: {a: {path: a.jsonl}}")
    with pytest.raises(ps.ConfigError) as error:
        ps.load(path)
    assert f"mixture.yaml, line {line}, {key}: " in str(error.value)
    assert message in str(error.value)


def test_a_bad_chat_of_a_source_has_its_key(chats: Path, write: Any) -> None:
    path = write(
        "sources:\n  a:\n    path: a.jsonl\n    chat: {tokenizer: t.json, template: chatlm}"
    )
    (problem,) = (each for each in lint(path) if each.severity == "error")
    assert (problem.line, problem.key) == (4, "sources.a.chat.template")
    path = write(
        "sources: {a: {mixture: {sources: {b: {path: a.jsonl}}}, chat: {tokenizer: t.json}}}"
    )
    with pytest.raises(ps.ConfigError, match="move it into the nested mixture"):
        ps.load(path)


def test_a_bad_conversation_names_file_and_row(chats: Path, write: Any) -> None:
    (chats / "a.jsonl").write_text('{"messages": 3}\n')
    path = write("sources: {a: {path: a.jsonl}}\nchat: {tokenizer: t.json, template: chatml}")
    with pytest.raises(ps.DataError, match="no known chat format") as error:
        next(iter(ps.load(path)))
    assert "a.jsonl" in f"{error.value} {getattr(error.value, '__notes__', '')}"


def test_packed_chats_beside_texts_without_masks_are_an_error(chats: Path, write: Any) -> None:
    (chats / "x.jsonl").write_text("".join(json.dumps({"text": f"t {i}"}) + "\n" for i in range(9)))
    encodings = {
        "t": "tokenize: {tokenizer: t.json}",
        "c": "chat: {tokenizer: t.json, template: chatml}",
    }
    for text_has, is_wrong in (("t", True), ("c", False)):
        file = write(
            f"sources:\n  a: {{path: a.jsonl, {encodings['c']}}}\n"
            f"  n:\n    mixture:\n      sources:\n        x: {{path: x.jsonl, {encodings[text_has]}}}\n"
            "pack: {length: 64}\nglobal_batch_size: 2\n"
        )
        messages = [problem.message for problem in lint(file)]
        if is_wrong:
            with pytest.raises(ps.errors.ConfigError, match="'a' has chat.* 'n/x' has tokenize"):
                ps.load(file)
            assert any("'n/x' has tokenize, without" in message for message in messages)
        else:
            assert messages == []
            assert next(iter(ps.load(file)))["tokens"].shape == (2, 64)


PAIRED = {"prompt": turns("q"), "chosen": turns("q", "yes"), "rejected": turns("q", "no")}
LABELLED = {"messages": turns("q", "yes"), "kto_tag": True}
SAMPLES = {
    "messages": {"messages": turns("q", "yes")},
    "pairs": PAIRED,
    "labels": LABELLED,
    "named pairs": {"p": turns("q", "yes"), "n": turns("q", "no")},
    "steps": {"prompt": "q", "completions": ["a", "b"], "labels": [1, 0]},
    "null labels": {"messages": turns("q", "yes"), "label": None},
}
BATCHES = {
    "global": "global_batch_size: 2",
    "size": "batch: {size: 2}",
    "list": "batch: {collate: list}\nglobal_batch_size: 2",
    "one": "batch: {size: 1}",
    "packed": "pack: {length: 64, method: first_fit}\nglobal_batch_size: 2",
    "rows": "pack: {length: 64, method: first_fit}",
}


@pytest.mark.parametrize(
    "samples,batch,ending", pairwise_first([*SAMPLES], [*BATCHES], ["jsonl", "parquet"])
)
def test_lint_reports_files_whose_first_batch_fails(
    samples: str, batch: str, ending: str, chats: Path, write: Any
) -> None:
    longer = {
        name: [*value[:-1], {**value[-1], "content": "a longer answer"}] if name in ("messages", "chosen", "p")
        else ["a", "b", "c"] if name == "completions" else [1, 0, 1] if name == "labels" else value
        for name, value in SAMPLES[samples].items()
    }  # fmt: skip
    rows = [SAMPLES[samples], longer] * 8
    (path,) = ps.from_sequence(rows).write(chats / f"rows.{ending}")
    fields = ", fields: {chosen: p, rejected: n}" if samples == "named pairs" else ""
    file = write(
        f"chat: {{tokenizer: t.json, template: chatml, eos: <|im_end|>{fields}}}\n"
        f"sources: {{a: {{path: {path.name}}}}}\n{BATCHES[batch]}\n"
    )
    problems = [
        problem.message for problem in lint(file) if problem.key in ("sources.a", "batch", "global_batch_size")
    ]  # fmt: skip
    try:
        rows_of(ps.load(file), 1)
        expected = ""
    except DataError as error:
        expected = str(error)
    assert bool(problems) == bool(expected), (problems, expected)
    if problems and "pack" in BATCHES[batch]:
        assert "two sides" in problems[0] or "have a label each (KTO)" in problems[0]
        assert "take out pack" in problems[0]
    elif problems:
        assert "'a' has chat" in problems[0] and "add pack, or 'collate: list'" in problems[0]
