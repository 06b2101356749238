"""Videos: frames and clips by time or number, found by the index of the file and not by decoding
what lies before."""

from __future__ import annotations

import importlib
import math
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import ConfigError, DataError, missing_extra
from .blob import Blob, Limits, named
from .claims import check_size

# seconds, farther than most key frames are apart: nearer, decoding on is cheaper than to seek
_FAR = 2.0
_LONGER = 0.5  # seconds by which a file, with its sound, may be longer than its pictures
_ROUNDED = (
    0.0005  # seconds by which the times of frames are rounded in files that count in milliseconds
)
_TELLING = (
    "mov,mp4,m4a,3gp,3g2,mj2",
    "matroska,webm",
)  # formats of FFmpeg that tell when each frame is shown
_REORDERED = 64  # frames of which each may be stored after all others; codecs allow 16


@dataclass(frozen=True)
class Video:
    """A video that is read when it is used, as far as its frames ask for.

    A frame is found from the key frame before it, which the index of the file names; a frame that
    lies soon after the last one is reached by decoding on.
    """

    blob: Blob
    key: str = ""
    limits: Limits = field(default_factory=Limits)

    @property
    def size(self) -> tuple[int, int]:
        """Width and height, from the header alone."""
        with named("video", self.key), self._opened() as (_, stream):
            return int(stream.codec_context.width), int(stream.codec_context.height)

    @property
    def seconds(self) -> float:
        """How long it is, as its header tells."""
        with named("video", self.key), self._opened() as (container, stream):
            return _seconds(container, stream)

    @property
    def rate(self) -> float:
        """Frames a second on average."""
        with named("video", self.key), self._opened() as (_, stream):
            return float(stream.average_rate or 0)

    def frames(self, times: Sequence[float]) -> npt.NDArray[np.uint8]:
        """The frames that are shown at these seconds, in this order: uint8[frames, height, width,
        3].

        Raises:
            DataError: for what is no video, is damaged, cut off, too long, or of too many pixels;
                for times outside of the video.
        """
        with named("video", self.key), self._opened() as (container, stream):
            length = _seconds(container, stream)
            self.limits.check("seconds", length)
            if wrong := [time for time in times if not 0 <= time <= length]:
                raise DataError(
                    f"frames({wrong[0]}): the video has {length:.2f} seconds", where=self.key
                )
            begin = (stream.start_time or 0) * float(stream.time_base)
            return self._filled(
                stream, len(times), _shown(container, stream, [time + begin for time in times])
            )

    def clip(self, start: float, stop: float, rate: float | None = None) -> npt.NDArray[np.uint8]:
        """The frames from `start` to `stop` in seconds, `rate` of them a second, or as many as it
        has on average.

        Raises:
            ConfigError: for a `rate` that is not above 0.
            DataError: as `frames`, and where `stop` does not come after `start`.
        """
        if rate is not None and not 0 < rate < math.inf:
            raise ConfigError(f"clip(rate={rate}): more than 0 frames a second")
        each = self.rate if rate is None else rate
        with named("video", self.key):
            if not (start < stop and each > 0):
                raise DataError(
                    f"clip({start}, {stop}, rate={each}): it must end after it begins",
                    where=self.key,
                )
            length, last = self.seconds, stop - 1 / each  # when the last frame is shown
            if not (0 <= start and last <= length + 1 / each):
                raise DataError(
                    f"clip({start}, {stop}): the video has {length:.2f} seconds", where=self.key
                )
            wide, high = self.size
            self.limits.check("pixels", wide * high * (stop - start) * each)
            count = max(1, round((stop - start) * each))
        return self.frames([start + number / each for number in range(count)])

    def numbered(self, numbers: Sequence[int]) -> npt.NDArray[np.uint8]:
        """The frames of these numbers, from 0 in the order in which they are shown: uint8[frames,
        height, width, 3].

        Frames are counted, whatever their rate is. MP4, QuickTime and Matroska tell when each is
        shown, up to the frames asked for; other files are decoded from the beginning.

        Raises:
            DataError: as `frames`, and for numbers outside of the video.
        """
        with named("video", self.key), self._opened() as (container, stream):
            self.limits.check("seconds", _seconds(container, stream))
            if wrong := [number for number in numbers if not number >= 0]:
                raise DataError(f"numbered({wrong[0]}): frames are counted from 0", where=self.key)
            most = max(numbers, default=-1)
            times = _times(container, stream, most) if container.format.name in _TELLING else None
            if times is None:
                if container.format.name in _TELLING:
                    container.seek(0)
                found = _counted(container, stream, numbers)
            elif most >= len(times):
                raise DataError(
                    f"numbered({most}): the video has {len(times)} frames", where=self.key
                )
            else:
                found = _shown(container, stream, [times[number] for number in numbers], exact=True)
            return self._filled(stream, len(numbers), found)

    def _filled(
        self, stream: Any, count: int, found: Iterator[tuple[int, Any]]
    ) -> npt.NDArray[np.uint8]:
        """The pixels of frames, each at its place."""
        wide, high = stream.codec_context.width, stream.codec_context.height
        self.limits.check("pixels", wide * high * count)
        out = np.empty((count, high, wide, 3), np.uint8)
        for place, frame in found:
            pixels = frame.to_ndarray(format="rgb24")
            if pixels.shape != out.shape[1:]:
                raise ValueError(
                    f"a frame of {pixels.shape[1]} x {pixels.shape[0]} in a video of {wide} x "
                    f"{high}"
                )
            out[place] = pixels
        return out

    @contextmanager
    def _opened(self) -> Generator[tuple[Any, Any]]:
        av = _av()
        with self.blob.file() as file:
            check_size(file, len(self.blob))
            with av.open(file) as container:
                if not container.streams.video:
                    raise ValueError("it has no pictures")
                yield container, container.streams.video[0]


def _shown(
    container: Any, stream: Any, times: Sequence[float], exact: bool = False
) -> Iterator[tuple[int, Any]]:
    """For every time its place among those asked for, and the frame that is shown then; `exact`:
    that begins then."""
    base = float(stream.time_base)
    near = min(base / 2, _ROUNDED)
    order = sorted(range(len(times)), key=times.__getitem__)
    frames, now, following = iter(()), None, None
    for place in order:
        wanted = times[place]
        if now is None or wanted - now.pts * base > _FAR:
            container.seek(
                max(round(wanted / base), 0), stream=stream, backward=True, any_frame=False
            )
            frames, following = _decoded(container, stream), None
            now = next(frames, None)
            if (
                now is None or now.pts * base > wanted + near
            ):  # not every file tells the key frame before a time
                container.seek(0)
                frames = _decoded(container, stream)
                now = next(frames, None)
            if now is None:
                raise ValueError("it has no frame that can be decoded")
        while True:
            following = next(frames, None) if following is None else following
            if following is None or following.pts * base > wanted + near:
                break
            now, following = following, None
        _require_shown(container, stream, now, following, wanted, exact)
        yield place, now


def _decoded(container: Any, stream: Any) -> Iterator[Any]:
    """The frames from here on; what FFmpeg marks as damaged is refused."""
    for packet in container.demux(stream):
        if packet.is_corrupt:
            raise ValueError("it is damaged: a packet does not follow the one before it")
        for frame in packet.decode():
            if frame.is_corrupt:
                raise ValueError(
                    f"it is damaged at {float((frame.pts or 0) * stream.time_base):.2f} s"
                )
            yield frame


def _require_shown(
    container: Any, stream: Any, now: Any, following: Any, wanted: float, exact: bool
) -> None:
    """Refuse the last frame that was decoded in place of one that is not there."""
    base, rates = (
        float(stream.time_base),
        (stream.average_rate, stream.base_rate, stream.guessed_rate),
    )
    every = 1 / min((float(rate) for rate in rates if rate), default=25.0)
    begin = now.pts * base
    if exact and abs(begin - wanted) > base:
        raise ValueError(f"the frame at {wanted:.3f} s is missing")
    end = begin + max((now.duration or 0) * base, every)
    end += every if len(container.streams) == 1 and stream.duration is not None else _LONGER
    if following is None and wanted > end + base:
        raise ValueError(
            f"it is cut off: its last frame is at {begin:.2f} s, and one at {wanted:.2f} s was "
            "asked for"
        )


def _times(container: Any, stream: Any, most: int) -> list[float] | None:
    """When frames are shown, up to this number at least, as the headers of packets tell; None where
    they do not."""
    found, base = list[int](), float(stream.time_base)
    for packet in container.demux(stream):
        if not packet.size or packet.is_discard:
            continue
        if packet.pts is None:
            return None
        found.append(packet.pts)
        if len(found) > most + _REORDERED:
            break
    return [time * base for time in sorted(found)] if len(set(found)) == len(found) else None


def _counted(container: Any, stream: Any, numbers: Sequence[int]) -> Iterator[tuple[int, Any]]:
    """The frames of these numbers, counted from the beginning, each with its places among those
    asked for."""
    places = dict[int, list[int]]()
    for place, number in enumerate(numbers):
        places.setdefault(number, []).append(place)
    number = -1
    for number, frame in enumerate(_decoded(container, stream) if places else ()):
        for place in places.pop(number, ()):
            yield place, frame
        if not places:
            return
    if places:
        raise ValueError(f"frame {max(places)} of a video with {number + 1} frames")


def _seconds(container: Any, stream: Any) -> float:
    if stream.duration is not None:
        return float(stream.duration * stream.time_base)
    return float((container.duration or 0) / 1_000_000)


@cache
def _av() -> Any:
    try:
        return importlib.import_module("av")
    except ModuleNotFoundError:
        raise missing_extra("av", "video", "decoding video") from None
