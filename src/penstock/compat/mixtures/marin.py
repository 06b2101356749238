"""Marin's experiments: `lm_mixture_data_config` in a Python file, which is not run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from ...errors import ConfigError
from ...mixture_files import MixtureFile, Scheduling, Shuffling, SourceEntry
from ...mixture_files.reading import MixtureNode
from .account import Account, Section, nothing
from .arithmetic import Call, Unknown, size
from .locations import Names
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
_LOCATION = "its tokens are in the output of Marin's executor: give their location with files ({}=PATH, or marin://=FOLDER)"
_MISSING = Unknown("there is no component with this name")
_WEIGHTS = "the weights cannot be determined: {}"


def convert(call: Call, account: Account, calls: list[Call]) -> MixtureFile:
    """Convert the mixture of a call; weights are shares of rows in Marin, of tokens here.

    Marin's rows all have one length.
    """
    account.open_call(call, _HARMLESS)
    components = call.of("components", 0, call.of("configs"))
    weights = call.of("weights_list", 1, call.of("weights", 1, call.of("train_weights")))
    if isinstance(weights, Unknown) or weights is None:
        reason = weights.reason if isinstance(weights, Unknown) else "none are given"
        raise ConfigError(
            f"{call.file}, line {call.line}: the weights cannot be determined: {reason}"
        )
    points = _points(call, weights)
    weighted_names = dict.fromkeys(
        name for _, row in points for name, weight in row.items() if weight
    )
    names, sources = Names(), dict[str, SourceEntry]()
    for name in weighted_names:  # components without a weight are for validation
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
                "it counts rows of a source in batches: set max_epochs, or split",
            )
    rows = [
        (step, {source.name: float(row.get(name, 0)) for name, source in sources.items()})
        for step, row in points
    ]
    options = _run(call, account, calls)
    entries = list(sources.values())
    schedule = None
    if len(rows) > 1:
        schedule = Scheduling("steps", "step", tuple(rows))
        if options.get("batch") is None:
            reason = "its points are training steps: set batch and pack"
            account.report(_at(call), "weights_list", reason)
    else:
        entries = [replace(source, weight=rows[0][1][source.name]) for source in entries]
    block = call.of("mixture_block_size")
    return MixtureFile(
        tuple(entries),
        unit="tokens",
        block_size=block if isinstance(block, int) else 2048,
        shuffle=Shuffling("none") if call.of("shuffle", default=True) is False else None,
        schedule=schedule,
        **options,
    )


def _at(call: Call) -> MixtureNode:
    return MixtureNode(None, call.file, call.line)


def _points(call: Call, weights: Any) -> list[tuple[int, Mapping[str, float]]]:
    """Return the steps at which weights change, with the new weights."""
    setting = cast("list[Any]", weights if isinstance(weights, list) else [[0, weights]])
    points = list[tuple[int, Mapping[str, float]]]()
    for pair in setting:
        step_and_row: list[Any] = (
            cast("list[Any]", pair) if isinstance(pair, list) and size(pair) == 2 else [None, pair]
        )
        step, row = step_and_row
        unknown = next((value for value in step_and_row if isinstance(value, Unknown)), None)
        if isinstance(row, dict):
            unknown = unknown or next(
                (value for value in cast("Any", row).values() if isinstance(value, Unknown)), None
            )
        if unknown is not None:
            raise ConfigError(f"{call.file}, line {call.line}: {_WEIGHTS.format(unknown.reason)}")
        if not isinstance(step, int) or not isinstance(row, dict):
            raise ConfigError(f"{call.file}, line {call.line}: expected a step and its weights")
        points.append((step, cast("Mapping[str, float]", row)))
    return points


def _source(
    name: str, key: str, component: Any, call: Call, account: Account
) -> SourceEntry | None:
    node = _at(component if isinstance(component, Call) else call)
    if (location := account.files.of(name)) is not None:
        return SourceEntry(name, (location,))
    if not isinstance(component, Call):
        reason = component.reason if isinstance(component, Unknown) else "this is not a component"
        account.report(
            node,
            f"components.{key}",
            f"{reason}: give the location of its tokens with files ({name}=PATH)",
        )
        return None
    path = _output(component)
    if path is None:
        account.report(node, f"components.{key}", _LOCATION.format(name))
        return None
    url = path if "://" in path or path.startswith("/") else f"marin://{path}"
    local_path = account.files.local_path(url)
    if local_path is None:
        account.note(node, f"components.{key}", _LOCATION.format(name))
    return SourceEntry(name, (f"{(local_path or url).rstrip('/')}/train",))


def _output(component: Call) -> str | None:
    """Return the output path of a step.

    The executor adds a digest to the name, unless the file gives the full path.
    """
    for option in _CHANGED:
        if isinstance(setting := component.of(option), str):
            return setting
    name = component.of("name")
    return f"tokenized/{name}-*" if isinstance(name, str) else None


def _run(call: Call, account: Account, calls: list[Call]) -> dict[str, Any]:
    """Return row length, batch and horizon, if one training of the file uses the mixture."""
    runs = [
        run
        for run in calls
        if run.name.rsplit(".", 1)[-1] in _TRAININGS and run.of("tokenized", 1) is call
    ]
    if len(runs) != 1:
        usage = (
            "no training of this file uses it"
            if not runs
            else f"{len(runs)} trainings of this file use it"
        )
        account.note(_at(call), "", f"{usage}: set pack, batch and horizon")
        return {}
    config, model = (
        runs[0].of("train_config", 3, runs[0].of("sft_config")),
        runs[0].of("model_config", 2),
    )
    if isinstance(config, Call):
        account.open_call(config, _CONFIG_HARMLESS)
    options: dict[str, Any] = {}
    part = Section(MixtureNode({}, runs[0].file, runs[0].line), "train_config", account)
    account.open_call(runs[0], (*_HARMLESS, "name", "0"))
    length = _number(config, "train_seq_len") or _number(config, "max_seq_len")
    if length := length or _number(model, "max_seq_len") or _number(model, "seq_len"):
        options["pack"] = {"length": length}
    if size := _number(config, "train_batch_size"):
        options["batch"] = shared(size, part, "train_batch_size", drop_remainder=True)
    if steps := _number(config, "num_train_steps"):
        options["horizon"] = ("steps", steps)
    if isinstance(config, Call) and isinstance(
        seed := config.of("data_seed", default=config.of("seed")), int
    ):
        options["seed"] = seed
    for name, value in (
        ("length of rows", length),
        ("size of a batch", size),
        ("number of steps", steps),
    ):
        if not value:
            account.report(
                _at(runs[0]),
                "train_config",
                f"the {name} changes, or cannot be determined without running the file",
            )
    return options


def _number(config: Any, name: str) -> int | None:
    value = config.of(name) if isinstance(config, Call) else None
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


READERS: dict[str, Callable[[Call, Account, list[Call]], MixtureFile]] = dict.fromkeys(
    ("lm_mixture_data_config", "lm_varying_mixture_data_config", "LMMixtureDatasetConfig"), convert
)
