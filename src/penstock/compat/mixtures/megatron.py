"""Megatron-LM, GPT-NeoX and NeMo: lists of indexed token files and weights, in a training file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from ...mixture_files import MixtureFile, SourceEntry, Splitting
from ...mixture_files.reading import Node
from .parts import Left, Names, Part, name_of_path, nothing
from .trainers import shared

_LISTS = ("train_data_path", "train_data_paths", "data_path", "data_prefix", "blend")
_LENGTHS = ("seq_length", "encoder_seq_length", "max_position_embeddings")


def is_mine(tree: Node) -> bool:
    found = _blend(Part(tree, "", Left()))
    return found is not None


def _key(part: Part, name: str) -> str:
    """A key as it is written there: GPT-NeoX takes `a-b` and `a_b`."""
    other = name.replace("_", "-")
    return other if other in part.table else name


def _blend(top: Part) -> tuple[Part, str] | None:
    """Where the list stands, and its key."""
    model = top.part("model")
    for part in (top, model, model.part("data") if model else None, top.part("data")):
        for name in _LISTS if part is not None else ():
            assert part is not None
            key = _key(part, name)
            if part.has(key) and _pairs(_listed(part, key)) is not None:
                return part, key
    return None


def _listed(part: Part, key: str) -> Any:
    node = part.table[key]
    if isinstance(node.value, dict):
        inside = part.part(key)
        return inside.get("train") if inside else None
    given = part.get(key)
    return given.split() if isinstance(given, str) else given


def _pairs(given: Any) -> list[tuple[float | None, str]] | None:
    """Weights and paths, where there is such a list: `[0.3, a, 0.7, b]`, or paths alone."""
    listed = cast("list[Any]", given) if isinstance(given, list) else []
    values = [given] if isinstance(given, str) else listed
    numbers = [_number(value) for value in values]
    if not values or "???" in values:
        return None
    if all(number is None for number in numbers):
        return [(None, str(value)) for value in values] if all(isinstance(value, str) for value in values) else None
    even = len(values) % 2 == 0 and all((number is None) == bool(i % 2) for i, number in enumerate(numbers))
    return [(numbers[i], str(values[i + 1])) for i in range(0, len(values), 2)] if even else None


def _number(value: Any) -> float | None:
    try:
        return None if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        return None


def convert(tree: Node, left: Left) -> MixtureFile:
    """The mixture; weights are shares of rows of equal length there, of tokens here."""
    top = Part(tree, "", left)
    found = _blend(top)
    assert found is not None
    part, key = found
    pairs = _pairs(_listed(part, key)) or []
    weights: list[Any] = part.get(_key(part, "train_data_weights")) or [weight for weight, _ in pairs]
    names, sources = Names(), list[SourceEntry]()
    for (_, path), weight in zip(pairs, weights, strict=False):
        name = names.of(name_of_path(path))
        files = tuple(
            place if place.endswith((".bin", ".npy")) or "*" in place else f"{place}.bin"
            for place in part.local(key, name, [path])
        )
        sources.append(SourceEntry(name, files, weight=weight))
    if not sources:
        raise nothing(Path(tree.file), "Megatron")
    if len(weights) != len(pairs):
        part.leave(_key(part, "train_data_weights"), f"not one number for each of {len(pairs)} paths")
    if any(source.weight is None for source in sources):
        sources = [replace(source, weight=None) for source in sources]
    if str(part.get(_key(part, "weight_by_num_documents"))).lower() == "true":
        part.leave(_key(part, "weight_by_num_documents"), "weights by a power of the sizes: say temperature")
    own = key not in ("train-data-paths", "train_data_paths", "train_data_path")
    split = _split(part, own and not isinstance(part.table[key].value, dict))
    part.leave(_key(part, "train_label_data_paths"), "labels beside the tokens have no counterpart")
    one_pass = sources[0].weight is None and len(sources) > 1
    return MixtureFile(
        tuple(sources),
        unit="tokens",
        temperature=1 if one_pass else None,
        split=split,
        **_run(top, part, left),
    )


def _split(part: Part, own: bool) -> Splitting | None:
    """The documents at the end that are for validation and tests, where one list is for all three."""
    for name in ("split", "splits_string"):
        given = part.get(_key(part, name))
        if not own or given is None:
            continue
        numbers = [_number(number) or 0 for number in str(given).split(",")]
        total = sum(numbers)
        if total and numbers[0] < total:
            return Splitting(round(1 - numbers[0] / total, 6), by="position")
    return None


def _run(top: Part, part: Part, left: Left) -> dict[str, Any]:
    out: dict[str, Any] = {}
    model, trainer = top.part("model"), top.part("trainer")
    places = [place for place in (top, model, part, trainer) if place is not None]

    def first(*keys: str) -> tuple[int, Part, str] | None:
        for place in places:
            for key in keys:
                value = place.get(_key(place, key))
                if isinstance(value, int) and not isinstance(value, bool) and value > 0:
                    return value, place, _key(place, key)
        return None

    if length := first(*_LENGTHS):
        out["pack"] = {"length": length[0]}
    if (seed := first("seed")) is not None:
        out["seed"] = seed[0]
    if steps := first("train_iters", "max_steps"):
        out["horizon"] = ("steps", steps[0])
    if size := first("global_batch_size", "train_batch_size"):
        out["batch"] = shared(size[0], size[1], size[2], drop_remainder=True)
    elif size := first("train_micro_batch_size_per_gpu", "micro_batch_size"):
        times = first("gradient_accumulation_steps")
        whole = size[0] * (times[0] if times else 1) * left.ranks
        out["batch"] = shared(whole, size[1], size[2], drop_remainder=True)
    return out
