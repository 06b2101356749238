"""Which token may look at which, from `segment_ids`, in the forms that attention kernels take.

In all of them a token sees the tokens of its own document, and padding sees padding: no row of a
    mask is empty, so no
softmax gives NaN.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ..errors import DataError, missing_extra


def document_mask(segment_ids: Any, causal: bool = True) -> Any:
    """A dense mask, `[..., 1, T, T]`: True where a token may look; for torch's
    `scaled_dot_product_attention`.

    Takes memory and time with the square of `T`; for long rows use one of the others.

    Args:
        segment_ids: `[..., T]`, of NumPy, torch or JAX; the mask is of the same kind, on the same
            device.
        causal: whether a token sees only those before it, and itself.

    >>> document_mask(np.array([[1, 1, 2]])).astype(int).tolist()
    [[[[1, 0, 0], [1, 1, 0], [0, 0, 1]]]]
    """
    same = segment_ids[..., None, :, None] == segment_ids[..., None, None, :]
    if not causal:
        return same
    return same.tril() if hasattr(same, "tril") else same & np.tri(same.shape[-1], dtype=np.bool_)


def flex_mask(segment_ids: Any, causal: bool = True) -> Callable[[Any, Any, Any, Any], Any]:
    """A `mask_mod` for FlexAttention: `create_block_mask(flex_mask(ids), B, None, T, T,
    device=ids.device)`.

    Args:
        segment_ids: `[B, T]`, a tensor on the device of the attention, or a NumPy array.
        causal: whether a token sees only those before it, and itself.

    Raises:
        ImportError: where torch is not installed.

    >>> import torch
    >>> mask = flex_mask(torch.tensor([[1, 1, 2]]))
    >>> bool(mask(0, 0, 1, 0)), bool(mask(0, 0, 2, 1)), bool(mask(0, 0, 0, 1))
    (True, False, False)
    """
    try:
        ids: Any = importlib.import_module("torch").as_tensor(segment_ids)
    except ModuleNotFoundError as error:
        raise missing_extra("torch", "torch", "flex_mask") from error

    def documents(b: Any, h: Any, q: Any, kv: Any) -> Any:
        return ids[b, q] == ids[b, kv]

    def before(b: Any, h: Any, q: Any, kv: Any) -> Any:
        return (ids[b, q] == ids[b, kv]) & (q >= kv)

    return before if causal else documents


def flash_varlen(batch: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of `flash_attn_varlen_func` that say where documents begin, for queries and
    keys alike.

    Queries, keys and values are those of the batch laid end to end, `[B * T, heads, size]`:
    `flash_attn_varlen_func(q, k, v, causal=True, **flash_varlen(batch))`.

    Args:
        batch: what `CausalLM` made, with `cu_seqlens` and `max_seqlen`.

    Raises:
        DataError: where these are not among its fields.

    >>> flash_varlen({"cu_seqlens": np.array([0, 3, 5], np.int32), "max_seqlen": 3})["max_seqlen_k"]
    3
    """
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
    """The `SegmentIds` of Splash attention (JAX on TPUs), int32; map the kernel over the batch by
    `jax.vmap`.

    Args:
        segment_ids: `[B, T]` of NumPy or JAX, or `[T]`.

    Raises:
        ImportError: where jax is not installed.

    >>> ids = splash_segment_ids(np.array([[1, 1, 2]]))
    >>> ids.q.shape, ids.kv.dtype
    ((1, 3), dtype('int32'))
    """
    try:
        splash: Any = importlib.import_module("jax.experimental.pallas.ops.tpu.splash_attention")
        ids = importlib.import_module("jax.numpy").asarray(segment_ids, np.int32)
    except ModuleNotFoundError as error:
        raise missing_extra("jax", "jax", "splash_segment_ids") from error
    return splash.SegmentIds(q=ids, kv=ids)
