"""Parser of tar headers: the offset of each member, and its sample and part.

It supports the ustar format, GNU long names and pax headers. It extracts nothing, and uses no name
as a path. It rejects members that cannot be read in place (links, sparse files, volumes) and all
damage, so that a truncated archive never passes for a complete one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from ..errors import DataError

TAR_BLOCK_BYTES = 512
_MAX_EXTENSION_BYTES = (
    1 << 20
)  # bytes of a long name or of pax records; real ones have a few hundred
_ZERO_BLOCK = bytes(TAR_BLOCK_BYTES)
_FILES, _EXTENSIONS, _NOTES = "07\0", "LKxXg", "DV"
_DATALESS_KINDS = {
    "1": "a hard link",
    "2": "a symbolic link",
    "3": "a device",
    "4": "a device",
    "5": "",
    "6": "a pipe",
}
_COMPRESSION_MAGICS = {
    b"\x1f\x8b": "gzip",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"BZh": "bzip2",
    b"\xfd7zXZ": "xz",
}

ReadBytes = Callable[[int, int], bytes]
"""`get(offset, length)` returns bytes of the archive, fewer at its end."""


class TarMember(NamedTuple):
    """One member: name, kind, offset of its first header, and offset and size of its data.

    A long name precedes the header proper, and counts as the first header.
    """

    name: str
    kind: str
    start: int
    data: int
    size: int


class MemberIterator:
    """The members that begin in `[start, stop)`, up to the zero blocks that end an archive.

    `at` is the offset reached.

    >>> import io, tarfile
    >>> file = io.BytesIO()
    >>> with tarfile.open(fileobj=file, mode="w") as archive:
    ...     archive.addfile(tarfile.TarInfo("001.txt"), io.BytesIO())
    >>> data = file.getvalue()
    >>> def get(offset, length): return data[offset : offset + length]
    >>> [member.name for member in MemberIterator(get, 0, len(data), "x.tar")]
    ['001.txt']
    """

    def __init__(self, get: ReadBytes, start: int, stop: int, name: str) -> None:
        self.at = start
        self._get, self._stop, self._name = get, stop, name

    def __iter__(self) -> Iterator[TarMember]:
        while self.at < self._stop:
            member = self._next()
            if member is None:
                return
            yield member

    def _next(self) -> TarMember | None:
        start, long, size, sparse = self.at, "", -1, False
        while True:
            at = self.at
            block = self._get(at, TAR_BLOCK_BYTES)
            if block == _ZERO_BLOCK:
                if at != start:
                    raise self._bad(
                        "the archive ends after a long name or pax header, which a member must "
                        "follow: it is damaged",
                        at,
                    )
                return None
            kind, own_size = self._kind_and_size(block, at)
            if kind not in _EXTENSIONS:
                break
            body = self._body(at, own_size)
            if kind == "L":
                long = _decode_header_text(body)
            elif kind == "g":
                self._refuse_global(parse_pax(body), at)
                start = self.at if at == start else start
            elif kind in "xX":
                pax = self._records(body, at)
                long = pax.get(b"path", b"").decode("utf-8", "surrogateescape") or long
                size = int(pax.get(b"size", b"%d" % size))
                sparse |= any(key.startswith(b"GNU.sparse.") for key in pax)
        return self._member(block, kind, start, long, own_size if size < 0 else size, sparse)

    def _member(
        self, block: bytes, kind: str, start: int, long: str, size: int, sparse: bool
    ) -> TarMember:
        at = self.at
        name = long or _parse_member_name(block)
        if kind in "SM" or sparse:
            description = (
                "the rest of a file begun in another volume" if kind == "M" else "a sparse file"
            )
            raise self._bad(
                f"{name!r} is {description}, which cannot be read in place: make the archive "
                "without",
                at,
            )
        if kind not in _FILES and kind not in _NOTES and kind not in _DATALESS_KINDS:
            raise self._bad(f"{name!r} is a member of the unknown type {kind!r}", at)
        if kind in _FILES and name.endswith("/"):
            kind = "5"  # archives from before 1988 write folders as files
        self.at = at + TAR_BLOCK_BYTES
        if kind not in _DATALESS_KINDS:
            if self.at + size > self._stop:
                raise self._bad(
                    f"the archive is cut off: {name!r} has {size:,} bytes, and "
                    f"{self._stop - self.at:,} are here",
                    at,
                )
            self.at += round_to_blocks(size)
        return TarMember(name, kind, start, at + TAR_BLOCK_BYTES, size)

    def _kind_and_size(self, block: bytes, at: int) -> tuple[str, int]:
        if len(block) < TAR_BLOCK_BYTES:
            raise self._bad("the archive is cut off in a header", at)
        try:
            stored, size = parse_number(block[148:156]), parse_number(block[124:136])
            unsummed = block[:148] + block[156:]
            total = sum(unsummed) + 256
            # Some old programs sum signed bytes.
            is_valid = stored == total or stored == total - 256 * sum(
                byte > 127 for byte in unsummed
            )
        except ValueError:
            is_valid, size = False, 0
        if not is_valid or size < 0:
            compression = next(
                (
                    word
                    for magic, word in _COMPRESSION_MAGICS.items()
                    if not at and block.startswith(magic)
                ),
                "",
            )
            if compression:
                raise self._bad(
                    f"this is {compression} data, no tar archive: unpack it, or name it .tar.gz or "
                    ".tar.zst",
                    at,
                )
            raise self._bad(
                "a tar header is missing here: the archive is damaged, or it is none", at
            )
        return chr(block[156]), size

    def _body(self, at: int, size: int) -> bytes:
        if size > _MAX_EXTENSION_BYTES:
            raise self._bad(
                f"a long name or pax header has {size:,} bytes, more than {_MAX_EXTENSION_BYTES:,}: the "
                "archive is damaged",
                at,
            )
        body = self._get(at + TAR_BLOCK_BYTES, size)
        if len(body) < size:
            raise self._bad("the archive is cut off in a long name or pax header", at)
        self.at = at + TAR_BLOCK_BYTES + round_to_blocks(size)
        return body

    def _records(self, body: bytes, at: int) -> dict[bytes, bytes]:
        pax = parse_pax(body)
        if pax is None or not pax.get(b"size", b"0").isdigit() or len(pax.get(b"size", b"")) > 20:
            raise self._bad("damaged pax records: the archive is damaged", at)
        return pax

    def _refuse_global(self, pax: dict[bytes, bytes] | None, at: int) -> None:
        if pax is None:
            raise self._bad("damaged pax records: the archive is damaged", at)
        if {b"path", b"size"} & pax.keys() or any(key.startswith(b"GNU.sparse.") for key in pax):
            raise self._bad(
                "a global pax header sets the name or size of the members after it: write the "
                "archive again without",
                at,
            )

    def _bad(self, problem: str, at: int) -> DataError:
        return DataError(problem, where=f"{self._name}, byte {at}")


def parse_sample_part(member: TarMember, name: str) -> tuple[str, str] | None:
    """Return key and part of a member, or `None` if it belongs to no sample.

    The key is the path up to the first dot of its last component; the part is the text after that dot.
    Folders, `__meta__` and names without a dot belong to no sample.

    >>> parse_sample_part(TarMember("train/000.seg.png", "0", 0, 512, 7), "x.tar")
    ('train/000', 'seg.png')
    """
    if member.kind == "5" or member.kind in _NOTES:
        return None
    folder, slash, last = member.name.rpartition("/")
    first = (folder or last).partition("/")[0]
    stem, dot, part = last.partition(".")
    if not stem or not dot or (len(first) >= 4 and first.startswith("__") and first.endswith("__")):
        return None
    location = f"{name}, byte {member.start}"
    if member.kind in _DATALESS_KINDS:
        kind = _DATALESS_KINDS[member.kind]
        raise DataError(
            f"{member.name!r} is {kind}, which holds no data: make the archive of plain files (GNU "
            "tar: --dereference --hard-dereference)",
            where=location,
        )
    if part.startswith("__") and part.endswith("__"):
        raise DataError(
            f"the part {part!r} of {member.name!r} has a reserved name: rename it without the "
            "underscores",
            where=location,
        )
    return f"{folder}{slash}{stem}", part


def round_to_blocks(size: int) -> int:
    """Round a size up to full blocks.

    >>> round_to_blocks(0), round_to_blocks(1), round_to_blocks(512)
    (0, 512, 512)
    """
    return -(-size // TAR_BLOCK_BYTES) * TAR_BLOCK_BYTES


def parse_number(field: bytes) -> int:
    r"""Parse a number of a header: octal digits, or base 256 if the first bit is set.

    Raises:
        ValueError: The field is no number.

    >>> parse_number(b"00000000017\0"), parse_number(b"\x80" + bytes(10) + b"\x05"), parse_number(bytes(8))
    (15, 5, 0)
    """
    if field[0] & 0x80:
        if field[0] != 0x80:
            raise ValueError("negative")
        return int.from_bytes(field[1:], "big")
    return int(field.partition(b"\0")[0].strip() or b"0", 8)


def parse_pax(body: bytes) -> dict[bytes, bytes] | None:
    r"""Parse the records of a pax header, each `length key=value` and a newline.

    Returns:
        The values by key; `None` if the header is damaged.

    >>> parse_pax(b"12 path=a.b\n")
    {b'path': b'a.b'}
    """
    values: dict[bytes, bytes] = {}
    offset = 0
    while offset < len(body):
        digits, space, _ = body[offset : offset + 20].partition(b" ")
        stop = offset + int(digits) if space and digits.isdigit() else 0
        key, equals, value = body[offset + len(digits) + 1 : stop].partition(b"=")
        if not offset < stop <= len(body) or not equals or not value.endswith(b"\n"):
            return None
        values[key] = value[:-1]
        offset = stop
    return values


def _decode_header_text(body: bytes) -> str:
    return body.partition(b"\0")[0].decode("utf-8", "surrogateescape")


def _parse_member_name(block: bytes) -> str:
    name = _decode_header_text(block[:100])
    # Only the POSIX format stores a prefix here; GNU's stores times.
    return (
        f"{_decode_header_text(block[345:500])}/{name}"
        if block[345] and block[257:263] == b"ustar\0"
        else name
    )
