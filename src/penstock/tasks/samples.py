"""Samples and batches: records with typed fields and provenance."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cache
from typing import Any, Self, TypeVar, cast, dataclass_transform

from ..arrays.trees import map_leaves
from ..errors import ConfigError
from .batching import generic_batch

T = TypeVar("T")

RestoreKey = tuple[Any, ...]
"""Source, epoch and index of a sample; for a pack or batch, a tuple of its samples' keys."""


@dataclass_transform(kw_only_default=True)
def edataclass(cls: type[T]) -> type[T]:
    """Make a keyword-only dataclass, so that subclasses may add fields without defaults.

    Args:
        cls: the class to convert.

    Returns:
        The dataclass.

    >>> @edataclass
    ... class Point(Sample):
    ...     x: int
    >>> Point(__key__="a", x=1).x
    1
    """
    return dataclass(kw_only=True, slots=True)(cls)


@edataclass
class SourceInfo:
    """Provenance of a sample: its dataset, index, shard and files.

    Args:
        dataset_path: folder or file of the dataset.
        index: index of the sample in its source.
        shard_name: name of its shard.
        file_names: names of its parts.
    """

    dataset_path: str
    index: int | str
    shard_name: str | None = None
    file_names: tuple[str, ...] = ()


class Record:
    """Methods that samples and batches share."""

    __slots__ = ()

    @classmethod
    def derive_from(cls, base: Any, **values: Any) -> Self:
        """Make a record with the bookkeeping fields of another one.

        These are the key, the restore key, the subflavors and the sources.

        Args:
            base: the record to take them from.
            values: the other fields.

        >>> page = TextSample(__key__="7", text="seven")
        >>> ImageSample.derive_from(page, image=None).__key__
        '7'
        """
        return cls(**{**basic_sample_keys(base), **values})

    @classmethod
    def extend(cls, base: Any, **values: Any) -> Self:
        """Make a record of this class with all fields of `base`.

        Args:
            base: the record to copy.
            values: further fields; they override those of `base`.

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
        """Return a copy whose tensors are in page-locked memory."""
        return pinned(self)


@edataclass
class Sample(Record):
    """A sample with a key, its provenance, and the fields of a subclass.

    Fields are assignable. `__restore_key__` is source, epoch and index; `__subflavors__` are the
    labels of its dataset.

    >>> sample = TextSample(__key__="7", text="Seven")
    >>> sample.text = sample.text.lower()
    >>> sample.text
    'seven'
    """

    __key__: str
    __restore_key__: RestoreKey = ()
    __subflavors__: dict[str, Any] | None = None
    __sources__: tuple[SourceInfo, ...] | None = None

    @classmethod
    def from_joined(cls, *parts: Any) -> Self:
        """Make a sample of joined samples: later ones override the data fields of earlier ones.

        Key, restore key and subflavors are those of the first sample; sources are those of all.

        Args:
            parts: the samples of one key; None for a missing one, except for the first.

        Returns:
            The sample.

        Raises:
            ConfigError: if the first sample is missing.

        >>> image, text = ImageSample(__key__="7", image=0), TextSample(__key__="7", text="zero")
        >>> @edataclass
        ... class Pair(Sample):
        ...     image: int
        ...     text: str
        >>> Pair.from_joined(image, text).text
        'zero'
        """
        given = [part for part in parts if part is not None]
        if not given or parts[0] is None:
            raise ConfigError("from_joined: the first sample is missing: pass the primary sample")
        values: dict[str, Any] = dict(get_field_values(parts[0]))
        for part in given[1:]:
            for name, value in get_field_values(part).items():
                if name not in _BOOKKEEPING_FIELDS:
                    values[name] = value
        sources = [source for part in given for source in get_sources(part)]
        values["__sources__"] = tuple(sources) or None
        return cls(**values)


@edataclass
class Batch(Record):
    """A batch of samples as one record; subclasses can pin tensors and batch samples.

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
        """Make a batch of samples: arrays padded and stacked, other values in lists.

        The batch takes the fields that its class has; the samples may have more.

        Args:
            samples: samples with equal fields.
            values: fields of the batch; they override those of the samples.

        Returns:
            The batch.
        """
        others = get_field_values(samples[0]).keys() - set(fields_of(cls))
        columns = collate_columns(samples, {}, generic_batch, skip={*values, *others})
        return make(cls, {**columns, **values})


class CrudeSample(dict[str, Any]):
    """A sample as read, with its parts by name; a cooker turns it into a `Sample`.

    >>> CrudeSample({"__key__": "7", "txt": "seven"})["txt"]
    'seven'
    """


@edataclass
class TextSample(Sample):
    """A text.

    Args:
        text: the text.
    """

    text: str


@edataclass
class ImageSample(Sample):
    """An image.

    Args:
        image: the image.
    """

    image: Any


@edataclass
class ImageClassificationSample(Sample):
    """An image and its class label.

    Args:
        image: the image.
        label: index of the class.
        label_name: name of the class.
    """

    image: Any
    label: int | None = None
    label_name: str | None = None


@edataclass
class CaptioningSample(Sample):
    """An image and its caption.

    Args:
        image: the image.
        caption: the caption.
    """

    image: Any
    caption: str


@edataclass
class VQASample(Sample):
    """An image, a question, and its answers (visual question answering).

    Args:
        image: the image.
        context: the question.
        answers: the answers.
        answer_weights: weights of the answers.
    """

    image: Any
    context: str
    answers: list[str] | None = None
    answer_weights: Any = None


@edataclass
class MultiChoiceVQASample(Sample):
    """An image, a question, and the answers to choose from.

    Args:
        image: the image.
        context: the question.
        choices: the answers to choose from.
        correct_choice_idx: index of the correct answer.
    """

    image: Any
    context: str
    choices: list[str] | None = None
    correct_choice_idx: int = 0


@edataclass
class VidQASample(Sample):
    """A video, a question, and its answers; the video stays as bytes.

    Args:
        video: the video, as bytes.
        context: the question.
        answers: the answers.
        answer_weights: weights of the answers.
    """

    video: Any
    context: str
    answers: list[str] | None = None
    answer_weights: Any = None


@edataclass
class OCRSample(Sample):
    """An image, its text, and the boxes of its blocks, lines, words and characters.

    Args:
        image: the image.
        text: the text of the whole image.
        block_boxes: boxes of the blocks.
        block_classes: classes of the blocks.
        block_text: texts of the blocks.
        lines_boxes: boxes of the lines.
        lines_text: texts of the lines.
        words_boxes: boxes of the words.
        words_text: texts of the words.
        chars_boxes: boxes of the characters.
        chars_text: the characters.
    """

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
class VQAOCRSample(Sample):
    """An image, a question and its answers, and the words in the image with their boxes.

    Args:
        image: the image.
        context: the question.
        text: the text of the whole image.
        answers: the answers.
        answer_weights: weights of the answers.
        words_boxes: boxes of the words.
        words_text: texts of the words.
    """

    image: Any
    context: str
    text: str
    answers: list[str] | None = None
    answer_weights: Any = None
    words_boxes: Any = None
    words_text: list[str] | None = None


@edataclass
class InterleavedSample(Sample):
    """A sequence of interleaved images and texts.

    Args:
        sequence: images and texts in order.
    """

    sequence: list[Any]


@edataclass
class SimilarityInterleavedSample(Sample):
    """Separate lists of images and texts, with their matches.

    Args:
        images: the images.
        texts: the texts.
        audio: the audio clips.
        video: the videos.
        similarity_matrix: similarity of images and texts.
        matched_text_indices: index of the matching text per image.
    """

    images: list[Any]
    texts: list[str]
    audio: list[Any] | None = None
    video: list[Any] | None = None
    similarity_matrix: Any = None
    matched_text_indices: list[int] | None = None


# ---------------------------------------------------------------- records of any kind


@cache
def fields_of(kind: Any) -> tuple[str, ...]:
    """Return the field names of a dataclass or named tuple; empty for other types.

    >>> fields_of(TextSample)[-1]
    'text'
    """
    if is_dataclass(kind):
        return tuple(field.name for field in fields(kind) if field.init)
    return cast("tuple[str, ...]", getattr(kind, "_fields", ()))


def is_bookkeeping(name: Any) -> bool:
    """Return whether a field stores provenance instead of data.

    >>> is_bookkeeping("__key__"), is_bookkeeping("image")
    (True, False)
    """
    return isinstance(name, str) and name.startswith("__") and name.endswith("__")


def get_field_values(record: Any) -> Mapping[str, Any]:
    """Return the fields of a record, or of a mapping, by name.

    Raises:
        ConfigError: for a value without fields.
    """
    kind: Any = cast("Any", type(record))
    if issubclass(kind, Mapping):
        return record
    names = fields_of(kind)
    if not names:
        raise ConfigError(
            f"a {kind.__name__} has no fields: make samples dataclasses, named tuples or mappings, "
            "or override the encoder's batch()"
        )
    return {name: getattr(record, name) for name in names}


def basic_sample_keys(
    sample: Any, additional_source_info: Sequence[SourceInfo] = ()
) -> dict[str, Any]:
    """Return the fields of a sample that store its provenance.

    Args:
        sample: a record or mapping.
        additional_source_info: sources to append to those of the sample.

    >>> basic_sample_keys(TextSample(__key__="7", text=""))["__key__"]
    '7'
    """
    values = {
        name: value
        for name, value in get_field_values(sample).items()
        if name in _BOOKKEEPING_FIELDS
    }
    if additional_source_info:
        values["__sources__"] = (*get_sources(sample), *additional_source_info)
    return values


def get_sources(sample: Any) -> tuple[SourceInfo, ...]:
    """Return the sources of a sample; empty if it has none.

    >>> get_sources(TextSample(__key__="7", text=""))
    ()
    """
    return tuple(get_field_values(sample).get("__sources__") or ())


_BOOKKEEPING_FIELDS = ("__key__", "__restore_key__", "__subflavors__", "__sources__")


def collate_columns(
    samples: Sequence[Any],
    actions: Mapping[str, Callable[[list[Any]], Any]],
    default: Callable[[list[Any]], Any],
    skip: Any = (),
) -> dict[str, Any]:
    """Turn samples into columns, each batched by the action of its name or the default.

    Args:
        samples: samples with equal fields.
        actions: batching functions by field.
        default: batching function of the other fields.
        skip: names of fields to leave out.

    Raises:
        ConfigError: if a sample lacks a field of the first one.
    """
    rows = [get_field_values(sample) for sample in samples]
    out = dict[str, Any]()
    for name in rows[0]:
        if name in skip:
            continue
        try:
            column = [row[name] for row in rows]
        except KeyError:
            raise ConfigError(
                f"a sample of the batch lacks the field {name!r} of its first sample"
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
    """Make a record of this type from columns by name.

    Bookkeeping fields that the type lacks are dropped; a data field that it lacks is an error.

    Args:
        kind: a dataclass, named tuple or mapping type.
        columns: values by field name.

    Raises:
        ConfigError: if the type lacks a data field, or cannot be made of these fields.

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
            f"{kind.__name__} has no field {lost[0]!r}, but the samples do: add the field, or drop "
            "it in batch()"
        )
    try:
        return kind(**{name: value for name, value in columns.items() if name in names})
    except TypeError as error:
        raise ConfigError(
            f"{kind.__name__} cannot be made of the fields {', '.join(columns)}: {error}"
        ) from error


def copied(sample: Any) -> Any:
    """Return a shallow copy of a record, so that a hook may assign to its fields."""
    kind: Any = cast("Any", type(sample))
    if issubclass(kind, dict):
        return cast("Any", kind)(sample)
    if issubclass(kind, tuple) or not fields_of(kind):
        return sample
    copy = object.__new__(kind)
    for name in _dataclass_fields(kind):
        object.__setattr__(copy, name, getattr(sample, name))
    for name, value in getattr(sample, "__dict__", {}).items():
        object.__setattr__(copy, name, value)
    return copy


@cache
def _dataclass_fields(kind: Any) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind))


def pinned(batch: T) -> T:
    """Return a copy of a batch whose tensors are in page-locked memory.

    Args:
        batch: the batch.
    """
    return map_leaves(
        lambda leaf: leaf.pin_memory() if callable(getattr(leaf, "pin_memory", None)) else leaf,
        batch,
    )
