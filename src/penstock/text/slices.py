"""Slices of packed rows for the ranks of a context-parallel group."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias, cast, get_args

import numpy as np
import numpy.typing as npt

from ..arguments import check_choice, check_int
from ..errors import ConfigError, DataError

Ints: TypeAlias = npt.NDArray[np.int64]
SliceLayout: TypeAlias = Literal["zigzag", "contiguous"]


def slice_rows(
    batch: Mapping[str, Any], rank: int, ranks: int, *, layout: SliceLayout = "zigzag"
) -> dict[str, Any]:
    """Return the part of packed rows for one rank of a context-parallel group.

    Every feature with the shape of `segment_ids` in its first axes is sliced: `[B, T]` becomes
    `[B, T / ranks]`. Other values stay as they are. All ranks slice the same batch; together their
    slices hold every token once. Positions stay those of the batch, and labels must be the next
    tokens already (`CausalLM(shift=True)`), as the next token may be in another slice.

    With `"zigzag"`, each document with the padding after it is cut into `2 * ranks` equal chunks,
    and rank `i` takes chunks `i` and `2 * ranks - 1 - i`. Causal attention then costs each rank the
    same. Transformer Engine and Megatron use this layout. With `"contiguous"`, rank `i` takes the
    `i`-th part of each row.

    Args:
        batch: packed or `Padded` rows with `segment_ids`, in host memory: NumPy arrays or tensors.
        rank: the rank in the group.
        ranks: number of ranks in the group.
        layout: the order of tokens.

    Returns:
        The slice, with two fields more, int32, both with an entry for each document of the batch,
        also for documents without tokens in this slice. `slice_cu_seqlens` sums up their tokens.
        `slice_cu_seqlens_padded` sums up tokens and padding: the starts in the slice laid end to
        end. Over all ranks, they add up to the boundaries of the batch. Fields such as `cu_seqlens`
        still describe the whole batch, as Transformer Engine takes them.

    Raises:
        ConfigError: if the group has no such rank.
        DataError: if the batch has no `segment_ids`, or does not divide into equal parts.

    >>> import penstock as ps
    >>> rows = ps.from_sequence([[1, 2, 3, 4, 5, 6, 7], [11, 12]]).pack(12, pad_to_multiple=4)
    >>> batch = next(iter(rows.batch(1)))
    >>> parts = [slice_rows(batch, rank, 2) for rank in range(2)]
    >>> [part["tokens"].tolist() for part in parts]
    [[[1, 2, 7, 0, 11, 0]], [[3, 4, 5, 6, 12, 0]]]
    >>> [part["slice_cu_seqlens"].tolist() for part in parts]
    [[0, 3, 4], [0, 4, 5]]
    """
    check_choice(layout, get_args(SliceLayout), "slice_rows(layout={})")
    ranks = check_int(ranks, "slice_rows(ranks={})", 1)
    rank = check_int(rank, "slice_rows(rank={})", 0)
    if rank >= ranks:
        raise ConfigError(
            f"slice_rows: rank {rank} of {ranks}; give a rank from 0 to {ranks - 1}, such as "
            "mesh['cp'].get_local_rank()"
        )
    segments: Any = batch.get("segment_ids")
    shape: tuple[int, ...] = tuple(getattr(segments, "shape", ()))
    if not shape:
        raise DataError(
            f"slice_rows takes rows with segment_ids, not {', '.join(batch) or 'an empty batch'}; "
            "name segment_ids in CausalLM(fields=), or slice rows of .pack(length)"
        )
    ids = np.asarray(segments)
    if shape[-1] % ranks:
        raise DataError(
            f"slice_rows: rows of {shape[-1]} tokens do not divide into {ranks} slices; "
            f"pack rows whose length is a multiple of {2 * ranks}"
        )
    starts, documents = _number_documents(ids)
    if layout == "contiguous":
        taken = np.arange(ids.size) % shape[-1] // (shape[-1] // ranks) == rank
    else:
        taken = _take_zigzag(starts, documents, rank, ranks)
    index = np.flatnonzero(taken)
    sliced = (*shape[:-1], shape[-1] // ranks)
    out = {
        name: _take(value, index, shape, sliced)
        if tuple(getattr(value, "shape", ()))[: len(shape)] == shape
        else value
        for name, value in batch.items()
    }
    owners, real = documents[index], ids.reshape(-1)[index] > 0
    for name, members in (
        ("slice_cu_seqlens", owners[real]),
        ("slice_cu_seqlens_padded", owners),
    ):
        bounds = np.zeros(len(starts) + 1, np.int32)
        np.cumsum(np.bincount(members, minlength=len(starts)), out=bounds[1:])
        out[name] = bounds if isinstance(segments, np.ndarray) else segments.new_tensor(bounds)
    return out


def _number_documents(ids: npt.NDArray[Any]) -> tuple[Ints, Ints]:
    """Return the starts of documents in rows laid end to end, and the document of each token.

    A document includes the padding after it. Padding at the start of a row is a document.
    """
    begins = np.ones(ids.shape, np.bool_)
    begins[..., 1:] = (ids[..., 1:] != ids[..., :-1]) & (ids[..., 1:] != 0)
    flat = begins.reshape(-1)
    return np.flatnonzero(flat), cast("Ints", np.cumsum(flat) - 1)


def _take_zigzag(starts: Ints, documents: Ints, rank: int, ranks: int) -> npt.NDArray[np.bool_]:
    """Return a mask of the tokens in the two chunks of a rank."""
    sizes = np.diff(starts, append=len(documents))
    uneven = np.flatnonzero(sizes % (2 * ranks))
    if len(uneven):
        raise DataError(
            f"slice_rows: document {uneven[0]} of the batch has {sizes[uneven[0]]} tokens with its "
            f"padding, which do not divide into 2 * {ranks} chunks; use .pack(length, "
            f"pad_to_multiple={2 * ranks}) with a length that is a multiple of it, or "
            "layout='contiguous'"
        )
    chunks = (np.arange(len(documents)) - starts[documents]) // (sizes // (2 * ranks))[documents]
    return (chunks == rank) | (chunks == 2 * ranks - 1 - rank)


def _take(value: Any, index: Ints, shape: tuple[int, ...], sliced: tuple[int, ...]) -> Any:
    """Return the tokens at `index` of a feature of rows laid end to end, as rows again."""
    rest = tuple(value.shape[len(shape) :])
    return value.reshape(-1, *rest)[index].reshape(*sliced, *rest)
