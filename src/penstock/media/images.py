"""Bytes of samples as values: images as arrays, tensors or Pillow images; JSON, text, numbers and
arrays.

A decoder is a function to map with, so decoding runs in the workers:

>>> import penstock as ps
>>> ds = ps.from_sequence([{"__key__": "001", "txt": b"a cat", "json": b'{"id": 7}'}]).map(Decode("rgb8"))
>>> ds[0]
{'__key__': '001', 'txt': 'a cat', 'json': {'id': 7}}
"""

from __future__ import annotations

import importlib
import io
import json
import logging
import math
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import ConfigError, DataError, missing_extra
from .claims import require_end_of_gif

_MODES = {"l": "L", "rgb": "RGB", "rgba": "RGBA"}
KINDS: Mapping[str, tuple[str, str]] = {
    **{
        f"{name}{bits}": (f"numpy{bits}", mode)
        for name, mode in _MODES.items()
        for bits in ("", "8")
    },
    **{
        f"torch{name}{bits}": (f"torch{bits}", mode)
        for name, mode in _MODES.items()
        for bits in ("", "8")
    },
    **{f"pil{name}": ("pil", mode) for name, mode in _MODES.items()},
    "torch": ("torch", "RGB"),
    "pil": ("pil", "RGB"),
}
"""What an image can be decoded to: container and number type, and mode."""

# Formats of pictures only: others that Pillow knows start programs (EPS) or hold no picture.
_FORMATS = (
    "AVIF",
    "BMP",
    "GIF",
    "ICO",
    "JPEG",
    "JPEG2000",
    "MPO",
    "PCX",
    "PNG",
    "PPM",
    "SGI",
    "TGA",
    "TIFF",
    "WEBP",
)
_PCX = b"\x0a\x05\x01\x08"  # of 8 bits; with one plane it ends with 256 colours
_PALETTE = 769
_ORIENTATION = 0x0112  # the tag of EXIF
_TURNS = (
    "FLIP_LEFT_RIGHT ROTATE_180 FLIP_TOP_BOTTOM TRANSPOSE ROTATE_270 TRANSVERSE ROTATE_90".split()
)  # from 2 on
_PNG = b"\x89PNG\r\n\x1a\n"
_IMAGES = "avif apng bmp gif ico j2k jfif jp2 jpe jpeg jpg mpo pbm pcx pgm png pnm ppm sgi tga tif tiff webp".split()


def decode_image(
    data: bytes, kind: str = "torchrgb", *, key: str = "", orient: bool = False
) -> Any:
    """An image, decoded: `kind` is a container and a mode, in the words that WebDataset and Energon
    use.

    | kind | gives |
    |---|---|
    | `rgb`, `rgba`, `l` | NumPy, float32 in [0, 1], height x width x channels (`l`: height x width) |
    | `rgb8`, `rgba8`, `l8` | the same, uint8 in [0, 255] |
    | `torchrgb` (`torch`), `torchrgb8`, `torchl`, ... | torch, channels x height x width (`torchl`: height x width) |
    | `pilrgb` (`pil`), `pilrgba`, `pill` | a Pillow image, loaded |

    Pixels are those that Pillow decodes. With `orient` they are turned and mirrored as the EXIF
    orientation of the file says; else they lie as the camera held them, but for TIFF, which Pillow
    turns in any case. JPEG goes through simplejpeg where that is installed, which is faster, gives
    the same pixels, and tells a picture whose data ends too early. A `DataError` naming `key` for
    what is no image, is damaged or cut off, has more pixels than `PIL.Image.MAX_IMAGE_PIXELS`, or
    has one channel of 16 or 32 bits (they would be clipped; of colours of 16 bits Pillow gives the
    upper 8).

    >>> from PIL import Image
    >>> file = io.BytesIO()
    >>> Image.new("RGB", (3, 2), (255, 0, 51)).save(file, "png")
    >>> decode_image(file.getvalue(), "rgb")[1, 2].tolist()
    [1.0, 0.0, 0.20000000298023224]
    """
    container, mode = kind_of_image(kind)
    try:
        turn = _turn(data) if orient else None
        pixels = None if container == "pil" or turn is not None else _jpeg(data, mode)
        if pixels is None:
            image = _image(data, mode) if turn is None else _image(data, mode).transpose(turn)
            if container == "pil":
                return image
            pixels = np.array(image)
    except ImportError:
        raise
    except Exception as error:  # decoders raise what they like
        raise DataError(f"the image cannot be decoded: {error}", where=key) from error
    return contained(pixels, container)


def decode_part(
    name: str, data: bytes, kind: str | None = "torchrgb", *, key: str = "", orient: bool = False
) -> Any:
    """One part of a sample, decoded by the extension at the end of its name.

    Images as `decode_image` does (`kind=None` leaves them, `orient=True` turns them upright),
    `json` and `jsn` as JSON, `txt`, `text` and `transcript` as text, `cls`, `cls2`, `index`, `inx`
    and `id` as a number, `npy` as an array. All
    else stays bytes, pickles too: they are code, not data.

    >>> decode_part("json", b"[1, 2]"), decode_part("cls", b"7"), decode_part("mp4", b"..")
    ([1, 2], 7, b'..')
    """
    extension = name.rpartition(".")[2].lower()
    if extension in _IMAGES:
        return (
            data
            if kind is None
            else decode_image(data, kind, key=f"{key}.{name}" if key else name, orient=orient)
        )
    decode = _DECODERS.get(extension)
    if decode is None:
        return data
    try:
        return decode(data)
    except (ValueError, RecursionError) as error:
        raise DataError(
            f"the part cannot be decoded: {error}", where=f"{key}.{name}" if key else name
        ) from error


@dataclass(frozen=True)
class Decode:
    """Decode all parts of samples; names that begin with `__` stay as they are.

    With `orient` pictures are turned as their EXIF orientation says.

    >>> Decode(None)({"__key__": "001", "txt": b"a cat", "jpg": b"..."})
    {'__key__': '001', 'txt': 'a cat', 'jpg': b'...'}
    """

    kind: str | None = "torchrgb"
    orient: bool = False

    def __post_init__(self) -> None:
        if self.kind is not None:
            kind_of_image(self.kind)

    def __call__(self, sample: Mapping[str, Any]) -> dict[str, Any]:
        key = str(sample.get("__key__", ""))
        return {
            name: decode_part(name, value, self.kind, key=key, orient=self.orient)
            if isinstance(value, bytes) and not name.startswith("__")
            else value
            for name, value in sample.items()
        }


def _turn(data: bytes) -> Any:
    """Return the transposition of Pillow that stands a picture up; None where it stands or does not
    say."""
    with opened_image(io.BytesIO(data)) as image:
        turned = image.format == "TIFF"  # by Pillow itself, when it decodes it
        orientation = None if turned else image.getexif().get(_ORIENTATION)
    turns = dict(enumerate(_TURNS, 2))
    return _pillow().Transpose[turns[orientation]] if orientation in turns else None


def opened_image(file: Any) -> Any:
    """A picture whose header was read, and no more."""
    return _pillow().open(file, formats=_formats())


def scaled_jpeg(data: bytes, kind: str, least: int) -> Any:
    """A JPEG at a half, a quarter or an eighth of its size, the smallest of which no side is below
    `least`; None for what is no JPEG, or not that large. The same by simplejpeg and by Pillow.
    """
    container, mode = kind_of_image(kind)
    if not data.startswith(b"\xff\xd8") or mode == "RGBA":
        return None
    with opened_image(io.BytesIO(data)) as image:
        width, height = image.size
        part = next((part for part in (8, 4, 2) if -(-min(width, height) // part) >= least), 1)
        if part == 1 or image.mode not in ("RGB", "L"):
            return None
        _limit(width, height)
        jpeg, wide, high = _simplejpeg(), -(-width // part), -(-height // part)
        if (
            jpeg is not None
            and container != "pil"
            and (mode, image.mode) in (("RGB", "RGB"), ("L", "L"))
        ):
            found = jpeg.decode_jpeg(
                data, "RGB" if mode == "RGB" else "GRAY", min_height=high, min_width=wide
            )
            return contained(found if mode == "RGB" else found[:, :, 0], container)
        _require_whole(data)
        image.draft(mode, (width // part, height // part))
        scaled = image.convert(mode)
    return scaled if container == "pil" else contained(np.array(scaled), container)


def kind_of_image(kind: str) -> tuple[str, str]:
    """Container and mode of a kind of image; a `ConfigError` if there is no such kind."""
    if kind not in KINDS:
        raise ConfigError(f"unknown kind of image {kind!r}: known are {', '.join(sorted(KINDS))}")
    return KINDS[kind]


def _jpeg(data: bytes, mode: str) -> npt.NDArray[np.uint8] | None:
    """The pixels of a JPEG file, where simplejpeg gives just those that Pillow would."""
    jpeg = _simplejpeg()
    if jpeg is None or not data.startswith(b"\xff\xd8") or mode == "RGBA":
        return None
    try:
        height, width, colours, _ = jpeg.decode_jpeg_header(data)
        if colours != "Gray" and (colours != "YCbCr" or mode == "L"):
            return None
        _limit(width, height)
        return (
            jpeg.decode_jpeg(data, "RGB")
            if mode == "RGB"
            else jpeg.decode_jpeg(data, "GRAY")[:, :, 0]
        )
    except ValueError:
        return None  # Pillow judges what is odd, and says what is wrong


def _image(data: bytes, mode: str) -> Any:
    _require_whole(data)
    pillow = _pillow()
    with pillow.open(io.BytesIO(data), formats=_formats()) as image:
        _limit(*image.size)
        if image.mode.startswith(("I", "F")):
            raise ValueError(
                f"its pixels are of Pillow's mode {image.mode!r}, which has no 8 bits a channel"
            )
        if image.mode == "P" and isinstance(image.info.get("transparency"), bytes):
            image = image.convert("RGBA")
        converted = image.convert(mode)
        converted.load()
        return converted


def _require_whole(data: bytes) -> None:
    """Refuse a picture of which Pillow would give a part, and the rest grey or damaged."""
    strict = _image_file()
    if strict.LOAD_TRUNCATED_IMAGES:
        strict.LOAD_TRUNCATED_IMAGES = False
        logging.getLogger("penstock").warning(
            "PIL.ImageFile.LOAD_TRUNCATED_IMAGES is turned off: pictures that were cut off would "
            "be partly grey"
        )
    jpeg = _simplejpeg()
    if jpeg is not None and data.startswith(b"\xff\xd8"):
        try:
            jpeg.decode_jpeg(data, "GRAY", min_height=1, min_width=1)
        except ValueError as error:
            if "remature end" in str(
                error
            ):  # what else is odd does not make pixels grey, or Pillow refuses it
                raise
    elif data.startswith(_PCX) and data[65:66] == b"\x01" and data[-_PALETTE:][:1] != b"\x0c":
        raise ValueError("it is cut off: it does not end with its palette")
    elif data.startswith(b"GIF8"):
        require_end_of_gif(io.BytesIO(data), len(data))
    elif data.startswith(_PNG):
        at, name, view = len(_PNG), b"", memoryview(data)
        while at + 12 <= len(data) and name != b"IEND":
            end, name = (
                at + 8 + int.from_bytes(view[at : at + 4], "big"),
                bytes(view[at + 4 : at + 8]),
            )
            critical = not name[0] & 32  # a capital first letter
            if critical and zlib.crc32(view[at + 4 : end]) != int.from_bytes(
                view[end : end + 4], "big"
            ):
                raise ValueError(
                    f"the checksum of its chunk at byte {at:,} is wrong: it is damaged, or was cut "
                    "off"
                )
            at = end + 4
        if name != b"IEND":
            raise ValueError("it is cut off: it does not end with the chunk that ends a PNG")


def _limit(width: int, height: int) -> None:
    most = _pillow().MAX_IMAGE_PIXELS
    if most is not None and width * height > most:
        raise ValueError(
            f"it has {width:,} x {height:,} pixels, more than PIL.Image.MAX_IMAGE_PIXELS "
            f"({most:,}): raise that if "
            "you trust the data"
        )


def contained(pixels: npt.NDArray[np.uint8], container: str) -> Any:
    """Pixels in the container that was asked for."""
    tensor = container.startswith("torch")
    if tensor and pixels.ndim == 3:
        pixels = np.ascontiguousarray(pixels.transpose(2, 0, 1))
    values: Any = pixels if container.endswith("8") else pixels.astype(np.float32) / np.float32(255)
    return _torch().from_numpy(np.ascontiguousarray(values)) if tensor else values


def _array(data: bytes) -> npt.NDArray[Any]:
    """An `.npy` file. Its header says how much follows, and nothing is allocated before that is
    seen to be here."""
    file = io.BytesIO(data)
    readers = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }
    try:
        shape, fortran, dtype = readers[np.lib.format.read_magic(file)](file)
    except Exception as error:  # it is parsed as Python, and fails in as many ways
        raise ValueError(
            f"the header of the array is damaged, or of an unknown version: {error}"
        ) from error
    if dtype.hasobject:
        raise ValueError("an array of Python objects is a pickle, which is code and not data")
    count = math.prod(shape)
    if min(shape, default=0) < 0 or count * dtype.itemsize != len(data) - file.tell():
        raise ValueError(
            f"{len(data) - file.tell():,} bytes follow where {count * dtype.itemsize:,} belong"
        )
    return (
        np.frombuffer(data, dtype, count, file.tell())
        .reshape(shape, order="F" if fortran else "C")
        .copy()
    )


_DECODERS: Mapping[str, Callable[[bytes], Any]] = {
    **dict.fromkeys(("txt", "text", "transcript"), bytes.decode),
    **dict.fromkeys(("json", "jsn"), json.loads),
    **dict.fromkeys(("cls", "cls2", "index", "inx", "id"), int),
    "npy": _array,
}


@cache
def _pillow() -> Any:
    try:
        return importlib.import_module("PIL.Image")
    except ModuleNotFoundError:
        raise missing_extra("pillow", "images", "decoding images") from None


@cache
def _image_file() -> Any:
    return importlib.import_module("PIL.ImageFile")


@cache
def _formats() -> list[str]:
    pillow = _pillow()
    pillow.init()
    return [name for name in _FORMATS if name in pillow.OPEN]


@cache
def _simplejpeg() -> ModuleType | Any:
    try:
        return importlib.import_module("simplejpeg")
    except ModuleNotFoundError:
        return None


@cache
def _torch() -> Any:
    try:
        return importlib.import_module("torch")
    except ModuleNotFoundError:
        raise missing_extra("torch", "torch", "decoding images to tensors") from None
