"""Convert texts to token ids, in batches, with any tokenizer."""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from ..arguments import check_int
from ..arrays.dtypes import TOKEN_DTYPE, cast_array, make_exact_array
from ..errors import (
    ConfigError,
    DataError,
    PenstockError,
    convert_storage_errors,
    is_panic,
    make_missing_extra_error,
)
from ..stores import display_path, is_remote, parse_location
from ..stores.limits import TOKENIZER, read_within

TokenIds: TypeAlias = npt.NDArray[np.int32]

_PROBE_TEXT = "a"  # encoded to find the tokens that a template adds


class Tokenise:
    """Convert texts, or a text field of mappings, to `int32` token ids, many texts a call.

    `ps.read(files, lengths=Tokenise(...))` counts the tokens of every row once, so that rows are
    packed by plan. A named tokenizer is opened at the first text, once in every worker. The
    pipeline's fingerprint contains the content of a local file, not its path.

    Args:
        tokenizer: A `tokenizer.json`, by path or URL, is read with the package tokenizers. A folder
            or a name on the hub is opened with transformers; code of a model never runs. An object
            of either package, or a function from a list of texts to a list of lists of ids, is
            called as it is.
        field: the field with the text, if samples are mappings.
        special_tokens: add the special tokens of the tokenizer's template.
        bos: a token before every text, unless the template adds it.
        eos: a token after every text, unless the template adds it.
        keep: fields to keep: samples are then mappings with `tokens` and these.

    Raises:
        ConfigError: for a tokenizer that cannot be opened or that pads its results, and for invalid
            names and ids.
        DataError: for samples without a text, and for invalid ids from the tokenizer.

    >>> import penstock as ps
    >>> def letters(texts): return [[ord(letter) for letter in text] for text in texts]
    >>> ps.from_sequence(["ab", "c"]).map(Tokenise(letters, eos=0))[0]
    array([97, 98,  0], dtype=int32)
    """

    token_dtype = TOKEN_DTYPE

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
            raise ConfigError(
                f"Tokenise(keep={keep!r}): give a tuple of names, such as ({keep!r},)"
            )
        if not isinstance(field, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(
                f"Tokenise(field={field!r}): give the name of one field; join several fields in a map "
                "before"
            )
        for name, token in (("bos", bos), ("eos", eos)):
            if token is not None and abs(check_int(token, f"Tokenise({name}={{}})")) >= 1 << 31:
                raise ConfigError(
                    f"Tokenise({name}={token}): it does not fit into the 32 bits of ids"
                )
        self._origin = locate_tokenizer(tokenizer)
        is_path = isinstance(tokenizer, str | Path)
        self.tokenizer: Any = display_path(tokenizer) if is_path else tokenizer
        self.field, self.special_tokens, self.bos, self.eos, self.keep = (
            field,
            special_tokens,
            bos,
            eos,
            tuple(keep),
        )
        self.version = getattr(tokenizer, "version", None)
        no_duplicates = special_tokens and (bos, eos) != (None, None)
        settings = {
            "special tokens" + no_duplicates * " once": special_tokens or None,
            "bos": bos,
            "eos": eos,
        }
        described_settings = "".join(
            f", {name}" if value is True else f", {name} {value}"
            for name, value in settings.items()
            if value is not None
        )
        self.counted = f"{identify_tokenizer(self._origin)}, {field}{described_settings}"
        self.__qualname__ = f"Tokenise({self.counted}{f', keep {self.keep}' if self.keep else ''})"
        if not isinstance(self.tokenizer, str):
            self._loaded  # noqa: B018 - read its settings now, not in several threads at once

    def __getstate__(self) -> dict[str, Any]:
        return {
            name: value
            for name, value in self.__dict__.items()
            if name not in ("_loaded", "_bos_eos")
        }

    def __call__(self, sample: Any) -> Any:
        """Return the tokens of one sample."""
        return self.many([sample])[0]

    def many(self, samples: list[Any]) -> list[Any]:
        """Return the tokens of each sample, from one call of the tokenizer.

        Args:
            samples: texts, or mappings whose `field` holds a text.

        Returns:
            int32 vectors; with `keep`, mappings of "tokens" and the kept fields.

        Raises:
            DataError: if a sample has no text or lacks a kept field. Also if the tokenizer fails,
                or returns anything but one list of 32-bit ids for each text.
        """
        texts = [self._text_of(sample) for sample in samples]
        try:
            encoded = self._encode(texts, self.special_tokens)
        except (PenstockError, ImportError, MemoryError, OSError):
            raise
        except BaseException as error:
            if not isinstance(error, Exception) and not is_panic(error):
                raise
            raise DataError(
                f"tokenise: the text cannot be tokenised: {_failure_reason(texts, error)}"
            ) from error
        if len(encoded) != len(samples):
            raise DataError(
                f"tokenise: the tokenizer gave {len(encoded)} results for {len(samples)} texts"
            )
        tokens = [self._ids(ids) for ids in encoded]
        if not self.keep:
            return tokens
        return [
            {"tokens": ids, **self._kept_fields(sample)}
            for ids, sample in zip(tokens, samples, strict=True)
        ]

    def counts(self, samples: list[Any]) -> list[int]:
        """Return the number of tokens of each sample."""
        return [len(tokens["tokens"] if self.keep else tokens) for tokens in self.many(samples)]

    @property
    def lasting(self) -> bool:
        """Return whether a digest or a hub name identifies the tokenizer, not a function's name."""
        return isinstance(self.tokenizer, str) or hasattr(_get_backend(self.tokenizer), "to_str")

    def token(self, token: str) -> int:
        """Return the id of a token.

        Args:
            token: the text of the token in the vocabulary, such as "<|endoftext|>". It is looked
                up, not encoded.

        Raises:
            ConfigError: if the tokenizer does not have it.
        """
        tokenizer = self._loaded
        if hasattr(tokenizer, "token_to_id"):
            token_id = tokenizer.token_to_id(token)
        else:
            token_id = tokenizer.get_vocab().get(token) if hasattr(tokenizer, "get_vocab") else None
        if token_id is None:
            raise ConfigError(f"the tokenizer {self.tokenizer!r} has no token {token!r}")
        return int(token_id)

    def special_token(self, name: Literal["bos", "eos"]) -> int | None:
        """Return the id of the tokenizer's own bos or eos token; `None` if it has none.

        Args:
            name: the token that begins ("bos") or ends ("eos") a document.

        Raises:
            ConfigError: if the tokenizer does not name such tokens.
        """
        tokenizer, key = self._loaded, f"{name}_token_id"
        if not hasattr(tokenizer, key):
            raise ConfigError(
                f"the tokenizer {self.tokenizer!r} does not name its {name} token (a "
                f"tokenizer.json never does): give {name} as its id or its text"
            )
        token_id = getattr(tokenizer, key)
        return None if token_id is None else int(token_id)

    def _text_of(self, sample: Any) -> str:
        fields = _as_mapping(sample)
        text = sample if fields is None else fields.get(self.field)
        if isinstance(text, str):
            return text
        raise DataError(
            f"tokenise: the field {self.field!r} holds no text; the sample has {_list_fields(fields)}"
        )

    def _kept_fields(self, sample: Any) -> dict[str, Any]:
        fields = _as_mapping(sample) or {}
        if missing := [name for name in self.keep if name not in fields]:
            raise DataError(
                f"tokenise: there is no field {missing[0]!r} to keep; the sample has {_list_fields(fields)}"
            )
        return {name: fields[name] for name in self.keep}

    def _ids(self, result: Any) -> TokenIds:
        ids: npt.NDArray[Any] = make_exact_array(result)
        if ids.ndim != 1 or (ids.size and ids.dtype.kind not in "iu"):
            raise DataError(
                f"tokenise: the tokenizer gave {ids.dtype}{list(ids.shape)} for a text, not a list "
                "of ids"
            )
        before, after = self._bos_eos
        try:
            typed = cast_array(ids, self.token_dtype).astype(np.int32, copy=False)
        except OverflowError as error:
            raise DataError(f"tokenise: the tokenizer gave an id over 32 bits: {error}") from None
        return np.concatenate([before, typed, after]) if before.size or after.size else typed

    def _encode(self, texts: list[str], special: bool) -> list[Any]:
        tokenizer = self._loaded
        if hasattr(tokenizer, "encode_batch"):
            return [
                encoding.ids
                for encoding in tokenizer.encode_batch(texts, add_special_tokens=special)
            ]
        if hasattr(tokenizer, "convert_tokens_to_ids"):
            return tokenizer(texts, add_special_tokens=special)["input_ids"]
        return list(tokenizer(texts))

    @cached_property
    def _bos_eos(self) -> tuple[TokenIds, TokenIds]:
        """Return the tokens to add before and after every text, without those of the template."""
        bos, eos = self.bos, self.eos
        if self.special_tokens and (bos, eos) != (None, None):
            bare, full = (
                list(self._encode([_PROBE_TEXT], special)[0]) for special in (False, True)
            )
            starts = range(len(full) - len(bare) + 1)
            begin = next((start for start in starts if full[start : start + len(bare)] == bare), 0)
            bos = None if bos in full[:begin][:1] else bos
            eos = None if eos in full[begin + len(bare) :][-1:] else eos
        before, after = (np.full(int(end is not None), end or 0, np.int32) for end in (bos, eos))
        return before, after

    @cached_property
    def _loaded(self) -> Any:
        tokenizer = open_tokenizer(self._origin)
        if not callable(tokenizer) and not hasattr(tokenizer, "encode_batch"):
            raise ConfigError(
                f"Tokenise({tokenizer!r}): give a tokenizer, its path or name, or a function of a "
                "list of texts"
            )
        if getattr(tokenizer, "padding", None) is not None:
            raise ConfigError(
                "the tokenizer pads its results, so a text would depend on its neighbours: "
                "call .no_padding()"
            )
        if hasattr(tokenizer, "convert_tokens_to_ids"):
            tokenizer([""])
        return tokenizer


def _read_file(path: Path) -> bytes:
    with convert_storage_errors(path):
        return read_within(str(path), TOKENIZER)


def locate_tokenizer(tokenizer: Any) -> Any:
    """Return where a tokenizer comes from: a path, which keeps the login of a URL; or the object.

    Args:
        tokenizer: a path, URL, name on the hub, object or function.
    """
    return parse_location(tokenizer) if isinstance(tokenizer, str | Path) else tokenizer


def identify_tokenizer(tokenizer: Any) -> str:
    """Return a digest of a tokenizer's content, if readable, or its name.

    Args:
        tokenizer: what `locate_tokenizer` returned.

    Raises:
        ConfigError: if there is no file at the path.
    """
    if not isinstance(tokenizer, Path):
        backend = _get_backend(tokenizer)
        if hasattr(backend, "to_str"):
            return _digest_bytes(backend.to_str().encode())
        return str(getattr(tokenizer, "__qualname__", None) or type(tokenizer).__qualname__)
    path, name = tokenizer, display_path(tokenizer)
    with convert_storage_errors(path):
        file = path / "tokenizer.json" if not is_remote(path) and path.is_dir() else path
        exists = file.is_file()
    if exists:
        return _digest_bytes(_read_file(file))
    if _names_file(path):
        raise ConfigError(f"there is no tokenizer {name!r}")
    return name


def open_tokenizer(tokenizer: Any) -> Any:
    """Open the tokenizer at a path, and return any other as it is.

    A file is opened with tokenizers, or with sentencepiece if it ends in `.model`; a folder or a
    name on the hub with transformers.

    Args:
        tokenizer: what `locate_tokenizer` returned.

    Raises:
        ConfigError: if the tokenizer cannot be opened.
        ImportError: if the package that opens it is not installed.
    """
    return _load_tokenizer(tokenizer) if isinstance(tokenizer, Path) else tokenizer


def _names_file(path: Path) -> bool:
    """Return whether a path cannot be a name on the hub."""
    return path.suffix in (".json", ".model") or path.is_absolute() or is_remote(path)


def _load_tokenizer(path: Path) -> Any:
    name = display_path(path)
    package = "tokenizers" if path.is_file() else "transformers"
    if package == "transformers" and _names_file(path) and (is_remote(path) or not path.is_dir()):
        raise ConfigError(f"there is no tokenizer {name!r}")
    if package == "tokenizers" and path.suffix == ".model":
        package = "sentencepiece"
    try:
        library: Any = importlib.import_module(package)
    except ModuleNotFoundError:
        raise make_missing_extra_error(package, "hf", "tokenising") from None
    try:
        if package == "transformers":
            return library.AutoTokenizer.from_pretrained(name, trust_remote_code=False)
        if package == "sentencepiece":
            return library.SentencePieceProcessor(model_proto=_read_file(path))
        tokenizer = library.Tokenizer.from_buffer(_read_file(path))
    except PenstockError:
        raise
    except BaseException as error:  # the packages raise bare exceptions
        if not isinstance(error, Exception) and not is_panic(error):
            raise
        raise ConfigError(f"the tokenizer {name!r} cannot be opened: {error}") from error
    # Files store the padding and truncation of model inputs, which documents must not have.
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


def _failure_reason(texts: Sequence[str], error: BaseException) -> object:
    """Return the reason for a failure: half a surrogate pair, or the tokenizer's error."""
    for text in texts:
        try:
            text.encode()
        except UnicodeEncodeError as wrong:
            half = text[wrong.start]
            return (
                f"letter {wrong.start} is half a surrogate pair, {half!a}: repair the text or leave "
                "it out"
            )
    return error


def _get_backend(tokenizer: Any) -> Any:
    """Return the object of the package tokenizers in one of transformers."""
    return getattr(tokenizer, "backend_tokenizer", tokenizer)


def _as_mapping(sample: Any) -> Mapping[str, Any] | None:
    return cast("Mapping[str, Any]", sample) if isinstance(sample, Mapping) else None


def _list_fields(fields: Mapping[str, Any] | None) -> str:
    return ", ".join(map(str, fields)) if fields else "no fields"


def _digest_bytes(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=8).hexdigest()
