"""The plan asked before and after: what is in a step, when a document is seen; and the run held
against the answers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from penstock.engine.plan import Sample
from penstock.report import Target

from .journal import Record

DOCUMENTS = 200


@dataclass(frozen=True)
class Answers:
    """What the plan said, and where the run did otherwise. Steps count from 0, as on the command
    line."""

    step: int
    samples: Sequence[Sample]
    document: tuple[str, int]
    seen: Sequence[int]
    wrong_steps: Sequence[int]
    asked: int
    wrong_documents: Sequence[tuple[str, int]]

    @property
    def hold(self) -> bool:
        return not self.wrong_steps and not self.wrong_documents

    def step_in_words(self) -> list[str]:
        """The documents of the step, one a line."""
        return [
            f"{sample.source}[{sample.index}]"
            + (f", pass {sample.epoch + 1}" if sample.epoch else "")
            + f", tokens {sample.start:,} to {sample.stop:,}"
            for sample in self.samples
        ]

    def seen_in_words(self) -> str:
        """When the document is seen."""
        steps = ", ".join(f"{step:,}" for step in self.seen)
        return (
            f"{self.document[0]}[{self.document[1]}] is in step {steps}" if self.seen else "never"
        )


def ask(target: Target, records: Sequence[Record], step: int) -> Answers:
    """Ask what every step holds and when 200 documents are seen, and hold the records of a run
    against it."""
    plan, steps = target.plan, len(records)
    planned = defaultdict[int, list[tuple[str, int, int]]](list)
    for sample in plan.at(slice(0, steps)):
        planned[sample.position].append(sample.key)
    wrong = [
        record.step - 1
        for record in records
        if planned[record.step - 1] != [tuple(key) for key in record.keys]
    ]
    given = delivered(records)
    chosen = sorted(given)[:: max(1, len(given) // DOCUMENTS)][:DOCUMENTS]
    found = {document: plan.find(*document, within=range(steps)) for document in chosen}
    samples = plan.at(step)
    document = samples[0].source, samples[0].index
    return Answers(
        step=step,
        samples=samples,
        document=document,
        seen=plan.find(*document, within=range(steps)),
        wrong_steps=wrong,
        asked=len(chosen),
        wrong_documents=[document for document in chosen if found[document] != given[document]],
    )


def delivered(records: Sequence[Record]) -> Mapping[tuple[str, int], list[int]]:
    """The steps at which a run had each document."""
    found = defaultdict[tuple[str, int], set[int]](set)
    for record in records:
        for source, _, index in record.keys:
            found[str(source), int(index)].add(record.step - 1)
    return {document: sorted(steps) for document, steps in found.items()}
