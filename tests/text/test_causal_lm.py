"""Fields of batches for trainers: against lists written by hand, against transformers' own collator and losses."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from example_counts import examples
from helpers import as_lists
from penstock.errors import ConfigError, DataError
from penstock.testing import assert_resumes
from penstock.text import TRANSFORMERS, CausalLM, Padded, document_mask, slice_rows
from penstock.text.causal_lm import FIELDS as EVERY

Row = list[int]

FIELDS: Any = tuple(field for field in EVERY if not field.endswith("_padded"))

sizes_of_documents = st.lists(st.integers(1, 9), min_size=1, max_size=12)


def documents(sizes: Sequence[int]) -> list[np.ndarray[Any, Any]]:
    """Documents of these sizes; every token is a number of its own, from 1."""
    ends = np.cumsum([0, *sizes]).tolist()
    return [np.arange(a + 1, b + 1, dtype=np.int32) for a, b in pairwise(ends)]


def packed(sizes: Sequence[int], length: int, n: int) -> dict[str, Any]:
    rows = list(ps.Loader(ps.from_sequence(documents(sizes)).pack(length, "first_fit"), lanes=1))
    return {name: np.stack([row[name] for row in rows[:n]]) for name in rows[0]}


def padded(sizes: Sequence[int], multiple: int = 1) -> dict[str, Any]:
    return Padded(0, multiple)(documents(sizes))


def pieces(batch: dict[str, Any]) -> list[list[tuple[int, int]]]:
    """The stretches of every row that have one segment id, as (id, tokens); written the slow way."""
    out = list[list[tuple[int, int]]]()
    for row in batch["segment_ids"].tolist():
        found = list[tuple[int, int]]()
        for one in row:
            if found and found[-1][0] == one:
                found[-1] = (one, found[-1][1] + 1)
            else:
                found.append((one, 1))
        out.append(found)
    return out


def oracle(batch: dict[str, Any], shift: bool, flatten: bool) -> dict[str, Any]:
    """Compute the output of `CausalLM` token by token."""
    rows: dict[str, list[Row]] = {
        "input_ids": [],
        "labels": [],
        "position_ids": [],
        "attention_mask": [],
        "seq_idx": [],
    }
    borders, longest, number = [0], 0, 0
    for tokens, row in zip(batch["tokens"].tolist(), pieces(batch), strict=True):
        labels, positions, mask, at, numbers = Row(), Row(), Row(), 0, Row()
        number = number if flatten else 0
        for segment, size in row:
            numbers += [number] * size
            number += bool(segment) or not flatten
            own = tokens[at : at + size]
            wanted = [*own[1:], -100] if shift else [-100, *own[1:]]
            labels += wanted if segment else [-100] * size
            positions += range(size) if segment else [0] * size
            mask += [int(segment > 0)] * size
            at += size
            if segment or not flatten:
                borders.append(borders[-1] + size)
                longest = max(longest, size)
        for name, value in zip(rows, (tokens, labels, positions, mask, numbers), strict=True):
            rows[name].append(value)
    if flatten:
        there = [one > 0 for row in batch["segment_ids"].tolist() for one in row]
        rows = {
            name: [
                [
                    x
                    for x, keep in zip((x for row in value for x in row), there, strict=True)
                    if keep
                ]
            ]
            for name, value in rows.items()
        }
    return {**rows, "cu_seqlens": borders, "max_seqlen": longest}


@examples(200)
@given(sizes_of_documents, st.integers(3, 12), st.booleans(), st.booleans(), st.booleans())
def test_every_field_is_what_lists_give(
    sizes: list[int], length: int, as_pack: bool, shift: bool, flat: bool
) -> None:
    batch = packed(sizes, length, 4) if as_pack else padded(sizes, length)
    made = CausalLM(FIELDS, shift=shift, flatten=flat)(batch)
    wanted = oracle(batch, shift, flat)
    assert {name: as_lists(made)[name] for name in wanted} == wanted
    assert list(made) == list(FIELDS)
    ids = batch["segment_ids"]
    assert made["segment_ids"].tolist() == ([ids[ids > 0].tolist()] if flat else ids.tolist())
    assert (
        made["cu_seqlens"].dtype == made["segment_ids"].dtype == np.int32
        and type(made["max_seqlen"]) is int
    )
    assert {made[name].dtype.name for name in FIELDS[:4]} == {"int64"}
    for name in ("cu_seq_lens_q", "cu_seq_lens_k"):
        assert np.array_equal(made[name], made["cu_seqlens"])
    assert made["max_length_q"] == made["max_length_k"] == made["max_seqlen"]
    assert np.diff(made["cu_seqlens"]).max(initial=0) == made["max_seqlen"]
    assert made["cu_seqlens"][-1] == made["input_ids"].size, (
        "the borders cover what an attention is given"
    )


@examples(60)
@given(sizes_of_documents, st.integers(3, 12), st.booleans(), st.data())
def test_a_loss_mask_takes_labels_away_and_nothing_else(
    sizes: list[int], length: int, shift: bool, data: st.DataObject
) -> None:
    batch = packed(sizes, length, 4)
    shape = batch["tokens"].shape
    mask = np.array(
        data.draw(
            st.lists(st.booleans(), min_size=shape[0] * shape[1], max_size=shape[0] * shape[1])
        )
    )
    mask = mask.reshape(shape)
    fields = ("input_ids", "labels", "position_ids")
    bare, masked = (CausalLM(fields, shift=shift)(b) for b in (batch, {**batch, "loss_mask": mask}))
    assert list(masked) == list(fields)
    learned = np.append(mask[:, 1:], np.zeros((len(mask), 1), bool), axis=1) if shift else mask
    assert np.array_equal(masked["labels"], np.where(learned, bare["labels"], -100))
    assert np.array_equal(masked["input_ids"], bare["input_ids"])


def test_labels_of_the_documents_are_taken_where_there_are_some() -> None:
    rows = [
        {"input_ids": [1, 2, 3], "labels": [-100, 2, 3]},
        {"input_ids": [4, 5], "labels": [4, -100]},
    ]
    ds = (
        ps.from_sequence(rows)
        .pack(6, features=("input_ids", "labels"), pad={"labels": -100})
        .batch(1)
    )
    [batch] = ps.Loader(ds.map(CausalLM(ignore=-1)), lanes=1)
    assert as_lists(batch) == {
        "input_ids": [[1, 2, 3, 4, 5, 0]],
        "labels": [[-1, 2, 3, -1, -100, -1]],
        "position_ids": [[0, 1, 2, 0, 1, 0]],
    }


def test_positions_stay_within_the_row_where_documents_are_split() -> None:
    ds = ps.from_sequence([np.arange(20), np.arange(4)]).pack(8).batch(3)
    [batch] = ps.Loader(ds.map(CausalLM(("position_ids",))), lanes=1)
    assert batch["position_ids"].tolist() == [[*range(8)], [*range(8)], [0, 1, 2, 3, 0, 1, 2, 3]]
    [batch] = ps.Loader(ds.map(CausalLM(("position_ids",), positions="row")), lanes=1)
    assert batch["position_ids"].tolist() == [[*range(8)]] * 3


def test_other_features_stay_and_those_of_old_names_go() -> None:
    ids = np.ones((2, 3), np.int32)
    batch = {
        "tokens": ids, "segment_ids": ids, "positions": ids, "attention_mask": ids, "weight": ids / 2,
        "vector": np.ones((2, 3, 4)), "name": ["a", "b"], "score": np.ones(2),
    }  # fmt: skip
    kept = ["weight", "vector", "name", "score", "input_ids"]
    made = CausalLM(("input_ids",))(batch)
    assert list(made) == kept and made["weight"] is batch["weight"] and made["name"] == ["a", "b"]
    flat = CausalLM(("input_ids",), flatten=True)(batch)
    assert (
        list(flat) == kept and flat["weight"].shape == (1, 6) and flat["vector"].shape == (1, 6, 4)
    )
    assert flat["score"].shape == (2,) and flat["name"] == ["a", "b"]
    assert batch["tokens"] is ids and (ids == 1).all(), "the batch that was given is not changed"


def test_a_row_without_a_batch_and_unsigned_tokens() -> None:
    row = next(
        iter(
            ps.Loader(
                ps.from_sequence([np.arange(65_530, 65_536, dtype=np.uint16)]).pack(8), lanes=1
            )
        )
    )
    made = CausalLM(dtype="int32")(row)
    assert made["labels"].tolist() == [-100, *range(65_531, 65_536), -100, -100]
    assert {value.dtype.name for value in made.values()} == {"int32"}
    assert CausalLM(("labels",), flatten=True)(row)["labels"].shape == (1, 6)


def test_documents_that_cannot_be_read_are_padding_in_the_middle_of_a_row() -> None:
    ids = np.array([[1, 1, 0, 0, 2, 2, 2, 0]], np.int32)
    made = CausalLM(FIELDS)({"tokens": np.arange(1, 9)[None], "segment_ids": ids})
    assert made["labels"].tolist() == [[-100, 2, -100, -100, -100, 6, 7, -100]]
    assert made["cu_seqlens"].tolist() == [0, 2, 4, 7, 8] and made["max_seqlen"] == 3
    flat = CausalLM(FIELDS, flatten=True)({"tokens": np.arange(1, 9)[None], "segment_ids": ids})
    assert flat["cu_seqlens"].tolist() == [0, 2, 5] and flat["position_ids"].tolist() == [
        [0, 1, 0, 1, 2]
    ]
    empty = CausalLM(FIELDS, flatten=True)({"tokens": ids, "segment_ids": ids * 0})
    assert (
        empty["input_ids"].shape == (1, 0)
        and empty["cu_seqlens"].tolist() == [0]
        and empty["max_seqlen"] == 0
    )


@examples(100)
@given(sizes_of_documents, st.sampled_from([1, 2, 4]), st.integers(1, 4))
def test_padded_and_unpadded_borders_are_those_of_the_documents(
    sizes: list[int], multiple: int, rows: int
) -> None:
    length = multiple * -(-max(sizes) // multiple) * 2
    found = [
        *ps.Loader(
            ps.from_sequence(documents(sizes)).pack(length, pad_to_multiple=multiple), lanes=1
        )
    ][:rows]
    batch = {name: np.stack([row[name] for row in found]) for name in found[0]}
    made = CausalLM(("cu_seqlens", "cu_seqlens_padded", "max_seqlen", "input_ids"))(batch)
    real, padded = np.diff(made["cu_seqlens"]), np.diff(made["cu_seqlens_padded"])
    assert (
        made["cu_seqlens_padded"][0] == 0 and made["cu_seqlens_padded"][-1] == batch["tokens"].size
    )
    assert (
        len(real) == len(padded)
        and (padded % multiple == 0).all()
        and max(padded) == made["max_seqlen"]
    )
    tokens, at = made["input_ids"].ravel(), made["cu_seqlens_padded"][:-1]
    here = [tokens[a : a + n].tolist() for a, n in zip(at.tolist(), real.tolist(), strict=True)]
    segments = [
        row["tokens"][row["segment_ids"] == i].tolist()
        for row in found
        for i in range(1, row["segment_ids"].max() + 1)
    ]
    assert (
        here == segments
        and not np.delete(
            tokens, np.concatenate([np.arange(a, a + n) for a, n in zip(at, real, strict=True)])
        ).any()
    )
    named = CausalLM(("cu_seqlens_q", "cu_seqlens_kv_padded", "max_seqlen_kv"))(batch)
    assert (
        named["cu_seqlens_q"].tolist() == made["cu_seqlens"].tolist()
        and named["max_seqlen_kv"] == made["max_seqlen"]
    )


def test_padding_that_begins_a_row_is_a_document_without_tokens() -> None:
    batch = {
        "tokens": np.arange(8).reshape(2, 4),
        "segment_ids": np.array([[1, 0, 2, 2], [0, 0, 1, 0]], np.int32),
    }
    made = CausalLM(("cu_seqlens", "cu_seqlens_padded"))(batch)
    assert made["cu_seqlens_padded"].tolist() == [0, 2, 4, 6, 8] and made[
        "cu_seqlens"
    ].tolist() == [0, 1, 3, 3, 4]


def test_settings_that_cannot_work_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"fields='labels'.*a tuple of names"):
        CausalLM("labels")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="a tuple of names"):
        CausalLM(())
    with pytest.raises(ConfigError, match="flattened rows have no padding"):
        CausalLM(("cu_seqlens_padded",), flatten=True)
    with pytest.raises(ConfigError, match=r"'lables'.*did you mean 'labels'"):
        CausalLM(("lables",))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"positions='rows'.*did you mean 'row'"):
        CausalLM(positions="rows")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"dtype='uint16'.*choose 'int64' or 'int32'"):
        CausalLM(dtype="uint16")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"ignore=1\.5"):
        CausalLM(ignore=1.5)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ([1, 2], r"not a list: map over \.pack\(length\)\.batch\(n\)"),
        ({"tokens": np.ones((2, 3), int)}, "not one with tokens"),
        ({"segment_ids": np.ones((2, 3), int), "text": "x"}, "not one with segment_ids, text"),
        (
            {"tokens": np.ones((2, 3), int), "segment_ids": np.ones(3, int)},
            "not one with tokens, segment_ids",
        ),
        (
            {"tokens": np.ones((2, 3)), "segment_ids": np.ones((2, 3), int)},
            r"'tokens' is float64\[2, 3\]",
        ),
        (
            {
                "tokens": np.ones((2, 3), int),
                "segment_ids": np.ones((2, 3), int),
                "loss_mask": np.ones(2),
            },
            r"'loss_mask' is float64\[2\], and must be a number for every token, \[2, 3\]",
        ),
    ],
)
def test_batches_of_another_form_are_refused(batch: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        CausalLM()(batch)


@pytest.mark.parametrize("name", ["input_ids", "ids", "token_ids"])
def test_the_only_packed_feature_is_the_tokens_whatever_its_name(name: str) -> None:
    docs = [{name: doc, "loss_mask": doc % 2 > 0} for doc in documents([3, 5, 4])]
    plain = [{**doc, "tokens": doc[name]} for doc in docs]
    for doc in plain:
        del doc[name]
    for build in (lambda ds: ds.pack(4).batch(2), lambda ds: ds.batch(2, collate=Padded())):
        made, wanted = ([*build(ps.from_sequence(rows)).map(CausalLM())] for rows in (docs, plain))
        assert [as_lists(batch) for batch in made] == [as_lists(batch) for batch in wanted]


def test_a_planned_column_of_files_becomes_ids_and_labels(tmp_path: Any) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    rows = [list(range(n % 5 + 1)) for n in range(20)]
    pq.write_table(pa.table({"ids": rows, "kinds": rows}), tmp_path / "t.parquet")
    ds = ps.read(tmp_path / "t.parquet", columns=["ids"], lengths="ids").pack(4)
    named = ds.rename({"ids": "input_ids"})
    assert len(ds) == len(named) == 15
    made, wanted = ([*part.batch(2).map(CausalLM())] for part in (ds, named))
    assert [as_lists(batch) for batch in made] == [as_lists(batch) for batch in wanted]
    two = ps.read(tmp_path / "t.parquet", columns=["ids", "kinds"], lengths="ids").pack(4)
    with pytest.raises(DataError, match=r'not ids, kinds.*rename\(\{"ids": "input_ids"\}\) after'):
        next(iter(two.batch(2).map(CausalLM())))
    assert len([*two.rename({"ids": "input_ids"}).batch(2).map(CausalLM())]) == 8


# ---------------------------------------------------------------- in a run


def test_it_runs_in_every_place_and_resumes() -> None:
    ds = ps.from_tokens(np.arange(1_000, dtype=np.uint16), np.arange(0, 1_001, 10)).shuffle(seed=1)
    batches = ds.pack(64).batch(4).map(CausalLM(FIELDS, shift=True))
    assert_resumes(lambda: batches, steps=4)
    here = [as_lists(batch) for batch in batches]
    with ps.Loader(batches, workers=2, executor="processes", timeout=120) as loader:
        assert [as_lists(batch) for batch in loader] == here
    ranks = [
        ps.Loader(ds.pack(64).batch(2).map(CausalLM()), rank=rank, world_size=2)
        for rank in range(2)
    ]
    rows = sorted(
        row for loader in ranks for batch in loader for row in batch["input_ids"].tolist()
    )
    assert rows == sorted(row for batch in here for row in batch["input_ids"])


def test_other_settings_are_another_pipeline() -> None:
    ds = ps.from_tokens(np.arange(1_000), np.arange(0, 1_001, 10)).pack(64).batch(4)
    loader = ps.Loader(ds.map(CausalLM()))
    next(iter(loader))
    with pytest.raises(ps.StateError, match=r"shift=False"):
        ps.Loader(ds.map(CausalLM(shift=True))).load_state_dict(loader.state_dict())


# ---------------------------------------------------------------- as transformers has it


def test_flat_batches_are_those_of_transformers_collator() -> None:
    from transformers import DataCollatorWithFlattening

    docs = documents([3, 7, 1, 5])
    theirs: Any = DataCollatorWithFlattening(return_flash_attn_kwargs=True, return_seq_idx=True)(
        [{"input_ids": doc.tolist()} for doc in docs], return_tensors="np"
    )
    fields: Any = ("input_ids", "labels", "position_ids", "seq_idx", *FIELDS[-4:])
    for batch in (Padded()(docs), packed([3, 7, 1, 5], 16, 1)):
        ours = CausalLM(fields, flatten=True)(batch)
        assert as_lists(ours) == as_lists(dict(theirs)) and ours.keys() == theirs.keys()
        assert all(
            ours[name].dtype == theirs[name].dtype
            for name in fields
            if isinstance(ours[name], np.ndarray)
        )


def test_a_model_has_one_loss_however_its_documents_are_batched() -> None:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    settings: dict[str, Any] = {
        "vocab_size": 64, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
        "max_position_embeddings": 64, "attn_implementation": "sdpa",
    }  # fmt: skip
    model: Any = LlamaForCausalLM(LlamaConfig(**settings)).eval()
    docs = documents([3, 7, 1, 5])

    def loss(batch: dict[str, Any]) -> tuple[float, int]:
        given = {name: torch.from_numpy(value) for name, value in batch.items()}
        labels = given.pop("labels")
        logits = model(
            **given, use_cache=False
        ).logits  # with a cache transformers looks for no documents
        each = torch.nn.functional.cross_entropy(
            logits[:, :-1].reshape(-1, 64), labels[:, 1:].reshape(-1), reduction="sum"
        )
        return float(each), int((labels[:, 1:] != -100).sum())

    with torch.no_grad():
        alone = [loss(CausalLM()(Padded()([doc]))) for doc in docs]
        wanted = (pytest.approx(sum(one for one, _ in alone), rel=1e-5), sum(n for _, n in alone))
        assert wanted[1] == sum(len(doc) - 1 for doc in docs)
        assert loss(CausalLM(("input_ids", "labels", "attention_mask"))(Padded()(docs))) == wanted
        assert loss(CausalLM(flatten=True)(Padded()(docs))) == wanted
        assert loss(CausalLM(flatten=True)(packed([3, 7, 1, 5], 10, 2))) == wanted


def _difference(model: Any, batch: dict[str, Any], rows: dict[str, Any]) -> float:
    """The largest difference between the logits of a document in its row and alone."""
    import torch

    given = {
        name: torch.from_numpy(value) if isinstance(value, np.ndarray) else value
        for name, value in batch.items()
    }
    with torch.no_grad():
        logits, found = model(**given).logits, 0.0
        for number, ids in enumerate(rows["segment_ids"]):
            for document in range(1, int(ids.max()) + 1):
                tokens = torch.from_numpy(rows["tokens"][number][ids == document]).long()
                alone = model(tokens[None]).logits[0]
                found = max(
                    found,
                    float((logits[number][torch.from_numpy(ids == document)] - alone).abs().max()),
                )
    return found


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_packed_rows_are_documents_alone_in_a_model_with_its_defaults(attention: str) -> None:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    settings: dict[str, Any] = {
        "vocab_size": 64, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
        "max_position_embeddings": 64, "attn_implementation": attention,
    }  # fmt: skip
    model: Any = LlamaForCausalLM(LlamaConfig(**settings)).eval()
    assert model.config.use_cache, "the default of transformers"
    rows = packed([3, 7, 1, 5], 10, 2)
    apart = CausalLM(TRANSFORMERS)(rows)
    assert apart["use_cache"] is False
    assert _difference(model, apart, rows) < 1e-5
    together = {
        "the default fields": CausalLM()(rows),
        "a mask of padding": CausalLM((*TRANSFORMERS, "attention_mask"))(rows),
        "positions of the row": CausalLM(TRANSFORMERS, positions="row")(rows),
    }
    assert {name for name, batch in together.items() if _difference(model, batch, rows) > 1e-2} == {
        *together
    }
    dense = {**CausalLM()(rows), "attention_mask": document_mask(rows["segment_ids"])}
    assert (_difference(model, dense, rows) < 1e-5) == (attention == "sdpa")


def test_lengths_of_slices_add_up_when_the_first_document_of_a_row_is_masked() -> None:
    documents = ps.from_tokens(np.arange(1, 25), np.arange(0, 25, 4), name="t").limit(6).repeat()
    fields = CausalLM(("input_ids", "segment_ids", "cu_seqlens", "cu_seqlens_padded"), shift=True)
    loader = ps.Loader(documents.pack(12, "first_fit", pad_to_multiple=4).batch(1).map(fields))
    loader.exclude([("t", 0)])
    batch = next(iter(loader))
    assert batch["cu_seqlens"].tolist() == [0, 0, 4, 8]
    slices = [slice_rows(batch, rank, 2)["slice_cu_seqlens"] for rank in range(2)]
    assert np.sum(slices, axis=0).tolist() == [0, 0, 4, 8]
