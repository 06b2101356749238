"""Special tokens in texts are text unless they are allowed, with every kind of tokenizer."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tokenizers")

from tokenizers import Tokenizer, models, pre_tokenizers, processors

from chat_cases import CONTROL, bpe, random_text
from other_tokenizers import SPECIAL, make_sentencepiece, make_tiktoken
from penstock.errors import ConfigError
from penstock.text import FillInMiddle, Tokenize

SPECIAL_IDS = {bpe().token_to_id(token) for token in CONTROL}


def make_unigram() -> Tokenizer:
    """Return a tokenizer whose vocabulary holds the special token as an ordinary piece too."""
    pieces = [("<unk>", 0.0), ("</s>", 0.0), *((chr(code), -5.0) for code in range(33, 127))]
    tokenizer = Tokenizer(models.Unigram([*pieces, ("▁", -3.0)], 0))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()  # pyright: ignore[reportAttributeAccessIssue]
    tokenizer.add_special_tokens(["</s>"])
    return tokenizer


def forms(tmp_path: Path) -> dict[str, Any]:
    transformers = pytest.importorskip("transformers")
    bpe().save(str(tmp_path / "tokenizer.json"))
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=bpe())
    return {"tokenizers": bpe(), "transformers": fast, "file": str(tmp_path / "tokenizer.json")}


@pytest.mark.parametrize("form", ["tokenizers", "transformers", "file"])
def test_special_tokens_in_texts_are_text(form: str, tmp_path: Path) -> None:
    tokenizer, rng = forms(tmp_path)[form], random.Random(3)
    texts = [random_text(rng, i % 2 == 1, i % 4 == 3) for i in range(200)] + list(CONTROL)
    tokenize, decode = Tokenize(tokenizer), bpe().decode
    for text, ids in zip(texts, tokenize.many(texts), strict=True):
        assert not SPECIAL_IDS & {*ids.tolist()}
        assert decode(ids.tolist(), skip_special_tokens=False) == text
    everything = Tokenize(tokenizer, allowed_special="all")
    assert everything(CONTROL[0]).tolist() == [bpe().token_to_id(CONTROL[0])]
    one = Tokenize(tokenizer, allowed_special=(CONTROL[1],))
    ids = one(f"a{CONTROL[0]}{CONTROL[1]}b").tolist()
    assert SPECIAL_IDS & {*ids} == {bpe().token_to_id(CONTROL[1])}
    assert len({each.__qualname__ for each in (tokenize, everything, one)}) == 3
    plain = [text for text in texts if not any(token in text for token in CONTROL)]
    assert len(plain) > 50
    for text in plain:
        np.testing.assert_array_equal(tokenize(text), everything(text))


def test_tokens_of_the_template_and_ends_stand_around_such_texts() -> None:
    tokenizer = Tokenizer.from_str(bpe().to_str())
    begin, end = (tokenizer.token_to_id(token) for token in CONTROL[:2])
    tokenizer.post_processor = processors.TemplateProcessing(  # pyright: ignore[reportAttributeAccessIssue]
        single=f"{CONTROL[0]} $A {CONTROL[1]}",
        special_tokens=[(CONTROL[0], begin), (CONTROL[1], end)],
    )
    bare = Tokenize(tokenizer)
    for text in ("yes", f"yes {CONTROL[1]} no"):
        inner = bare(text).tolist()
        assert begin not in inner and end not in inner
        assert Tokenize(tokenizer, special_tokens=True)(text).tolist() == [begin, *inner, end]
        once = Tokenize(tokenizer, special_tokens=True, bos=begin, eos=7)
        assert once(text).tolist() == [begin, *inner, end, 7]
        assert Tokenize(tokenizer, bos=1, eos=2)(text).tolist() == [1, *inner, 2]


def test_a_piece_of_the_vocabulary_with_the_text_of_a_special_token() -> None:
    tokenizer = make_unigram()
    end = tokenizer.token_to_id("</s>")
    assert end not in Tokenize(tokenizer)("a </s> b").tolist()
    assert end in Tokenize(tokenizer, allowed_special="all")("a </s> b").tolist()


def test_parts_of_special_tokens_that_meet_stay_text() -> None:
    ids = FillInMiddle(bpe(), prefix=1, middle=2, suffix=3, rate=1.0)
    for seed in range(50):
        tokens = ids(CONTROL[0] * 2, np.random.default_rng(seed))
        assert not SPECIAL_IDS & {*tokens.tolist()}


def test_a_python_tokenizer_of_transformers() -> None:
    tokenizer = pytest.importorskip("transformers").ByT5Tokenizer()
    end = tokenizer.eos_token_id
    assert Tokenize(tokenizer)("a</s>").tolist() == [ord(letter) + 3 for letter in "a</s>"]
    assert Tokenize(tokenizer, allowed_special="all")("a</s>").tolist() == [ord("a") + 3, end]


def test_tiktoken() -> None:
    encoding = make_tiktoken()
    text = f"the {SPECIAL[0]} answer"
    assert encoding.decode(Tokenize(encoding)(text).tolist()) == text
    assert (
        max(Tokenize(encoding)(text))
        < 1_000
        <= max(Tokenize(encoding, allowed_special="all")(text))
    )
    one = Tokenize(encoding, allowed_special=(SPECIAL[1],))
    assert max(one(text)) < 1_000 <= max(one(SPECIAL[1]))
    assert Tokenize(encoding).token(SPECIAL[0]) == encoding.encode_single_token(SPECIAL[0])
    assert Tokenize(encoding).lasting and Tokenize(encoding, eos=5)("the").tolist()[-1] == 5


def test_sentencepiece(tmp_path: Path) -> None:
    path = make_sentencepiece(tmp_path)
    library = pytest.importorskip("sentencepiece")
    model = library.SentencePieceProcessor(model_file=str(path))
    text = f"the {SPECIAL[0]} answer"
    for tokenizer in (model, str(path)):
        ids = Tokenize(tokenizer)(text).tolist()
        assert model.piece_to_id(SPECIAL[0]) not in ids and model.decode(ids) == text
        assert Tokenize(tokenizer).token(SPECIAL[0]) == model.piece_to_id(SPECIAL[0])
    assert Tokenize(model).__qualname__ == Tokenize(str(path)).__qualname__


def test_allowed_tokens_that_are_none() -> None:
    with pytest.raises(ConfigError, match=r"no special token '<\|nothing\|>'; it has"):
        Tokenize(bpe(), allowed_special=("<|nothing|>",))("a")
    with pytest.raises(ConfigError, match=r"give a tuple of names, such as \('<\|im_end\|>',\)"):
        Tokenize(bpe(), allowed_special="<|im_end|>")
