"""CRC-32C of many records at once, the checksum of TFRecord files, by table look-ups.

The checksum is linear: the contribution of a byte depends on its value and on the number of bytes
after it. Records are cut into blocks from their ends. The bytes of all blocks are looked up at
once. The blocks of a record are combined by shifting each over the bytes after it, a power of two
at a time.
"""

from __future__ import annotations

from functools import cache
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ..types import Ints

Crc32Checksums: TypeAlias = npt.NDArray[np.uint32]

_POLYNOMIAL = np.uint32(0x82F63B78)
_ALL_ONES = np.uint32(0xFFFFFFFF)
_MAX_BLOCK_BYTES = 256  # largest block, in bytes
_MAX_GATHERED_BYTES = 16  # largest size of records that are gathered at once
_MAX_LOOKUP_BLOCKS = 512  # largest number of blocks for which one look-up of all bytes is faster


def compute_crc32c(data: npt.NDArray[np.uint8], starts: Ints, ends: Ints) -> Crc32Checksums:
    """Return the checksums of `data[starts[i]:ends[i]]`.

    >>> text = np.frombuffer(b"123456789", np.uint8)
    >>> [hex(checksum) for checksum in compute_crc32c(text, np.array([0, 0]), np.array([9, 0]))]
    ['0xe3069283', '0x0']
    """
    if not starts.size:
        return np.zeros(0, np.uint32)
    sizes = ends - starts
    largest = int(sizes.max())
    typical = largest if largest <= _MAX_GATHERED_BYTES else int(np.mean(sizes))
    power = min(max(typical - 1, 7).bit_length(), _MAX_BLOCK_BYTES.bit_length() - 1)
    counts = np.maximum(-(-sizes >> power), 1)
    stops = np.cumsum(counts)
    blocks = np.zeros(int(stops[-1]) << power, np.uint8)
    firsts = (stops << power) - sizes
    if largest <= _MAX_GATHERED_BYTES:  # each in one block
        positions = ends[:, None] + np.arange(-1 << power, 0)
        is_inside = positions >= starts[:, None]
        blocks[is_inside.reshape(-1)] = data[positions[is_inside]]
    else:
        for first, start, size in zip(
            firsts.tolist(), starts.tolist(), sizes.tolist(), strict=True
        ):
            blocks[first : first + size] = data[start : start + size]
    long_starts = firsts[sizes >= 4]
    for position in range(4):  # the initial value has all bits set
        blocks[long_starts + position] ^= 255
    block_sums = _compute_block_checksums(blocks.reshape(-1, 1 << power))
    blocks_after = np.repeat(stops, counts) - 1 - np.arange(len(block_sums))
    for bit in range(int(counts.max() - 1).bit_length()):
        selected = np.flatnonzero(blocks_after >> bit & 1)
        block_sums[selected] = _shift_checksums(block_sums[selected], power + bit)
    sums = np.bitwise_xor.reduceat(block_sums, stops - counts)
    # Records of fewer than 4 bytes: shift the initial value over their bytes and add it.
    initial = np.full(len(sums), _ALL_ONES)
    for position in range(3):
        initial = np.where(sizes > position, _shift_checksums(initial, 0), initial)
    return np.where(sizes < 4, sums ^ initial, sums) ^ _ALL_ONES


def _compute_block_checksums(blocks: npt.NDArray[np.uint8]) -> Crc32Checksums:
    """Return the checksum of each block, with initial value 0."""
    length = blocks.shape[1]
    tables = _build_byte_table()[:length][::-1]
    if len(blocks) < _MAX_LOOKUP_BLOCKS:
        return np.bitwise_xor.reduce(tables[np.arange(length), blocks], axis=1)
    sums = np.zeros(len(blocks), np.uint32)
    for table, column in zip(tables, np.ascontiguousarray(blocks.T), strict=True):
        sums ^= table.take(column)
    return sums


@cache
def _build_byte_table() -> npt.NDArray[np.uint32]:
    """Return the contribution of a byte by the number of bytes after it: uint32[follow, byte]."""
    table = np.zeros((_MAX_BLOCK_BYTES, 256), np.uint32)
    table[0] = np.arange(256)
    for _ in range(8):
        table[0] = table[0] >> 1 ^ (table[0] & 1) * _POLYNOMIAL
    for follow in range(1, _MAX_BLOCK_BYTES):
        table[follow] = table[follow - 1] >> 8 ^ table[0][table[follow - 1] & 255]
    return table


@cache
def _build_shift_table(power: int) -> npt.NDArray[np.uint32]:
    """Return the effect of `2 ** power` following bytes on each byte of a sum: uint32[4, byte]."""
    single_bytes = np.arange(256, dtype=np.uint32)[None] << np.array(
        [[0], [8], [16], [24]], np.uint32
    )
    if power:
        return _shift_checksums(_shift_checksums(single_bytes, power - 1), power - 1)
    return single_bytes >> 8 ^ _build_byte_table()[0][single_bytes & 255]


def _shift_checksums(sums: Any, power: int) -> Any:
    table = _build_shift_table(power)
    return (
        table[0][sums & 255]
        ^ table[1][sums >> 8 & 255]
        ^ table[2][sums >> 16 & 255]
        ^ table[3][sums >> 24]
    )
