"""The tokens that begin and end samples, of tokenizers that do not name them."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
from tokenizers import processors

import penstock as ps
from chat_cases import bpe, decode, make_bpe
from other_tokenizers import make_sentencepiece, make_tiktoken
from penstock.errors import ConfigError
from penstock.text import Chat

TALK = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
WRITES_BOS = (
    "{{ bos_token }}{% for m in messages %}{{ m.role }}{% generation %}{{ m.content + '<|im_end|>' }}"
    "{% endgeneration %}{% endfor %}"
)
WRITES_EOS = WRITES_BOS.replace("'<|im_end|>'", "eos_token").replace("{{ bos_token }}", "")
TEXTS = [
    {"prompt": "q", "completion": "a"},
    {"text": "a"},
    {"prompt": "q", "completion": "a", "label": True},
    {"prompt": "q", "chosen": "a", "rejected": "b"},
]


def with_processor(single: str) -> Any:
    tokenizer, tokens = make_bpe(), ("<s>", "</s>", "<bos>")
    ids = [(token, tokenizer.token_to_id(token)) for token in tokens]
    tokenizer.post_processor = processors.TemplateProcessing(single=single, special_tokens=ids)
    return tokenizer


def save(tokenizer: Any, folder: Path, **settings: Any) -> Path:
    tokenizer.save(str(folder / "tokenizer.json"))
    if settings:
        (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder / "tokenizer.json"


@pytest.mark.parametrize("form", ["text", "file"])
def test_a_template_that_writes_an_unnamed_token_is_refused(form: str, tmp_path: Path) -> None:
    for name, template in (("bos", WRITES_BOS), ("eos", WRITES_EOS)):
        if form == "file":
            (tmp_path / name).write_text(template)
        given: Any = tmp_path / name if form == "file" else template
        for tokenizer in (bpe(), save(bpe(), tmp_path)):
            with pytest.raises(ConfigError, match=rf"writes {name}_token.*{name}='.*{name}=''"):
                Chat(tokenizer, template=given)
            named: Any = {name: "<s>"}
            encode = Chat(tokenizer, template=given, **named)
            assert "<s>" in decode(encode(TALK))
            named = {name: ""}
            without = Chat(tokenizer, template=given, untrained="keep", **named)
            assert "<s>" not in decode(without(TALK))
            assert without.__qualname__ != encode.__qualname__
        encode = Chat(bpe(), template=given, variables={f"{name}_token": "<s>"})
        assert "<s>" in decode(encode(TALK))


def test_a_family_whose_bos_the_tokenizer_lacks_is_refused() -> None:
    from tokenizers import AddedToken, Tokenizer

    tokenizer: Any = Tokenizer.from_str(make_bpe(special=False).to_str())
    tokenizer.add_special_tokens([AddedToken(f"<{end}_of_turn>") for end in ("start", "end")])
    with pytest.raises(ConfigError, match="writes bos_token"):
        Chat(tokenizer, template="gemma")
    Chat(tokenizer, template="gemma", bos="")


@pytest.mark.parametrize("token", ["<s>", {"__type": "AddedToken", "content": "<s>"}])
def test_the_file_beside_a_tokenizer_names_its_tokens(token: Any, tmp_path: Path) -> None:
    from transformers import PreTrainedTokenizerFast

    path = save(bpe(), tmp_path, bos_token=token, eos_token="</s>")
    encode = Chat(path, template=WRITES_BOS)
    assert decode(encode(TALK)).startswith("<s>user")
    assert decode(Chat(path, template=WRITES_EOS)(TALK)).endswith("{a</s>}")
    assert decode(Chat(path)(TEXTS[0])) == "q{a</s>}"
    sent = pickle.loads(pickle.dumps(encode))
    (tmp_path / "tokenizer_config.json").unlink()
    assert sent(TALK)["tokens"].tolist() == encode(TALK)["tokens"].tolist()
    named = PreTrainedTokenizerFast(tokenizer_object=bpe(), bos_token="<s>", eos_token="</s>")
    for template in (WRITES_BOS, WRITES_EOS, "chatml", "gemma"):
        save(bpe(), tmp_path, bos_token=token, eos_token="</s>")
        for sample in (TALK, TEXTS[0]):
            rows = [Chat(given, template=template)(sample) for given in (path, named)]
            assert decode(rows[0]) == decode(rows[1])


def test_a_file_beside_a_tokenizer_may_name_no_bos(tmp_path: Path) -> None:
    path = save(bpe(), tmp_path, bos_token=None, eos_token=None)
    assert decode(Chat(path, template=WRITES_BOS)(TALK)).startswith("user")
    with pytest.raises(ConfigError, match="eos=''"):
        Chat(path, "text")
    (tmp_path / "tokenizer_config.json").write_text("[")
    with pytest.raises(ConfigError, match="no description of a tokenizer"):
        Chat(path, template="chatml")


def test_a_post_processor_names_the_tokens(tmp_path: Path) -> None:
    tokenizer = with_processor("<s> $A </s>")
    for given in (tokenizer, save(tokenizer, tmp_path)):
        assert decode(Chat(given, template=WRITES_BOS)(TALK)).startswith("<s>user")
        assert decode(Chat(given, template=WRITES_EOS)(TALK)).endswith("{a</s>}")
        assert decode(Chat(given)(TEXTS[0])) == "<s>q{a</s>}"
        assert decode(Chat(given, bos="", eos="")(TEXTS[0])) == "q{a}"
    two = with_processor("<s> <bos> $A")
    with pytest.raises(ConfigError, match="bos=''"):
        Chat(two, template=WRITES_BOS)


@pytest.mark.parametrize("sample", TEXTS)
def test_texts_without_an_eos_are_refused(sample: dict[str, Any], tmp_path: Path) -> None:
    from transformers import PreTrainedTokenizerFast

    path = save(bpe(), tmp_path)
    for given in (path, bpe(), PreTrainedTokenizerFast(tokenizer_object=bpe())):
        with pytest.raises(ConfigError, match=r"template='chatml'.*eos='</s>'.*eos=''"):
            Chat(given)
        encode = Chat(given, template="{% for m in messages %}{{ m.content }}{% endfor %}")
        with pytest.raises(ConfigError, match="end with the eos token.*eos=''"):
            encode(sample)
        prefix = "chosen_" if "chosen" in sample else ""
        for eos, end in (("</s>", "</s>}"), ("", "a}")):
            row = Chat(given, eos=eos)(sample)
            row = {name.removeprefix(prefix): value for name, value in row.items()}
            assert decode(row).endswith(end)
    assert Chat(path, eos="").__qualname__ != Chat(path, eos="</s>").__qualname__
    named = Chat(path, template="chatml"), Chat(path, template="chatml", eos="")
    assert named[0].__qualname__ != named[1].__qualname__


@pytest.mark.parametrize("format", ["text", "completion", "kto", "preference", "stepwise"])
def test_formats_of_texts_need_an_eos_at_construction(format: str) -> None:
    with pytest.raises(ConfigError, match="texts and completions end with the eos token"):
        Chat(bpe(), format)
    Chat(bpe(), format, eos="")


def test_mixture_files_of_texts_need_an_eos(tmp_path: Path) -> None:
    save(bpe(), tmp_path)
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n' * 8)
    text = (
        "sources: {web: {path: a.jsonl}}\nchat: {tokenizer: tokenizer.json%s}\npack: {length: 8}\n"
    )
    (tmp_path / "mixture.yaml").write_text(text % "")
    with pytest.raises(ConfigError, match="eos=''"):
        ps.load(tmp_path / "mixture.yaml")
    (tmp_path / "mixture.yaml").write_text(text % ", eos: ''")
    assert len(next(iter(ps.load(tmp_path / "mixture.yaml")))["tokens"]) == 8


def test_tiktoken_and_sentencepiece_name_their_tokens(tmp_path: Path) -> None:
    encoding = make_tiktoken()
    ids = Chat(encoding)("x")["tokens"].tolist()
    assert encoding.decode(ids) == "x<|endoftext|>"
    path, sentencepiece = make_sentencepiece(tmp_path), pytest.importorskip("sentencepiece")
    model = sentencepiece.SentencePieceProcessor(model_file=str(path))
    assert Chat(path)("yes")["tokens"].tolist()[-1] == model.eos_id()
    assert Chat(path, template=WRITES_BOS)(TALK)["tokens"].tolist()[0] == model.bos_id()


def test_allowed_tokens_must_exist() -> None:
    with pytest.raises(ConfigError, match="no control token 'nope'"):
        Chat(bpe(), template="chatml", allowed_special=["nope"])
