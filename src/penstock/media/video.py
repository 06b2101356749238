"""Read video frames and clips by time or number, seeking through the index of the file."""

from __future__ import annotations

import importlib
import math
import operator
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import ConfigError, DataError, make_missing_extra_error
from .blob import Blob, Limits, sample_errors
from .claims import require_claimed_bytes

# Seconds, beyond most key frame intervals; within them, decoding is cheaper than seeking.
_SEEK_DISTANCE = 2.0
_SOUND_EXCESS = 0.5  # seconds by which the sound may outlast the pictures
_TIME_ROUNDING = 0.0005  # seconds; some formats round frame times to milliseconds
_TIMED_FORMATS = ("mov,mp4,m4a,3gp,3g2,mj2", "matroska,webm")  # FFmpeg names; packets have times
_MAX_REORDERED_FRAMES = 64  # frames stored out of order; codecs allow 16


@dataclass(frozen=True)
class Video:
    """Handle of a video; it reads only the parts that the requested frames need.

    A frame is decoded from the preceding key frame, which the index of the file gives. A frame soon
    after the previous one is reached by decoding on.

    Args:
        blob: the encoded bytes, or the file that holds them.
        key: the key of the sample, for errors.
        limits: upper bounds; `seconds` applies to the video, `pixels` to all frames of a request
            together.
    """

    blob: Blob
    key: str = ""
    limits: Limits = field(default_factory=Limits)

    @property
    def size(self) -> tuple[int, int]:
        """Return width and height, from the header alone."""
        with sample_errors("video", self.key), self._open() as (_, stream):
            return int(stream.codec_context.width), int(stream.codec_context.height)

    @property
    def seconds(self) -> float:
        """Return the length in seconds, from the header alone."""
        with sample_errors("video", self.key), self._open() as (container, stream):
            return _get_duration_seconds(container, stream)

    @property
    def rate(self) -> float:
        """Return the average number of frames per second."""
        with sample_errors("video", self.key), self._open() as (_, stream):
            return float(stream.average_rate or 0)

    def frames(self, times: Sequence[float]) -> npt.NDArray[np.uint8]:
        """Return the frames at these times, in this order.

        Args:
            times: seconds from the beginning.

        Returns:
            uint8[frames, height, width, 3].

        Raises:
            ConfigError: for `times` that are not a sequence of numbers.
            DataError: if the video is invalid, corrupted, cut off, too long or too large, and for
                times outside of it.
        """
        try:
            times = [float(time) for time in times]
        except (TypeError, ValueError):
            raise ConfigError(f"frames({times!r:.60}): give a list of seconds") from None
        with sample_errors("video", self.key), self._open() as (container, stream):
            length = _get_duration_seconds(container, stream)
            self.limits.check("seconds", length)
            if wrong := [time for time in times if not 0 <= time <= length]:
                raise DataError(
                    f"frames({wrong[0]}): the video has {length:.2f} seconds; give times below that",
                    where=self.key,
                )
            begin = (stream.start_time or 0) * float(stream.time_base)
            return self._to_array(
                stream,
                len(times),
                _find_frames_by_time(container, stream, [time + begin for time in times]),
            )

    def clip(self, start: float, stop: float, rate: float | None = None) -> npt.NDArray[np.uint8]:
        """Return the frames from `start` to `stop`.

        Args:
            start: seconds.
            stop: seconds.
            rate: frames per second; by default the average rate of the video.

        Returns:
            uint8[frames, height, width, 3].

        Raises:
            ConfigError: for a `rate` that is not positive.
            DataError: as `frames`, and if `stop` is not after `start`.
        """
        if rate is not None and not 0 < rate < math.inf:
            raise ConfigError(f"clip(rate={rate}): give more than 0 frames a second")
        frame_rate = self.rate if rate is None else rate
        with sample_errors("video", self.key):
            if not (start < stop and frame_rate > 0):
                raise DataError(
                    f"clip({start}, {stop}, rate={frame_rate}): it must end after it begins",
                    where=self.key,
                )
            length, last = self.seconds, stop - 1 / frame_rate  # the time of the last frame
            if not (0 <= start and last <= length + 1 / frame_rate):
                raise DataError(
                    f"clip({start}, {stop}): the video has {length:.2f} seconds", where=self.key
                )
            width, height = self.size
            self.limits.check("pixels", width * height * (stop - start) * frame_rate)
            count = max(1, round((stop - start) * frame_rate))
        return self.frames([start + number / frame_rate for number in range(count)])

    def numbered(self, numbers: Sequence[int]) -> npt.NDArray[np.uint8]:
        """Return the frames with these numbers, counted from 0 in display order.

        In MP4, QuickTime and Matroska, packets hold the times of frames. Other files are decoded
        from the beginning.

        Args:
            numbers: frame numbers.

        Returns:
            uint8[frames, height, width, 3].

        Raises:
            ConfigError: for `numbers` that are not a sequence of whole numbers.
            DataError: as `frames`, and for numbers outside of the video.
        """
        try:
            numbers = [operator.index(number) for number in numbers]
        except TypeError:
            raise ConfigError(
                f"numbered({numbers!r:.60}): give a list of whole numbers; round others first"
            ) from None
        with sample_errors("video", self.key), self._open() as (container, stream):
            self.limits.check("seconds", _get_duration_seconds(container, stream))
            if wrong := [number for number in numbers if not number >= 0]:
                raise DataError(f"numbered({wrong[0]}): frames are counted from 0", where=self.key)
            last = max(numbers, default=-1)
            times = (
                _read_frame_times(container, stream, last)
                if container.format.name in _TIMED_FORMATS
                else None
            )
            if times is None:
                if container.format.name in _TIMED_FORMATS:
                    container.seek(0)
                frames = _find_frames_by_number(container, stream, numbers)
            elif last >= len(times):
                raise DataError(
                    f"numbered({last}): the video has {len(times)} frames", where=self.key
                )
            else:
                frames = _find_frames_by_time(
                    container, stream, [times[number] for number in numbers], exact=True
                )
            return self._to_array(stream, len(numbers), frames)

    def _to_array(
        self, stream: Any, count: int, frames: Iterator[tuple[int, Any]]
    ) -> npt.NDArray[np.uint8]:
        """Return frames as one array, each at its index."""
        width, height = stream.codec_context.width, stream.codec_context.height
        self.limits.check("pixels", width * height * count)
        out = np.empty((count, height, width, 3), np.uint8)
        for index, frame in frames:
            pixels = frame.to_ndarray(format="rgb24")
            if pixels.shape != out.shape[1:]:
                raise ValueError(
                    f"a frame of {pixels.shape[1]} x {pixels.shape[0]} in a video of {width} x "
                    f"{height}"
                )
            out[index] = pixels
        return out

    @contextmanager
    def _open(self) -> Generator[tuple[Any, Any]]:
        av = _import_av()
        with self.blob.file() as file:
            require_claimed_bytes(file, len(self.blob))
            with av.open(file) as container:
                if not container.streams.video:
                    raise ValueError("it has no pictures")
                yield container, container.streams.video[0]


def _find_frames_by_time(
    container: Any, stream: Any, times: Sequence[float], exact: bool = False
) -> Iterator[tuple[int, Any]]:
    """Yield the index of each requested time with the frame displayed then.

    With `exact`, the frame must begin at that time.
    """
    base = float(stream.time_base)
    tolerance = min(base / 2, _TIME_ROUNDING)
    order = sorted(range(len(times)), key=times.__getitem__)
    frames, current, following = iter(()), None, None
    for index in order:
        time = times[index]
        if current is None or time - current.pts * base > _SEEK_DISTANCE:
            container.seek(
                max(round(time / base), 0), stream=stream, backward=True, any_frame=False
            )
            frames, following = _decode_frames(container, stream), None
            current = next(frames, None)
            # Not every index finds the key frame before a time.
            if current is None or current.pts * base > time + tolerance:
                container.seek(0)
                frames = _decode_frames(container, stream)
                current = next(frames, None)
            if current is None:
                raise ValueError("it has no frame that can be decoded")
        while True:
            following = next(frames, None) if following is None else following
            if following is None or following.pts * base > time + tolerance:
                break
            current, following = following, None
        _require_frame(container, stream, current, following, time, exact)
        yield index, current


def _decode_frames(container: Any, stream: Any) -> Iterator[Any]:
    """Yield the following frames.

    Raises:
        ValueError: for packets and frames that FFmpeg marks as corrupted.
    """
    for packet in container.demux(stream):
        if packet.is_corrupt:
            raise ValueError("it is damaged: a packet does not follow the one before it")
        for frame in packet.decode():
            if frame.is_corrupt:
                raise ValueError(
                    f"it is damaged at {float((frame.pts or 0) * stream.time_base):.2f} s"
                )
            yield frame


def _require_frame(
    container: Any, stream: Any, current: Any, following: Any, time: float, exact: bool
) -> None:
    """Raise `ValueError` if the last decoded frame stands in for a missing one."""
    base, rates = (
        float(stream.time_base),
        (stream.average_rate, stream.base_rate, stream.guessed_rate),
    )
    frame_seconds = 1 / min((float(rate) for rate in rates if rate), default=25.0)
    begin = current.pts * base
    if exact and abs(begin - time) > base:
        raise ValueError(f"the frame at {time:.3f} s is missing")
    end = begin + max((current.duration or 0) * base, frame_seconds)
    end += (
        frame_seconds
        if len(container.streams) == 1 and stream.duration is not None
        else _SOUND_EXCESS
    )
    if following is None and time > end + base:
        raise ValueError(
            f"it is cut off: its last frame is at {begin:.2f} s, before the requested {time:.2f} s"
        )


def _read_frame_times(container: Any, stream: Any, last: int) -> list[float] | None:
    """Return frame times from packet headers, up to a frame number; `None` if they lack times."""
    timestamps, base = list[int](), float(stream.time_base)
    for packet in container.demux(stream):
        if not packet.size or packet.is_discard:
            continue
        if packet.pts is None:
            return None
        timestamps.append(packet.pts)
        if len(timestamps) > last + _MAX_REORDERED_FRAMES:
            break
    return (
        [time * base for time in sorted(timestamps)]
        if len(set(timestamps)) == len(timestamps)
        else None
    )


def _find_frames_by_number(
    container: Any, stream: Any, numbers: Sequence[int]
) -> Iterator[tuple[int, Any]]:
    """Yield the indices of requested frame numbers with their frames, by counting."""
    indices = dict[int, list[int]]()
    for index, number in enumerate(numbers):
        indices.setdefault(number, []).append(index)
    number = -1
    for number, frame in enumerate(_decode_frames(container, stream) if indices else ()):
        for index in indices.pop(number, ()):
            yield index, frame
        if not indices:
            return
    if indices:
        raise ValueError(f"frame {max(indices)} of a video with {number + 1} frames")


def _get_duration_seconds(container: Any, stream: Any) -> float:
    if stream.duration is not None:
        return float(stream.duration * stream.time_base)
    return float((container.duration or 0) / 1_000_000)


@cache
def _import_av() -> Any:
    try:
        return importlib.import_module("av")
    except ModuleNotFoundError:
        raise make_missing_extra_error("av", "video", "decoding video") from None
