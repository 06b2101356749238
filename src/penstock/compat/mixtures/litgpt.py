"""litgpt: the data module of a finetuning file, and its prompt style."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from ...mixture_files import Chatting, MixtureFile, SourceEntry, Splitting
from ...mixture_files.reading import MixtureNode
from .account import Account, Reasons, Section, nothing
from .locations import Hub, Names
from .prompts import ALPACA, PromptStyle
from .settings import CHECKPOINTS, OPTIMIZER
from .trainers import MAY_STOP, OTHER_RUN, hold_out, length, put_together, shared

_MODULES: dict[str, tuple[str | None, float]] = {
    "Alpaca2k": ("mhenrichsen/alpaca_2k_test", 0.05),
    "Alpaca": (None, 0.03865),
    "AlpacaGPT4": (None, 0.03847),
    "JSON": (None, 0.05),
}
"""Data modules with samples of Alpaca's form: their dataset, and the share they hold out."""
_FILES = {
    "Alpaca": "data/alpaca/alpaca_data_cleaned_archive.json",
    "AlpacaGPT4": "data/alpacagpt4/alpacagpt4_data_cleaned_archive.json",
}
"""The files that data modules download."""
_UNKNOWN_MODULE = "the data module {!r} changes or tokenizes its data before it reads them: prepare them in Python"
_HEAD, _HEAD_WITH_INPUT = (text.split("### ")[0] for text in (ALPACA.plain, ALPACA.with_input))
_QUESTION = ALPACA.plain.removeprefix(_HEAD)
_STYLES = {
    "alpaca": ALPACA,
    "flan": PromptStyle(_HEAD + _QUESTION, _HEAD + _QUESTION),
    "longform": PromptStyle(_HEAD_WITH_INPUT + _QUESTION, _HEAD_WITH_INPUT + _QUESTION),
    "default": PromptStyle("{instruction}", "{instruction}"),
    "falcon": PromptStyle("{instruction}\nAnswer:", "{instruction}\nAnswer:"),
}
_REPORTED: Reasons = {OTHER_RUN: ("resume",)}
_NOTED: Reasons = {
    "devices with samples of their own count in --ranks": ("devices", "num_nodes"),
    "it seeds the model; the data module has the seed of the order": ("seed",),
}
_HARMLESS = OPTIMIZER | CHECKPOINTS | frozenset(
    "out_dir precision quantize lora_r lora_alpha lora_dropout lora_query lora_key lora_value "
    "lora_projection lora_mlp lora_head eval logger_name access_token compiler initial_checkpoint_dir "
    "model_name model_config adapter finetune merge optimizer".split()
)  # fmt: skip
_TRAIN_HARMLESS = frozenset(
    "save_interval log_interval micro_batch_size lr_warmup_steps lr_warmup_fraction tie_embeddings "
    "max_norm min_lr".split()
)


def is_mine(tree: MixtureNode) -> bool:
    value = tree.value if isinstance(tree.value, dict) else {}
    train = value.get("train")
    return (
        "data" in value
        and bool({"checkpoint_dir", "initial_checkpoint_dir", "logger_name"} & value.keys())
        and train is not None
        and isinstance(train.value, dict)
        and "global_batch_size" in train.value
    )


def convert(tree: MixtureNode, account: Account) -> MixtureFile:
    """Convert the dataset of a data module, with prompts in its style."""
    top = account.open(tree)
    train, data = top.part("train"), _data(top)
    assert train is not None
    module, inside = data
    source = _source(top, module, inside, Names())
    if source is None:
        raise nothing(Path(tree.file), "litgpt")
    chat = _chat(top, train, inside)
    horizon, passes = length(train, "epochs", 5)
    combined, options = put_together([replace(source, chat=chat)], passes)
    size = train.count("global_batch_size")
    batch = shared(size, train, "global_batch_size", collate="list")
    split = _split(inside, module, top, source)
    seed = 42
    if inside is not None:
        seed = inside.integer("seed", 42) or 0
        inside.settle(("ignore_index", "num_workers", "download_dir", "access_token"))
    train.report("max_tokens", "finetuning counts passes or steps")
    train.settle(_TRAIN_HARMLESS, noted={MAY_STOP: ("max_time",)})
    top.settle({*_HARMLESS, "tokenizer_dir"}, _REPORTED, _NOTED)
    return MixtureFile(combined, seed=seed, split=split, horizon=horizon, batch=batch, **options)


def _data(top: Section) -> tuple[str, Section | None]:
    """Return the name of the data module, and its arguments."""
    if not isinstance(top.peek("data"), dict):
        return (top.text("data") or "").rpartition(".")[2], None
    part = top.part("data")
    assert part is not None
    module = (part.text("class_path") or "").rpartition(".")[2]
    arguments = part.part("init_args") if isinstance(part.peek("init_args"), dict) else None
    return module, arguments


def _source(top: Section, module: str, inside: Section | None, names: Names) -> SourceEntry | None:
    """Return the dataset of a data module; `None`, with a report, for one that prepares its data."""
    if module not in _MODULES:
        top.report("data", _UNKNOWN_MODULE.format(module))
        return None
    name = names.of(module.lower())
    if (repository := _MODULES[module][0]) is not None:
        part = inside if inside is not None and inside.has("repo_id") else top
        hub = Hub((part.text("repo_id") if part is inside else None) or repository)
        key = "repo_id" if part is inside else "data"
        return SourceEntry(name, part.dataset(key, name, hub, "", ""))
    path = inside.text("json_path") if inside is not None else None
    if module == "JSON" and path is None:
        top.report("data", "json_path is missing")
        return None
    file = path or _FILES[module]
    paths = top.local("data", name, [file if Path(file).suffix else f"{file}/train.json"])
    return SourceEntry(name, paths)


def _split(
    inside: Section | None, module: str, top: Section, source: SourceEntry
) -> Splitting | None:
    """Return the share that a data module holds out, by default its own."""
    key = "val_split_fraction"
    if inside is not None and inside.has(key):
        return hold_out(inside, key, [source], "litgpt")[1]
    share = _MODULES[module][1]
    top.note("data", f"the share {share} is held out by hash, as the data module does by default")
    return Splitting(share)


def _chat(top: Section, train: Section, inside: Section | None) -> Chatting | None:
    """Return the prompts in the style of the data module; all is learned unless prompts are masked."""
    name: Any = inside.peek("prompt_style") if inside is not None else None
    key = "checkpoint_dir" if top.has("checkpoint_dir") else "tokenizer_dir"
    folder = top.text(key) or ""
    tokenizer = folder.removeprefix("checkpoints/")
    if tokenizer == folder:
        tokenizer = top.path(folder)
    else:
        top.note(key, f"the tokenizer is read from the hub, as {tokenizer}")
    masked = inside.flag("mask_prompt") if inside is not None else False
    length = train.count("max_seq_length")
    if inside is not None and name is not None and name not in _STYLES:
        inside.report("prompt_style", f"{name!r} is no style that is known: give chat a template")
        return None
    inside.get("prompt_style") if inside is not None else None
    return Chatting(
        tokenizer,
        format="alpaca",
        template=_STYLES[name or "alpaca"].template(),
        train_on="assistant" if masked else "all",
        max_length=length,
        truncate="right",
    )
