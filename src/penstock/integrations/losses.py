"""Losses by source and tokens that carry loss: sums on the device, and one reduction over ranks.

A training loop adds up the sums of its micro-batches, which starts no transfer from the device, and
reduces them when it needs numbers.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from functools import cache, partial
from importlib import import_module
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from ..arguments import check_int, join_first
from ..errors import ConfigError
from .trainers import gather_objects

_BLOCK = 1 << 10
"""Tokens added up before blocks are: sums of millions in float32 would lose the small addends."""


def sum_by_source(
    losses: Any,
    source_ids: Any,
    sources: int,
    *,
    labels: Any = None,
    mask: Any = None,
    ignore: int = -100,
) -> Any:
    """Return the sum of losses and the number of tokens for each source.

    Sums of several micro-batches may be added: `sums = sums + sum_by_source(...)`. Tensors stay on
    their device, and no gradient flows. In JAX it runs in `jit`, with global arrays too; inside
    `shard_map`, `psum` the result over the axes of the data.

    Args:
        losses: loss of each token, `[B, T]` or laid end to end, of torch, JAX or NumPy. Or loss of
            each document, with its source.
        source_ids: the source of each token, as many as losses; -1 for padding. If losses begin at
            the second token, `batch["source_ids"][:, 1:]`.
        sources: number of sources, `len(ds.sources)`.
        labels: labels of the losses; tokens whose label is `ignore` are left out.
        mask: true, or not 0, for tokens that count; of the shape of `source_ids`, or of its first
            axes, such as `batch["valid"]`.
        ignore: the label of tokens that carry no loss.

    Returns:
        An array `[2, sources]`: sums of losses, numbers of tokens. It is all NaN if `source_ids`
        has a number of `sources` or more.

    Raises:
        ConfigError: if the shapes differ.

    >>> ids = np.array([[0, 0, 1, -1]])
    >>> sum_by_source(np.array([[1.0, 3.0, 5.0, 9.0]]), ids, 2).tolist()
    [[4.0, 5.0], [2.0, 1.0]]
    >>> sum_by_source(np.array([[1.0, 3.0, 5.0, 9.0]]), ids, 2, labels=np.array([[-100, 4, 4, 4]])).tolist()
    [[3.0, 5.0], [1.0, 1.0]]
    """
    sources = check_int(sources, "sum_by_source(sources={})", 1)
    losses, ids, counted = _select(
        losses, source_ids, labels, mask, ignore=ignore, function="sum_by_source"
    )
    total = {"torch": _sum_torch, "jax": _sum_jax}.get(_library_of(losses), _sum_numpy)
    return total(losses, ids, counted, sources)


def _select(
    losses: Any, source_ids: Any, labels: Any, mask: Any, *, ignore: int, function: str
) -> tuple[Any, Any, Any]:
    """Return losses, the source of each, and whether it counts, as arrays of one shape."""
    as_array: Any = np.asarray
    library = _library_of(losses)
    if library == "torch":
        as_array = partial(import_module("torch").as_tensor, device=losses.device)
    elif library == "jax":
        as_array = import_module("jax.numpy").asarray
    losses, ids = as_array(losses), as_array(source_ids)
    counted = ids >= 0
    if labels is not None:
        counted = counted & (_shaped(as_array(labels), ids, "labels", function) != ignore)
    if mask is not None:
        counted = counted & (_shaped(as_array(mask), ids, "mask", function) != 0)
    return _shaped(losses, ids, "losses", function), ids, counted


def _library_of(array: Any) -> str:
    """Return the library of an array: "torch", "jax" (tracers too), or any other."""
    library = type(array).__module__.partition(".")[0]
    return "jax" if library == "jaxlib" else library


def _shaped(value: Any, ids: Any, name: str, function: str) -> Any:
    """Return an array in the shape of the source ids."""
    shape, wanted = tuple(value.shape), tuple(ids.shape)
    if name == "mask" and shape == wanted[: len(shape)]:
        return value.reshape(shape + (1,) * (len(wanted) - len(shape)))
    if shape != wanted and math.prod(shape) != math.prod(wanted):
        remedy = f"give {name} and the source of the same tokens"
        if shape[:-1] == wanted[:-1] and shape[-1:] == (wanted[-1] - 1,):
            remedy = "give source_ids[:, 1:] (and labels[:, 1:]) for losses of the next tokens"
        raise ConfigError(
            f"{function}: {name} of shape {list(shape)}, and source_ids of shape "
            f"{list(wanted)}: {remedy}"
        )
    return value.reshape(wanted)


def _sum_numpy(losses: Any, ids: Any, counted: Any, sources: int) -> npt.NDArray[np.float64]:
    ids, losses = ids[counted], losses[counted].astype(np.float64)
    if (ids >= sources).any():
        return np.full((2, sources), np.nan)
    sums = np.bincount(ids, losses, sources), np.bincount(ids, minlength=sources)
    return np.stack(sums).astype(np.float64)


def _sum_torch(losses: Any, ids: Any, counted: Any, sources: int) -> Any:
    import torch

    # Many rows have their own sums, with one more for tokens left out: few additions meet at one
    # sum. No shape depends on the data, which would wait for the device.
    rows = math.gcd(ids.numel(), _BLOCK)
    dtype = torch.float32 if losses.device.type == "mps" else torch.float64
    known = ids < sources
    place = torch.where(counted & known, ids, sources).long().reshape(rows, ids.numel() // rows)
    place = place + torch.arange(rows, device=ids.device)[:, None] * (sources + 1)
    sums = torch.zeros(2, rows * (sources + 1), dtype=dtype, device=losses.device)
    counted_losses = torch.where(counted, losses.detach().to(dtype), 0)
    sums[0].index_add_(0, place.reshape(-1), counted_losses.reshape(-1))
    sums[1].index_add_(0, place.reshape(-1), counted.to(dtype).reshape(-1))
    total = sums.reshape(2, rows, sources + 1).sum(1)[:, :sources]
    return torch.where((known | ~counted).all(), total, math.nan)


def _sum_jax(losses: Any, ids: Any, counted: Any, sources: int) -> Any:
    return _jax_sums()(losses, ids, counted, sources)


@cache
def _jax_sums() -> Any:
    jax: Any = import_module("jax")
    jnp = jax.numpy

    def total(losses: Any, ids: Any, counted: Any, sources: int) -> Any:
        # A comparison with every source, which XLA fuses into the sum: no scatter, and no axis
        # moves between devices.
        losses = jax.lax.stop_gradient(losses).astype(jnp.result_type(float))
        length = ids.shape[-1] if ids.ndim else 1
        block = math.gcd(length, _BLOCK)
        shape = (*ids.shape[:-1], length // block, block)
        losses, ids, counted = (array.reshape(shape) for array in (losses, ids, counted))
        hit = counted[..., None] & (ids[..., None] == jnp.arange(sources))
        over = tuple(range(len(shape) - 1))
        sums = jnp.where(hit, losses[..., None], 0).sum(-2).sum(over)
        counts = hit.sum(-2, dtype=jnp.int32).sum(over).astype(losses.dtype)
        known = ((ids < sources) | ~counted).all()
        return jnp.where(known, jnp.stack([sums, counts]), jnp.nan)

    return jax.jit(total, static_argnums=3)


def mean_by_source(sums: Any, sources: Sequence[str], group: Any = None) -> dict[str, float]:
    """Return the mean loss of each source that had tokens, over all ranks.

    This call communicates and waits for the device, so call it on every rank, once every few steps.
    Sums of torch are all-reduced if torch.distributed is initialised, sums of NumPy are gathered.
    In JAX global arrays have the tokens of all processes already; arrays of one process are
    gathered. The result is equal on all ranks, as `Steering` needs it.

    Args:
        sums: the result of `sum_by_source`, or a sum of several.
        sources: name of each source, `ds.sources`. Sources of equal names are added up: the first
            parts of names, `[name.split("/")[0] for name in ds.sources]`, give the means of the
            inputs of a mixture.
        group: for torch and NumPy: the `ProcessGroup` of the ranks; all processes by default.

    Raises:
        ConfigError: if there are not as many sums as sources, or if `source_ids` had other numbers.

    >>> mean_by_source(np.array([[4.0, 5.0, 0.0], [2.0, 1.0, 0.0]]), ("code", "text", "web"))
    {'code': 2.0, 'text': 5.0}
    """
    shape = tuple(getattr(sums, "shape", ()))
    if shape != (2, len(sources)):
        raise ConfigError(
            f"mean_by_source: sums of shape {list(shape)} for the {len(sources)} sources "
            f"{join_first(list(sources))}; give the result of sum_by_source(..., {len(sources)})"
        )
    losses, tokens = _reduce(sums, group).tolist()
    added = dict[str, tuple[float, float]]()
    for name, loss, count in zip(sources, losses, tokens, strict=True):
        if math.isnan(count):
            raise ConfigError(
                f"mean_by_source: source_ids had numbers that are none of the {len(sources)} "
                "sources; give the sources of the dataset that made the batch, ds.sources"
            )
        before = added.get(name, (0.0, 0.0))
        added[name] = (before[0] + loss, before[1] + count)
    return {name: loss / count for name, (loss, count) in added.items() if count}


def count_loss_tokens(batch: Any, *, ignore: int = -100) -> Any:
    """Return the number of tokens of a batch that carry loss, as `loader.loss_tokens` counts them.

    Counts of several micro-batches may be added; tensors stay on their device. In JAX it runs in
    `jit`, with global arrays too.

    Args:
        batch: a batch of `CausalLM`, whose `labels` of first tokens are ignored. Or one of packed
            or `Padded` rows with `segment_ids` and `positions`, or of `ps.windows`. Rows in which
            `valid` is False do not count. If labels of first tokens are not ignored, and the model
            shifts them, give `{"labels": labels[:, 1:]}`.
        ignore: the label of tokens that carry no loss.

    Returns:
        A scalar of the library of the batch.

    Raises:
        ConfigError: if the batch has neither labels nor segments, or if `valid` marks several rows
            that were flattened to one.

    >>> int(count_loss_tokens({"labels": np.array([[-100, 5, 6, -100]])}))
    2
    >>> rows = {"segment_ids": np.array([[1, 1, 1, 2, 2, 0]]), "positions": np.array([[0, 1, 2, 0, 1, 0]])}
    >>> int(count_loss_tokens(rows))
    3
    """
    if not isinstance(batch, Mapping):
        if getattr(batch, "ndim", 0) > 1 and batch.shape[-1]:
            return _add_up(batch[..., 1:] == batch[..., 1:])
        raise _make_batch_error(batch)
    fields = cast("Mapping[str, Any]", batch)
    labels = fields.get("labels")
    if "segment_ids" in fields and "positions" in fields:
        ids = fields["segment_ids"]
        counted: Any = (ids[..., 1:] == ids[..., :-1]) & (ids[..., 1:] > 0)
        if "loss_mask" in fields:
            counted = counted & (fields["loss_mask"][..., 1:] != 0)
        if labels is not None:
            counted = counted & (labels[..., 1:] != ignore)
    elif getattr(labels, "ndim", 0) > 1:
        counted = cast("Any", labels) != ignore
    else:
        raise _make_batch_error(fields)
    if (valid := fields.get("valid")) is not None:
        if math.prod(valid.shape) != 1 and valid.shape != counted.shape[: valid.ndim]:
            raise make_flattened_error("count_loss_tokens", valid, counted)
        counted = counted & valid.reshape(valid.shape + (1,) * (counted.ndim - valid.ndim))
    return _add_up(counted)


def _add_up(counted: Any) -> Any:
    return counted.sum() if _library_of(counted) == "torch" else counted.sum(dtype=np.int32)


def _make_batch_error(batch: Any) -> ConfigError:
    is_mapping = isinstance(batch, Mapping)
    held = f"one with {', '.join(cast('Any', batch))}" if is_mapping else type(batch).__name__
    return ConfigError(
        "count_loss_tokens takes batches with labels of [B, T], or rows with segment_ids and "
        f"positions, not {held}; map CausalLM over the rows, or count in the training loop"
    )


def make_flattened_error(owner: str, valid: Any, values: Any) -> ConfigError:
    """Return the error for a batch whose `valid` marks rows that it does not have.

    Args:
        owner: the function that takes the batch.
        valid: the marks of the rows.
        values: the labels or tokens of the batch.
    """
    return ConfigError(
        f"{owner}: 'valid' marks rows of shape {[*valid.shape]}, and the batch is "
        f"{[*values.shape]}, so the tokens of padding rows are unknown; with remainder='pad' leave "
        "out CausalLM(flatten=True), or give the loader remainder='drop' or 'keep'"
    )


def reduce_loss_tokens(count: Any, group: Any = None) -> int:
    """Return a number of tokens, or of anything else, summed over all ranks.

    For runs whose plan does not know `loader.loss_tokens`, such as streams. This call communicates
    and waits for the device: call it on every rank, once for all accumulated batches of an
    optimizer step. The result is equal on all ranks. In JAX, counts of global arrays have the
    tokens of all processes already.

    Args:
        count: the result of `count_loss_tokens`, or a sum of several.
        group: for torch and NumPy: the `ProcessGroup` of the ranks; all processes by default.

    >>> reduce_loss_tokens(count_loss_tokens({"labels": np.array([[-100, 5, 6, -100]])}))
    2
    """
    return round(float(_reduce(count, group)))


def weigh_losses(
    losses: Any,
    source_ids: Any,
    weights: Mapping[str, float] | Sequence[float],
    sources: Sequence[str] = (),
    *,
    labels: Any = None,
    mask: Any = None,
    ignore: int = -100,
) -> Any:
    """Return losses times the weight of their source, and 0 for tokens that carry no loss.

    The loss of a step is their sum over the number of its tokens (`loader.loss_tokens`). A source of
    weight 0.5 then has half the influence of its tokens, whatever the others draw. Gradients flow.

    Args:
        losses: loss of each token, as in `sum_by_source`.
        source_ids: the source of each token, as many as losses; -1 for padding.
        weights: the weight of each source, `ds.loss_weights`, which `ps.mix(loss_weights=...)` and
            mixture files give. Or name -> weight, with `sources`; 1 for sources that are not named.
        sources: name of each source, `ds.sources`; only for weights by name.
        labels: labels of the losses; tokens whose label is `ignore` get 0.
        mask: true, or not 0, for tokens that count, as in `sum_by_source`.
        ignore: the label of tokens that carry no loss.

    Returns:
        An array of the shape of `source_ids`.

    Raises:
        ConfigError: if a weight names no source, or is no number of at least 0; or if shapes differ.

    >>> ids = np.array([[0, 0, 1, -1]])
    >>> weigh_losses(np.array([[1.0, 3.0, 5.0, 9.0]]), ids, (1, 0.5)).tolist()
    [[1.0, 3.0, 2.5, 0.0]]
    >>> weigh_losses(np.array([[1.0, 3.0, 5.0, 9.0]]), ids, {"web": 0.5}, ("code", "web")).tolist()
    [[1.0, 3.0, 2.5, 0.0]]
    """
    of_source = _list_weights(weights, sources)
    losses, ids, counted = _select(
        losses, source_ids, labels, mask, ignore=ignore, function="weigh_losses"
    )
    # One more weight makes the losses of unknown sources NaN instead of those of another source.
    table = np.asarray([*of_source, math.nan], np.float64)
    known = (ids >= 0) & (ids < len(of_source))
    if _library_of(losses) == "torch":
        torch: Any = import_module("torch")
        dtype = losses.dtype if losses.is_floating_point() else torch.get_default_dtype()
        places = torch.where(known, ids, len(of_source)).long()
        weight = torch.as_tensor(table, dtype=dtype, device=losses.device)[places]
        return torch.where(counted, losses, 0) * torch.where(counted, weight, 0)
    xp: Any = np if _library_of(losses) == "numpy" else import_module("jax.numpy")
    dtype = losses.dtype if losses.dtype.kind == "f" else xp.result_type(float)
    weight = xp.asarray(table, dtype)[xp.where(known, ids, len(of_source))]
    return xp.where(counted, losses, 0) * xp.where(counted, weight, 0)


def _list_weights(
    weights: Mapping[str, float] | Sequence[float], sources: Sequence[str]
) -> list[float]:
    """Return the weight of each source."""
    if isinstance(weights, Mapping):
        for name in weights:
            if name not in sources:
                raise ConfigError(
                    f"weigh_losses: the weights name {name!r}, and the sources are "
                    f"{join_first(list(sources))}; give names of ds.sources"
                )
        listed = [weights.get(name, 1.0) for name in sources]
    else:
        listed = list(weights)
        if sources and len(listed) != len(sources):
            raise ConfigError(
                f"weigh_losses: {len(listed)} weights for the {len(sources)} sources "
                f"{join_first(list(sources))}; give ds.loss_weights of the dataset of the batch"
            )
    for number, weight in enumerate(listed):
        if not weight >= 0 or math.isinf(weight):
            name = repr(sources[number]) if sources else f"source {number}"
            raise ConfigError(
                f"weigh_losses: the weight of {name} is {weight}; give a number of at least 0"
            )
    return listed


def _reduce(sums: Any, group: Any) -> npt.NDArray[np.float64]:
    """Return the sums over all ranks."""
    library = _library_of(sums)
    if library == "torch":
        distributed: Any = import_module("torch.distributed")
        total = sums.detach().clone()
        if distributed.is_available() and distributed.is_initialized():
            distributed.all_reduce(total, group=group)
        return total.cpu().double().numpy()
    if library == "jax":
        return _reduce_jax(sums)
    parts = gather_objects(np.asarray(sums, np.float64).tolist(), group)
    if parts is None and _count_jax_processes() > 1:
        return _reduce_jax(np.asarray(sums))
    return np.sum(parts, axis=0) if parts else np.asarray(sums, np.float64)


def _count_jax_processes() -> int:
    """Return the number of processes of JAX; 1 if it is not in use."""
    jax = cast("Any", sys.modules.get("jax"))
    return jax.process_count() if jax and jax.distributed.is_initialized() else 1


def _reduce_jax(sums: Any) -> npt.NDArray[np.float64]:
    jax, multihost_utils = (
        import_module(name) for name in ("jax", "jax.experimental.multihost_utils")
    )
    if jax.process_count() == 1:
        return np.asarray(sums, np.float64)
    if not getattr(sums, "is_fully_addressable", True):
        return np.asarray(multihost_utils.process_allgather(sums, tiled=True), np.float64)
    parts: Any = multihost_utils.process_allgather(sums)
    return np.asarray(parts, np.float64).sum(0)
