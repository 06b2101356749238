"""Texts to token ids: by files, objects of both packages and functions, in one call for many, with ends of their own."""

from __future__ import annotations

import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.errors import ConfigError, DataError
from penstock.testing import assert_resumes
from penstock.text import Chat, Tokenize

TEXTS = ["to be or not", "to be", "", "that is the question to be or not to be"]
WORDS = {"<unk>": 0, "to": 1, "be": 2, "or": 3, "not": 4, "<s>": 5}
IDS = [[1, 2, 3, 4], [1, 2], [], [0, 0, 0, 0, 1, 2, 3, 4, 1, 2]]


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A tokenizer of words that puts `<s>` first where it is asked for special tokens."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    made = Tokenizer(models.WordLevel(WORDS, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 5)]
    )
    return made


@pytest.fixture(scope="module")
def spelled(words: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return one tokenizer in every form."""
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    place = tmp_path_factory.mktemp("tokenizers")
    words.save(str(place / "tokenizer.json"))
    fast: Any = PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>", bos_token="<s>")
    fast.save_pretrained(str(place / "folder"))
    return {
        "file": str(place / "tokenizer.json"),
        "path": place / "tokenizer.json",
        "folder": str(place / "folder"),
        "tokenizers": words,
        "transformers": AutoTokenizer.from_pretrained(str(place / "folder")),
    }


FORMS = ("file", "path", "folder", "tokenizers", "transformers")


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_same_ids(spelled: dict[str, Any], form: str) -> None:
    tokenize = Tokenize(spelled[form])
    found = tokenize.many(TEXTS)
    assert [ids.tolist() for ids in found] == IDS and {ids.dtype.name for ids in found} == {"int32"}
    assert tokenize({"text": TEXTS[1], "id": 7}).tolist() == IDS[1]
    marked = Tokenize(spelled[form], special_tokens=True)
    assert [ids.tolist() for ids in marked.many(TEXTS)] == [[5, *ids] for ids in IDS]
    ended = Tokenize(spelled[form], bos=8, eos=9)
    assert [ids.tolist() for ids in ended.many(TEXTS)] == [[8, *ids, 9] for ids in IDS]
    assert tokenize.token("not") == 4
    with pytest.raises(ConfigError, match="has no token 'nor'"):
        tokenize.token("nor")


@pytest.mark.parametrize("form", FORMS)
def test_it_can_be_sent_to_a_worker(spelled: dict[str, Any], form: str) -> None:
    tokenize = Tokenize(spelled[form], eos=9, keep=("id",))
    tokenize({"text": "to be", "id": 1})
    sent = pickle.loads(pickle.dumps(tokenize))
    assert sent.__qualname__ == tokenize.__qualname__
    assert sent({"text": "to be", "id": 7})["tokens"].tolist() == [1, 2, 9]


def test_a_tokenizer_is_known_by_what_it_holds(spelled: dict[str, Any], tmp_path: Path) -> None:
    names = {form: Tokenize(spelled[form]).__qualname__ for form in FORMS}
    assert names["file"] == names["path"]
    other = json.loads(Path(spelled["file"]).read_text())
    other["model"]["vocab"]["whether"] = 6
    (tmp_path / "tokenizer.json").write_text(json.dumps(other))
    from tokenizers import Tokenizer

    read = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert Tokenize(str(tmp_path / "tokenizer.json")).__qualname__ != names["file"]
    assert (
        Tokenize(read).__qualname__
        != names["tokenizers"]
        == Tokenize(spelled["tokenizers"]).__qualname__
    )
    assert len({Tokenize(len_of, **given).__qualname__ for given in SETTINGS}) == len(SETTINGS)


SETTINGS: list[dict[str, Any]] = [
    {}, {"field": "body"}, {"special_tokens": True}, {"bos": 0}, {"eos": 0}, {"bos": 1}, {"keep": ("id",)},
]  # fmt: skip


def len_of(texts: list[str]) -> list[list[int]]:
    return [[len(word) for word in text.split()] for text in texts]


def test_functions_are_asked_for_many_texts_at_once() -> None:
    calls = list[int]()

    def tokenizer(texts: list[str]) -> list[np.ndarray[Any, Any]]:
        calls.append(len(texts))
        return [np.arange(len(text), dtype=np.int64) for text in texts]

    rows = ps.from_sequence([{"text": "a" * (i % 5), "id": i} for i in range(100)])
    ds = rows.map(Tokenize(tokenizer, keep=("id",)))
    made = list(ds)
    assert [len(row["tokens"]) for row in made] == [i % 5 for i in range(100)] and [
        row["id"] for row in made
    ] == [*range(100)]
    assert sum(calls) == 100 and len(calls) < 20
    with pytest.raises(ConfigError, match="has no token"):
        Tokenize(len_of).token("a")


def test_from_texts_to_batches_and_back_to_a_state() -> None:
    from penstock.text import CausalLM

    ds = ps.from_sequence([f"word number {i} and more " * (1 + i % 3) for i in range(60)]).shuffle(
        seed=2
    )
    batches = ds.map(Tokenize(len_of, eos=0)).pack(16).batch(2).map(CausalLM())
    assert_resumes(lambda: batches, steps=5)


def test_a_tokenizer_that_pads_or_cuts_is_refused_and_a_file_of_it_does_neither(
    words: Any, tmp_path: Path
) -> None:
    # The ids of a text would depend on the texts that happen to be tokenized with it.
    from tokenizers import Tokenizer

    pads = Tokenizer.from_str(words.to_str())
    pads.enable_padding(pad_id=0)
    pads.enable_truncation(3)
    with pytest.raises(ConfigError, match="pads its results"):
        Tokenize(pads)
    pads.save(str(tmp_path / "tokenizer.json"))
    cuts = Tokenizer.from_str(words.to_str())
    cuts.enable_truncation(3)
    with pytest.raises(ConfigError, match=r"cuts texts off after 3 tokens.*\.no_truncation\(\)"):
        Tokenize(cuts)
    cuts.no_truncation()
    assert [ids.tolist() for ids in Tokenize(cuts).many(TEXTS)] == IDS
    assert [ids.tolist() for ids in Tokenize(str(tmp_path / "tokenizer.json")).many(TEXTS)] == IDS


@pytest.mark.parametrize(
    ("made", "sample", "message"),
    [
        (len_of, {"body": "x"}, "the field 'text' holds no text; the sample has body"),
        (len_of, {"text": 7}, "the field 'text' holds no text; the sample has text"),
        (len_of, 7, "the sample is 7, not a text"),
        (len_of, np.arange(3), "the sample is an array, not a text.*'tokenize: none'"),
        (len_of, {"text": b"\xff"}, "'text' holds bytes that are no UTF-8"),
        (lambda texts: [], "x", "0 results for 1 texts"),
        (lambda texts: [[0.5] for _ in texts], "x", r"float64\[1\] for a text, not a list of ids"),
        (lambda texts: [[[1]] for _ in texts], "x", r"int64\[1, 1\] for a text"),
        (lambda texts: ["ids" for _ in texts], "x", "for a text, not a list of ids"),
    ],
)
def test_what_has_no_text_or_gives_no_ids_is_named(made: Any, sample: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        Tokenize(made)(sample)


def test_fields_to_keep_must_be_there() -> None:
    with pytest.raises(DataError, match="no field 'id' to keep; the sample has text"):
        Tokenize(len_of, keep=("id",))({"text": "x"})
    with pytest.raises(DataError, match="no field 'id' to keep; the sample has no fields"):
        Tokenize(len_of, keep=("id",))("x")
    with pytest.raises(ConfigError, match=r"keep='id'.*\('id',\)"):
        Tokenize(len_of, keep="id")


def test_what_is_no_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"the tokenizer file .* is missing: check the path"):
        Tokenize(str(tmp_path / "gone.json"))
    with pytest.raises(
        ConfigError, match=r"Tokenize\(7\): give a tokenizer, its path or name, or a function"
    ):
        Tokenize(7)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(ConfigError, match="cannot be opened"):
        Tokenize(str(tmp_path / "tokenizer.json"))("x")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"field": ["text"]}, r"field=\['text'\].*: give the name of one field"),
        ({"field": None}, "the name of one field"),
        ({"bos": "<s>"}, r"bos='<s>'\): give a whole number"),
        ({"eos": 1 << 40}, "does not fit into the 32 bits"),
    ],
)
def test_what_is_no_name_or_id_is_refused(given: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Tokenize(lambda texts: [[0] for _ in texts], **given)


@pytest.mark.parametrize("form", ["tokenizers", "transformers", "function"])
def test_half_a_surrogate_pair_is_an_error_of_its_sample(
    words: Any, spelled: dict[str, Any], form: str
) -> None:
    def encoded(texts: list[str]) -> list[list[int]]:
        return [[*text.encode()] for text in texts]

    tokenizer = {"tokenizers": words, "transformers": spelled["transformers"], "function": encoded}[
        form
    ]
    rows = [{"text": "to be" if number != 3 else "to \ud83d be"} for number in range(6)]
    ds = ps.from_sequence(rows).map(Tokenize(tokenizer))
    with pytest.raises(DataError, match=r"letter 3 is half a surrogate pair, '\\ud83d'"):
        ds[3]
    with ps.Loader(ds, on_error="quarantine") as loader:
        assert len(list(loader)) == 6 and [entry["index"] for entry in loader.journal] == [3]


def test_what_a_tokenizer_raises_is_an_error_of_its_sample() -> None:
    def picky(texts: list[str]) -> list[list[int]]:
        if "bad" in texts:
            raise TypeError("not this one")
        return [[1] for _ in texts]

    with pytest.raises(DataError, match="the text cannot be tokenized: not this one"):
        ps.from_sequence(["good", "bad"]).map(Tokenize(picky))[1]


def test_a_text_that_cannot_be_counted_is_named_by_file_and_row(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'{"text":"to"}\n{"text":"\\ud83d be"}\n{"text":3}\n')

    def encoded(texts: list[str]) -> list[list[int]]:
        return [[*text.encode()] for text in texts]

    with pytest.raises(DataError, match=r"a.jsonl, row 1: .*half a surrogate pair"):
        ps.read(tmp_path / "a.jsonl", lengths=Tokenize(encoded)).pack(4)[0]
    with pytest.raises(DataError, match=r"a.jsonl, row 1: .*half a surrogate pair"):
        ps.read(tmp_path / "a.jsonl").map(Tokenize(encoded))[1]
    (tmp_path / "b.jsonl").write_text('{"text":"to"}\n{"text":3}\n')
    with pytest.raises(DataError, match=r"b.jsonl, row 1: .*holds no text"):
        list(ps.Loader(ps.read(tmp_path / "b.jsonl").map(Tokenize(encoded))))
    with ps.Loader(
        ps.read(tmp_path / "b.jsonl").map(Tokenize(encoded)), on_error="quarantine"
    ) as loader:
        list(loader)
        assert "b.jsonl, row 1: " in loader.journal[0]["error"]


@pytest.mark.parametrize(
    ("template", "expected"),
    [("<s> $A", [0, 1, 1, 2]), ("$A </s>", [0, 1, 1, 2]), ("<s> $A </s>", [0, 1, 1, 2])],
)
def test_no_end_comes_twice_where_a_template_adds_it(template: str, expected: list[int]) -> None:
    tokenizers: Any = pytest.importorskip("tokenizers")
    made = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({"<s>": 0, "a": 1, "</s>": 2, "[UNK]": 3}, unk_token="[UNK]")
    )
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.post_processor = tokenizers.processors.TemplateProcessing(
        single=template, special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    both = Tokenize(made, special_tokens=True, bos=0, eos=2)
    assert both("a a").tolist() == expected and both.counts(["a a", ""]) == [4, 2]
    assert Tokenize(made, bos=0, eos=2)("a a").tolist() == expected
    assert (
        Tokenize(made, special_tokens=True, bos=3)("a")[0] == 3
    )  # another token than the template's
    assert pickle.loads(pickle.dumps(both))("a a").tolist() == expected


def set_of_config(**settings: Any) -> Callable[[Path], None]:
    """Return a function that changes settings of a folder's tokenizer."""

    def change(folder: Path) -> None:
        file = folder / "tokenizer_config.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), **settings}))

    return change


def write_other_merges(folder: Path) -> None:
    (folder / "merges.txt").write_text("#version: 0.2\nt o\n")


@pytest.mark.parametrize(
    ("form", "change"),
    [
        ("fast", set_of_config(added_tokens_decoder={"9": {"content": "to be"}})),
        ("fast", set_of_config(add_prefix_space=True)),
        ("vocabulary", set_of_config(do_lower_case=True)),
        ("vocabulary", write_other_merges),
    ],
)
def test_the_files_of_a_folder_identify_its_tokenizer(
    words: Any, form: str, change: Callable[[Path], None], tmp_path: Path
) -> None:
    if form == "fast":
        words.save(str(tmp_path / "tokenizer.json"))
    else:
        (tmp_path / "vocab.json").write_text(json.dumps({"t": 0, "o": 1, "to": 2}))
        (tmp_path / "merges.txt").write_text("#version: 0.2\n")
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "GPT2Tokenizer"}')
    before = Tokenize(tmp_path)
    copy = shutil.copytree(tmp_path, tmp_path / "copy")
    set_of_config(chat_template="{{ messages }}", model_max_length=8)(copy)
    assert Tokenize(copy).__qualname__ == before.__qualname__
    change(tmp_path)
    assert Tokenize(tmp_path).__qualname__ != before.__qualname__
    assert Tokenize(tmp_path).counted != before.counted


def test_invalid_settings_of_a_folder_are_an_error(words: Any, tmp_path: Path) -> None:
    words.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text("[1")
    with pytest.raises(ConfigError, match="tokenizer_config.json: it is no description"):
        Tokenize(tmp_path)


@pytest.mark.parametrize(
    ("step", "settings"), [(Tokenize, {}), (Chat, {"eos": ""})], ids=["Tokenize", "Chat"]
)
def test_workers_do_not_open_another_tokenizer(
    words: Any, step: Any, settings: dict[str, Any], tmp_path: Path
) -> None:
    words.save(str(tmp_path / "tokenizer.json"))
    sent = pickle.dumps(step(tmp_path / "tokenizer.json", **settings))
    copy = pickle.loads(sent)
    copy.many([])
    (tmp_path / "tokenizer.json").write_text(words.to_str())
    with pytest.raises(ConfigError, match="is another one than when the pipeline was made"):
        pickle.loads(sent).many([])


def test_the_british_name_of_the_class_still_works() -> None:
    from penstock.text import Tokenise

    assert Tokenise is Tokenize


def test_the_representation_shows_the_options(words: Any) -> None:
    assert (
        repr(Tokenize(words, bos=1, keep=("id",)))
        == "Tokenize(Tokenizer object, bos=1, keep=('id',))"
    )
    assert repr(Tokenize(len, "body")) == "Tokenize(len, field='body')"
    encode = Chat(words, "text", eos="", max_length=4, train_on="last")
    assert repr(encode) == (
        "Chat(Tokenizer object, format='text', train_on='last', max_length=4, eos='')"
    )
