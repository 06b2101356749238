"""Text for language models: tokens, padded batches, labels and attention masks.

May import `types`, `errors`, `schedule`, the engine and `stores`. A padded batch has the form of
packed rows, with one document a row, so `CausalLM` takes both:

>>> import penstock as ps
>>> documents = ps.from_sequence([[5, 6, 7], [8, 9]])
>>> packed, padded = documents.pack(5).batch(1), documents.batch(2, collate=Padded())
>>> next(iter(packed.map(CausalLM())))["labels"].tolist()
[[-100, 6, 7, -100, 9]]
>>> padded.map(CausalLM())[0]["labels"].tolist()
[[-100, 6, 7], [-100, 9, -100]]
"""

from typing import NoReturn

from .causal_lm import TRANSFORMERS, CausalLM, Field
from .chat import Chat
from .fill_in_middle import FillInMiddle
from .masks import document_mask, flash_varlen, flex_mask, splash_segment_ids
from .padding import Padded, pad_columns, pad_rows
from .pairs import PaddedPairs, pair_length
from .shown_tokens import ShownDocument, ShownTokens, show_tokens
from .slices import slice_rows
from .splitting import SplitText
from .tokenize import Tokenize

Tokenise = Tokenize  # scripts with the British spelling still run

__all__ = [
    "TRANSFORMERS",
    "CausalLM",
    "Chat",
    "Field",
    "FillInMiddle",
    "Padded",
    "PaddedPairs",
    "ShownDocument",
    "ShownTokens",
    "SplitText",
    "Tokenize",
    "document_mask",
    "flash_varlen",
    "flex_mask",
    "pad_columns",
    "pad_rows",
    "pair_length",
    "show_tokens",
    "slice_rows",
    "splash_segment_ids",
]


def __getattr__(name: str) -> NoReturn:
    from ..arguments import make_attribute_error

    raise make_attribute_error(__name__, name, __all__)
