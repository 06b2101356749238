"""Suggestions for wrong arguments, names and choices: the nearest valid one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from difflib import get_close_matches
from functools import wraps
from inspect import CO_VARKEYWORDS, isfunction
from pathlib import Path
from typing import Any, NoReturn, TypeVar, cast

from ...errors import ConfigError
from .argument_types import check_arguments, find_checked_arguments

T = TypeVar("T", bound=Callable[..., Any])
Part = TypeVar("Part")

# Synonyms of arguments in other libraries; the suggestion is the one that the function has.
ARGUMENT_SYNONYMS = (
    {"workers", "num_workers", "num_threads", "num_proc", "threads", "processes"},
    {"world_size", "world", "num_replicas", "num_ranks", "process_count", "num_processes"},
    {"rank", "process_index", "process_id"},
    {"prefetch", "prefetch_factor", "prefetch_batches", "num_prefetch", "buffer_size"},
    {"n", "batch_size", "size", "count", "num", "buffer_size", "max_samples", "num_samples"},
    {"index", "shard_id", "shard_index"},
    {"count", "num_shards"},
    {
        "length",
        "seq_len",
        "seq_length",
        "max_length",
        "max_seq_len",
        "max_seq_length",
        "context_length",
        "block_size",
    },
    {"epochs", "num_epochs", "times", "count"},
    {"weights", "probabilities", "probs", "ratios", "shares", "p"},
    {"stop", "stopping_strategy", "stop_strategy", "stopping", "mode"},
    {"max_epochs", "epochs", "repeats", "num_epochs"},
    {"fn", "function", "func", "transform", "predicate"},
    {"collate", "collate_fn", "batch_fn"},
    {"drop_remainder", "drop_last", "drop_last_batch"},
    {"batched", "batch_size"},
    {"bos", "bos_id", "bos_token", "bos_token_id"},
    {"eos", "eos_id", "eos_token", "eos_token_id"},
    {"pad", "pad_id", "pad_token_id", "pad_value", "padding", "fill"},
    {"method", "strategy", "algorithm"},
    {"max_segments", "max_docs", "max_documents", "max_sequences"},
    {"seed", "random_seed", "random_state"},
    {"paths", "path", "data_files", "files", "urls"},
    {"columns", "column_names", "fields", "features"},
    {"where", "filters", "filter"},
    {"cache", "cache_dir"},
    {"format", "fmt", "file_format", "type"},
    {"at", "position", "step", "from_position"},
    {"on_error", "handler", "error_handler", "errors"},
    {"max_errors", "error_limit", "tolerance"},
    {"bounds", "boundaries", "bucket_boundaries", "buckets"},
    {"max_tokens", "token_budget", "budget"},
)

# Arguments of other libraries that are no arguments here.
ARGUMENT_REMEDIES = {
    "batch_size": "batch the dataset: .batch(n)",
    "drop_last": "batch the dataset: .batch(n, drop_remainder=True)",
    "collate_fn": "batch the dataset: .batch(n, collate=fn)",
    "shuffle": "shuffle the dataset: .shuffle()",
    "seed": "the order is the dataset's: .shuffle(seed=n), .seed(n)",
    "sampler": "the order is the dataset's: .shuffle(), .select(indices), ps.mix({...})",
    "num_epochs": "every `for` is a pass; .repeat(n) joins several passes",
    "buffer_size": "shuffle() needs no buffer; for a stream write .shuffle_buffer(n)",
    "batched": "write .map(fn, batched=n), or .batch(n).map(fn)",
    "num_proc": "workers are the loader's: ps.Loader(ds, workers=n)",
    "num_workers": "workers are the loader's: ps.Loader(ds, workers=n)",
    "persistent_workers": "workers live as long as the loader",
    "worker_init_fn": "workers are threads of this process",
    "pin_memory": "the loader pins memory: ps.Loader(ds, to='torch', pin_memory=True)",
    "streaming": "files are read on demand",
    "strict": "on_mismatch='adopt' loads a state of another pipeline",
}

# Names of other libraries, and their equivalents here.
FOREIGN_NAMES = {
    "Dataset": {
        "take": ".limit(n)",
        "head": ".limit(n)",
        "sample": "ds[i], or ds.repeat()[i] for a later pass",
        "drop": ".skip(n)",
        "train_test_split": "train, held_out = ds.split(0.1)",
        "random_split": "train, held_out = ds.split(0.1)",
        "with_format": "ps.Loader(ds, to='torch')",
        "set_format": "ps.Loader(ds, to='torch')",
        "tokenize": ".map(fn) with a tokenizer, such as penstock.text.Tokenise(file)",
        "decode": ".map(fn) with a decoder, such as penstock.media.Decode()",
        "prefetch": "ps.Loader(ds, workers=n, prefetch=n)",
        "apply": ".pipe(fn)",
        "enumerate": ".map_with_index(fn)",
        "concatenate": "a.concat(b)",
        "unbatch": ".flat_map(fn)",
        "padded_batch": ".batch(n, collate=fn), such as penstock.text.Padded()",
        "window": ".batch(n, collate=list)",
        "select_columns": "ps.read(paths, columns=[...])",
        "remove_columns": "ps.read(paths, columns=[...])",
        "rename_columns": ".rename({old: new})",
        "sort": ".select(indices)",
        "cache": "ps.read(paths, cache=folder)",
        "to_list": "list(ds)",
        "state_dict": "iter(ds).state_dict(), or ps.Loader(ds).state_dict()",
        "load_state_dict": "iter(ds).load_state_dict(state), or "
        "ps.Loader(ds).load_state_dict(state)",
        "set_epoch": "another `for`: every pass of a loader has its own order",
    },
    "Loader": {
        "set_epoch": "another `for`: it runs the next pass, with its own order",
        "take": ".lease(n)",
        "reset": "loader.load_state_dict(state), or open a new loader",
        "shutdown": ".close()",
        "save": "ps.save(path, loader)",
        "restore": "ps.restore(path, loader)",
    },
    "penstock": {
        "DataLoader": "ps.Loader(ds)",
        "IterableDataset": "ps.from_iterable(factory)",
        "from_list": "ps.from_sequence(...)",
        "from_dict": "ps.from_sequence(rows)",
        "from_array": "ps.from_sequence(...)",
        "from_numpy": "ps.from_sequence(...)",
        "from_hf": "ps.from_sequence(datasets.load_dataset(...))",
        "load_dataset": "ps.read(paths), or ps.from_sequence(datasets.load_dataset(...))",
        "from_generator": "ps.from_iterable(factory)",
        "from_files": "ps.read(paths)",
        "from_parquet": "ps.read(paths)",
        "from_jsonl": "ps.read(paths)",
        "read_parquet": "ps.read(paths)",
        "read_json": "ps.read(paths)",
        "read_csv": "ps.read(paths)",
        "open": "ps.read(paths)",
        "interleave_datasets": "ps.mix({name: dataset, ...}, weights)",
        "sample_from_datasets": "ps.mix({name: dataset, ...}, weights)",
        "blend": "ps.mix({name: dataset, ...}, weights)",
        "concatenate_datasets": "ps.concat(a, b)",
    },
}

_TORCH_WORKERS_REMEDY = (
    "penstock.integrations.torch.IterableDataset(ds) for torch's DataLoader, or use the loader in "
    "its place"
)
OPERATOR_REMEDIES = {
    "Dataset": {"__add__": "a.concat(b)", "__mul__": ".repeat(n)"},
    "Loader": {"__getitem__": _TORCH_WORKERS_REMEDY, "__reduce_ex__": _TORCH_WORKERS_REMEDY},
}


def make_not_dataset_error(where: str, given: object) -> ConfigError:
    """Return the error for an object that is no dataset, with a way to create one from it.

    >>> print(make_not_dataset_error("concat", "a.jsonl"))
    concat: str is not a dataset; read the file: ps.read('a.jsonl')
    """
    remedy = f"read the file: ps.read({str(given)!r})"
    if not isinstance(given, str | Path):
        remedy = "wrap it with ps.from_sequence(...)"
    return ConfigError(f"{where}: {type(given).__name__} is not a dataset; {remedy}")


def join_first(names: Iterable[object], most: int = 3) -> str:
    """Format the first `most` names and the number of the others.

    >>> join_first(["a", "b", "c", "d", "e"])
    "['a', 'b', 'c'] and 2 more"
    """
    listed = list(names)
    return f"{listed[:most]}" + (f" and {len(listed) - most} more" if len(listed) > most else "")


def suggest_names(word: object, known: Iterable[str]) -> str:
    """Return a "did you mean" for the end of a message; empty if no name is similar.

    >>> suggest_names("wieght", ["weight", "path"])
    "; did you mean 'weight'?"
    >>> suggest_names("text", ["texts", "web/text"])
    "; did you mean 'web/text'?"
    """
    names, word = list(known), str(word)
    matches = [name for name in names if name.rpartition("/")[2] == word][:3] or get_close_matches(
        word, names, 3
    )
    return f"; did you mean {' or '.join(map(repr, matches))}?" if matches else ""


def check_choice(value: object, choices: tuple[str, ...], where: str) -> None:
    """Raise `ConfigError` if a value is none of the choices.

    `where` names the argument, with `{}` for the value.

    >>> check_choice("lineer", ("step", "linear"), "Schedule(interpolation={})")
    Traceback (most recent call last):
    ...
    penstock.errors.ConfigError: Schedule(interpolation='lineer'): choose 'step' or 'linear'; did you mean 'linear'?
    """
    if not isinstance(value, str) or value not in choices:
        *first, last = map(repr, choices)
        raise ConfigError(
            f"{where.format(repr(value))}: choose {', '.join(first)} or "
            f"{last}{suggest_names(value, choices)}"
        )


def require_protocol(part: Part, contract: type, where: str) -> Part:
    """Return the object; raise `ConfigError` if it lacks a method, or is a class.

    >>> from penstock.types import Order
    >>> require_protocol("abc", Order, "reorder()")
    Traceback (most recent call last):
    ...
    penstock.errors.ConfigError: reorder(): str has no size, down, up, describe; see Order in penstock.types
    """
    if isinstance(part, type):
        raise ConfigError(
            f"{where}: {part.__name__} is a class; give an object, {part.__name__}(...)"
        )
    methods = [name for name in vars(contract) if not name.startswith("_")]
    if missing := [name for name in methods if not callable(getattr(part, name, None))]:
        raise ConfigError(
            f"{where}: {type(part).__name__} has no {', '.join(missing)}; see {contract.__name__} "
            "in penstock.types"
        )
    return part


def validate_arguments(target: T) -> T:
    """Decorate a function, or a class, to check arguments and suggest corrections.

    It corrects names of arguments and, for classes, of attributes. It checks values of arguments by
    their annotations.

    >>> @validate_arguments
    ... def ask(workers=0): ...
    >>> ask(num_workers=2)
    Traceback (most recent call last):
    ...
    TypeError: ask() has no argument 'num_workers'; did you mean workers=?
    """
    return _wrap_with_checks(target) if isfunction(target) else _add_hints(target)


def _add_hints(kind: Any) -> Any:
    for name, method in cast("dict[str, Any]", {**kind.__dict__}).items():
        if isfunction(method) and (name == "__init__" or not name.startswith("_")):
            setattr(kind, name, _wrap_with_checks(method))
    for operator, instead in OPERATOR_REMEDIES.get(kind.__name__, {}).items():
        setattr(
            kind,
            operator,
            _make_raising_operator(f"{kind.__name__} has no {operator}; write {instead}"),
        )
    # Set here, because a type checker that sees __getattr__ accepts every name.
    kind.__getattr__ = _raise_unknown_attribute
    return kind


def make_attribute_error(owner: str, name: str, known: Iterable[str]) -> AttributeError:
    """Return the error for an unknown attribute of a class or module."""
    instead = FOREIGN_NAMES.get(owner, {}).get(name)
    hint = f"; write {instead}" if instead else suggest_names(name, known) or f"; see help({owner})"
    # obj=None, because Python would add a suggestion of its own.
    return AttributeError(f"{owner} has no {name!r}{hint}", name=name, obj=None)


def _raise_unknown_attribute(self: object, name: str) -> Any:
    kind = type(self)
    if name.startswith("_") or hasattr(kind, name):
        # Python's own error, or the error that a property raised.
        return object.__getattribute__(self, name)
    raise make_attribute_error(
        kind.__name__, name, (known for known in dir(kind) if not known.startswith("_"))
    )


def _make_raising_operator(message: str) -> Callable[[object, object], NoReturn]:
    def operator(self: object, other: object) -> NoReturn:
        raise TypeError(message)

    return operator


def _wrap_with_checks(fn: Any) -> Any:
    code = fn.__code__  # runs at every import, and inspect.signature is ten times slower
    if code.co_flags & CO_VARKEYWORDS:
        return fn
    names = list(
        code.co_varnames[code.co_posonlyargcount : code.co_argcount + code.co_kwonlyargcount]
    )
    shown = fn.__qualname__.removesuffix(".__init__")
    looked, step = find_checked_arguments(fn), shown.rpartition(".")[2]

    @wraps(fn)
    def checked(*args: Any, **given: Any) -> Any:
        for word in given:
            if word not in names:
                raise TypeError(
                    f"{shown}() has no argument {word!r}; {_suggest_argument(word, names)}"
                )
        check_arguments(step, looked, args, given)
        return fn(*args, **given)

    return checked


def _suggest_argument(word: str, names: list[str]) -> str:
    synonyms = [
        name for words in ARGUMENT_SYNONYMS if word in words for name in names if name in words
    ]
    if matches := synonyms or (
        [] if word in ARGUMENT_REMEDIES else get_close_matches(word, names, 1)
    ):
        return f"did you mean {matches[0]}=?"
    return ARGUMENT_REMEDIES.get(
        word, f"its arguments are {join_first(name for name in names if name != 'self')}"
    )
