"""Handles of audio and video, which decode the clips that a hook asks for."""

from __future__ import annotations

import importlib
import io
import math
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, BinaryIO, Literal

import numpy as np

from ...errors import ConfigError, DataError, make_missing_extra_error
from .caching import MediaMetadata

AV_EXTENSIONS = ("mp4", "avi", "mov", "webm", "mkv", "flac", "mp3", "wav", "flv", "m4v")
"""Extensions of members that are audio or video."""

ClipRange = tuple[float, float]


@dataclass
class AVData:
    """Decoded clips, with start and end of each in seconds.

    Args:
        video_clips: tensors of frames x channels x height x width.
        video_timestamps: start and end of the video clips.
        audio_clips: tensors of channels x samples.
        audio_timestamps: start and end of the audio clips.
    """

    video_clips: list[Any]
    video_timestamps: list[ClipRange]
    audio_clips: list[Any]
    audio_timestamps: list[ClipRange]


class AVDecoder:
    """Decode clips of an audio or video file by time or number.

    Args:
        stream: the bytes of the file, or a file that can seek.
        suppress_warnings: not used.
    """

    def __init__(self, stream: BinaryIO | bytes, suppress_warnings: bool = False) -> None:
        self.stream = io.BytesIO(stream) if isinstance(stream, bytes) else stream

    def __repr__(self) -> str:
        return f"AVDecoder(stream={self.stream!r})"

    def get_video(self) -> AVData:
        """Return all frames as one clip."""
        return self.get_clips(video_clip_ranges=[(0, math.inf)])

    def get_audio(self) -> AVData:
        """Return the whole sound as one clip."""
        return self.get_clips(audio_clip_ranges=[(0, math.inf)])

    def get_video_with_audio(self) -> AVData:
        """Return all frames and the whole sound, as one clip each."""
        return self.get_clips([(0, math.inf)], [(0, math.inf)])

    def get_frames(self, video_decode_audio: bool = False) -> AVData:
        """Return the whole file, decoded.

        Args:
            video_decode_audio: whether to decode the sound of a video too.
        """
        if not self.has_video_stream():
            return self.get_audio()
        return self.get_video_with_audio() if video_decode_audio else self.get_video()

    def get_clips(
        self,
        video_clip_ranges: Sequence[ClipRange] | None = None,
        audio_clip_ranges: Sequence[ClipRange] | None = None,
        video_unit: Literal["frames", "seconds"] = "seconds",
        audio_unit: Literal["samples", "seconds"] = "seconds",
        video_out_frame_size: tuple[int, int] | None = None,
    ) -> AVData:
        """Return clips of the frames and of the sound.

        Args:
            video_clip_ranges: first and last of each clip of frames.
            audio_clip_ranges: start and end of each clip of sound.
            video_unit: unit of `video_clip_ranges`.
            audio_unit: unit of `audio_clip_ranges`.
            video_out_frame_size: width and height of the frames; None leaves them.
        """
        video = self.get_video_clips(video_clip_ranges or (), video_unit, video_out_frame_size)
        audio = self.get_audio_clips(audio_clip_ranges or (), audio_unit)
        return AVData(*video, *audio)

    def get_video_clips(
        self,
        video_clip_ranges: Sequence[ClipRange],
        video_unit: Literal["frames", "seconds"] = "seconds",
        video_out_frame_size: tuple[int, int] | None = None,
    ) -> tuple[list[Any], list[ClipRange]]:
        """Return clips of frames, each with the frames that a range touches, its end included.

        Args:
            video_clip_ranges: first and last of each clip.
            video_unit: unit of the ranges; frames count from 0.
            video_out_frame_size: width and height of the frames; None leaves them.

        Returns:
            The clips, uint8[frames, 3, height, width], and their start and end in seconds.

        Raises:
            ConfigError: for an unknown unit.
            DataError: if the file has no pictures.
        """
        if video_unit not in ("frames", "seconds"):
            raise ConfigError(f"video_unit={video_unit!r}: choose 'frames' or 'seconds'")
        clips, times = list[Any](), list[ClipRange]()
        for first, last in video_clip_ranges:
            frames = [*self._iterate_frames(first, last, video_unit == "frames")]
            if frames:
                pixels = [_to_pixels(frame, video_out_frame_size) for frame in frames]
                clips.append(_to_tensor(np.stack(pixels).transpose(0, 3, 1, 2)))
                times.append((_start(frames[0]), _end(frames[-1])))
        return clips, times

    def _iterate_frames(self, first: float, last: float, by_number: bool) -> Iterator[Any]:
        """Yield the frames from `first` to `last`, decoding from the key frame before them."""
        with self._open("video") as (container, stream):
            if not by_number and first > 0:
                container.seek(int(first / stream.time_base), stream=stream)
            for number, frame in enumerate(container.decode(stream)):
                if by_number:
                    if int(last if math.isfinite(last) else number) < number:
                        return
                    if number >= int(first):
                        yield frame
                elif _start(frame) > last:
                    return
                elif _end(frame) > first:
                    yield frame

    def get_audio_clips(
        self,
        audio_clip_ranges: Sequence[ClipRange],
        audio_unit: Literal["samples", "seconds"] = "seconds",
    ) -> tuple[list[Any], list[ClipRange]]:
        """Return clips of sound.

        Args:
            audio_clip_ranges: start and end of each clip.
            audio_unit: unit of the ranges.

        Returns:
            The clips, channels x samples, and their start and end in seconds.

        Raises:
            ConfigError: for an unknown unit.
            DataError: if the file has no sound.
        """
        if audio_unit not in ("samples", "seconds"):
            raise ConfigError(f"audio_unit={audio_unit!r}: choose 'samples' or 'seconds'")
        clips, times = list[Any](), list[ClipRange]()
        for start, stop in audio_clip_ranges:
            with self._open("audio") as (container, stream):
                rate = int(stream.sample_rate)
                scale = 1 if audio_unit == "samples" else rate
                first = round(start * scale)
                end = math.inf if math.isinf(stop) else first + round((stop - start) * scale)
                parts, at = list[Any](), 0
                for frame in container.decode(stream):
                    samples = _to_samples(frame)
                    if at + samples.shape[1] > first:
                        parts.append(
                            samples[:, max(0, first - at) : max(0, int(min(end - at, 1 << 62)))]
                        )
                    at += samples.shape[1]
                    if at >= end:
                        break
            if parts:
                clip = np.concatenate(parts, axis=1)
                clips.append(_to_tensor(clip))
                times.append((first / rate, (first + clip.shape[1]) / rate))
        return clips, times

    def get_video_fps(self) -> float:
        """Return the average number of frames per second."""
        with self._open("video") as (_, stream):
            return float(stream.average_rate)

    def get_audio_samples_per_second(self) -> int:
        """Return the samples of a channel per second."""
        with self._open("audio") as (_, stream):
            return int(stream.sample_rate)

    def has_audio_stream(self) -> bool:
        """Return whether the file has sound."""
        with self._container() as container:
            return bool(container.streams.audio)

    def has_video_stream(self) -> bool:
        """Return whether the file has pictures."""
        with self._container() as container:
            return bool(container.streams.video)

    def get_audio_duration(self) -> float | None:
        """Return the length of the sound in seconds."""
        return self.get_metadata(get_video=False).audio_duration

    def get_video_duration(self, get_frame_count: bool = False) -> tuple[float | None, int | None]:
        """Return the length of the video in seconds, and the number of frames.

        Args:
            get_frame_count: whether to count the frames; else the number is None.
        """
        facts = self.get_metadata(get_audio=False, get_video_frame_count=get_frame_count)
        return facts.video_duration, facts.get("video_num_frames")

    def get_metadata(
        self,
        get_video: bool = True,
        get_video_duration: bool = True,
        get_video_frame_count: bool = True,
        get_video_frame_size: bool = True,
        get_audio: bool = True,
        get_audio_duration: bool = True,
        get_audio_num_samples: bool = False,
    ) -> MediaMetadata:
        """Return facts about the file.

        Args:
            get_video: whether to return facts about the pictures.
            get_video_duration: their length in seconds.
            get_video_frame_count: their number, which reads all packets.
            get_video_frame_size: their width and height.
            get_audio: whether to return facts about the sound.
            get_audio_duration: its length in seconds.
            get_audio_num_samples: its number of samples, which decodes all of it.
        """
        facts = MediaMetadata(video_duration=None, audio_duration=None)
        with self._container() as container:
            if get_video and container.streams.video:
                stream = container.streams.video[0]
                facts["video_fps"] = float(stream.average_rate or 0)
                if get_video_frame_size:
                    facts["video_width"], facts["video_height"] = stream.width, stream.height
                times = (
                    [
                        (packet.pts, packet.duration or 0)
                        for packet in container.demux(stream)
                        if packet.pts is not None
                    ]
                    if get_video_frame_count or (get_video_duration and stream.duration is None)
                    else []
                )
                if get_video_frame_count:
                    facts["video_num_frames"] = len(times)
                if get_video_duration:
                    facts["video_duration"] = _duration(stream, times)
        with self._container() as container:
            if get_audio and container.streams.audio:
                stream = container.streams.audio[0]
                facts["audio_sample_rate"] = stream.sample_rate
                facts["audio_channels"] = stream.channels
                if get_audio_duration:
                    packets = container.demux(stream) if stream.duration is None else ()
                    times = [
                        (packet.pts, packet.duration or 0)
                        for packet in packets
                        if packet.pts is not None
                    ]
                    facts["audio_duration"] = _duration(stream, times)
                if get_audio_num_samples:
                    container.seek(0)
                    facts["audio_num_samples"] = sum(
                        frame.samples for frame in container.decode(stream)
                    )
        return facts

    @contextmanager
    def _container(self) -> Generator[Any]:
        try:
            av: Any = importlib.import_module("av")
        except ImportError:
            raise make_missing_extra_error("av", "video", "decoding audio and video") from None
        self.stream.seek(0)
        with av.open(self.stream) as container:
            yield container

    @contextmanager
    def _open(self, kind: Literal["audio", "video"]) -> Generator[tuple[Any, Any]]:
        with self._container() as container:
            streams = getattr(container.streams, kind)
            if not streams:
                raise DataError(f"the file has no {kind} stream")
            yield container, streams[0]


def decode_av(data: bytes, kind: str, with_sound: bool) -> Any:
    """Decode an audio or video member.

    Args:
        data: its bytes.
        kind: "AVDecoder", "torch" or "pyav".
        with_sound: whether "torch" decodes the sound of a video.
    """
    decoder = AVDecoder(data)
    if kind == "pyav":
        av: Any = importlib.import_module("av")
        return av.open(decoder.stream)
    return decoder.get_frames(with_sound) if kind == "torch" else decoder


def get_clips_uniform(
    av_decoder: AVDecoder,
    clip_duration_seconds: float,
    num_clips: int,
    request_video: bool = False,
    request_audio: bool = False,
    video_out_frame_size: tuple[int, int] | None = None,
) -> AVData:
    """Return clips of one length at equal distances.

    Args:
        av_decoder: the file.
        clip_duration_seconds: length of a clip; 0 for single frames.
        num_clips: number of clips.
        request_video: whether to return frames.
        request_audio: whether to return sound.
        video_out_frame_size: width and height of the frames.

    Raises:
        ConfigError: unless frames or sound are requested.
    """
    if not (request_video or request_audio):
        raise ConfigError("get_clips_uniform: set request_video or request_audio")
    lengths = [
        length
        for length in (
            av_decoder.get_video_duration()[0] if request_video else None,
            av_decoder.get_audio_duration() if request_audio else None,
        )
        if length is not None
    ]
    if not lengths:
        raise DataError("get_clips_uniform: the length of the file is unknown")
    # A single frame is taken from its middle; the last clip ends with the file.
    half = 0.5 / av_decoder.get_video_fps() if clip_duration_seconds == 0 else 0.0
    last = min(lengths) - (half or clip_duration_seconds)
    starts = np.linspace(half, last, num_clips).tolist()
    clips = [(start, start + clip_duration_seconds) for start in starts]
    return av_decoder.get_clips(
        clips if request_video else None,
        clips if request_audio else None,
        video_out_frame_size=video_out_frame_size,
    )


def get_single_frames_uniform(
    av_decoder: AVDecoder,
    num_frames: int,
    *,
    video_out_frame_size: tuple[int, int] | None = None,
    return_timestamps: bool = False,
) -> Any:
    """Return single frames at equal distances.

    Args:
        av_decoder: the file.
        num_frames: number of frames.
        video_out_frame_size: width and height of the frames.
        return_timestamps: whether to return their times too.

    Returns:
        uint8[frames, 3, height, width], or a pair with a list of seconds.
    """
    data = get_clips_uniform(
        av_decoder, 0, num_frames, request_video=True, video_out_frame_size=video_out_frame_size
    )
    torch: Any = importlib.import_module("torch")
    frames = torch.cat(data.video_clips, dim=0)
    return (frames, [start for start, _ in data.video_timestamps]) if return_timestamps else frames


def _start(decoded: Any) -> float:
    return float(decoded.pts * decoded.time_base)


def _end(decoded: Any) -> float:
    return float((decoded.pts + (decoded.duration or 0)) * decoded.time_base)


def _duration(stream: Any, times: Sequence[tuple[int, int]]) -> float | None:
    base, begin = float(stream.time_base or 1), stream.start_time or 0
    if stream.duration is not None:
        return float(stream.duration - begin) * base
    return (times[-1][0] + times[-1][1] - begin) * base if times else None


def _to_pixels(decoded: Any, size: tuple[int, int] | None) -> Any:
    width, height = size or (None, None)
    interpolation = "BILINEAR" if size else None
    return decoded.reformat(
        width=width, height=height, format="rgb24", interpolation=interpolation
    ).to_ndarray()


def _to_samples(decoded: Any) -> Any:
    """Return the samples of an audio frame as channels x samples."""
    samples = decoded.to_ndarray()
    if decoded.format.is_planar:
        return samples
    return samples.reshape(decoded.samples, decoded.layout.nb_channels).T


def _to_tensor(array: Any) -> Any:
    torch: Any = importlib.import_module("torch")
    return torch.from_numpy(np.ascontiguousarray(array))
