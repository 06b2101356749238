"""Queries of the plan before and after the demo's run, and comparison with the run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from penstock.engine.plan import Sample
from penstock.report import Target

from .journal import Record

COMPARED_DOCUMENTS = 200  # compared with the run


@dataclass(frozen=True)
class PlanAnswers:
    """Answers of the plan, and deviations of the run; steps count from 0, as in the CLI."""

    step: int
    samples: Sequence[Sample]
    document: tuple[str, int]
    seen: Sequence[int]
    wrong_steps: Sequence[int]
    queried: int
    wrong_documents: Sequence[tuple[str, int]]

    @property
    def hold(self) -> bool:
        return not self.wrong_steps and not self.wrong_documents

    def step_in_words(self) -> list[str]:
        """Return the documents of the step, one per line."""
        return [
            f"{sample.source}[{sample.index}]"
            + (f", pass {sample.epoch + 1}" if sample.epoch else "")
            + f", tokens {sample.start:,} to {sample.stop:,}"
            for sample in self.samples
        ]

    def seen_in_words(self) -> str:
        """Return the steps that deliver the document."""
        steps = ", ".join(f"{step:,}" for step in self.seen)
        return (
            f"{self.document[0]}[{self.document[1]}] is in step {steps}" if self.seen else "never"
        )


def query_plan(target: Target, records: Sequence[Record], step: int) -> PlanAnswers:
    """Query every step and the steps of 200 documents; compare them with the run's records."""
    plan, steps = target.plan, len(records)
    planned = defaultdict[int, list[tuple[str, int, int]]](list)
    for sample in plan.at(slice(0, steps)):
        planned[sample.position].append(sample.key)
    wrong = [
        record.step - 1
        for record in records
        if planned[record.step - 1] != [tuple(key) for key in record.keys]
    ]
    delivered_steps = find_delivery_steps(records)
    documents = sorted(delivered_steps)[:: max(1, len(delivered_steps) // COMPARED_DOCUMENTS)][
        :COMPARED_DOCUMENTS
    ]
    planned_steps = {document: plan.find(*document, within=range(steps)) for document in documents}
    samples = plan.at(step)
    document = samples[0].source, samples[0].index
    return PlanAnswers(
        step=step,
        samples=samples,
        document=document,
        seen=plan.find(*document, within=range(steps)),
        wrong_steps=wrong,
        queried=len(documents),
        wrong_documents=[
            document
            for document in documents
            if planned_steps[document] != delivered_steps[document]
        ],
    )


def find_delivery_steps(records: Sequence[Record]) -> Mapping[tuple[str, int], list[int]]:
    """Return the steps at which a run delivered each document."""
    steps_by_document = defaultdict[tuple[str, int], set[int]](set)
    for record in records:
        for source, _, index in record.keys:
            steps_by_document[str(source), int(index)].add(record.step - 1)
    return {document: sorted(steps) for document, steps in steps_by_document.items()}
