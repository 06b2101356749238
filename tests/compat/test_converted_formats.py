"""Formats of pretraining tools: shares, rows and length of a run, and their errors."""

from __future__ import annotations

import json
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

import penstock as ps
from chat_cases import bpe, decode
from penstock.compat.mixtures import Conversion, convert_with_keys
from penstock.mixture_files import Batching, Chatting, Splitting, Tokenizing
from penstock.text import Chat


def converted(folder: Path, name: str, text: str, **options: Any) -> Conversion:
    path = folder / name
    path.write_text(dedent(text).lstrip())
    return convert_with_keys(path, **{"ranks": 2, **options})


def lost(conversion: Conversion) -> list[tuple[int, str]]:
    return [(p.line, p.key) for p in conversion.problems if p.severity == "warning"]


def encode(chat: Chatting | None, sample: dict[str, Any]) -> str:
    assert chat is not None
    options = {"format": chat.format, "template": chat.template, "fields": chat.fields}
    return decode(Chat(bpe(), eos="</s>", train_on=chat.train_on, **options)(sample))


LITGPT = """
    checkpoint_dir: checkpoints/google/gemma-2b
    out_dir: out
    logger_name: csv
    seed: 1337
    data:
      class_path: litgpt.data.Alpaca2k
      init_args: {mask_prompt: false, prompt_style: alpaca, seed: 7, val_split_fraction: 0.04}
    train: {global_batch_size: 8, micro_batch_size: 2, epochs: 3, max_seq_length: 512, max_tokens: }
    """


def test_litgpt_reads_the_dataset_of_its_data_module(tmp_path: Path) -> None:
    conversion = converted(tmp_path, "a.yaml", LITGPT)
    model, (source,) = conversion.mixture, conversion.mixture.sources
    assert (conversion.format, lost(conversion)) == ("litgpt", [])
    assert source.path == ("hf://datasets/mhenrichsen/alpaca_2k_test",) and source.epochs == 3
    assert (model.seed, model.split) == (7, Splitting(0.04))
    assert model.batch == Batching(4, collate="list", ranks=2)
    assert source.chat is not None
    assert (source.chat.tokenizer, source.chat.max_length) == ("google/gemma-2b", 512)
    text = encode(source.chat, {"instruction": "Add", "input": "1", "output": "2"})
    assert text.startswith("{Below is an instruction") and text.endswith("### Response:\n2</s>}")
    masked = converted(
        tmp_path, "a.yaml", LITGPT.replace("mask_prompt: false", "mask_prompt: true")
    )
    assert masked.mixture.sources[0].chat is not None
    assert masked.mixture.sources[0].chat.train_on == "assistant"


@pytest.mark.parametrize(
    ("old", "new", "error"),
    [
        ("prompt_style: alpaca", "prompt_style: unknown", [(7, "data.init_args.prompt_style")]),
        ("max_tokens: ", "max_tokens: 100", [(8, "train.max_tokens")]),
        ("logger_name: csv", "resume: true", [(3, "resume")]),
    ],
)
def test_what_stops_files_of_litgpt(tmp_path: Path, old: str, new: str, error: list[Any]) -> None:
    assert lost(converted(tmp_path, "a.yaml", LITGPT.replace(old, new))) == error
    with pytest.raises(ps.ConfigError, match=r"the data module 'TinyLlama' changes or tokenizes"):
        converted(tmp_path, "a.yaml", LITGPT.replace("Alpaca2k", "TinyLlama"))


LINGUA = """
    name: small
    steps: 600
    seed: 777
    grad_acc_steps: 2
    optim: {lr: 0.001}
    distributed: {fsdp_type: full_shard, tp_size: 1}
    data:
      root_dir: data/shuffled
      sources: {wikipedia: 80.0, arxiv_1.0: 20.0}
      batch_size: 4
      prefetch_size: 64
      seq_len: 128
      n_views: 2
      load_async: true
      add_bos: false
      tokenizer: {name: sp, path: tokenizers/t.model}
    """


def test_lingua_mixes_documents_by_weight(tmp_path: Path) -> None:
    conversion = converted(tmp_path, "a.yaml", LINGUA)
    model = conversion.mixture
    assert (conversion.format, lost(conversion)) == ("lingua", [])
    assert model.shares() == {"wikipedia": 0.8, "arxiv_1.0": 0.2} and model.unit is None
    assert model.pack == {"length": 128, "eos": True} and model.horizon == ("steps", 600)
    assert model.batch == Batching(8, ranks=2)
    assert model.tokenize == Tokenizing(str(tmp_path / "tokenizers/t.model"))
    assert model.sources[0].path == (str(tmp_path / "data/shuffled/wikipedia/*.chunk.*.jsonl"),)
    other = converted(tmp_path, "a.yaml", LINGUA.replace("name: sp", "name: bytes"))
    assert lost(other) == [(16, "data.tokenizer.name")]


MIX = """
    # web
    web,preprocessed/a/{TOKENIZER}/part-0.npy
    web,preprocessed/a/{TOKENIZER}/part-1.npy
    code,preprocessed/b/{TOKENIZER}/part-0.npy
    """


def test_text_mixes_of_olmo_core_have_a_source_for_each_label(tmp_path: Path) -> None:
    conversion = converted(tmp_path, "mix.txt", MIX)
    assert conversion.format == "olmo-core-mix"
    assert lost(conversion) == [(2, "path"), (4, "path")]
    located = converted(tmp_path, "mix.txt", MIX, files={"*": str(tmp_path / "{name}")})
    assert lost(located) == [] and located.mixture.names == ("web", "code")
    assert located.mixture.unit == "tokens" and located.mixture.stop == "all_exhausted"
    plain = converted(tmp_path, "mix.txt", "sources/reddit/part-0.npy\nsources/books/part-0.npy\n")
    assert lost(plain) == [] and plain.mixture.names == ("reddit", "books")
    with pytest.raises(ps.ConfigError, match=r"mix.txt, line 2: expected a label"):
        converted(tmp_path, "mix.txt", "a,b.npy\nhello\n")


SCRIPT = """
    #!/bin/bash
    GPUS=8
    SEQ=${SEQ_LENGTH:-64}
    DATA="0.3 corpus/web_text_document 0.7 corpus/code_text_document"
    MODEL_ARGS=(
        --num-layers 2
        --seq-length $SEQ
    )
    torchrun --nproc_per_node $GPUS pretrain_gpt.py \\
        ${MODEL_ARGS[@]} \\
        --micro-batch-size 1 \\
        --global-batch-size 16 \\
        --train-samples 160 --lr 0.1 \\
        --data-path $DATA \\
        --split 98,2,0 --seed 7  # as before
    """


def test_arguments_of_megatron_are_read_from_a_script(tmp_path: Path) -> None:
    conversion = converted(tmp_path, "train.sh", SCRIPT)
    model = conversion.mixture
    assert (conversion.format, lost(conversion)) == ("megatron-shell", [])
    assert model.shares() == {"web_text_document": 0.3, "code_text_document": 0.7}
    assert (model.pack, model.horizon) == ({"length": 64}, ("steps", 10))
    assert (model.batch, model.seed) == (Batching(8, ranks=2, drop_remainder=True), 7)
    assert model.split == Splitting(0.02, by="position")
    assert [source.path[0].rpartition("/")[2] for source in model.sources] == [
        "web_text_document.bin",
        "code_text_document.bin",
    ]
    bert = converted(tmp_path, "train.sh", SCRIPT.replace("pretrain_gpt", "pretrain_bert"))
    assert lost(bert) == [(9, "program")]
    quoted = SCRIPT.replace("torchrun --nproc_per_node $GPUS pretrain_gpt.py", 'options="').replace(
        "  # as before", '"'
    )
    assert converted(tmp_path, "train.sh", quoted).mixture.shares() == model.shares()
    branches = SCRIPT.replace("GPUS=8", "GPUS=8\n    SIZE=16\n    SIZE=32")
    branches = branches.replace("--global-batch-size 16", "--global-batch-size $SIZE")
    assert (11, "global-batch-size") in lost(converted(tmp_path, "train.sh", branches))
    with pytest.raises(ps.ConfigError, match=r"line 9: --seq-length has another value on line 7"):
        converted(tmp_path, "train.sh", SCRIPT.replace("--lr 0.1", "--seq-length 32"))
    unknown = converted(tmp_path, "train.sh", SCRIPT.replace("--lr 0.1", "--reshuffle 2"))
    assert lost(unknown) == [(9, "reshuffle")]
    with pytest.raises(ps.ConfigError, match=r"--data-path comes from .* does not set, \$1"):
        converted(tmp_path, "train.sh", SCRIPT.replace('DATA="0.3 ', 'DATA="$1 '))


def test_finetuning_of_llm_foundry_is_a_chat(tmp_path: Path) -> None:
    text = """
        variables: {length: 256}
        max_duration: 2ep
        global_train_batch_size: 8
        tokenizer: {name: EleutherAI/gpt-neox-20b, kwargs: {model_max_length: 256}}
        algorithms: {gradient_clipping: {clipping_type: norm}}
        train_loader:
          name: finetuning
          dataset: {hf_name: a/b, split: train, max_seq_len: "${variables.length}", shuffle: true}
        """
    conversion = converted(tmp_path, "a.yaml", text)
    chat = conversion.mixture.chat
    assert lost(conversion) == [] and chat is not None and chat.max_length == 256
    assert encode(chat, {"prompt": "is it?\n", "response": "yes"}) == "is it?\n{yes</s>}"
    dolly = text.replace("a/b", "HuggingFaceH4/databricks_dolly_15k").replace(
        "shuffle:", "packing_ratio: auto, shuffle:"
    )
    packed = converted(tmp_path, "a.yaml", dolly)
    assert packed.mixture.pack == {"length": 256, "method": "first_fit"}
    sample = {"instruction": "Add", "input": "1", "output": "2"}
    assert encode(packed.mixture.chat, sample).endswith(
        "### Instruction:\nAdd\n1\n\n### Response:\n{2</s>}"
    )
    other = converted(
        tmp_path, "a.yaml", text.replace("shuffle:", "preprocessing_fn: mine:f, shuffle:")
    )
    assert lost(other) == [(8, "train_loader.dataset.preprocessing_fn")]
    mixed = converted(tmp_path, "a.yaml", text.replace("gradient_clipping", "seq_length_warmup"))
    assert lost(mixed) == [(5, "algorithms.seq_length_warmup")]


def test_blends_of_nemotron_need_the_tokenizer_of_their_preparation(tmp_path: Path) -> None:
    entries = [
        {"name": "web", "path": "hf://a/web", "subset": "high", "split": "train", "weight": 3.0},
        {
            "name": "code",
            "path": "hf://a/code",
            "split": "train",
            "text_field": "content",
            "category": "x",
        },
    ]
    blend = json.dumps({"_comment": "two", "datasets": entries})
    alone = converted(tmp_path, "blend.json", blend)
    assert (alone.format, lost(alone)) == ("nemotron", [(1, "datasets")])
    text = """
        blend_path: ${oc.env:PWD}/blend.json
        output_dir: out
        tokenizer: {model: a/tokenizer, add_bos: false, add_eos: false}
        min_doc_chars:
        """
    prepared = converted(tmp_path, "prepare.yaml", text)
    web, code = prepared.mixture.sources
    assert lost(prepared) == [] and prepared.mixture.unit == "tokens"
    assert (web.weight, web.path) == (3.0, ("hf://datasets/a/web@~parquet/high/train",))
    assert code.tokenize == Tokenizing("a/tokenizer", "content")
    ending = converted(tmp_path, "prepare.yaml", text.replace("add_eos: false", "add_eos: true"))
    assert lost(ending) == [(3, "tokenizer.add_eos")]
    chats = "pack_size: 128\nalgorithm: first_fit_shuffle\nused_in_filter: nano\n"
    chats = dedent(text) + chats
    packed = converted(tmp_path, "prepare.yaml", chats)
    assert packed.mixture.pack == {"length": 128, "method": "first_fit"}
    assert lost(packed) == [(7, "used_in_filter")]


@pytest.mark.parametrize(
    ("text", "tool"),
    [
        (
            "pipe_parallel_size: 1\nzero_optimization: {stage: 1}\n",
            "GPT-NeoX without the file of its data_path",
        ),
        ("doremi: {}\ndata: {}\n", "nanotron for DoReMi"),
        ("version: v2\nbudget: x\ntasks: []\n", "Beaker"),
        ("defaults: [a]\nrun: {}\n", "Hydra, which merges other files"),
    ],
)
def test_files_of_known_tools_are_named(tmp_path: Path, text: str, tool: str) -> None:
    with pytest.raises(ps.ConfigError, match=f"looks like a file of {tool}"):
        converted(tmp_path, "a.yaml", text)


LEVANTER = """
    data:
      tokenizer: TOKENIZER
      train_weights: {one: 3.0, two: 1.0}
      configs:
        one: {train_urls: [one.jsonl], format: {type: chat, messages_field: talk}}
        two: {train_urls: [two.jsonl], format: {type: chat}}
    trainer: {train_batch_size: 2, num_train_steps: 3}
    model: {type: llama, seq_len: 128}
    """


def test_conversations_of_levanter_are_packed_whole(tmp_path: Path) -> None:
    bpe().save(str(tmp_path / "tokenizer.json"))
    talk = [{"role": "user", "content": "is it?"}, {"role": "assistant", "content": "yes"}]
    for name, field in (("one", "talk"), ("two", "messages")):
        rows = "".join(json.dumps({field: talk}) + "\n" for _ in range(40))
        (tmp_path / f"{name}.jsonl").write_text(rows)
    text = LEVANTER.replace("TOKENIZER", str(tmp_path / "tokenizer.json"))
    conversion = converted(tmp_path, "a.yaml", text, ranks=None)
    model = conversion.mixture
    assert lost(conversion) == [] and model.tokenize is None
    assert model.pack == {"length": 128, "method": "first_fit", "long": "truncate"}
    chat = model.sources[0].chat
    assert chat is not None and chat.fields == {"messages": "talk"}
    mixed = converted(tmp_path, "a.yaml", text.replace(", format: {type: chat}", ""), ranks=None)
    assert {key for _, key in lost(mixed)} == {
        "data.configs.one.format.type",
        "data.configs.one.format.messages_field",
    }
    templated = text.replace("messages_field: talk", "messages_field: talk, chat_template: CHATML")
    written = converted(
        tmp_path,
        "a.yaml",
        templated.replace("CHATML", "chatml").replace(
            "{type: chat}}", "{type: chat, chat_template: chatml}}"
        ),
        ranks=None,
    )
    ps.dump(written.mixture, tmp_path / "ours.yaml")
    batch = next(iter(ps.load(tmp_path / "ours.yaml")))
    assert batch["tokens"].shape == (2, 128) and batch["loss_mask"].any()


ODD = (
    "[]",
    "{}",
    "[1, [2]]",
    "{a: {b: c}}",
    "-3",
    "1e400",
    "nan",
    "yes please",
    "null",
    "[{a: 1}, x]",
)


@pytest.mark.parametrize("text", [LITGPT, LINGUA, SCRIPT], ids=["litgpt", "lingua", "script"])
def test_odd_values_are_errors_or_reports(tmp_path: Path, text: str) -> None:
    lines = dedent(text).lstrip().splitlines()
    for number, line in enumerate(lines):
        key, colon, _ = line.partition(":")
        for odd in ODD if colon else ODD[:4]:
            changed = f"{key}: {odd}" if colon else f"{line} {odd}"
            try:
                converted(
                    tmp_path,
                    "train.sh" if text is SCRIPT else "a.yaml",
                    "\n".join([*lines[:number], changed, *lines[number + 1 :]]),
                )
            except ps.ConfigError:
                pass
