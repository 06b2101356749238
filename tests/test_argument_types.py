"""Arguments are checked by their annotation, before they fail deep inside."""

# pyright: reportArgumentType=false
# That is what is tested.

from __future__ import annotations

from collections.abc import Callable
from inspect import isfunction, unwrap
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

import penstock as ps
from penstock.arguments import _CHECK_BY_ANNOTATION, validate_arguments
from penstock.text.padding import Padded


def numbers() -> ps.Dataset:
    return ps.from_sequence(range(8))


WRONG: dict[str, tuple[Callable[[], Any], str]] = {
    "columns": (
        lambda: ps.read("a.jsonl", columns=5),
        "read(columns=5): give a list of names, or None",
    ),
    "array": (lambda: ps.read("a.jsonl", columns=np.array(["a"])), "give a list of names, or None"),
    "no order": (lambda: ps.read("a.jsonl", columns={"a", "b"}), "give a list of names, or None"),
    "filters": (
        lambda: ps.read("a.jsonl", where=[("x", ">", 3)]),
        "read(where=[('x', '>', 3)]): give a dict by name",
    ),
    "cache": (lambda: ps.read("a.jsonl", cache=3), "read(cache=3): give a path, or None"),
    "by place": (
        lambda: ps.from_sequence([1], b"a"),
        "from_sequence(name=b'a'): give a string, or None",
    ),
    "half a letter": (lambda: ps.from_sequence([1], name="\ud800"), "give a string, or None"),
    "truthy": (
        lambda: numbers().batch(3, drop_remainder="no"),
        "batch(drop_remainder='no'): give True or False",
    ),
    "keyword only": (lambda: numbers().map(abs, may_skip=2), "map(may_skip=2): give True or False"),
    "timeout": (
        lambda: ps.Loader(numbers(), timeout="5"),
        "Loader(timeout='5'): give a number, or None",
    ),
    "jagged": (lambda: ps.jagged(5), "jagged(fields=5): give a list of names"),
    "path": (lambda: ps.load(5), "load(path=5): give a path"),
    "write": (
        lambda: ps.write([1], "folder"),
        "write: list is not a dataset; wrap it with ps.from_sequence(...)",
    ),
    "dump": (lambda: ps.dump([1], "a.yaml"), "dump: list is not a dataset"),
    "pipe": (lambda: numbers().pipe(cast("Any", 5)), "pipe(5): give a function of the dataset"),
    "choice": (
        lambda: ps.Loader(numbers(), executor=np.array(["a", "b"])),
        "choose 'inline', 'threads'",
    ),
    "none of none": (
        lambda: ps.read("a.jsonl", where={"x": []}),
        "'x' has an empty list of values",
    ),
    "no padding": (
        lambda: ps.pad({"ids": cast("Any", None)}),
        "pad: None: a padding value is a number; a tokenizer may have none, so choose one",
    ),
    "padding of a text": (
        lambda: Padded({"ids": "0"}),
        "Padded(pad='0'): a padding value is a number",
    ),
    "padding of features": (
        lambda: numbers().pack_features({"ids": 4}, pad=[0]),
        "pack_features(pad=[0]): a padding value is a number",
    ),
    "loader to tune": (
        lambda: ps.autotune(ps.Loader(numbers())),
        "autotune: Loader is not a dataset; give the dataset that it reads",
    ),
    "features by name": (
        lambda: numbers().pack(4, features={"ids": 1}),
        "pack: features and unpacked are tuples of names",
    ),
    "dataset for its plan": (
        lambda: numbers().plan.diff(numbers()),
        "plan.diff: Dataset is no plan; give the plan of a dataset, ds.plan",
    ),
    "loader for its state": (
        lambda: numbers().plan.for_state(ps.Loader(numbers())),
        "give loader.state_dict()",
    ),
    "no states": (
        lambda: numbers().plan.for_state([]),
        "plan.for_state([]): give loader.state_dict()",
    ),
    "horizon": (
        lambda: numbers().plan.exhaustion(horizon="3"),
        "plan.exhaustion(horizon='3'): give a whole number of at least 0",
    ),
    "no axis": (lambda: ps.from_sequence(np.array(2)), "an array without an axis"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_an_argument_cannot_be_is_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.jsonl").write_text('{"x": 1}\n')
    make, words = WRONG[name]
    with pytest.raises(ps.ConfigError) as caught:
        make()
    assert words in str(caught.value)


def test_what_an_argument_can_be_is_taken(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"x": 1, "y": 2}\n')
    path = tmp_path / "a.jsonl"
    wanted = [{"x": 1}]
    columns: list[Any] = [["x"], ("x",), {"x": 0}, {"x": 0}.keys(), [np.str_("x")]]
    assert all([dict(row) for row in ps.read(path, columns=names)] == wanted for names in columns)
    assert len(list(numbers().batch(3, drop_remainder=np.bool_(True)))) == 2
    with ps.Loader(numbers(), workers=1, timeout=np.float32(30)) as loader:
        assert len(list(loader)) == 8


def test_every_annotation_that_is_known_is_that_of_an_argument() -> None:
    """One that is spelled otherwise by now would not be looked at any more."""
    things = [getattr(ps, name) for name in ps.__all__]
    methods = [
        method for kind in (ps.Dataset, ps.Loader, ps.Schedule) for method in vars(kind).values()
    ]
    functions = [unwrap(thing) for thing in (*things, *methods) if isfunction(thing)]
    hints = {str(hint) for fn in functions for hint in fn.__annotations__.values()}
    assert _CHECK_BY_ANNOTATION.keys() <= hints | {hint.removesuffix(" | None") for hint in hints}


def test_arguments_of_many_places_are_not_mistaken() -> None:
    def joined(*datasets: Any, names: list[str], deep: bool = False) -> None: ...

    joined.__annotations__ = {"names": "Sequence[str]", "deep": "bool"}
    checked = validate_arguments(joined)
    checked(1, 2, 3, names=["a"])
    with pytest.raises(ps.ConfigError, match=r"joined\(deep=0\)"):
        checked(1, 2, 3, names=["a"], deep=0)  # pyright: ignore[reportArgumentType]


def test_a_url_is_no_folder_of_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Saves went into a folder called `s3:` where the program ran, and those under ~ into one called so."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    run = iter(numbers())
    next(run)
    for write in (
        lambda: ps.save("s3://bucket/run", run),
        lambda: ps.restore("s3://bucket/run", run),
    ):
        with pytest.raises(
            ps.ConfigError, match="s3://bucket/run is not on this machine: name a local path"
        ):
            write()
    with pytest.raises(ps.ConfigError, match="is not on this machine"):
        numbers().plan.audit(range(2)).write("gs://bucket/steps.csv")
    ps.save("~/run", run)
    assert [path.name for path in tmp_path.iterdir()] == ["home"]
    assert len(numbers().plan.for_state("~/run").at(slice(0, 8))) == 8
    with pytest.raises(ps.ConfigError, match="s3://bucket/run is not on this machine"):
        numbers().plan.for_state("s3://bucket/run")
    again = iter(numbers())
    assert ps.restore("~/run", again) == 1 and next(again) == 1
