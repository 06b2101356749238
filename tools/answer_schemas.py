"""Write the JSON Schema of what the command line prints with `--json`: `python
tools/answer_schemas.py`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent

TEXT, INT, NUMBER, FLAG = ({"type": kind} for kind in ("string", "integer", "number", "boolean"))
ANY: dict[str, Any] = {}


def maybe(kind: Any) -> Any:
    return {"anyOf": [kind, {"type": "null"}]}


def many(kind: Any) -> Any:
    return {"type": "array", "items": kind}


def named(kind: Any) -> Any:
    return {"type": "object", "additionalProperties": kind}


def record(**keys: Any) -> Any:
    return {
        "type": "object",
        "properties": keys,
        "required": list(keys),
        "additionalProperties": False,
    }


def answer(**keys: Any) -> Any:
    return record(version={"const": 1}, **keys)


def perhaps(schema: Any, **keys: Any) -> Any:
    """With keys that are there or not."""
    return {**schema, "properties": {**schema["properties"], **keys}}


UNIT = {"enum": ["step", "sample"]}
ROW = record(
    source=TEXT, size=maybe(INT), requested=NUMBER, share=NUMBER, samples=INT, tokens=maybe(INT), epochs=NUMBER,
    cap=maybe(NUMBER), first_repeat=maybe(INT), ends=maybe(INT), used_up=maybe(INT), group=maybe(TEXT),
    remarks=many(TEXT),
)  # fmt: skip
PROBLEM = record(
    file=TEXT, line=INT, key=TEXT, severity={"enum": ["error", "warning", "note"]}, message=TEXT
)
KEY = record(file=TEXT, line=INT, key=TEXT)
SAMPLE = {
    "type": "object",
    "properties": {
        "step": INT, "sample": INT, "source": TEXT, "epoch": INT, "index": INT, "start": INT, "stop": INT, "text": TEXT,
        "masked": FLAG,
    },
    "required": ["source", "epoch", "index"],
    "additionalProperties": False,
}  # fmt: skip
REMOVAL = record(source=TEXT, index=INT, how={"enum": ["replaced", "masked"]}, row=maybe(INT))
SIDE = record(steps=INT, unit=UNIT, sources=many(ROW))

ANSWERS = {
    "error": answer(error=record(kind=TEXT, message=TEXT, exit_code={"enum": [1, 2, 130]})),
    "plan": perhaps(
        answer(
            mixture=TEXT, unit=UNIT, steps=INT, samples=INT, fingerprint=named(TEXT), sources=many(ROW),
            stages=many(record(
                step=INT, name=maybe(TEXT), row=INT, tokens=maybe(INT), length=maybe(INT), batch=INT
            )),
            picture=maybe(TEXT),
        ),
        packing=record(
            rows=maybe(INT), tokens=maybe(INT), fill=NUMBER, split=NUMBER, cut=NUMBER, sampled=INT, stored=named(TEXT),
            methods=many(record(
                method=TEXT, overflow=maybe(TEXT), current={"type": "boolean"}, rows=INT, fill=NUMBER, crop=NUMBER,
                split=NUMBER, aligned=NUMBER, crop_by_source=named(NUMBER),
            )),
            untrained=named(NUMBER),
        ),
    ),
    "at": answer(unit=UNIT, samples=many(SAMPLE)),
    "find": answer(
        **{"unit": UNIT, "from": INT, "to": INT},
        samples=many(perhaps(
            record(source=TEXT, index=INT, steps=many(INT)),
            passes=INT, pieces=many(perhaps(record(epoch=INT, start=INT, stop=INT), step=INT, sample=INT, masked=FLAG)),
        )),
    ),
    "diff": answer(
        says=many(TEXT), unit=UNIT, first=maybe(INT), samples=named({"type": "array", "items": INT}), steps=INT
    ),
    "simulate": answer(as_it_is=SIDE, changed=SIDE),
    "audit": answer(mixture=TEXT, unit=UNIT, first=INT, stop=INT, lines=INT, out=TEXT),
    "blame": answer(
        mixture=TEXT, unit=UNIT, first=INT, stop=INT,
        findings=many(record(kind=TEXT, source=TEXT, here=NUMBER, usual=NUMBER, bits=NUMBER, text=TEXT)),
    ),
    "seen": answer(
        mixture=TEXT, unit=UNIT, before=maybe(INT), samples=INT, documents=INT, tokens=maybe(INT),
        repeats=many(record(times=INT, documents=INT)),
        sources=many(
            record(source=TEXT, size=maybe(INT), samples=INT, documents=INT, tokens=maybe(INT), most=INT)
        ),
        out=maybe(TEXT),
    ),
    "leaks": answer(
        mixture=TEXT, other=TEXT, by=TEXT, documents=INT,
        leaks=many(record(here=TEXT, there=TEXT, documents=INT, examples=many(many(INT)))),
    ),
    "lint": answer(problems=many(PROBLEM)),
    "report": answer(mixture=TEXT, unit=UNIT, steps=INT, report=TEXT),
    "replay": answer(
        mixture=TEXT, first=INT, stop=INT, samples=INT, same=FLAG, different=many(INT), missing=many(INT),
        out=maybe(TEXT),
    ),
    "run": answer(
        mixture=TEXT, first_step=INT, steps=INT, seconds=NUMBER, samples=INT, tokens=INT, samples_per_s=NUMBER,
        tokens_per_s=NUMBER, waited=NUMBER, errors=INT, peak_bytes=INT, finished=FLAG, state=maybe(TEXT),
        unit={"enum": ["samples", "documents", "tokens"]},
        sources=named(record(samples=INT, share=NUMBER, requested=NUMBER)),
    ),
    "top": answer(
        path=maybe(TEXT), time=maybe(NUMBER), age_s=maybe(NUMBER),
        status={"enum": ["running", "closed", "ended", "stale", "no data"]},
        ranks=INT, world_size=INT, sessions=INT, run=maybe(TEXT), step=INT, steps=maybe(INT), epoch=INT,
        samples_per_s=NUMBER, tokens_per_s=maybe(NUMBER), steps_per_s=NUMBER, waited=NUMBER,
        waited_by_rank=named(NUMBER), samples=named(INT), shares=named(NUMBER),
        work=many(record(step=TEXT, source=TEXT, items=INT, seconds=NUMBER, processor=NUMBER)),
        resident_bytes=INT, resident_by_rank=named(INT), under_way=INT, under_way_bytes=INT, worker_deaths=INT,
        retries=INT, cache_hits=INT, cache_misses=INT, stalls=INT, bytes=INT, errors=INT, quarantined=named(INT),
        cropped=named(INT), warnings=many(TEXT),
    ),
    "edit": answer(state=TEXT, skipped=many(TEXT), excluded=many({"type": "array"}), removals=many(REMOVAL)),
    "convert": answer(
        mixture=maybe(TEXT), format=TEXT, sources=many(TEXT),
        keys=record(carried=many(KEY), harmless=many(KEY), reported=many(KEY)), lost=many(PROBLEM), notes=many(PROBLEM),
    ),
    "index": answer(files=named(INT)),
    "prepare": answer(out=TEXT, format=TEXT, samples=INT, files=many(TEXT), bytes=INT),
    "tokenize": answer(
        out=TEXT, mixture=TEXT, documents=INT, tokens=INT, trained=INT, files=INT, bytes=INT, dropped=named(INT),
        sources=named(
            record(
                folder=TEXT, documents=INT, tokens=INT, trained=INT, dropped=named(INT), files=INT, bytes=INT
            )
        ),
    ),
    "info": answer(
        name=TEXT, format=TEXT, files=INT, samples=INT, bytes=INT, columns=maybe(named(TEXT)), checksums=TEXT,
        written_by_penstock=FLAG, row_groups=maybe(record(rows=INT, bytes=INT)),
        tokens=maybe(
            record(column=maybe(TEXT), total=INT, mean=NUMBER, median=NUMBER, p99=NUMBER, least=INT, most=INT)
        ),
    ),
    "preview": {
        "anyOf": [
            answer(samples=many(record(index=INT, sample=ANY))),
            answer(
                rows=many(
                    record(
                        index=INT,
                        documents=many(
                            record(
                                name=TEXT, source=maybe(TEXT), epoch=maybe(INT), index=maybe(INT), ids=many(INT),
                                texts=many(TEXT), loss_mask=maybe(many(FLAG)),
                            )
                        ),
                    )
                )
            ),
        ]
    },
    "verify": answer(
        sound=FLAG, files=INT, samples=INT, bytes=INT, digests=INT, more=INT,
        problems=many(record(file=TEXT, row=maybe(INT), message=TEXT)),
        damage=many(record(file=TEXT, samples=INT, first=maybe(INT), last=maybe(INT), message=TEXT)),
    ),
    "cache": {
        "anyOf": [
            answer(folder=TEXT, blocks=INT, bytes=INT, limit=INT),
            answer(folder=TEXT, freed=INT),
            answer(folder=TEXT, blocks=INT, damaged=many(TEXT)),
        ]
    },
    "demo": {"type": "object", "properties": {"version": {"const": 1}, "equal_stream": FLAG}, "required": ["version"]},
}  # fmt: skip


def main() -> None:
    made = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "What `penstock COMMAND --json` prints",
        "anyOf": [{"$ref": f"#/$defs/{name}"} for name in ANSWERS],
        "$defs": ANSWERS,
    }
    for path in ("src/penstock/cli/answers.schema.json", "docs/answers.schema.json"):
        (ROOT / path).write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
