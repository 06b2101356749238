"""The JSON Schema of mixture files: shipped, in step with the table of keys, and right about files."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
import yaml

from penstock.mixture_files import build_schema, read_model

ROOT = Path(__file__).resolve().parent.parent.parent
jsonschema: Any = pytest.importorskip("jsonschema")
VALIDATOR = jsonschema.Draft202012Validator(build_schema())

GOOD = [
    "sources: {a: {path: x}}\nhorizon: {tokens: 2T}\npack: {length: {unit: tokens, points: {0: 4k, 50B: 32k}}}\nglobal_batch_size: {points: {0: 8, 1.5k: 16}}",
    "sources: {a: {path: x}}",
    "sources: {a: {path: [x, y], weight: 1, where: {lang: [py, c], stars: {min: 3, not: [4]}}}}",
    "sources: {a: {mixture: other.yaml, tokens: 1_000_000, start: 5, stop: 9}}",
    "sources: {a: {mixture: {sources: {b: {path: x}}, seed: 3}, weight: 1e9}}",
    "sources: {a: {path: x, slice: [0, null, 2], shuffle: {rows: 4, window: 2}}}\nshuffle: none",
    "sources: {a: {path: x}}\nschedule: {unit: steps, points: {0: {a: 1}, 10_000: {a: 2}}}\nhorizon: {steps: 5}",
    "sources: {a: {path: x, weight: '${WEIGHT:-3}'}}\ninclude: [a.yaml]\ncache: ~/c",
    "sources: {a: {path: x}}\npack: {length: 8, eos: <end>, pad: {a: 1}, features: [a]}\nbatch: {size: 2, collate: list}",
    "sources: {a: {path: x, group: g, split: {held_out: 3}}, b: {path: y, split: val}}\ngroups: {g: 2}\nsplit: {held_out: 0.5%, column: url}\nhorizon: {tokens: 15T}",
    "sources: {a: {path: x}}\nhorizon: {epochs: 1.5}\nexclude: bad.jsonl\nstages: [{name: n, until: 40%, weights: {a: 1}}, {until: {samples: 2 T}}, {interpolation: cosine, weights: {a: 2}}]",
    "sources: {a: {path: x, where: {url: {hash: [0, 0.5]}}}}\nschedule: {interpolation: [step, linear], points: {0: {a: 1}, 5: {a: 2}, 9: {a: 1}}}",
    "sources: {a: {path: x, tokenize: {tokenizer: gpt2, field: body}}}\ntokenize: {tokenizer: t.json, special_tokens: true}",
    "sources: {a: {path: x, chat: {tokenizer: org/model, fields: {messages: dialog}, roles: {x: user}}}}\nchat: {tokenizer: t.json, template: chatml, train_on: last, max_length: 2k, keep: id, allowed_special: all, variables: {a: [1, {b: null}]}, date: '2024-07-26'}",
]
BAD = [
    "sources: {a: {path: x}}\nhorizon: {tokens: 15X}",
    "sources: {a: {path: x}}\nsplit: {held_out: all}",
    "sources: {a: {path: x}}\nsplit: val",
    "sources: {a: {path: x}}\nstages: [{until: soon, weights: {a: 1}}]",
    "sources: {a: {path: x}}\ngroups: [g]",
    "sources: {a: {path: x}}\nchat: {template: chatml}",
    "sources: {a: {path: x}}\nchat: {tokenizer: t.json, truncate: middle}",
    "sources: {a: {path: x}}\nchat: {tokenizer: t.json, fields: {mesages: x}}",
    "seed: 1",
    "sources: {}",
    "sources: {a: x}",
    "sources: {a: {paht: x}}",
    "sources: {a: {path: x, weight: -1}}",
    "sources: {a: {path: x, weight: many}}",
    "sources: {a: {path: x}}\nstop: never",
    "sources: {a: {path: x}}\nblock_size: 0",
    "sources: {a: {path: x, where: {c: {least: 3}}}}",
    "sources: {a: {path: x, max_epochs: 0}}",
    "sources: {a: {path: x}}\npack: {method: first_fit}",
    "sources: {a: {path: x}}\nbatch: {size: 2, drop_remainder: 'yes'}",
    "sources: {a: {path: x}}\nschedule: {points: {soon: {a: 1}}}",
    "sources: {a: {mixture: {sources: {b: {path: x}}, batch: {size: 2}}}}",
]


def as_json(text: str) -> Any:
    """A file as an editor sees it: names are texts."""

    def named(value: Any) -> Any:
        if isinstance(value, dict):
            return {str(name): named(one) for name, one in value.items()}
        return [named(one) for one in value] if isinstance(value, list) else value

    return named(yaml.safe_load(text))


def test_the_schema_is_a_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(build_schema())


def test_the_shipped_schema_is_in_step() -> None:
    """After a change of the table: python tools/mixture_schema.py."""
    shipped = (
        resources.files("penstock.mixture_files")
        .joinpath("mixture.schema.json")
        .read_text(encoding="utf-8")
    )
    assert json.loads(shipped) == build_schema()
    assert (ROOT / "docs" / "mixture.schema.json").read_text(encoding="utf-8") == shipped


@pytest.mark.parametrize("text", GOOD)
def test_good_files(text: str, write: Any) -> None:
    assert list(VALIDATOR.iter_errors(as_json(text))) == []
    problems = [
        each.message
        for each in read_model(write(text))[1]
        if "there is no file" not in each.message
    ]
    assert problems == []


@pytest.mark.parametrize("text", BAD)
def test_bad_files(text: str, write: Any) -> None:
    assert list(VALIDATOR.iter_errors(as_json(text)))
    assert read_model(write(text))[1]


def test_sources_may_come_from_what_is_included(write: Any) -> None:
    path = write("sources: {a: {path: x}}")
    other = path.with_name("other.yaml")
    other.write_text(f"include: {path.name}\nseed: 3\n")
    model, problems = read_model(other)
    assert model is not None and problems == [] and model.names == ("a",)
    assert list(VALIDATOR.iter_errors(as_json(other.read_text()))) == []
    nested = {"sources": {"a": {"mixture": {"seed": 3}}}}
    assert list(VALIDATOR.iter_errors(nested)), "a mixture inside another one includes nothing"


@pytest.mark.parametrize(
    "path", sorted((ROOT / "examples").glob("*.yaml")), ids=lambda path: path.name
)
def test_examples_fit(path: Path) -> None:
    assert list(VALIDATOR.iter_errors(as_json(path.read_text(encoding="utf-8")))) == []


def test_the_page_names_every_key() -> None:
    page = (ROOT / "docs" / "mixture-files.md").read_text(encoding="utf-8")
    definitions = [build_schema(), *build_schema()["$defs"].values()]
    names = {
        name
        for each in definitions
        for part in (each, *each.get("anyOf", ()))
        for name in part.get("properties", {})
    }
    assert len(names) > 50
    assert {name for name in names if f"`{name}`" not in page} == set()
