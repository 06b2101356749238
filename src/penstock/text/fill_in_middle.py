"""Fill-in-the-middle: documents rearranged so that a model learns to fill a gap."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np

from ..arguments import check_int
from ..errors import ConfigError
from .tokenize import Tokenize


class FillInMiddle:
    """Tokenize texts, and rearrange some of them for filling a gap; a function for `random_map`.

    A text is cut at two random characters into a prefix, a middle and a suffix, which are tokenized
    one by one. The middle moves to the end, with a token before each of the three:

    - PSM: `[prefix] prefix [suffix] suffix [middle] middle`
    - SPM: `[prefix] [suffix] suffix [middle] prefix middle`

    Args:
        tokenizer: as for `Tokenize`.
        field: the field with the text, if samples are mappings.
        prefix: the id of the token before the prefix, or its text in the vocabulary.
        middle: the token before the middle.
        suffix: the token before the suffix.
        rate: the share of texts that are rearranged; the others are tokenized as they are.
        spm: the share of SPM among these; the others are PSM.
        bos: a token before every text.
        eos: a token after every text.
        keep: fields to keep, as for `Tokenize`.

    Raises:
        ConfigError: for shares outside of 0 to 1, and a token that the tokenizer lacks.
        DataError: for samples without a text.

    >>> import penstock as ps
    >>> def letters(texts): return [[ord(letter) for letter in text] for text in texts]
    >>> fill = FillInMiddle(letters, prefix=1, middle=2, suffix=3, rate=1.0, spm=0.0, eos=0)
    >>> ps.from_sequence(["abcdef"]).random_map(fill, seed=2)[0].tolist()
    [1, 97, 98, 3, 100, 101, 102, 2, 99, 0]
    """

    def __init__(
        self,
        tokenizer: Any,
        field: str = "text",
        *,
        prefix: int | str,
        middle: int | str,
        suffix: int | str,
        rate: float = 0.5,
        spm: float = 0.5,
        bos: int | None = None,
        eos: int | None = None,
        keep: Sequence[str] = (),
    ) -> None:
        for name, share in (("rate", rate), ("spm", spm)):
            if not 0 <= share <= 1:
                raise ConfigError(f"FillInMiddle({name}={share}): give a share between 0 and 1")
        self.rate, self.spm = rate, spm
        self._whole = Tokenize(tokenizer, field, bos=bos, eos=eos, keep=keep)
        self._parts = Tokenize(tokenizer, field, keep=keep)
        self.token_dtype = self._whole.token_dtype
        tokens = {"prefix": prefix, "middle": middle, "suffix": suffix}
        self.prefix, self.middle, self.suffix = (
            self._whole.token(token)
            if isinstance(token, str)
            else check_int(token, f"FillInMiddle({name}={{}})", 0)
            for name, token in tokens.items()
        )
        ids = f"{self.prefix}, {self.middle}, {self.suffix}"
        self.__qualname__ = f"FillInMiddle({self._whole.__qualname__}, {ids}, {rate=}, {spm=})"

    def __call__(self, sample: Any, rng: np.random.Generator) -> Any:
        """Return the tokens of a sample.

        Args:
            sample: a text, or a mapping with one.
            rng: draws whether and where the text is cut.
        """
        is_cut, is_spm, *cuts = rng.random(4).tolist()
        field = self._whole.field
        fields = cast(
            "Mapping[str, Any]", sample if isinstance(sample, Mapping) else {field: sample}
        )
        text = fields.get(field)
        if is_cut >= self.rate or not isinstance(text, str):
            return self._whole(sample)
        first, last = sorted(int(cut * (len(text) + 1)) for cut in cuts)
        texts = [text[:first], text[first:last], text[last:]]
        made = self._parts.many([{**fields, field: part} for part in texts])
        prefix, middle, suffix = (part["tokens"] if self._whole.keep else part for part in made)
        if is_spm < self.spm:
            pieces = [[self.prefix, self.suffix], suffix, [self.middle], prefix, middle]
        else:
            pieces = [[self.prefix], prefix, [self.suffix], suffix, [self.middle], middle]
        ends = [[] if end is None else [end] for end in (self._whole.bos, self._whole.eos)]
        tokens = np.concatenate([ends[0], *pieces, ends[1]]).astype(np.int32)
        return {**made[0], "tokens": tokens} if self._whole.keep else tokens
