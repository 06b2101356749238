"""Handles of media fields, which read and decode bytes when they are used."""

from __future__ import annotations

import importlib
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from ..engine.base.machine import get_pid, make_lock
from ..errors import ConfigError, DataError, make_missing_extra_error
from .blob import Blob, Limits, sample_errors
from .claims import (
    count_ogg_samples,
    find_last_ogg_page,
    require_claimed_bytes,
    require_end_of_flac,
)
from .images import (
    decode_image,
    decode_scaled_jpeg,
    open_image,
    parse_image_kind,
    require_mapping,
)
from .mp3 import SAMPLE_TOLERANCE, count_samples, has_length_mark
from .video import Video

_MP3_HEAD_BYTES = 64 << 10  # bytes that hold the first frame of an MP3 file, after its tags
# A frame of an MP3 may use data of earlier frames: up to 511 bytes, which are 86 of the smallest
# frames. libsndfile decodes only 4 of them after a seek, and returns wrong samples without an error.
_MP3_LEAD_SAMPLES = 128 * 1152
_OGG_LEAD_SAMPLES = 8192  # one block of Vorbis, the longest
_UNKNOWN_LENGTH = 1 << 60  # samples; libsndfile reports the largest number for an unknown length
_PDF_TAIL_BYTES = 4 << 10  # bytes that hold the end of a PDF; some writers append a few bytes


@dataclass(frozen=True)
class Image:
    """Handle of an image, which is read when it is used.

    Args:
        blob: the encoded bytes, or the file that holds them.
        key: the key of the sample, for errors.
        limits: upper bounds; `pixels` and `bytes` apply before the decoder runs.

    >>> import io
    >>> from PIL import Image as Pillow
    >>> file = io.BytesIO()
    >>> Pillow.new("RGB", (30, 20), (255, 0, 51)).save(file, "png")
    >>> picture = Image(Blob(file.getvalue()))
    >>> picture.size, picture.decode("rgb8", crop=(0, 0, 4, 2)).shape
    ((30, 20), (2, 4, 3))
    """

    blob: Blob
    key: str = ""
    limits: Limits = field(default_factory=Limits)

    @property
    def size(self) -> tuple[int, int]:
        """Return width and height, from the header alone."""
        with sample_errors("image", self.key), self.blob.file() as file:
            return open_image(file).size

    def decode(
        self,
        kind: str = "rgb8",
        least: int | None = None,
        crop: tuple[int, int, int, int] | None = None,
    ) -> Any:
        """Return the image as `decode_image` does.

        Args:
            kind: container and mode: "rgb8", "torchrgb", "pil", ...
            least: decode a JPEG at a half, a quarter or an eighth of its size, while no side is
                shorter than this. The decoder then does less work.
            crop: left, top, width and height of a part of the decoded image.

        Raises:
            ConfigError: for an unknown `kind`.
            DataError: if the image is invalid, corrupted or too large; for a crop outside of it.
        """
        parse_image_kind(kind)
        with sample_errors("image", self.key):
            with self.blob.file() as file:
                width, height = open_image(file).size
            self.limits.check("pixels", width * height)
            data = self.blob.read_all(self.limits)
            image = decode_scaled_jpeg(data, kind, least) if least is not None else None
        if image is None:
            image = decode_image(data, kind, key=self.key)
        if crop is None:
            return image
        try:
            left, top, crop_width, crop_height = map(operator.index, crop)
        except (TypeError, ValueError):
            raise DataError(
                f"crop={crop!r}: give four integers (left, top, width, height)", where=self.key
            ) from None
        channels_first = kind.startswith("torch") and image.ndim == 3
        height, width = (
            image.size[::-1]
            if hasattr(image, "crop")
            else image.shape[1:]
            if channels_first
            else image.shape[:2]
        )
        if not (0 <= left < left + crop_width <= width and 0 <= top < top + crop_height <= height):
            raise DataError(
                f"crop={crop}: the picture has {width} x {height} pixels", where=self.key
            )
        if hasattr(image, "crop"):
            return image.crop((left, top, left + crop_width, top + crop_height))
        return (
            image[:, top : top + crop_height, left : left + crop_width]
            if channels_first
            else image[top : top + crop_height, left : left + crop_width]
        )


@dataclass(frozen=True)
class Audio:
    """Handle of a sound, which decodes only the requested part.

    Args:
        blob: the encoded bytes, or the file that holds them.
        key: the key of the sample, for errors.
        limits: upper bounds; `seconds` applies to the sound, `samples` to each request over all
            channels, and `bytes` to MP3 files.
    """

    blob: Blob
    key: str = ""
    limits: Limits = field(default_factory=Limits)

    @property
    def rate(self) -> int:
        """Return the samples per second, from the header alone."""
        with sample_errors("sound", self.key), self._open() as sound:
            return int(sound.samplerate)

    @property
    def seconds(self) -> float:
        """Return the length in seconds, from the header alone."""
        with sample_errors("sound", self.key), self._open() as sound:
            return float(sound.frames / sound.samplerate)

    def samples(self, start: float = 0.0, stop: float | None = None) -> npt.NDArray[np.float32]:
        """Return the sound from `start` to `stop`, as far as it goes.

        Args:
            start: seconds; after the end there are no samples.
            stop: seconds; by default, and at most, the end.

        Returns:
            float32[channels, samples] in [-1, 1].

        Raises:
            DataError: if the sound is invalid, corrupted, cut off or too long; if `stop` is before
                `start`, or `start` is negative.
        """
        with sample_errors("sound", self.key), self._open() as sound:
            rate, frames = sound.samplerate, sound.frames
            self.limits.check("seconds", frames / rate)
            if not 0 <= start <= (math.inf if stop is None else stop):
                raise DataError(
                    f"samples({start}, {stop}): start at 0 or later, and stop after the start",
                    where=self.key,
                )
            first = min(round(min(start, frames / rate) * rate), frames)
            last = frames if stop is None else min(round(min(stop, frames / rate) * rate), frames)
            # GSM, G.72x and others cannot seek.
            skipped = 0 if sound.seekable() else first
            if sound.format == "OGG" and sound.subtype == "VORBIS":
                # In the last page, libsndfile seeks to a wrong sample: read on from the page before.
                last_page = find_last_ogg_page(self.blob.file(), len(self.blob))
                skipped = first - max(0, last_page - _OGG_LEAD_SAMPLES) if first >= last_page else 0
            self.limits.check("samples", (skipped + last - first) * sound.channels)
            if sound.format == "MP3":
                skipped = min(first, _MP3_LEAD_SAMPLES)
            if first > skipped:
                sound.seek(first - skipped)
            data = sound.read(skipped + last - first, dtype="float32", always_2d=True)[skipped:]
            self._require_claimed_length(sound, first + len(data), last)
            return np.ascontiguousarray(data.T)

    def _require_claimed_length(self, sound: Any, decoded: int, requested: int) -> None:
        """Raise `ValueError` if a sound is shorter or longer than its header claims."""
        tolerance, actual = 0, decoded
        if sound.format == "MP3":
            file = self.blob.file()
            tolerance = 0 if has_length_mark(file.read(_MP3_HEAD_BYTES)) else SAMPLE_TOLERANCE
            if requested == sound.frames:
                self.limits.check("bytes", len(self.blob))
                file.seek(0)
                actual = count_samples(file.read())
        if decoded < requested - tolerance or abs(actual - decoded) > SAMPLE_TOLERANCE:
            rate, actual = (
                sound.samplerate,
                min(actual, decoded) if decoded < requested - tolerance else actual,
            )
            raise ValueError(
                f"its header claims {sound.frames / rate:,.2f} s, and it holds {actual / rate:,.2f} "
                "s: it is cut off, or was put together of several files"
            )

        if sound.format == "FLAC" and requested == sound.frames:
            require_end_of_flac(self.blob.file(), len(self.blob), sound.frames)

    def _open(self) -> Any:
        module, file = _import_package("soundfile", "audio", "decoding sound"), self.blob.file()
        if patches := require_claimed_bytes(file, len(self.blob)):
            file = self.blob.file(patches)
        sound = module.SoundFile(file)
        if sound.frames > _UNKNOWN_LENGTH:
            raise ValueError(
                "its header has no length, as if it was written to a pipe: write it again as a file"
            )
        if sound.format == "OGG" and sound.frames < (
            claimed := count_ogg_samples(self.blob.file(), len(self.blob), sound.samplerate)
        ):
            raise ValueError(
                f"it is damaged: {sound.frames:,} of the {claimed:,} samples that it claims are "
                "there"
            )
        return sound


@dataclass(frozen=True)
class Pdf:
    """Handle of a document, which renders pages or extracts text when it is used.

    `len()` returns the number of pages. Calls read the file each time, and run one after another,
    as the library is not safe in threads.

    Args:
        blob: the encoded bytes, or the file that holds them.
        key: the key of the sample, for errors.
        limits: upper bounds; `bytes` and `pages` apply to the document, `pixels` to a rendered
            page.
    """

    blob: Blob
    key: str = ""
    limits: Limits = field(default_factory=Limits)

    def __len__(self) -> int:
        return int(self._run(len))

    def page(self, number: int, dpi: float = 72.0) -> npt.NDArray[np.uint8]:
        """Render a page.

        Args:
            number: the page, from 0.
            dpi: dots per inch.

        Returns:
            uint8[height, width, 3].

        Raises:
            ConfigError: for a `dpi` that is not positive.
            DataError: if the document is invalid, corrupted or cut off, or has too many pages or
                pixels.
        """

        if not dpi > 0:
            raise ConfigError(f"page(dpi={dpi}): give more than 0")

        def render_page(document: Any) -> Any:
            with closing(self._page(document, number)) as page:
                width, height = page.get_size()
                self.limits.check("pixels", width * height * (dpi / 72) ** 2)
                return page.render(scale=dpi / 72, rev_byteorder=True).to_numpy()[..., :3].copy()

        return self._run(render_page)

    def text(self, number: int) -> str:
        """Return the text of a page.

        Args:
            number: the page, from 0.

        Raises:
            DataError: as `page`.
        """

        def extract_text(document: Any) -> str:
            with (
                closing(self._page(document, number)) as page,
                closing(page.get_textpage()) as text,
            ):
                return str(text.get_text_range())

        return self._run(extract_text)

    def _page(self, document: Any, number: int) -> Any:
        if not 0 <= number < len(document):
            raise DataError(f"page {number} of a document of {len(document)} pages", where=self.key)
        return document[number]

    def _run(self, function: Any) -> Any:
        pdfium = _import_package("pypdfium2", "pdf", "reading PDF")

        def call() -> Any:
            with closing(pdfium.PdfDocument(data)) as document:
                self.limits.check("pages", len(document))
                return function(document)

        with sample_errors("document", self.key):
            data = self.blob.read_all(self.limits)
            if b"%%EOF" not in data[-_PDF_TAIL_BYTES:]:
                raise ValueError("it is cut off: it does not end with %%EOF")
            return _PDFIUM_LOCK.run(call)


_HANDLE_TYPES: Mapping[str, Any] = {"image": Image, "audio": Audio, "video": Video, "pdf": Pdf}


@dataclass(frozen=True)
class Lazy:
    """Replace fields of samples by handles that decode when they are used.

    So packing and filters run before the decoder.

    Args:
        fields: field name -> "image", "audio", "video" or "pdf". The field holds bytes, or the path
            of a file; a list of these becomes a list of handles.
        root: the folder of relative paths.
        limits: upper bounds for decoding.

    Raises:
        ConfigError: for an unknown kind of media.
        DataError: for a sample without the field, and for a field that holds neither bytes nor a
            path.

    >>> import penstock as ps
    >>> rows = ps.from_sequence([{"__key__": "7", "photo": "cats/7.jpg"}]).map(Lazy({"photo": "image"}, root="data"))
    >>> rows[0]["photo"].blob.path
    'data/cats/7.jpg'
    """

    fields: Mapping[str, str]
    root: str | Path | None = None
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        if not isinstance(self.fields, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(
                f"Lazy({self.fields!r:.60}): name the kind of each field, as in {{'photo': 'image'}}"
            )
        if wrong := [kind for kind in self.fields.values() if kind not in _HANDLE_TYPES]:
            raise ConfigError(
                f"Lazy: {wrong[0]!r} is not a kind of media: use one of {', '.join(_HANDLE_TYPES)}"
            )

    def __call__(self, sample: Mapping[str, Any]) -> dict[str, Any]:
        require_mapping(sample, "Lazy")
        key, out = str(sample.get("__key__", "")), dict(sample)
        for name, kind in self.fields.items():
            if name not in sample:
                raise DataError(
                    f"Lazy: no field {name!r}; the sample has {', '.join(map(str, sample))}",
                    where=key,
                )
            out[name] = self._handle(kind, sample[name], f"{key}.{name}" if key else name)
        return out

    def _handle(self, kind: str, value: Any, key: str) -> Any:
        """Return the handle of a field, or a list of handles; `None` for `None`."""
        if isinstance(value, np.ndarray):
            value = cast("npt.NDArray[Any]", value).tolist()
        if isinstance(value, list | tuple):
            values = enumerate(cast("Sequence[Any]", value))
            return [self._handle(kind, item, f"{key}[{number}]") for number, item in values]
        if value is None:
            return None
        try:
            blob = Blob.of(value, self.root)
        except DataError as error:
            raise DataError(str(error), where=key) from None
        return _HANDLE_TYPES[kind](blob, key, self.limits)


@cache
def _import_package(name: str, extra: str, why: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        raise make_missing_extra_error(name, extra, why) from None


class _ForkSafeLock:
    """Lock with one instance per process: a forked child may inherit it locked."""

    def __init__(self) -> None:
        self._locks: dict[int, AbstractContextManager[Any]] = {}

    def run(self, function: Callable[[], Any]) -> Any:
        with self._locks.setdefault(get_pid(), make_lock()):
            return function()


_PDFIUM_LOCK = _ForkSafeLock()  # PDFium must not be entered by two threads
