"""Megatron-LM: the arguments of a training command in a shell script."""

from __future__ import annotations

import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from ...errors import ConfigError
from ...mixture_files import MixtureFile
from ...mixture_files.reading import MixtureNode, parse_scalar
from ...stores.limits import MIXTURE_FILE, read_within
from . import megatron
from .account import Account, nothing

_DATA = ("data-path", "train-data-path", "data-args-path", "per-split-data-args-path")
_PROGRAM = "program"
_OF_TEXT = (
    "pretrain_gpt.py",
    "pretrain_mamba.py",
    "pretrain_hybrid.py",
    "train.py",
    "pretrain_retro.py",
)
"""Programs that read rows of joined documents."""
_ASSIGNMENT = re.compile(r"\s*(?:export\s+)?(\w+)=(?!\()(\S.*)?$")
_VARIABLE = re.compile(r"\$\{?(\w+)(?::?-([^}]*))?\}?")
_HARMLESS_PREFIXES = (
    # the model
    "num-layers", "hidden-", "ffn-", "num-attention-heads", "num-query-groups", "group-query-attention",
    "kv-channels", "max-position-embeddings", "position-embedding-type", "rotary-", "use-rotary", "rope-",
    "attention-", "norm", "init-method", "swiglu", "squared-relu", "untie-", "disable-bias-linear",
    "add-qkv-bias", "qk-", "apply-layernorm-1p", "make-vocab-size", "vocab-size", "moe-", "num-experts",
    "expert-", "mtp-", "multi-latent", "q-lora", "kv-lora", "v-head", "mamba-", "hybrid-", "spec", "window-",
    "use-mcore-models", "no-position-embedding", "is-hybrid-model", "glu-", "softmax-", "openai-gelu",
    # loss and optimizer
    "lr", "min-lr", "decoupled-", "weight-decay", "adam-", "clip-grad", "optimizer", "sgd-", "use-distributed-",
    "use-precision", "start-weight-decay", "end-weight-decay", "override-", "loss-scale", "initial-loss-scale",
    "calculate-per-token-loss", "muon-",
    # computation
    "bf16", "fp16", "fp8", "fp4", "grad-reduce", "accumulate-", "recompute-", "overlap-", "no-gradient",
    "gradient-accumulation-fusion", "transformer-impl", "te-", "use-flash", "cuda-graph", "enable-cuda-graph",
    "manual-gc", "empty-unused", "no-masked", "no-bias", "masked-", "bias-", "cross-entropy", "use-megatron-fsdp",
    "data-parallel-sharding", "ckpt-", "dist-", "distributed-", "nccl-", "use-fsdp", "use-torch-fsdp",
    "no-rope-fusion", "apply-rope-fusion", "delay-", "num-layers-per-virtual", "microbatch-group", "high-priority",
    "init-model-with-meta", "use-nccl", "deterministic-mode", "cross-", "align-", "local-rank",
    # logs, checkpoints, evaluation
    "log-", "timing-", "tensorboard-", "wandb-", "save", "no-save", "no-load", "load", "finetune", "eval-",
    "async-save", "use-dist-ckpt", "use-checkpoint-args", "auto-detect-ckpt", "profile", "record-memory",
    "use-pytorch-profiler", "non-persistent", "check-", "rerun-", "exit-signal", "straggler", "disable-straggler",
    "attention-backend", "inference-",
    # the launcher, and access to files
    "nproc", "nnodes", "node_rank", "node-rank", "master", "rdzv", "tee", "redirects", "max_restarts", "start-method",
    "vocab-file", "merge-file", "tokenizer-", "num-workers", "data-cache-path", "no-mmap-bin-files",
    "no-create-attention-mask", "create-attention-mask", "distribute-", "job-name", "container", "nodes", "gres",
    "time", "partition", "account", "ntasks", "exclusive", "output", "error",
)  # fmt: skip
"""Beginnings of arguments that change no samples; longer lists are in Megatron's `arguments.py`."""


def read(path: Path) -> MixtureNode:
    """Return the arguments of the command in a script, with their lines.

    Variables are replaced by their assignments in the script; nothing is run.

    Args:
        path: the script.

    Raises:
        ConfigError: if the script cannot be read.
    """
    file = str(path)
    try:
        text = read_within(file, MIXTURE_FILE).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from error
    variables, last = dict[str, str](), ""
    arguments = dict[str, list[tuple[int, list[str]]]]()
    for number, line in _statements(text):
        if (assignment := _ASSIGNMENT.match(line)) and "--" not in line:
            name, value = assignment[1], (assignment[2] or "").split(" #")[0].strip().strip("\"'")
            value = _expand(value, variables)
            is_first = variables.get(name, value) == value
            variables[name] = value if is_first else f"${{{name}}}"  # two values: of branches
            continue
        for word in _words(line, variables):
            if word.startswith("--"):
                last, _, value = word[2:].partition("=")
                arguments.setdefault(last, []).append((number, [value] if value else []))
            elif word.endswith(".py"):
                arguments[_PROGRAM], last = [(number, [Path(word).name])], ""
            elif last and word not in ("(", ")", "]") and not word.endswith(("=(", "]]")):
                arguments[last][-1][1].append(word.rstrip(")"))
        last = last if last in _DATA and not line.rstrip().endswith(")") else ""
    values = dict[str, MixtureNode]()
    for name, given in arguments.items():
        (first, words), (second, others) = given[0], given[-1]
        if words != others and not name.startswith(_HARMLESS_PREFIXES):
            raise ConfigError(
                f"{path}, line {second}: --{name} has another value on line {first}: leave one of them, "
                "since a branch of the script decides"
            )
        values[name] = _node(words, file, first)
    return MixtureNode(values, file, 1)


def _statements(text: str) -> list[tuple[int, str]]:
    """Return lines with their numbers; a line that ends with a backslash goes with the next one."""
    statements, joined, start = list[tuple[int, str]](), "", 0
    for number, line in enumerate(text.splitlines(), start=1):
        start = start if joined else number
        if line.lstrip().startswith("#"):
            continue
        if line.rstrip().endswith("\\"):
            joined += line.rstrip()[:-1] + " "
            continue
        statements.append((start, joined + line))
        joined = ""
    return [*statements, (start, joined)] if joined else statements


def _words(line: str, variables: dict[str, str]) -> list[str]:
    """Return the words of a line, with variables replaced; quoted arguments are taken apart."""
    try:
        words = shlex.split(_expand(line, variables), comments=True)
    except ValueError:  # a quotation over several lines
        words = _expand(line, variables).split()
    parts = [part for word in words for part in (word.split() if "--" in word else [word])]
    return [stripped for part in parts if (stripped := part.strip("\"'"))]


def _expand(text: str, variables: dict[str, str]) -> str:
    """Replace variables by their values, or by their defaults."""
    return _VARIABLE.sub(
        lambda match: variables.get(match[1], (match[2] or "").strip("\"'") or match[0]), text
    )


def _node(words: list[str], file: str, line: int) -> MixtureNode:
    """Return the value of an argument: a flag, a text or number, or a list."""
    if not words:
        return MixtureNode(True, file, line)
    if len(words) == 1:
        return MixtureNode(parse_scalar(words[0]), file, line)
    return MixtureNode(
        tuple(MixtureNode(parse_scalar(word), file, line) for word in words), file, line
    )


def _show(value: Any) -> str:
    """Return the words of an argument as text."""
    return " ".join(map(str, cast("list[Any]", value) if isinstance(value, list) else [value]))


def is_mine(tree: MixtureNode) -> bool:
    value = tree.value if isinstance(tree.value, dict) else {}
    return tree.file.endswith(".sh") and any(key in value for key in _DATA)


def convert(tree: MixtureNode, account: Account) -> MixtureFile:
    """Convert the blend of `--data-path`, as in a training file of Megatron."""
    top = account.open(tree)
    for key in _DATA:
        if key in top.table and "$" in str(top.peek(key)):
            raise ConfigError(
                f"{tree.file}, line {top.table[key].line}: --{key} comes from an argument or a variable "
                f"that the script does not set, {_show(top.peek(key))}: write the paths there"
            )
    if not megatron.is_mine(tree):
        raise nothing(Path(tree.file), "Megatron")
    if "$" in str(top.peek("split")):
        top.report("split", "it comes from an argument of the script")
    if top.peek(_PROGRAM) in _OF_TEXT:
        top.get(_PROGRAM)
    else:
        top.report(_PROGRAM, "this program makes other samples than rows of joined documents")
    top.report("mock-data", "the data is made up: remove it")
    for key in ("data-args-path", "per-split-data-args-path"):
        top.report(key, "the list is in another file: write it as --data-path")
    samples = top.count("train-samples")
    top.settle(
        [name for name in top.table if name.startswith(_HARMLESS_PREFIXES)],
        {"the batch grows during the run": ("rampup-batch-size", "step-batch-size-schedule")},
        {"the run may end before its horizon": ("exit-interval", "exit-duration-in-mins")},
    )
    model = megatron.convert(tree, account)
    if samples is None:
        return model
    batch = model.batch
    size = batch.size * batch.ranks if batch is not None and isinstance(batch.size, int) else 0
    if not size:
        top.report("train-samples", "rows are counted, and there is no batch size: set horizon")
        return model
    return replace(model, horizon=("steps", samples // size))
