"""Token stores, as their own tools wrote them (`stores/write.py`): equal to the same documents in memory, or refused by name."""

from __future__ import annotations

import gzip
import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from example_counts import examples, rounds
from penstock.errors import ConfigError, DataError, PenstockError
from penstock.sources import catalog, index_files, open_files
from penstock.testing import assert_resumes, assert_source

STORES = Path(__file__).parent / "stores"
EOS = 0
DOCUMENTS: list[list[int]] = json.loads((STORES / "documents.json").read_bytes())
Options = dict[str, Any]

# What is read, how it is asked for, and the type of its ids.
TOOLS: dict[str, tuple[str, Options, str]] = {
    "megatron": ("megatron-short.bin", {}, "uint16"),
    "megatron, sequences": ("megatron-wide.bin", {}, "int32"),
    "megatron, modes": ("megatron-modes.bin", {}, "int32"),
    "megatron, by EOS": ("megatron-wide.bin", {"eos": EOS}, "int32"),
    "megatron of datatrove": ("datatrove-megatron-2.bin", {}, "uint16"),
    "megatron of datatrove, wide": ("datatrove-megatron-4.bin", {}, "int32"),
    "datatrove": ("datatrove-2.ds", {}, "uint16"),
    "datatrove, wide": ("datatrove-4.ds", {}, "uint32"),
    "datatrove, typed": ("datatrove-4.ds", {"dtype": "int32"}, "int32"),
    "olmo": ("olmo.npy", {"dtype": "uint32"}, "uint32"),
    "levanter": ("levanter", {}, "int32"),
    "levanter, sharded": ("levanter-sharded", {}, "int32"),
    "olmo, by EOS": ("olmo.npy", {"dtype": "uint32", "eos": EOS}, "uint32"),
}


FILES = [tool for tool in TOOLS if not tool.startswith("levanter")]


def flat(documents: list[list[int]]) -> list[int]:
    return [token for ids in documents for token in ids]


def in_memory(documents: list[list[int]], dtype: str) -> ps.Dataset:
    return ps.from_tokens(
        np.asarray(flat(documents), dtype), np.cumsum([0, *map(len, documents)]), name="docs"
    )


@pytest.fixture
def stores(tmp_path: Path) -> Path:
    """The stores, where indexes may be written."""
    return Path(shutil.copytree(STORES, tmp_path / "stores"))


def assert_equal(read: Callable[[], ps.Dataset], memory: ps.Dataset) -> None:
    """Under length, index, shuffle and packing, and resumed at every position, the two are one."""
    there, here = read(), memory
    assert len(there) == len(here)
    for got, want in zip(there, here, strict=True):
        assert got.dtype == want.dtype and got.tolist() == want.tolist()
    assert [x.tolist() for x in there[[len(here) - 1, 0]]] == [
        x.tolist() for x in here[[len(here) - 1, 0]]
    ]
    for rows in (
        lambda ds: ds.shuffle(seed=3).pack(7),
        lambda ds: ds.repeat(2).pack(16, method="best_fit"),
    ):
        packed = rows(read())
        assert len(packed) == len(rows(memory))  # planned: the lengths are known
        for got, want in zip(packed, rows(memory), strict=True):
            assert {name: each.tolist() for name, each in got.items()} == {
                n: e.tolist() for n, e in want.items()
            }
    assert_resumes(lambda: ps.Loader(read().shuffle(seed=3).pack(7)), at_most=rounds(2, 8))


@pytest.mark.parametrize("tool", TOOLS)
def test_stores_of_their_own_tools(tool: str, stores: Path) -> None:
    name, options, dtype = TOOLS[tool]
    if tool not in FILES:
        pytest.importorskip("tensorstore")
    source = open_files(stores / name, **options)
    assert_source(source, len)
    assert source.digest() == open_files(stores / name, **options).digest()
    assert pickle.loads(pickle.dumps(source)).read(np.array([3]))[0].tolist() == DOCUMENTS[3]
    assert_equal(
        lambda: ps.read(stores / name, name="docs", **options), in_memory(DOCUMENTS, dtype)
    )


def test_documents_are_views_of_the_mapped_file(stores: Path) -> None:
    source = open_files(stores / "megatron-wide.bin")
    first, again = (source.read(np.array([5]))[0] for _ in range(2))
    assert np.shares_memory(first, again) and not first.flags.writeable and not first.flags.owndata


def test_where_documents_end_is_found_once(stores: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, scans = stores / "olmo.npy", list[Path]()
    from penstock.sources.tokens import forms

    real = forms._find_eos_ends
    monkeypatch.setattr(
        forms, "_find_eos_ends", lambda path, *rest: scans.append(path) or real(path, *rest)
    )
    for _ in range(3):
        assert len(open_files(path, dtype="uint32", eos=EOS)) == len(DOCUMENTS)
    assert scans == [path] and (stores / ".olmo.npy.penstock-documents-uint32-0").exists()
    with pytest.warns(
        UserWarning, match=r"olmo.npy: eos=40247 makes 2 documents, but olmo.csv.gz lists 10"
    ):
        assert (
            len(open_files(path, dtype="uint32", eos=DOCUMENTS[0][0])) == 2
        )  # another id has ends of its own
    assert index_files([path], rebuild=True, dtype="uint32", eos=EOS) == {path: len(DOCUMENTS)}
    assert scans == [path] * 3


def test_ends_of_a_rewritten_index_are_found_again(stores: Path) -> None:
    open_files(stores / "megatron-short.bin")
    index, kept = stores / "megatron-short.idx", stores / ".megatron-short.idx.penstock-documents"
    index.write_bytes(index.read_bytes())
    before = kept.stat().st_mtime_ns
    assert len(open_files(stores / "megatron-short.bin")) == len(DOCUMENTS)
    assert kept.stat().st_mtime_ns > before


def test_indexes_go_to_the_cache(stores: Path, tmp_path: Path) -> None:
    ds = ps.read(stores / "megatron-short.bin", cache=tmp_path / "cache")
    assert len(ds) == len(DOCUMENTS) and not list(stores.glob(".*"))
    assert list((tmp_path / "cache").rglob(".megatron-short.idx.penstock-documents"))


def test_many_files(tmp_path: Path) -> None:
    parts = [DOCUMENTS[i % 10 : i % 10 + 1 + i % 3] for i in range(catalog.MIN_CATALOG_FILES + 3)]
    for number, part in enumerate(parts):
        np.concatenate([np.asarray(ids, np.uint16) for ids in part]).tofile(
            tmp_path / f"{number:03d}.bin"
        )
    every = [ids for part in parts for ids in part]
    for _ in range(2):
        ds = ps.read(tmp_path, dtype="uint16", eos=EOS)
        assert [x.tolist() for x in ds] == every and ds.pack(8)[3]["tokens"].size == 8
    whole = ps.read(tmp_path, dtype="uint16")  # another reading has a catalog of its own
    assert len(whole) == len(parts)
    assert_windows(whole, every, 6)


@examples(60)
@given(
    documents=st.lists(st.lists(st.integers(1, 9), max_size=6), max_size=12),
    ended=st.booleans(),
    dtype=st.sampled_from(["uint16", "int32", "uint8", "uint64"]),
    npy=st.booleans(),
    chunk=st.integers(8, 40),
)
def test_ends_by_an_id_are_those_of_a_plain_loop(
    documents: list[list[int]],
    ended: bool,
    dtype: Any,
    npy: bool,
    chunk: int,
    tmp_path_factory: Any,
) -> None:
    want = [[*ids, EOS] for ids in documents]
    if want and not ended:
        want[-1].pop()
        want = want if want[-1] else want[:-1]
    joined = np.asarray(flat(want), dtype)
    path = tmp_path_factory.mktemp("ids") / ("x.npy" if npy else "x.bin")
    np.save(path, joined) if npy else joined.tofile(path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("penstock.sources.tokens.forms._SCAN_BYTES", chunk)
        source = open_files(path, dtype=None if npy else dtype, eos=np.int64(EOS))  # pyright: ignore[reportArgumentType]
    assert [x.tolist() for x in source.read(np.arange(len(source)))] == want
    lengths = source.lengths()
    assert lengths is not None and lengths[:].tolist() == [len(ids) for ids in want]
    whole = open_files(path, dtype=dtype)
    assert [x.tolist() for x in whole.read(np.arange(1))] == [joined.tolist()]
    length = 1 + chunk % 5
    assert_windows(ps.read(path, dtype=dtype, eos=EOS), want, length)


def assert_windows(store: ps.Dataset, documents: list[list[int]], length: int) -> None:
    ds, tokens = ps.windows(store, length), flat(documents)
    want = [
        tokens[i * length : (i + 1) * length + 1]
        for i in range(max(0, (len(tokens) - 1) // length))
    ]
    assert [window.tolist() for window in ds] == want
    assert sorted(window.tolist() for window in ds.shuffle(seed=1)) == sorted(want)


@examples(40)
@given(
    parts=st.lists(
        st.lists(st.lists(st.integers(0, 9), max_size=5), max_size=4), min_size=1, max_size=5
    ),
    length=st.integers(1, 12),
)
def test_windows_over_many_files(
    parts: list[list[list[int]]], length: int, tmp_path_factory: Any
) -> None:
    folder = tmp_path_factory.mktemp("parts")
    for number, part in enumerate(parts):
        np.save(folder / f"{number}.npy", np.asarray(flat(part), np.uint16))
    assert_windows(ps.read(folder), [ids for part in parts for ids in part], length)
    assert_windows(
        in_memory([ids for part in parts for ids in part], "uint16"),
        [ids for part in parts for ids in part],
        length,
    )


def test_windows_are_a_source_like_any(stores: Path) -> None:
    def windows() -> ps.Dataset:
        return ps.windows(ps.read(stores / "megatron-short.bin", name="books"), 8)

    assert_source(windows().tree.source, len)  # pyright: ignore[reportAttributeAccessIssue]
    one = ps.windows(ps.read(stores / "megatron-short.bin", name="books"), 8, "uint16")
    first, again = one[1], one[1]
    assert np.shares_memory(first, again) and not first.flags.owndata
    assert windows()[1].dtype == np.int32 and windows()[1].tolist() == first.tolist()
    batches = windows().shuffle(seed=5).batch(3)
    assert batches.plan.at(1)[0].source == "books" and batches.plan.find("books", 4)
    assert_resumes(lambda: ps.Loader(windows().shuffle(seed=5).batch(3)))
    mixed = ps.mix({"a": windows(), "b": windows()}, {"a": 1, "b": 2}, unit="tokens")
    assert mixed.plan.counts(90, unit="tokens") == {"a": 270, "b": 540}
    state = ps.Loader(windows()).state_dict()
    with pytest.raises(ps.StateError, match="length"):
        ps.Loader(
            ps.windows(ps.read(stores / "megatron-short.bin", name="books"), 9)
        ).load_state_dict(state)


def test_mixture_files_name_stores(stores: Path, tmp_path: Path) -> None:
    docs = {
        "a": ps.read(stores / "olmo.npy", dtype="uint32", eos=EOS, name="a").shuffle(),
        "b": ps.read(stores / "datatrove-4.ds", name="b").shuffle(),
    }
    mixed = ps.mix(docs, {"a": 1, "b": 2}, seed=3, unit="tokens").pack(16)
    ps.dump(mixed, tmp_path / "mixture.yaml")
    assert "eos: 0" in (tmp_path / "mixture.yaml").read_text()
    again = ps.load(tmp_path / "mixture.yaml")
    assert [again[r]["tokens"].tolist() for r in range(20)] == [
        mixed[r]["tokens"].tolist() for r in range(20)
    ]


@pytest.mark.parametrize("wrong", [ps.from_sequence([1]), ps.from_tokens([1], [0, 1]).shuffle()])
def test_windows_of_something_else(wrong: ps.Dataset, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="windows: give a token store without steps"):
        ps.windows(wrong, 4)
    (tmp_path / "x.jsonl").write_text("1\n")
    with pytest.raises(ConfigError, match="no token store: pack its documents"):
        ps.windows(ps.read(tmp_path / "x.jsonl"), 4)


# ---------------------------------------------------------------- what is refused

ODD: dict[str, tuple[str, bytes, Options, type[PenstockError], str]] = {
    "no type": (
        "x.bin",
        b"12",
        {},
        ConfigError,
        "x.bin: a file of raw tokens does not store their dtype",
    ),
    "half a token": (
        "x.bin",
        b"123",
        {"dtype": "uint16"},
        DataError,
        "x.bin: 3 bytes are no whole number of uint16",
    ),
    "a type that there is not": ("x.bin", b"12", {"dtype": "uint12"}, ConfigError, "uint12"),
    "an id that is none": ("x.bin", b"12", {"dtype": "uint16", "eos": -1}, ConfigError, "eos=-1"),
    "an id that is no number": (
        "x.bin",
        b"12",
        {"dtype": "uint16", "eos": "</s>"},
        ConfigError,
        "eos='</s>'",
    ),
    "an id that is too large": (
        "x.bin",
        b"12",
        {"dtype": "uint16", "eos": 70_000},
        ConfigError,
        "eos=70000 exceeds uint16",
    ),
    "columns": (
        "x.bin",
        b"12",
        {"dtype": "uint16", "columns": ["x"]},
        ConfigError,
        "columns= does not go with",
    ),
    "lengths": (
        "x.bin",
        b"12",
        {"dtype": "uint16", "lengths": "x"},
        ConfigError,
        "lengths= does not go with",
    ),
    "ids of lines": ("x.jsonl", b"1\n", {"eos": 1}, ConfigError, "eos= does not go with"),
    "datatrove without a type": (
        "x.ds.index",
        bytes(8),
        {},
        ConfigError,
        "x.ds: x.ds.metadata, which states",
    ),
    "a cut index": ("x.ds.index", b"123", {}, DataError, "x.ds.index: 3 bytes are no whole number"),
    "a foreign index": (
        "x.idx",
        b"TNTIDX\0\0" + bytes(40),
        {},
        DataError,
        "x.idx: it is no index of Megatron",
    ),
    "a later version": (
        "x.idx",
        b"MMIDIDX\0\0" + bytes([2]) + bytes(40),
        {},
        DataError,
        "version 2 and type 0",
    ),
    "a table of something": (
        "x.csv.gz",
        gzip.compress(b"a,b\n"),
        {"dtype": "uint16"},
        DataError,
        "x.csv.gz: it does not",
    ),
    "documents apart": (
        "x.csv.gz",
        gzip.compress(b"0,1\n2,3\n"),
        {"dtype": "uint16"},
        DataError,
        "x.csv.gz: its documents",
    ),
}


@pytest.mark.parametrize("case", ODD)
def test_what_is_refused(case: str, tmp_path: Path) -> None:
    name, body, options, error, said = ODD[case]
    (tmp_path / name).write_bytes(body)
    file = tmp_path / {"x.ds.index": "x.ds", "x.idx": "x.bin", "x.csv.gz": "x.npy"}.get(name, name)
    if not file.exists():
        file.write_bytes(bytes(8))
    with pytest.raises(error, match=said):
        open_files(file, **options)


@pytest.mark.parametrize(
    ("array", "said"),
    [
        (np.arange(4, dtype=">u2"), "big-endian"),
        (np.zeros((2, 2), np.uint16), r"of shape \(2, 2\)"),
        (np.zeros(4), "it holds float64"),
        (np.zeros(4, [("x", "u2")]), "it holds"),
        (np.asarray([{}, None]), "it holds object"),
    ],
)
def test_arrays_that_are_no_tokens(array: npt.NDArray[Any], said: str, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", array)
    with pytest.raises(DataError, match=f"x.npy: .*{said}"):
        open_files(tmp_path / "x.npy")


def test_a_type_that_the_file_does_not_have(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(4, dtype=np.uint32))
    with pytest.raises(ConfigError, match="dtype='uint16' does not fit, the file holds uint32"):
        open_files(tmp_path / "x.npy", dtype="uint16")
    np.save(tmp_path / "y.npy", np.arange(4, dtype=np.uint16))
    with pytest.raises(DataError, match="its tokens are uint16, those of .*x.npy are uint32"):
        open_files(tmp_path)


@pytest.mark.filterwarnings(
    "ignore:.*that end elsewhere:UserWarning"
)  # flipped, an .idx has other ends
@pytest.mark.parametrize("tool", FILES)
def test_cut_and_flipped_files_are_refused_or_equal(
    tool: str, stores: Path, tmp_path: Path
) -> None:
    name, options, _ = TOOLS[tool]
    stem = name.partition(".")[0]
    files = [file for file in stores.glob(f"{stem}.*") if not file.name.endswith(".metadata")]
    rng = np.random.default_rng(1)
    for file in files:
        whole, tells = file.read_bytes(), file.name != name
        cuts = [whole[:n] for n in {0, 1, len(whole) // 2, len(whole) - 1}]
        flips = list[bytes]()
        for bit in rng.integers(0, 8 * len(whole), 40).tolist() if tells else ():
            body = bytearray(whole)
            body[bit // 8] ^= 1 << bit % 8
            flips.append(bytes(body))
        for number, body in enumerate([*cuts, *flips]):
            file.write_bytes(body)
            try:
                source = open_files(
                    stores / name, cache=tmp_path / f"{file.name}-{number}", **options
                )
                found = [x.tolist() for x in source.read(np.arange(len(source)))]
            except PenstockError as error:
                assert stem in str(error)
            else:
                # Ends by an id are those of what is there. Where a file holds nothing but ends, another one that is
                # no less right cannot be told from it; no token is lost or doubled.
                assert (
                    found == DOCUMENTS
                    or (not tells and "eos" in options)
                    or flat(found) == flat(DOCUMENTS)
                )
        file.write_bytes(whole)


@pytest.mark.parametrize("tool", FILES)
def test_an_index_that_is_kept_is_not_taken_for_another(tool: str, stores: Path) -> None:
    name, options, _ = TOOLS[tool]
    ds = open_files(stores / name, **options)
    kept = min(
        stores.glob(".*penstock-documents*"), key=lambda path: name not in path.name
    )  # or of its .idx
    body, cut = kept.read_bytes(), (stores / name).read_bytes()[:-8]
    for at in range(0, len(body), 7):
        kept.write_bytes(body[:at] + bytes([body[at] ^ 4]) + body[at + 1 :])
        with pytest.raises(DataError, match=name.partition(".")[0]):
            open_files(stores / name, **options).lengths()
    kept.write_bytes(body)
    (stores / name).write_bytes(cut)
    with pytest.raises(DataError, match="the file changed while it was in use"):
        ds.read(np.array([0]))
    with pytest.raises(DataError, match=name.partition(".")[0]):
        open_files(stores / name, **options).lengths()


@pytest.mark.slow
@pytest.mark.parametrize("tool", ["levanter", "levanter-sharded"])
def test_caches_that_are_damaged_are_refused_or_equal(
    tool: str, stores: Path, tmp_path: Path
) -> None:
    pytest.importorskip("tensorstore")
    rng = np.random.default_rng(1)
    for n, file in enumerate(path for path in sorted((stores / tool).rglob("*")) if path.is_file()):
        whole = file.read_bytes()
        bodies = [b"", whole[: len(whole) // 2], whole[:-1], None]
        for bit in rng.integers(0, 8 * len(whole), 12).tolist():
            body = bytearray(whole)
            body[bit // 8] ^= 1 << bit % 8
            bodies.append(bytes(body))
        for number, body in enumerate(bodies):
            file.unlink() if body is None else file.write_bytes(body)
            try:
                source = open_files(stores / tool, cache=tmp_path / f"{n}-{number}")
                found = [x.tolist() for x in source.read(np.arange(len(source)))]
            except PenstockError as error:
                assert tool in str(error)
            else:
                # Chunks of compressed numbers have no digest: of those only how many there are is told.
                assert found == DOCUMENTS or (
                    file.parent.name == "c" and body and len(body) == len(whole)
                ), (
                    file,
                    number,
                )
            file.write_bytes(whole)


def test_caches_that_are_not_whole(stores: Path) -> None:
    pytest.importorskip("tensorstore")
    ledger = stores / "levanter-sharded/shard_ledger.json"
    said = json.loads(ledger.read_bytes())
    for change, error, text in (
        ({"is_finished": False}, ConfigError, "this cache of Levanter's is incomplete"),
        ({"total_num_rows": 7}, DataError, "do not add up to its 7 rows"),
        (
            {"finished_shards": ["../levanter"], "shard_rows": {"../levanter": 10}},
            DataError,
            "does not lie below",
        ),
        ({"shard_rows": {}}, DataError, "no ledger of Levanter's, or is damaged"),
    ):
        ledger.write_text(json.dumps({**said, **change}))
        with pytest.raises(error, match=text):
            open_files(stores / "levanter-sharded")
    ledger.write_text(json.dumps(said))
    with pytest.raises(ConfigError, match="eos= does not go with"):
        open_files(stores / "levanter-sharded", eos=EOS)
    assert_windows(ps.read(stores / "levanter-sharded"), DOCUMENTS, 5)
    told = stores / "levanter-sharded/00001_b/input_ids/data/zarr.json"
    int32 = told.read_text()
    told.write_text(int32.replace('"data_type":"int32"', '"data_type":"uint32"'))
    with pytest.raises(
        DataError, match="00001_b: its tokens are uint32, those of .*00000_a are int32"
    ):
        open_files(stores / "levanter-sharded")
    told.write_text(int32)
    shutil.copytree(
        stores / "levanter/input_ids",
        stores / "levanter-sharded/00000_a/input_ids",
        dirs_exist_ok=True,
    )
    with pytest.raises(DataError, match="its offsets do not describe 5 rows"):
        open_files(stores / "levanter-sharded", cache=stores / "cache")


def test_datasets_of_hugging_face(tmp_path: Path) -> None:
    datasets: Any = pytest.importorskip("datasets")

    rows = {"input_ids": DOCUMENTS, "attention_mask": [[1] * len(ids) for ids in DOCUMENTS]}
    features = datasets.Features(
        {
            "input_ids": datasets.Sequence(datasets.Value("int32")),
            "attention_mask": datasets.Sequence(datasets.Value("int8")),
        }
    )
    hf = datasets.Dataset.from_dict(rows, features)
    hf.save_to_disk(tmp_path / "one", num_shards=3)
    hf.select([5, 2, 7]).save_to_disk(tmp_path / "some")
    datasets.DatasetDict({"train": hf, "test": hf.select(range(4))}).save_to_disk(tmp_path / "both")
    for ds, want in (
        (ps.read(tmp_path / "one"), DOCUMENTS),
        (ps.read(tmp_path / "some"), [DOCUMENTS[i] for i in (5, 2, 7)]),
        (ps.read(tmp_path / "both", split="train"), DOCUMENTS),
        (ps.read(tmp_path / "both", split="test"), DOCUMENTS[:4]),
    ):
        assert [row["input_ids"].tolist() for row in ds] == want
        assert all(set(row) == set(rows) for row in ds)
        packed = ds.shuffle(seed=3).pack(7, features=["input_ids"])
        memory = in_memory(want, "int32").map(lambda x: {"input_ids": x})
        assert len(packed) == -(-len(flat(want)) // 7) and len(memory) == len(ds)
        assert_windows(ds, want, 6)
    assert_resumes(lambda: ps.Loader(ps.read(tmp_path / "one").shuffle(seed=3).pack(7)), at_most=6)
    with pytest.raises(ConfigError, match="no split of this name"):
        ps.read(tmp_path / "both", split="dev")
    (file,) = (tmp_path / "some").glob("*.arrow")
    file.unlink()
    with pytest.raises(DataError, match="is missing"):
        ps.read(tmp_path / "some")


def test_a_run_resumes_over_the_same_tokens_elsewhere(stores: Path, tmp_path: Path) -> None:
    """A store that was moved is known by its rows; one that holds other tokens is refused."""
    loader = ps.Loader(ps.read(stores / "datatrove-2.ds", name="docs").shuffle(seed=1))
    next(iter(loader))
    state = loader.state_dict()
    shutil.copytree(stores, tmp_path / "moved")
    ps.Loader(
        ps.read(tmp_path / "moved/datatrove-2.ds", name="docs").shuffle(seed=1)
    ).load_state_dict(state)
    ps.Loader(
        ps.read(stores / "datatrove-megatron-2.bin", name="docs").shuffle(seed=1)
    ).load_state_dict(state)
    tokens = np.fromfile(stores / "datatrove-2.ds", np.uint16) + 1
    tokens.tofile(tmp_path / "moved/datatrove-2.ds")
    other = ps.Loader(ps.read(tmp_path / "moved/datatrove-2.ds", name="docs").shuffle(seed=1))
    with pytest.raises(ps.StateError, match="docs"):
        other.load_state_dict(state)


# ---------------------------------------------------------------- headers of 256 int32


def headed(path: Path, tokens: Any, *head: int) -> Path:
    """A file as llm.c, modded-nanogpt and NeMo Automodel write it: 256 int32, then the tokens."""
    path.write_bytes(
        np.asarray([*head, *[0] * (256 - len(head))], "<i4").tobytes() + tokens.tobytes()
    )
    return path


HEADERS: dict[str, tuple[tuple[int, ...], str]] = {
    "llm.c and modded-nanogpt": ((20240520, 1, 500), "uint16"),
    "llm.c, llama 3": ((20240801, 7, 500), "uint32"),
    "NeMo Automodel": ((278895051, 1, 500, 4), "uint32"),
    "NeMo Automodel, short": ((278895051, 1, 500, 2), "uint16"),
}


@pytest.mark.parametrize("tool", HEADERS)
def test_headers_are_no_tokens(tool: str, tmp_path: Path) -> None:
    head, dtype = HEADERS[tool]
    ids = np.arange(500, dtype=dtype) % 50
    path = headed(tmp_path / "fineweb_train_000001.bin", ids, *head)
    given: list[Options] = [{}, {"dtype": dtype}]
    for options in given:
        (whole,) = ps.read(path, **options)
        assert whole.dtype == dtype and whole.tolist() == ids.tolist()
    assert [len(each) for each in ps.read(path, eos=49)] == [50] * 10
    assert [row.tolist() for row in ps.windows(ps.read(path), 4)][:2] == [
        ids[:5].tolist(),
        ids[4:9].tolist(),
    ]
    with pytest.raises(ConfigError, match=f"dtype='int64' does not fit, the file holds {dtype}"):
        ps.read(path, dtype="int64")
    headed(tmp_path / "fineweb_train_000002.bin", ids[:7], head[0], head[1], 7, *head[3:])
    assert [len(each) for each in ps.read(tmp_path)] == [500, 7]


@pytest.mark.parametrize("tool", HEADERS)
def test_a_header_that_lies_is_refused(tool: str, tmp_path: Path) -> None:
    head, dtype = HEADERS[tool]
    ids = np.zeros(500, dtype)
    for tokens, changed in (
        (ids[:-1], head),
        (np.zeros(501, dtype), head),
        (ids, (head[0], 99, *head[2:])),
    ):
        with pytest.raises(DataError, match=r"x.bin: "):
            open_files(headed(tmp_path / "x.bin", tokens, *changed))
    whole = headed(tmp_path / "x.bin", ids, *head).read_bytes()
    for stop in (4, 600, 1022, 1024):
        (tmp_path / "x.bin").write_bytes(whole[:stop])
        with pytest.raises(DataError, match=r"x.bin: .*cut off"):
            open_files(tmp_path / "x.bin")


def test_questions_of_an_evaluation_are_no_documents(tmp_path: Path) -> None:
    path = headed(
        tmp_path / "hellaswag_val.bin", np.full(50, 65_535, np.uint16), 20240522, 1, 5, 100
    )
    with pytest.raises(DataError, match="evaluation questions"):
        open_files(path, dtype="uint16")


def test_raw_tokens_stay_raw(tmp_path: Path) -> None:
    ids = np.arange(1_000, dtype=np.uint16)
    (tmp_path / "raw.bin").write_bytes(ids.tobytes())
    assert ps.read(tmp_path / "raw.bin", dtype="uint16")[0].tolist() == ids.tolist()


@pytest.mark.parametrize("tokens", ["0,3\n3,6\n", "", "0,3\n3,9\n"])
def test_a_table_that_does_not_hold_all_tokens_is_refused(tokens: str, tmp_path: Path) -> None:
    np.arange(8, dtype=np.uint16).tofile(tmp_path / "x.npy")
    (tmp_path / "x.csv.gz").write_bytes(gzip.compress(tokens.encode()))
    with pytest.raises(DataError, match=r"x.csv.gz: .*8"):
        open_files(tmp_path / "x.npy", dtype="uint16")


def test_a_table_of_tokens_of_another_width_is_refused(tmp_path: Path) -> None:
    np.arange(8, dtype=np.uint32).tofile(tmp_path / "x.npy")
    (tmp_path / "x.csv.gz").write_bytes(gzip.compress(b"0,3\n3,8\n"))
    with pytest.raises(
        DataError, match="its documents have 8 tokens, x.npy has 16: .*dtype= is wrong"
    ):
        open_files(tmp_path / "x.npy", dtype="uint16")


@pytest.mark.parametrize("name", ["x.bin", "x.npy"])
@pytest.mark.parametrize(
    "body",
    [
        b"PK\3\4" + bytes(100),
        gzip.compress(bytes(99), mtime=0),
        b"PAR1" + bytes(40),
        b"MMIDIDX\0\0" + bytes(41),
    ],
    ids=["zip", "gzip", "parquet", "table"],
)
def test_what_holds_no_tokens_by_its_first_bytes_is_refused(
    name: str, body: bytes, tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(body + bytes(len(body) % 2))
    with pytest.raises(DataError, match=f"{name}: the file holds .*, no raw tokens"):
        open_files(tmp_path / name, dtype="uint16")


def test_an_array_of_numpy_under_another_name_is_read_as_one(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(5_000, dtype=np.uint32))
    (tmp_path / "x.npy").rename(tmp_path / "x.bin")
    (found,) = open_files(tmp_path / "x.bin").read(np.arange(1))
    assert found.tolist() == list(range(5_000))


@pytest.mark.parametrize("dtype", ["uint16", "uint32"])
def test_a_header_of_no_known_tool_is_no_tokens(dtype: Any, tmp_path: Path) -> None:
    head = np.zeros(256, np.int32)
    head[:3] = 20270101, 3, 50
    (tmp_path / "x.bin").write_bytes(head.tobytes() + np.arange(50, dtype=dtype).tobytes())
    with pytest.raises(DataError, match="x.bin: its header of 256 int32 is of no known tool"):
        open_files(tmp_path / "x.bin", dtype=dtype)
