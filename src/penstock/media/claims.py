"""Compare the size that the header of a media file claims with its actual size.

Decoders take a truncated file for a shorter one. Most containers hold their length, so truncation
is visible without decoding. Recorders that stream, and FFmpeg into a pipe, write no length; such a
header makes no claim.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

_MIN_PLACEHOLDER_SIZE = 0x7FFFF000
"""Sizes of 32 bits from here on are placeholders (SoX, arecord, GStreamer, FFmpeg)."""
_PNG_TAIL = 1 << 16  # bytes at the end of a PNG that hold its last chunk
_LONGEST_PAGE = 48_000 * 16  # the most samples of Opus in a page of Ogg
_W64_MAGIC = b"riff\x2e\x91\xcf\x11\xa5\xd6\x28\xdb\x04\xc1\x00\x00"
_W64_ALIGNMENT = 8
_EBML, _SEGMENT = b"\x1a\x45\xdf\xa3", b"\x18\x53\x80\x67"
_ASF_MAGIC = b"\x30\x26\xb2\x75\x8e\x66\xcf\x11\xa6\xd9\x00\xaa\x00\x62\xce\x6c"
_ASF_FILE = b"\xa1\xdc\xab\x8c\x47\xa9\xcf\x11\x8e\xe4\x00\xc0\x0c\x20\x53\x65"
_PACKET_SIZES = (
    188,
    192,
)  # packet sizes of MPEG transport streams, without and with a 4-byte clock
_END_OF_PNG = b"IEND\xaeB\x60\x82"
_PACK_START = b"\x00\x00\x01\xba"  # start of a pack in an MPEG program stream
_PROGRAM_STREAM_TAIL = 1 << 18  # bytes at the end of a program stream that hold the start of a pack
_NUT_INDEX = b"NX\xddg/#\xe6N"
_MAT4_BYTE_ORDERS = {
    struct.pack(f"{order}3i", kind, 1, 1): order for order, kind in (("<", 0), (">", 1000))
}
_MAT4_BYTES = (8, 4, 4, 2, 2, 1)  # bytes of a number, by matrix type
_MP4_BOX_NAMES = (b"ftyp", b"moov", b"mdat", b"free", b"skip", b"wide", b"pnot", b"styp")


class FileChunk(NamedTuple):
    """A chunk of a RIFF or AIFF file: its name, the offset of its data, and its claimed size."""

    name: bytes
    start: int
    size: int


def spell_reason(error: Exception) -> str:
    """Return the text of a decoder's error, without the address of the stream that Pillow names."""
    return re.sub(r" <_io\.[^>]*>", "", str(error))


def require_claimed_bytes(file: Any, size: int) -> dict[int, bytes]:
    """Raise `ValueError` if the header of a file claims more bytes than it has.

    Also if sound may follow behind the claim of a WAV, RF64, W64, AIFF, SVX, AU or CAF file.

    Args:
        file: the open file; it is left at its beginning.
        size: its size in bytes.

    Returns:
        Bytes to read instead of those at these offsets, for lengths that were never written.
    """
    head = _read_at(file, 0, 16)
    patches = dict[int, bytes]()
    claimed = 0
    if head[:4] in (b"RIFF", b"RF64", b"BW64") and head[8:12] == b"WAVE":
        claimed, patches = _find_wave_end(file, size, head)
    elif head[:4] == b"RIFF":
        claimed = 8 + int.from_bytes(head[4:8], "little")
    elif head[:4] == b"FORM" and head[8:12] in (b"AIFF", b"AIFC", b"8SVX", b"16SV"):
        ends = [
            part.start + part.size
            for part in _iterate_chunks(file, 12, size, ">4sI")
            if part.name in (b"SSND", b"BODY")
        ]
        claimed = max(ends, default=0)
        _require_end_of_sound(file, claimed, size, ">4sI")
    elif head[:4] == b"caff":
        parts = list(_iterate_chunks(file, 8, size, ">4sq"))
        claimed = max((part.start + part.size for part in parts), default=0)
        sound = next((part for part in parts if part.name == b"data"), None)
        _require_end_of_sound(
            file, sound.start + sound.size if sound and sound.size else 0, size, ">4sq"
        )
    elif head == _W64_MAGIC:
        claimed = int.from_bytes(_read_at(file, 16, 8), "little")
        _require_end_of_sound(file, claimed, size, None, _W64_ALIGNMENT)
    elif head[:4] == b".snd":
        claimed, patches = _find_au_end(file, size)
    elif head[:8] == b"NIST_1A\n":
        claimed = _find_sphere_end(_read_at(file, 0, 1024))
    elif head[:4] == b"2BIT":
        channels, bits, frames = struct.unpack(">HH10xI", _read_at(file, 12, 18))
        claimed = 128 + frames * (2 if channels else 1) * (bits // 8)
    elif head[:2] == b"\x01\x04":  # Akai MPC 2000
        channels, frames = struct.unpack("<B8xI", _read_at(file, 21, 13))
        claimed = 42 + frames * (channels + 1) * 2
    elif head[:15] == b"ALawSoundFile**":
        claimed = 32 + int.from_bytes(_read_at(file, 18, 4), "big")
    elif head[:2] == b"\xf0\x7e":  # a MIDI sample dump: packets of 127 bytes
        claimed = 21 + -(-(size - 21) // 127) * 127
    elif head == b"Creative Voice F":
        claimed = _find_voc_end(file, size)
    elif head[:12] in _MAT4_BYTE_ORDERS:
        claimed = _find_mat4_end(file, size, _MAT4_BYTE_ORDERS[head[:12]])
    elif head[:10] == b"MATLAB 5.0":
        claimed = _find_mat5_end(file, size)
    elif head[:4] == b"GIF8":
        require_end_of_gif(file, size)
    elif head[:8] == b"\x89PNG\r\n\x1a\n" and _END_OF_PNG not in _read_at(
        file, max(size - _PNG_TAIL, 0), _PNG_TAIL
    ):
        raise ValueError("it is cut off: it does not end with the chunk that ends a PNG")
    elif head[:3] == b"FWS":  # Flash
        claimed = int.from_bytes(head[4:8], "little")
    elif head[:4] == b"DKIF":
        claimed = _find_ivf_end(file, size)
    elif head == b"nut/multimedia c":
        _require_index(file, size)
    elif head[:4] == _PACK_START:
        claimed = _find_program_stream_end(file, size)
    elif head[:4] == b"OggS":
        _require_complete_ogg(file, size)
    elif head[:4] == _EBML:
        claimed = _find_matroska_end(file)
    elif head[4:8] in _MP4_BOX_NAMES:
        claimed = _find_mp4_end(file, size)
    elif head == _ASF_MAGIC:
        claimed = _read_asf_size(_read_at(file, 0, 64 << 10))
    elif head[:3] == b"FLV":
        claimed = _read_flash_size(file, size)
    elif (packet := _detect_packet_size(file)) and (
        size % packet or _read_at(file, size - 188, 1) != b"G"
    ):
        claimed = size // packet * packet + packet
    if claimed > size:
        raise ValueError(
            f"it is cut off: its header claims {claimed:,} bytes, and {size:,} are there"
        )
    file.seek(0)
    return patches


def _read_at(file: Any, start: int, length: int) -> bytes:
    file.seek(start)
    return file.read(length)


def _iterate_chunks(file: Any, offset: int, size: int, header_format: str) -> Iterator[FileChunk]:
    """Yield the chunks of a file; the last one may end beyond it."""
    header = struct.Struct(header_format)
    while offset + header.size <= size:
        name, length = header.unpack(_read_at(file, offset, header.size))
        yield FileChunk(name, offset + header.size, max(length, 0))
        padded = length + (length & 1 if header.size == 8 else 0)
        if length < 0 or offset + header.size + padded <= offset:
            return
        offset += header.size + padded


def _find_wave_end(file: Any, size: int, head: bytes) -> tuple[int, dict[int, bytes]]:
    """Return the claimed end of the samples of a WAV file, and patches for a missing length."""
    long, frame = 0, 1
    for part in _iterate_chunks(file, 12, size, "<4sI"):
        if part.name == b"ds64" and head[:4] != b"RIFF":
            long = int.from_bytes(_read_at(file, part.start + 8, 8), "little")
        if part.name == b"fmt ":
            frame = int.from_bytes(_read_at(file, part.start + 12, 2), "little")
        if part.name != b"data":
            continue
        if part.size == 0xFFFFFFFF and long:
            end = part.start + long
        elif part.size == 0 and part.start < size and not _ends_with_chunks(file, part.start, size):
            return 0, {part.start - 4: b"\xff" * 4}
        else:
            end = part.start + part.size if part.size < _MIN_PLACEHOLDER_SIZE else 0
        _require_end_of_sound(file, end, size, "<4sI", frame)
        return end, {}
    raise ValueError("it is cut off: it has no chunk of samples")


def _ends_with_chunks(file: Any, offset: int, size: int) -> bool:
    """Return whether chunks alone fill a file from an offset to its end."""
    parts = list(_iterate_chunks(file, offset, size, "<4sI"))
    named = all(32 <= letter < 127 for part in parts for letter in part.name)
    return bool(parts) and named and parts[-1].start + parts[-1].size in (size - 1, size)


_AU_SAMPLE_BYTES = {3: 2, 4: 3, 5: 4, 6: 4, 7: 8}  # by the number of the encoding; others have 1


def _find_au_end(file: Any, size: int) -> tuple[int, dict[int, bytes]]:
    """Return the claimed end of an AU file, and patches for a missing length."""
    start, length, encoding, _, channels = struct.unpack(
        ">5I", _read_at(file, 4, 20).ljust(20, b"\0")
    )
    if length == 0 and start < size:
        return 0, {8: b"\xff" * 4}
    claimed = start + length if length < _MIN_PLACEHOLDER_SIZE else 0
    _require_end_of_sound(file, claimed, size, None, channels * _AU_SAMPLE_BYTES.get(encoding, 1))
    return claimed, {}


_LARGEST_FRAME = 64  # bytes of the largest rest of a file that is no frame
_TAGS = (b"ID3", b"TAG", b"APETAGEX", b"LYRICSBEGIN")
_FILE_STARTS = (b"RIFF", b"RIFX", b"RF64", b"BW64", b"FORM", b"caff", b"data", b"SSND", b"BODY")
"""Names of chunks that hold sound, or begin a file; behind the sound of a file they are more sound."""
_METADATA = frozenset(
    (
        b"LIST",
        b"bext",
        b"id3 ",
        b"ID3 ",
        b"cue ",
        b"smpl",
        b"fact",
        b"PEAK",
        b"JUNK",
        b"iXML",
        b"_PMX",
        b"axml",
        b"inst",
        b"PAD ",
        b"FLLR",
        b"afsp",
        b"DISP",
        b"COMT",
        b"MARK",
        b"NAME",
        b"INST",
        b"AUTH",
        b"ANNO",
        b"(c) ",
        b"APPL",
        b"free",
        b"info",
        b"pakt",
        b"uuid",
    )
)
"""Names of chunks behind the sound, whatever follows them: some writers give them a wrong size."""


def _require_end_of_sound(
    file: Any, end: int, size: int, header_format: str | None, frame: int = 2
) -> None:
    """Raise `ValueError` if more than chunks or tags follow behind the sound of a file.

    Args:
        file: the open file.
        end: the claimed end of the sound; 0 if the header makes no claim.
        size: the size of the file.
        header_format: the format of the header of a chunk; `None` if the file has no chunks.
        frame: bytes of a sample of all channels; a shorter rest is no sound.
    """
    padding = end & 1
    if not 0 < end < size or size - end < max(1 + padding, min(frame, _LARGEST_FRAME)):
        return
    # Some writers omit the padding behind an odd number of bytes.
    for offset in (end, end + 1):
        if _read_at(file, offset, 11).startswith(_TAGS):
            return
        if header_format and _ends_with_metadata(file, offset, size, header_format):
            return
    raise ValueError(
        f"its header claims {end:,} bytes, and {size:,} are there: its length was not written at the "
        "end, or it was put together of several files; write it again"
    )


def _ends_with_metadata(file: Any, offset: int, size: int, header_format: str) -> bool:
    """Return whether chunks without sound follow from an offset to the end of a file."""
    is_known, end = False, offset
    for part in _iterate_chunks(file, offset, size, header_format):
        if part.name in _FILE_STARTS:
            return False
        if not all(32 <= letter < 127 for letter in part.name):
            break
        is_known, end = is_known or part.name in _METADATA, part.start + part.size
    return is_known or (end > offset and end in (size - 1, size))


def _find_sphere_end(head: bytes) -> int:
    """Return the claimed end of the samples in a NIST SPHERE header."""
    fields = dict[bytes, bytes]()
    for line in head.split(b"\n")[2:]:
        # A name, a type (-i or, by other writers, -s1) and the value.
        if len(words := line.split()) == 3:
            fields[words[0]] = words[2]
    try:
        start = int(head.split(b"\n")[1])
        return start + int(fields[b"sample_count"]) * int(fields[b"sample_n_bytes"]) * int(
            fields.get(b"channel_count", b"1")
        )
    except (KeyError, IndexError, ValueError):
        return 0


class _OggPage(NamedTuple):
    """A page of Ogg: its end, flags, the position of its last sample, and its stream."""

    end: int
    flags: int
    position: int
    stream: int


def _iterate_ogg_pages(file: Any, size: int) -> Iterator[_OggPage]:
    """Yield the pages of an Ogg file, up to the first offset without one."""
    offset = 0
    while offset < size:
        head = _read_at(file, offset, 27 + 255)
        if len(head) < 27 or head[:4] != b"OggS":
            return
        offset += 27 + head[26] + sum(head[27 : 27 + head[26]])
        yield _OggPage(
            offset,
            head[5],
            int.from_bytes(head[6:14], "little", signed=True),
            int.from_bytes(head[14:18], "little"),
        )


def _require_complete_ogg(file: Any, size: int) -> None:
    """Raise `ValueError` for Ogg data that has a gap, lacks last pages, or is concatenated."""
    running, ended, end = set[int](), False, 0
    for page in _iterate_ogg_pages(file, size):
        if page.flags & 2:
            if ended and not running:
                raise ValueError(
                    "it was put together of several files, and decoders read only the first: split it"
                )
            running.add(page.stream)
        if page.flags & 4:
            running.discard(page.stream)
            ended = True
        end = page.end
    if running or not ended or end > size:
        raise ValueError(
            f"it is cut off, or damaged at byte {min(end, size):,}: it has no last page (for a live "
            "stream, `ffmpeg -i IN -c copy OUT` makes one)"
        )


def count_ogg_samples(file: Any, size: int, rate: int) -> int:
    """Return the samples that the last page of Vorbis or Opus claims; 0 if unknown.

    A decoder skips a page with a wrong checksum and takes the rest for the whole sound.
    """
    head = _read_at(file, 0, 27 + 255 + 16)
    identity = head[27 + head[26] :]
    if not (pages := list(_iterate_ogg_pages(file, size))):
        return 0
    position = max((page.position for page in pages if page.stream == pages[0].stream), default=0)
    if identity[:7] == b"\x01vorbis":
        return position
    first = next((page.position for page in pages if page.position > 0), 0)
    # A later first page belongs to an excerpt of a longer stream.
    if identity[:8] != b"OpusHead" or first > _LONGEST_PAGE:
        return 0
    return (position - int.from_bytes(identity[10:12], "little")) * rate // 48_000


def find_last_ogg_page(file: Any, size: int) -> int:
    """Return the sample with which the last page of the first stream begins; 0 if it is the only one."""
    pages = list(_iterate_ogg_pages(file, size))
    ends = sorted({page.position for page in pages if page.stream == pages[0].stream})
    return max(0, ends[-2]) if len(ends) > 1 else 0


def _find_matroska_end(file: Any) -> int:
    """Return the claimed end of a Matroska or WebM file; 0 if it was streamed."""
    offset = 4
    header, length = _parse_vint(_read_at(file, offset, 8))
    offset += length + header
    name = _read_at(file, offset, 4)
    claimed, length = _parse_vint(_read_at(file, offset + 4, 8))
    return (
        0 if name != _SEGMENT or claimed == (1 << 7 * length) - 1 else offset + 4 + length + claimed
    )


def _parse_vint(data: bytes) -> tuple[int, int]:
    """Return an EBML number and its length in bytes."""
    if not data or not data[0]:
        raise ValueError("it is cut off, or damaged: a length is missing")
    length = 9 - data[0].bit_length()
    return int.from_bytes(data[:length], "big") & ((1 << 7 * length) - 1), length


def _find_mp4_end(file: Any, size: int) -> int:
    """Return the end of the last box of an MP4 or QuickTime file."""
    offset, fragmented = 0, False
    while offset + 8 <= size:
        head = _read_at(file, offset, 16)
        length = int.from_bytes(head[:4], "big")
        fragmented = fragmented or head[4:8] == b"moof"
        if not head[4:8].isalnum() and fragmented:
            raise ValueError(
                f"it is damaged: no box begins at byte {offset:,}, where the next fragment must be"
            )
        if not head[4:8].isalnum() or length == 0:  # the rest of the file
            return offset
        if length == 1:
            length = int.from_bytes(head[8:16], "big")
        if length < 8:
            return offset
        offset += length
    if fragmented and offset < size:
        raise ValueError(f"it is cut off: the box at byte {offset:,} is incomplete")
    return offset


def _detect_packet_size(file: Any) -> int:
    """Return the packet size of an MPEG transport stream; 0 for other files."""
    head = _read_at(file, 0, 8 * max(_PACKET_SIZES))
    return next(
        (size for size in _PACKET_SIZES if set(head[size - 188 : 8 * size : size]) == set(b"G")), 0
    )


def _read_asf_size(head: bytes) -> int:
    """Return the size in the properties of a Windows Media file; 0 if it was broadcast."""
    properties = head[head.find(_ASF_FILE) :] if _ASF_FILE in head else b""
    live = len(properties) < 92 or properties[88] & 1
    return 0 if live else int.from_bytes(properties[40:48], "little")


def _read_flash_size(file: Any, size: int) -> int:
    """Return the size in the metadata of a Flash video, or 0.

    Raises:
        ValueError: if its last tag is incomplete.
    """
    length = int.from_bytes(_read_at(file, size - 4, 4), "big")
    if (
        length < 11
        or length + 4 > size
        or int.from_bytes(_read_at(file, size - 4 - length + 1, 3), "big") != length - 11
    ):
        raise ValueError("it is cut off: it does not end with a complete tag")
    encoded = _read_at(file, 0, 4 << 10).partition(b"filesize\0")[2][:8]
    return int(struct.unpack(">d", encoded)[0]) if len(encoded) == 8 else 0


def _find_voc_end(file: Any, size: int) -> int:
    """Return the claimed end of the first sound block of a VOC file."""
    offset = int.from_bytes(_read_at(file, 20, 2), "little")
    while offset + 4 <= size:
        head = _read_at(file, offset, 4)
        end = offset + 4 + int.from_bytes(head[1:], "little")
        if head[0] in (1, 9):
            return end
        if not 0 < head[0] < 9:
            break
        offset = end
    return 0


def _find_mat4_end(file: Any, size: int, order: str) -> int:
    """Return the claimed end of the last matrix of a MATLAB 4 file."""
    offset = 0
    while offset + 20 <= size:
        numbers: tuple[int, ...] = struct.unpack(f"{order}5i", _read_at(file, offset, 20))
        kind, rows, columns, _, name = numbers
        type_index = kind // 10 % 10
        if min(rows, columns, name) < 0 or type_index >= len(_MAT4_BYTES):
            return 0
        offset += 20 + name + rows * columns * _MAT4_BYTES[type_index]
    return offset


def _find_mat5_end(file: Any, size: int) -> int:
    """Return the claimed end of the last element of a MATLAB 5 file.

    Elements of a matrix are checked one by one.
    """
    order = "<" if _read_at(file, 126, 2) == b"IM" else ">"
    offset, claimed = 128, 0
    while offset + 8 <= size:
        kind, length = struct.unpack(f"{order}II", _read_at(file, offset, 8))
        offset += 8
        if (
            kind != _MAT5_MATRIX_TYPE and not kind >> 16
        ):  # a short element has its data in its header
            claimed = offset + length
            offset += -(-length // 8) * 8
    return claimed


_MAT5_MATRIX_TYPE = 14


def require_end_of_gif(file: Any, size: int) -> None:
    """Raise `ValueError` for a GIF whose blocks do not lead to its end marker."""
    offset, end = 13 + _count_colour_table_bytes(_read_at(file, 10, 1)), b""
    while offset < size and end != b";":
        end = _read_at(file, offset, 1)
        if end not in (b"!", b","):
            offset += 1
            continue
        offset += (
            2 if end == b"!" else 11 + _count_colour_table_bytes(_read_at(file, offset + 9, 1))
        )
        while length := int.from_bytes(_read_at(file, offset, 1), "big"):
            offset += 1 + length
        offset += 1
    if end != b";":
        raise ValueError("it is cut off: it does not end with the mark that ends a GIF")


def _count_colour_table_bytes(flags: bytes) -> int:
    """Return the size of a colour table in bytes."""
    return 3 << (flags[0] & 7) + 1 if flags and flags[0] & 128 else 0


def _find_ivf_end(file: Any, size: int) -> int:
    """Return the claimed end of the last frame of an IVF file."""
    offset = int.from_bytes(_read_at(file, 6, 2), "little")
    while offset < size:
        offset += 12 + int.from_bytes(_read_at(file, offset, 4), "little")
    return offset


def _require_index(file: Any, size: int) -> None:
    """Raise `ValueError` for a NUT file without the index at its end.

    The distance to the index precedes its checksum.
    """
    distance = int.from_bytes(_read_at(file, size - 12, 8), "big")
    if not 12 <= distance <= size or _read_at(file, size - distance, 8) != _NUT_INDEX:
        raise ValueError(
            "it is cut off: it has no index (for a live stream, `ffmpeg -i IN -c copy OUT` makes "
            "one)"
        )


def _find_program_stream_end(file: Any, size: int) -> int:
    """Return the claimed end of the last packet of an MPEG program stream."""
    begin = max(size - _PROGRAM_STREAM_TAIL, 0)
    tail = _read_at(file, begin, _PROGRAM_STREAM_TAIL)
    offset = tail.rfind(_PACK_START)
    while 0 <= offset < len(tail):
        head = tail[offset : offset + 14]
        if head[:3] != _PACK_START[:3]:
            return begin + offset
        if head[:4] != _PACK_START:
            offset += 6 + int.from_bytes(head[4:6], "big") if head[3] != 0xB9 else 4
        elif len(head) == 14 and head[4] >> 6 == 1:  # MPEG 2
            offset += 14 + (head[13] & 7)
        else:
            offset += 12
    return begin + offset if offset > 0 else 0


def _make_crc_table(polynomial: int, bits: int) -> list[int]:
    """Return the CRC of each byte, highest bit first."""
    table = list[int]()
    for byte in range(256):
        crc = byte << bits - 8
        for _ in range(8):
            crc = crc << 1 ^ (polynomial if crc >> bits - 1 else 0)
            crc &= (1 << bits) - 1
        table.append(crc)
    return table


_FLAC_HEADER_CRC = _make_crc_table(0x07, 8)
_FLAC_FRAME_CRC = _make_crc_table(0x8005, 16)
_FLAC_TAILS = (1 << 16, 1 << 20, 1 << 24)  # bytes at the end that may hold the last frame
_FLAC_LONGEST_HEADER = 16
_LARGEST_FLAC_FRAME = 1 << 22
_SCANNED_BYTES = 1 << 20
_MAX_FALSE_HEADERS = 3  # bytes in the last frame that look like headers; more are no FLAC


def require_end_of_flac(file: Any, size: int, samples: int) -> None:
    """Raise `ValueError` if a FLAC file does not end with the frame of its last sample.

    The decoder stops at the length in the header, so it does not read joined files further. Zeros
    and tags may follow the last frame.

    Args:
        file: the open file.
        size: its size in bytes.
        samples: the samples of a channel that the header claims.
    """
    head = _read_at(file, 0, 10)
    start = _find_id3_end(head, 0) if head[:3] == b"ID3" else 0
    if _read_at(file, start, 4) != b"fLaC" or not samples:
        return
    block = int.from_bytes(_read_at(file, start + 8, 2), "big")
    is_joined = _has_second_flac(file, start + 4, size)
    if is_joined or _find_last_flac_sample(file, size, block) != samples:
        raise ValueError(
            "its last frame is not at its end: its header claims less than the file holds, or it was "
            "put together of several files; write it again"
        )


def _find_last_flac_sample(file: Any, size: int, block: int) -> int:
    """Return the number of samples up to the frame that ends a FLAC file; -1 without such a frame."""
    for length in _FLAC_TAILS:
        failures = 0
        tail = _strip_tags(_read_at(file, max(0, size - length), length))
        start = len(tail)
        while failures < _MAX_FALSE_HEADERS and (start := tail.rfind(b"\xff", 0, start)) >= 0:
            samples = _parse_flac_frame(tail[start : start + _FLAC_LONGEST_HEADER], block)
            if not samples:
                continue
            if len(tail) - start > _LARGEST_FLAC_FRAME:
                return -1
            crc = 0
            for byte in tail[start:]:
                crc = (crc << 8 & 0xFFFF) ^ _FLAC_FRAME_CRC[crc >> 8 ^ byte]
            if not crc:  # also behind zeros
                return samples
            failures += 1
        if length >= size:
            break
    return -1


def _has_second_flac(file: Any, offset: int, size: int) -> bool:
    """Return whether another FLAC file begins behind an offset."""
    marks = [b"fLaC" + flag + b"\0\0\x22" for flag in (b"\0", b"\x80")]
    while offset < size:
        data = _read_at(file, offset, _SCANNED_BYTES + len(marks[0]) - 1)
        if any(mark in data for mark in marks):
            return True
        offset += _SCANNED_BYTES
    return False


def _parse_flac_frame(head: bytes, block: int) -> int:
    """Return the number of samples up to the end of the frame with this header; 0 for other bytes.

    RFC 9639, section 9.1 has its format. `block` is the number of samples in other frames.
    """
    if len(head) < 6 or head[1] & 0xFE != 0xF8:
        return 0
    # The number of the frame or of its first sample, in the form of UTF-8 of up to 7 bytes.
    length = max(1, 8 - (head[4] ^ 0xFF).bit_length())
    number = head[4] & 0x7F >> (length if length > 1 else 0)
    for byte in head[5 : 4 + length]:
        number = number << 6 | byte & 0x3F
    offset, size_code, rate = 4 + length, head[2] >> 4, head[2] & 15
    block_bytes, rate_bytes = {6: 1, 7: 2}.get(size_code, 0), {12: 1, 13: 2, 14: 2}.get(rate, 0)
    end = offset + block_bytes + rate_bytes
    if len(head) <= end:
        return 0
    if block_bytes:
        count = int.from_bytes(head[offset : offset + block_bytes], "big") + 1
    elif size_code == 1:
        count = 192
    else:
        count = (
            576 << size_code - 2
            if 2 <= size_code <= 5
            else 256 << size_code - 8
            if size_code >= 8
            else 0
        )
    crc = 0
    for byte in head[: end + 1]:
        crc = _FLAC_HEADER_CRC[crc ^ byte]
    is_header = not crc and count
    return (number if head[1] & 1 else number * block) + count if is_header else 0


def _strip_tags(tail: bytes) -> bytes:
    """Return the end of a file without the tags behind its content."""
    while True:
        if tail[-128:-125] == b"TAG":
            tail = tail[:-128]
        elif tail[-32:-24] == b"APETAGEX":
            has_header = tail[-9] & 128
            length = int.from_bytes(tail[-20:-16], "little") + (32 if has_header else 0)
            tail = tail[: max(0, len(tail) - max(length, 32))]
        elif tail[-10:-7] == b"3DI":
            length = sum(
                (byte & 127) << shift for byte, shift in zip(tail[-4:], (21, 14, 7, 0), strict=True)
            )
            tail = tail[: max(0, len(tail) - length - 20)]
        elif (start := tail.rfind(b"ID3")) >= 0 and _find_id3_end(tail, start) == len(tail):
            tail = tail[:start]
        else:
            return tail


def _find_id3_end(data: bytes, start: int) -> int:
    """Return the end of an ID3v2 tag; 0 if none begins there."""
    head = data[start : start + 10]
    if len(head) < 10 or max(head[6:]) > 127:
        return 0
    length = sum(byte << shift for byte, shift in zip(head[6:], (21, 14, 7, 0), strict=True))
    return start + 10 + length
