"""Videos: frames and clips by time or number, found by the index of the file and not by decoding what lies before."""

from __future__ import annotations

import importlib
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import ConfigError, missing_extra
from .blob import Blob, Limits, named


@dataclass(frozen=True)
class Video:
    """A video that is read when it is used, as far as its frames ask for.

    A frame is found from the key frame before it, which the index of the file names; a frame that lies soon after the
    last one is reached by decoding on.
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
        """The frames that are shown at these seconds, in this order: uint8[frames, height, width, 3].

        Raises:
            ConfigError: for times outside of the video.
            DataError: for what is no video, is damaged, too long, or of too many pixels.
        """
        with named("video", self.key), self._opened() as (container, stream):
            length = _seconds(container, stream)
            wide, high = stream.codec_context.width, stream.codec_context.height
            self.limits.check("seconds", length)
            self.limits.check("pixels", wide * high * len(times))
            if wrong := [time for time in times if not 0 <= time <= length]:
                raise ConfigError(f"frames({wrong[0]}): the video {self.key!r} has {length:.2f} seconds")
            out = np.empty((len(times), high, wide, 3), np.uint8)
            for place, frame in _shown(container, stream, times):
                found = frame.to_ndarray(format="rgb24")
                if found.shape != out.shape[1:]:
                    raise ValueError(f"a frame of {found.shape[1]} x {found.shape[0]} in a video of {wide} x {high}")
                out[place] = found
            return out

    def clip(self, start: float, stop: float, rate: float | None = None) -> npt.NDArray[np.uint8]:
        """The frames from `start` to `stop` in seconds, `rate` of them a second, or as many as there are."""
        each = rate or self.rate
        if not (start < stop and each > 0):
            raise ConfigError(f"clip({start}, {stop}, rate={rate}): it must end after it begins")
        count = max(1, round((stop - start) * each))
        return self.frames([start + number / each for number in range(count)])

    def numbered(self, numbers: Sequence[int]) -> npt.NDArray[np.uint8]:
        """The frames of these numbers, of a video whose frames come evenly."""
        rate = self.rate
        return self.frames([(number + 0.5) / rate for number in numbers])

    @contextmanager
    def _opened(self) -> Generator[tuple[Any, Any]]:
        with self.blob.file() as file, _av().open(file) as container:
            if not container.streams.video:
                raise ValueError("it has no pictures")
            yield container, container.streams.video[0]


def _shown(container: Any, stream: Any, times: Sequence[float]) -> Iterator[tuple[int, Any]]:
    """For every time its place among those asked for, and the frame that is shown then."""
    base = float(stream.time_base)
    begin = (stream.start_time or 0) * base
    order = sorted(range(len(times)), key=times.__getitem__)
    frames, now, following = iter(()), None, None
    for place in order:
        wanted = times[place] + begin
        gap = wanted - (now.pts * base if now is not None else -1e9)
        if now is None or gap > 2.0:  # nearer than most key frames are: decoding on is cheaper
            container.seek(max(int(wanted / base), 0), stream=stream, backward=True, any_frame=False)
            frames = container.decode(stream)
            now, following = next(frames), None
        while True:
            following = next(frames, None) if following is None else following
            if following is None or following.pts * base > wanted + base / 2:
                break
            now, following = following, None
        yield place, now


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
