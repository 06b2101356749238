"""Compare the size that the header of a sound or a video claims with the bytes that are there.

Decoders take a file that was cut off for a shorter one. Most containers say how long they are, so a cut is visible
without decoding. A length that was never written (by a recorder that streams, or FFmpeg into a pipe) is no claim.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

_UNWRITTEN = 0x7FFFF000
"""Sizes of 32 bits from here on are placeholders where the file is smaller (SoX, arecord, GStreamer, FFmpeg)."""
_PAGE = 27 + 255 + 255 * 255  # bytes of an Ogg page at most
_W64 = b"riff\x2e\x91\xcf\x11\xa5\xd6\x28\xdb\x04\xc1\x00\x00"
_EBML, _SEGMENT = b"\x1a\x45\xdf\xa3", b"\x18\x53\x80\x67"
_ASF = b"\x30\x26\xb2\x75\x8e\x66\xcf\x11\xa6\xd9\x00\xaa\x00\x62\xce\x6c"
_ASF_FILE = b"\xa1\xdc\xab\x8c\x47\xa9\xcf\x11\x8e\xe4\x00\xc0\x0c\x20\x53\x65"
_PACKET = 188  # bytes, each time, of an MPEG transport stream
_BOXES = (b"ftyp", b"moov", b"mdat", b"free", b"skip", b"wide", b"pnot", b"styp")


class Part(NamedTuple):
    """A chunk of a RIFF or an AIFF file: its name, where its data begins, and the bytes that its header claims."""

    name: bytes
    start: int
    size: int


def check_size(file: Any, size: int) -> dict[int, bytes]:
    """Raise `ValueError` if the header of a file claims more bytes than it has.

    Args:
        file: the open file; it is left at its beginning.
        size: the bytes that it has.

    Returns:
        Bytes to read in place of those at these offsets: lengths that were never written.
    """
    head = _at(file, 0, 16)
    patches = dict[int, bytes]()
    claimed = 0
    if head[:4] in (b"RIFF", b"RF64", b"BW64") and head[8:12] == b"WAVE":
        claimed, patches = _wave(file, size, head)
    elif head[:4] == b"RIFF":
        claimed = 8 + int.from_bytes(head[4:8], "little")
    elif head[:4] == b"FORM" and head[8:11] == b"AIF":
        ends = [part.start + part.size for part in _parts(file, 12, size, ">4sI") if part.name == b"SSND"]
        claimed = max(ends, default=0)
    elif head[:4] == b"caff":
        claimed = max((part.start + part.size for part in _parts(file, 8, size, ">4sq")), default=0)
    elif head == _W64:
        claimed = int.from_bytes(_at(file, 16, 8), "little")
    elif head[:4] == b".snd":
        start, length = struct.unpack(">II", head[4:12])
        claimed = start + length if length < _UNWRITTEN else 0
    elif head[:8] == b"NIST_1A\n":
        claimed = _sphere(_at(file, 0, 1024))
    elif head[:4] == b"OggS":
        _require_last_page(file, size)
    elif head[:4] == _EBML:
        claimed = _matroska(file)
    elif head[4:8] in _BOXES:
        claimed = _boxes(file, size)
    elif head == _ASF:
        claimed = _asf(_at(file, 0, 64 << 10))
    elif head[:3] == b"FLV":
        claimed = _flash(file, size)
    elif head[:1] == b"G" and size % _PACKET and set(_at(file, 0, 8 * _PACKET)[::_PACKET]) == set(b"G"):
        claimed = size // _PACKET * _PACKET + _PACKET
    if claimed > size:
        raise ValueError(f"it is cut off: its header claims {claimed:,} bytes, and {size:,} are there")
    file.seek(0)
    return patches


def _at(file: Any, start: int, length: int) -> bytes:
    file.seek(start)
    return file.read(length)


def _parts(file: Any, at: int, size: int, form: str) -> Iterator[Part]:
    """The chunks of a file, the last of which may end behind it."""
    head = struct.Struct(form)
    while at + head.size <= size:
        name, length = head.unpack(_at(file, at, head.size))
        yield Part(name, at + head.size, max(length, 0))
        padded = length + (length & 1 if head.size == 8 else 0)
        if length < 0 or at + head.size + padded <= at:
            return
        at += head.size + padded


def _wave(file: Any, size: int, head: bytes) -> tuple[int, dict[int, bytes]]:
    """The end that a WAV file claims for its samples, and what to read in place of a length that was never written."""
    long = 0
    for part in _parts(file, 12, size, "<4sI"):
        if part.name == b"ds64" and head[:4] != b"RIFF":
            long = int.from_bytes(_at(file, part.start + 8, 8), "little")
        if part.name != b"data":
            continue
        if part.size == 0xFFFFFFFF and long:
            return part.start + long, {}
        if part.size == 0 and part.start < size and not _ends_with_chunks(file, part.start, size):
            return 0, {part.start - 4: b"\xff" * 4}
        return (part.start + part.size if part.size < _UNWRITTEN else 0), {}
    raise ValueError("it is cut off: it has no chunk of samples")


def _ends_with_chunks(file: Any, at: int, size: int) -> bool:
    """Return whether chunks alone fill a file from here to its end."""
    parts = list(_parts(file, at, size, "<4sI"))
    named = all(32 <= letter < 127 for part in parts for letter in part.name)
    return bool(parts) and named and parts[-1].start + parts[-1].size in (size - 1, size)


def _sphere(head: bytes) -> int:
    """The end that the text header of a NIST SPHERE file claims for its samples."""
    said = dict[bytes, bytes]()
    for line in head.split(b"\n")[2:]:
        if len(words := line.split()) == 3:  # a name, a type (-i or, from other writers, -s1) and the value
            said[words[0]] = words[2]
    try:
        start = int(head.split(b"\n")[1])
        return start + int(said[b"sample_count"]) * int(said[b"sample_n_bytes"]) * int(said.get(b"channel_count", b"1"))
    except (KeyError, IndexError, ValueError):
        return 0


def _require_last_page(file: Any, size: int) -> None:
    """Refuse Ogg data without the page that ends it, which is all that says how long it is."""
    tail = _at(file, max(size - _PAGE, 0), _PAGE)
    at = tail.rfind(b"OggS")
    page = tail[at:]
    whole = at >= 0 and len(page) >= 27 and len(page) >= 27 + page[26] + sum(page[27 : 27 + page[26]])
    if not whole or not page[5] & 4:
        raise ValueError("it is cut off: it has no last page (of a live stream, `ffmpeg -i IN -c copy OUT` makes one)")


def _matroska(file: Any) -> int:
    """The end that a Matroska or WebM file claims; 0 where it was written as a stream."""
    at = 4
    header, length = _vint(_at(file, at, 8))
    at += length + header
    name = _at(file, at, 4)
    claimed, length = _vint(_at(file, at + 4, 8))
    return 0 if name != _SEGMENT or claimed == (1 << 7 * length) - 1 else at + 4 + length + claimed


def _vint(data: bytes) -> tuple[int, int]:
    """A number of EBML, and how many bytes it takes."""
    if not data or not data[0]:
        raise ValueError("it is cut off, or damaged: a length is missing")
    length = 9 - data[0].bit_length()
    return int.from_bytes(data[:length], "big") & ((1 << 7 * length) - 1), length


def _boxes(file: Any, size: int) -> int:
    """The end of the last box of an MP4 or QuickTime file."""
    at = 0
    while at + 8 <= size:
        head = _at(file, at, 16)
        length = int.from_bytes(head[:4], "big")
        if not head[4:8].isalnum() or length == 0:  # the rest of the file
            return at
        if length == 1:
            length = int.from_bytes(head[8:16], "big")
        if length < 8:
            return at
        at += length
    return at


def _asf(head: bytes) -> int:
    """The bytes that the properties of a Windows Media file claim; 0 where it was broadcast."""
    properties = head[head.find(_ASF_FILE) :] if _ASF_FILE in head else b""
    live = len(properties) < 92 or properties[88] & 1
    return 0 if live else int.from_bytes(properties[40:48], "little")


def _flash(file: Any, size: int) -> int:
    """The bytes that a Flash video tells in its metadata, if at all; its last tag must be whole."""
    length = int.from_bytes(_at(file, size - 4, 4), "big")
    if length < 11 or length + 4 > size or int.from_bytes(_at(file, size - 4 - length + 1, 3), "big") != length - 11:
        raise ValueError("it is cut off: it does not end with a whole tag")
    told = _at(file, 0, 4 << 10).partition(b"filesize\0")[2][:8]
    return int(struct.unpack(">d", told)[0]) if len(told) == 8 else 0
