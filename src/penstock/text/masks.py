"""Attention masks from `segment_ids`, in the forms that attention kernels take.

A token sees tokens of its own document only, and padding sees padding. So no row of a mask is
empty, and no softmax gives NaN.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ..errors import ConfigError, DataError, make_missing_extra_error


def document_mask(segment_ids: Any, causal: bool = True) -> Any:
    """Return a dense mask for torch's `scaled_dot_product_attention`.

    Its time and memory grow with the square of `T`; use another form for long rows.

    Args:
        segment_ids: `[..., T]`, of NumPy, torch or JAX.
        causal: hide later tokens.

    Raises:
        ConfigError: if the ids are no array.

    Returns:
        `[..., 1, T, T]`, True where a token may look; of the same library, on the same device.

    >>> document_mask(np.array([[1, 1, 2]])).astype(int).tolist()
    [[[[1, 0, 0], [1, 1, 0], [0, 0, 1]]]]
    """
    _require_ids(segment_ids, "document_mask")
    ids: Any = segment_ids if hasattr(segment_ids, "ndim") else np.asarray(segment_ids)
    mask = ids[..., None, :, None] == ids[..., None, None, :]
    if not causal:
        return mask
    return mask.tril() if hasattr(mask, "tril") else mask & np.tri(mask.shape[-1], dtype=np.bool_)


def flex_mask(segment_ids: Any, causal: bool = True) -> Callable[[Any, Any, Any, Any], Any]:
    """Return a `mask_mod` for FlexAttention.

    Use it as `create_block_mask(flex_mask(ids), B, None, T, T, device=ids.device)`.

    Args:
        segment_ids: `[B, T]`, a tensor on the device of the attention, or a NumPy array.
        causal: hide later tokens.

    Raises:
        ConfigError: if the ids are no array.
        ImportError: if torch is not installed.

    >>> import torch
    >>> mask = flex_mask(torch.tensor([[1, 1, 2]]))
    >>> bool(mask(0, 0, 1, 0)), bool(mask(0, 0, 2, 1)), bool(mask(0, 0, 0, 1))
    (True, False, False)
    """
    _require_ids(segment_ids, "flex_mask")
    try:
        ids: Any = importlib.import_module("torch").as_tensor(segment_ids)
    except ModuleNotFoundError as error:
        raise make_missing_extra_error("torch", "torch", "flex_mask") from error

    def same_document(b: Any, h: Any, q: Any, kv: Any) -> Any:
        return ids[b, q] == ids[b, kv]

    def causal_mask(b: Any, h: Any, q: Any, kv: Any) -> Any:
        return (ids[b, q] == ids[b, kv]) & (q >= kv)

    return causal_mask if causal else same_document


def flash_varlen(batch: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of `flash_attn_varlen_func` that mark the documents.

    Queries, keys and values are those of the batch laid end to end, `[B * T, heads, size]`:
    `flash_attn_varlen_func(q, k, v, causal=True, **flash_varlen(batch))`.

    Args:
        batch: a batch of `CausalLM` with `cu_seqlens` and `max_seqlen`.

    Raises:
        ConfigError: if it is no batch.
        DataError: if the batch lacks these fields.

    >>> flash_varlen({"cu_seqlens": np.array([0, 3, 5], np.int32), "max_seqlen": 3})["max_seqlen_k"]
    3
    """
    if not isinstance(batch, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigError(
            f"flash_varlen: {type(batch).__name__} is no batch; give the mapping with 'cu_seqlens' "
            "and 'max_seqlen'"
        )
    if missing := {"cu_seqlens", "max_seqlen"} - set(batch):
        raise DataError(
            f"flash_varlen: the batch has no {' and '.join(sorted(missing))}; name it in "
            "CausalLM(fields=)"
        )
    borders, longest = batch["cu_seqlens"], batch["max_seqlen"]
    return {
        "cu_seqlens_q": borders,
        "cu_seqlens_k": borders,
        "max_seqlen_q": longest,
        "max_seqlen_k": longest,
    }


def splash_segment_ids(segment_ids: Any) -> Any:
    """Return the `SegmentIds` of Splash attention (JAX on TPUs), int32.

    Map the kernel over the batch with `jax.vmap`.

    Args:
        segment_ids: `[B, T]` of NumPy or JAX, or `[T]`.

    Raises:
        ConfigError: if the ids are no array.
        ImportError: if jax is not installed.

    >>> ids = splash_segment_ids(np.array([[1, 1, 2]]))
    >>> ids.q.shape, ids.kv.dtype
    ((1, 3), dtype('int32'))
    """
    _require_ids(segment_ids, "splash_segment_ids")
    try:
        splash: Any = importlib.import_module("jax.experimental.pallas.ops.tpu.splash_attention")
        ids = importlib.import_module("jax.numpy").asarray(segment_ids, np.int32)
    except ModuleNotFoundError as error:
        raise make_missing_extra_error("jax", "jax", "splash_segment_ids") from error
    return splash.SegmentIds(q=ids, kv=ids)


def _require_ids(segment_ids: Any, function: str) -> None:
    """Raise for a batch, or anything else without axes, in place of its segment ids."""
    if isinstance(segment_ids, Mapping):
        problem = "a batch is no array: give its ids, batch['segment_ids']"
    elif not (isinstance(segment_ids, list | tuple) or getattr(segment_ids, "ndim", 0)):
        kind = type(segment_ids).__name__
        problem = f"{kind} is no array with the ids of documents: give one of NumPy, torch or JAX"
    else:
        return
    raise ConfigError(f"{function}: {problem}")
