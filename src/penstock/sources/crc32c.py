"""CRC-32C of many records at once, by tables: the checksum of TFRecord files, which neither Python
nor NumPy has.

The sum is linear: what a byte adds depends on its value and on how many bytes follow it. Records
    are cut into blocks
from their ends on; the bytes of all blocks are looked up at once, and the blocks of a record are
put together by moving each as many bytes as follow it, a power of two at a time.
"""

from __future__ import annotations

from functools import cache
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ..types import Ints

Sums: TypeAlias = npt.NDArray[np.uint32]

_POLYNOMIAL = np.uint32(0x82F63B78)
_ALL = np.uint32(0xFFFFFFFF)
_LONGEST = 256  # bytes of a block at most
_FEW = 512  # blocks up to which one look-up of all bytes is faster than one for each place


def crc32c(data: npt.NDArray[np.uint8], starts: Ints, ends: Ints) -> Sums:
    """The sums of `data[starts[i]:ends[i]]`.

    >>> text = np.frombuffer(b"123456789", np.uint8)
    >>> [hex(each) for each in crc32c(text, np.array([0, 0]), np.array([9, 0]))]
    ['0xe3069283', '0x0']
    """
    if not starts.size:
        return np.zeros(0, np.uint32)
    sizes = ends - starts
    power = min(max(int(np.mean(sizes)) - 1, 7).bit_length(), _LONGEST.bit_length() - 1)
    counts = np.maximum(-(-sizes >> power), 1)
    stops = np.cumsum(counts)
    blocks = np.zeros(int(stops[-1]) << power, np.uint8)
    firsts = (stops << power) - sizes
    for first, start, size in zip(firsts.tolist(), starts.tolist(), sizes.tolist(), strict=True):
        blocks[first : first + size] = data[start : start + size]
    long = firsts[sizes >= 4]
    for place in range(4):  # the sum begins with all bits set
        blocks[long + place] ^= 255
    found = _of_blocks(blocks.reshape(-1, 1 << power))
    behind = np.repeat(stops, counts) - 1 - np.arange(len(found))
    for bit in range(int(counts.max() - 1).bit_length()):
        moved = np.flatnonzero(behind >> bit & 1)
        found[moved] = _moved(found[moved], power + bit)
    sums = np.bitwise_xor.reduceat(found, stops - counts)
    begun = np.full(
        len(sums), _ALL
    )  # of records too short for that, it is added as it stands behind their bytes
    for place in range(3):
        begun = np.where(sizes > place, _moved(begun, 0), begun)
    return np.where(sizes < 4, sums ^ begun, sums) ^ _ALL


def _of_blocks(blocks: npt.NDArray[np.uint8]) -> Sums:
    """The sum of each block, begun with no bit set."""
    length = blocks.shape[1]
    tables = _followed()[:length][::-1]
    if len(blocks) < _FEW:
        return np.bitwise_xor.reduce(tables[np.arange(length), blocks], axis=1)
    found = np.zeros(len(blocks), np.uint32)
    for table, column in zip(tables, np.ascontiguousarray(blocks.T), strict=True):
        found ^= table.take(column)
    return found


@cache
def _followed() -> npt.NDArray[np.uint32]:
    """What a byte adds to a sum when so many bytes follow it: uint32[follow, byte]."""
    found = np.zeros((_LONGEST, 256), np.uint32)
    found[0] = np.arange(256)
    for _ in range(8):
        found[0] = found[0] >> 1 ^ (found[0] & 1) * _POLYNOMIAL
    for follow in range(1, _LONGEST):
        found[follow] = found[follow - 1] >> 8 ^ found[0][found[follow - 1] & 255]
    return found


@cache
def _moves(power: int) -> npt.NDArray[np.uint32]:
    """What each byte of a sum becomes when `2 ** power` bytes follow it: uint32[4, byte]."""
    one = np.arange(256, dtype=np.uint32)[None] << np.array([[0], [8], [16], [24]], np.uint32)
    if power:
        return _moved(_moved(one, power - 1), power - 1)
    return one >> 8 ^ _followed()[0][one & 255]


def _moved(sums: Any, power: int) -> Any:
    table = _moves(power)
    return (
        table[0][sums & 255]
        ^ table[1][sums >> 8 & 255]
        ^ table[2][sums >> 16 & 255]
        ^ table[3][sums >> 24]
    )
