"""Fields of samples as handles: bytes are read, and decoded, when somebody asks for what they
hold."""

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

from ..engine.base.machine import lock, process
from ..errors import ConfigError, DataError, missing_extra
from .blob import Blob, Limits, named
from .claims import check_size, samples_of_ogg
from .images import decode_image, kind_of_image, opened_image, scaled_jpeg
from .mp3 import SPARE, count_samples, tells_length
from .video import Video

_HEAD = 64 << 10  # bytes in which the first frame of an MP3 file lies, behind its tags
_ENDLESS = 1 << 60  # samples; libsndfile gives the largest number where nothing tells them
_TAIL = 4 << 10  # bytes in which a PDF file ends; some writers add a few of their own


@dataclass(frozen=True)
class Image:
    """A picture that is read when it is used.

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
        """Width and height, from the header alone."""
        with named("image", self.key), self.blob.file() as file:
            return opened_image(file).size

    def decode(
        self,
        kind: str = "rgb8",
        least: int | None = None,
        crop: tuple[int, int, int, int] | None = None,
    ) -> Any:
        """The picture, as `decode_image` gives it for this `kind`.

        Args:
            kind: container and mode: "rgb8", "torchrgb", "pil", ...
            least: a JPEG is decoded at a half, a quarter or an eighth of its size, as long as no
                side is shorter than
                this: its decoder then does that much less.
            crop: left, top, width and height of the part that is wanted, of what was decoded.

        Raises:
            ConfigError: for an unknown `kind`.
            DataError: for what is no image, is damaged, or has too many pixels; for a crop that
                reaches outside of it.
        """
        kind_of_image(kind)
        with named("image", self.key):
            with self.blob.file() as file:
                width, height = opened_image(file).size
            self.limits.check("pixels", width * height)
            data = self.blob.whole(self.limits)
            found = scaled_jpeg(data, kind, least) if least is not None else None
        if found is None:
            found = decode_image(data, kind, key=self.key)
        if crop is None:
            return found
        try:
            left, top, wide, high = map(operator.index, crop)
        except (TypeError, ValueError):
            raise DataError(
                f"crop={crop!r}: four integers (left, top, width, height)", where=self.key
            ) from None
        planes = kind.startswith("torch") and found.ndim == 3
        height, width = (
            found.size[::-1]
            if hasattr(found, "crop")
            else found.shape[1:]
            if planes
            else found.shape[:2]
        )
        if not (0 <= left < left + wide <= width and 0 <= top < top + high <= height):
            raise DataError(
                f"crop={crop}: the picture has {width} x {height} pixels", where=self.key
            )
        if hasattr(found, "crop"):
            return found.crop((left, top, left + wide, top + high))
        return (
            found[:, top : top + high, left : left + wide]
            if planes
            else found[top : top + high, left : left + wide]
        )


@dataclass(frozen=True)
class Audio:
    """A sound that is read when it is used; only what is asked for is decoded."""

    blob: Blob
    key: str = ""
    limits: Limits = field(default_factory=Limits)

    @property
    def rate(self) -> int:
        """Samples a second, from the header alone."""
        with named("sound", self.key), self._opened() as sound:
            return int(sound.samplerate)

    @property
    def seconds(self) -> float:
        """How long it is, from the header alone."""
        with named("sound", self.key), self._opened() as sound:
            return float(sound.frames / sound.samplerate)

    def samples(self, start: float = 0.0, stop: float | None = None) -> npt.NDArray[np.float32]:
        """The sound from `start` to `stop` in seconds: float32[channels, samples] in [-1, 1].

        Raises:
            DataError: for what is no sound, is damaged, cut off or too long; where `stop` comes
                before `start`, or `start` before 0.
        """
        with named("sound", self.key), self._opened() as sound:
            rate, frames = sound.samplerate, sound.frames
            self.limits.check("seconds", frames / rate)
            if not 0 <= start <= (math.inf if stop is None else stop):
                raise DataError(
                    f"samples({start}, {stop}): from 0 on, and not before it begins", where=self.key
                )
            first = min(round(min(start, frames / rate) * rate), frames)
            last = frames if stop is None else min(round(min(stop, frames / rate) * rate), frames)
            before = (
                0 if sound.seekable() else first
            )  # GSM, G.72x and others are decoded from the beginning
            self.limits.check("samples", (before + last - first) * sound.channels)
            if first > before:
                sound.seek(first)
            found = sound.read(before + last - first, dtype="float32", always_2d=True)[before:]
            self._compare(sound, first + len(found), last)
            return np.ascontiguousarray(found.T)

    def _compare(self, sound: Any, given: int, wanted: int) -> None:
        """Refuse a sound that ends before it should, or goes on behind the length that its header
        tells."""
        spare, holds = 0, given
        if sound.format == "MP3":
            file = self.blob.file()
            spare = 0 if tells_length(file.read(_HEAD)) else SPARE
            if wanted == sound.frames:
                self.limits.check("bytes", len(self.blob))
                file.seek(0)
                holds = count_samples(file.read())
        if given < wanted - spare or abs(holds - given) > SPARE:
            rate, holds = sound.samplerate, min(holds, given) if given < wanted - spare else holds
            raise ValueError(
                f"its header claims {sound.frames / rate:,.2f} s, and it holds {holds / rate:,.2f} "
                "s: it is cut off, "
                "or was put together of several files"
            )

    def _opened(self) -> Any:
        module, file = _module("soundfile", "audio", "decoding sound"), self.blob.file()
        if patches := check_size(file, len(self.blob)):
            file = self.blob.file(patches)
        sound = module.SoundFile(file)
        if sound.frames > _ENDLESS:
            raise ValueError(
                "its header tells no length, as where it was written to a pipe: write it again as "
                "a file"
            )
        if sound.format == "OGG" and sound.frames < (
            claimed := samples_of_ogg(self.blob.file(), len(self.blob), sound.samplerate)
        ):
            raise ValueError(
                f"it is damaged: {sound.frames:,} of the {claimed:,} samples that it claims are "
                "found"
            )
        return sound


@dataclass(frozen=True)
class Pdf:
    """A document whose pages are drawn, or read as text, when they are used."""

    blob: Blob
    key: str = ""
    limits: Limits = field(default_factory=Limits)

    def __len__(self) -> int:
        return int(self._do(len))

    def page(self, number: int, dpi: float = 72.0) -> npt.NDArray[np.uint8]:
        """A page as a picture: uint8[height, width, 3].

        Raises:
            DataError: for what is no PDF, is damaged, or has too many pages or pixels.
        """

        if not dpi > 0:
            raise ConfigError(f"page(dpi={dpi}): more than 0")

        def drawn(document: Any) -> Any:
            with closing(self._page(document, number)) as page:
                width, height = page.get_size()
                self.limits.check("pixels", width * height * (dpi / 72) ** 2)
                return page.render(scale=dpi / 72, rev_byteorder=True).to_numpy()[..., :3].copy()

        return self._do(drawn)

    def text(self, number: int) -> str:
        """The text of a page."""

        def told(document: Any) -> str:
            with (
                closing(self._page(document, number)) as page,
                closing(page.get_textpage()) as text,
            ):
                return str(text.get_text_range())

        return self._do(told)

    def _page(self, document: Any, number: int) -> Any:
        if not 0 <= number < len(document):
            raise DataError(f"page {number} of a document of {len(document)} pages", where=self.key)
        return document[number]

    def _do(self, ask: Any) -> Any:
        pdfium = _module("pypdfium2", "pdf", "reading PDF")

        def work() -> Any:
            with closing(pdfium.PdfDocument(data)) as document:
                self.limits.check("pages", len(document))
                return ask(document)

        with named("document", self.key):
            data = self.blob.whole(self.limits)
            if b"%%EOF" not in data[-_TAIL:]:
                raise ValueError("it is cut off: it does not end with %%EOF")
            return _PDFIUM.run(work)


_KINDS: Mapping[str, Any] = {"image": Image, "audio": Audio, "video": Video, "pdf": Pdf}


@dataclass(frozen=True)
class Lazy:
    """Fields of samples as handles: what they hold is read and decoded when it is used, by whoever
    uses it then, after packing decided what there is to decode, say.

    Args:
        fields: the name of a field -> "image", "audio", "video" or "pdf". The field holds bytes, or
            the path of a file; a list of these becomes a list of handles.
        root: where paths begin.
        limits: what is decoded at most.

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
        if wrong := [kind for kind in self.fields.values() if kind not in _KINDS]:
            raise ConfigError(
                f"Lazy: {wrong[0]!r} is no kind of media; they are {', '.join(_KINDS)}"
            )

    def __call__(self, sample: Mapping[str, Any]) -> dict[str, Any]:
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
        """The handle of a field, a list of handles of a list; None of what is not there."""
        if isinstance(value, np.ndarray):
            value = cast("npt.NDArray[Any]", value).tolist()
        if isinstance(value, list | tuple):
            values = enumerate(cast("Sequence[Any]", value))
            return [self._handle(kind, each, f"{key}[{number}]") for number, each in values]
        if value is None:
            return None
        try:
            blob = Blob.of(value, self.root)
        except DataError as error:
            raise DataError(str(error), where=key) from None
        return _KINDS[kind](blob, key, self.limits)


@cache
def _module(name: str, extra: str, why: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        raise missing_extra(name, extra, why) from None


class _Turns:
    """One thread at a time. A process that is forked has a lock of its own, as this one may be held
    at that moment."""

    def __init__(self) -> None:
        self._locks: dict[int, AbstractContextManager[Any]] = {}

    def run(self, work: Callable[[], Any]) -> Any:
        with self._locks.setdefault(process(), lock()):
            return work()


_PDFIUM = _Turns()  # PDFium must not be entered by two threads
