"""Toy tokenizers, random conversations, and a slow reference of tokens and masks for each family.

The reference shares no code with the library: it writes each family's text by hand as a list of
pieces, encodes the texts between control tokens one by one, and decides character by character.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, NamedTuple

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

CONTROL = (
    "<|im_start|>", "<|im_end|>", "<|im_sep|>",
    "<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>",
    "<s>", "</s>", "[INST]", "[/INST]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]",
    "<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>",
    "<|system|>", "<|user|>", "<|assistant|>", "<|end|>", "<|endoftext|>",
    "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>",
)  # fmt: skip
NOT_SPECIAL = ("<｜User｜>", "<｜Assistant｜>")
"""Control tokens that are not special in the tokenizer, as those of DeepSeek."""

MARKUP = ("<think>", "</think>", "<tool_call>", "</tool_call>")

FAMILIES = (
    "chatml", "qwen", "llama3", "llama3.1", "mistral", "mistral-v3", "gemma", "phi", "phi4", "deepseek",
)  # fmt: skip
EOS = {
    "chatml": "<|im_end|>", "qwen": "<|im_end|>", "llama3": "<|eot_id|>", "llama3.1": "<|eot_id|>",
    "mistral": "</s>", "mistral-v3": "</s>", "gemma": "<eos>", "phi": "<|endoftext|>",
    "phi4": "<|im_end|>", "deepseek": "<｜end▁of▁sentence｜>",
}  # fmt: skip
BOS = {
    "llama3": "<|begin_of_text|>", "llama3.1": "<|begin_of_text|>", "mistral": "<s>", "mistral-v3": "<s>",
    "gemma": "<bos>", "deepseek": "<｜begin▁of▁sentence｜>",
}  # fmt: skip

WORDS = ["yes", "no", "42", "the answer", "is it", "user", "assistant", "ok.", "naïve", "你好", "🙂 fine", "a<b", "x|y", "->", "line\nbreak", "two\n\nlines", "tab\there"]  # fmt: skip
CORPUS = [
    "user\nyes no assistant\nyes the answer is 42. ok\n system\nmodel\nis it? ok.\n\nyes",
    "assistant yes\nuser no\nmodel\nyes\nno\nthe answer is it",
] * 30


def make_bpe(special: bool = True, pre: bool = True) -> Tokenizer:
    """Return a byte-level BPE; without `pre` its merges cross words, lines and messages."""
    tokenizer = Tokenizer(models.BPE())
    if pre:
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    if special:
        tokenizer.add_special_tokens(list(CONTROL))
        tokenizer.add_tokens(
            [AddedToken(token, normalized=False) for token in (*NOT_SPECIAL, *MARKUP)]
        )
    return tokenizer


@cache
def bpe(pre: bool = True) -> Any:
    return make_bpe(True, pre)


@cache
def bare_bpe(pre: bool = True) -> Tokenizer:
    return make_bpe(False, pre)


# ---------------------------------------------------------------- conversations


def random_text(
    rng: random.Random, injected: bool, answer: bool, control: tuple[str, ...] = CONTROL
) -> str:
    words = [rng.choice(WORDS) for _ in range(rng.randint(1, 6))]
    if injected and rng.random() < 0.5:
        tokens = [*control, *(() if answer else MARKUP)]
        words.insert(
            rng.randrange(len(words) + 1), "".join(rng.choices(tokens, k=rng.randint(1, 3)))
        )
    return rng.choice([" ", "", "\n"]).join(words).strip()


def random_conversation(
    rng: random.Random,
    injected: bool = False,
    spaces: bool = False,
    think: bool = False,
    control: tuple[str, ...] = CONTROL,
) -> list[dict[str, Any]]:
    """Return a conversation with alternating turns; answers repeat, and occur in questions."""
    messages, seen = list[dict[str, Any]](), list[str]()
    if rng.random() < 0.4:
        messages.append({"role": "system", "content": random_text(rng, injected, False, control)})
    for _ in range(rng.randint(1, 4)):
        for role in ("user", "assistant"):
            repeats = seen and rng.random() < 0.3
            text = (
                rng.choice(seen)
                if repeats
                else random_text(rng, injected, role == "assistant", control)
            )
            if role == "user" and rng.random() < 0.2:
                text = f"{text} {random_text(rng, injected, False, control)} {text}"
            seen.append(text)
            if spaces and rng.random() < 0.3:
                text = rng.choice([" ", "\n", ""]) + text + rng.choice([" ", "\n\n"])
            if think and role == "assistant" and rng.random() < 0.5:
                text = f"<think>\n{random_text(rng, False, True)}\n</think>\n\n{text}"
            messages.append({"role": role, "content": text})
    return messages


# ---------------------------------------------------------------- the reference


class Piece(NamedTuple):
    text: str
    learned: bool = False
    control: bool = False


def T(text: str, learned: bool = False) -> Piece:
    return Piece(text, learned)


def C(token: str, learned: bool = False) -> Piece:
    return Piece(token, learned, True)


Messages = list[dict[str, Any]]


def split_markup(text: str, learned: bool) -> Iterator[Piece]:
    """The tokens that answers may hold are tokens in them."""
    while hits := [(text.index(token), token) for token in MARKUP if token in text]:
        start, token = min(hits)
        yield from (T(text[:start], learned), C(token, learned))
        text = text[start + len(token) :]
    yield T(text, learned)


def chatml(messages: Messages) -> Iterator[Piece]:
    for message in messages:
        learned = message["role"] == "assistant"
        yield from (C("<|im_start|>"), T(message["role"] + "\n"))
        yield from split_markup(message["content"], True) if learned else [T(message["content"])]
        yield from (C("<|im_end|>", learned), T("\n"))


def qwen(messages: Messages) -> Iterator[Piece]:
    last = max((i for i, m in enumerate(messages) if m["role"] == "user"), default=len(messages))
    for i, message in enumerate(messages):
        learned, content = message["role"] == "assistant", message["content"]
        yield from (C("<|im_start|>"), T(message["role"] + "\n"))
        if learned:
            reasoning, end, answer = content.partition("</think>")
            reasoning = reasoning.removeprefix("<think>\n").rstrip("\n") if end else ""
            content = answer.lstrip("\n") if end else content
            if i > last:
                yield from (C("<think>", True), T("\n" + reasoning + "\n", True))
                yield from (C("</think>", True), T("\n\n", True))
                content = content.lstrip("\n")
            yield from split_markup(content, True)
        else:
            yield T(content)
        yield from (C("<|im_end|>", learned), T("\n"))


def llama3(messages: Messages, dated: bool = False) -> Iterator[Piece]:
    yield C("<|begin_of_text|>")
    if dated:
        system = messages[0]["content"].strip() if messages[0]["role"] == "system" else ""
        yield from (C("<|start_header_id|>"), T("system"), C("<|end_header_id|>"))
        yield T("\n\nCutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n" + system)
        yield C("<|eot_id|>")
        messages = messages[messages[0]["role"] == "system" :]
    for message in messages:
        learned = message["role"] == "assistant"
        yield from (C("<|start_header_id|>"), T(message["role"]), C("<|end_header_id|>"), T("\n\n"))
        content = message["content"].strip()
        yield from split_markup(content, True) if learned else [T(content)]
        yield C("<|eot_id|>", learned)


def mistral(messages: Messages) -> Iterator[Piece]:
    yield C("<s>")
    for message in messages:
        if message["role"] == "system":
            yield from (C("[SYSTEM_PROMPT]"), T(message["content"]), C("[/SYSTEM_PROMPT]"))
        elif message["role"] == "user":
            yield from (C("[INST]"), T(message["content"]), C("[/INST]"))
        else:
            yield from (*split_markup(message["content"], True), C("</s>", True))


def mistral_v3(messages: Messages) -> Iterator[Piece]:
    system = messages[0]["content"] + "\n\n" if messages[0]["role"] == "system" else ""
    last = max(i for i, m in enumerate(messages) if m["role"] == "user")
    yield C("<s>")
    for i, message in enumerate(messages):
        if message["role"] == "user":
            text = (system if i == last else "") + message["content"]
            yield from (C("[INST]"), T(" " + text), C("[/INST]"))
        elif message["role"] == "assistant":
            content = " " + message["content"].strip()
            yield from (*split_markup(content, True), C("</s>", True))


def gemma(messages: Messages) -> Iterator[Piece]:
    yield C("<bos>")
    system = messages[0]["content"] + "\n\n" if messages[0]["role"] == "system" else ""
    for message in messages[bool(system) :]:
        learned, content = message["role"] == "assistant", message["content"].strip()
        yield from (C("<start_of_turn>"), T("model\n" if learned else "user\n"))
        yield from split_markup(content, True) if learned else [T(system + content)]
        yield from (C("<end_of_turn>", learned), T("\n"))
        system = ""


def phi(messages: Messages) -> Iterator[Piece]:
    for message in messages:
        learned = message["role"] == "assistant"
        yield from (C(f"<|{message['role']}|>"), T("\n"))
        yield from split_markup(message["content"], True) if learned else [T(message["content"])]
        yield from (C("<|end|>", learned), T("\n"))
    yield C("<|endoftext|>", messages[-1]["role"] == "assistant")


def phi4(messages: Messages) -> Iterator[Piece]:
    for message in messages:
        learned = message["role"] == "assistant"
        yield from (C("<|im_start|>"), T(message["role"]), C("<|im_sep|>"))
        yield from split_markup(message["content"], True) if learned else [T(message["content"])]
        yield C("<|im_end|>", learned)


def deepseek(messages: Messages) -> Iterator[Piece]:
    yield C("<｜begin▁of▁sentence｜>")
    yield T("\n\n".join(m["content"] for m in messages if m["role"] == "system"))
    for message in messages:
        if message["role"] == "user":
            yield from (C("<｜User｜>"), T(message["content"]))
        elif message["role"] == "assistant":
            content = message["content"].split("</think>")[-1]
            yield C("<｜Assistant｜>")
            yield from (*split_markup(content, True), C("<｜end▁of▁sentence｜>", True))


REFERENCES: dict[str, Callable[[Messages], Iterator[Piece]]] = {
    "chatml": chatml,
    "qwen": qwen,
    "llama3": llama3,
    "llama3.1": lambda messages: llama3(messages, dated=True),
    "mistral": mistral,
    "mistral-v3": mistral_v3,
    "gemma": gemma,
    "phi": phi,
    "phi4": phi4,
    "deepseek": deepseek,
}


def reference(family: str, messages: Messages, pre: bool = True) -> tuple[list[int], list[bool]]:
    """Return the ids and the mask of a conversation."""
    full, bare = bpe(pre), bare_bpe(pre)
    ids, mask = list[int](), list[bool]()
    text, flags = "", list[bool]()

    def flush() -> None:
        nonlocal text, flags
        encoding = bare.encode(text)
        for number, (start, end) in zip(encoding.ids, encoding.offsets, strict=True):
            while start + 1 < end and text[start].isspace() and not flags[start]:
                start += 1
            ids.append(number)
            mask.append(flags[start])
        text, flags = "", []

    for piece in REFERENCES[family](messages):
        if piece.control:
            flush()
            ids.append(full.token_to_id(piece.text))
            mask.append(piece.learned)
        else:
            for char in piece.text:
                text += char
                flags.append(piece.learned)
    flush()
    return ids, mask


def decode(row: Any, prefix: str = "") -> str:
    """The text of a row, with what is learned in braces."""
    out, before = "", False
    ids, mask = row[f"{prefix}tokens"].tolist(), row[f"{prefix}loss_mask"].tolist()
    start = 0
    for i in range(len(ids) + 1):
        now = mask[i] if i < len(ids) else False
        if now != before or i == len(ids):
            out += bpe().decode(ids[start:i], skip_special_tokens=False)
            start = i
        out += "{" * (now and not before) + "}" * (before and not now)
        before = now
    return out
