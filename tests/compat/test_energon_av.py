"""Clips of audio and video are slices of what PyAV decodes from the whole file."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest

from penstock.compat.energon.audio_video import (
    AVDecoder,
    get_clips_uniform,
    get_single_frames_uniform,
)
from penstock.errors import ConfigError, DataError

av: Any = pytest.importorskip("av")
pytest.importorskip("torch")

FRAMES, RATE, SAMPLES = 24, 8, 8_000  # three seconds, with a key frame every 5 frames


@pytest.fixture(scope="module")
def file() -> bytes:
    """A video in which each frame has its own grey, with a tone."""
    out = io.BytesIO()
    with av.open(out, "w", format="matroska") as container:
        video, sound = container.add_stream("mpeg4", rate=RATE), container.add_stream("flac")
        video.width, video.height, video.pix_fmt, video.gop_size = 32, 24, "yuv420p", 5
        sound.rate, sound.layout = SAMPLES, "mono"
        for number in range(FRAMES):
            image = np.full((24, 32, 3), 10 * number, np.uint8)
            container.mux(video.encode(av.VideoFrame.from_ndarray(image, format="rgb24")))
        container.mux(video.encode())
        tone = (9_000 * np.sin(np.arange(SAMPLES * FRAMES // RATE) / 9)).astype(np.int16)
        for start in range(0, len(tone), 1_000):
            frame = av.AudioFrame.from_ndarray(
                tone[None, start : start + 1_000], format="s16", layout="mono"
            )
            frame.sample_rate, frame.pts = SAMPLES, start
            container.mux(sound.encode(frame))
        container.mux(sound.encode())
    return out.getvalue()


def decode(file: bytes) -> tuple[Any, Any]:
    """Return all frames and all samples."""
    with av.open(io.BytesIO(file)) as container:
        frames = [f.to_ndarray(format="rgb24") for f in container.decode(video=0)]
    with av.open(io.BytesIO(file)) as container:
        sound = np.concatenate([f.to_ndarray() for f in container.decode(audio=0)], axis=1)
    return np.stack(frames).transpose(0, 3, 1, 2), sound


def test_clips_are_slices_of_the_file(file: bytes) -> None:
    frames, sound = decode(file)
    decoder = AVDecoder(file)
    whole = decoder.get_video_with_audio()
    np.testing.assert_array_equal(whole.video_clips[0].numpy(), frames)
    np.testing.assert_array_equal(whole.audio_clips[0].numpy(), sound)
    by_number = decoder.get_clips(
        [(3, 7), (23, 23)], [(0, 100), (9_000, 9_500)], "frames", "samples"
    )
    for clip, (first, last) in zip(by_number.video_clips, [(3, 7), (23, 23)], strict=True):
        np.testing.assert_array_equal(clip.numpy(), frames[first : last + 1])
    for clip, (start, stop) in zip(by_number.audio_clips, [(0, 100), (9_000, 9_500)], strict=True):
        np.testing.assert_array_equal(clip.numpy(), sound[:, start:stop])
    by_time = decoder.get_clips([(0.55, 1.3)], [(0.5, 1.25)])
    np.testing.assert_array_equal(by_time.video_clips[0].numpy(), frames[4:11])
    assert by_time.video_timestamps == [(0.5, 1.375)]
    np.testing.assert_array_equal(by_time.audio_clips[0].numpy(), sound[:, 4_000:10_000])
    assert by_time.audio_timestamps == [(0.5, 1.25)]


def test_facts_and_uniform_clips(file: bytes) -> None:
    frames, _ = decode(file)
    decoder = AVDecoder(file)
    assert decoder.get_metadata(get_audio_num_samples=True) == {
        "video_duration": 3.0, "video_fps": 8.0, "video_width": 32, "video_height": 24,
        "video_num_frames": 24, "audio_duration": 3.0, "audio_sample_rate": SAMPLES,
        "audio_channels": 1, "audio_num_samples": 24_000,
    }  # fmt: skip
    shown, times = get_single_frames_uniform(decoder, 3, return_timestamps=True)
    assert len(times) == 3 and times[0] == 0
    numbers = [round(time * RATE) for time in times]
    np.testing.assert_array_equal(shown.numpy(), frames[numbers])
    clips = get_clips_uniform(decoder, 1.0, 3, request_audio=True)
    assert [tuple(map(round, span)) for span in clips.audio_timestamps] == [(0, 1), (1, 2), (2, 3)]


def test_what_a_file_lacks_is_an_error(file: bytes) -> None:
    decoder = AVDecoder(file)
    with pytest.raises(ConfigError, match="video_unit"):
        decoder.get_clips([(0, 1)], video_unit="hours")  # pyright: ignore[reportArgumentType]
    out = io.BytesIO()
    with av.open(io.BytesIO(file)) as source, av.open(out, "w", format="matroska") as container:
        stream = container.add_stream_from_template(source.streams.audio[0])
        for packet in source.demux(source.streams.audio[0]):
            if packet.dts is not None:
                packet.stream = stream
                container.mux(packet)
    alone = AVDecoder(out.getvalue())
    assert alone.has_audio_stream() and not alone.has_video_stream()
    with pytest.raises(DataError, match="no video stream"):
        alone.get_video()
