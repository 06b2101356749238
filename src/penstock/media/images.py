"""Decode images to arrays, tensors or Pillow images; decode JSON, text, numbers and arrays.

`Decode` is a function for `map`, so decoding runs in the workers:

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

from ..errors import ConfigError, DataError, make_missing_extra_error
from ..stores.json_memory import decode_text, require_small_json
from .claims import require_end_of_gif, spell_reason

_PILLOW_MODES = {"l": "L", "rgb": "RGB", "rgba": "RGBA"}
IMAGE_KINDS: Mapping[str, tuple[str, str]] = {
    **{
        f"{name}{bits}": (f"numpy{bits}", mode)
        for name, mode in _PILLOW_MODES.items()
        for bits in ("", "8")
    },
    **{
        f"torch{name}{bits}": (f"torch{bits}", mode)
        for name, mode in _PILLOW_MODES.items()
        for bits in ("", "8")
    },
    **{f"pil{name}": ("pil", mode) for name, mode in _PILLOW_MODES.items()},
    "torch": ("torch", "RGB"),
    "pil": ("pil", "RGB"),
}
"""Kind of a decoded image -> container with number type, and mode."""

# Image formats only: other Pillow formats start programs (EPS) or hold no image.
_PILLOW_FORMATS = (
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
_PCX_MAGIC = b"\x0a\x05\x01\x08"  # 8 bits; with one plane, a palette of 256 colours ends the file
_PCX_PALETTE_BYTES = 769
_ORIENTATION = 0x0112  # EXIF tag
# Pillow transpositions for the EXIF orientations from 2 on.
_TRANSPOSITIONS = (
    "FLIP_LEFT_RIGHT ROTATE_180 FLIP_TOP_BOTTOM TRANSPOSE ROTATE_270 TRANSVERSE ROTATE_90".split()
)
_PNG_MAGIC = b"\x89PNG\r\n\x1a\n"
_IMAGE_EXTENSIONS = (
    "avif apng bmp gif ico j2k jfif jp2 jpe jpeg jpg mpo pbm pcx pgm png pnm ppm sgi tga tif tiff webp"
).split()


def decode_image(
    data: bytes, kind: str = "torchrgb", *, key: str = "", orient: bool = False
) -> Any:
    """Decode an image; `kind` is a container and a mode, as in WebDataset and Energon.

    | kind | gives |
    |---|---|
    | `rgb`, `rgba`, `l` | NumPy, float32 in [0, 1], height x width x channels (`l`: height x width) |
    | `rgb8`, `rgba8`, `l8` | NumPy, uint8 in [0, 255] |
    | `torchrgb` (`torch`), `torchrgb8`, `torchl`, ... | torch, channels x height x width (`torchl`: height x width) |
    | `pilrgb` (`pil`), `pilrgba`, `pill` | a Pillow image, loaded |

    Pixels are those of Pillow. If simplejpeg is installed, it decodes JPEG faster to the same
    pixels, and detects data that ends too early. Without `orient`, Pillow still rotates TIFF.

    Args:
        data: the bytes of the file.
        kind: a kind of the table.
        key: the key of the sample, for errors.
        orient: rotate and mirror the image as its EXIF orientation says.

    Returns:
        The image in the container and shape of the table. 16-bit colours keep their upper 8 bits.

    Raises:
        ConfigError: for an unknown `kind`.
        DataError: if the image is invalid, corrupted or cut off; if it has more than
            `PIL.Image.MAX_IMAGE_PIXELS` pixels; if it has one channel of 16 or 32 bits, which would
            be clipped.

    >>> from PIL import Image
    >>> file = io.BytesIO()
    >>> Image.new("RGB", (3, 2), (255, 0, 51)).save(file, "png")
    >>> decode_image(file.getvalue(), "rgb")[1, 2].tolist()
    [1.0, 0.0, 0.20000000298023224]
    """
    container, mode = parse_image_kind(kind)
    try:
        turn = _read_transposition(data) if orient else None
        pixels = None if container == "pil" or turn is not None else _decode_fast_jpeg(data, mode)
        if pixels is None:
            image = (
                _decode_by_pillow(data, mode)
                if turn is None
                else _decode_by_pillow(data, mode).transpose(turn)
            )
            if container == "pil":
                return image
            pixels = np.array(image)
    except ImportError:
        raise
    except Exception as error:  # decoders raise any type
        reason = spell_reason(error)
        raise DataError(f"the image cannot be decoded: {reason}", where=key) from error
    return to_container(pixels, container)


def decode_part(
    name: str, data: bytes, kind: str | None = "torchrgb", *, key: str = "", orient: bool = False
) -> Any:
    """Decode one part of a sample by the extension of its name.

    | extension | decoded as |
    |---|---|
    | of images | `decode_image`; unchanged if `kind` is `None` |
    | `json`, `jsn` | JSON |
    | `txt`, `text`, `transcript` | text |
    | `cls`, `cls2`, `index`, `inx`, `id` | an integer |
    | `npy` | an array |

    All other parts stay bytes. So do pickles, which are code, not data.

    Args:
        name: the name of the part.
        data: its bytes.
        kind: the kind of images.
        key: the key of the sample, for errors.
        orient: rotate images as their EXIF orientation says.

    Returns:
        The decoded value; `data` itself for an extension outside the table.

    Raises:
        ConfigError: for an unknown `kind`, when the part is an image.
        DataError: for a part that is invalid or corrupted; it names `key` and `name`.

    >>> decode_part("json", b"[1, 2]"), decode_part("cls", b"7"), decode_part("mp4", b"..")
    ([1, 2], 7, b'..')
    """
    extension = name.rpartition(".")[2].lower()
    if extension in _IMAGE_EXTENSIONS:
        return (
            data
            if kind is None
            else decode_image(data, kind, key=f"{key}.{name}" if key else name, orient=orient)
        )
    decode = _DECODERS_BY_EXTENSION.get(extension)
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
    """Decode all parts of samples, except names that begin with `__`.

    Args:
        kind: the kind of images, as for `decode_image`; `None` leaves them as bytes.
        orient: rotate images as their EXIF orientation says.

    >>> Decode(None)({"__key__": "001", "txt": b"a cat", "jpg": b"..."})
    {'__key__': '001', 'txt': 'a cat', 'jpg': b'...'}
    """

    kind: str | None = "torchrgb"
    orient: bool = False

    def __post_init__(self) -> None:
        if self.kind is not None:
            parse_image_kind(self.kind)

    def __call__(self, sample: Mapping[str, Any]) -> dict[str, Any]:
        require_mapping(sample, "Decode")
        key = str(sample.get("__key__", ""))
        return {
            name: decode_part(name, value, self.kind, key=key, orient=self.orient)
            if isinstance(value, bytes) and not name.startswith("__")
            else value
            for name, value in sample.items()
        }


def require_mapping(sample: Any, step: str) -> None:
    """Raise `DataError` if a sample is not a mapping of fields.

    Args:
        sample: the sample that a class of this package gets.
        step: the name of the class, for the message.
    """
    if not isinstance(sample, Mapping):
        raise DataError(
            f"{step}: the sample is a {type(sample).__name__}, not a mapping of fields; map it to "
            "one before, such as {'image': sample}"
        )


def _read_transposition(data: bytes) -> Any:
    """Return the Pillow transposition of the EXIF orientation; `None` if there is none."""
    with open_image(io.BytesIO(data)) as image:
        turned = image.format == "TIFF"  # Pillow rotates it while decoding
        orientation = None if turned else image.getexif().get(_ORIENTATION)
    turns = dict(enumerate(_TRANSPOSITIONS, 2))
    return _import_pillow().Transpose[turns[orientation]] if orientation in turns else None


def open_image(file: Any) -> Any:
    """Open an image with Pillow, which reads the header only."""
    return _import_pillow().open(file, formats=_list_pillow_formats())


def decode_scaled_jpeg(data: bytes, kind: str, least: int) -> Any:
    """Decode a JPEG at a half, a quarter or an eighth of its size.

    simplejpeg and Pillow give the same pixels.

    Args:
        data: the bytes of the file.
        kind: container and mode.
        least: no side of the result is shorter than this.

    Returns:
        The image; `None` if it is no JPEG, or too small to scale.
    """
    container, mode = parse_image_kind(kind)
    if not data.startswith(b"\xff\xd8") or mode == "RGBA":
        return None
    with open_image(io.BytesIO(data)) as image:
        width, height = image.size
        divisor = next(
            (divisor for divisor in (8, 4, 2) if -(-min(width, height) // divisor) >= least), 1
        )
        if divisor == 1 or image.mode not in ("RGB", "L"):
            return None
        _require_pixel_limit(width, height)
        jpeg, scaled_width, scaled_height = (
            _import_simplejpeg(),
            -(-width // divisor),
            -(-height // divisor),
        )
        if (
            jpeg is not None
            and container != "pil"
            and (mode, image.mode) in (("RGB", "RGB"), ("L", "L"))
        ):
            pixels = jpeg.decode_jpeg(
                data,
                "RGB" if mode == "RGB" else "GRAY",
                min_height=scaled_height,
                min_width=scaled_width,
            )
            return to_container(pixels if mode == "RGB" else pixels[:, :, 0], container)
        _require_complete(data)
        image.draft(mode, (width // divisor, height // divisor))
        scaled = image.convert(mode)
    return scaled if container == "pil" else to_container(np.array(scaled), container)


def parse_image_kind(kind: str) -> tuple[str, str]:
    """Return container and mode of a kind of image.

    Raises:
        ConfigError: for an unknown kind.
    """
    if kind not in IMAGE_KINDS:
        raise ConfigError(
            f"unknown kind of image {kind!r}: use one of {', '.join(sorted(IMAGE_KINDS))}"
        )
    return IMAGE_KINDS[kind]


def _decode_fast_jpeg(data: bytes, mode: str) -> npt.NDArray[np.uint8] | None:
    """Decode a JPEG by simplejpeg if it gives the pixels of Pillow; otherwise return `None`."""
    jpeg = _import_simplejpeg()
    if jpeg is None or not data.startswith(b"\xff\xd8") or mode == "RGBA":
        return None
    try:
        height, width, colours, _ = jpeg.decode_jpeg_header(data)
        if colours != "Gray" and (colours != "YCbCr" or mode == "L"):
            return None
        _require_pixel_limit(width, height)
        return (
            jpeg.decode_jpeg(data, "RGB")
            if mode == "RGB"
            else jpeg.decode_jpeg(data, "GRAY")[:, :, 0]
        )
    except ValueError:
        return None  # Pillow reports the error, if it is one


def _decode_by_pillow(data: bytes, mode: str) -> Any:
    _require_complete(data)
    pillow = _import_pillow()
    with pillow.open(io.BytesIO(data), formats=_list_pillow_formats()) as image:
        _require_pixel_limit(*image.size)
        if image.mode.startswith(("I", "F")):
            raise ValueError(
                f"its pixels have Pillow's mode {image.mode!r}, without 8 bits per channel: convert it"
            )
        if image.mode == "P" and isinstance(image.info.get("transparency"), bytes):
            image = image.convert("RGBA")
        converted = image.convert(mode)
        converted.load()
        return converted


def _require_complete(data: bytes) -> None:
    """Raise `ValueError` for an image that Pillow would decode partly grey or damaged."""
    strict = _import_image_file()
    if strict.LOAD_TRUNCATED_IMAGES:
        strict.LOAD_TRUNCATED_IMAGES = False
        logging.getLogger("penstock").warning(
            "PIL.ImageFile.LOAD_TRUNCATED_IMAGES is turned off: images that were cut off would be "
            "partly grey"
        )
    jpeg = _import_simplejpeg()
    if jpeg is not None and data.startswith(b"\xff\xd8"):
        try:
            jpeg.decode_jpeg(data, "GRAY", min_height=1, min_width=1)
        except ValueError as error:
            # Other errors leave no grey pixels, or Pillow raises too.
            if "remature end" in str(error):
                raise
    elif (
        data.startswith(_PCX_MAGIC)
        and data[65:66] == b"\x01"
        and data[-_PCX_PALETTE_BYTES:][:1] != b"\x0c"
    ):
        raise ValueError("it is cut off: it does not end with its palette")
    elif data.startswith(b"GIF8"):
        require_end_of_gif(io.BytesIO(data), len(data))
    elif data.startswith(_PNG_MAGIC):
        offset, name, view = len(_PNG_MAGIC), b"", memoryview(data)
        while offset + 12 <= len(data) and name != b"IEND":
            end, name = (
                offset + 8 + int.from_bytes(view[offset : offset + 4], "big"),
                bytes(view[offset + 4 : offset + 8]),
            )
            critical = not name[0] & 32  # a capital first letter
            if critical and zlib.crc32(view[offset + 4 : end]) != int.from_bytes(
                view[end : end + 4], "big"
            ):
                raise ValueError(
                    f"the checksum of its chunk at byte {offset:,} is wrong: it is damaged, or was cut "
                    "off"
                )
            offset = end + 4
        if name != b"IEND":
            raise ValueError("it is cut off: it does not end with the chunk that ends a PNG")


def _require_pixel_limit(width: int, height: int) -> None:
    limit = _import_pillow().MAX_IMAGE_PIXELS
    if limit is not None and width * height > limit:
        raise ValueError(
            f"it has {width:,} x {height:,} pixels, more than PIL.Image.MAX_IMAGE_PIXELS "
            f"({limit:,}): raise that limit if you trust the data"
        )


def to_container(pixels: npt.NDArray[np.uint8], container: str) -> Any:
    """Return pixels in a container and number type.

    Args:
        pixels: uint8[height, width, channels], or [height, width].
        container: the first entry of a value of `IMAGE_KINDS`.
    """
    tensor = container.startswith("torch")
    if tensor and pixels.ndim == 3:
        pixels = np.ascontiguousarray(pixels.transpose(2, 0, 1))
    values: Any = pixels if container.endswith("8") else pixels.astype(np.float32) / np.float32(255)
    return _import_torch().from_numpy(np.ascontiguousarray(values)) if tensor else values


def _decode_npy(data: bytes) -> npt.NDArray[Any]:
    """Decode an `.npy` file; compare the size in its header before allocating memory."""
    file = io.BytesIO(data)
    readers = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }
    try:
        shape, fortran, dtype = readers[np.lib.format.read_magic(file)](file)
    except Exception as error:  # it is parsed as Python, so any error is possible
        raise ValueError(
            f"the header of the array is damaged, or of an unknown version: {error}"
        ) from error
    if dtype.hasobject:
        raise ValueError("an array of Python objects is a pickle, which is code and not data")
    count = math.prod(shape)
    if min(shape, default=0) < 0 or count * dtype.itemsize != len(data) - file.tell():
        raise ValueError(
            f"{len(data) - file.tell():,} bytes follow the header, which claims {count * dtype.itemsize:,}"
        )
    return (
        np.frombuffer(data, dtype, count, file.tell())
        .reshape(shape, order="F" if fortran else "C")
        .copy()
    )


def _decode_json(data: bytes) -> Any:
    return json.loads(require_small_json(data))


_DECODERS_BY_EXTENSION: Mapping[str, Callable[[bytes], Any]] = {
    **dict.fromkeys(("txt", "text", "transcript"), decode_text),
    **dict.fromkeys(("json", "jsn"), _decode_json),
    **dict.fromkeys(("cls", "cls2", "index", "inx", "id"), int),
    "npy": _decode_npy,
}


@cache
def _import_pillow() -> Any:
    try:
        return importlib.import_module("PIL.Image")
    except ModuleNotFoundError:
        raise make_missing_extra_error("pillow", "images", "decoding images") from None


@cache
def _import_image_file() -> Any:
    _import_pillow()
    return importlib.import_module("PIL.ImageFile")


@cache
def _list_pillow_formats() -> list[str]:
    pillow = _import_pillow()
    pillow.init()
    return [name for name in _PILLOW_FORMATS if name in pillow.OPEN]


@cache
def _import_simplejpeg() -> ModuleType | Any:
    try:
        return importlib.import_module("simplejpeg")
    except ModuleNotFoundError:
        return None


@cache
def _import_torch() -> Any:
    try:
        return importlib.import_module("torch")
    except ModuleNotFoundError:
        raise make_missing_extra_error("torch", "torch", "decoding images to tensors") from None
