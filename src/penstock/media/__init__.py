"""Bytes of samples as values: pictures, sound, video, pages; JSON, text, numbers. Now, or when a
field is used."""

from __future__ import annotations

from .blob import Blob, Limits
from .handles import Audio, Image, Lazy, Pdf
from .images import KINDS, Decode, decode_image, decode_part
from .video import Video

__all__ = [
    "KINDS",
    "Audio",
    "Blob",
    "Decode",
    "Image",
    "Lazy",
    "Limits",
    "Pdf",
    "Video",
    "decode_image",
    "decode_part",
]
