"""Count the samples of an MP3 file by its frame headers.

Decoders report the length in its first frame (Xing, Info, VBRI), or estimate it from the first bit
rate. Either is wrong for a truncated or concatenated file.
"""

from __future__ import annotations

SAMPLE_TOLERANCE = 4 * 1152
"""Tolerance in samples: encoders add padding before and after the sound."""

_SAMPLE_RATES = {
    3: (44_100, 48_000, 32_000),
    2: (22_050, 24_000, 16_000),
    0: (11_025, 12_000, 8_000),
}
_BIT_RATES = {
    (True, 3): (32, 64, 96, 128, 160, 192, 224, 256, 288, 320, 352, 384, 416, 448),
    (True, 2): (32, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384),
    (True, 1): (32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320),
    (False, 3): (32, 48, 56, 64, 80, 96, 112, 128, 144, 160, 176, 192, 224, 256),
    (False, 2): (8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
    (False, 1): (8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
}
_LENGTH_MARKS = (b"Xing", b"Info", b"VBRI")
_APE_TAG = b"APETAGEX"


def has_length_mark(head: bytes) -> bool:
    """Return whether the first frame of a file holds its length.

    >>> has_length_mark(b"no frame")
    False
    """
    return any(mark in head for mark in _LENGTH_MARKS)


def count_samples(data: bytes) -> int:
    """Return the samples of one channel in the complete frames of a file.

    >>> count_samples(b"\\xff\\xfb\\x90\\xc4" + bytes(413))
    1152
    """
    offset = samples = 0
    while (offset := _find_next_frame(data, offset)) >= 0:
        size, frame_samples = _parse_frame_header(data[offset : offset + 4])
        if offset + size > len(data):
            break
        samples += 0 if has_length_mark(data[offset : offset + 64]) else frame_samples
        offset += size
    return samples


def _find_next_frame(data: bytes, offset: int) -> int:
    """Return the offset of the next frame, skipping tags; -1 if there is none."""
    while True:
        if data[offset : offset + 3] == b"ID3" and len(data) >= offset + 10:
            size_bits = [byte & 127 for byte in data[offset + 6 : offset + 10]]
            offset += 10 + (
                size_bits[0] << 21 | size_bits[1] << 14 | size_bits[2] << 7 | size_bits[3]
            )
        elif data[offset : offset + 8] == _APE_TAG and len(data) >= offset + 32:
            # Items follow a header; skip them, since pictures in them may look like frames.
            head = data[offset + 23] & 32
            offset += 32 + (
                int.from_bytes(data[offset + 12 : offset + 16], "little") if head else 0
            )
        elif _parse_frame_header(data[offset : offset + 4])[0]:
            return offset
        else:
            starts = [
                start
                for mark in (b"\xff", b"ID3", _APE_TAG)
                if (start := data.find(mark, offset + 1)) >= 0
            ]
            if not starts:
                return -1
            offset = min(starts)


def _parse_frame_header(head: bytes) -> tuple[int, int]:
    """Return the size and samples of the frame with this header; zeros if it is invalid."""
    if len(head) < 4 or head[0] != 0xFF or head[1] & 0xE0 != 0xE0:
        return 0, 0
    version, layer, kbits, rate = head[1] >> 3 & 3, head[1] >> 1 & 3, head[2] >> 4, head[2] >> 2 & 3
    if version == 1 or layer == 0 or kbits in (0, 15) or rate == 3:
        return 0, 0
    bits, hertz = 1000 * _BIT_RATES[version == 3, layer][kbits - 1], _SAMPLE_RATES[version][rate]
    padding = head[2] >> 1 & 1
    if layer == 3:
        return (12 * bits // hertz + padding) * 4, 384
    samples = 576 if layer == 1 and version != 3 else 1152
    return samples // 8 * bits // hertz + padding, samples
