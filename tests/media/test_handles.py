"""Handles of media: nothing is read before it is used, parts are what the whole says, bombs are refused."""

from __future__ import annotations

import errno
import io
import json
import pickle
import re
import struct
import sys
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image as Pillow

import penstock as ps
from penstock.errors import ConfigError, DataError, StorageError
from penstock.media import Audio, Blob, Image, Lazy, Limits, Pdf, Video, images
from penstock.stores.storage import LocalStore, override_world

RNG = np.random.default_rng(2)


def smooth(height: int, width: int) -> Any:
    across, down = np.meshgrid(np.arange(width), np.arange(height))
    return Pillow.fromarray(
        np.stack([across * 255 // width, down * 255 // height, across * 0 + 90], -1).astype(
            np.uint8
        )
    )


def stored(image: Any, format: str) -> bytes:
    file = io.BytesIO()
    image.save(file, format)
    return file.getvalue()


class Counting(LocalStore):
    """Counts the bytes that are read."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def read(self, path: str, start: int = 0, length: int | None = None, /) -> bytes:
        found = super().read(path, start, length)
        self.bytes += len(found)
        return found


@pytest.mark.parametrize("wrap", [list, tuple, lambda found: np.array(found, dtype=object)])
def test_a_list_of_media_is_a_list_of_handles(wrap: Any, tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(stored(smooth(4, 6), "png"))
    photos = wrap(["a.png", None, stored(smooth(8, 2), "png"), b"no picture"])
    (sample,) = ps.from_sequence([{"__key__": "7", "photos": photos}]).map(
        Lazy({"photos": "image"}, root=tmp_path)
    )
    first, none, last, bad = sample["photos"]
    assert none is None and [first.size, last.size] == [(6, 4), (2, 8)]
    with pytest.raises(DataError, match=r"7\.photos\[3\]"):
        bad.decode()
    with pytest.raises(DataError, match=r"n\[1\]: a int is no media"):
        Lazy({"n": "image"})({"n": wrap(["a.png", 3])})


def test_nothing_is_read_before_it_is_used(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_bytes(stored(smooth(40, 60), "jpeg"))
    rows = [{"__key__": "1", "photo": "a.jpg", "n": 3}, {"__key__": "2", "photo": None, "n": 4}]
    ds = ps.from_sequence(rows).map(Lazy({"photo": "image"}, root=tmp_path))
    store = Counting()
    with override_world(store=store):
        first, second = ds[0], ds[1]
        assert store.bytes == 0 and second["photo"] is None
        again = pickle.loads(pickle.dumps(first["photo"]))
        assert again.size == (60, 40) and store.bytes > 0
        assert again.decode().shape == (40, 60, 3)
    with ps.Loader(ds.limit(1).batch(1, collate=list), workers=1, executor="processes") as loader:
        assert next(iter(loader))[0]["photo"].decode("l8").shape == (40, 60)


def test_fields_hold_bytes_paths_or_both(tmp_path: Path) -> None:
    data = stored(smooth(4, 6), "png")
    (tmp_path / "a.png").write_bytes(b"..." + data)
    for given in (data, {"bytes": data, "path": None}, Blob(None, str(tmp_path / "a.png"), 3)):
        assert Lazy({"x": "image"})({"x": given})["x"].size == (6, 4)
    for wrong in ({"photo": "picture"},):
        with pytest.raises(
            ConfigError,
            match="'picture' is not a kind of media: use one of image, audio, video, pdf",
        ):
            Lazy(wrong)
    for unnamed in (["x"], "image"):
        with pytest.raises(
            ConfigError, match="name the kind of each field, as in {'photo': 'image'}"
        ):
            Lazy(unnamed)  # pyright: ignore[reportArgumentType]
    with pytest.raises(DataError, match="no field 'y'; the sample has x"):
        Lazy({"y": "image"})({"x": 1})
    with pytest.raises(DataError, match="7.x: a int is no media"):
        Lazy({"x": "image"})({"x": 1, "__key__": "7"})


def decoded_size(row: dict[str, Any]) -> int:
    with open(row["path"], "rb") as file:
        return len(file.read())


def decoded(row: dict[str, Any]) -> int:
    return Lazy({"path": "image"})(row)["path"].decode("l8").size


class Pictures:
    """A sequence whose items open files of their own, as a dataset of torch does."""

    def __init__(self, names: list[str]) -> None:
        self.names = names

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: int) -> int:
        return decoded_size({"path": self.names[index]})


@pytest.mark.parametrize("make", ["decoded", "decoded_size", "items"])
@pytest.mark.parametrize("name", ["none.png", "a.png/b.png", "folder", "long" * 99])
def test_a_missing_file_of_one_sample_is_the_fault_of_that_sample(
    tmp_path: Path, make: str, name: str
) -> None:
    """It was a failure of storage, tried three times and never exchanged."""
    (tmp_path / "a.png").write_bytes(stored(smooth(4, 6), "png"))
    names = [str(tmp_path / each) for each in ("a.png", "a.png", name, "a.png")]
    (tmp_path / "folder").mkdir()
    (tmp_path / "rows.jsonl").write_text(
        "".join(json.dumps({"path": each}) + "\n" for each in names)
    )
    rows = ps.read(tmp_path / "rows.jsonl")
    ds = (
        ps.from_sequence(Pictures(names))
        if make == "items"
        else rows.map(decoded if make == "decoded" else decoded_size)
    )
    where = "" if make == "items" else r"rows\.jsonl, row 2: "
    with pytest.raises(DataError, match=f"(?s){where}.*{re.escape(name)}"):
        list(ps.Loader(ds))
    assert len(list(ps.Loader(ds, on_error="quarantine"))) == 4


def test_a_missing_object_is_the_fault_of_its_sample_and_a_refused_one_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fsspec = pytest.importorskip("fsspec")
    with fsspec.open("memory://pictures/a.png", "wb") as file:
        file.write(stored(smooth(4, 6), "png"))
    names = [f"memory://pictures/{name}.png" for name in "aanaaa"]
    ds = ps.from_sequence([{"path": name} for name in names]).map(decoded)
    with pytest.raises(DataError, match=r"memory://pictures/n\.png: there is no such file"):
        list(ps.Loader(ds))
    assert len(list(ps.Loader(ds, on_error="quarantine"))) == 6
    monkeypatch.setattr(fsspec.get_filesystem_class("memory"), "_open", refuse)
    monkeypatch.setattr(fsspec.get_filesystem_class("memory"), "cat_file", refuse)
    with pytest.raises(StorageError):
        list(ps.Loader(ds, on_error="quarantine"))


def refuse(*_: Any, **__: Any) -> Any:
    raise PermissionError(errno.EACCES, "permission denied")


@pytest.mark.parametrize("kind", ["rgb8", "rgb", "l8", "torchrgb8", "pilrgb"])
def test_crops_are_parts_of_the_whole(kind: str) -> None:
    picture = Image(Blob(stored(smooth(30, 50), "png")))
    part = np.asarray(picture.decode(kind, crop=(7, 3, 20, 11)))
    whole = np.asarray(picture.decode(kind))
    where = (slice(3, 14), slice(7, 27))
    assert (part == (whole[:, *where] if kind.startswith("torch") else whole[where])).all()


@pytest.mark.parametrize("mode", ["RGB", "L"])
@pytest.mark.parametrize(("least", "size"), [(10, (13, 9)), (30, (25, 35)), (100, (100, 133))])
def test_scaled_pictures_are_the_same_by_both_decoders(
    monkeypatch: pytest.MonkeyPatch, mode: str, least: int, size: tuple[int, int]
) -> None:
    picture = Image(Blob(stored(smooth(99, 133).convert(mode), "jpeg")))
    kind = "rgb8" if mode == "RGB" else "l8"
    found = [picture.decode(kind, least=least)]
    monkeypatch.setattr(images, "_import_simplejpeg", lambda: None)
    found.append(picture.decode(kind, least=least))
    assert np.array_equal(*found) and min(found[0].shape[:2]) >= min(least, 99)
    assert (
        np.asarray(picture.decode("pil" + kind.removesuffix("8"), least=least)).shape
        == found[0].shape
    )
    small = np.asarray(smooth(99, 133).convert(mode).resize(found[0].shape[1::-1]), np.float32)
    assert np.abs(small - found[0]).mean() < 6


def test_pictures_that_are_too_large_are_refused() -> None:
    def chunk(kind: bytes, body: bytes) -> bytes:
        return (
            struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        )

    header = struct.pack(">IIBBBBB", 40_000, 40_000, 8, 2, 0, 0, 0)
    bomb = (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(bytes(1000)))
        + chunk(b"IEND", b"")
    )
    with pytest.raises(DataError, match="7.photo: the image cannot be decoded"):
        Image(Blob(bomb), "7.photo").decode()
    fine = Blob(stored(smooth(30, 40), "png"))
    for limits, said in ((Limits(pixels=1000), "1,200 pixels"), (Limits(bytes=10), "bytes=10")):
        with pytest.raises(DataError, match=said):
            Image(fine, "7", limits).decode()
    with pytest.raises(DataError, match="cannot be decoded: cannot identify image file$"):
        Image(Blob(b"no picture")).decode()


def test_sounds_are_decoded_from_second_to_second(tmp_path: Path) -> None:
    soundfile: Any = pytest.importorskip("soundfile")
    wave = RNG.uniform(-0.5, 0.5, (8_000, 2)).astype(np.float32)
    for name, form in (("a.wav", "FLOAT"), ("a.flac", "PCM_16")):
        soundfile.write(tmp_path / name, wave, 4_000, subtype=form)
        sound = Audio(Blob(None, str(tmp_path / name)), "k")
        assert (sound.rate, sound.seconds) == (4_000, 2.0)
        assert sound.samples().shape == (2, 8_000)
        part = sound.samples(0.5, 0.75)
        assert part.dtype == np.float32 and np.abs(part - wave[2_000:3_000].T).max() < 1e-4
        assert sound.samples(1.9, 99).shape == (2, 400) and sound.samples(50).shape == (2, 0)
        with pytest.raises(DataError, match="k: samples"):
            sound.samples(1, 0.5)
    for limits in (Limits(seconds=1), Limits(samples=100)):
        with pytest.raises(DataError, match="more than Limits"):
            Audio(Blob(None, str(tmp_path / "a.wav")), "k", limits).samples()
    for bad in (b"", b"RIFF....", (tmp_path / "a.flac").read_bytes()[:40]):
        with pytest.raises(DataError, match="k: the sound cannot be decoded"):
            Audio(Blob(bad), "k").samples()


@pytest.mark.parametrize("form", [("WAV", "GSM610"), ("WAV", "G721_32"), ("AU", "G723_24")])
def test_sounds_of_codecs_that_cannot_seek_are_decoded_from_the_beginning(
    form: tuple[str, str],
) -> None:
    soundfile: Any = pytest.importorskip("soundfile")
    file = io.BytesIO()
    soundfile.write(
        file,
        RNG.uniform(-0.5, 0.5, 8_000).astype(np.float32),
        8_000,
        format=form[0],
        subtype=form[1],
    )
    whole = soundfile.read(io.BytesIO(file.getvalue()), dtype="float32", always_2d=True)[0].T
    sound = Audio(Blob(file.getvalue()))
    assert np.array_equal(sound.samples(), whole)
    assert np.array_equal(sound.samples(0.25, 0.5), whole[:, 2_000:4_000])
    with pytest.raises(DataError, match="more than Limits"):
        Audio(Blob(file.getvalue()), "", Limits(samples=3_000)).samples(0.25, 0.5)


def video(path: Path, frames: int = 60, rate: int = 10) -> None:
    """Frame `n` is of six stripes, white where a bit of `n` is set."""
    av: Any = pytest.importorskip("av")
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", rate=rate)
        stream.width, stream.height, stream.pix_fmt, stream.gop_size = 64, 48, "yuv420p", 12
        for n in range(frames):
            stripes = np.repeat(
                [255 * (n >> bit & 1) for bit in range(6)] + [0], [10] * 6 + [4]
            ).astype(np.uint8)
            grey = np.ascontiguousarray(np.broadcast_to(stripes[None, :, None], (48, 64, 3)))
            container.mux(stream.encode(av.VideoFrame.from_ndarray(grey, format="rgb24")))
        container.mux(stream.encode())


def numbers(frames: Any) -> list[int]:
    return [
        sum(1 << bit for bit in range(6) if frame[:, 10 * bit + 3 : 10 * bit + 7].mean() > 127)
        for frame in frames
    ]


def test_frames_are_found_by_time_and_number(tmp_path: Path) -> None:
    video(tmp_path / "a.mp4")
    clip = Video(Blob(None, str(tmp_path / "a.mp4")), "k")
    assert clip.size == (64, 48) and abs(clip.seconds - 6) < 0.2 and clip.rate == 10
    times = [5.95, 0.0, 2.55, 2.55, 0.31, 4.0]
    assert numbers(clip.frames(times)) == [59, 0, 25, 25, 3, 40]
    assert numbers(clip.numbered(range(60))) == list(range(60))
    assert numbers(clip.clip(1.0, 2.0)) == list(range(10, 20)) and numbers(
        clip.clip(1.05, 5.0, rate=1)
    ) == [
        10,
        20,
        30,
        40,
    ]
    assert numbers(Video(Blob((tmp_path / "a.mp4").read_bytes())).frames([3.05])) == [30]
    for times in ([-1.0], [99.0]):
        with pytest.raises(DataError, match="k: frames.* seconds"):
            clip.frames(times)
    for limits in (Limits(pixels=64 * 48), Limits(seconds=1)):
        with pytest.raises(DataError, match="more than Limits"):
            Video(clip.blob, "k", limits).frames([0, 1])
    for bad in (b"", b"no video", (tmp_path / "a.mp4").read_bytes()[:200]):
        with pytest.raises(DataError, match="k: the video cannot be decoded"):
            Video(Blob(bad), "k").frames([0])


def test_pages_are_drawn_and_read() -> None:
    pytest.importorskip("pypdfium2")
    pages = [smooth(72, 144), smooth(36, 36)]
    file = io.BytesIO()
    pages[0].save(file, "pdf", save_all=True, append_images=pages[1:], resolution=72)
    document = Pdf(Blob(file.getvalue()), "k")
    assert len(document) == 2 and document.text(0) == ""
    assert document.page(0).shape == (72, 144, 3) and document.page(1, dpi=144).shape == (72, 72, 3)
    assert np.abs(document.page(0).astype(int) - np.asarray(pages[0])).mean() < 8
    for limits in (Limits(pages=1), Limits(pixels=100)):
        with pytest.raises(DataError, match="more than Limits"):
            Pdf(document.blob, "k", limits).page(0)
    for bad in (b"", b"%PDF-1.7 and nothing"):
        with pytest.raises(DataError, match="k: the document cannot be decoded"):
            Pdf(Blob(bad), "k").page(0)
    with pytest.raises(DataError):
        document.page(9)
    with ThreadPoolExecutor(4) as pool:
        assert {page.shape for page in pool.map(document.page, [0] * 12)} == {(72, 144, 3)}


@pytest.mark.parametrize(
    ("package", "extra", "use"),
    [
        ("soundfile", "audio", lambda: Audio(Blob(b"")).rate),
        ("av", "video", lambda: Video(Blob(b"")).rate),
        ("pypdfium2", "pdf", lambda: len(Pdf(Blob(b"")))),
    ],
)
def test_what_is_missing_is_named(
    monkeypatch: pytest.MonkeyPatch, package: str, extra: str, use: Any
) -> None:
    from penstock.media import handles, video

    monkeypatch.setitem(sys.modules, package, None)
    for cached in (handles._import_package, video._import_av):
        cached.cache_clear()
    with pytest.raises(ImportError, match=rf"penstock-data\[{extra}\]"):
        use()
    for cached in (handles._import_package, video._import_av):
        cached.cache_clear()


def test_a_handle_is_printed_without_its_bytes() -> None:
    handle = Lazy({"sound": "audio"})({"sound": bytes(1 << 20)})["sound"]
    assert "Blob(<1,048,576 bytes>)" in repr(handle) and len(repr(handle)) < 300
    assert repr(Blob(path="a.mp4")) == "Blob('a.mp4')"
    assert repr(Blob(path="a.tar", start=512, size=9)) == "Blob('a.tar', start=512, size=9)"
