"""Fields of samples as handles: bytes are read, and decoded, when somebody asks for what they hold."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import closing
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import ConfigError, missing_extra
from .blob import Blob, Limits, named
from .images import decode_image, opened_image, scaled_jpeg
from .video import Video


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
        self, kind: str = "rgb8", least: int | None = None, crop: tuple[int, int, int, int] | None = None
    ) -> Any:
        """The picture, as `decode_image` gives it for this `kind`.

        Args:
            kind: container and mode: "rgb8", "torchrgb", "pil", ...
            least: a JPEG is decoded at a half, a quarter or an eighth of its size, as long as no side is shorter than
                this: its decoder then does that much less.
            crop: left, top, width and height of the part that is wanted, of what was decoded.

        Raises:
            DataError: for what is no image, is damaged, or has too many pixels.
        """
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
        left, top, wide, high = crop
        if hasattr(found, "crop"):
            return found.crop((left, top, left + wide, top + high))
        planes = kind.startswith("torch") and found.ndim == 3
        return found[:, top : top + high, left : left + wide] if planes else found[top : top + high, left : left + wide]


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
            DataError: for what is no sound, is damaged, or too long.
        """
        with named("sound", self.key), self._opened() as sound:
            rate = sound.samplerate
            self.limits.check("seconds", sound.frames / rate)
            first = min(round(start * rate), sound.frames)
            last = sound.frames if stop is None else min(round(stop * rate), sound.frames)
            if not 0 <= first <= last:
                raise ConfigError(f"samples({start}, {stop}): from 0 on, and not before it begins")
            self.limits.check("samples", (last - first) * sound.channels)
            sound.seek(first)
            return np.ascontiguousarray(sound.read(last - first, dtype="float32", always_2d=True).T)

    def _opened(self) -> Any:
        return _module("soundfile", "audio", "decoding sound").SoundFile(self.blob.file())


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

        def drawn(document: Any) -> Any:
            with closing(document[number]) as page:
                width, height = page.get_size()
                self.limits.check("pixels", width * height * (dpi / 72) ** 2)
                return page.render(scale=dpi / 72, rev_byteorder=True).to_numpy()[..., :3].copy()

        return self._do(drawn)

    def text(self, number: int) -> str:
        """The text of a page."""

        def told(document: Any) -> str:
            with closing(document[number]) as page, closing(page.get_textpage()) as text:
                return str(text.get_text_range())

        return self._do(told)

    def _do(self, ask: Any) -> Any:
        def work() -> Any:
            pdfium = _module("pypdfium2", "pdf", "reading PDF")
            with closing(pdfium.PdfDocument(data)) as document:
                self.limits.check("pages", len(document))
                return ask(document)

        with named("document", self.key):
            data = self.blob.whole(self.limits)
            return _PDFIUM.run(work)


_KINDS: Mapping[str, Any] = {"image": Image, "audio": Audio, "video": Video, "pdf": Pdf}


@dataclass(frozen=True)
class Lazy:
    """Fields of samples as handles: what they hold is read and decoded when it is used, by whoever uses it then, after
    packing decided what there is to decode, say.

    Args:
        fields: the name of a field -> "image", "audio", "video" or "pdf". The field holds bytes, or the path of a file.
        root: where paths begin.
        limits: what is decoded at most.

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
            raise ConfigError(f"Lazy: {wrong[0]!r} is no kind of media; they are {', '.join(_KINDS)}")

    def __call__(self, sample: Mapping[str, Any]) -> dict[str, Any]:
        key, out = str(sample.get("__key__", "")), dict(sample)
        for name, kind in self.fields.items():
            if name not in sample:
                raise ConfigError(f"Lazy: no field {name!r}; the sample has {', '.join(map(str, sample))}")
            if sample[name] is not None:
                full = f"{key}.{name}" if key else name
                out[name] = _KINDS[kind](Blob.of(sample[name], self.root), full, self.limits)
        return out


@cache
def _module(name: str, extra: str, why: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        raise missing_extra(name, extra, why) from None


class _Turns:
    """One thread at a time: whoever comes while another is in there waits for that one."""

    def __init__(self) -> None:
        self._inside: dict[str, Future[None]] = {}

    def run(self, work: Callable[[], Any]) -> Any:
        mine: Future[None] = Future()
        while (first := self._inside.setdefault("now", mine)) is not mine:
            first.result()
        try:
            return work()
        finally:
            del self._inside["now"]
            mine.set_result(None)


_PDFIUM = _Turns()  # PDFium must not be entered by two threads
