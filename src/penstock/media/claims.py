"""Compare the size that the header of a sound or a video claims with the bytes that are there.

Decoders take a file that was cut off for a shorter one. Most containers say how long they are, so a
cut is visible without decoding. A length that was never written (by a recorder that streams, or
FFmpeg into a pipe) is no claim.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

_UNWRITTEN = 0x7FFFF000
"""Sizes of 32 bits from here on are placeholders where the file is smaller (SoX, arecord,
GStreamer, FFmpeg)."""
_END = 1 << 16  # bytes at the end of a PNG, in which the chunk that ends it must lie
_LONGEST_PAGE = 48_000 * 16  # samples of Opus in a page of Ogg at most
_W64 = b"riff\x2e\x91\xcf\x11\xa5\xd6\x28\xdb\x04\xc1\x00\x00"
_EBML, _SEGMENT = b"\x1a\x45\xdf\xa3", b"\x18\x53\x80\x67"
_ASF = b"\x30\x26\xb2\x75\x8e\x66\xcf\x11\xa6\xd9\x00\xaa\x00\x62\xce\x6c"
_ASF_FILE = b"\xa1\xdc\xab\x8c\x47\xa9\xcf\x11\x8e\xe4\x00\xc0\x0c\x20\x53\x65"
_PACKETS = (
    188,
    192,
)  # bytes, each time, of an MPEG transport stream, and of one with 4 of a clock before each
_END_OF_PNG = b"IEND\xaeB\x60\x82"
_PACK = b"\x00\x00\x01\xba"  # which begins a pack of an MPEG program stream
_TAIL = 1 << 18  # bytes at the end of a program stream, in which a pack begins
_NUT_INDEX = b"NX\xddg/#\xe6N"
_MAT4 = {struct.pack(f"{order}3i", kind, 1, 1): order for order, kind in (("<", 0), (">", 1000))}
_MAT4_BYTES = (8, 4, 4, 2, 2, 1)  # of a number, by the type that a matrix names
_BOXES = (b"ftyp", b"moov", b"mdat", b"free", b"skip", b"wide", b"pnot", b"styp")


class Part(NamedTuple):
    """A chunk of a RIFF or an AIFF file: its name, where its data begins, and the bytes that its
    header claims."""

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
    elif head[:4] == b"FORM" and head[8:12] in (b"AIFF", b"AIFC", b"8SVX", b"16SV"):
        ends = [
            part.start + part.size
            for part in _parts(file, 12, size, ">4sI")
            if part.name in (b"SSND", b"BODY")
        ]
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
    elif head[:4] == b"2BIT":
        channels, bits, frames = struct.unpack(">HH10xI", _at(file, 12, 18))
        claimed = 128 + frames * (2 if channels else 1) * (bits // 8)
    elif head[:2] == b"\x01\x04":  # Akai MPC 2000
        channels, frames = struct.unpack("<B8xI", _at(file, 21, 13))
        claimed = 42 + frames * (channels + 1) * 2
    elif head[:15] == b"ALawSoundFile**":
        claimed = 32 + int.from_bytes(_at(file, 18, 4), "big")
    elif head[:2] == b"\xf0\x7e":  # a MIDI sample dump: packets of 127 bytes
        claimed = 21 + -(-(size - 21) // 127) * 127
    elif head == b"Creative Voice F":
        claimed = _voc(file, size)
    elif head[:12] in _MAT4:
        claimed = _mat4(file, size, _MAT4[head[:12]])
    elif head[:10] == b"MATLAB 5.0":
        claimed = _mat5(file, size)
    elif head[:4] == b"GIF8":
        require_end_of_gif(file, size)
    elif head[:8] == b"\x89PNG\r\n\x1a\n" and _END_OF_PNG not in _at(
        file, max(size - _END, 0), _END
    ):
        raise ValueError("it is cut off: it does not end with the chunk that ends a PNG")
    elif head[:3] == b"FWS":  # Flash
        claimed = int.from_bytes(head[4:8], "little")
    elif head[:4] == b"DKIF":
        claimed = _ivf(file, size)
    elif head == b"nut/multimedia c":
        _require_index(file, size)
    elif head[:4] == _PACK:
        claimed = _program_stream(file, size)
    elif head[:4] == b"OggS":
        _require_whole_ogg(file, size)
    elif head[:4] == _EBML:
        claimed = _matroska(file)
    elif head[4:8] in _BOXES:
        claimed = _boxes(file, size)
    elif head == _ASF:
        claimed = _asf(_at(file, 0, 64 << 10))
    elif head[:3] == b"FLV":
        claimed = _flash(file, size)
    elif (packet := _packet(file)) and (size % packet or _at(file, size - 188, 1) != b"G"):
        claimed = size // packet * packet + packet
    if claimed > size:
        raise ValueError(
            f"it is cut off: its header claims {claimed:,} bytes, and {size:,} are there"
        )
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
    """The end that a WAV file claims for its samples, and what to read in place of a length that
    was never written."""
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
        if (
            len(words := line.split()) == 3
        ):  # a name, a type (-i or, from other writers, -s1) and the value
            said[words[0]] = words[2]
    try:
        start = int(head.split(b"\n")[1])
        return start + int(said[b"sample_count"]) * int(said[b"sample_n_bytes"]) * int(
            said.get(b"channel_count", b"1")
        )
    except (KeyError, IndexError, ValueError):
        return 0


class _Page(NamedTuple):
    """A page of Ogg: where it ends, its flags, the position of its last sample, and its stream."""

    end: int
    flags: int
    position: int
    stream: int


def _pages(file: Any, size: int) -> Iterator[_Page]:
    """The pages of an Ogg file, up to where none begins."""
    at = 0
    while at < size:
        head = _at(file, at, 27 + 255)
        if len(head) < 27 or head[:4] != b"OggS":
            return
        at += 27 + head[26] + sum(head[27 : 27 + head[26]])
        yield _Page(
            at,
            head[5],
            int.from_bytes(head[6:14], "little", signed=True),
            int.from_bytes(head[14:18], "little"),
        )


def _require_whole_ogg(file: Any, size: int) -> None:
    """Refuse Ogg data with a gap, without the pages that end its streams, or of several files
    joined into one."""
    running, ended, end = set[int](), False, 0
    for page in _pages(file, size):
        if page.flags & 2:
            if ended and not running:
                raise ValueError(
                    "it was put together of several files; only the first would be read"
                )
            running.add(page.stream)
        if page.flags & 4:
            running.discard(page.stream)
            ended = True
        end = page.end
    if running or not ended or end > size:
        raise ValueError(
            f"it is cut off, or damaged at byte {min(end, size):,}: it has no last page (of a live "
            "stream, "
            "`ffmpeg -i IN -c copy OUT` makes one)"
        )


def samples_of_ogg(file: Any, size: int, rate: int) -> int:
    """The samples that the last page of Vorbis or Opus claims; 0 where it does not tell.

    A decoder leaves out a page whose checksum is wrong, and takes what is left for the sound.
    """
    head = _at(file, 0, 27 + 255 + 16)
    identity = head[27 + head[26] :]
    if not (pages := list(_pages(file, size))):
        return 0
    position = max((page.position for page in pages if page.stream == pages[0].stream), default=0)
    if identity[:7] == b"\x01vorbis":
        return position
    first = next((page.position for page in pages if page.position > 0), 0)
    if (
        identity[:8] != b"OpusHead" or first > _LONGEST_PAGE
    ):  # a part of a longer stream, which begins later
        return 0
    return (position - int.from_bytes(identity[10:12], "little")) * rate // 48_000


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
    at, fragmented = 0, False
    while at + 8 <= size:
        head = _at(file, at, 16)
        length = int.from_bytes(head[:4], "big")
        fragmented = fragmented or head[4:8] == b"moof"
        if not head[4:8].isalnum() and fragmented:
            raise ValueError(
                f"it is damaged: no box begins at byte {at:,}, where the next fragment must be"
            )
        if not head[4:8].isalnum() or length == 0:  # the rest of the file
            return at
        if length == 1:
            length = int.from_bytes(head[8:16], "big")
        if length < 8:
            return at
        at += length
    if fragmented and at < size:
        raise ValueError(f"it is cut off: the box at byte {at:,} is not whole")
    return at


def _packet(file: Any) -> int:
    """The bytes of each packet of an MPEG transport stream; 0 of other files."""
    head = _at(file, 0, 8 * max(_PACKETS))
    return next(
        (each for each in _PACKETS if set(head[each - 188 : 8 * each : each]) == set(b"G")), 0
    )


def _asf(head: bytes) -> int:
    """The bytes that the properties of a Windows Media file claim; 0 where it was broadcast."""
    properties = head[head.find(_ASF_FILE) :] if _ASF_FILE in head else b""
    live = len(properties) < 92 or properties[88] & 1
    return 0 if live else int.from_bytes(properties[40:48], "little")


def _flash(file: Any, size: int) -> int:
    """The bytes that a Flash video tells in its metadata, if at all; its last tag must be whole."""
    length = int.from_bytes(_at(file, size - 4, 4), "big")
    if (
        length < 11
        or length + 4 > size
        or int.from_bytes(_at(file, size - 4 - length + 1, 3), "big") != length - 11
    ):
        raise ValueError("it is cut off: it does not end with a whole tag")
    told = _at(file, 0, 4 << 10).partition(b"filesize\0")[2][:8]
    return int(struct.unpack(">d", told)[0]) if len(told) == 8 else 0


def _voc(file: Any, size: int) -> int:
    """The end that the first block of sound of a VOC file claims."""
    at = int.from_bytes(_at(file, 20, 2), "little")
    while at + 4 <= size:
        head = _at(file, at, 4)
        end = at + 4 + int.from_bytes(head[1:], "little")
        if head[0] in (1, 9):
            return end
        if not 0 < head[0] < 9:
            break
        at = end
    return 0


def _mat4(file: Any, size: int, order: str) -> int:
    """The end that the last matrix of a MATLAB 4 file claims."""
    at = 0
    while at + 20 <= size:
        numbers: tuple[int, ...] = struct.unpack(f"{order}5i", _at(file, at, 20))
        kind, rows, columns, _, name = numbers
        number = kind // 10 % 10
        if min(rows, columns, name) < 0 or number >= len(_MAT4_BYTES):
            return 0
        at += 20 + name + rows * columns * _MAT4_BYTES[number]
    return at


def _mat5(file: Any, size: int) -> int:
    """The end that the last element of a MATLAB 5 file claims; those of a matrix are looked at one
    by one."""
    order = "<" if _at(file, 126, 2) == b"IM" else ">"
    at, claimed = 128, 0
    while at + 8 <= size:
        kind, length = struct.unpack(f"{order}II", _at(file, at, 8))
        at += 8
        if kind != _MATRIX and not kind >> 16:  # a short element has its data in its header
            claimed = at + length
            at += -(-length // 8) * 8
    return claimed


_MATRIX = 14


def require_end_of_gif(file: Any, size: int) -> None:
    """Raise `ValueError` for a GIF whose blocks do not lead to the mark that ends it."""
    at, end = 13 + _colours(_at(file, 10, 1)), b""
    while at < size and end != b";":
        end = _at(file, at, 1)
        if end not in (b"!", b","):
            at += 1
            continue
        at += 2 if end == b"!" else 11 + _colours(_at(file, at + 9, 1))
        while length := int.from_bytes(_at(file, at, 1), "big"):
            at += 1 + length
        at += 1
    if end != b";":
        raise ValueError("it is cut off: it does not end with the mark that ends a GIF")


def _colours(flags: bytes) -> int:
    """The bytes of a table of colours."""
    return 3 << (flags[0] & 7) + 1 if flags and flags[0] & 128 else 0


def _ivf(file: Any, size: int) -> int:
    """The end that the last frame of an IVF file claims."""
    at = int.from_bytes(_at(file, 6, 2), "little")
    while at < size:
        at += 12 + int.from_bytes(_at(file, at, 4), "little")
    return at


def _require_index(file: Any, size: int) -> None:
    """Refuse a NUT file without the index that ends it; the distance to it stands before its
    checksum."""
    back = int.from_bytes(_at(file, size - 12, 8), "big")
    if not 12 <= back <= size or _at(file, size - back, 8) != _NUT_INDEX:
        raise ValueError(
            "it is cut off: it has no index (of a live stream, `ffmpeg -i IN -c copy OUT` makes "
            "one)"
        )


def _program_stream(file: Any, size: int) -> int:
    """The end that the last packet of an MPEG program stream claims."""
    begin = max(size - _TAIL, 0)
    tail = _at(file, begin, _TAIL)
    at = tail.rfind(_PACK)
    while 0 <= at < len(tail):
        head = tail[at : at + 14]
        if head[:3] != _PACK[:3]:
            return begin + at
        if head[:4] != _PACK:
            at += 6 + int.from_bytes(head[4:6], "big") if head[3] != 0xB9 else 4
        elif len(head) == 14 and head[4] >> 6 == 1:  # MPEG 2
            at += 14 + (head[13] & 7)
        else:
            at += 12
    return begin + at if at > 0 else 0
