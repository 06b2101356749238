"""Tokens as text: the text of each token, the documents of a row, and HTML that cannot be injected."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tokenizers")

import penstock as ps
from chat_cases import CONTROL, bpe, random_conversation
from penstock.text import TRANSFORMERS, CausalLM, Chat, Padded, show_tokens
from penstock.text.token_texts import TokenTexts


@pytest.mark.parametrize("pre", [True, False])
def test_texts_of_tokens_join_to_the_decoded_text(pre: bool) -> None:
    tokenizer, rng = bpe(pre), random.Random(3)
    texts = TokenTexts(tokenizer)
    for _ in range(60):
        messages = random_conversation(rng, injected=True, spaces=True, think=True)
        ids = tokenizer.encode("".join(message["content"] for message in messages)).ids
        pieces = texts(ids)
        assert len(pieces) == len(ids)
        assert "".join(pieces) == tokenizer.decode(ids, skip_special_tokens=False)


def test_a_character_of_several_tokens_is_at_its_last_one() -> None:
    tokenizer = bpe()
    ids = tokenizer.encode("a🙂b").ids
    pieces = TokenTexts(tokenizer)(ids)
    assert [piece for piece in pieces if piece] == ["a", "🙂", "b"] and len(ids) > 3
    assert "".join(TokenTexts(tokenizer)(ids[:2])) == "a\ufffd"  # cut inside of the character


def test_ids_without_a_token_are_shown_as_numbers() -> None:
    assert TokenTexts(bpe())([1, 99_999, -3, 2])[1:3] == ["<99999>", "<-3>"]
    tiktoken = pytest.importorskip("tiktoken")
    ranks = {bytes([i]): i for i in range(256)}
    encoding = tiktoken.Encoding("toy", pat_str=r"\w+|\W+", mergeable_ranks=ranks, special_tokens={"<end>": 300})  # fmt: skip
    assert TokenTexts(encoding)([*"é".encode(), 300, 999]) == ["", "é", "<end>", "<999>"]


def test_texts_of_sentencepiece(tmp_path: Any) -> None:
    sentencepiece = pytest.importorskip("sentencepiece")
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("the cat sat on the mat\nis it the answer\n" * 50)
    sentencepiece.SentencePieceTrainer.train(
        input=str(corpus), model_prefix=str(tmp_path / "m"), vocab_size=40, minloglevel=2
    )
    path = tmp_path / "m.model"
    model = sentencepiece.SentencePieceProcessor(model_file=str(path))
    ids = [model.bos_id(), *model.encode("the cat sat"), model.eos_id(), 4_000]
    pieces = TokenTexts(path)(ids)
    assert (pieces[0], pieces[-2:]) == ("<s>", ["</s>", "<4000>"])
    assert "".join(pieces[1:-2]) == "the cat sat"


def test_documents_of_packed_rows_are_apart_and_padding_is_left_out() -> None:
    tokenizer, rng = bpe(), random.Random(5)
    chats = [random_conversation(rng) for _ in range(6)]
    encoded = ps.from_sequence(chats).map(Chat(tokenizer, template="chatml"))
    packed = encoded.pack(400, "first_fit", long="split").batch(2)
    batch = next(iter(packed))
    shown = show_tokens(batch, tokenizer)
    count = sum(int(row.max()) for row in batch["segment_ids"])
    assert len(shown.documents) == count > 2
    assert shown.documents[0].name == "row 0, document 1"
    assert (
        sum(len(document.ids) for document in shown.documents) == (batch["segment_ids"] > 0).sum()
    )
    first = shown.documents[0]
    assert first.mask == batch["loss_mask"][0, : len(first.ids)].tolist()
    assert "<|im_start|>user" in str(first) and "<|im_end|>" in repr(shown)
    labelled = next(iter(packed.map(CausalLM((*TRANSFORMERS, "segment_ids")))))
    again = show_tokens({name: labelled[name] for name in ("input_ids", "labels", "segment_ids")}, tokenizer)  # fmt: skip
    assert [document.ids for document in again.documents] == [d.ids for d in shown.documents]
    padded = next(iter(encoded.batch(2, collate=Padded()).map(CausalLM(("input_ids", "attention_mask")))))  # fmt: skip
    sizes = [len(document.ids) for document in show_tokens(padded, tokenizer).documents]
    assert sizes == padded["attention_mask"].sum(axis=1).tolist()


def test_what_is_learned_stands_between_marks() -> None:
    tokenizer = bpe()
    row = Chat(tokenizer, template="chatml")(
        [{"role": "user", "content": "yes?"}, {"role": "assistant", "content": "no"}]
    )
    assert str(show_tokens(row, tokenizer).documents[0]) == (
        "<|im_start|>user\nyes?<|im_end|>\n<|im_start|>assistant\n[[no<|im_end|>]]\n"
    )
    assert "[[" not in repr(show_tokens(row["tokens"], tokenizer))
    assert "[[" not in repr(show_tokens({"tokens": row["tokens"]}, tokenizer))
    title = show_tokens(row, tokenizer).documents[0].title
    assert title == f"{len(row['tokens'])} tokens, {row['loss_mask'].sum()} learned"


def test_both_sides_of_a_pair_are_shown() -> None:
    tokenizer = bpe()
    sample = {"prompt": "is it", "chosen": " yes", "rejected": " no"}
    row = Chat(tokenizer, template="chatml")(sample)
    shown = show_tokens(row, tokenizer)
    assert [document.name for document in shown.documents] == ["chosen", "rejected"]
    assert "[[ yes" in repr(shown) and "[[ no" in repr(shown)


def test_html_is_escaped_and_has_the_colours_of_the_mask() -> None:
    tokenizer = bpe()
    text = "<script>alert('x')</script>&\x1b[31m"
    row = Chat(tokenizer, template="chatml")(
        [{"role": "user", "content": text}, {"role": "assistant", "content": f"{text}!"}]
    )
    page = show_tokens(row, tokenizer)._repr_html_()
    assert "<script" not in page and "\x1b" not in page
    assert page.count("background:") == row["loss_mask"].sum()
    assert page.count("<span title=") == len(row["tokens"])
    assert "\x1b" not in repr(show_tokens(row, tokenizer))


def test_rows_without_tokens_are_refused() -> None:
    with pytest.raises(ps.DataError, match="no tokens; it has text"):
        show_tokens({"text": "a"}, bpe())
    with pytest.raises(ps.DataError, match="not one axis of token ids"):
        show_tokens({"tokens": np.zeros(3)}, bpe())
    with pytest.raises(ps.ConfigError, match="cannot name its tokens"):
        show_tokens([1], str.upper)
    with pytest.raises(ps.ConfigError, match=r"the tokenizer file .* is missing"):
        show_tokens([1], "gone.json")
    assert show_tokens([], bpe()).documents[0].ids == []
    assert len(show_tokens([[1, 2], [3]], bpe()).documents) == 2
    assert CONTROL[0] in repr(show_tokens([bpe().token_to_id(CONTROL[0])], bpe()))


def test_documents_of_model_batches_are_apart_and_without_padding() -> None:
    encode = Chat(bpe(), template="chatml")
    chats = [
        {
            "messages": [
                {"role": "user", "content": f"is it {i}"},
                {"role": "assistant", "content": "yes"},
            ]
        }
        for i in range(5)
    ]
    rows = ps.from_sequence(chats).map(encode).pack(80, "first_fit").batch(2)
    (before,), (after,) = (
        [show_tokens(batch, bpe()) for batch in ds]
        for ds in (rows, rows.map(CausalLM(TRANSFORMERS)))
    )
    assert [part.ids for part in before.documents] == [part.ids for part in after.documents]
    assert [part.mask for part in before.documents] == [part.mask for part in after.documents]
    assert len(after.documents) == 5 and all(any(part.mask or []) for part in after.documents)


def test_completion_masks_are_shown() -> None:
    shown = show_tokens({"input_ids": [5, 6, 7], "completion_mask": [0, 0, 1]}, bpe())
    assert shown.documents[0].mask == [False, False, True]


def test_packed_rows_are_shown_whatever_the_name_of_their_tokens() -> None:
    documents = [{"ids": np.arange(n), "loss_mask": np.arange(n) > 1} for n in (3, 4)]
    batch = next(iter(ps.from_sequence(documents).pack(8).batch(1)))
    shown = show_tokens(batch, bpe()).documents
    assert [(one.name, one.ids) for one in shown] == [
        ("document 1", [0, 1, 2]),
        ("document 2", [0, 1, 2, 3]),
    ]
