"""Marin's experiments: `lm_mixture_data_config` and what goes with it, found in a Python file that
is not run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from ...errors import ConfigError
from ...mixture_files import MixtureFile, Scheduling, Shuffling, SourceEntry
from ...mixture_files.reading import Node
from .account import Account, Section, nothing
from .arithmetic import Call, Unknown, size
from .places import Names
from .trainers import shared

_TRAININGS = ("default_train", "default_sft")
_CHANGED = ("output_path", ".with_output_path", "override_output_path")
_HARMLESS = frozenset(
    "tags wandb_name wandb_group wandb_project cache_dir override_output_path "
    "use_default_validation eval_harness_tasks eval_harness_max_packed_segments profiler "
    "profiler_start_step profiler_num_steps include_raw_paths tokenizer".split()
)
_CONFIG_HARMLESS = frozenset(
    "resources tpu_type node_count learning_rate weight_decay beta1 beta2 epsilon "
    "max_grad_norm warmup decay rewarmup min_lr_ratio lr_schedule z_loss_weight "
    "cycle_length cycles ema_beta optimizer_config steps_per_eval steps_per_export "
    "steps_per_hf_export steps_per_task_eval per_device_eval_parallelism max_eval_batches "
    "per_device_parallelism watch profiler allow_partial_checkpoint stable_lr_schedule".split()
)
_WHERE = "its tokens lie where Marin's executor puts them: say where with files ({}=PATH, or marin://=FOLDER)"
_MISSING = Unknown("there is no component of this name")
_WEIGHTS = "what the weights are cannot be known: {}"


def convert(call: Call, account: Account, calls: list[Call]) -> MixtureFile:
    """The mixture of a call; weights are shares of rows of equal length there, of tokens here."""
    account.open_call(call, _HARMLESS)
    components = call.of("components", 0, call.of("configs"))
    weights = call.of("weights_list", 1, call.of("weights", 1, call.of("train_weights")))
    if isinstance(weights, Unknown) or weights is None:
        why = weights.why if isinstance(weights, Unknown) else "none are given"
        raise ConfigError(
            f"{call.file}, line {call.line}: what its weights are cannot be known: {why}"
        )
    points = _points(call, weights)
    wanted = dict.fromkeys(name for _, row in points for name, weight in row.items() if weight)
    names, sources = Names(), dict[str, SourceEntry]()
    for name in wanted:  # components without a weight are there for validation
        component: Any = (
            components if isinstance(components, Unknown) else components.get(name, _MISSING)
        )
        if (source := _source(names.of(name), name, component, call, account)) is not None:
            sources[name] = source
    if not sources:
        raise nothing(Path(call.file), "Marin")
    for option in ("max_train_batches", "num_validation_sequences"):
        if call.of(option) is not None:
            account.report(
                _at(call),
                option,
                "rows of a source that are counted in batches: say max_epochs, or split",
            )
    rows = [
        (at, {source.name: float(row.get(name, 0)) for name, source in sources.items()})
        for at, row in points
    ]
    run = _run(call, account, calls)
    entries = list(sources.values())
    schedule = None
    if len(rows) > 1:
        schedule = Scheduling("steps", "step", tuple(rows))
        if run.get("batch") is None:
            why = "its points are training steps: say the size of a step as batch, and of a row as pack"
            account.report(_at(call), "weights_list", why)
    else:
        entries = [replace(source, weight=rows[0][1][source.name]) for source in entries]
    block = call.of("mixture_block_size")
    return MixtureFile(
        tuple(entries),
        unit="tokens",
        block_size=block if isinstance(block, int) else 2048,
        shuffle=Shuffling("none") if call.of("shuffle", default=True) is False else None,
        schedule=schedule,
        **run,
    )


def _at(call: Call) -> Node:
    return Node(None, call.file, call.line)


def _points(call: Call, weights: Any) -> list[tuple[int, Mapping[str, float]]]:
    """Steps and the weights from there on."""
    given = cast("list[Any]", weights if isinstance(weights, list) else [[0, weights]])
    out = list[tuple[int, Mapping[str, float]]]()
    for pair in given:
        both: list[Any] = (
            cast("list[Any]", pair) if isinstance(pair, list) and size(pair) == 2 else [None, pair]
        )
        at, row = both
        unknown = next((one for one in both if isinstance(one, Unknown)), None)
        if isinstance(row, dict):
            unknown = unknown or next(
                (one for one in cast("Any", row).values() if isinstance(one, Unknown)), None
            )
        if unknown is not None:
            raise ConfigError(f"{call.file}, line {call.line}: {_WEIGHTS.format(unknown.why)}")
        if not isinstance(at, int) or not isinstance(row, dict):
            raise ConfigError(
                f"{call.file}, line {call.line}: a step and its weights were expected here"
            )
        out.append((at, cast("Mapping[str, float]", row)))
    return out


def _source(
    name: str, key: str, component: Any, call: Call, account: Account
) -> SourceEntry | None:
    at = _at(component if isinstance(component, Call) else call)
    if (own := account.files.of(name)) is not None:
        return SourceEntry(name, (own,))
    if not isinstance(component, Call):
        why = component.why if isinstance(component, Unknown) else "this is no component"
        account.report(
            at, f"components.{key}", f"{why}: say where its tokens lie with files ({name}=PATH)"
        )
        return None
    path = _output(component)
    if path is None:
        account.report(at, f"components.{key}", _WHERE.format(name))
        return None
    whole = path if "://" in path or path.startswith("/") else f"marin://{path}"
    moved = account.files.moved(whole)
    if moved is None:
        account.note(at, f"components.{key}", _WHERE.format(name))
    return SourceEntry(name, (f"{(moved or whole).rstrip('/')}/train",))


def _output(component: Call) -> str | None:
    """Where a step puts what it makes; the executor adds a digest to the name where the file does
    not say it whole."""
    for option in _CHANGED:
        if isinstance(given := component.of(option), str):
            return given
    name = component.of("name")
    return f"tokenized/{name}-*" if isinstance(name, str) else None


def _run(call: Call, account: Account, calls: list[Call]) -> dict[str, Any]:
    """Length of rows, batch and horizon, where one training of the file uses the mixture."""
    runs = [
        one
        for one in calls
        if one.name.rsplit(".", 1)[-1] in _TRAININGS and one.of("tokenized", 1) is call
    ]
    if len(runs) != 1:
        said = (
            "no training of this file uses it"
            if not runs
            else f"{len(runs)} trainings of this file use it"
        )
        account.note(_at(call), "", f"{said}: say pack, batch and horizon")
        return {}
    config, model = (
        runs[0].of("train_config", 3, runs[0].of("sft_config")),
        runs[0].of("model_config", 2),
    )
    if isinstance(config, Call):
        account.open_call(config, _CONFIG_HARMLESS)
    out: dict[str, Any] = {}
    part = Section(Node({}, runs[0].file, runs[0].line), "train_config", account)
    account.open_call(runs[0], (*_HARMLESS, "name", "0"))
    length = _number(config, "train_seq_len") or _number(config, "max_seq_len")
    if length := length or _number(model, "max_seq_len") or _number(model, "seq_len"):
        out["pack"] = {"length": length}
    if size := _number(config, "train_batch_size"):
        out["batch"] = shared(size, part, "train_batch_size", drop_remainder=True)
    if steps := _number(config, "num_train_steps"):
        out["horizon"] = ("steps", steps)
    if isinstance(config, Call) and isinstance(
        seed := config.of("data_seed", default=config.of("seed")), int
    ):
        out["seed"] = seed
    for name, found in (
        ("length of rows", length),
        ("size of a batch", size),
        ("number of steps", steps),
    ):
        if not found:
            account.report(
                _at(runs[0]),
                "train_config",
                f"the {name} cannot be known without running the file, or changes",
            )
    return out


def _number(config: Any, name: str) -> int | None:
    value = config.of(name) if isinstance(config, Call) else None
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


READERS: dict[str, Callable[[Call, Account, list[Call]], MixtureFile]] = dict.fromkeys(
    ("lm_mixture_data_config", "lm_varying_mixture_data_config", "LMMixtureDatasetConfig"), convert
)
