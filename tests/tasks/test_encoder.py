"""Task encoders: hooks, dropped and multiplied samples, packing, grouping, randomness, resuming."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

import penstock as ps
from penstock.tasks import (
    Batch,
    CaptioningSample,
    Cooker,
    CrudeSample,
    DefaultTaskEncoder,
    IgnoreSample,
    Sample,
    SkipSample,
    TaskEncoder,
    TextSample,
    batch_list,
    batch_stack,
    edataclass,
)
from penstock.testing import assert_elastic, assert_resumes


def texts(n: int) -> ps.Dataset:
    return ps.from_sequence(
        [TextSample(__key__=f"k{i}", text=str(i)) for i in range(n)], name="texts"
    )


def captions(n: int) -> ps.Dataset:
    samples = [
        CaptioningSample(
            __key__=f"k{i}", image=torch.full((2, 1 + i % 3), float(i)), caption=f"c{i}"
        )
        for i in range(n)
    ]
    return ps.from_sequence(samples, name="captions")


class Numbers(DefaultTaskEncoder[Any, Any, Any, Any]):
    """Batches as lists of texts."""

    def batch(self, samples: list[Any]) -> list[str]:
        return [sample.text for sample in samples]


# ---------------------------------------------------------------- samples


def test_samples_are_records_with_keys_and_assignable_fields() -> None:
    sample = CaptioningSample(__key__="k", image=None, caption="c")
    sample.image = 7
    assert sample.__restore_key__ == () and sample.__subflavors__ is None
    with pytest.raises(AttributeError):
        sample.imgae = 8  # pyright: ignore[reportAttributeAccessIssue]
    again = pickle.loads(pickle.dumps(sample))
    assert again == sample and copy.copy(sample) == sample


def test_restore_keys_name_source_epoch_and_index() -> None:
    mixed = ps.mix({"a": texts(3).shuffle(), "b": texts(5)}, block_size=1)
    for sample in DefaultTaskEncoder().build(mixed).limit(20):
        source, epoch, index = sample.__restore_key__
        assert source in ("a", "b") and sample.text == str(index) and epoch >= 0


def test_mappings_become_crude_samples() -> None:
    ds = ps.from_sequence([{"txt": "a"}, {"txt": "b", "__key__": "mine"}], name="s")
    found = list(DefaultTaskEncoder().build(ds))
    assert all(isinstance(sample, CrudeSample) for sample in found)
    assert [sample["__key__"] for sample in found] == ["s/0", "mine"]


def test_the_source_is_never_changed() -> None:
    class Assigns(Numbers):
        def encode_sample(self, sample: Any) -> Any:
            sample.text += "!"
            if sample.__key__ == "k3":
                raise SkipSample
            return sample

    ds = texts(5)
    built = Assigns().build(ds, batch_size=10, drops=True)
    # The other samples of the batch are encoded once, though one of them was dropped.
    assert list(built) == [["0!", "1!", "2!", "4!"]] == list(built)
    assert [sample.text for sample in ds] == ["0", "1", "2", "3", "4"]


# ---------------------------------------------------------------- batches


@dataclass
class Raw:
    __key__: list[str]
    image: torch.Tensor
    caption: list[str]


@dataclass
class Small:
    image: torch.Tensor


class RawTuple(NamedTuple):
    image: Any
    caption: Any


def test_batch_into_a_plain_dataclass_without_bookkeeping() -> None:
    class Own(DefaultTaskEncoder[Any, Any, Any, Any]):
        def batch(self, samples: list[Any]) -> Raw:
            return self._batch(
                samples, result_type=Raw, actions={"image": batch_stack, "caption": batch_list}
            )

    [batch] = Own().build(captions(10)[::3], batch_size=4)
    assert batch == Raw(["k0", "k3", "k6", "k9"], batch.image, ["c0", "c3", "c6", "c9"])
    assert batch.image.shape == (4, 2, 1)
    # The default of the encoder does the same.
    [default] = DefaultTaskEncoder(batch_type=Raw).build(captions(10)[::3], batch_size=4)
    assert (
        type(default) is Raw
        and torch.equal(default.image, batch.image)
        and default.caption == batch.caption
    )


def test_data_is_never_left_out_in_silence() -> None:
    with pytest.raises(ps.ConfigError, match="Small has no field 'caption'"):
        list(DefaultTaskEncoder(batch_type=Small).build(captions(2), batch_size=2))

    class Typo(DefaultTaskEncoder[Any, Any, Any, Any]):
        def batch(self, samples: list[Any]) -> Any:
            return self._batch(samples, Raw, actions={"imgae": batch_stack})

    with pytest.raises(ps.ConfigError, match="'imgae'"):
        list(Typo().build(captions(2), batch_size=2))


def test_types_by_field_name() -> None:
    def run(**types: Any) -> Any:
        return DefaultTaskEncoder(**types).build(captions(3), batch_size=3)[0]

    assert run(batch_type=dict)["caption"] == ["c0", "c1", "c2"]
    assert isinstance(run(raw_batch_type=dict, batch_type=RawTuple), RawTuple)
    assert run(encoded_sample_type=RawTuple).image.shape == (3, 2, 3)
    # Without types a record like the samples.
    assert type(run()) is CaptioningSample and run().__key__ == ["k0", "k1", "k2"]


def test_an_encoder_may_have_an_init_of_its_own() -> None:
    class Own(Numbers):
        def __init__(self, mark: str) -> None:
            self.mark = mark

    assert list(Own("!").build(texts(2), batch_size=2)) == [["0", "1"]]


def test_no_batching() -> None:
    assert [sample.text for sample in DefaultTaskEncoder().build(texts(3))] == ["0", "1", "2"]


def test_pinning_goes_through_all_fields(monkeypatch: pytest.MonkeyPatch) -> None:
    @edataclass
    class Images(Batch):
        image: Any
        more: dict[str, Any]

    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: self + 1)
    batch = Images(
        __key__=["a"], image=torch.zeros(1), more={"x": [torch.zeros(1), "text"]}
    ).pin_memory()
    assert (
        batch.image == 1
        and batch.more["x"][0] == 1
        and batch.more["x"][1] == "text"
        and batch.__key__ == ["a"]
    )


# ---------------------------------------------------------------- dropped, multiplied


HOOKS = ["cook_crude_sample", "encode_sample", "pack_selected_samples", "batch", "encode_batch"]


@pytest.mark.parametrize("hook", HOOKS)
def test_any_hook_may_ignore_its_sample(hook: str) -> None:
    class Drops(Numbers):
        def _call(self, name: str, value: Any, key: Any) -> Any:
            if name == hook and "3" in str(key):
                raise IgnoreSample
            return value

        def cook_crude_sample(self, sample: Any) -> Any:
            return self._call("cook_crude_sample", sample, sample.text)

        def encode_sample(self, sample: Any) -> Any:
            return self._call("encode_sample", sample, sample.text)

        def select_samples_to_pack(self, samples: list[Any]) -> list[list[Any]]:
            return [samples[i : i + 2] for i in range(0, len(samples), 2)]

        def pack_selected_samples(self, samples: list[Any]) -> Any:
            text = "+".join(sample.text for sample in samples)
            return self._call(
                "pack_selected_samples", TextSample.derive_from(samples[0], text=text), text
            )

        def batch(self, samples: list[Any]) -> list[str]:
            return self._call(
                "batch", [sample.text for sample in samples], [sample.text for sample in samples]
            )

        def encode_batch(self, batch: list[str]) -> list[str]:
            return self._call("encode_batch", batch, batch)

    def make(drops: bool = True) -> ps.Dataset:
        return Drops().build(texts(8), batch_size=2, packing_buffer_size=4, drops=drops)

    want = {
        "cook_crude_sample": [["0+1", "2+4"], ["5+6", "7"]],
        "encode_sample": [["0+1", "2+4"], ["5+6", "7"]],
        "pack_selected_samples": [["0+1", "4+5"], ["6+7"]],
        "batch": [["4+5", "6+7"]],
        "encode_batch": [["4+5", "6+7"]],
    }[hook]
    assert list(make()) == want
    assert_resumes(make)
    with pytest.raises(ps.ConfigError, match=r"drops=True"):
        list(make(drops=False))


def test_hooks_that_drop_work_on_several_ranks() -> None:
    class Odd(Numbers):
        def encode_sample(self, sample: Any) -> Any:
            if int(sample.text) % 3 == 0:
                raise SkipSample
            return sample

        def encode_batch(self, batch: list[str]) -> list[str]:
            if "14" in batch:
                raise SkipSample
            return batch

    ds = Odd().build(texts(160), batch_size=3, drops=True)

    def make(rank: int, world_size: int) -> ps.Loader:
        return ps.Loader(ds.repeat(), rank=rank, world_size=world_size, lanes=4)

    assert_elastic(make, worlds=(1, 2, 4), steps=24)


def test_generators_give_several() -> None:
    class Twice(Numbers):
        def encode_sample(self, sample: Any) -> Iterator[Any]:
            yield sample
            if sample.text == "1":
                raise SkipSample  # what was given before stays
            yield TextSample.derive_from(sample, text=sample.text + "b")

        def encode_batch(self, batch: list[str]) -> Iterator[list[str]]:
            yield batch
            yield batch[::-1]

    def make() -> ps.Dataset:
        return Twice().build(texts(3), batch_size=3)

    assert list(make()) == [["0", "0b", "1"], ["1", "0b", "0"], ["2", "2b"], ["2b", "2"]]
    assert_resumes(make)


def test_a_hidden_generator_is_refused() -> None:
    class Hidden(Numbers):
        def encode_sample(self, sample: Any) -> Any:
            return (sample for _ in range(2))

    with pytest.raises(ps.ConfigError, match="generator function"):
        list(Hidden().build(texts(1), batch_size=1))
    # Where the number of samples is open anyway it is as good as any other.
    assert list(Hidden().build(texts(1), batch_size=2, drops=True)) == [["0", "0"]]


def test_one_to_one_encoders_stay_indexed() -> None:
    built = Numbers().build(texts(10).shuffle(seed=1), batch_size=4)
    assert len(built) == 3 and built[2] == list(built)[2]


# ---------------------------------------------------------------- cooking, two halves


def test_cookers_go_by_subflavors() -> None:
    class Cooks(Numbers):
        cookers = (
            Cooker(
                lambda crude: TextSample.derive_from(crude, text=crude["txt"].upper()),
                {"kind": "loud"},
            ),
            Cooker(lambda crude: TextSample.derive_from(crude, text=crude["txt"])),
        )

    rows = [
        {"txt": "a", "__subflavors__": {"kind": "loud"}},
        {"txt": "b", "__subflavors__": {"kind": "soft"}},
    ]
    assert list(Cooks().build(ps.from_sequence(rows), batch_size=2)) == [["A", "b"]]

    class One(Numbers):
        cookers = Cooks.cookers[:1]

    with pytest.raises(
        ps.ConfigError, match="no cooker of .*One fits the subflavors {'kind': 'soft'}"
    ):
        list(One().build(ps.from_sequence(rows), batch_size=2))


def test_postencoding_is_done_for_packed_samples_only() -> None:
    class Halves(Numbers):
        def preencode_sample(self, sample: Any) -> Any:
            sample.text += "<"
            return sample

        def postencode_sample(self, sample: Any) -> Any:
            assert not sample.text.startswith("1"), "was not chosen"
            sample.text += ">"
            return sample

        def select_samples_to_pack(self, samples: list[Any]) -> list[list[Any]]:
            return [[sample for sample in samples if not sample.text.startswith("1")]]

        def pack_selected_samples(self, samples: list[Any]) -> Any:
            return TextSample.derive_from(
                samples[0], text=" ".join(sample.text for sample in samples)
            )

    assert list(Halves().build(texts(4), batch_size=1, packing_buffer_size=4)) == [["0<> 2<> 3<>"]]

    class Both(Halves):
        def encode_sample(self, sample: Any) -> Any:
            return sample

    with pytest.raises(ps.ConfigError, match="one or the other"):
        Both().build(texts(4), batch_size=1)


def test_two_halves_without_packing() -> None:
    class Halves(Numbers):
        def preencode_sample(self, sample: Any) -> Any:
            sample.text += "<"
            return sample

        def postencode_sample(self, sample: Any) -> Any:
            sample.text += ">"
            return sample

    assert list(Halves().build(texts(2), batch_size=2)) == [["0<>", "1<>"]]


# ---------------------------------------------------------------- packing, grouping


class Packs(Numbers):
    """Texts of numbers, packed so that a pack sums to at most 20; in an order drawn at random."""

    def encode_sample(self, sample: Any) -> Any:
        sample.text = f"{sample.text}.{self.rng.integers(10)}"
        return sample

    def select_samples_to_pack(self, samples: list[Any]) -> list[list[Any]]:
        packs, total = list[list[Any]](), 21.0
        for i in self.rng.permutation(len(samples)):
            total += float(samples[i].text)
            if total > 20:
                packs.append([])
                total = float(samples[i].text)
            packs[-1].append(samples[i])
        return packs

    def pack_selected_samples(self, samples: list[Any]) -> Any:
        return TextSample.derive_from(samples[0], text="+".join(sample.text for sample in samples))


@pytest.mark.slow
def test_packing_keeps_all_and_resumes_everywhere() -> None:
    ds = Packs().build(texts(21).shuffle(), batch_size=2, packing_buffer_size=8)
    found = "+".join(pack for batch in ds for pack in batch)
    assert sorted(int(float(number)) for number in found.split("+")) == list(range(21))
    assert_resumes(
        lambda: Packs().build(texts(21).shuffle().repeat(2), batch_size=2, packing_buffer_size=8)
    )


def test_packs_name_their_samples_only() -> None:
    it = iter(Packs().build(texts(21), batch_size=1, packing_buffer_size=8))
    for [pack] in it:
        assert [int(float(text)) for text in pack.split("+")] == [
            index for _, _, index in it.keys()
        ]


@pytest.mark.parametrize("several", [False, True])
def test_a_pack_without_a_restore_key_gets_those_of_its_samples(several: bool) -> None:
    class Pairs(Numbers):
        def select_samples_to_pack(self, samples: list[Any]) -> list[list[Any]]:
            return [samples[:2], samples[2:]]

        def pack_selected_samples(self, samples: list[Any]) -> Any:
            return TextSample(__key__="pack", text=f"{len(samples)}")

    class Many(Pairs):
        def pack_selected_samples(self, samples: list[Any]) -> Any:
            yield TextSample(__key__="pack", text=f"{len(samples)}")
            yield samples[0]

    texts = ps.from_sequence(
        [TextSample(__key__=str(i), text=str(i)) for i in range(3)], name="texts"
    )
    built = (Many if several else Pairs)().build(texts, packing_buffer_size=3, drops=several)
    found = [sample.__restore_key__ for sample in built]
    first, second, third = (("texts", 0, i) for i in range(3))
    assert found == (
        [(first, second), first, (third,), third] if several else [(first, second), (third,)]
    )


def test_the_state_of_packing_is_small_and_has_no_data() -> None:
    it = iter(Packs().build(texts(600).shuffle(), batch_size=2, packing_buffer_size=100))
    for _ in range(30):
        next(it)
    assert len(str(it.state_dict())) < 3_000


def test_packing_needs_both_hooks() -> None:
    with pytest.raises(ps.ConfigError, match="select_samples_to_pack"):
        Numbers().build(texts(3), batch_size=1, packing_buffer_size=2)

    class Copies(Packs):
        def select_samples_to_pack(self, samples: list[Any]) -> list[list[Any]]:
            return [copy.deepcopy(samples)]

    with pytest.raises(ps.ConfigError, match="not in its argument"):
        list(Copies().build(texts(3), batch_size=1, packing_buffer_size=2))


def test_selecting_may_drop_a_whole_buffer() -> None:
    class Picky(Packs):
        def select_samples_to_pack(self, samples: list[Any]) -> list[list[Any]]:
            if samples[0].__key__ == "k0":
                raise SkipSample
            return [samples]

    assert [
        len(pack.split("+"))
        for [pack] in Picky().build(texts(6), batch_size=1, packing_buffer_size=3)
    ] == [3]


class ByParity(Numbers):
    def batch_group_criterion(self, sample: Any) -> tuple[Any, int | None]:
        if sample.text == "4":
            raise SkipSample
        return (int(sample.text) % 2, "x"), None


def test_batch_group_criterion_keeps_groups_apart() -> None:
    assert list(ByParity().build(texts(9), batch_size=2, drops=True)) == [
        ["0", "2"],
        ["1", "3"],
        ["5", "7"],
        ["6", "8"],
    ]
    assert list(ByParity().build(texts(8), batch_size=3, drops=True)) == [
        ["1", "3", "5"],
        ["0", "2", "6"],
        ["7"],
    ]
    assert len(list(ByParity().build(texts(8), batch_size=3, drop_last=True, drops=True))) == 2
    assert_resumes(lambda: ByParity().build(texts(14), batch_size=2, drops=True))


def test_a_sample_skipped_by_the_criterion_is_in_no_group() -> None:
    # A peer puts it into the group of the sample before.
    assert all("4" not in batch for batch in ByParity().build(texts(9), batch_size=2, drops=True))


def test_group_sizes_come_from_one_place() -> None:
    class Sized(ByParity):
        def batch_group_criterion(self, sample: Any) -> tuple[Any, int | None]:
            return np.int64(int(sample.text) % 2), 2 if int(sample.text) % 2 else 3

    assert list(Sized().build(texts(8))) == [["1", "3"], ["0", "2", "4"], ["5", "7"], ["6"]]
    with pytest.raises(ps.ConfigError, match="exactly one"):
        list(Sized().build(texts(8), batch_size=2))
    with pytest.raises(ps.ConfigError, match="exactly one"):
        list(ByParity().build(texts(8)))

    class Odd(ByParity):
        def batch_group_criterion(self, sample: Any) -> tuple[Any, int | None]:
            return object(), 2

    with pytest.raises(ps.ConfigError, match="differs between processes"):
        list(Odd().build(texts(8)))


# ---------------------------------------------------------------- randomness, errors, resuming


class Noisy(Numbers):
    def encode_sample(self, sample: Any) -> Any:
        sample.text = f"{sample.text}:{self.rng.integers(1 << 30)}"
        return sample

    def encode_batch(self, batch: list[str]) -> list[str]:
        return [*batch, str(self.rng.integers(1 << 30))]


def test_random_numbers_are_those_of_the_sample() -> None:
    ds = Noisy().build(texts(12).shuffle().repeat(2), batch_size=3)
    one = list(ds)
    assert list(ps.Loader(ds, workers=3)) == one
    assert [ds[i] for i in range(len(ds))] == one
    numbers = [text.split(":")[1] for batch in one for text in batch[:3]]
    assert len(set(numbers)) == 24, "new in every pass"
    assert list(Noisy().build(texts(12).shuffle().repeat(2), batch_size=3).seed(1)) != one
    # The global generators are neither used nor needed.
    np.random.seed(0)
    assert list(ds) == one


def test_rng_outside_of_a_hook_is_an_error() -> None:
    with pytest.raises(ps.ConfigError, match="inside the hooks"):
        _ = Noisy().rng


@pytest.mark.parametrize("drops", [False, True])
def test_errors_name_hook_key_and_place(drops: bool) -> None:
    class Breaks(Numbers):
        def encode_sample(self, sample: Any) -> Any:
            if sample.text == "5":
                raise ValueError("no such thing")
            return sample

    with pytest.raises(ValueError, match="no such thing") as caught:
        list(Breaks().build(texts(9), batch_size=2, drops=drops))
    notes = "\n".join(caught.value.__notes__)
    assert "Breaks.encode_sample" in notes and "'k5' of 'texts', index 5" in notes


def test_failing_samples_can_be_passed_over() -> None:
    class Breaks(Numbers):
        def encode_sample(self, sample: Any) -> Any:
            if sample.text in ("5", "6"):
                raise ValueError("no such thing")
            return sample

    for drops in (False, True):
        loader = ps.Loader(
            Breaks().build(texts(9), batch_size=3, drops=drops), on_error="quarantine"
        )
        batches = list(loader)
        assert [len(batch) for batch in batches] == [3, 3, 3]
        assert not {"5", "6"} & {text for batch in batches for text in batch}
        assert [entry["index"] for entry in loader.journal] == [5, 6]


def test_encoders_are_known_by_name_in_states() -> None:
    it = iter(Noisy().build(texts(4), batch_size=2))
    with pytest.raises(ps.StateError, match="Noisy.encode_sample"):
        iter(Numbers().build(texts(4), batch_size=2)).load_state_dict(it.state_dict())


def test_pipelines_with_encoders_can_be_pickled() -> None:
    ds = Packs().build(texts(9), batch_size=2, packing_buffer_size=4)
    assert list(pickle.loads(pickle.dumps(ds))) == list(ds)


def test_type_parameters_are_for_typing_only() -> None:
    class Typed(TaskEncoder[TextSample, TextSample, list[str], list[str]]):
        def batch(self, samples: list[TextSample]) -> list[str]:
            return [sample.text for sample in samples]

    assert list(Typed().build(texts(2), batch_size=2)) == [["0", "1"]]
    assert issubclass(TextSample, Sample)
