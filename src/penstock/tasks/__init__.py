"""Task encoders, which turn samples into batches, and their sample types.

May import the public API, `media`, and everything below. Encoders own no order, buffer or state.

>>> import penstock as ps
>>> from penstock.tasks import DefaultTaskEncoder, ImageSample
>>> import numpy as np
>>> images = ps.from_sequence([ImageSample(__key__=str(i), image=np.full((2, i), i)) for i in range(4)])
>>> batch = DefaultTaskEncoder().build(images, batch_size=4)[0]
>>> batch.image.shape, batch.__key__
((4, 2, 3), ['0', '1', '2', '3'])
"""

from ..errors import Skip
from .augment import AugmentTaskEncoder
from .batching import (
    batch_list,
    batch_pad_stack,
    batch_stack,
    concat_pad,
    generic_batch,
    generic_concat,
    homogeneous_concat_mix,
)
from .encoder import Cooker, DefaultTaskEncoder, TaskEncoder
from .hooks import current_rng
from .samples import (
    Batch,
    CaptioningSample,
    CrudeSample,
    ImageClassificationSample,
    ImageSample,
    InterleavedSample,
    MultiChoiceVQASample,
    OCRSample,
    Sample,
    SimilarityInterleavedSample,
    SourceInfo,
    TextSample,
    VidQASample,
    VQAOCRSample,
    VQASample,
    basic_sample_keys,
    edataclass,
    pinned,
)

IgnoreSample = SkipSample = Skip

__all__ = [
    "AugmentTaskEncoder",
    "Batch",
    "CaptioningSample",
    "Cooker",
    "CrudeSample",
    "DefaultTaskEncoder",
    "IgnoreSample",
    "ImageClassificationSample",
    "ImageSample",
    "InterleavedSample",
    "MultiChoiceVQASample",
    "OCRSample",
    "Sample",
    "SimilarityInterleavedSample",
    "SkipSample",
    "SourceInfo",
    "TaskEncoder",
    "TextSample",
    "VQAOCRSample",
    "VQASample",
    "VidQASample",
    "basic_sample_keys",
    "batch_list",
    "batch_pad_stack",
    "batch_stack",
    "concat_pad",
    "current_rng",
    "edataclass",
    "generic_batch",
    "generic_concat",
    "homogeneous_concat_mix",
    "pinned",
]
