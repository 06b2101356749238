"""Texts and chats, with a tokenizer that is trained on them once.

The floors are the packages that do the work: tokenizers for texts, jinja2 and tokenizers for chats.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from .reading import made
from .work import IS_TINY

FILE_ROWS, CHATS = (40, 30) if IS_TINY else (2_000, 2_000)
_WORDS = "the of and to in is that for it as was with be by on not he his but at are this have"


def sentence(number: int, words: int) -> str:
    """Return a text of so many words, with some that are rare."""
    common = _WORDS.split()
    return " ".join(
        common[(number * 7 + i * i) % len(common)] if i % 5 else f"word{number * i % 9_973}"
        for i in range(words)
    )


def tokenizer() -> Path:
    """Return a byte-level BPE tokenizer with the tokens of ChatML."""

    def write(path: Path) -> None:
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

        trained = Tokenizer(models.BPE())
        trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        trained.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=2_000,
            special_tokens=["<|im_start|>", "<|im_end|>"],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
        trained.train_from_iterator((sentence(i, 60) for i in range(500)), trainer)
        trained.save(str(path))

    return made("tokenizer.json", write)


def texts() -> Path:
    """Return a Parquet file of texts of 20 to 400 words."""

    def write(path: Path) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        column = [sentence(i, 20 + i * 37 % 380) for i in range(FILE_ROWS)]
        pq.write_table(pa.table({"text": column}), path, row_group_size=1_000)

    return made("texts.parquet", write)


@dataclass(frozen=True)
class CountedTexts:
    """The tokens of every text of a file, counted once; a batch is the whole file."""

    batch: int = FILE_ROWS

    def floor(self) -> Iterator[Any]:
        """Yield the counts by `encode_batch_fast` of tokenizers, on all processors."""
        import pyarrow.parquet as pq
        from tokenizers import Tokenizer

        encode = Tokenizer.from_file(str(tokenizer())).encode_batch_fast
        while True:
            column = pq.read_table(texts())["text"]
            yield [
                len(encoding)
                for chunk in column.chunks
                for encoding in encode(chunk.to_pylist(), add_special_tokens=False)
            ]


@dataclass(frozen=True)
class Chats:
    """Chats of two questions and answers as token ids."""

    batch: int = 16

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        def message(role: str, number: int) -> dict[str, str]:
            return {"role": role, "content": sentence(number, 20 + number * 11 % 60)}

        roles = ("user", "assistant") * 2
        return [
            {"messages": [message(role, 4 * i + j) for j, role in enumerate(roles)]}
            for i in range(CHATS)
        ]

    def floor(self) -> Iterator[Any]:
        """Yield ids of the rendered template, without masks, a batch a call."""
        from jinja2 import Environment
        from tokenizers import Tokenizer

        encode = Tokenizer.from_file(str(tokenizer())).encode_batch_fast
        template = Environment().from_string(
            "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}"
            "<|im_end|>\n{% endfor %}"
        )
        while True:
            for start in range(0, CHATS, self.batch):
                rendered = [template.render(row) for row in self.rows[start : start + self.batch]]
                yield [encoding.ids for encoding in encode(rendered, add_special_tokens=False)]


TEXTS: dict[str, type[CountedTexts] | type[Chats]] = {"count_tokens": CountedTexts, "chats": Chats}
