"""Count the samples of an MP3 file by the headers of its frames.

The length that decoders report is the one in its first frame (Xing, Info, VBRI), or an estimate
from the first bit rate. Either is wrong for a file that was cut off or joined of several.
"""

from __future__ import annotations

SPARE = 4 * 1152
"""Samples by which the frames of a sound may differ from it: what an encoder puts before it and
behind."""

_RATES = {3: (44_100, 48_000, 32_000), 2: (22_050, 24_000, 16_000), 0: (11_025, 12_000, 8_000)}
_KBITS = {
    (True, 3): (32, 64, 96, 128, 160, 192, 224, 256, 288, 320, 352, 384, 416, 448),
    (True, 2): (32, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384),
    (True, 1): (32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320),
    (False, 3): (32, 48, 56, 64, 80, 96, 112, 128, 144, 160, 176, 192, 224, 256),
    (False, 2): (8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
    (False, 1): (8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
}
_MARKS = (b"Xing", b"Info", b"VBRI")
_APE = b"APETAGEX"


def tells_length(head: bytes) -> bool:
    """Return whether the first frame of a file holds its length.

    >>> tells_length(b"no frame")
    False
    """
    return any(mark in head for mark in _MARKS)


def count_samples(data: bytes) -> int:
    """The samples, of one channel, that the whole frames of a file hold.

    >>> count_samples(b"\\xff\\xfb\\x90\\xc4" + bytes(413))
    1152
    """
    at = samples = 0
    while (at := _next(data, at)) >= 0:
        size, held = _frame(data[at : at + 4])
        if at + size > len(data):
            break
        samples += 0 if tells_length(data[at : at + 64]) else held
        at += size
    return samples


def _next(data: bytes, at: int) -> int:
    """Return the offset of the next frame, or -1; tags are skipped."""
    while True:
        if data[at : at + 3] == b"ID3" and len(data) >= at + 10:
            seven = [byte & 127 for byte in data[at + 6 : at + 10]]
            at += 10 + (seven[0] << 21 | seven[1] << 14 | seven[2] << 7 | seven[3])
        elif data[at : at + 8] == _APE and len(data) >= at + 32:
            head = (
                data[at + 23] & 32
            )  # which the items follow; they may hold pictures, in which bytes look like frames
            at += 32 + (int.from_bytes(data[at + 12 : at + 16], "little") if head else 0)
        elif _frame(data[at : at + 4])[0]:
            return at
        else:
            found = [
                place for mark in (b"\xff", b"ID3", _APE) if (place := data.find(mark, at + 1)) >= 0
            ]
            if not found:
                return -1
            at = min(found)


def _frame(head: bytes) -> tuple[int, int]:
    """The bytes of the frame with this header and its samples; nothing where it is none."""
    if len(head) < 4 or head[0] != 0xFF or head[1] & 0xE0 != 0xE0:
        return 0, 0
    version, layer, kbits, rate = head[1] >> 3 & 3, head[1] >> 1 & 3, head[2] >> 4, head[2] >> 2 & 3
    if version == 1 or layer == 0 or kbits in (0, 15) or rate == 3:
        return 0, 0
    bits, hertz = 1000 * _KBITS[version == 3, layer][kbits - 1], _RATES[version][rate]
    padding = head[2] >> 1 & 1
    if layer == 3:
        return (12 * bits // hertz + padding) * 4, 384
    samples = 576 if layer == 1 and version != 3 else 1152
    return samples // 8 * bits // hertz + padding, samples
