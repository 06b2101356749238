"""Convert texts to token ids, in batches, with any tokenizer."""

from __future__ import annotations

import hashlib
import importlib
import inspect
import json
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from ..arguments import check_int
from ..arrays.dtypes import TOKEN_DTYPE, cast_array, make_exact_array
from ..errors import (
    MALFORMED_INPUT_ERRORS,
    ConfigError,
    DataError,
    PenstockError,
    convert_storage_errors,
    is_panic,
    make_missing_extra_error,
)
from ..stores import display_path, is_remote, parse_location
from ..stores.limits import TOKENIZER, read_within
from .offset_tokenizers import TextEncoder, find_special_token

TokenIds: TypeAlias = npt.NDArray[np.int32]

_FAST_NAME, _CONFIG_NAME = "tokenizer.json", "tokenizer_config.json"
_match_vocabulary_name = re.compile(
    r".*\.(model|vocab|tiktoken|bpe)|(vocab|merges|encoder|added_tokens|special_tokens_map)"
    r"[\w.-]*\.(json|txt)"
).fullmatch
_SETTINGS = frozenset(
    "tokenizer_class add_prefix_space add_bos_token add_eos_token bos_token eos_token unk_token "
    "additional_special_tokens extra_special_tokens added_tokens_decoder do_lower_case "
    "do_basic_tokenize strip_accents keep_accents tokenize_chinese_chars normalize remove_space "
    "split_special_tokens legacy sp_model_kwargs src_lang tgt_lang language task".split()
)
"""Settings of `tokenizer_config.json` that change tokens; templates and lengths do not."""

_PROBE_TEXT = "a"  # encoded to find the tokens that a template adds


class Tokenize:
    """Convert texts, or a text field of mappings, to `int32` token ids, many texts a call.

    `ps.read(files, lengths=Tokenize(...))` counts the tokens of every row once, so that rows are
    packed by plan. A named tokenizer is opened at the first text, once in every worker. The
    pipeline's fingerprint contains the content of a local file or folder, not its path.

    Args:
        tokenizer: A `tokenizer.json`, by path or URL, is read with the package tokenizers, and a
            `.model` with sentencepiece. A folder or a name on the hub is opened with transformers;
            code of a model never runs. An object of these packages or of tiktoken, or a function
            from a list of texts to a list of lists of ids, is called as it is.
        field: the field with the text, if samples are mappings.
        special_tokens: add the special tokens of the tokenizer's template.
        bos: a token before every text, unless the template adds it.
        eos: a token after every text, unless the template adds it.
        keep: fields to keep: samples are then mappings with `tokens` and these.
        allowed_special: special tokens that are tokens in texts too, or "all". Others, such as
            `<|endoftext|>` in a page about tokenizers, are encoded as text.

    Raises:
        ConfigError: for a tokenizer that cannot be opened, for an object that pads or cuts off its
            results, and for invalid names and ids.
        DataError: for samples without a text, and for invalid ids from the tokenizer.

    >>> import penstock as ps
    >>> def letters(texts): return [[ord(letter) for letter in text] for text in texts]
    >>> ps.from_sequence(["ab", "c"]).map(Tokenize(letters, eos=0))[0]
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
        allowed_special: Sequence[str] | Literal["all"] = (),
    ) -> None:
        for name, value in (("keep", keep), ("allowed_special", allowed_special)):
            if isinstance(value, str) and (name, value) != ("allowed_special", "all"):
                raise ConfigError(
                    f"Tokenize({name}={value!r}): give a tuple of names, such as ({value!r},)"
                )
        if not isinstance(field, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(
                f"Tokenize(field={field!r}): give the name of one field; join several fields in a map "
                "before"
            )
        for name, token in (("bos", bos), ("eos", eos)):
            if token is not None and abs(check_int(token, f"Tokenize({name}={{}})")) >= 1 << 31:
                raise ConfigError(
                    f"Tokenize({name}={token}): it does not fit into the 32 bits of ids"
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
        self.allowed_special: tuple[str, ...] | Literal["all"] = (
            "all" if allowed_special == "all" else tuple(allowed_special)
        )
        self.version = getattr(tokenizer, "version", None)
        no_duplicates = special_tokens and (bos, eos) != (None, None)
        settings = {
            "special tokens" + no_duplicates * " once": special_tokens or None,
            "bos": bos,
            "eos": eos,
            "special in texts": self.allowed_special or None,
        }
        described_settings = "".join(
            f", {name}" if value is True else f", {name} {value}"
            for name, value in settings.items()
            if value is not None
        )
        self._identity = identify_tokenizer(self._origin)
        self.counted = f"{self._identity}, {field}{described_settings}"
        self.__qualname__ = f"Tokenize({self.counted}{f', keep {self.keep}' if self.keep else ''})"
        if not isinstance(self.tokenizer, str):
            self._loaded  # noqa: B018 - read its settings now, not in several threads at once

    def __repr__(self) -> str:
        """Return the arguments that differ from the defaults."""
        return show_call(self, self.__dict__)

    def __getstate__(self) -> dict[str, Any]:
        return {
            name: value
            for name, value in self.__dict__.items()
            if name not in ("_loaded", "_bos_eos", "_template_ids", "_protected")
        }

    def __call__(self, sample: Any) -> Any:
        """Return the tokens of one sample."""
        return self.many([sample])[0]

    def many(self, samples: list[Any]) -> list[Any]:
        """Return the tokens of each sample, from one call of the tokenizer.

        Args:
            samples: texts, or mappings whose `field` holds a text, also as UTF-8 bytes.

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
                f"tokenize: the text cannot be tokenized: {_failure_reason(texts, error)}"
            ) from error
        if len(encoded) != len(samples):
            raise DataError(
                f"tokenize: the tokenizer gave {len(encoded)} results for {len(samples)} texts"
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
        return isinstance(self.tokenizer, str) or _read_content(self.tokenizer) is not None

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
        elif hasattr(tokenizer, "get_vocab"):
            token_id = tokenizer.get_vocab().get(token)
        else:
            token_id = find_special_token(tokenizer, token)
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
        if isinstance(text, bytes):  # a member of an archive
            try:
                return text.decode()
            except UnicodeDecodeError as error:
                raise DataError(
                    f"tokenize: the field {self.field!r} holds bytes that are no UTF-8: {error}"
                ) from None
        if fields is None:
            found = "is an array" if isinstance(sample, np.ndarray) else f"is {sample!r:.60}"
            raise DataError(
                f"tokenize: the sample {found}, not a text; sources of tokens need no tokenize "
                "('tokenize: none' in a mixture file)"
            )
        raise DataError(
            f"tokenize: the field {self.field!r} holds no text; the sample has {_list_fields(fields)}"
        )

    def _kept_fields(self, sample: Any) -> dict[str, Any]:
        fields = _as_mapping(sample) or {}
        if missing := [name for name in self.keep if name not in fields]:
            raise DataError(
                f"tokenize: there is no field {missing[0]!r} to keep; the sample has {_list_fields(fields)}"
            )
        return {name: fields[name] for name in self.keep}

    def _ids(self, result: Any) -> TokenIds:
        ids: npt.NDArray[Any] = make_exact_array(result)
        if ids.ndim != 1 or (ids.size and ids.dtype.kind not in "iu"):
            raise DataError(
                f"tokenize: the tokenizer gave {ids.dtype}{list(ids.shape)} for a text, not a list "
                "of ids"
            )
        before, after = self._bos_eos
        try:
            typed = cast_array(ids, self.token_dtype).astype(np.int32, copy=False)
        except OverflowError as error:
            raise DataError(f"tokenize: the tokenizer gave an id over 32 bits: {error}") from None
        return np.concatenate([before, typed, after]) if before.size or after.size else typed

    def _encode(self, texts: list[str], special: bool) -> list[Any]:
        """Return the ids of texts, in which special tokens are text unless they are allowed."""
        tokenizer, everything = self._loaded, self.allowed_special == "all"
        package = type(tokenizer).__module__.partition(".")[0]
        if package == "tiktoken":
            allowed = "all" if everything else {*self.allowed_special}
            return tokenizer.encode_batch(texts, allowed_special=allowed, disallowed_special=())
        if package == "sentencepiece":  # special tokens in texts are always text
            return tokenizer.encode(texts)
        if not hasattr(_get_backend(tokenizer), "encode_batch"):
            if not hasattr(tokenizer, "convert_tokens_to_ids"):
                return list(tokenizer(texts))
            options = {} if everything else {"split_special_tokens": True}
            return tokenizer(texts, add_special_tokens=special, **options)["input_ids"]
        has_special = [self._protected.contains(text) for text in texts]
        plain = [text for text, found in zip(texts, has_special, strict=True) if not found]
        if hasattr(tokenizer, "encode_batch"):
            results = iter(
                [entry.ids for entry in tokenizer.encode_batch(plain, add_special_tokens=special)]
            )
        else:
            results = iter(
                tokenizer(plain, add_special_tokens=special)["input_ids"] if plain else []
            )
        before, after = self._template_ids if special and any(has_special) else ([], [])
        return [
            [*before, *self._protected.encode(text), *after] if found else next(results)
            for text, found in zip(texts, has_special, strict=True)
        ]

    @cached_property
    def _protected(self) -> TextEncoder:
        """Return an encoder of special tokens in texts as text."""
        return TextEncoder(self._loaded, self.allowed_special)

    @cached_property
    def _template_ids(self) -> tuple[list[int], list[int]]:
        """Return the ids that the tokenizer's template adds before and after a text."""
        bare, full = (list(self._encode([_PROBE_TEXT], special)[0]) for special in (False, True))
        starts = range(len(full) - len(bare) + 1)
        begin = next((start for start in starts if full[start : start + len(bare)] == bare), 0)
        return full[:begin], full[begin + len(bare) :]

    @cached_property
    def _bos_eos(self) -> tuple[TokenIds, TokenIds]:
        """Return the tokens to add before and after every text, without those of the template."""
        bos, eos = self.bos, self.eos
        if self.special_tokens and (bos, eos) != (None, None):
            before, after = self._template_ids
            bos, eos = None if bos in before[:1] else bos, None if eos in after[-1:] else eos
        before, after = (np.full(int(end is not None), end or 0, np.int32) for end in (bos, eos))
        return before, after

    @cached_property
    def _loaded(self) -> Any:
        tokenizer = open_tokenizer(self._origin, self._identity)
        if not callable(tokenizer) and not hasattr(tokenizer, "encode"):
            raise ConfigError(
                f"Tokenize({tokenizer!r}): give a tokenizer, its path or name, or a function of a "
                "list of texts"
            )
        if getattr(tokenizer, "padding", None) is not None:
            raise ConfigError(
                "the tokenizer pads its results, so a text would depend on its neighbours: "
                "call .no_padding()"
            )
        cut: Any = getattr(tokenizer, "truncation", None)
        if cut is not None and hasattr(tokenizer, "no_truncation"):
            raise ConfigError(
                f"the tokenizer cuts texts off after {cut['max_length']:,} tokens, so the rest of a "
                "document would be lost: call .no_truncation(), and cut documents by pack()"
            )
        if hasattr(tokenizer, "convert_tokens_to_ids"):
            tokenizer([""])
        return tokenizer


def show_call(instance: Any, values: Mapping[str, Any]) -> str:
    """Return the call that made an object: its tokenizer, and arguments that are no defaults.

    Args:
        instance: the object.
        values: values by the names of arguments.
    """
    shown = list[str]()
    for name, parameter in inspect.signature(instance.__class__).parameters.items():
        value = values.get(name, parameter.default)
        if name == "tokenizer":
            is_function = hasattr(value, "__qualname__")
            kind = getattr(value, "__qualname__", type(value).__name__)
            shown.append(
                repr(value) if isinstance(value, str) else kind + " object" * (not is_function)
            )
        elif value != parameter.default:
            text = getattr(value, "__qualname__", repr(value))
            shown.append(f"{name}={text if len(text) <= 60 else f'{text[:57]}...'}")
    return f"{instance.__class__.__name__}({', '.join(shown)})"


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
        content = _read_content(tokenizer)
        if content is not None:
            return _digest_bytes(content)
        return str(getattr(tokenizer, "__qualname__", None) or type(tokenizer).__qualname__)
    path, name = tokenizer, display_path(tokenizer)
    with convert_storage_errors(path):
        content = _read_folder(path) if not is_remote(path) and path.is_dir() else None
        exists = content is None and path.is_file()
    if exists:
        content = _read_file(path)
    if content is not None:
        return _digest_bytes(content)
    if _names_file(path):
        raise ConfigError(
            f"the tokenizer file {name!r} is missing: check the path, or give a folder or the name "
            "of a model on the Hub"
        )
    return name


def open_tokenizer(tokenizer: Any, identity: str | None = None) -> Any:
    """Open the tokenizer at a path, and return any other as it is.

    A file is opened with tokenizers, or with sentencepiece if it ends in `.model`; a folder or a
    name on the hub with transformers.

    Args:
        tokenizer: what `locate_tokenizer` returned.
        identity: what `identify_tokenizer` returned when the pipeline was made.

    Raises:
        ConfigError: if the tokenizer cannot be opened, or its files changed since.
        ImportError: if the package that opens it is not installed.
    """
    if not isinstance(tokenizer, Path):
        return tokenizer
    loaded = _load_tokenizer(tokenizer)
    if identity is not None and identify_tokenizer(tokenizer) != identity:
        raise ConfigError(
            f"the tokenizer {display_path(tokenizer)!r} is another one than when the pipeline was "
            "made: make the pipeline again, and keep the same files on all machines during a run"
        )
    return loaded


def read_named_tokens(tokenizer: Any) -> dict[str, str]:
    """Return the tokens that `tokenizer_config.json` beside a local `tokenizer.json` names.

    Args:
        tokenizer: what `locate_tokenizer` returned.

    Returns:
        The texts of `bos_token` and `eos_token`, "" for those that the tokenizer does not have.

    Raises:
        ConfigError: if the settings are invalid.
    """
    if not isinstance(tokenizer, Path) or is_remote(tokenizer) or tokenizer.name != _FAST_NAME:
        return {}
    path = tokenizer.with_name(_CONFIG_NAME)
    settings = _read_settings(path) if path.is_file() else {}
    named = dict[str, str]()
    for name in {"bos_token", "eos_token"} & {*settings}:
        token = settings[name]
        text = token.get("content") if isinstance(token, dict) else token  # pyright: ignore[reportUnknownVariableType,reportUnknownMemberType]
        named[name] = text if isinstance(text, str) else ""
    return named


def _read_settings(path: Path) -> dict[str, Any]:
    """Return the settings of a tokenizer that change tokens.

    Raises:
        ConfigError: if the file is invalid.
    """
    try:
        content = json.loads(_read_file(path))
        return {name: content[name] for name in sorted(_SETTINGS & {*content})}
    except MALFORMED_INPUT_ERRORS as error:
        raise ConfigError(f"{path}: it is no description of a tokenizer: {error!r}") from error


def _read_folder(folder: Path) -> bytes | None:
    """Return the content of a folder that decides which tokens its tokenizer makes.

    Returns:
        The content of `tokenizer.json`, or else of the vocabulary files; and the settings in
        `tokenizer_config.json`. `None` without such files.

    Raises:
        ConfigError: if the settings are invalid.
    """
    file = folder / _FAST_NAME
    if file.is_file():
        parts = [_read_file(file)]
    else:
        files = sorted(path for path in folder.iterdir() if _match_vocabulary_name(path.name))
        parts = [path.name.encode() + b"\0" + _read_file(path) for path in files if path.is_file()]
    if (config := folder / _CONFIG_NAME).is_file() and parts:
        settings = _read_settings(config)
        parts += [json.dumps(settings, sort_keys=True).encode()] if settings else []
    return b"\0".join(parts) if parts else None


def _names_file(path: Path) -> bool:
    """Return whether a path cannot be a name on the hub."""
    return path.suffix in (".json", ".model") or path.is_absolute() or is_remote(path)


def _load_tokenizer(path: Path) -> Any:
    name = display_path(path)
    package = "tokenizers" if path.is_file() else "transformers"
    if package == "transformers" and _names_file(path) and (is_remote(path) or not path.is_dir()):
        raise ConfigError(
            f"the tokenizer file {name!r} is missing: check the path, or give a folder or the name "
            "of a model on the Hub"
        )
    if package == "tokenizers" and path.suffix == ".model":
        package = "sentencepiece"
    try:
        library: Any = importlib.import_module(package)
    except ModuleNotFoundError:
        raise make_missing_extra_error(package, "hf", "tokenizing") from None
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


def _read_content(tokenizer: Any) -> bytes | None:
    """Return the content of an object of a package; `None` for functions and Python tokenizers."""
    backend, package = _get_backend(tokenizer), type(tokenizer).__module__.partition(".")[0]
    if hasattr(backend, "to_str"):
        return backend.to_str().encode()
    if package == "sentencepiece":
        return tokenizer.serialized_model_proto()
    if package != "tiktoken":
        return None
    special = repr((tokenizer._pat_str, sorted(tokenizer._special_tokens.items())))
    ranks: Mapping[bytes, int] = tokenizer._mergeable_ranks
    lines = (b"%d %d " % (rank, len(token)) + token for token, rank in ranks.items())
    return special.encode() + b"".join(lines)


def _get_backend(tokenizer: Any) -> Any:
    """Return the object of the package tokenizers in one of transformers."""
    return getattr(tokenizer, "backend_tokenizer", tokenizer)


def _as_mapping(sample: Any) -> Mapping[str, Any] | None:
    return cast("Mapping[str, Any]", sample) if isinstance(sample, Mapping) else None


def _list_fields(fields: Mapping[str, Any] | None) -> str:
    return ", ".join(map(str, fields)) if fields else "no fields"


def _digest_bytes(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=8).hexdigest()
