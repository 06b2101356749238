"""Media that claim more than they hold, cut off at every tenth: what was written, or an error that names the sample."""

from __future__ import annotations

import fractions
import io
import logging
import struct
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image as Pillow
from PIL import ImageFile

import penstock as ps
from penstock.errors import ConfigError, DataError
from penstock.media import Audio, Blob, Image, Lazy, Pdf, Video, decode_image, images

CUTS = [*(tenth / 10 for tenth in range(1, 10)), 0.999]
TONE = (np.sin(np.arange(24_000) / 20) / 2).astype(np.float32)
SOUNDS = ("WAV", "WAVEX", "RF64", "W64", "AIFF", "AU", "CAF", "NIST", "FLAC", "OGG", "OPUS", "MP3")
SOUNDS += ("AVR", "VOC", "MAT4", "MAT5", "MPC2K", "SVX", "WVE", "SDS")


def sound(format: str, channels: int = 1, **options: Any) -> bytes:
    soundfile: Any = pytest.importorskip("soundfile")
    file = io.BytesIO()
    if format == "OPUS":
        format, options = "OGG", {"subtype": "OPUS"}
    rate = 44_100 if format == "MPC2K" else 24_000
    soundfile.write(file, np.stack([TONE] * channels, 1), rate, format=format, **options)
    return file.getvalue()


def cuts(body: bytes) -> Iterator[bytes]:
    yield from (body[: int(len(body) * part)] for part in CUTS)


@pytest.mark.parametrize("format", SOUNDS)
def test_a_sound_that_was_cut_off_is_refused(format: str) -> None:
    body = sound(format)
    assert Audio(Blob(body)).samples().shape == (1, 24_000)
    for part in cuts(body):
        with pytest.raises(DataError, match="^7.a: the sound cannot be decoded"):
            Audio(Blob(part), "7.a").samples()


@pytest.mark.parametrize(
    ("format", "subtype", "endian"),
    [
        ("AVR", "PCM_S8", "FILE"),
        ("VOC", "PCM_U8", "FILE"),
        ("MAT4", "PCM_16", "BIG"),
        ("MAT4", "FLOAT", "LITTLE"),
        ("MAT5", "PCM_U8", "BIG"),
        ("MAT5", "PCM_32", "LITTLE"),
        ("MPC2K", "PCM_16", "FILE"),
    ],
)
def test_a_sound_claims_its_length_whatever_its_numbers_are(
    format: str, subtype: str, endian: str
) -> None:
    body = sound(format, 2, subtype=subtype, endian=endian)
    assert Audio(Blob(body)).samples().shape == (2, 24_000)
    with pytest.raises(DataError, match="it is cut off"):
        Audio(Blob(body[:-3])).samples()


@pytest.mark.parametrize("subtype", ["ULAW", "ALAW"])
def test_a_sphere_file_of_telephone_speech_that_was_cut_off_is_refused(subtype: str) -> None:
    body = sound("NIST", subtype=subtype)
    assert Audio(Blob(body)).samples().shape == (1, 24_000)
    for part in cuts(body):
        with pytest.raises(DataError, match="its header claims 25,024 bytes"):
            Audio(Blob(part), "7.a").samples()


def test_what_is_whole_of_a_sound_that_was_cut_off_is_given() -> None:
    half = Audio(Blob(sound("MP3")[: len(sound("MP3")) // 2]), "7.a")
    assert half.samples(0, 0.2).shape == (1, 4_800)
    with pytest.raises(DataError, match="its header claims 1.00 s, and it holds 0"):
        half.samples(0.2, 0.8)


@pytest.mark.parametrize("size", [0, 0x7FFFFFFF, 0x7FFFF000, 0xFFFFFFFF])
@pytest.mark.parametrize("whole", [False, True])
def test_a_sound_whose_length_was_never_written_is_read_to_its_end(size: int, whole: bool) -> None:
    body = bytearray(sound("WAV"))
    at = body.find(b"data")
    body[at + 4 : at + 8] = size.to_bytes(4, "little")
    if not whole:
        body[4:8] = size.to_bytes(4, "little")
    found = Audio(Blob(bytes(body))).samples()
    assert found.shape == (1, 24_000) and np.abs(found[0] - TONE).max() < 1e-4


def test_a_sound_without_samples_is_empty() -> None:
    empty = b"RIFF" + (46).to_bytes(4, "little") + sound("WAV")[8:36] + b"data" + bytes(4)
    assert Audio(Blob(empty)).samples().shape == (1, 0)
    assert Audio(Blob(empty + b"LIST" + (2).to_bytes(4, "little") + b"ab")).samples().shape == (
        1,
        0,
    )


def put(body: bytes, at: int, number: int, order: Any = "little") -> bytes:
    """Return bytes with a number of 32 bits in them."""
    return body[:at] + number.to_bytes(4, order) + body[at + 4 :]


def chunk(name: bytes, data: bytes) -> bytes:
    return name + len(data).to_bytes(4, "little") + data + bytes(len(data) & 1)


def make_stale_headers() -> dict[str, bytes]:
    """Return sounds whose headers claim less than half of them, or that are joined files."""
    wav, flac, caf = sound("WAV"), sound("FLAC"), sound("CAF")
    aiff, tail = sound("AIFF"), chunk(b"LIST", b"INFOabc")
    sizes = {name: body.index(b"data") + 4 for name, body in (("wav", wav), ("caf", caf))}
    aiff_size, rf64 = aiff.index(b"SSND") + 4, sound("RF64")
    return {
        "wav": put(put(wav, sizes["wav"], 20_000), 4, 20_036),
        "wav, data only": put(wav, sizes["wav"], 20_000),
        "wav, a sample less": put(wav, sizes["wav"], 47_998),
        "wav of silence": put(wav[:44], 40, 20_000) + bytes(48_000),
        "wav, joined": wav + wav,
        "wav, joined behind a chunk": wav + tail + wav,
        "wav, a second chunk of samples": wav + chunk(b"data", bytes(100)),
        "rf64": put(rf64, rf64.index(b"ds64") + 16, 20_000),
        "aiff": put(aiff, aiff_size, 20_008, "big"),
        "au": put(sound("AU"), 8, 20_000, "big"),
        "au, joined": sound("AU") * 2,
        "caf": put(caf, sizes["caf"] + 4, 20_000, "big"),
        "w64, joined": sound("W64") * 2,
        "flac": put(flac, 22, 4_096 * 2, "big"),
        "flac, joined": flac * 2,
        "flac, other bytes": flac + b"other bytes",
    }


STALE = (
    *("wav", "wav, data only", "wav, a sample less", "wav of silence", "wav, joined"),
    *("wav, joined behind a chunk", "wav, a second chunk of samples", "rf64", "aiff", "au"),
    *("au, joined", "caf", "w64, joined", "flac", "flac, joined", "flac, other bytes"),
)


@pytest.mark.parametrize("name", STALE)
def test_a_header_that_claims_less_than_its_file_is_refused(name: str) -> None:
    with pytest.raises(DataError, match="^7.a: the sound cannot be decoded: "):
        Audio(Blob(make_stale_headers()[name]), "7.a").samples()


ID3V1 = b"TAG" + bytes(125)
ID3V2 = b"ID3\4\0\0\0\0\1\2" + bytes(130)
APE = struct.pack("<8s4I8x", b"APETAGEX", 2_000, 32, 0, 0)
CHUNKS = [chunk(b"LIST", b"INFOabc"), chunk(b"bext", bytes(602)), chunk(b"id3 ", ID3V2)]
CHUNKS += [b"".join(CHUNKS), chunk(b"own ", bytes(range(256))), CHUNKS[0][:-1] + CHUNKS[2]]


@pytest.mark.parametrize("is_updated", [False, True])
def test_chunks_and_tags_may_follow_a_sound(is_updated: bool) -> None:
    tones = {
        "WAV": [*CHUNKS, ID3V1, ID3V2, APE, CHUNKS[0] + ID3V1, b"\0"],
        "FLAC": [ID3V1, ID3V2, APE, APE + ID3V1, bytes(5_000)],
        "AU": [ID3V1, ID3V2],
    }
    for format, ends in tones.items():
        want = Audio(Blob(sound(format))).samples()
        for end in ends:
            body = sound(format) + end
            if is_updated and format == "WAV":
                body = put(body, 4, len(body) - 8)
            assert np.array_equal(Audio(Blob(body)).samples(), want)
    odd = (
        b"RIFF"
        + bytes(4)
        + b"WAVE"
        + chunk(b"fmt ", struct.pack("<2H2I2H", 1, 1, 8_000, 8_000, 1, 8))
    )
    odd += b"data" + (3).to_bytes(4, "little")
    for end in (b"", b"\0", b"\0" + CHUNKS[0], CHUNKS[0]):
        assert Audio(Blob(odd + b"abc" + end)).samples().shape == (1, 3)


@pytest.mark.parametrize("size", [1, 16, 192, 4_096, 4_097, 60_000])
@pytest.mark.parametrize("channels", [1, 2, 8])
def test_the_last_frame_of_flac_files_is_read(size: int, channels: int) -> None:
    soundfile: Any = pytest.importorskip("soundfile")
    noise = np.random.default_rng(size).uniform(-0.5, 0.5, (size, channels))
    for level in (0, 1.0):
        file = io.BytesIO()
        soundfile.write(file, noise, 8_000, format="FLAC", compression_level=level)
        assert Audio(Blob(file.getvalue())).samples().shape == (channels, size)


def test_an_au_file_whose_length_was_never_written_is_read_to_its_end() -> None:
    for length in (0, 0xFFFFFFFF):
        body = put(sound("AU"), 8, length, "big")
        assert Audio(Blob(body)).samples().shape == (1, 24_000)


def test_a_flac_of_unknown_length_is_refused() -> None:
    body = bytearray(sound("FLAC"))
    body[21] &= 0xF0
    body[22:26] = bytes(4)
    with pytest.raises(DataError, match="has no length"):
        Audio(Blob(bytes(body))).samples()


def test_mp3_files_joined_into_one_are_refused() -> None:
    with pytest.raises(DataError, match="its header claims 1.00 s, and it holds 2.* several files"):
        Audio(Blob(sound("MP3") * 2)).samples()


@pytest.mark.parametrize("format", ["OGG", "OPUS"])
def test_ogg_files_joined_into_one_are_refused(format: str) -> None:
    with pytest.raises(DataError, match="put together of several files"):
        Audio(Blob(sound(format) * 2)).samples()


@pytest.mark.parametrize("format", ["OGG", "OPUS"])
@pytest.mark.parametrize("part", [0.3, 0.5, 0.7, 0.85, 0.95])
@pytest.mark.parametrize("lost", ["zeroed", "dropped"])
def test_ogg_data_with_a_gap_is_refused(format: str, part: float, lost: str) -> None:
    body = sound(format)
    at = int(len(body) * part)
    gap = body[:at] + (bytes(200) if lost == "zeroed" else b"") + body[at + 200 :]
    with pytest.raises(DataError, match="the sound cannot be decoded"):
        Audio(Blob(gap)).samples()


def test_what_follows_the_end_of_ogg_data_is_no_sound() -> None:
    assert Audio(Blob(sound("OGG") + b"TAG" + bytes(125))).samples().shape == (1, 24_000)


# ---------------------------------------------------------------- pictures


def picture() -> Any:
    noise = np.random.default_rng(0).integers(0, 40, (120, 160, 3))
    slope = np.add.outer(np.arange(120), np.arange(160) % 80)[..., None]
    return Pillow.fromarray((slope + noise).astype(np.uint8))


PICTURES: dict[str, tuple[str, dict[str, Any]]] = {
    "png": ("PNG", {}),
    "jpeg": ("JPEG", {"quality": 90}),
    "progressive": ("JPEG", {"progressive": True}),
    "gif": ("GIF", {}),
    "bmp": ("BMP", {}),
    "tiff": ("TIFF", {}),
    "tiff lzw": ("TIFF", {"compression": "tiff_lzw"}),
    "webp": ("WEBP", {}),
    "ppm": ("PPM", {}),
    "tga": ("TGA", {}),
    "pcx": ("PCX", {}),
    "ico": ("ICO", {"sizes": [(64, 64)], "bitmap_format": "bmp"}),
    "jpeg 2000": ("JPEG2000", {}),
    "sgi": ("SGI", {}),
}


def stored(name: str) -> bytes:
    format, options = PICTURES[name]
    file = io.BytesIO()
    picture().save(file, format, **options)
    return file.getvalue()


@pytest.mark.parametrize("lenient", [False, True])
@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_that_was_cut_off_is_refused(
    monkeypatch: pytest.MonkeyPatch, name: str, lenient: bool
) -> None:
    body = stored(name)
    whole = decode_image(body, "rgb8")
    for part in cuts(body):
        for kind in ("rgb8", "pilrgb"):
            monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", lenient)
            try:
                found = np.asarray(Image(Blob(part), "7.p").decode(kind))
            except DataError as error:
                assert str(error).startswith("7.p: the image cannot be decoded")
            else:
                assert np.array_equal(found, whole)  # what was cut off were no pixels


def test_turning_off_the_leniency_of_pillow_is_said(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    with caplog.at_level(logging.WARNING, "penstock"):
        decode_image(stored("png"), "rgb8")
        decode_image(stored("png"), "rgb8")
    assert [record.message.split(":")[0] for record in caplog.records] == [
        "PIL.ImageFile.LOAD_TRUNCATED_IMAGES is turned off"
    ]


@pytest.mark.parametrize("kind", ["rgb8", "l8", "pilrgb"])
def test_a_jpeg_that_ends_too_early_is_not_grey(kind: str) -> None:
    pytest.importorskip("simplejpeg")
    body = stored("jpeg")
    for least in (None, 20):
        with pytest.raises(DataError, match="remature end"):
            Image(Blob(body[: len(body) // 2] + b"\xff\xd9"), "7").decode(kind, least=least)


@pytest.mark.parametrize("format", ["gif", "png", "webp"])
def test_an_animated_picture_that_was_cut_off_is_refused(format: str) -> None:
    """Its first picture was given; a later one was half there, or none at all."""
    file, noise = io.BytesIO(), np.random.default_rng(0).integers(0, 255, (4, 20, 20, 3), np.uint8)
    first, *others = map(Pillow.fromarray, noise)
    first.save(file, format, save_all=True, append_images=others)
    body = file.getvalue()
    for whole in (body, body + bytes(3)):
        assert decode_image(whole, "rgb8").shape == (20, 20, 3)
    for size in range(len(body) - 1, len(body) // 8, -97):
        with pytest.raises(DataError):
            decode_image(body[:size], "rgb8")


def test_a_png_with_a_hole_is_refused() -> None:
    body = bytearray(stored("png"))
    body[len(body) // 2 : -100] = bytes(len(body) - 100 - len(body) // 2)
    with pytest.raises(DataError, match="checksum of its chunk"):
        decode_image(bytes(body))


# ---------------------------------------------------------------- videos

EVEN = [number / 10 for number in range(24)]
UNEVEN = [0, 0.1, 0.2, 0.3, 1.0, 1.1, 2.0, 2.05, 5.0, 5.1, 9.0]
VIDEOS = {
    "mp4": "libx264",
    "mov": "libx264",
    "matroska": "libx264",
    "webm": "libvpx",
    "avi": "mpeg4",
}
VIDEOS |= {"flv": "libx264", "asf": "wmv2", "mpegts": "libx264"}
CLAIMS = {"gif": "gif", "ivf": "libvpx", "nut": "mpeg4", "swf": "flv1", "apng": "apng"}
CLAIMS |= {"mpeg": "mpeg2video", "vob": "mpeg2video"}
_MADE: dict[Any, bytes] = {}


def video(format: str, times: Sequence[float] = EVEN, reordered: int = 0, **options: str) -> bytes:
    """Frame `n` is of five stripes, white where a bit of `n` is set."""
    av: Any = pytest.importorskip("av")
    if (key := (format, tuple(times), reordered, *options.items())) in _MADE:
        return _MADE[key]
    file, codec, rate = io.BytesIO(), (VIDEOS | CLAIMS)[format], 25 if format in CLAIMS else 10
    with av.open(file, "w", format=format, options=options) as container:
        stream = container.add_stream(
            codec, rate=rate, options={"bf": str(reordered)} if codec == "libx264" else {}
        )
        stream.width, stream.height = 48, 16
        stream.pix_fmt = {"gif": "rgb8", "apng": "rgb24"}.get(format, "yuv420p")
        stream.gop_size = 8
        unit = fractions.Fraction(1, rate if format in ("avi", "asf", *CLAIMS) else 1000)
        stream.codec_context.time_base = unit
        for number, time in enumerate(times):
            stripes = np.repeat([255 * (number >> bit & 1) for bit in range(6)], 8).astype(np.uint8)
            pixels = np.ascontiguousarray(np.broadcast_to(stripes[None, :, None], (16, 48, 3)))
            frame = av.VideoFrame.from_ndarray(pixels, format="rgb24").reformat(
                format=stream.pix_fmt
            )
            frame.pts, frame.time_base = round(time / unit), unit
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    _MADE[key] = file.getvalue()
    return _MADE[key]


def read(frames: Any) -> list[int]:
    return [
        sum(1 << bit for bit in range(6) if frame[:, 8 * bit + 2 : 8 * bit + 6].mean() > 127)
        for frame in frames
    ]


@pytest.mark.parametrize("reordered", [0, 2])
@pytest.mark.parametrize("format", ["mp4", "matroska", "flv", "mpegts"])
def test_frames_of_a_variable_rate_are_counted(format: str, reordered: int) -> None:
    found = Video(Blob(video(format, UNEVEN, reordered)), "k")
    assert read(found.numbered(range(11))) == list(range(11))
    assert read(found.numbered([7, 0, 9, 7])) == [7, 0, 9, 7] and len(found.numbered([])) == 0
    for wrong in (11, -1):
        with pytest.raises(DataError, match="k: .*frame"):
            found.numbered([wrong])
    assert read(found.frames([0.95, 1.02, 2.04, 4.9, 5.05])) == [3, 4, 6, 7, 8]


@pytest.mark.parametrize("format", VIDEOS)
def test_a_video_that_was_cut_off_gives_its_frames_or_is_refused(format: str) -> None:
    body = video(format)
    whole = Video(Blob(body), "7.v")
    assert read(whole.numbered(range(24))) == list(range(24))
    assert read(whole.frames([time + 0.05 for time in EVEN])) == list(range(24))
    for part in cuts(body):
        found = Video(Blob(part), "7.v")
        for number in (0, 5, 11, 17, 23):
            asked: list[tuple[Any, float]] = [
                (found.numbered, number),
                (found.frames, EVEN[number] + 0.05),
            ]
            for ask, wanted in asked:
                try:
                    assert read(ask([wanted])) == [number]
                except DataError as error:
                    assert str(error).startswith("7.v: ")


def refused(body: bytes) -> None:
    with pytest.raises(
        DataError, match="7.v: the video cannot be decoded: it is (cut off|damaged)"
    ):
        Video(Blob(body), "7.v").clip(0, 2.35, 10)


def test_a_fragmented_video_with_a_gap_is_refused() -> None:
    body = video("mp4", movflags="frag_keyframe+empty_moov")
    assert len(Video(Blob(body)).clip(0, 2.4, 10)) == 24
    at = body.find(b"moof", body.find(b"moof") + 4) - 4
    refused(body[:at] + bytes(len(body) - at))
    refused(body[:at] + bytes(600) + body[at + 600 :])
    refused(body[: at + 5])


def test_a_transport_stream_with_a_clock_before_each_packet_that_was_cut_off_is_refused() -> None:
    body = video("mpegts", mpegts_m2ts_mode="1")
    assert len(Video(Blob(body)).clip(0, 2.3, 10)) == 23
    refused(body[:-50])


def test_a_transport_stream_that_was_not_written_to_its_end_is_refused() -> None:
    body = video("mpegts")
    refused(body[: len(body) // 2] + bytes(len(body) - len(body) // 2))
    at = len(body) // 188 // 2 * 188
    refused(body[:at] + body[at + 3 * 188 :])


@pytest.mark.parametrize("format", CLAIMS)
def test_a_video_without_its_end_is_refused(format: str) -> None:
    """FFmpeg takes it for a shorter one."""
    body = video(format, [number / 25 for number in range(24)])
    assert read(Video(Blob(body), "7.v").numbered(range(24))) == list(range(24))
    for part in (*(body[: int(len(body) * tenth / 10)] for tenth in range(2, 10)), body[:-1]):
        with pytest.raises(DataError, match="^7.v: the video cannot be decoded: it is cut off"):
            _ = Video(Blob(part), "7.v").seconds


def test_a_program_stream_may_go_on_behind_its_last_packet() -> None:
    body = video("vob", [number / 25 for number in range(24)])
    for more in (bytes(2048), b"\x00\x00\x01\xb9"):
        assert read(Video(Blob(body + more), "7.v").numbered([23])) == [23]


# ---------------------------------------------------------------- documents


def test_a_document_that_was_cut_off_is_refused() -> None:
    pytest.importorskip("pypdfium2")
    file = io.BytesIO()
    picture().save(file, "pdf", save_all=True, append_images=[picture()])
    for part in cuts(file.getvalue()):
        with pytest.raises(DataError, match="^7.d: the document cannot be decoded"):
            len(Pdf(Blob(part), "7.d"))


# ---------------------------------------------------------------- arguments of one sample


def audio() -> Audio:
    return Audio(Blob(sound("WAV")), "7")


def clip() -> Video:
    return Video(Blob(video("mp4")), "7")


def document() -> Pdf:
    pytest.importorskip("pypdfium2")
    file = io.BytesIO()
    picture().save(file, "pdf")
    return Pdf(Blob(file.getvalue()), "7")


def still() -> Image:
    return Image(Blob(stored("png")), "7")


OF_ONE: dict[str, Callable[[], Any]] = {
    "samples before": lambda: audio().samples(-1),
    "samples backwards": lambda: audio().samples(0.5, 0.2),
    "samples nan": lambda: audio().samples(float("nan")),
    "frames past": lambda: clip().frames([99]),
    "frames before": lambda: clip().frames([-0.1]),
    "frames nan": lambda: clip().frames([float("nan")]),
    "clip backwards": lambda: clip().clip(1, 0.5),
    "clip past": lambda: clip().clip(2, 9),
    "numbered past": lambda: clip().numbered([24]),
    "numbered before": lambda: clip().numbered([-1]),
    "page past": lambda: document().page(1),
    "page before": lambda: document().text(-1),
    "crop right": lambda: still().decode(crop=(150, 0, 20, 10)),
    "crop left": lambda: still().decode("pilrgb", crop=(-1, 0, 20, 10)),
    "crop of nothing": lambda: still().decode("rgb8", crop=(0, 0, 0, 10)),
    "no field": lambda: Lazy({"p": "image"})({"__key__": "7", "q": b""}),
    "no media": lambda: Lazy({"p": "image"})({"__key__": "7", "p": 3.5}),
}


@pytest.mark.parametrize("name", OF_ONE)
def test_what_is_wrong_with_one_sample_is_an_error_of_that_sample(name: str) -> None:
    with pytest.raises(DataError, match="^7"):
        OF_ONE[name]()


def test_what_is_wrong_with_every_sample_is_an_error_of_the_pipeline() -> None:
    for wrong in (
        lambda: still().decode("grey"),
        lambda: clip().clip(0, 1, rate=0),
        lambda: document().page(0, dpi=0),
        lambda: Lazy({"p": "picture"}),
    ):
        with pytest.raises(ConfigError):
            wrong()


def test_a_sample_with_a_wrong_time_is_replaced() -> None:
    rows = [{"v": video("mp4"), "at": 99.0 if number == 3 else 0.55} for number in range(6)]
    ds = (
        ps.from_sequence(rows)
        .map(Lazy({"v": "video"}))
        .map(lambda row: read(row["v"].frames([row["at"]])))
    )
    with ps.Loader(ds, on_error="quarantine") as loader:
        assert list(loader) == [[5]] * 6
        assert [entry["index"] for entry in loader.journal] == [3]


def test_the_journal_names_file_and_row_and_nothing_of_this_process(tmp_path: Path) -> None:
    rows = [stored("png")[: None if number != 3 else 40] for number in range(6)]
    pq.write_table(pa.table({"p": rows}), tmp_path / "a.parquet")
    ds = (
        ps.read(tmp_path / "a.parquet")
        .map(Lazy({"p": "image"}))
        .map(lambda row: row["p"].decode("rgb8").shape)
    )
    with ps.Loader(ds, on_error="quarantine") as loader:
        assert list(loader) == [(120, 160, 3)] * 6
        (entry,) = loader.journal
    assert (
        f"DataError: {tmp_path / 'a.parquet'}, row 3: p: " in entry["error"]
        and " at 0x" not in entry["error"]
    )
    with pytest.raises(DataError, match=r"a.parquet, row 3: p: "):
        list(ps.Loader(ds))


def test_pillow_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "_import_simplejpeg", lambda: None)
    body = stored("jpeg")
    for part in cuts(body):
        with pytest.raises(DataError):
            decode_image(part, "rgb8")


def clip_of_two_seconds() -> Video:
    return Video(Blob(video("mp4", [number / 10 for number in range(20)])), "7.v")


@pytest.mark.parametrize("stop", [float("inf"), 1e12, 3.5, None, "1"])
def test_a_clip_that_ends_far_behind_its_video_is_refused_at_once(stop: Any) -> None:
    with pytest.raises(DataError, match="^7.v"):
        clip_of_two_seconds().clip(0, stop)


def test_a_clip_of_too_many_frames_is_refused_before_their_times_are_listed() -> None:
    with pytest.raises(DataError, match="pixels, more than Limits"):
        clip_of_two_seconds().clip(0, 1, rate=1e12)
    with pytest.raises(ConfigError, match="rate=inf"):
        clip_of_two_seconds().clip(0, 1, rate=float("inf"))
    assert len(clip_of_two_seconds().clip(0, 2)) == 20
    assert len(clip_of_two_seconds().clip(0.5, 1.0, 4)) == 2


@pytest.mark.parametrize("crop", [(0, 0), 3, "abcd", (0.5, 0, 2, 2), (0, 0, None, 1)])
@pytest.mark.parametrize("kind", ["rgb8", "pil"])
def test_a_crop_that_is_no_four_integers_is_an_error_of_its_sample(crop: Any, kind: str) -> None:
    file = io.BytesIO()
    Pillow.new("RGB", (8, 8)).save(file, "png")
    with pytest.raises(DataError, match="^7.i: crop=.*four integers"):
        Image(Blob(file.getvalue()), "7.i").decode(kind, crop=crop)


def test_a_pcx_picture_without_its_palette_is_refused() -> None:
    file = io.BytesIO()
    Pillow.fromarray(np.arange(256, dtype=np.uint8).reshape(16, 16)).convert("RGB").convert(
        "P"
    ).save(file, "pcx")
    body = file.getvalue()
    assert decode_image(body, "rgb8").shape == (16, 16, 3)
    for cut in (1, 100, 768, 769):
        with pytest.raises(DataError, match="palette"):
            decode_image(body[:-cut], "rgb8")


def test_the_url_of_a_medium_keeps_its_slashes(tmp_path: Path) -> None:
    assert Blob.of("s3://bucket/a.jpg").path == "s3://bucket/a.jpg"
    assert Blob.of("a.jpg", "s3://bucket/media").path == "s3://bucket/media/a.jpg"
    assert Blob.of("s3://other/a.jpg", "s3://bucket/media").path == "s3://other/a.jpg"
    (tmp_path / "a.jpg").write_bytes(b"abc")
    assert Blob.of(f"file://{tmp_path}/a.jpg").read() == b"abc"
    assert Blob.of("a.jpg", tmp_path).read() == b"abc"


def test_a_picture_in_a_tag_behind_an_mp3_holds_no_sound() -> None:
    body = sound("MP3")
    picture = np.random.default_rng(0).bytes(200_000)
    item = struct.pack("<2I", len(picture), 2) + b"Cover Art (Front)\0" + picture
    head, end = (
        struct.pack("<8s4I8x", b"APETAGEX", 2_000, len(item) + 32, 1, flags)
        for flags in (0xA << 28, 8 << 28)
    )
    assert np.array_equal(
        Audio(Blob(body + head + item + end)).samples(), Audio(Blob(body)).samples()
    )
    with pytest.raises(DataError, match="it is cut off"):
        Audio(Blob(body[: len(body) // 2] + head + item + end)).samples()


@pytest.mark.parametrize("subtype", ["MPEG_LAYER_III", "VORBIS", "OPUS"])
@pytest.mark.parametrize("rate", [16_000, 44_100])
@pytest.mark.parametrize("has_pauses", [False, True])
def test_a_part_of_a_sound_equals_the_whole_there(
    subtype: str, rate: int, has_pauses: bool
) -> None:
    """libsndfile returned wrong samples after seeks: in MP3 files of small frames, and in the last page of Vorbis."""
    soundfile: Any = pytest.importorskip("soundfile")
    rate = 48_000 if subtype == "OPUS" and rate == 44_100 else rate
    seconds = np.arange(rate * 9) / rate
    tone = 0.3 * np.sin(2 * np.pi * (100 * seconds + 90 * seconds**2))
    tone *= (np.sin(2 * np.pi * 1.3 * seconds) > 0) if has_pauses else 1
    file = io.BytesIO()
    format = "MP3" if subtype == "MPEG_LAYER_III" else "OGG"
    soundfile.write(file, np.stack([tone, tone / 2], 1), rate, format=format, subtype=subtype)
    audio = Audio(Blob(file.getvalue()))
    whole = audio.samples()
    for start in np.random.default_rng(0).uniform(0, 8.9, 40).tolist():
        part = audio.samples(start, start + 0.1)
        first = round(start * rate)
        assert np.abs(part - whole[:, first : first + part.shape[1]]).max() < 2e-3


@pytest.mark.parametrize("numbers", [np.linspace(0, 9, 4), [1.5], 3, "a", None])
def test_frame_numbers_of_another_type_are_an_error_of_the_call(numbers: Any) -> None:
    """As an error of the sample, quarantine would have replaced every sample."""
    with pytest.raises(ConfigError, match="give a list of whole numbers; round others first"):
        Video(Blob(b"")).numbered(numbers)


@pytest.mark.parametrize("times", [1.5, ["a"], None])
def test_frame_times_of_another_type_are_an_error_of_the_call(times: Any) -> None:
    with pytest.raises(ConfigError, match="give a list of seconds"):
        Video(Blob(b"")).frames(times)
