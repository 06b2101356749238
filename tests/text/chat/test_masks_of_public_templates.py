"""Tokens and masks of realistic conversations under public templates of models, which come with TRL."""

from __future__ import annotations

import datetime
import random
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from chat_cases import CONTROL, MARKUP, NOT_SPECIAL
from chat_conversations import TOOL_TOKENS, Abilities, ConversationMaker, tool_bpe
from chat_reference import ANSWERS, CHATML, LLAMA, Reference
from example_counts import rounds
from penstock.text import Chat

SPEC = find_spec("trl")
DATE = datetime.date(2024, 7, 26)


class Public(NamedTuple):
    """A public template: its answers, what it accepts, and the tokens at the ends of a text."""

    answers: str
    abilities: Abilities = Abilities()
    eos: str = "<|im_end|>"
    bos: str = ""


HEADER = r"(?<=<\|im_start\|>assistant\n)"
THINKS = Public(rf"{HEADER}(?:<think>\n)?(.*?<\|im_end\|>)", Abilities(calls=3))
"""The prompt of a generation opens the reasoning."""

NEVER_THINKS = Public(rf"{HEADER}(?:<think>\n\n</think>\n\n)?(.*?<\|im_end\|>)", Abilities(calls=3))
QWEN = Public(CHATML, Abilities(calls=3))
LLAMA_3 = Public(LLAMA, Abilities(), "<|eot_id|>", "<|begin_of_text|>")
GEMMA = Public(ANSWERS["gemma"], Abilities(repeats=False), "<eos>", "<bos>")
PHI = Public(ANSWERS["phi"], Abilities(), "<|endoftext|>")
R1 = r"(?:(?<=<｜Assistant｜>)(?:<think>\n)?|(?<=<｜tool▁outputs▁end｜>))(.*?<｜end▁of▁sentence｜>)"
EOS, BOS = "<｜end▁of▁sentence｜>", "<｜begin▁of▁sentence｜>"
# The template of V3 leaves out the headers of answers behind the first call of tools. Its prompt of a
# generation opens the reasoning, as that of R1.
DEEPSEEK = Public(R1, Abilities(calls=1, episodes=1, repeats=False), EOS, BOS)
TEMPLATES = {
    "qwen2_5": QWEN,
    "qwen3": QWEN,
    "qwen3_instruct_2507": QWEN,
    "qwen3_5_nothink": NEVER_THINKS,
    "qwen3_5_think": THINKS,
    "qwen3_6": THINKS,
    "qwen3_8": THINKS,
    "llama3": LLAMA_3,
    "llama3_1": LLAMA_3._replace(abilities=Abilities(calls=1)),
    "llama3_2": LLAMA_3._replace(abilities=Abilities(calls=1)),
    "gemma": GEMMA._replace(abilities=Abilities(system=False, repeats=False)),
    "gemma3": GEMMA,
    "phi3": PHI,
    "phi3_5": PHI,
    "deepseekv3": DEEPSEEK,
    "deepseek_r1_distill": Public(R1, Abilities(calls=3), EOS, BOS),
}


@pytest.mark.skipif(SPEC is None, reason="could not import 'trl'")
@pytest.mark.parametrize("name", TEMPLATES)
def test_conversations_equal_the_slow_reference(name: str) -> None:
    assert SPEC and SPEC.origin
    path = Path(SPEC.origin).with_name("chat_templates") / f"{name}.jinja"
    source, public = path.read_text(encoding="utf-8"), TEMPLATES[name]
    control = (*CONTROL, *TOOL_TOKENS, *(token for token in NOT_SPECIAL if token in source))

    def encode(text: str) -> list[tuple[int, tuple[int, int]]]:
        encoding = tool_bpe(control=False).encode(text)
        return [*zip(encoding.ids, encoding.offsets, strict=True)]

    variables: Any = {"bos_token": public.bos, "eos_token": public.eos}
    variables |= {"strftime_now": DATE.strftime, "date_string": DATE.strftime("%d %b %Y")}
    reference = Reference(
        source, public.answers, control, MARKUP, tool_bpe().token_to_id, encode,
        takes_text="deepseek" in name, **variables,
    )  # fmt: skip
    chat = Chat(
        tool_bpe(), template=source, date=DATE, bos=public.bos or None, eos=public.eos,
        untrained="keep",
    )  # fmt: skip
    maker = ConversationMaker(random.Random(name), public.abilities, control, MARKUP)
    for _ in range(rounds(100, 1000)):
        sample = maker.conversation()
        row = chat({**sample})
        tokens = [tool_bpe().id_to_token(number) for number in row["tokens"].tolist()]
        ids, mask = reference(sample)
        assert [*zip(tokens, row["loss_mask"].tolist(), strict=True)] == [
            *zip([tool_bpe().id_to_token(number) for number in ids], mask, strict=True)
        ], sample
