from __future__ import annotations

import io
import json
import sys
import warnings
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import penstock as ps
from helpers import pairwise_first
from penstock.errors import ConfigError, DataError
from penstock.media import Lazy, images
from penstock.media.images import IMAGE_KINDS, Decode, decode_image, decode_part

RNG = np.random.default_rng(5)


def picture(height: int, width: int) -> Image.Image:
    across, down = np.meshgrid(np.arange(width), np.arange(height))
    smooth = np.stack([across * 255 // width, down * 255 // height, (across + down) % 256], -1)
    return Image.fromarray(
        (smooth + RNG.integers(-20, 20, smooth.shape)).clip(0, 255).astype(np.uint8)
    )


def stored(image: Image.Image, format: str, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, format, **options)
    return file.getvalue()


SAMPLES = {
    "rgb.png": stored(picture(7, 5), "png"),
    "l.png": stored(picture(7, 5).convert("L"), "png"),
    "rgba.png": stored(picture(7, 5).convert("RGBA"), "png"),
    "la.png": stored(picture(7, 5).convert("LA"), "png"),
    "palette.png": stored(picture(7, 5).convert("P"), "png"),
    "one_bit.png": stored(picture(7, 5).convert("1"), "png"),
    "rgb.jpg": stored(picture(33, 17), "jpeg"),
    "l.jpg": stored(picture(33, 17).convert("L"), "jpeg"),
    "cmyk.jpg": stored(picture(33, 17).convert("CMYK"), "jpeg"),
    "rgb.webp": stored(picture(7, 5), "webp"),
    "rgb.bmp": stored(picture(7, 5), "bmp"),
}


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Make packages look as if they were not installed."""

    def hide(*names: str) -> None:
        for name in names:
            monkeypatch.setitem(sys.modules, name, None)
        for cached in (images._import_pillow, images._import_simplejpeg, images._import_torch):
            cached.cache_clear()

    yield hide
    for cached in (images._import_pillow, images._import_simplejpeg, images._import_torch):
        cached.cache_clear()


@pytest.mark.parametrize("name", sorted(SAMPLES))
def test_what_webdataset_decodes(name: str) -> None:
    from webdataset.autodecode import imagehandler, imagespecs

    assert set(imagespecs) == set(IMAGE_KINDS)
    for kind in sorted(IMAGE_KINDS):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            theirs: Any = imagehandler(kind)(name, SAMPLES[name])
        ours = decode_image(SAMPLES[name], kind)
        assert type(ours) is type(theirs), kind
        if kind.startswith("pil"):
            assert ours.mode == theirs.mode, kind
        else:
            assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape), kind
        np.testing.assert_array_equal(np.asarray(ours), np.asarray(theirs), err_msg=kind)


SIZES = ((1, 1), (16, 16), (17, 33), (101, 57), (3, 300))


@pytest.mark.parametrize(
    "size,subsampling,progressive,kind",
    pairwise_first(SIZES, (0, 1, 2), (False, True), ("rgb8", "l8")),
)
def test_jpeg_gives_the_same_pixels_with_and_without_simplejpeg(
    without: Any, size: tuple[int, int], subsampling: int, progressive: bool, kind: str
) -> None:
    whole = picture(*size)
    options = {"subsampling": subsampling, "progressive": progressive, "quality": 83}
    files = [stored(image, "jpeg", **options) for image in (whole, whole.convert("L"))]
    assert images._import_simplejpeg() is not None
    fast = [decode_image(data, kind) for data in files]
    without("simplejpeg")
    assert images._import_simplejpeg() is None
    for data, pixels in zip(files, fast, strict=True):
        np.testing.assert_array_equal(pixels, decode_image(data, kind))


def test_arrays_can_be_written_to() -> None:
    for kind in ("rgb", "rgb8", "l", "l8", "torch", "torchl8", "torchrgba8"):
        for name in ("rgb.jpg", "l.jpg", "rgb.png", "l.png"):
            decode_image(SAMPLES[name], kind)[:] = 0


def test_an_unknown_kind_is_refused_with_the_list() -> None:
    for make in (lambda: decode_image(b"", "bgr"), lambda: Decode("bgr")):
        with pytest.raises(
            ConfigError, match="unknown kind of image 'bgr': use one of l, l8, pil, .*torchrgba8"
        ):
            make()


@pytest.mark.parametrize("name", ["rgb.png", "rgb.jpg", "cmyk.jpg", "rgb.webp"])
@pytest.mark.parametrize("kind", ["rgb8", "torch", "pil"])
def test_a_damaged_image_names_its_key(name: str, kind: str) -> None:
    data = SAMPLES[name]
    for bad in (b"", b"no image", data[: len(data) // 2], data[:4]):
        with pytest.raises(DataError, match=r"^train/007: the image cannot be decoded: "):
            decode_image(bad, kind, key="train/007")


@pytest.mark.parametrize("format", ["png", "jpeg", "bmp"])
def test_an_image_of_hostile_size_is_an_error(format: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data = stored(Image.new("RGB", (60, 50)), format)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 2999)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow itself only warns up to twice its limit
        with pytest.raises(DataError, match=r"k: .*60 x 50 pixels.*MAX_IMAGE_PIXELS \(2,999\)"):
            decode_image(data, "rgb8", key="k")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    with pytest.raises(DataError, match="k: .*pixels"):
        decode_image(data, "rgb8", key="k")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)
    assert decode_image(data, "rgb8").shape == (50, 60, 3)


def test_pixels_of_16_bits_are_refused_not_clipped() -> None:
    data = stored(Image.fromarray(np.full((2, 2), 40_000, np.uint16)), "png")
    with pytest.raises(DataError, match=r"depth: .*'I;16', without 8 bits per channel"):
        decode_image(data, "l8", key="depth")


def test_formats_that_start_programs_are_no_images() -> None:
    eps = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n"
    with pytest.raises(DataError, match="cannot be decoded"):
        decode_image(eps, "rgb8")


def test_a_palette_with_transparency() -> None:
    image = picture(4, 4).convert("P")
    data = stored(image, "png", transparency=bytes(range(256)))
    np.testing.assert_array_equal(decode_image(data, "rgb8"), np.asarray(image.convert("RGB")))
    assert decode_image(data, "rgba8").shape == (4, 4, 4)


def test_missing_packages_name_the_extra(without: Any) -> None:
    without("torch")
    with pytest.raises(ImportError, match=r"penstock-data\[torch\]"):
        decode_image(SAMPLES["rgb.png"], "torch")
    without("PIL.Image")
    with pytest.raises(ImportError, match=r"penstock-data\[images\]"):
        decode_image(SAMPLES["rgb.png"], "rgb8")


def test_parts_by_extension() -> None:
    assert decode_part("seg.PNG", SAMPLES["rgb.png"], "rgb8").shape == (7, 5, 3)
    assert decode_part("png", SAMPLES["rgb.png"], None) == SAMPLES["rgb.png"]
    assert decode_part("meta.json", b'{"a": "\xc3\xa9"}') == {"a": "é"}
    assert decode_part("txt", "ä\n".encode()) == "ä\n"
    assert decode_part("cls", b"12\n") == 12
    for name in ("mp4", "pkl", "pickle", "pyd", "pth", ""):
        assert decode_part(name, b"bytes") == b"bytes"


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6, dtype=np.int16).reshape(2, 3),
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        np.zeros((0, 4)),
        np.array(3.5),
        np.array([("a", 1)], dtype=[("x", "U1"), ("y", ">i4")]),
    ],
)
def test_npy(array: np.ndarray[Any, Any]) -> None:
    file = io.BytesIO()
    np.save(file, array)
    found = decode_part("npy", file.getvalue())
    assert found.dtype == array.dtype
    np.testing.assert_array_equal(found, array)
    assert found.flags.writeable


def test_an_array_that_claims_more_than_it_has_allocates_nothing() -> None:
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        file, {"descr": "<f8", "fortran_order": False, "shape": (1 << 50,)}
    )
    with pytest.raises(
        DataError,
        match=r"007\.npy: .*16 bytes follow the header, which claims 9,007,199,254,740,992",
    ):
        decode_part("npy", file.getvalue() + bytes(16), key="007")
    objects = io.BytesIO()
    np.save(objects, np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(DataError, match="is a pickle, which is code"):
        decode_part("npy", objects.getvalue())


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("json", b"{"),
        ("json", b"[" * 100_000),
        ("cls", b"cat"),
        ("txt", b"\xff"),
        ("npy", b"\x93NUMPY"),
    ],
)
def test_a_part_that_does_not_decode_names_sample_and_part(name: str, data: bytes) -> None:
    with pytest.raises(DataError, match=rf"^a/7\.{name}: the part cannot be decoded: "):
        decode_part(name, data, key="a/7")
    with pytest.raises(DataError, match=rf"^a/7\.{name}: "):
        Decode()({"__key__": "a/7", name: data})


@given(st.data())
def test_damaged_bytes_give_an_image_or_an_error(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(SAMPLES)))
    body = bytearray(SAMPLES[name])
    for _ in range(data.draw(st.integers(1, 3))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            found = decode_image(bytes(body[: data.draw(st.integers(0, len(body)))]), "rgb8")
        except DataError:
            return
    assert found.ndim == 3 and found.dtype == np.uint8


@given(st.data())
def test_damaged_arrays_give_an_array_or_an_error(data: st.DataObject) -> None:
    file = io.BytesIO()
    np.save(file, np.arange(5))
    body = bytearray(file.getvalue())
    body[data.draw(st.integers(0, 80))] = data.draw(st.integers(0, 255))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            assert decode_part("npy", bytes(body)).nbytes <= len(body)
        except DataError:
            pass


def test_decoding_in_a_pipeline_is_only_done_for_what_is_asked() -> None:
    rows = [
        {
            "__key__": str(i),
            "jpg": SAMPLES["rgb.jpg"] if i != 3 else b"broken",
            "json": json.dumps(i).encode(),
        }
        for i in range(6)
    ]
    ds = ps.from_sequence(rows, name="pictures").map(Decode("rgb8"))
    assert ds[2]["jpg"].shape == (33, 17, 3)
    assert ds[2]["json"] == 2
    with pytest.raises(DataError, match=r"3\.jpg"):
        ds[3]


@pytest.mark.parametrize("orientation", range(1, 10))
@pytest.mark.parametrize("form", ["jpeg", "png", "tiff", "webp"])
def test_pictures_are_turned_as_their_exif_says(form: str, orientation: int) -> None:
    image: Any = pytest.importorskip("PIL.Image")
    operations: Any = pytest.importorskip("PIL.ImageOps")
    tag, file = image.Exif(), io.BytesIO()
    tag[0x0112] = orientation
    pixels = np.arange(8 * 16 * 3, dtype=np.uint8).reshape(8, 16, 3)
    image.fromarray(pixels).save(file, form, exif=tag)
    data = file.getvalue()
    as_held = np.asarray(image.open(io.BytesIO(data)).convert("RGB"))
    upright = np.asarray(operations.exif_transpose(image.open(io.BytesIO(data))).convert("RGB"))
    assert np.array_equal(decode_image(data, "rgb8", orient=True), upright)
    assert np.array_equal(np.asarray(decode_image(data, "pil", orient=True)), upright)
    assert np.array_equal(Decode("rgb8", orient=True)({form: data})[form], upright)
    assert np.array_equal(decode_image(data, "rgb8"), as_held)


@pytest.mark.parametrize("sample", [b"png", 3, None, [b"png"], "a.png"])
@pytest.mark.parametrize("step", [Decode("rgb8"), Lazy({"image": "image"})])
def test_a_sample_that_is_no_mapping_is_refused(step: Any, sample: Any) -> None:
    name, kind = type(step).__name__, type(sample).__name__
    with pytest.raises(DataError, match=f"{name}: the sample is a {kind}, not a mapping"):
        step(sample)


@pytest.mark.parametrize("name", ["rgb.png", "rgb.jpg"])
def test_a_missing_pillow_names_the_extra(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    imports = (images._import_pillow, images._import_image_file, images._list_pillow_formats)
    for module in [module for module in sys.modules if module.split(".")[0] == "PIL"]:
        monkeypatch.setitem(sys.modules, module, None)
    for function in imports:
        function.cache_clear()
    try:
        with pytest.raises(ImportError, match=r"pip install 'penstock-data\[images\]'"):
            Decode("rgb8")({"__key__": "0", name.split(".")[1]: SAMPLES[name]})
        with pytest.raises(ImportError, match=r"pip install 'penstock-data\[images\]'"):
            decode_image(SAMPLES[name], "pil")
    finally:
        for function in imports:
            function.cache_clear()
