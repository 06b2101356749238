"""Transforms of rows and conversations, and sources that apply them. Values are those of EasyDeL 0.3.0."""

from __future__ import annotations

import json
import sys
from abc import ABC
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import penstock as ps
from penstock.compat.easydata import (
    AddField,
    ChatTemplateTransform,
    CombineFields,
    CompositeShardedSource,
    ConvertInputOutputToChatML,
    ConvertToChatML,
    CsvShardedSource,
    DatasetConfig,
    DropFields,
    ExpandTransform,
    ExtractField,
    FilterByField,
    FilterNonEmpty,
    FilterTransform,
    HFDatasetShardedSource,
    HuggingFaceShardedSource,
    LimitedShardedSource,
    MapField,
    MapTransform,
    MaybeApplyChatTemplate,
    ParquetShardedSource,
    Pipeline,
    PipelineConfig,
    RenameFields,
    SelectFields,
    ShardedDataSource,
    Transform,
    TransformedShardedSource,
    create_source,
    wrap_hf_dataset,
)
from penstock.testing import assert_resumes

ROW: dict[str, Any] = {"a": 1, "b": "x", "m": {"c": [{"d": 5}], "e": None}}
EMPTY: dict[str, Any] = {"a": None, "b": ""}


@pytest.mark.parametrize(
    ("transform", "of_row", "of_empty"),
    [
        (RenameFields({"a": "z"}), {"z": 1, "b": "x", "m": ROW["m"]}, {"z": None, "b": ""}),
        (SelectFields(["a", "q"]), {"a": 1}, {"a": None}),
        (DropFields(["m", "q"]), {"a": 1, "b": "x"}, EMPTY),
        (ExtractField("m.c[0].d", "o"), {**ROW, "o": 5}, {**EMPTY, "o": None}),
        (ExtractField("m.c[3].d", "o", 7), {**ROW, "o": 7}, {**EMPTY, "o": 7}),
        (CombineFields(["a", "b"], "ab"), {**ROW, "ab": "1 x"}, {**EMPTY, "ab": ""}),
        (CombineFields(["a", "b"], "n", len, drop_sources=True), {"m": ROW["m"], "n": 2}, {"n": 2}),
        (AddField("n", 3), {**ROW, "n": 3}, {**EMPTY, "n": 3}),
        (AddField("n", len), {**ROW, "n": 3}, {**EMPTY, "n": 2}),
        (FilterTransform(lambda row: row["a"]), ROW, None),
        (FilterByField("m", bool), ROW, None),
        (FilterNonEmpty(["a", "b"]), ROW, None),
        (MapField("a", str), {**ROW, "a": "1"}, {**EMPTY, "a": "None"}),
        (MapField("q", str), ROW, EMPTY),
        (MapField("a", str, "o"), {**ROW, "o": "1"}, {**EMPTY, "o": "None"}),
        (MapTransform(lambda row: {"n": len(row)}), {"n": 3}, {"n": 2}),
    ],
)
def test_a_transform_changes_a_copy(transform: Any, of_row: Any, of_empty: Any) -> None:
    row, empty = dict(ROW), dict(EMPTY)
    assert (transform(row), transform(empty)) == (of_row, of_empty)
    assert (row, empty) == (ROW, EMPTY)
    assert transform.is_filter == (of_empty is None) and not transform.is_expand


class Twice(ExpandTransform):
    def __call__(self, example: dict[str, Any], /) -> Iterator[dict[str, Any]]:
        yield example
        yield {**example, "again": True}


class Odd(Transform):
    """A filter of a user that does not say so."""

    def __call__(self, example: dict[str, Any], /) -> dict[str, Any] | None:
        return example if example["x"] % 2 else None


def test_chains() -> None:
    chain = RenameFields({"x": "y"}) >> FilterByField("y", bool) >> AddField("z", 1)
    assert chain({"x": 2}) == {"y": 2, "z": 1} and chain({"x": 0}) is None
    assert len(chain) == 3 and chain.is_filter and not chain.is_expand
    # A chain with a transform that yields rows yielded generators.
    twice: Any = AddField("z", 1) >> Twice() >> DropFields(["x"])
    assert list(twice({"x": 1})) == [{"z": 1}, {"again": True, "z": 1}] and twice.is_expand
    assert repr(chain) == (
        "ChainedTransform(RenameFields({'x': 'y'}) >> FilterByField('y', bool) >> AddField('z', 1))"
    )


class Words(ShardedDataSource[dict[str, Any]]):
    """A source of a user."""

    @property
    def shard_names(self) -> list[str]:
        return ["s0", "s1"]

    def open_shard(self, shard_name: str) -> Iterator[dict[str, Any]]:
        return ({"text": f"{shard_name}-{i}", "x": i} for i in range(5))


def texts(rows: Any) -> list[str]:
    return [row["text"] for row in rows]


def test_a_source_of_a_user_has_all_methods() -> None:
    source = Words()
    assert source.num_shards() == 2 and source.get_shard_info("s0") is None
    assert texts(source) == texts(source.iter_shards()) and len(texts(source)) == 10
    assert texts(source.iter_shards([1], start_row=3)) == ["s1-3", "s1-4"]
    assert texts(source.iter_shards(start_shard=1)) == [f"s1-{i}" for i in range(5)]
    with pytest.raises(TypeError, match="no len"):
        len(source)
    changed = (
        source.map(lambda row: {**row, "n": row["x"] * 2})
        .filter(lambda row: row["n"] > 4)
        .rename_fields({"n": "double"})
        .drop_fields(["x"])
        .select_fields(["text", "double"])
    )
    assert list(changed.open_shard("s1")) == [
        {"text": "s1-3", "double": 6},
        {"text": "s1-4", "double": 8},
    ]
    assert_resumes(lambda: changed.dataset)


def test_rows_count_after_the_transform() -> None:
    # The row counted before it, and the length ignored filters.
    source = HFDatasetShardedSource([{"x": i} for i in range(10)])
    odd, doubled = source.transform(Odd()), source.transform(Twice())
    assert [row["x"] for row in odd.open_shard_at_row("hf_dataset:0", 3)] == [7, 9]
    assert len(list(doubled.open_shard_at_row("hf_dataset:0", 3))) == 17
    assert len(source.map(dict)) == len(odd) == 10  # `Odd` does not say that it drops rows
    for dropping in (doubled, source.filter(bool)):
        with pytest.raises(TypeError):
            len(dropping)
    assert_resumes(lambda: odd.dataset)
    with pytest.raises(ps.DataError, match="MapTransform.*use FilterTransform to drop rows"):
        list(TransformedShardedSource(source, MapTransform(lambda row: None)))  # type: ignore[arg-type, return-value]


class Plain:
    """A transform without a representation of its own."""

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        return row


def test_states_name_transforms_without_addresses() -> None:
    def state(transform: Any) -> str:
        source = HFDatasetShardedSource([{"x": 1}]).transform(transform)
        return json.dumps(ps.Loader(source.dataset).state_dict())

    for transform in (Plain(), lambda row: row, Odd() >> AddField("n", len), Twice()):
        assert "0x" not in state(transform)
    assert state(RenameFields({"x": "y"})) != state(RenameFields({"x": "z"}))
    template = Template()
    first = state(ChatTemplateTransform(template))
    template.chat_template = "another"
    assert state(ChatTemplateTransform(template)) != first


def test_a_limit_counts_over_shards() -> None:
    limited = LimitedShardedSource(Words(), 7)
    assert [len(list(limited.open_shard(name))) for name in limited.shard_names] == [5, 2]
    assert texts(limited.open_shard_at_row("s1", 1)) == ["s1-1"] and len(texts(limited)) == 7
    tables = CompositeShardedSource([HFDatasetShardedSource([{"x": 1}] * 3, n) for n in "ab"])
    infos = [LimitedShardedSource(tables, 4).get_shard_info(name) for name in tables.shard_names]
    assert [info and (info.shard_id, info.num_rows) for info in infos] == [(0, 3), (1, 1)]
    assert len(LimitedShardedSource(tables, 4)) == 4 and len(LimitedShardedSource(tables, 9)) == 6
    assert list(LimitedShardedSource(Words(), -1)) == []


def test_trainers_of_easydel_accept_our_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    class Theirs(ABC):  # noqa: B024
        """The class that `wrap_hf_dataset` of EasyDeL checks."""

    protocols: Any = ModuleType("easydel.data.core.protocols")
    protocols.ShardedDataSource = Theirs
    monkeypatch.setitem(sys.modules, protocols.__name__, protocols)
    sources = [Words(), HFDatasetShardedSource([{"x": 1}]), Words().map(dict)]
    assert all(isinstance(source, Theirs) for source in sources)


def test_sources_by_settings(tmp_path: Path) -> None:
    for name in ("a.jsonl", "b.csv", "c.tsv", "d.txt"):
        (tmp_path / name).write_text(
            {"a": '{"x": 1}\n', "b": "x\n1\n", "c": "x\ty\n1\t2\n"}.get(name[0], "l\n")
        )
    ps.from_sequence([{"x": 1}]).write(tmp_path / "e.parquet")
    kinds = {
        name: type(create_source(DatasetConfig(f"{tmp_path}/{name}"))).__name__
        for name in ("a.jsonl", "b.csv", "c.tsv", "e.parquet")
    }
    assert [*kinds.values()] == [
        "JsonShardedSource",
        "CsvShardedSource",
        "CsvShardedSource",
        "ParquetShardedSource",
    ]
    assert list(CsvShardedSource(f"{tmp_path}/c.tsv", delimiter="\t")) == [{"x": 1, "y": 2}]
    lines = create_source(DatasetConfig(f"{tmp_path}/d.txt", content_field="line"))
    assert list(lines) == [{"line": "l"}]
    for name, row in (("c.tsv", {"x": 1, "y": 2}), ("d.txt", {"line": "l"})):
        config = PipelineConfig([DatasetConfig(f"{tmp_path}/{name}", content_field="line")])
        with Pipeline(config).source().build() as loader:
            assert list(loader) == [row]
    hub = create_source(DatasetConfig("some/name", split="test", dataset_split_name="en"))
    assert isinstance(hub, HuggingFaceShardedSource) and hub.shard_names == ["some/name:test"]
    info: Any = ParquetShardedSource(f"{tmp_path}/e.parquet").get_shard_info(
        f"{tmp_path}/e.parquet"
    )
    assert (info.num_rows, info.num_row_groups, info.url) == (1, 1, f"{tmp_path}/e.parquet")
    assert list(wrap_hf_dataset([{"x": 1}])) == [{"x": 1}] and isinstance(
        wrap_hf_dataset(hub), type(hub)
    )
    public = ParquetShardedSource(f"{tmp_path}/e.parquet", storage_options={"token": "cloud"})
    assert list(public) == [{"x": 1}]
    with pytest.raises(ps.ConfigError, match="storage_options.*: set AWS_ACCESS_KEY_ID$"):
        ParquetShardedSource(f"{tmp_path}/e.parquet", storage_options={"key": "x"})


# ---------------------------------------------------------------- conversations


class Template:
    """A tokenizer with a chat template."""

    chat_template = "one"

    def apply_chat_template(self, messages: Any, tools: Any, tokenize: bool, **options: Any) -> str:
        if any(message["role"] not in ("user", "assistant") for message in messages):
            raise ValueError("unknown role")
        return "".join(f"<{message['role'][0]}>{message['content']}" for message in messages)


SHAREGPT = {"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Yo"}]}
MESSAGES = {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yo"}]}


def test_other_forms_of_messages() -> None:
    assert ConvertToChatML()(SHAREGPT) == ConvertToChatML()(MESSAGES) == MESSAGES
    kept = ConvertToChatML(role_mapping={"human": "h"}, use_default_mapping=False)(SHAREGPT)
    assert [message["role"] for message in kept["messages"]] == ["h", "gpt"]
    turns = {"conversation": [{"input": "Hi", "output": "Yo"}, {"input": "Bye"}]}
    assert ConvertInputOutputToChatML()(turns) == {
        "messages": [*MESSAGES["messages"], {"role": "user", "content": "Bye"}]
    }
    assert ConvertToChatML()({"text": "t"}) == {"text": "t"}


def test_messages_become_text() -> None:
    apply: Any = ChatTemplateTransform(Template())
    assert apply({**MESSAGES, "k": 1}) == {"k": 1, "text": "<u>Hi<a>Yo"}
    assert apply({"text": "t"}) == {"text": "t"}
    maybe = MaybeApplyChatTemplate(Template(), output_field="o", drop_messages=False)
    assert maybe(MESSAGES)["o"] == "<u>Hi<a>Yo" and maybe({"text": "t"}) == {"text": "t"}
    # A conversation that the template rejects became "role: content", with a warning.
    with pytest.raises(ps.DataError, match="unknown role.*ConvertToChatML"):
        apply(SHAREGPT)
    source = HFDatasetShardedSource([SHAREGPT]).transform(ConvertToChatML())
    assert list(source.apply_chat_template(Template())) == [{"text": "<u>Hi<a>Yo"}]
