"""Metadatasets: YAML of both versions, blended, repeated, split, cut; and what is refused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import chain, islice
from pathlib import Path
from typing import Any

import pytest

import penstock as ps
from energon_folders import folder
from penstock.compat.energon import (
    DefaultTaskEncoder,
    SavableDataset,
    WorkerConfig,
    get_loader,
    get_savable_loader,
    get_train_dataset,
    get_val_dataset,
    get_val_datasets,
)

SIZES = {"a": 40, "b": 25, "c": 10}


class Texts(DefaultTaskEncoder[Any, Any, Any, Any]):
    def batch(self, samples: list[Any]) -> list[str]:
        return [sample.text for sample in samples]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Folders a, b and c with a split train, and a split val of 4 each, in tmp_path/data."""
    for name, n in SIZES.items():
        splits = {"train": n, "val": 4}
        made = {
            split: [{"txt": f"{name}{i}".encode()} for i in range(count)]
            for split, count in splits.items()
        }
        folder(tmp_path / "data" / name, made, subflavors={"of": name, "inner": True})
    return tmp_path


Write = Callable[..., Path]


@pytest.fixture
def write(data: Path) -> Write:
    def write(text: str, name: str = "meta.yaml") -> Path:
        (data / name).write_text(text)
        return data / name

    return write


def one_pass(path: Any, n: int, **options: Any) -> Counter[str]:
    dataset = get_train_dataset(path, batch_size=5, task_encoder=Texts(), **options)
    return Counter(islice(chain.from_iterable(get_loader(dataset)), n))


def shares(found: Counter[str]) -> Counter[str]:
    out = Counter[str]()
    for text, count in found.items():
        out[text[0]] += count
    return out


BLEND = """
__module__: megatron.energon
__class__: MetadatasetV2
splits:
  train:
    blend:
      - {weight: 3, path: data/a}
      - {weight: 1, path: ./data/b}
  val:
    path: data/c
"""


def test_blends_are_exact(write: Write) -> None:
    path = write(BLEND)
    for n in (36, 360, 3600):
        assert shares(one_pass(path, n)) == {"a": n * 3 // 4, "b": n // 4}
    assert one_pass(path, 160)["a7"] == 3, "an input that ran out begins anew"
    val = get_val_dataset(path, batch_size=4, task_encoder=Texts())
    assert list(get_loader(val)) == [["c0", "c1", "c2", "c3"]]


def test_the_same_as_a_mapping(data: Path) -> None:
    entries = [{"weight": 3, "path": str(data / "data/a")}, {"path": str(data / "data/b")}]
    meta = {"__class__": "MetadatasetV2", "splits": {"train": {"blend": entries}}}
    assert shares(one_pass(meta, 360)) == {"a": 270, "b": 90}


def test_version_one(write: Write) -> None:
    text = """
splits:
  train:
    datasets:
      - {path: data/a, weight: 2, subflavors: {x: 1}}
      - {path: data/b, split_part: val}
"""
    found = one_pass(write(text), 300)
    assert shares(found) == {"a": 200, "b": 100} and found["b3"] == 25
    named = write("__module__: megatron.energon\n__class__: Metadataset" + text)
    assert one_pass(named, 300) == found


def test_a_blend_once(write: Write) -> None:
    found = one_pass(write(BLEND), 10_000, repeat=False)
    assert found == {f"{name}{i}": 1 for name in "ab" for i in range(SIZES[name])}


def test_nested_blends_multiply_and_outer_subflavors_go_over_inner(write: Write) -> None:
    write(
        """
__class__: MetadatasetV2
splits:
  train:
    blend:
      - {weight: 1, path: data/a, subflavors: {who: inner, only: a}}
      - {weight: 3, path: data/b}
""",
        "inner.yaml",
    )
    path = write(
        """
__class__: MetadatasetV2
splits:
  train:
    blend:
      - {weight: 2, path: inner.yaml, subflavors: {who: outer}}
      - weight: 2
        subflavors: {more: 1}
        blend: [{path: data/c}, {path: data/c, split_part: val}]
"""
    )
    assert shares(one_pass(path, 800)) == {"a": 100, "b": 300, "c": 400}
    seen: dict[str, Any] = {}
    for sample in islice(get_loader(get_train_dataset(path, batch_size=None)), 300):
        seen[sample.text[0]] = sample.__subflavors__
    assert seen["a"] == {"of": "a", "inner": True, "who": "outer", "only": "a"}
    assert seen["b"] == {"of": "b", "inner": True, "who": "outer"}
    assert seen["c"] == {"of": "c", "inner": True, "more": 1}
    found = get_train_dataset(path, batch_size=None, subflavors={"inner": "mine"})
    assert all(sample.__subflavors__["inner"] == "mine" for sample in islice(get_loader(found), 20))


EPOCHS = """
__class__: MetadatasetV2
splits:
  train:
    blend_epochized:
      - {repetitions: 2, path: data/a}
      - {repetitions: 0.7, path: data/b}
      - {repetitions: 1.5, path: data/c}
"""


def test_repetitions_are_exact_to_the_sample(write: Write) -> None:
    path = write(EPOCHS)
    once = get_train_dataset(path, batch_size=5, task_encoder=Texts(), repeat=False)
    found = Counter(chain.from_iterable(get_loader(once)))
    assert shares(found) == {"a": 80, "b": 17, "c": 15}
    assert {found[f"a{i}"] for i in range(40)} == {2} and set(found.values()) == {1, 2}
    assert sum(found[f"c{i}"] == 2 for i in range(10)) == 5
    # They end together, and the next pass is one like it.
    drawn = list(
        islice(
            chain.from_iterable(
                get_loader(get_train_dataset(path, batch_size=5, task_encoder=Texts()))
            ),
            224,
        )
    )
    assert (
        shares(Counter(drawn[:112])) == shares(Counter(drawn[112:])) == {"a": 80, "b": 17, "c": 15}
    )
    assert shares(Counter(drawn[:56]))["b"] in (8, 9)
    assert len(once) == 23


def test_repetitions_are_exact_over_all_ranks_and_lanes(write: Write) -> None:
    # Energon rounds down on every worker: 58 samples in place of 60 over four of them.
    path, found = write(EPOCHS), Counter[str]()
    for rank in range(4):
        config = WorkerConfig(rank, 4, lanes=8)
        dataset = get_train_dataset(
            path, batch_size=1, task_encoder=Texts(), repeat=False, worker_config=config
        )
        found.update(chain.from_iterable(get_loader(dataset)))
    assert shares(found) == {"a": 80, "b": 17, "c": 15}


def test_awkward_fractions(write: Write) -> None:
    # 0.29 * 100 is 28.999... in floating point.
    text = "splits: {train: {blend_epochized: [{repetitions: 0.275, path: data/a}, {repetitions: 0.28, path: data/b}]}}"
    found = one_pass(write("__class__: MetadatasetV2\n" + text), 999, repeat=False)
    assert shares(found) == {"a": 11, "b": 7}


def test_saved_at_the_end_of_a_source_and_of_a_pass(write: Write) -> None:
    path = write(EPOCHS)

    def make() -> SavableDataset:
        return get_train_dataset(path, batch_size=1, task_encoder=Texts())

    loader = get_savable_loader(make())
    it, states, whole = iter(loader), list[Any](), list[str]()
    for _ in range(130):
        states.append(loader.save_state_rank())
        whole += next(it)
    for at in (0, 16, 79, 80, 111, 112, 113, 120):
        again = get_savable_loader(make())
        again.restore_state_rank(states[at])
        assert list(islice(chain.from_iterable(again), 5)) == whole[at : at + 5]


def test_subsets(write: Write) -> None:
    def numbers(subset: str, outer: str = "") -> list[int]:
        inner = f"{{weight: 1, path: data/a, subset: {{range: {subset}}}}}"
        entry = f"- {{weight: 1{outer}, blend: [{inner}]}}" if outer else f"- {inner}"
        path = write(f"__class__: MetadatasetV2\nsplits:\n  train:\n    blend:\n      {entry}\n")
        return sorted(int(text[1:]) for text in one_pass(path, 10_000, repeat=False))

    assert numbers("[0%, 25%]") == list(range(10)) and numbers("[90%, 100%]") == [36, 37, 38, 39]
    assert numbers("[5, 8]") == [5, 6, 7] and numbers("[38, end]") == [38, 39]
    # Half of a half: the inner one first.
    assert numbers("[0%, 50%]", ", subset: {range: [50%, 100%]}") == list(range(10, 20))
    thirds = [numbers(f"[{a}%, {b}%]") for a, b in ((0, 33), (33, 66), (66, 100))]
    assert sorted(chain(*thirds)) == list(range(40))
    for subset, said in [
        ("[0, 41]", "there are 40"),
        ("[3, 3]", "is empty"),
        ("[-1, 3]", "not a bound"),
        ("[0%, 120%]", "not a bound"),
        ("[3]", "list of two"),
        ("[a, b]", "not a bound"),
    ]:
        with pytest.raises(ps.ConfigError, match=said):
            numbers(subset)


def test_a_subset_of_several_datasets_is_relative(write: Write) -> None:
    blend = "blend_epochized: [{path: data/a}, {path: data/b}]"
    write(f"__class__: MetadatasetV2\nsplits: {{train: {{{blend}}}}}", "inner.yaml")
    for entry in (blend, "path: inner.yaml"):
        for bounds in ("[3, 5]", "[3, end]"):
            path = write(
                f"__class__: MetadatasetV2\nsplits: {{train: {{subset: {{range: {bounds}}}, {entry}}}}}"
            )
            with pytest.raises(ps.ConfigError, match="name it at each dataset"):
                one_pass(path, 10, repeat=False)
        path = write(
            f"__class__: MetadatasetV2\nsplits: {{train: {{subset: {{range: [0%, 20%]}}, {entry}}}}}"
        )
        assert shares(one_pass(path, 9999, repeat=False)) == {"a": 8, "b": 5}


@pytest.mark.parametrize("kind", ["blend", "datasets"])
def test_the_one_label_of_old_files(write: Write, kind: str) -> None:
    entries = (
        "[{path: data/a, subflavor: short}, {path: data/b, subflavor: long, subflavors: {x: 1}}]"
    )
    head = "__class__: MetadatasetV2\n" if kind == "blend" else ""
    path = write(f"{head}splits: {{train: {{{kind}: {entries}}}}}")
    loader = get_loader(get_train_dataset(path, batch_size=None, repeat=False))
    found = {sample.text[0]: sample.__subflavors__ for sample in loader}
    assert found["a"] == {"of": "a", "inner": True, "__subflavor__": "short"}
    assert found["b"] == {"of": "b", "inner": True, "__subflavor__": "long", "x": 1}


def test_parts_of_passes_in_the_order_of_the_data(write: Write) -> None:
    parts = "[{repetitions: 0.7, path: data/b}, {repetitions: 1.5, path: data/c}]"
    path = write(f"__class__: MetadatasetV2\nsplits: {{train: {{blend_epochized: {parts}}}}}")
    once = one_pass(path, 9999, repeat=False)
    plain = list(
        chain.from_iterable(
            get_loader(
                get_train_dataset(
                    path,
                    batch_size=1,
                    repeat=False,
                    task_encoder=Texts(),
                    shuffle_over_epochs_multiplier=None,
                )
            )
        )
    )
    assert len(plain) == sum(once.values())
    for name in "bc":
        mine = [int(text[1:]) for text in plain if text[0] == name]
        size = 25 if name == "b" else len(set(mine))
        assert mine == [i % size for i in range(len(mine))]


def test_subsets_count_in_repetitions(write: Write) -> None:
    # Energon leaves the subset out of the length, so such a source runs out early.
    part = "{repetitions: 2, path: data/a, subset: {range: [0, 10]}}"
    path = write(
        f"__class__: MetadatasetV2\nsplits: {{train: {{blend_epochized: [{part}, {{path: data/b}}]}}}}"
    )
    found = one_pass(path, 9999, repeat=False)
    assert shares(found) == {"a": 20, "b": 25} and found["a9"] == 2


def test_shuffling_over_several_passes_multiplies_down(write: Write) -> None:
    part = "{path: data/c, shuffle_over_epochs_multiplier: 2}"
    path = write(f"__class__: MetadatasetV2\nsplits: {{train: {{blend: [{part}]}}}}")
    dataset = get_train_dataset(
        path, batch_size=1, task_encoder=Texts(), shuffle_over_epochs_multiplier=2
    )
    drawn = list(islice(chain.from_iterable(get_loader(dataset)), 40))
    assert set(Counter(drawn).values()) == {4} and len(set(drawn[:10])) < 10


def test_leaves_of_a_validation_metadataset(write: Write, data: Path) -> None:
    path = write(
        "splits: {val: {datasets: [{path: data/a, weight: 9}, {path: data/b, subflavors: {k: v}}]}}"
    )
    found = get_val_datasets(path, batch_size=4, task_encoder=Texts())
    assert [list(get_loader(dataset)) for dataset, _ in found] == [
        [[f"{n}{i}" for i in range(4)]] for n in "ab"
    ]
    [[leaf]] = [refs for _, refs in found[1:]]
    assert (
        leaf.path == data / "data/b" and leaf.split_part == "val" and leaf.subflavors == {"k": "v"}
    )


V2 = "__class__: MetadatasetV2\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (V2 + "splits: {train: {join: [{path: data/a}]}}", "needs a joiner"),
        (
            V2 + "splits: {train: {blend: [{path: data/a, wieght: 3}]}}",
            "blend.0.: unknown key 'wieght'",
        ),
        (V2 + "splits: {train: {blend: [{path: data/a, weight: 0}]}}", "weight is 0"),
        (
            V2 + "splits: {train: {blend: [{path: data/a, repetitions: 2}]}}",
            "repetitions has no meaning",
        ),
        (
            V2 + "splits: {train: {blend_epochized: [{path: data/a, weight: 2}]}}",
            "weight has no meaning",
        ),
        (
            V2 + "splits: {train: {blend_epochized: [{path: data/a, repetitions: 0.01}]}}",
            "round to 0 samples",
        ),
        (
            V2 + "splits: {train: {blend_epochized: [{blend: [{path: data/a}]}]}}",
            "a blend is endless",
        ),
        (V2 + "splits: {train: {blend: []}}", "must be a list"),
        (V2 + "splits: {train: {}}", "one of path, blend, blend_epochized and join"),
        (V2 + "splits: {test: {path: data/a}}", "unknown split 'train'; the splits are test"),
        (
            V2 + "splits: {train: {path: data/nothing}}",
            "splits.train: .*nothing is neither a prepared dataset",
        ),
        (V2 + "splits: {train: {path: data/a, split_part: test}}", "no split 'test'"),
        (V2 + "split: {}", "unknown key 'split'"),
        ("splits: {train: {blend: [{path: data/a}]}}", "unknown key 'blend'"),
        ("__class__: MetadatasetV3\nsplits: {}", "unknown class MetadatasetV3"),
        ("[1, 2]", "must be a mapping"),
    ],
)
def test_what_a_metadataset_must_not_say(write: Write, text: str, said: str) -> None:
    with pytest.raises((ps.ConfigError, ps.DataError), match=said):
        get_train_dataset(write(text), batch_size=1)


def test_no_code_runs_from_a_metadataset(write: Write, tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    with pytest.raises(ps.DataError, match="could not determine a constructor"):
        get_train_dataset(
            write(
                f"splits: !!python/object/apply:pathlib.Path.touch [!!python/object/apply:pathlib.Path ['{mark}']]"
            ),
            batch_size=1,
        )
    (tmp_path / "evil.py").write_text(f"open({str(mark)!r}, 'w')")
    with pytest.raises(ps.ConfigError, match="unknown class"):
        get_train_dataset(write("__module__: evil\n__class__: Anything\nsplits: {}"), batch_size=1)
    assert not mark.exists()
