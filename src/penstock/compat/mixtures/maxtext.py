"""MaxText: a training file with its `grain_train_files` or dataset of the hub, and the JSON file of a mixture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...mixture_files import MixtureFile, Shuffling, SourceEntry, Tokenising
from ...mixture_files.reading import Node
from ...sources.paths import FormatName
from .parts import Hub, Left, Names, Part, name_of_path, nothing
from .trainers import each

_DATA = ("grain_train_files", "grain_train_mixture_config_path", "hf_path", "hf_train_files")
_FORMATS: dict[str, FormatName] = {"arrayrecord": "array_record", "tfrecord": "tfrecord", "parquet": "parquet"}
_METHODS = {"first_fit": "first_fit", "best_fit": "best_fit", "concat_then_split": "concat_split"}
_ABOUT_DATA = ("use_sft", "use_dpo", "max_segments_per_seq", "rampup_batch_size", "global_rampup_samples")


def is_mine(tree: Node) -> bool:
    if not isinstance(tree.value, dict):
        return False
    return _mixture(tree) or ("dataset_type" in tree.value and any(key in tree.value for key in _DATA))


def _mixture(tree: Node) -> bool:
    """Whether it is names with a path and a weight, and nothing else."""
    table = tree.value
    if not isinstance(table, dict) or not table:
        return False
    inner = [node.value for node in table.values()]
    return all(isinstance(one, dict) and one.keys() == {"path", "weight"} for one in inner)


def convert(tree: Node, left: Left) -> MixtureFile:
    """The mixture; weights are shares of documents, and the first dataset that is used up ends it."""
    top = Part(tree, "", left)
    if _mixture(tree):
        return MixtureFile(tuple(_blended(top, Names(), {"format": "array_record"})), stop="first_exhausted")
    text = top.get("train_data_columns", ["text"])
    columns = [text] if isinstance(text, str) else [str(one) for one in text]
    kind = top.text("grain_file_type") or "arrayrecord"
    how: dict[str, Any] = {"columns": tuple(columns)}
    hub = top.text("dataset_type") == "hf" or not (top.has(_DATA[0]) or top.has(_DATA[1]))
    if hub:
        sources = _of_hub(top, how)
    else:
        sources = _of_files(top, {**how, "format": _FORMATS.get(kind)})
    if not sources:
        raise nothing(Path(tree.file), "MaxText")
    passes = top.number("num_epoch") or 1
    if len(sources) > 1 and passes != 1:
        top.leave("num_epoch", "a mixture that ends with its first dataset is one pass of that here")
    if len(sources) == 1:
        sources = [replace(sources[0], weight=None, epochs=passes, max_epochs=passes)]
    rows = _rows(top, columns)
    seed, steps = top.get("data_shuffle_seed", 0), top.get("steps", -1)
    if steps == -1:
        steps = top.get("learning_rate_schedule_steps")
    top.skip("learning_rate_schedule_steps")
    size = top.count("per_device_batch_size")
    for key in _ABOUT_DATA:
        if top.get(key) not in (None, False, 0, -1):  # what they are where nobody asks for them
            top.leave(key)
    return MixtureFile(
        tuple(sources),
        seed=seed if isinstance(seed, int) else None,
        stop="first_exhausted" if len(sources) > 1 else None,
        shuffle=Shuffling("none") if top.get("enable_data_shuffling", True) is False else None,
        horizon=("steps", steps) if isinstance(steps, int) and steps > 0 else None,
        batch=each(size, top, drop_remainder=True),
        **rows,
    )


def _of_files(top: Part, how: Mapping[str, Any]) -> list[SourceEntry]:
    """The datasets of `A,0.3;B,0.7`, of a JSON file that is named, or the one of a pattern."""
    if top.has("grain_train_mixture_config_path"):
        said = f"convert that file, {top.get('grain_train_mixture_config_path')}: it holds the mixture"
        top.leave("grain_train_mixture_config_path", said)
    given, names, out = top.text("grain_train_files") or "", Names(), list[SourceEntry]()
    for part in filter(None, given.split(";")):
        pattern, _, weight = part.strip().rpartition(",") if ";" in given else (part.strip(), "", "")
        share = _number(weight) if weight else None
        if not pattern or (weight and share is None):
            top.leave("grain_train_files", f"{part!r} is no pattern with a weight after a comma: its share is lost")
            continue
        name = names.of(name_of_path(pattern.partition("*")[0]))
        out.append(SourceEntry(name, top.local("grain_train_files", name, [pattern]), weight=share, **how))
    return out


def _of_hub(top: Part, how: Mapping[str, Any]) -> list[SourceEntry]:
    """A dataset of the hub, or files that are read by its library."""
    path, files = top.text("hf_path"), top.text("hf_train_files")
    config, split = top.text("hf_name"), top.text("train_split")
    top.leave("hf_data_dir", "which folder of the dataset is read is lost: name it with files")
    if path in ("json", "parquet", "csv", "text", "arrow") and files:
        name = Names().of(name_of_path(files))
        kind: Any = "jsonl" if path == "json" else path
        return [SourceEntry(name, top.local("hf_train_files", name, [files]), format=kind, **how)]
    if not path:
        return []
    place = Hub(path, config or None, split, (files,) if files else ())
    name = Names().of(place.short)
    return [SourceEntry(name, top.hub("hf_path", name, place), **how)]


def _blended(top: Part, names: Names, how: Mapping[str, Any]) -> list[SourceEntry]:
    """The datasets of a mixture's file."""
    out = list[SourceEntry]()
    for name, part in top.named():
        weight, found = part.number("weight"), names.of(name)
        out.append(SourceEntry(found, part.local("path", found, part.texts("path")), weight=weight, **how))
    return out


def _rows(top: Part, columns: Sequence[str]) -> dict[str, Any]:
    """How documents become rows."""
    tokenizer, length = top.text("tokenizer_path"), top.count("max_target_length")
    given = top.get("tokenize_train_data", True)
    method, packed = top.text("grain_packing_type") or "first_fit", top.get("packing", True)
    bos, eos = top.get("add_bos", True), top.get("add_eos", True)
    out: dict[str, Any] = {}
    if given is not False and tokenizer:
        if len(columns) != 1:
            top.leave("train_data_columns", "several texts of a sample are tokenised in Python")
        else:
            known = tokenizer if "/" in tokenizer and not tokenizer.endswith((".model", ".json")) else None
            if known is None or tokenizer.startswith(("src/", "assets/", "gs://")):
                top.say("tokenizer_path", "a tokenizer of their checkout: say where its tokenizer.json lies")
            out["tokenise"] = Tokenising(tokenizer, columns[0])
    if packed is False:
        top.leave("packing", "one document a row, padded: pad them in Python")
    elif length and method in _METHODS:
        ends = {name: True for name, said in (("bos", bos), ("eos", eos)) if said is not False and "tokenise" in out}
        out["pack"] = {"length": length, "method": _METHODS[method], **ends}
    elif length:
        top.leave("grain_packing_type", f"{method!r} is no way of packing that is known")
    return out


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
