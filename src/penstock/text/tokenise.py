"""Texts to token ids, many at a call, by any tokenizer."""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from ..engine.base import seams
from ..engine.base.dtypes import TOKENS, exact_array, narrowed
from ..engine.base.ints import whole
from ..engine.base.limits import TOKENIZER
from ..errors import ConfigError, DataError, PenstockError, is_panic, missing_extra, storage
from ..stores import is_far, located, told

Tokens: TypeAlias = npt.NDArray[np.int32]

_PROBE = "a"  # a text that tells what a template adds to it


class Tokenise:
    """`int32` token ids of texts, or of a text field of mappings; many texts at a call.

    `ps.read(files, lengths=Tokenise(...))` counts the tokens of every row once, so that rows are
    packed by plan. A tokenizer that is named is opened when the first text comes, once in every
    worker. What a local file holds, not where it lies, is part of the pipeline's fingerprint.

    Args:
        tokenizer: a `tokenizer.json` (read with the package tokenizers; it may be a URL), a folder
            or a name on the hub (opened with transformers; code that comes with a model is never
            run), an object of either package, or a function that gives lists of ids for a list of
            texts.
        field: the field with the text, where samples are mappings.
        special_tokens: whether a tokenizer adds the special tokens of its own template.
        bos: a token before every text; no second one where the template adds it.
        eos: a token after every text; no second one where the template adds it.
        keep: fields to keep: samples are then mappings with `tokens` and these.

    Raises:
        ConfigError: for a tokenizer that cannot be opened, or that pads its results, and for what
            is no name or id.
        DataError: for samples without a text, and for what are no ids.

    >>> import penstock as ps
    >>> def letters(texts): return [[ord(letter) for letter in text] for text in texts]
    >>> ps.from_sequence(["ab", "c"]).map(Tokenise(letters, eos=0))[0]
    array([97, 98,  0], dtype=int32)
    """

    token_dtype = TOKENS

    def __init__(
        self,
        tokenizer: Any,
        field: str = "text",
        special_tokens: bool = False,
        *,
        bos: int | None = None,
        eos: int | None = None,
        keep: Sequence[str] = (),
    ) -> None:
        if isinstance(keep, str):
            raise ConfigError(f"Tokenise(keep={keep!r}): a tuple of names, such as ({keep!r},)")
        if not isinstance(field, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(
                f"Tokenise(field={field!r}): the name of one field; texts of several are joined "
                "before"
            )
        for name, end in (("bos", bos), ("eos", eos)):
            if end is not None and abs(whole(end, f"Tokenise({name}={{}})")) >= 1 << 31:
                raise ConfigError(f"Tokenise({name}={end}): more than the 32 bits that ids have")
        self._path = located(tokenizer) if isinstance(tokenizer, str | Path) else None
        self.tokenizer: Any = tokenizer if self._path is None else told(tokenizer)
        self.field, self.special_tokens, self.bos, self.eos, self.keep = (
            field,
            special_tokens,
            bos,
            eos,
            tuple(keep),
        )
        self.version = getattr(tokenizer, "version", None)
        once = special_tokens and (bos, eos) != (None, None)
        settings = {
            "special tokens" + once * " once": special_tokens or None,
            "bos": bos,
            "eos": eos,
        }
        ends = "".join(
            f", {name}" if value is True else f", {name} {value}"
            for name, value in settings.items()
            if value is not None
        )
        self.counted = f"{self._known()}, {field}{ends}"
        self.__qualname__ = f"Tokenise({self.counted}{f', keep {self.keep}' if self.keep else ''})"
        if not isinstance(self.tokenizer, str):
            self._opened  # noqa: B018 - it takes its settings over now, not in several threads at once

    def __getstate__(self) -> dict[str, Any]:
        return {
            name: value for name, value in self.__dict__.items() if name not in ("_opened", "_ends")
        }

    def __call__(self, sample: Any) -> Any:
        """The tokens of one sample."""
        return self.many([sample])[0]

    def many(self, samples: list[Any]) -> list[Any]:
        """The tokens of many samples."""
        texts = [self._text(sample) for sample in samples]
        try:
            found = self._encode(texts, self.special_tokens)
        except (PenstockError, ImportError, MemoryError, OSError):
            raise
        except BaseException as error:
            if not isinstance(error, Exception) and not is_panic(error):
                raise
            raise DataError(
                f"tokenise: the text cannot be tokenised: {_reason(texts, error)}"
            ) from error
        if len(found) != len(samples):
            raise DataError(
                f"tokenise: the tokenizer gave {len(found)} results for {len(samples)} texts"
            )
        tokens = [self._ids(ids) for ids in found]
        if not self.keep:
            return tokens
        return [
            {"tokens": ids, **self._kept(sample)}
            for ids, sample in zip(tokens, samples, strict=True)
        ]

    def counts(self, samples: list[Any]) -> list[int]:
        """How many tokens each sample has."""
        return [len(each["tokens"] if self.keep else each) for each in self.many(samples)]

    @property
    def lasting(self) -> bool:
        """Whether what it is known by stays true: a digest or a name on the hub, not the name of a
        function."""
        return isinstance(self.tokenizer, str) or hasattr(_table(self.tokenizer), "to_str")

    def token(self, token: str) -> int:
        """The number of a token that is given as text."""
        tokenizer = self._opened
        if hasattr(tokenizer, "token_to_id"):
            found = tokenizer.token_to_id(token)
        else:
            found = tokenizer.get_vocab().get(token) if hasattr(tokenizer, "get_vocab") else None
        if found is None:
            raise ConfigError(f"the tokenizer {self.tokenizer!r} has no token {token!r}")
        return int(found)

    def own(self, name: Literal["bos", "eos"]) -> int | None:
        """The number of the token that the tokenizer names as the beginning, or the end, of a text,
        if it has one."""
        tokenizer, key = self._opened, f"{name}_token_id"
        if not hasattr(tokenizer, key):
            raise ConfigError(
                f"the tokenizer {self.tokenizer!r} does not name its {name} token (a "
                "tokenizer.json never does): give "
                f"{name} as its number or its text"
            )
        found = getattr(tokenizer, key)
        return None if found is None else int(found)

    def _text(self, sample: Any) -> str:
        fields = _fields(sample)
        text = sample if fields is None else fields.get(self.field)
        if isinstance(text, str):
            return text
        raise DataError(
            f"tokenise: the field {self.field!r} holds no text; the sample has {_has(fields)}"
        )

    def _kept(self, sample: Any) -> dict[str, Any]:
        fields = _fields(sample) or {}
        if missing := [name for name in self.keep if name not in fields]:
            raise DataError(
                f"tokenise: there is no field {missing[0]!r} to keep; the sample has {_has(fields)}"
            )
        return {name: fields[name] for name in self.keep}

    def _ids(self, given: Any) -> Tokens:
        ids: npt.NDArray[Any] = exact_array(given)
        if ids.ndim != 1 or (ids.size and ids.dtype.kind not in "iu"):
            raise DataError(
                f"tokenise: the tokenizer gave {ids.dtype}{list(ids.shape)} for a text, not a list "
                "of ids"
            )
        before, after = self._ends
        try:
            typed = narrowed(ids, self.token_dtype).astype(np.int32, copy=False)
        except OverflowError as error:
            raise DataError(f"tokenise: the tokenizer gave an id over 32 bits: {error}") from None
        return np.concatenate([before, typed, after]) if before.size or after.size else typed

    def _encode(self, texts: list[str], special: bool) -> list[Any]:
        tokenizer = self._opened
        if hasattr(tokenizer, "encode_batch"):
            return [made.ids for made in tokenizer.encode_batch(texts, add_special_tokens=special)]
        if hasattr(tokenizer, "convert_tokens_to_ids"):
            return tokenizer(texts, add_special_tokens=special)["input_ids"]
        return list(tokenizer(texts))

    def _known(self) -> str:
        """What a tokenizer is known by: a digest of what it holds, where that can be read, or its
        name."""
        tokenizer, path = self.tokenizer, self._path
        if path is None:
            table = _table(tokenizer)
            if hasattr(table, "to_str"):
                return _digest(table.to_str().encode())
            return str(getattr(tokenizer, "__qualname__", None) or type(tokenizer).__qualname__)
        with storage(path):
            file = path / "tokenizer.json" if not is_far(path) and path.is_dir() else path
            there = file.is_file()
        if there:
            return _digest(_file(file))
        if path.suffix == ".json" or path.is_absolute() or is_far(path):
            raise ConfigError(f"there is no tokenizer {tokenizer!r}")
        return tokenizer

    @cached_property
    def _ends(self) -> tuple[Tokens, Tokens]:
        """The tokens before and after every text, without those that the template of the tokenizer
        adds itself."""
        bos, eos = self.bos, self.eos
        if self.special_tokens and (bos, eos) != (None, None):
            bare, full = (list(self._encode([_PROBE], special)[0]) for special in (False, True))
            starts = range(len(full) - len(bare) + 1)
            begin = next((start for start in starts if full[start : start + len(bare)] == bare), 0)
            bos = None if bos in full[:begin][:1] else bos
            eos = None if eos in full[begin + len(bare) :][-1:] else eos
        before, after = (np.full(int(end is not None), end or 0, np.int32) for end in (bos, eos))
        return before, after

    @cached_property
    def _opened(self) -> Any:
        found: Any = self.tokenizer
        if self._path is not None:
            found = _open(found, self._path)
        elif not callable(found) and not hasattr(found, "encode_batch"):
            raise ConfigError(
                f"Tokenise({found!r}): a tokenizer, its path or name, or a function of a list of "
                "texts"
            )
        if getattr(found, "padding", None) is not None:
            raise ConfigError(
                "the tokenizer pads its results, so a text would depend on its neighbours: "
                ".no_padding()"
            )
        if hasattr(found, "convert_tokens_to_ids"):
            found([""])
        return found


def _file(path: Path) -> bytes:
    with storage(path):
        return seams.read_within(str(path), TOKENIZER)


def _open(name: str, path: Path) -> Any:
    """The tokenizer of a file, by the package tokenizers, or of a folder or a name, by
    transformers."""
    package = "tokenizers" if path.is_file() else "transformers"
    try:
        library: Any = importlib.import_module(package)
    except ModuleNotFoundError:
        raise missing_extra(package, "hf", "tokenising") from None
    try:
        if package == "transformers":
            return library.AutoTokenizer.from_pretrained(name, trust_remote_code=False)
        found = library.Tokenizer.from_buffer(_file(path))
    except PenstockError:
        raise
    except BaseException as error:  # the packages raise bare exceptions
        if not isinstance(error, Exception) and not is_panic(error):
            raise
        raise ConfigError(f"the tokenizer {name!r} cannot be opened: {error}") from error
    # Files are saved with the padding and the length of the model's inputs; a document has neither.
    found.no_padding()
    found.no_truncation()
    return found


def _reason(texts: Sequence[str], error: BaseException) -> object:
    """Why texts cannot be tokenised: half a surrogate pair, which no UTF-8 can hold, or what the
    tokenizer says."""
    for text in texts:
        try:
            text.encode()
        except UnicodeEncodeError as wrong:
            half = text[wrong.start]
            return (
                f"letter {wrong.start} is half a surrogate pair, {half!a}: mend the text or leave "
                "it out"
            )
    return error


def _table(tokenizer: Any) -> Any:
    """The object of the package tokenizers in one of transformers."""
    return getattr(tokenizer, "backend_tokenizer", tokenizer)


def _fields(sample: Any) -> Mapping[str, Any] | None:
    return cast("Mapping[str, Any]", sample) if isinstance(sample, Mapping) else None


def _has(fields: Mapping[str, Any] | None) -> str:
    return ", ".join(map(str, fields)) if fields else "no fields"


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=8).hexdigest()
