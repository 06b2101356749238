"""Decode media in samples: images, audio, video, PDF; JSON, text, numbers and arrays.

`Decode` decodes bytes at once. `Lazy` makes handles, which decode when they are used. May import
the public API and everything below it. Decoding is done by libraries, imported where they are used.
"""

from __future__ import annotations

from .blob import Blob, Limits
from .handles import Audio, Image, Lazy, Pdf
from .images import IMAGE_KINDS, Decode, decode_image, decode_part
from .video import Video

__all__ = [
    "IMAGE_KINDS",
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
