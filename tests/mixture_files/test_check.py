"""Every kind of mistake is found, with its file, line and key, and all of them in one go."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

import penstock as ps
from penstock.mixture_files import lint, read_model

# name: (file, the lines at which problems are, the message of the first)
MISTAKES: dict[str, tuple[str, list[int], str]] = {
    "points at one position": (
        "sources: {a: {path: code}, b: {path: text}}\nschedule:\n  points:\n    1000: {a: 1, b: 1}\n"
        "    1_000: {b: 0}",
        [5],
        "schedule.points.1_000: 1000 and 1_000 are one position: keep one of them",
    ),
    "half a range of hashes": (
        "sources:\n  a:\n    path: code\n    where:\n      lang: py\n      stars: {hash: [0.5]}",
        [6],
        "sources.a.where.stars: hash is (0.5,); two ascending numbers",
    ),
    "no condition": (
        "sources:\n  a:\n    path: code\n    where: {stars: {}}",
        [4],
        "sources.a.where.stars: 'stars' has an empty range; give min",
    ),
    "option of another method": (
        "sources: {a: {path: code}}\ntokenize: {tokenizer: org/name}\npack:\n  length: 8\n  overflow: split",
        [5],
        "pack.overflow: overflow is for best_fit, not for concat_split",
    ),
    "no section": (
        "sources: {}",
        [1],
        "expected a mapping such as {code: {path: …, weight: 1}}, not an empty mapping",
    ),
    "typo": (
        "sources:\n  a:\n    paht: x\n    path: code",
        [3],
        "sources.a.paht: unknown key 'paht'; did you mean 'path'?",
    ),
    "unknown": (
        "zzz: 1\nsources: {a: {path: code}}",
        [1],
        "unknown key 'zzz'; known: sources, seed",
    ),
    "twice": (
        "sources:\n  a: {path: code}\n  b: {path: text}\n  a: {path: text}",
        [4],
        "sources.a: 'a' appears twice, first on line 2",
    ),
    "text for number": (
        "seed: seven\nsources: {a: {path: code}}",
        [1],
        "seed: expected a whole number, not 'seven'",
    ),
    "seed beyond 64 bits": (
        "seed: 99999999999999999999999\nsources: {a: {path: code}}",
        [1],
        "seed: expected a whole number from -2^64 to 2^64, not 99999999999999999999999",
    ),
    "fraction": (
        "block_size: 2.5\nsources: {a: {path: code}}",
        [1],
        "a whole number at least 1, not 2.5",
    ),
    "stretch of nothing": (
        "one_source_per: 0\nsources: {a: {path: code}}",
        [1],
        "one_source_per: expected a whole number at least 1, not 0",
    ),
    "stretch of a word": (
        "one_source_per: step\nsources: {a: {path: code}}",
        [1],
        "one_source_per: expected a whole number of samples, or global_step, not 'step'",
    ),
    "negative": (
        "sources:\n  a: {path: code, weight: -1}",
        [2],
        "sources.a.weight: expected a number at least 0, not -1",
    ),
    "not finite": (
        "sources:\n  a: {path: code, weight: .inf}",
        [2],
        "sources.a.weight: expected a number at least 0, not inf",
    ),
    "no group": (
        "sources:\n  a: {path: code, group: x}",
        [2],
        "sources.a.group: there is no group 'x': add groups",
    ),
    "true for number": (
        "sources:\n  a: {path: code, weight: true}",
        [2],
        "a number at least 0, not True",
    ),
    "zero cap": ("sources:\n  a: {path: code, max_epochs: 0}", [2], "a number above 0, not 0"),
    "choice": (
        "stop: restrat\nsources: {a: {path: code}}",
        [1],
        "stop: 'restrat' is not one of restart, first_exhausted",
    ),
    "flag": (
        "sources: {a: {path: code}}\nbatch: {size: 2, drop_remainder: yes}",
        [2],
        "batch.drop_remainder: expected true or false, not 'yes'",
    ),
    "list": (
        "sources: {a: {path: {x: 1}}}",
        [1],
        "sources.a.path: expected a list, not a mapping",
    ),
    "empty list": (
        "sources: {a: {path: []}}",
        [1],
        "sources.a.path: expected a list of at least one",
    ),
    "value": (
        "sources: {a: {path: code, where: {lang: {min: [1]}}}}",
        [1],
        "sources.a.where.lang.min: expected one value, not a list",
    ),
    "empty where": (
        "sources: {a: {path: code, where: {}}}",
        [1],
        "sources.a.where: expected a mapping",
    ),
    "source": (
        "sources:\n  a: code/*.parquet",
        [2],
        "sources.a: expected a mapping of path, format",
    ),
    "no sources": ("seed: 1", [1], "'sources' is missing"),
    "empty": ("# nothing\n", [1], "the file is empty"),
    "a list": ("- a\n- b\n", [1], "expected a mapping of "),
    "neither": (
        "sources:\n  a: {weight: 1}",
        [2],
        "sources.a: give either path (files) or mixture",
    ),
    "both": (
        "sources:\n  a: {path: code, mixture: {sources: {b: {path: text}}}}",
        [2],
        "give either path (files) or mixture",
    ),
    "two shares": (
        "sources:\n  a: {path: code, weight: 1, epochs: 2}",
        [2],
        "sources.a: give only one of weight, tokens, epochs",
    ),
    "no weight": (
        "sources:\n  a: {path: code, weight: 1}\n  b: {path: text}",
        [3],
        "sources.b: the source has no weight, but others have one: give all sources one, or none",
    ),
    "all zero": ("sources:\n  a: {path: code, weight: 0}", [1], "sources: all weights are 0"),
    "name": ("sources:\n  a/b: {path: code}", [2], "a source name must not be empty, contain '/'"),
    "files only": (
        "sources:\n  a:\n    columns: [x]\n    mixture: {sources: {b: {path: code}}}",
        [3],
        "columns applies to sources of files; move it into the nested mixture",
    ),
    "inner key": (
        "sources:\n  a:\n    mixture:\n      batch: {size: 2}\n      sources: {b: {path: code}}",
        [4],
        "sources.a.mixture.batch: unknown key 'batch'",
    ),
    "no inner file": (
        "sources:\n  a: {mixture: none.yaml}",
        [2],
        "sources.a.mixture: there is no file",
    ),
    "inner number": (
        "sources:\n  a: {mixture: 3}",
        [2],
        "sources.a.mixture: expected a mixture file or the settings of a mixture, not 3",
    ),
    "presence": (
        "sources:\n  a:\n    path: code\n    start: 9\n    stop: 3",
        [5],
        "sources.a.stop: it stops at 3 and starts at 9",
    ),
    "column twice": (
        "sources: {a: {path: code, columns: [text, text]}}",
        [1],
        "sources.a.columns: a column is named twice",
    ),
    "slice": (
        "sources: {a: {path: code, slice: [0, 9, 0]}}",
        [1],
        "sources.a.slice: the step must be a whole number of at least 1, not 0",
    ),
    "slice beyond": (
        "sources: {a: {path: code, slice: [0%, 101%]}}",
        [1],
        "at most 100%, not '101%'",
    ),
    "long slice": (
        "sources: {a: {path: code, slice: [0, 9, 1, 1]}}",
        [1],
        "a list of at least one value and at most 3",
    ),
    "half a block": (
        "shuffle: {rows: 5}\nsources: {a: {path: code}}",
        [1],
        "shuffle: a block shuffle needs both rows and window",
    ),
    "pack": (
        "sources: {a: {path: code}}\npack: {method: first_fit}",
        [2],
        "pack: 'length' is missing",
    ),
    "tokenize": (
        "sources: {a: {path: code}}\ntokenize: {tokeniser: x}",
        [2, 2],
        "tokenize: 'tokenizer' is missing",
    ),
    "a key of a section without the section": (
        "sources: {a: {path: code}}\ntokenizer: x",
        [2],
        "unknown key 'tokenizer'; write tokenize: {tokenizer: …}",
    ),
    "two horizons": (
        "horizon: {samples: 1, steps: 2}\nsources: {a: {path: code}}",
        [1],
        "horizon: give one unit, not samples, steps",
    ),
    "mixed amounts": (
        "sources: {a: {path: code, weight: 1}, b: {path: text, epochs: 1}}",
        [1],
        "horizon: some sources have a weight, others an amount",
    ),
    "point": (
        "sources: {a: {path: code}}\nschedule:\n  points:\n    soon: {a: 1}",
        [4],
        "schedule.points.soon: expected a whole number of at least 0, or a fraction, not 'soon'",
    ),
    "point name": (
        "sources: {aa: {path: code}}\nschedule:\n  points:\n    5: {aaa: 1, aa: 1}",
        [4],
        "schedule.points.5.aaa: there is no source 'aaa'; did you mean 'aa'?",
    ),
    "point lacks": (
        "sources: {a: {path: code}, b: {path: text}}\nschedule:\n  points:\n    5: {a: 1}",
        [4],
        "a point must name every source; missing: b",
    ),
    "point zero": (
        "sources: {a: {path: code}}\nschedule:\n  points:\n    5: {a: 0}",
        [4],
        "schedule.points.5: all weights of this point are 0",
    ),
    "weight and points": (
        "sources:\n  a: {path: code, weight: 1}\nschedule: {points: {0: {a: 1}}}",
        [2],
        "sources.a.weight: the schedule defines the weights: remove one of them",
    ),
    "weight and temperature": (
        "temperature: 2\nsources:\n  a: {path: code, weight: 1}",
        [3],
        "temperature derives the weights from sizes",
    ),
    "points and temperature": (
        "temperature: 2\nsources: {a: {path: code}}\nschedule: {points: {0: {a: 1}}}",
        [1],
        "temperature: the schedule defines the weights",
    ),
    "variable": (
        "sources:\n  a:\n    path: ${NOT_SET_ANYWHERE}/x",
        [3],
        "sources.a.path: the environment variable NOT_SET_ANYWHERE is not set",
    ),
    "include": ("sources: {a: {path: code}}\ninclude: gone.yaml", [2], "include: there is no file"),
    "include number": (
        "include: [3]\nsources: {a: {path: code}}",
        [1],
        "include: expected a file or a list of files",
    ),
    "itself": (
        "sources: {a: {path: code}}\ninclude: mixture.yaml",
        [2],
        "in a cycle: mixture.yaml -> mixture.yaml",
    ),
    "inside itself": (
        "sources:\n  a: {mixture: mixture.yaml}",
        [2],
        "in a cycle: mixture.yaml -> mixture.yaml",
    ),
    "syntax": ("sources:\n  a: {path: code\nseed: 1", [3], "not valid YAML"),
    "tag": (
        "sources:\n  a: {path: !!python/name:os.system x}",
        [2],
        "sources.a.path: the tag 'tag:yaml.org,2002:python/name:os.system' is not supported",
    ),
    "tag of a list": (
        "sources: {a: {path: code}}\ninclude: !!python/object/apply:os.system [x]",
        [2],
        "include: the tag 'tag:yaml.org,2002:python/object/apply:os.system' is not supported",
    ),
    "complex key": ("? [a]\n: 1\nsources: {a: {path: code}}", [1], "a name must be a plain text"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistake(name: str, write: Any) -> None:
    text, lines, message = MISTAKES[name]
    path = write(text)
    problems = [problem for problem in lint(path) if problem.severity == "error"]
    assert [problem.line for problem in problems] == lines, problems
    assert {problem.file for problem in problems} == {str(path)}
    assert message in str(problems[0])
    with pytest.raises(ps.ConfigError) as caught:
        ps.load(path)
    assert f"{path}, line {lines[0]}" in str(caught.value)


def test_a_right_file_has_no_problem(write: Any) -> None:
    assert (
        lint(write("sources: {a: {path: code, weight: 0.25}, b: {path: text, weight: 0.75}}")) == []
    )


def test_all_problems_are_raised_at_once(write: Any) -> None:
    path = write(
        "sede: 1\nsources:\n  a: {path: nowhere, weight: 1}\n  b: {path: text, weight: -1}\n"
    )
    with pytest.raises(ps.ConfigError) as caught:
        ps.load(path)
    said = str(caught.value).splitlines()
    assert said[0] == "3 problems:"
    assert [line.split(": ")[0].strip() for line in said[1:]] == [
        f"{path}, line 1, sede",
        f"{path}, line 3, sources.a.path",
        f"{path}, line 4, sources.b.weight",
    ]


def test_problems_in_an_included_file_name_that_file(write: Any, data: Path) -> None:
    part = write("sources:\n  b: {path: text, wieght: 1}\n", "part.yaml")
    path = write("include: part.yaml\nsources: {a: {path: code}}")
    assert [(problem.file, problem.line) for problem in lint(path)] == [(str(part), 2)]
    write("sources:\n  a: {path: text}\n", "part.yaml")
    assert f"'a' appears twice, first in {part}, line 2" in str(lint(path)[0])
    write("include: mixture.yaml", "part.yaml")
    assert "in a cycle: mixture.yaml -> part.yaml -> mixture.yaml" in str(lint(path)[0])
    write("- a\n", "part.yaml")
    assert "an included file must hold settings and sources by name" in str(lint(path)[0])
    write("sources: {x: {path: ../code}}\nbatch: {size: 2}", "more/inner.yaml")
    path = write("sources: {a: {mixture: more/inner.yaml}}")
    assert "inner.yaml has batch, which only the outermost mixture may have" in str(lint(path)[0])


def test_no_problem_tells_a_secret(write: Any) -> None:
    url = "https://me:kana'rie-1@host/x.jsonl?sig=kanarie-2"
    for text in (
        "seed: {}",
        "{}: 3",
        "sources: {{a: {{path: code, {}: 1}}}}",
        "sources: {{a: {{slice: [{}]}}}}",
    ):
        path = write(text.format(f'"{url}"'))
        _, problems = read_model(path)
        with pytest.raises(ps.ConfigError) as caught:
            ps.load(path)
        told = f"{caught.value} {problems}"
        assert "https://host/x.jsonl" in told and "rie-" not in told


def test_a_file_that_cannot_be_read(data: Path) -> None:
    with pytest.raises(ps.ConfigError, match=r"none.yaml: cannot be read: No such file"):
        ps.load(data / "none.yaml")
    (data / "bytes.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ps.ConfigError, match="not a text file"):
        ps.load(data / "bytes.yaml")


def test_scalars_are_those_of_yaml_1_2(write: Any) -> None:
    text = """
    seed: 010
    sources:
      no: {path: code, weight: 1e1}
      on: {path: text, weight: 1_0, where: {lang: [no, "12", 2024-01-02, 1:30, ~]}}
    """
    model, problems = read_model(write(dedent(text)))
    assert model is not None and not problems
    assert model.names == ("no", "on") and model.seed == 10
    assert [source.weight for source in model.sources] == [10.0, 10]
    assert model.sources[1].where == {"lang": ("no", "12", "2024-01-02", "1:30", None)}


def test_aliases_do_not_unfold_without_end(write: Any) -> None:
    bomb = "a0: &a0 [x, x, x, x, x, x, x, x]\n"
    bomb += "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 8)}]\n" for i in range(1, 9))
    assert any(
        "nested too deep, or expand to too many" in str(problem) for problem in lint(write(bomb))
    )
    assert any("nested too deep" in str(problem) for problem in lint(write("a: &a [*a]\n")))


def test_an_escaped_variable_stays(write: Any) -> None:
    model, problems = read_model(write("sources: {a: {path: code, where: {lang: '$${X}'}}}"))
    assert model is not None and not problems
    assert model.sources[0].where == {"lang": ("${X}",)}


@pytest.mark.parametrize("bound", ["0.5", "abc", "true"])
def test_a_slice_that_is_no_row_number_names_percentages(bound: str, write: Any) -> None:
    _, (problem,) = read_model(write(f"sources: {{a: {{path: code, slice: [0, {bound}]}}}}"))
    assert problem.key == "sources.a.slice[1]"
    assert problem.message.startswith("expected a row number, or a percentage such as 50%, not ")
