"""Tokens and masks of `Chat` beside those of TRL and axolotl, for each family of templates.

    python -m bench.compare_chat_masks [--count 1000] [--axolotl FOLDER]

Needs TRL (`make trl` installs it). axolotl is compared if its source is in FOLDER
(`pip download --no-deps --no-binary :all: axolotl`, unpacked). Random conversations are encoded
with a toy vocabulary by `Chat`, by the preparation of TRL's trainers and by axolotl's `chat_template`
strategy. The table counts equal conversations, and the tokens that only one side learns.
Differences without an explanation in `EXPLAINED` make the exit status 1.
"""

from __future__ import annotations

import argparse
import copy
import datetime
import logging
import random
import re
import sys
import types
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from tokenizers import AddedToken

from chat_cases import BOS, EOS, FAMILIES, make_bpe
from chat_conversations import ABILITIES, TOOLS, Abilities, ConversationMaker, tool_bpe
from penstock.text import Chat
from penstock.text.chat import templates

SOURCES = Path(templates.__file__).with_name("families")
END = {**EOS, "gemma": "<end_of_turn>", "phi": "<|end|>"}
"""The token that ends an answer."""

EXPLAINED = {
    "begins before": "a token that begins before the answer and ends in it: Chat does not learn it, "
    "since its beginning is in the prompt of a generation",
    "header": "tokens that open an answer, which are in the prompt of a generation: Chat learns what "
    "follows this prompt",
    "white space": "white space that the template writes behind the end of an answer: a model that "
    "stops there never writes it",
    "earlier rendering": "the template writes an answer in another way if messages follow, such as "
    "without its reasoning: axolotl finds its place in the conversation up to it, and learns other "
    "tokens; TRL ends a prompt where it differs from the whole, and learns the last answers of the prompt",
    "brackets": "brackets at the ends of an answer: axolotl compares it with [[dummy_message]]",
    "empty answer": "the token that ends an empty answer: axolotl does not learn it, and Chat does, "
    "unless the template trims white space together with the answer",
    "opening": "what the template writes between the prompt of a generation and the content, such as "
    "an empty reasoning: the model writes it, and axolotl looks for the content alone",
    "end of text": "the end-of-text token behind the one that ends the last answer: Chat learns it, "
    "and the {% generation %} blocks of the family do not cover it",
    "template": "TRL's template for training writes another text than the template of the model, such "
    "as all reasoning",
}

TEXTS = (
    "cohere", "cohere2", "deepseekv3", "diffusion_gemma", "gemma", "gemma3", "gptoss", "lfm2", "lfm2_v2",
    "llama3", "nemotron_3_nano", "phi3", "phi3_5", "qwen2_5", "qwen3", "qwen3_5_nothink", "qwen3_5_think",
    "qwen3_6", "qwen3_8", "qwen3_instruct_2507",
)  # fmt: skip
"""Templates of models that TRL has beside its own for training."""

TOKENS = re.compile(
    r"<\|[^|<>\s']+\|>|<｜[^｜\s]+｜>|<(?:start|end)_of_turn>|\[/?[A-Z_]+\]|<\|?turn\|?>|</?(?:s|think|tool_call)>"
)
ENDS = (
    "<|END_OF_TURN_TOKEN|>", "<|im_end|>", "<|eot_id|>", "<end_of_turn>", "<|end|>", "<｜end▁of▁sentence｜>",
    "<turn|>",
)  # fmt: skip
ANSWER_ENDS = (*ENDS, "</s>", "<eos>")


class Row(NamedTuple):
    """The tokens of a conversation, and which are learned."""

    ids: list[int]
    mask: list[bool]


Sample = dict[str, Any]
Encode = Callable[[list[dict[str, Any]]], list[Row]]


# ---------------------------------------------------------------- the three libraries


def make_tokenizer(family: str) -> Any:
    from transformers import PreTrainedTokenizerFast

    tokenizer: Any = PreTrainedTokenizerFast(
        tokenizer_object=tool_bpe(), eos_token=EOS[family], bos_token=BOS.get(family)
    )
    tokenizer.chat_template = (SOURCES / f"{family}.jinja").read_text(encoding="utf-8")
    return tokenizer


def encode_by_chat(tokenizer: Any, **options: Any) -> Encode:
    """Return the rows of `Chat`; of a pair, the chosen and the rejected one."""
    chat = Chat(tokenizer, untrained="keep", **options)

    def encode(samples: list[dict[str, Any]]) -> list[Row]:
        rows = list[Row]()
        for sample in samples:
            out = chat(sample)
            for prefix in ("", "chosen_", "rejected_"):
                if f"{prefix}tokens" in out:
                    tokens, mask = (out[f"{prefix}{name}"] for name in ("tokens", "loss_mask"))
                    rows.append(Row(tokens.tolist(), mask.tolist()))
        return rows

    return encode


def prepare_by_trl(
    trainer: Any, tokenizer: Any, samples: list[dict[str, Any]], **options: Any
) -> Any:
    """Return the dataset that a trainer of TRL prepares."""
    import accelerate
    import datasets

    accelerate.PartialState()
    datasets.disable_progress_bars()
    template = options.pop("template", None)
    own = SimpleNamespace(chat_template=template, _tokenizer=tokenizer, **options)
    settings = SimpleNamespace(
        dataset_num_proc=None, max_length=None, dataset_text_field="text", shuffle_dataset=False,
        assistant_only_loss=options.get("assistant_only_loss", False),
    )  # fmt: skip
    data = datasets.Dataset.from_list(samples)
    more = (False, None) if trainer.__name__ == "SFTTrainer" else ()
    return trainer._prepare_dataset(own, data, tokenizer, settings, *more, "train")


def encode_by_sft(tokenizer: Any, **options: Any) -> Encode:
    import trl

    def encode(samples: list[dict[str, Any]]) -> list[Row]:
        data = prepare_by_trl(trl.SFTTrainer, tokenizer, samples, **options)
        return [Row(row["input_ids"], [label != -100 for label in row["labels"]]) for row in data]

    return encode


def encode_by_dpo(tokenizer: Any) -> Encode:
    import trl

    def encode(samples: list[dict[str, Any]]) -> list[Row]:
        rows = list[Row]()
        for row in prepare_by_trl(trl.DPOTrainer, tokenizer, samples):
            for side in ("chosen_ids", "rejected_ids"):
                mask = [False] * len(row["prompt_ids"]) + [True] * len(row[side])
                rows.append(Row(row["prompt_ids"] + row[side], mask))
        return rows

    return encode


def encode_by_axolotl(tokenizer: Any, end: str) -> Encode:
    stand_in: Any = types.ModuleType("addict")
    stand_in.Dict = dict
    sys.modules.setdefault("addict", stand_in)
    from axolotl.prompt_strategies.chat_template import (  # pyright: ignore[reportMissingImports]
        ChatTemplatePrompter,
        ChatTemplateStrategy,
    )

    logging.getLogger("axolotl").setLevel("ERROR")
    strategy: Any = ChatTemplateStrategy(
        ChatTemplatePrompter(tokenizer, tokenizer.chat_template),
        tokenizer=tokenizer, train_on_inputs=False, sequence_len=1 << 20, roles_to_train=["assistant"],
        train_on_eos="turn", eot_tokens=[end],
    )  # fmt: skip

    def encode(samples: list[dict[str, Any]]) -> list[Row]:
        rows = [strategy.tokenize_prompt(copy.deepcopy(sample)) for sample in samples]
        return [Row([*row["input_ids"]], [x != -100 for x in row["labels"]]) for row in rows]

    return encode


# ---------------------------------------------------------------- conversations


@cache
def conversations(family: str, count: int, abilities: Abilities | None = None) -> list[Sample]:
    """Return realistic conversations, in a form that Arrow tables can store.

    TRL prepares Arrow tables. So contents are texts, and arguments of tools are mappings. Messages
    hold no control tokens, which the other libraries encode as tokens.
    """
    abilities = replace(abilities or ABILITIES[family], weights=False)
    maker = ConversationMaker(random.Random(family), abilities, (), ())
    return [store(maker.conversation()) for _ in range(count)]


def store(sample: Sample) -> Sample:
    """Return a conversation in a form that Arrow tables can store."""
    messages = list[Sample]()
    for message in sample["messages"]:
        content = message["content"] or ""
        text = content if isinstance(content, str) else "".join(part["text"] for part in content)
        stored: Sample = {"role": message["role"], "content": text}
        for name in ("reasoning_content", "reasoning", "thinking"):
            if name in message:
                stored["reasoning_content"] = message[name]
        if calls := message.get("tool_calls"):
            functions = [{"name": c["function"]["name"], "arguments": {"q": "ö"}} for c in calls]
            stored["tool_calls"] = [{"type": "function", "function": f} for f in functions]
        messages.append(stored)
    # A table has the columns of its first row.
    return {"messages": messages, "tools": TOOLS if "tools" in sample else None}


def as_completions(family: str, count: int) -> list[Sample]:
    """Return prompts with their completions."""
    return [
        {"prompt": sample["messages"][:-1], "completion": sample["messages"][-1:]}
        for sample in conversations(family, count)
    ]


def as_pairs(family: str, count: int) -> list[Sample]:
    """Return prompts with two answers."""
    given = [
        sample
        for sample in conversations(family, count)
        if sample["messages"][-1]["content"].strip()
    ]
    return [
        {
            "prompt": sample["messages"][:-1],
            "chosen": sample["messages"][-1:],
            "rejected": other["messages"][-1:],
        }
        for sample, other in zip(given, given[1:] + given[:1], strict=True)
    ]


# ---------------------------------------------------------------- comparison


class Result(NamedTuple):
    """Number of equal rows, and the tokens that only one side learns, by kind."""

    rows: int
    equal: int
    other_tokens: int
    differences: Counter[str]
    unexplained: list[str]


def compare(
    tokenizer: Any,
    ours: list[Row],
    theirs: list[Row],
    other_template: bool = False,
    earlier: list[bool] | None = None,
) -> Result:
    """Return which rows are equal, and why the others are not.

    Args:
        tokenizer: the tokenizer, for the texts of tokens.
        ours: rows of `Chat`.
        theirs: rows of the other library.
        other_template: whether the other library has another template.
        earlier: for each row, whether earlier answers change with later messages.
    """
    equal, other_tokens, kinds, unexplained = 0, 0, Counter[str](), list[str]()
    for number, (own, other) in enumerate(zip(ours, theirs, strict=True)):
        if own == other:
            equal += 1
            continue
        if earlier and earlier[number] and own.ids == other.ids:
            kinds["earlier rendering (conversations)"] += 1
            continue
        if own.ids != other.ids:
            other_tokens += 1
            if other_template:
                kinds["other: template"] += 1
            else:
                texts = [tokenizer.decode(row.ids) for row in (own, other)]
                unexplained.append(f"{texts[0]!r} / {texts[1]!r}")
            continue
        texts = [tokenizer.decode([number]) for number in own.ids]
        for i, (mine, their) in enumerate(zip(own.mask, other.mask, strict=True)):
            if mine == their:
                continue
            kind = classify(i, own, other, texts)
            if kind is None and earlier and not texts[i].strip("[]"):
                kind = "brackets"
            who = "Chat" if mine else "other"
            kinds[f"{who}: {kind or repr(texts[i])}"] += 1
            if kind is None:
                context = "".join(
                    f"[{text}]" if learned else text
                    for text, learned in zip(
                        texts[max(0, i - 12) : i + 6],
                        other.mask[max(0, i - 12) : i + 6],
                        strict=True,
                    )
                )
                unexplained.append(f"{who} learns {texts[i]!r} in {context!r}")
    return Result(len(ours), equal, other_tokens, kinds, unexplained)


def classify(i: int, ours: Row, theirs: Row, texts: list[str]) -> str | None:
    """Return the explanation of a token that only one side learns; `None` if there is none."""
    size = len(ours.ids)
    if is_empty_answer(i, (theirs, ours)[ours.mask[i]].mask, texts):
        return "empty answer"
    if ours.mask[i]:
        if i == size - 1 and ours.mask[i] and not theirs.mask[i] and texts[i - 1] == "\n":
            return "end of text"
        is_opening = not texts[i].strip() or texts[i] in ("<think>", "</think>")
        return "opening" if is_opening else None
    before = [j for j in range(max(0, i - 8), i) if texts[j].strip()]
    if not texts[i].strip() and before and ours.mask[before[-1]]:
        return "white space"
    following = next((j for j in range(i, size) if ours.mask[j] or not theirs.mask[j]), size)
    if following < size and ours.mask[following]:
        if any(text in ANSWER_ENDS for text in texts[i:following]):
            return "earlier rendering"
        if following == i + 1 and not theirs.mask[i - 1] and texts[i][:1] not in "<[":
            return "begins before" if texts[i].strip() else "header"
        return "header"
    return None


def is_empty_answer(i: int, learned: list[bool], texts: list[str]) -> bool:
    """Return whether a token belongs to an answer without text, or ends it.

    Args:
        i: the index of the token.
        learned: which tokens the side learns that learns this one.
        texts: the texts of tokens.
    """
    if texts[i] in ANSWER_ENDS:
        blank = ("", "<think>", "</think>")
        before = next((j for j in range(i - 1, -1, -1) if texts[j].strip() not in blank), 0)
        return not learned[before] or texts[before] in ANSWER_ENDS
    return any(
        texts[j : j + 2] == ["<think>", "</think>"] and texts[j + 2] in ANSWER_ENDS
        for j in range(max(0, i - 3), min(i + 1, len(texts) - 2))
    )


def has_earlier_rendering(tokenizer: Any, sample: Sample) -> bool:
    """Return whether a conversation up to an answer is rendered otherwise than in the whole."""
    messages, tools = sample["messages"], sample["tools"]
    whole = tokenizer.apply_chat_template(messages, tools=tools, tokenize=False)
    for number, message in enumerate(messages):
        if message["role"] == "assistant":
            until = messages[: number + 1]
            text = tokenizer.apply_chat_template(until, tools=tools, tokenize=False)
            if not whole.startswith(text.removesuffix(tokenizer.eos_token)):
                return True
    return False


def make_other_tokenizer(source: str) -> Any:
    """Return a toy tokenizer with the control tokens of a template."""
    from transformers import PreTrainedTokenizerFast

    tokens = {*TOKENS.findall(source)}
    end = next(token for token in ENDS if token in tokens)
    markup = {token for token in tokens if token.strip("</>") in ("think", "tool_call")}
    toy = make_bpe(False)
    toy.add_special_tokens(sorted((tokens - markup) | {"<s>"}))
    toy.add_tokens([AddedToken(token, normalized=False) for token in sorted(markup)])
    tokenizer: Any = PreTrainedTokenizerFast(tokenizer_object=toy, eos_token=end, bos_token="<s>")
    tokenizer.chat_template = source
    return tokenizer


def run_templates(count: int, names: tuple[str, ...] = TEXTS) -> Iterator[tuple[str, str, Result]]:
    """Compare `Chat` on templates of models with TRL on its templates for training."""
    import trl

    folder = Path(trl.__file__).with_name("chat_templates")
    today = datetime.date.today()
    for name in names:
        source, training = (
            (folder / f"{name}{end}.jinja").read_text(encoding="utf-8") for end in ("", "_training")
        )
        tokenizer = make_other_tokenizer(source)
        has_system = "System role not supported" not in source
        rows = conversations(name, count, Abilities(repeats=False, system=has_system))
        ours = encode_by_chat(tokenizer, date=today)(rows)
        sft = encode_by_sft(
            tokenizer, assistant_only_loss=True, completion_only_loss=False, template=training
        )
        yield name, "TRL training template", compare(tokenizer, ours, sft(rows), True)


def run(
    count: int, axolotl: bool, families: tuple[str, ...] = FAMILIES
) -> Iterator[tuple[str, str, Result]]:
    for family in families:
        tokenizer, end = make_tokenizer(family), END[family]
        chat = encode_by_chat(tokenizer)
        messages = conversations(family, count)
        ours = chat(messages)
        sft = encode_by_sft(tokenizer, assistant_only_loss=True, completion_only_loss=False)
        yield family, "TRL assistant_only_loss", compare(tokenizer, ours, sft(messages))
        if axolotl:
            other = encode_by_axolotl(tokenizer, end)(messages)
            earlier = [has_earlier_rendering(tokenizer, sample) for sample in messages]
            result = compare(tokenizer, ours, other, earlier=earlier)
            yield family, "axolotl chat_template", result
        completions = as_completions(family, count)
        other = encode_by_sft(tokenizer, completion_only_loss=True)(completions)
        yield family, "TRL completion_only_loss", compare(tokenizer, chat(completions), other)
        pairs = as_pairs(family, count)
        yield family, "TRL DPO", compare(tokenizer, chat(pairs), encode_by_dpo(tokenizer)(pairs))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--axolotl", type=Path)
    parser.add_argument("--family", action="append")
    options = parser.parse_args()
    if options.axolotl:
        sys.path.insert(0, str(options.axolotl))
    logging.disable(logging.WARNING)
    failed = False
    print(f"{'family':12} {'beside':26} {'rows':>5} {'equal':>6}  tokens that one side learns")
    families = tuple(options.family or FAMILIES)
    results = run(options.count, bool(options.axolotl), families)
    for family, name, result in chain(
        results, () if options.family else run_templates(options.count)
    ):
        kinds = ", ".join(f"{kind} {n}" for kind, n in result.differences.most_common(5))
        kinds += f" other tokens: {result.other_tokens}" * bool(result.other_tokens)
        print(f"{family:12} {name:26} {result.rows:5} {result.equal:6}  {kinds}", flush=True)
        for line in result.unexplained[:3]:
            print("    ?", line)
        failed |= bool(result.unexplained)
    print()
    for kind, explanation in EXPLAINED.items():
        print(f"{kind}: {explanation}")
    return failed


if __name__ == "__main__":
    sys.exit(main())
