"""Samples and batches: records with fields of their own, and with where they come from."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cache
from typing import Any, Self, TypeVar, cast, dataclass_transform

from ..engine.base.tree import map_leaves
from ..errors import ConfigError
from .batching import generic_batch

T = TypeVar("T")

RestoreKey = tuple[Any, ...]
"""Source, epoch and index of a sample; for what is made of several samples, a tuple of theirs."""


@dataclass_transform(kw_only_default=True)
def edataclass(cls: type[T]) -> type[T]:
    """A dataclass whose fields are given by keyword, so that subclasses may add fields without
    defaults.

    >>> @edataclass
    ... class Point(Sample):
    ...     x: int
    >>> Point(__key__="a", x=1).x
    1
    """
    return dataclass(kw_only=True, slots=True)(cls)


@edataclass
class SourceInfo:
    """Where a sample was read: the dataset, the place in it, the shard and the files."""

    dataset_path: str
    index: int | str
    shard_name: str | None = None
    file_names: tuple[str, ...] = ()


class _Record:
    """What samples and batches share."""

    __slots__ = ()

    @classmethod
    def derive_from(cls, base: Any, **values: Any) -> Self:
        """A record with the key, the restore key, the subflavors and the sources of another one.

        >>> page = TextSample(__key__="7", text="seven")
        >>> ImageSample.derive_from(page, image=None).__key__
        '7'
        """
        return cls(**{**basic_sample_keys(base), **values})

    @classmethod
    def extend(cls, base: Any, **values: Any) -> Self:
        """A record of this class with all fields of `base`, and these.

        >>> CaptioningSample.extend(ImageSample(__key__="7", image=0), caption="zero").image
        0
        """
        return cls(
            **{
                **{name: getattr(base, name) for name in fields_of(cast("Any", type(base)))},
                **values,
            }
        )

    def pin_memory(self) -> Self:
        """A copy whose tensors lie in page-locked memory."""
        return pinned(self)


@edataclass
class Sample(_Record):
    """One sample: a key, where it comes from, and the fields of a subclass. Fields may be assigned
    to.

    `__restore_key__` is source, epoch and index; `__subflavors__` are the labels of its dataset.

    >>> sample = TextSample(__key__="7", text="Seven")
    >>> sample.text = sample.text.lower()
    >>> sample.text
    'seven'
    """

    __key__: str
    __restore_key__: RestoreKey = ()
    __subflavors__: dict[str, Any] | None = None
    __sources__: tuple[SourceInfo, ...] | None = None


@edataclass
class Batch(_Record):
    """Several samples as one record; subclass it to have tensors pinned, and to make batches of
    samples.

    >>> import numpy as np
    >>> @edataclass
    ... class Images(Batch):
    ...     image: np.ndarray
    >>> samples = [ImageSample(__key__=key, image=np.zeros((2, 3))) for key in "ab"]
    >>> batch = Images.from_samples(samples)
    >>> batch.__key__, batch.image.shape
    (['a', 'b'], (2, 2, 3))
    """

    __key__: list[str] = field(default_factory=list[str])
    __restore_key__: RestoreKey = ()
    __subflavors__: list[dict[str, Any] | None] | None = None
    __sources__: tuple[SourceInfo, ...] | None = None

    @classmethod
    def from_samples(cls, samples: Sequence[Any], **values: Any) -> Self:
        """A batch of samples: arrays and tensors are padded and stacked, the rest comes in lists;
        `values` go first."""
        columns = columns_of(samples, {}, generic_batch, skip=values.keys())
        return make(cls, {**columns, **values})


class CrudeSample(dict[str, Any]):
    """A sample as it was read, by the names of its parts; a cooker makes a `Sample` of it.

    >>> CrudeSample({"__key__": "7", "txt": "seven"})["txt"]
    'seven'
    """


@edataclass
class TextSample(Sample):
    """A text."""

    text: str


@edataclass
class ImageSample(Sample):
    """An image."""

    image: Any


@edataclass
class ImageClassificationSample(Sample):
    """An image and its class."""

    image: Any
    label: int | None = None
    label_name: str | None = None


@edataclass
class CaptioningSample(Sample):
    """An image and a text about it."""

    image: Any
    caption: str


@edataclass
class VQASample(Sample):
    """An image, a question, and the answers."""

    image: Any
    context: str
    answers: list[str] | None = None
    answer_weights: Any = None


@edataclass
class MultiChoiceVQASample(Sample):
    """An image, a question, and the answers to choose from."""

    image: Any
    context: str
    choices: list[str] | None = None
    correct_choice_idx: int = 0


@edataclass
class VidQASample(Sample):
    """A video, a question, and the answers. The video stays as it was read: bytes."""

    video: Any
    context: str
    answers: list[str] | None = None
    answer_weights: Any = None


@edataclass
class OCRSample(Sample):
    """An image, its text, and where its blocks, lines, words and characters stand."""

    image: Any
    text: str
    block_boxes: Any = None
    block_classes: Any = None
    block_text: list[str] | None = None
    lines_boxes: Any = None
    lines_text: list[str] | None = None
    words_boxes: Any = None
    words_text: list[str] | None = None
    chars_boxes: Any = None
    chars_text: list[str] | None = None


@edataclass
class InterleavedSample(Sample):
    """Images and texts in turn."""

    sequence: list[Any]


@edataclass
class SimilarityInterleavedSample(Sample):
    """Images and texts apart, with what belongs together."""

    images: list[Any]
    texts: list[str]
    audio: list[Any] | None = None
    video: list[Any] | None = None
    similarity_matrix: Any = None
    matched_text_indices: list[int] | None = None


# ---------------------------------------------------------------- records of any kind


@cache
def fields_of(kind: Any) -> tuple[str, ...]:
    """The names of the fields of a dataclass or named tuple; none for anything else.

    >>> fields_of(TextSample)[-1]
    'text'
    """
    if is_dataclass(kind):
        return tuple(field.name for field in fields(kind) if field.init)
    return cast("tuple[str, ...]", getattr(kind, "_fields", ()))


def is_bookkeeping(name: Any) -> bool:
    """Whether a field says where a sample comes from, not what it holds.

    >>> is_bookkeeping("__key__"), is_bookkeeping("image")
    (True, False)
    """
    return isinstance(name, str) and name.startswith("__") and name.endswith("__")


def values_of(record: Any) -> Mapping[str, Any]:
    """The fields of a record, or of a mapping, by name."""
    kind: Any = cast("Any", type(record))
    if issubclass(kind, Mapping):
        return record
    names = fields_of(kind)
    if not names:
        raise ConfigError(
            f"a {kind.__name__} has no fields: samples are dataclasses, named tuples or mappings, "
            "or the hooks of the encoder must say how to batch them"
        )
    return {name: getattr(record, name) for name in names}


def basic_sample_keys(sample: Any) -> dict[str, Any]:
    """The fields of a sample that say where it comes from.

    >>> basic_sample_keys(TextSample(__key__="7", text=""))["__key__"]
    '7'
    """
    return {name: value for name, value in values_of(sample).items() if name in _BOOKKEEPING}


_BOOKKEEPING = ("__key__", "__restore_key__", "__subflavors__", "__sources__")


def columns_of(
    samples: Sequence[Any],
    actions: Mapping[str, Callable[[list[Any]], Any]],
    default: Callable[[list[Any]], Any],
    skip: Any = (),
) -> dict[str, Any]:
    """Samples as columns: the values of each field, batched by the action of its name or the
    default one."""
    rows = [values_of(sample) for sample in samples]
    out = dict[str, Any]()
    for name in rows[0]:
        if name in skip:
            continue
        try:
            column = [row[name] for row in rows]
        except KeyError:
            raise ConfigError(
                f"a sample of the batch has no field {name!r}, but its first one has"
            ) from None
        if name in actions:
            out[name] = actions[name](column)
        elif name == "__restore_key__":
            out[name] = tuple(column)
        elif name == "__sources__":
            out[name] = tuple(source for sources in column for source in sources or ()) or None
        else:
            out[name] = list(column) if is_bookkeeping(name) else default(column)
    return out


def make(kind: Any, columns: Mapping[str, Any]) -> Any:
    """A record of this kind from columns by name. Bookkeeping that the kind has no field for stays
    behind; data never.

    >>> from typing import NamedTuple
    >>> class Raw(NamedTuple):
    ...     image: list
    >>> make(Raw, {"__key__": ["a"], "image": [1]})
    Raw(image=[1])
    """
    names = fields_of(kind)
    if not names:
        return kind(columns)
    lost = [name for name in columns if name not in names and not is_bookkeeping(name)]
    if lost:
        raise ConfigError(
            f"{kind.__name__} has no field {lost[0]!r}, which the samples have: add it, or leave "
            "it out in batch()"
        )
    try:
        return kind(**{name: value for name, value in columns.items() if name in names})
    except TypeError as error:
        raise ConfigError(
            f"{kind.__name__} cannot be made of the fields {', '.join(columns)}: {error}"
        ) from error


def copied(sample: Any) -> Any:
    """A shallow copy of a record, so that a hook that assigns to its fields changes nothing but its
    own."""
    kind: Any = cast("Any", type(sample))
    if issubclass(kind, dict):
        return cast("Any", kind)(sample)
    if issubclass(kind, tuple) or not fields_of(kind):
        return sample
    twin = object.__new__(kind)
    for name in _stored(kind):
        object.__setattr__(twin, name, getattr(sample, name))
    for name, value in getattr(sample, "__dict__", {}).items():
        object.__setattr__(twin, name, value)
    return twin


@cache
def _stored(kind: Any) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind))


def pinned(batch: T) -> T:
    """A copy of a batch whose tensors lie in page-locked memory; all else is as it was."""
    return map_leaves(
        lambda leaf: leaf.pin_memory() if callable(getattr(leaf, "pin_memory", None)) else leaf,
        batch,
    )
