"""Prompts of trainers as `chat`: the text of a sample, what is learned, and their errors."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

import penstock as ps
from chat_cases import bpe, decode
from penstock.compat.mixtures import Conversion, convert_with_keys
from penstock.compat.mixtures.prompts import PromptStyle
from penstock.mixture_files import Chatting, Splitting
from penstock.text import Chat

ALPACA = {"instruction": "Add", "input": "1 and 2", "output": "3"}
SHORT = {"instruction": "Say yes", "input": "", "output": "yes"}
MESSAGES = [{"role": "user", "content": "is it?"}, {"role": "assistant", "content": "yes"}]
HEAD = "Below is an instruction that describes a task"
WITH_INPUT = f"{HEAD}, paired with an input that provides further context. Write a response that "


def converted(folder: Path, text: str, **options: Any) -> Conversion:
    path = folder / "theirs.yaml"
    path.write_text(dedent(text))
    return convert_with_keys(path, **{"ranks": 2, **options})


def lost(conversion: Conversion) -> list[tuple[int, str]]:
    return [(p.line, p.key) for p in conversion.problems if p.severity == "warning"]


def encode(chat: Chatting | None, sample: Mapping[str, Any], eos: str = "</s>") -> str:
    """Return the text of a sample, with what is learned in braces."""
    assert chat is not None
    settings = {each.name: getattr(chat, each.name) for each in fields(chat)}
    tokenizer = settings.pop("tokenizer")
    assert isinstance(tokenizer, str)
    changed = {"eos": settings["eos"] or eos, "max_length": None}
    return decode(Chat(bpe(), **{**settings, **changed})(sample))


AXOLOTL = """
base_model: NousResearch/Llama-3.2-1B
sequence_len: 512
sample_packing: true
micro_batch_size: 2
num_epochs: 1
special_tokens: {pad_token: "<|end|>"}
datasets:
"""


def axolotl(folder: Path, entry: str, more: str = "") -> Conversion:
    return converted(folder, AXOLOTL + f"  - {entry}\n" + dedent(more))


def test_prompts_of_alpaca_are_the_ones_of_axolotl(tmp_path: Path) -> None:
    conversion = axolotl(tmp_path, "{path: a/b, type: alpaca, split: 'train[:10%]'}")
    (source,) = conversion.mixture.sources
    assert lost(conversion) == [] and source.slice == (None, "10%")
    assert conversion.mixture.pack == {"length": 512, "method": "best_fit", "long": "split"}
    assert encode(source.chat, ALPACA) == (
        f"{WITH_INPUT}appropriately completes the request.\n\n### Instruction:\nAdd\n\n"
        "### Input:\n1 and 2\n\n### Response:\n{3</s>}"
    )
    assert encode(source.chat, SHORT).startswith(f"{HEAD}. Write a response that appropriately")
    assert source.chat is not None and (source.chat.max_length, source.chat.truncate) == (
        512,
        "drop",
    )


@pytest.mark.parametrize(
    ("kind", "sample", "text"),
    [
        ("alpaca:chat", SHORT, "request.\nUSER: Say yes\nASSISTANT:{yes</s>}"),
        ("alpaca:phi", SHORT, "<|end|>\n<|user|>\nSay yes<|end|>\n<|assistant|>\n{yes</s>}"),
        (
            "jeopardy",
            {"question": "It is 42", "category": "ok", "answer": "the answer"},
            "It is 42\n\n### Input:\nok\n\n### Response:\n{what is the answer</s>}",
        ),
        ("gpteacher", {**SHORT, "response": "no"}, "Say yes\n\n### Response:\n{no</s>}"),
        (
            '{format: "Q {instruction} ({input})", no_input_format: "Q {instruction} ", field_output: answer}',
            {**ALPACA, "answer": "3"},
            "Q Add (1 and 2){3</s>}",
        ),
    ],
)
def test_styles_of_axolotl(tmp_path: Path, kind: str, sample: Mapping[str, Any], text: str) -> None:
    conversion = axolotl(tmp_path, f"{{path: a/b, type: {kind}}}")
    assert lost(conversion) == []
    assert encode(conversion.mixture.sources[0].chat, sample).endswith(text)


def test_messages_of_axolotl_keep_their_names_roles_and_template(tmp_path: Path) -> None:
    conversion = axolotl(
        tmp_path,
        "{path: a/b, type: chat_template, field_messages: talk, roles: {user: [me, human], assistant: [you]}, "
        "message_property_mappings: {role: who, content: said}}",
        "chat_template: chatml\neot_tokens: ['<|im_end|>']\n",
    )
    chat = conversion.mixture.sources[0].chat
    assert lost(conversion) == [] and chat is not None and chat.template == "chatml"
    talk = [{"who": "me", "said": "is it?"}, {"who": "you", "said": "yes"}]
    assert encode(chat, {"talk": talk}) == (
        "<|im_start|>user\nis it?<|im_end|>\n<|im_start|>assistant\n{yes<|im_end|>}\n"
    )
    assert {"field_messages", "eot_tokens"} <= {
        key.key.rsplit(".")[-1] for key in conversion.keys.carried
    }


@pytest.mark.parametrize(
    ("more", "template", "losses"),
    [
        ("chat_template: gemma3\n", "gemma", []),
        ("", None, []),
        ("chat_template: falcon_h1\nbase_model: tiiuae/Falcon-H1-1B\n", None, []),
        ("chat_template: falcon_h1\n", None, [(4, "sample_packing"), (10, "chat_template")]),
        ("chat_template: jinja\nchat_template_jinja: '{{ messages }}'\n", "{{ messages }}", []),
    ],
)
def test_templates_of_axolotl(
    tmp_path: Path, more: str, template: str | None, losses: list[tuple[int, str]]
) -> None:
    text = AXOLOTL + "  - {path: a/b, type: chat_template}\n" + more
    if "base_model" in more:
        text = text.replace("base_model: NousResearch/Llama-3.2-1B\n", "")
    conversion = converted(tmp_path, text)
    chat = conversion.mixture.sources[0].chat
    assert lost(conversion) == losses and (chat.template if chat else None) == template


@pytest.mark.parametrize(
    ("entry", "more", "losses"),
    [
        (
            "{path: a/b, type: chat_template}",
            "processor_type: AutoProcessor\n",
            [(10, "processor_type")],
        ),
        ("{path: a/b, type: mine.transform}", "rl: grpo\n", [(9, "datasets[0].type"), (10, "rl")]),
        ("{path: a/b, type: own.module}", "", [(9, "datasets[0].type")]),
        (
            "{path: a/b, type: chat_template, train_on_eos: all, drop_system_message: true}",
            "",
            [(9, "datasets[0].drop_system_message"), (9, "datasets[0].train_on_eos")],
        ),
        (
            "{path: a/b, type: stepwise_supervised, step_separator: '---'}",
            "",
            [(9, "datasets[0].step_separator")],
        ),
        (
            "{path: a/b, type: alpaca}",
            "accelerator_config: {split_batches: true}\n",
            [(10, "accelerator_config.split_batches")],
        ),
    ],
)
def test_what_stops_files_of_axolotl(
    tmp_path: Path, entry: str, more: str, losses: list[tuple[int, str]]
) -> None:
    found = [loss for loss in lost(axolotl(tmp_path, entry, more)) if "sample_packing" not in loss]
    assert found == losses


def test_pairs_of_axolotl(tmp_path: Path) -> None:
    pair = {
        "talk": MESSAGES[:1],
        "good": {"role": "assistant", "content": "yes"},
        "bad": {"role": "assistant", "content": "no"},
    }
    text = AXOLOTL.replace("sample_packing: true\n", "") + (
        "  - {path: a/b, type: chat_template.default, field_messages: talk, field_chosen: good,"
        " field_rejected: bad}\nrl: dpo\nchat_template: chatml\n"
    )
    conversion = converted(tmp_path, text)
    chat = conversion.mixture.sources[0].chat
    assert lost(conversion) == [] and chat is not None and chat.format == "preference"
    assert conversion.mixture.batch is not None and conversion.mixture.batch.collate == "list"
    row = Chat(bpe(), "preference", template="chatml", fields=chat.fields, eos="</s>")(pair)
    assert row["rejected_loss_mask"].sum() == 2


def write_info(folder: Path, info: Mapping[str, Any]) -> None:
    (folder / "dataset_info.json").write_text(json.dumps(info))


def llamafactory(folder: Path, more: str) -> Conversion:
    text = "model_name_or_path: Qwen/Qwen3-4B\ndataset_dir: .\nper_device_train_batch_size: 1\ncutoff_len: 64\n"
    return converted(folder, text + dedent(more))


def test_datasets_of_llamafactory_are_chats(tmp_path: Path) -> None:
    write_info(
        tmp_path,
        {
            "plain": {"file_name": "plain.json"},
            "named": {
                "file_name": "b.json",
                "columns": {"prompt": "q", "query": "more", "response": "a"},
            },
            "talk": {
                "file_name": "c.json",
                "formatting": "sharegpt",
                "columns": {"messages": "talk"},
                "tags": {
                    "role_tag": "who",
                    "content_tag": "said",
                    "user_tag": "me",
                    "assistant_tag": "you",
                },
            },
            "pairs": {"file_name": "d.json", "ranking": True},
        },
    )
    conversion = llamafactory(
        tmp_path, "stage: sft\ntemplate: qwen3_nothink\ndataset: plain,named,talk\n"
    )
    chats = [source.chat for source in conversion.mixture.sources]
    assert lost(conversion) == []
    line = "<|im_start|>user\nAdd\n1 and 2<|im_end|>\n<|im_start|>assistant\n{3<|im_end|>}\n"
    assert encode(chats[0], ALPACA) == line
    assert encode(chats[1], {"q": "Add", "more": "1 and 2", "a": "3"}) == line
    talk = [{"who": "me", "said": "is it?"}, {"who": "you", "said": "yes"}]
    assert encode(chats[2], {"talk": talk}).endswith("{yes<|im_end|>}\n")
    qwen = llamafactory(tmp_path, "stage: sft\ntemplate: qwen\ndataset: plain\n")
    text = encode(qwen.mixture.sources[0].chat, SHORT)
    assert text.startswith("<|im_start|>system\nYou are Qwen, created by Alibaba Cloud.")
    assert text.endswith("<|im_start|>assistant\n{yes<|im_end|>}\n") and lost(qwen) == []
    conversion = llamafactory(
        tmp_path, "stage: dpo\ntemplate: llama3\ndataset: pairs\npacking: true\n"
    )
    chat = conversion.mixture.sources[0].chat
    assert chat is not None and (chat.format, chat.template) == ("preference", "llama3")
    assert lost(conversion) == [(8, "packing")]


@pytest.mark.parametrize(
    ("more", "losses"),
    [
        ("stage: sft\ntemplate: unknown\ndataset: plain\n", [(4, "cutoff_len"), (6, "template")]),
        ("stage: sft\ntemplate: llama3\ndataset: pictures\n", [(1, "pictures.columns.images")]),
        (
            "stage: ppo\ntemplate: llama3\ndataset: plain\n",
            [(4, "cutoff_len"), (5, "stage"), (6, "template")],
        ),
    ],
)
def test_what_stops_files_of_llamafactory(
    tmp_path: Path, more: str, losses: list[tuple[int, str]]
) -> None:
    pictures = {"messages": "messages", "images": "images"}
    write_info(
        tmp_path,
        {
            "plain": {"file_name": "plain.json"},
            "pictures": {"file_name": "b.json", "formatting": "sharegpt", "columns": pictures},
        },
    )
    assert lost(llamafactory(tmp_path, more)) == losses


def test_llamafactory_v1_reads_its_file_of_datasets(tmp_path: Path) -> None:
    (tmp_path / "sets.yaml").write_text(
        "first: {path: a.json, source: local, converter: alpaca, size: 20}\n"
        "second: {path: x/pairs, split: train_prefs, converter: pair}\n"
    )
    text = """
        model: Qwen/Qwen3-0.6B
        train_dataset: sets.yaml
        micro_batch_size: 2
        cutoff_len: 64
        max_steps: 10
        sample_backend: hf
        """
    conversion = converted(tmp_path, text)
    first, second = conversion.mixture.sources
    assert (conversion.format, lost(conversion)) == ("llamafactory-v1", [])
    assert conversion.mixture.horizon == ("steps", 10) and first.slice == (0, 20)
    assert first.path == (str(tmp_path / "a.json"),)
    assert first.chat is not None and first.chat.input_separator == ""
    assert second.path == ("hf://datasets/x/pairs@~parquet/*/train_prefs",)
    assert second.chat is not None and second.chat.format == "preference"
    conversion = converted(tmp_path, dedent(text) + "batching_strategy: dynamic_batching\n")
    assert lost(conversion) == [(8, "batching_strategy")]


def test_arguments_of_trl_are_chats(tmp_path: Path) -> None:
    text = "model_name_or_path: m\ndataset_name: a/b\nper_device_train_batch_size: 4\n"
    conversion = converted(
        tmp_path, text + "dataset_text_field: body\nmax_length: 128\npacking: true\n"
    )
    chat = conversion.mixture.chat
    assert lost(conversion) == [] and chat is not None
    assert conversion.mixture.pack == {"length": 128, "method": "best_fit"}
    assert encode(chat, {"body": "yes no"}) == "{yes no</s>}"
    pairs = converted(tmp_path, text + "beta: 0.1\nmax_length: 64\nmax_prompt_length: 32\n")
    assert lost(pairs) == [] and pairs.mixture.chat is not None
    assert (pairs.mixture.chat.format, pairs.mixture.chat.train_on) == ("preference", "assistant")
    answers = converted(
        tmp_path, text + "assistant_only_loss: true\nmax_seq_length: 64\npacking: true\n"
    )
    assert answers.mixture.pack == {"length": 64, "method": "concat_split"}
    assert answers.mixture.chat is not None and answers.mixture.chat.train_on == "assistant"
    assert lost(converted(tmp_path, text + "num_generations: 4\n")) == [(4, "num_generations")]


def test_the_handbook_holds_out_a_number_of_one_dataset(tmp_path: Path) -> None:
    text = """
        model_name_or_path: m
        chat_template: "{% for m in messages %}{{ m.role + m.content }}{% endfor %}"
        dataset_mixture: {datasets: [{id: a/b, columns: [messages]}], test_split_size: 100}
        per_device_train_batch_size: 4
        max_length: 64
        """
    conversion = converted(tmp_path, text)
    assert lost(conversion) == [] and conversion.mixture.split == Splitting(100)
    two = converted(
        tmp_path, text.replace("{id: a/b,", "{id: c/d, columns: [messages]}, {id: a/b,")
    )
    assert lost(two) == [] and two.mixture.split == Splitting(100)
    (joined,) = two.mixture.sources  # as the trainer concatenates them
    assert joined.path == ("hf://datasets/c/d", "hf://datasets/a/b")
    other = converted(tmp_path, text.replace("{id: a/b,", "{id: c/d}, {id: a/b,"))
    assert lost(other) == [(4, "dataset_mixture.test_split_size")]
    rows = converted(tmp_path, text.replace("[messages]", "[messages, chat_template_kwargs]"))
    assert lost(rows) == [(4, "dataset_mixture.datasets[0].columns")]


def test_open_instruct_learns_answers_in_its_template(tmp_path: Path) -> None:
    text = """
        model_name_or_path: m
        tokenizer_name: t
        chat_template_name: tulu
        add_bos: true
        dataset_mixer_list: [a/b, 1.0, c/d, 500]
        max_seq_length: 128
        per_device_train_batch_size: 1
        gradient_accumulation_steps: 4
        num_epochs: 3
        with_tracking: true
        """
    conversion = converted(tmp_path, text)
    model = conversion.mixture
    assert (conversion.format, lost(conversion)) == ("open-instruct", [])
    assert [(source.slice, source.epochs) for source in model.sources] == [(None, 3), ((0, 500), 3)]
    assert model.chat is not None and model.chat.tokenizer == "t"
    chat = Chat(bpe(), template=model.chat.template, bos="<s>", eos="</s>")
    assert decode(chat({"messages": MESSAGES})) == "<s><|user|>\nis it?\n<|assistant|>\n{yes</s>}"
    unknown = converted(tmp_path, text.replace("tulu", "other"))
    assert lost(unknown) == [(4, "chat_template_name"), (5, "add_bos")]
    pairs = converted(tmp_path, dedent(text) + "beta: 5\nloss_type: dpo_norm\n")
    assert pairs.mixture.chat is not None and pairs.mixture.chat.format == "preference"


def test_a_style_quotes_its_texts() -> None:
    style = PromptStyle('say "{instruction}"\n', "{instruction}: {input}\n", system="[{system}]")
    chat = Chat(bpe(), "alpaca", template=style.template(), eos="</s>")
    assert decode(chat({**SHORT, "system": "ok."})) == '[ok.]say "Say yes"\n{yes</s>}'
    assert decode(chat(ALPACA)) == "Add: 1 and 2\n{3</s>}"
    assert chat.stats.dropped_messages == 0


def test_a_converted_file_trains(tmp_path: Path) -> None:
    bpe().save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "a.jsonl").write_text(
        "".join(json.dumps(row) + "\n" for row in [ALPACA, SHORT] * 20)
    )
    text = AXOLOTL.replace("NousResearch/Llama-3.2-1B", str(tmp_path / "tokenizer.json"))
    text = text.replace('{pad_token: "<|end|>"}', '{eos_token: "</s>"}')
    conversion = converted(tmp_path, text + "  - {path: a.jsonl, ds_type: json, type: alpaca}\n")
    ps.dump(conversion.mixture, tmp_path / "ours.yaml")
    batch = next(iter(ps.load(tmp_path / "ours.yaml")))
    assert batch["tokens"].shape == (2, 512) and 0 < batch["loss_mask"].sum() < 200


ODD = ("[]", "{}", "[1, [2]]", "{a: {b: c}}", "-3", "1e400", "yes please", "null", "[{a: 1}, x]")
FILES = {
    "axolotl": AXOLOTL
    + "  - {path: a/b, type: chat_template}\nchat_template: llama3\nrl: dpo\nval_set_size: 2\n",
    "trl": "model_name_or_path: m\ndataset_name: a/b\npacking: true\nmax_length: 8\nchat_template: '{{ x }}'\n"
    "packing_strategy: wrapped\ndataset_kwargs: {}\nchat_template_kwargs: {}\ntest_split_size: 3\n",
    "open-instruct": "model_name_or_path: m\nwith_tracking: true\ndataset_mixer: {a/b: 1.0}\nadd_bos: true\n"
    "chat_template_name: tulu\nmax_seq_length: 8\nnum_epochs: 1\n",
}


@pytest.mark.parametrize("tool", FILES)
def test_odd_values_are_errors_or_reports(tmp_path: Path, tool: str) -> None:
    lines = FILES[tool].strip().splitlines()
    for number, line in enumerate(lines):
        key, colon, _ = line.partition(":")
        for odd in ODD if colon and not line.startswith(" ") else ():
            text = "\n".join([*lines[:number], f"{key}: {odd}", *lines[number + 1 :]])
            try:
                converted(tmp_path, text)
            except ps.ConfigError:
                pass


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize(
    "key",
    [
        "type",
        "roles",
        "message_property_mappings",
        "field_messages",
        "chat_template",
        "split",
        "path",
    ],
)
def test_odd_values_of_datasets_are_errors_or_reports(tmp_path: Path, key: str, odd: str) -> None:
    entry = {"path": "a/b", "type": "chat_template"}
    shown = ", ".join(f"{name}: {value}" for name, value in {**entry, key: odd}.items())
    try:
        axolotl(tmp_path, f"{{{shown}}}")
    except ps.ConfigError:
        pass
