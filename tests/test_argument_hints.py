"""Errors for a wrong name suggest the right one."""

from __future__ import annotations

import copy
import itertools
import json
import pickle
import re
from collections.abc import Callable
from inspect import signature
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import penstock as ps
import penstock.text
from penstock.arguments import join_first, suggest_names

DS: Any = ps.from_sequence(range(12), name="numbers")
PS: Any = ps
LOADER: Any = ps.Loader(DS)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (
            lambda: PS.Loader(DS, num_workers=4),
            r"Loader\(\) has no argument 'num_workers'; did you mean workers=\?",
        ),
        (lambda: PS.Loader(DS, world=4), "did you mean world_size="),
        (lambda: PS.mix(a=DS, b=DS), r"mix\(\) has no argument 'a'; write mix\(\{'a': \.\.\.\}\)"),
        (
            lambda: DS.map(str, workers=4),
            r"workers belong to the loader: ps\.Loader\(ds, workers=n\)",
        ),
        (lambda: PS.Loader(DS, prefetch_factor=4), "did you mean prefetch="),
        (lambda: PS.Loader(DS, batch_size=4), r"batch the dataset: \.batch\(n\)"),
        (lambda: PS.Loader(DS, shuffle=True), r"shuffle the dataset: \.shuffle\(\)"),
        (lambda: PS.Loader(DS, lane=4), "did you mean lanes="),
        (
            lambda: PS.Loader(DS, zzz=4),
            r"its arguments are \['dataset', 'workers', 'executor'\] and \d+ more",
        ),
        (
            lambda: DS.batch(batch_size=4),
            r"Dataset\.batch\(\) has no argument 'batch_size'; did you mean n=",
        ),
        (lambda: DS.batch(4, drop_last=True), "did you mean drop_remainder="),
        (lambda: DS.batch(4, collate_fn=list), "did you mean collate="),
        (lambda: DS.shuffle(buffer_size=4), r"\.shuffle_buffer\(n\)"),
        (lambda: DS.pack(4, eos_id=0), "did you mean eos="),
        (lambda: DS.pack(4, pad_token_id=0), "did you mean pad="),
        (lambda: DS.map(function=str), "did you mean fn="),
        (lambda: DS.plan.at(steps=4), "did you mean step="),
        (
            lambda: PS.mix({"a": DS}, probabilities={"a": 1}),
            r"mix\(\) has no argument.*did you mean weights=",
        ),
        (lambda: PS.mix({"a": DS}, stopping_strategy="restart"), "did you mean stop="),
        (lambda: PS.read("a.jsonl", fmt="jsonl"), "did you mean format="),
        (lambda: PS.Schedule([(0, {"a": 1})], interp="linear"), "did you mean interpolation="),
        (lambda: LOADER.set_weights({"a": 1}, position=3), "did you mean at="),
        (lambda: iter(DS).load_state_dict({}, strict=False), r"on_mismatch='adopt'"),
        (lambda: DS + DS, r"a\.concat\(b\)"),
        (lambda: DS * 2, r"\.repeat\(n\)"),
        (lambda: DS["text"], r"ds\['text'\].*write ds\.to_arrow\(\)\['text'\]"),
    ],
)
def test_wrong_arguments(call: Callable[[], Any], said: str) -> None:
    with pytest.raises(TypeError, match=said):
        call()


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: DS.drop(5), r"Dataset has no 'drop'; write ds\.map\(.*\), or ds\.skip\(n\)"),
        (lambda: DS.with_format("torch"), r"to='torch'"),
        (lambda: DS.tokenize, r"\.map"),
        (lambda: PS.split(DS, 0.1), r"penstock has no 'split'; write ds\.split\(share\)"),
        (
            lambda: penstock.text.Tokenizer,
            "penstock.text has no 'Tokenizer'; did you mean 'Tokenize'",
        ),
        (lambda: DS.decode, r"\.map"),
        (lambda: DS.prefetch(2), r"ps\.Loader\(ds, workers=2, prefetch=4\)"),
        (lambda: DS.state_dict(), r"iter\(ds\)"),
        (lambda: DS.bath(5), r"did you mean 'batch'"),
        (lambda: DS.qqq, r"see help\(Dataset\)"),
        (lambda: DS.cache(), r"ds\.write\('cached'\)"),
        (lambda: DS.with_epoch(3), r"epoch_length=n"),
        (lambda: PS.StreamingDataset(), r"ps\.read\(paths\)"),
        (lambda: PS.Tokenize, r"from penstock\.text import Tokenize"),
        (lambda: LOADER.set_epoch(3), "next pass"),
        (lambda: LOADER.set_weight, "did you mean 'set_weights'"),
        (lambda: DS.plan.locate, "Plan has no 'locate'"),
        (
            lambda: PS.from_list([1]),
            r"penstock has no 'from_list'; write ps\.from_sequence\(\.\.\.\)",
        ),
        (lambda: PS.DataLoader(DS), r"ps\.Loader"),
        (lambda: PS.from_sequense([1]), "did you mean 'from_sequence'"),
        (lambda: PS.qqq, r"see help\(penstock\)"),
    ],
)
def test_wrong_names(call: Callable[[], Any], said: str) -> None:
    with pytest.raises(AttributeError, match=said):
        call()


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (
            lambda: DS.pack(4, method="bestfit"),
            r"pack\(method='bestfit'\): choose .*; did you mean 'best_fit'",
        ),
        (
            lambda: DS.pack(4, method="best_fit", long="drop"),
            r"pack\(long='drop'\): choose 'split', 'error' or 'truncate'",
        ),
        (
            lambda: PS.mix({"a": DS}, stop="first_exhaust"),
            r"mix\(stop='first_exhaust'\): choose 'restart', .*did you mean 'first_exhausted'",
        ),
        (
            lambda: PS.mix({"a": DS}, stop="all_exhausted_without_replacement"),
            r"write stop='all_exhausted', which gives every sample exactly once",
        ),
        (lambda: PS.mix({"a": DS, "b": DS}, {"a": 1}), r"'b' is missing; give each a weight, 0"),
        (lambda: DS.shard(2, 1), r"shard\(index=2, count=1\): give the index first"),
        (lambda: PS.mix({"a": DS}, unit="token"), r"mix\(unit='token'\): .*did you mean 'tokens'"),
        (lambda: PS.Loader(DS, executor="thread"), "did you mean 'threads'"),
        (lambda: PS.Loader(DS, remainder="dorp"), "did you mean 'drop'"),
        (lambda: PS.Loader(DS, on_error="skip"), r"may_skip.*choose 'raise' or 'quarantine'"),
        (lambda: LOADER.load_state_dict({}, on_mismatch="adpot"), "did you mean 'adopt'"),
        (lambda: iter(DS).load_state_dict({}, on_mismatch="adpot"), "did you mean 'adopt'"),
        (lambda: PS.Schedule([(0, {"a": 1})], unit="step"), "did you mean 'steps'"),
        (lambda: PS.Schedule([(0, {"a": 1})], "lineer"), "did you mean 'linear'"),
        (lambda: DS.plan.counts(3, unit="token"), "did you mean 'tokens'"),
        (
            lambda: PS.mix([DS, DS], [0.3, 0.7]),
            r"ps\.mix\({'a': \.\.\., 'b': \.\.\.}, {'a': 0\.3, 'b': 0\.7}\)",
        ),
        (
            lambda: PS.mix({"code": DS, "text": DS}, {"code": 1, "txt": 1}),
            r"'txt' is unknown; did you mean 'text'",
        ),
    ],
)
def test_wrong_choices(call: Callable[[], Any], said: str) -> None:
    with pytest.raises(ps.ConfigError, match=said):
        call()


def test_a_position_before_the_plan() -> None:
    for ds, total in ((DS, "a plan of 12"), (DS.repeat(), "an endless plan")):
        with pytest.raises(IndexError, match=f"position -1 of {total}: positions count from 0"):
            ds.plan.counts(-1)


def test_lists_of_names_are_short() -> None:
    many = {f"source-{i:02}": DS for i in range(60)}
    weights = {name: 1.0 for name in many if name != "source-07"}
    with pytest.raises(ps.ConfigError) as caught:
        ps.mix(many, {**weights, "sauce-07": 1.0})
    assert "'source-07' is missing" in str(caught.value) and "did you mean" in str(caught.value)
    for call in (
        lambda: ps.mix(many, {"a": 1}),
        lambda: ps.mix(many).plan.find("a", 1),
        lambda: ps.mix(many, max_epochs={"a": 1}),
    ):
        with pytest.raises(ps.ConfigError) as caught:
            call()
        assert str(caught.value).count("source-") <= 4 and " more" in str(caught.value), (
            caught.value
        )


def test_what_python_and_others_look_for_is_not_answered() -> None:
    assert (
        not hasattr(DS, "__array__")
        and not hasattr(DS, "_ipython_display_")
        and not hasattr(DS, "qqq")
    )
    assert hasattr(DS, "__getitems__")
    again = pickle.loads(pickle.dumps(DS))
    assert list(again) == list(copy.copy(DS)) == list(copy.deepcopy(DS)) == list(range(12))


def test_an_error_inside_a_property_stays_what_it_is() -> None:
    class Odd(list[int]):
        def __len__(self) -> int:
            raise AttributeError("of its own")

    with pytest.raises(AttributeError, match="of its own"):
        _ = ps.from_sequence(Odd()).plan


def test_signatures_stay() -> None:
    assert list(signature(ps.Loader).parameters)[:3] == ["dataset", "workers", "executor"]
    assert list(signature(ps.Dataset.batch).parameters) == [
        "self",
        "n",
        "drop_remainder",
        "collate",
        "global_batch_size",
    ]
    assert pickle.loads(pickle.dumps(ps.mix)) is ps.mix


def test_few_and_near() -> None:
    assert (
        join_first(["a", "b"]) == "['a', 'b']"
        and join_first("abcdef") == "['a', 'b', 'c'] and 3 more"
    )
    assert (
        suggest_names("wieght", ["weight", "path"]) == "; did you mean 'weight'?"
        and suggest_names("x", ["weight"]) == ""
    )


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: PS.Dataset([1, 2]), r"Dataset: list is not a dataset; wrap it with"),
        (lambda: PS.Loader(LOADER), "Loader is not a dataset; give the dataset that it reads"),
        (lambda: PS.Loader("mixture.yaml"), r"read the file: ps\.load\('mixture\.yaml'\)"),
        (
            lambda: PS.interleave({"a": DS}),
            r"give its values, interleave\(\*datasets\.values\(\)\)",
        ),
        (lambda: PS.zip({"a": DS}), r"a mapping of datasets is no dataset.*ps\.mix\(datasets\)"),
        (lambda: DS.concat({"a": DS}), r"concat\(\*datasets\.values\(\)\)"),
        (lambda: DS.pack(256, long="cut"), r"pack\(long='cut'\): choose 'split', 'error' or"),
        (lambda: PS.from_tokens([1.0, 2.0], [0, 2]), r"of type float64.*astype\(np\.int32\)"),
        (lambda: PS.from_tokens([True, False], [0, 2]), "of type bool"),
        (
            lambda: DS.plan.counts(5, step=5),
            r"plan\.counts: give either a position or a step",
        ),
        (lambda: PS.write(DS.filter(bool), "unwritten"), r"write_rows\(ds, folder\)"),
    ],
)
def test_wrong_objects_and_pairs_have_a_remedy(call: Callable[[], Any], said: str) -> None:
    with pytest.raises(ps.PenstockError, match=said):
        call()


# ---------------------------------------------------------------- each hint works

PROSE = {"set_epoch"}
HINTS: dict[str, dict[str, str]] = json.loads(
    (Path(ps.__file__).parent / "argument_hints.json").read_bytes()
)["names"]


def make_rows() -> list[dict[str, Any]]:
    return [
        {"id": i, "text": f"a {i}", "year": 1_997 + i, "label": "yes" if i % 2 else "no"}
        for i in range(8)
    ]


@pytest.mark.parametrize("name", sorted(HINTS["Dataset"].keys() - PROSE))
def test_each_line_that_replaces_a_method_runs(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(
        AttributeError, match=re.escape(f"Dataset has no {name!r}; write ")
    ) as caught:
        getattr(DS, name)
    hint = str(caught.value).partition("; write ")[2]
    if "to_jax" in name:
        pytest.importorskip("jax")
    if "torch" in hint:
        pytest.importorskip("torch")
    if "pandas" in hint:
        pytest.importorskip("pandas")
    monkeypatch.chdir(tmp_path)
    rows = make_rows()
    ds = ps.from_sequence(rows)
    (paths,) = ds.write("rows.jsonl")
    state = iter(ds).state_dict()
    names: dict[str, Any] = {
        "ps": ps,
        "np": np,
        "pa": pa,
        "ds": ds,
        "other": ps.from_sequence(rows),
        "n": 2,
        "paths": paths,
        "table": pa.Table.from_pylist(rows),
        "state": state,
        "fn": lambda value, *more: value,
        "factory": lambda: iter(rows),
        "print": lambda row: None,
    }
    for line in hint.split(", or "):
        if "push_to_hub" in line:
            line = line.replace(".push_to_hub('user/name')", "")
            pytest.importorskip("datasets")
        if " = " in line or line.startswith("for "):
            exec(line, names)
            assert names["ds"].head(2), line
            continue
        value = eval(line, names)
        if isinstance(value, ps.Dataset):
            assert value.head(2), line
        if isinstance(value, ps.Loader):
            next(iter(value))
            value.close()


PROSE_OF_LOADERS = {"set_epoch", "reset", "shutdown", "save", "restore"}


@pytest.mark.parametrize("name", sorted(HINTS["Loader"].keys() - PROSE_OF_LOADERS))
def test_each_line_that_replaces_a_name_of_a_loader_runs(name: str, tmp_path: Path) -> None:
    with pytest.raises(AttributeError, match=f"Loader has no '{name}'; write ") as caught:
        getattr(LOADER, name)
    ds = ps.from_sequence(make_rows())
    names: dict[str, Any] = {"ps": ps, "ds": ds, "n": 2, "loader": ps.Loader(ds)}
    names |= {"fn": lambda rows: rows, "itertools": itertools, "path": tmp_path}
    for line in str(caught.value).partition("; write ")[2].split(", or "):
        if "torch" in line:
            pytest.importorskip("torch")
            names["ds"] = ps.from_sequence(np.arange(8))
        value = eval(line, names)
        assert next(iter(value)) is not None if isinstance(value, ps.Loader) else value is not None


def replace(name: str, rows: list[dict[str, Any]], **others: Any) -> Any:
    """Run the first line that replaces a method of a dataset, on these rows."""
    line = HINTS["Dataset"][name].split(", or ")[0]
    names = {"ps": ps, "np": np, "pa": pa, "ds": ps.from_sequence(rows, "rows"), **others}
    value = eval(line, names)
    return value.limit(9).to_list() if isinstance(value, ps.Dataset) else value


def test_lines_give_the_data_that_a_user_of_the_name_expects() -> None:
    pandas = pytest.importorskip("pandas")
    left = [{"id": 3, "text": "a", "year": 0}, {"id": 1, "text": None, "year": 5}]
    left.append({"id": 2, "text": "", "year": 5})
    right = ps.from_sequence([{"id": number, "text": f"{number}"} for number in (1, 2, 4)], "right")
    for name in ("join", "merge"):
        pairs = replace(name, left, other=right)
        assert [(row["id"], row["text_y"]) for row in pairs] == [(1, "1"), (2, "2")]
    assert replace("hstack", left, other=ps.from_sequence([{"x": 1}] * 3))[0] == left[0] | {"x": 1}
    for name in ("drop", "pop", "remove_columns"):
        assert replace(name, left)[0] == {"id": 3, "year": 0}
    for name in ("dropna", "drop_nulls"):
        assert [row["id"] for row in replace(name, left)] == [3, 2]
    for name in ("fillna", "fill_null"):
        assert [row["text"] for row in replace(name, left)] == ["a", "", ""]
    renamed = [{"text": text} for text in ("a", "aa", "c")]
    assert [row["text"] for row in replace("replace", renamed)] == ["b", "aa", "c"]
    assert replace("nunique", left) == replace("n_unique", left) == 2
    frame = pandas.DataFrame(left * 2)
    for name in ("is_duplicated", "duplicated"):
        expected = frame.duplicated("text", keep=False if name == "is_duplicated" else "first")
        assert list(replace(name, left * 2)) == list(expected)
    assert replace("flatten", [{"x": 1, "meta": {"y": 2}}])[0]["y"] == 2
    assert len(replace("from_tensors", left)) == 1
    assert replace("enumerate", left)[1] == (1, left[1])
    assert replace("with_row_index", left)[1] == {"index": 1, **left[1]}
    assert replace("set_index", left)[0] == left[0]
    mixed = replace("interleave_datasets", left, other=right)
    assert len(mixed) < 9  # it ends with the first of them
    with pytest.raises(TypeError, match="at= counts samples of the mixture"):
        LOADER.set_weights({"a": 1}, step=3)


def test_the_step_of_a_run(tmp_path: Path) -> None:
    """Items count since the loader was opened, the step counts since the run began."""
    lines = HINTS["Loader"]["step"].split(", or ")
    assert HINTS["Loader"]["global_step"] == HINTS["Loader"]["step"]
    for run in range(1, 4):
        with ps.Loader(DS.repeat().batch(2)) as loader:
            base = ps.restore(tmp_path, loader) or 0
            for _ in itertools.islice(loader, 5):
                pass
            names = {"loader": loader, "path": None}
            names["ps"] = SimpleNamespace(restore=lambda *_, base=base: base)
            assert [eval(line, names) for line in lines] == [5 * run] * 2
            assert loader.stats()["items"] == 5
            assert ps.save(tmp_path, loader) == 5 * run


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: DS["text"], r"ds\.to_arrow\(\)\['text'\]"),
        (lambda: DS[["text", "year"]], r"for columns write \.map"),
        (lambda: DS.select(["text"]), r"for columns write \.map"),
        (lambda: DS.map(str, batched=True), r"\.map\(fn, batched=1_000\)"),
        (lambda: DS.map(str, batched=True, batch_size=10), "did you mean batched="),
        (lambda: DS.map(str, num_proc=4), r"ps\.Loader\(ds, workers=n\)"),
        (lambda: DS.map(str, remove_columns=["a"]), r"return what remains: \.map\(lambda row"),
        (
            lambda: DS.map(str, with_indices=True),
            r"\.map_with_index\(lambda index, row: fn\(row, index\)\)",
        ),
        (lambda: DS.filter(str, input_columns="text"), r"\.filter\(lambda row"),
        (lambda: DS.shuffle(generator=1), r"\.shuffle\(seed=1\)"),
        (lambda: DS.shuffle(random_state=1), "did you mean seed="),
        (lambda: DS.split(test_size=0.1), r"ds\.split\(0\.1\)"),
        (lambda: DS.sample(frac=0.1), r"ds\.sample\(len\(ds\) // 10\)"),
        (lambda: DS.rename(columns={"a": "b"}), "did you mean names="),
        (lambda: DS.split([0.8, 0.2]), r"train, held_out = ds\.split\(0\.2\)"),
        (lambda: DS.split(0.8, 0.2), r"train, held_out = ds\.split\(0\.2\)"),
        (
            lambda: DS.split({"train": 0.8, "valid": 0.1, "test": 0.1}),
            r"train, others = ds\.split\(0\.2\); valid, test = others\.split\(0\.5\)",
        ),
        (lambda: DS.split(0.1, stratify="label"), r"keeps the share of each value nearly"),
        (lambda: DS.split(0.1, shuffle=True), r"shuffle afterwards: train\.shuffle\(\)"),
        (lambda: len(DS.filter(bool)), r"count with sum\(1 for _ in ds\)"),
        (lambda: DS.filter(bool)[0], r"write ds\.head\(n\)"),
        (lambda: DS.filter("year > 3"), r"as in ds\.filter\(lambda row"),
        (lambda: DS.filter(year=3), r"ds\.filter\(lambda row: row\['year'\] > 2000\)"),
        (lambda: DS.text, r"write ds\[0\]\['text'\], else see help"),
        (lambda: PS.read("x.csv", sep=";"), r"ps\.read\(pandas\.read_csv\(path, sep=';'\)\)"),
        (
            lambda: PS.read("x.csv", na_values=["NA"]),
            r"ps\.read\(pandas\.read_csv\(path, na_values=\.\.\.\)\)",
        ),
        (lambda: PS.read("x.csv", has_header=False), r"polars\.read_csv\(path, has_header=False\)"),
        (lambda: PS.read("x.csv", usecols=["a"]), "did you mean columns="),
        (lambda: PS.read("x.csv", nrows=3), r"ps\.read\(paths\)\.limit\(n\)"),
        (lambda: PS.read("x.csv", dtype={"a": str}), r"types of columns write ds\.map"),
        (lambda: DS.write("x.csv", index=False), r"ds\.to_pandas\(\)\.to_csv\(path, index=False\)"),
        (lambda: DS.describe(include="all"), r"ds\.to_pandas\(\)\.describe\(include='all'\)"),
        (lambda: PS.read({"a": [1, 2]}), r"ps\.read\(pyarrow\.table\(columns\)\)"),
        (
            lambda: DS.write("x.parquet", compression="zstd"),
            r"to_parquet\(path, compression='zstd'\)",
        ),
        (lambda: DS.to_pandas(columns=["a"]), r"choose them before: ds\.map"),
        (lambda: PS.Loader(DS, framework="torch"), "did you mean to="),
        (lambda: PS.Loader(DS, multiprocessing_context="spawn"), "executor='processes'"),
        (lambda: PS.from_iterable([1, 2]), r"ps\.from_sequence\(samples\)"),
        (lambda: PS.read_excel("x.xlsx"), r"ps\.read\(pandas\.read_excel\(path\)\)"),
        (lambda: list(DS.plan), r"plan\.at\(0\)"),
        (lambda: PS.Dataset.from_pandas, r"Dataset has no 'from_pandas'; write ps\.read\(table\)"),
        (lambda: PS.Dataset.from_list, r"ps\.from_sequence"),
        (lambda: PS.Dataset.shufle, "did you mean 'shuffle'"),
        (lambda: PS.from_pandas, r"ps\.read\(table\)"),
        (lambda: PS.concatenate_datasets, r"ps\.concat\(a, b\)"),
    ],
)
def test_habits_of_other_libraries_have_a_remedy(call: Callable[[], Any], said: str) -> None:
    with pytest.raises((TypeError, AttributeError, ps.PenstockError), match=said):
        call()


MESSY = {
    "semicolons": ('\ufeffid;text;price\n1;Grüße;1,5\n2;"a;b";\n'.encode(), r"sep=';'"),
    "tabs": (b"id\ttext\n1\ta, b\n", r"sep='\t'"),
    "latin": ("id,text\n1,Müller\n".encode("latin-1"), "encoding='latin-1'"),
    "latin header": ("id,größe\n1,2\n".encode("latin-1"), "encoding='latin-1'"),
    "UTF-16": ("id,text\n1,a\n".encode("utf-16"), "encoding='utf-16'"),
    "twice": (b"id,text,text\n1,a,b\n", ""),
}


@pytest.mark.parametrize("name", MESSY)
def test_a_messy_table_names_the_line_that_reads_it(name: str, tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    data, option = MESSY[name]
    path = tmp_path / "messy.csv"
    path.write_bytes(data)
    with pytest.raises(ps.DataError, match=r"messy\.csv.*write ps\.read\(") as caught:
        ps.read(path).head(1)
    (line,) = re.findall(r"ps\.read\(pandas\.read_csv\(.*?\)\)", str(caught.value))
    assert option in line
    first = eval(line, {"ps": ps, "pandas": pandas, "path": path}).head(1)[0]
    assert first["id"] == 1 and len(first) == len(
        re.split("[;,\t]", data.decode("latin-1").split("\n")[0])
    )


def test_names_of_files_that_pandas_reads(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("id\ttext\n1\ta\n")
    with pytest.raises(ps.ConfigError, match=r"ps\.read\(pandas\.read_csv\(path, sep='\\t'\)\)"):
        ps.read(tmp_path / "a.tsv")
    (tmp_path / "a.xlsx").write_bytes(b"PK")
    with pytest.raises(ps.ConfigError, match=r"ps\.read\(pandas\.read_excel\(path\)\)"):
        ps.read(tmp_path / "a.xlsx")


def test_torch_loads_a_dataset() -> None:
    data = pytest.importorskip("torch.utils.data")
    assert [batch.tolist() for batch in data.DataLoader(DS, batch_size=6)] == [
        list(range(6)),
        list(range(6, 12)),
    ]
