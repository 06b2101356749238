"""Answers of the explorer: one class, without a server."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

from penstock import __version__
from penstock.dataset import Dataset
from penstock.errors import ConfigError
from penstock.loader import Loader
from penstock.mixture_files import MixtureFile
from penstock.saves import read_states, write_state
from penstock.stores import is_remote
from penstock.stores.outputs import open_output
from penstock.stores.urls import redact_urls

from .. import shares
from ..target import Target, open_target
from .comparison import Comparison
from .documents import DocumentFinder
from .live import LiveStats
from .steps import StepReader
from .timeline import Timeline
from .values import make_printable
from .what_if import apply_edit, describe_settings, format_mixture, parse_edit

FALLBACK_STEPS = 1_000
"""Length of a run without an end whose sources can only be counted one by one."""

Json: TypeAlias = dict[str, Any]

MAIN, EDITED = "main", "edited"
"""Names of the opened mixture, and of its edit by hand."""


@dataclass(frozen=True)
class ExploredPlan:
    """A mixture with everything that answers questions about it."""

    target: Target
    steps: int
    timeline: Timeline
    reader: StepReader
    finder: DocumentFinder

    @staticmethod
    def of(target: Target, steps: int | None = None) -> ExploredPlan:
        """Return the plan of a target.

        Args:
            target: The opened mixture.
            steps: The length of the run; by default as in `penstock plan`.
        """
        try:
            length = max(target.horizon(steps), 1)
        except ConfigError:  # the mixture can only be counted one by one
            length = FALLBACK_STEPS
        if target.rows.position and target.end is None:
            length = max(length, target.rows.next_step + 1)
        reader = StepReader(target)
        return ExploredPlan(
            target, length, Timeline(target, length), reader, DocumentFinder(target, length, reader)
        )


class Explorer:
    """Answers questions about the plan of a mixture, or of a run, as JSON values.

    Each answer takes bounded time and memory; longer ones come in parts.

    Args:
        path: The mixture file.
        state: The state of a run.
        others: Mixture files to compare with.
        steps: The length of the run; by default as in `penstock plan`.
        allow: Rights of files from URLs, as in `ps.load`.
        stats: The stats file of a running job, or its folder.

    Raises:
        ConfigError: A file has problems.
        StateError: The state is damaged, or of another pipeline.
    """

    def __init__(
        self,
        path: Path,
        state: Path | None = None,
        others: Sequence[Path] = (),
        steps: int | None = None,
        allow: Collection[str] | None = None,
        stats: Path | None = None,
    ) -> None:
        self._live = None if stats is None else LiveStats(stats)
        self._opened = dict[str, Dataset]()
        self._path, self._state, self._steps = path, state, steps
        target = open_target(path, state=state, allow=allow, opened=self._opened)
        self._plans = {MAIN: ExploredPlan.of(target, steps)}
        if state is not None:
            target = open_target(path, allow=allow, opened=self._opened)
            self._plans["file"] = ExploredPlan.of(target, steps)
        for number, other in enumerate(others, 1):
            target = open_target(other, allow=allow, opened=self._opened)
            self._plans[f"other{number}"] = ExploredPlan.of(target, steps)

    @property
    def main(self) -> ExploredPlan:
        """The plan of the mixture, or of the run."""
        return self._plans[MAIN]

    def get_plan(self, name: str) -> ExploredPlan:
        """Return a plan by its name.

        Raises:
            ConfigError: There is none.
        """
        if name not in self._plans:
            raise ConfigError(f"no plan {name[:100]!r}; there are {', '.join(self._plans)}")
        return self._plans[name]

    # ------------------------------------------------------------ the mixture

    def describe(self) -> Json:
        """Return facts of the mixture and its sources."""
        plan, target = self.main, self.main.target
        return {
            "version": __version__,
            "title": make_printable(self._path.name),
            "path": redact_urls(str(self._path)),
            "state": None if self._state is None else redact_urls(str(self._state)),
            "note": target.note or None,
            "unit": target.unit,
            "steps": plan.steps,
            "ends": target.end is not None,
            "position": target.rows.next_step if target.rows.position else None,
            "ranks": target.log.records[-1].ranks,
            "rows": target.rows_of_step,
            "packed": target.packed,
            "indexed": target.indexed,
            "by": "tokens" if target.by_tokens else "samples",
            "groups": list(dict.fromkeys(target.groups.values())),
            "sources": [
                {
                    "name": name,
                    "group": target.groups.get(name),
                    "size": target.sizes.get(name),
                    "tokens": target.all_tokens.get(name),
                    "cap": target.caps.get(name),
                }
                for name in target.plan.sources
            ],
            "plans": self._describe_plans(),
            "has_stats": self._live is not None,
        }

    def _describe_plans(self) -> list[Json]:
        return [
            {
                "name": name,
                "title": make_printable(self._title(name, plan.target)),
                "steps": plan.steps,
            }
            for name, plan in self._plans.items()
        ]

    def _title(self, name: str, target: Target) -> str:
        if name == MAIN:
            return f"{self._path.name}, the run" if self._state is not None else self._path.name
        if name == "file":
            return f"{self._path.name}, a new run"
        return "the edit of What if" if name == EDITED else target.path.name

    def list_sources(self, name: str = MAIN) -> Json:
        """Return the row of each source over the whole run, and the remarks.

        Args:
            name: The plan.
        """
        plan = self.get_plan(name)
        rows = shares.rows(plan.target, plan.steps)
        return {
            "steps": plan.steps,
            "by": "tokens" if plan.target.by_tokens else "samples",
            "sources": shares.convert_to_json(rows),
            "marks": plan.timeline.marks,
        }

    # ------------------------------------------------------------ compare

    def compare(self, name: str, base: str = MAIN, row: int | None = None) -> Json:
        """Compare two plans.

        Args:
            name: The other plan.
            base: The first plan.
            row: The row at which the search for the first difference continues.

        Returns:
            `settings` (only without `row`), `first`, `compared` and `next`.
        """
        before, after = self.get_plan(base), self.get_plan(name)
        steps = min(before.steps, after.steps)
        comparison = Comparison(before.target, after.target, steps)
        answer = comparison.find_first_difference(row or 0)
        answer |= {"unit": before.target.unit, "steps": steps}
        if row is None:
            answer |= {
                "settings": comparison.list_settings(),
                "ends": [before.steps, after.steps],
            }
        return answer

    # ------------------------------------------------------------ live

    def read_live(self) -> Json:
        """Return the state and the history of the running job.

        The shares that the plan has at the step of the job are `planned`.
        """
        if self._live is None:
            return {"waiting": "no stats file: open the explorer with --stats FILE"}
        answer = self._live.read()
        if "summary" not in answer:
            return answer
        step = answer["summary"].get("step")
        target = self.main.target
        if isinstance(step, int) and step > 0 and target.indexed:
            step = step if target.end is None else min(step, target.end)
            counts = target.rows.counts(step=step)
            total = max(1, sum(counts.values()))
            answer["planned"] = {name: round(n / total, 6) for name, n in counts.items()}
        return answer

    # ------------------------------------------------------------ what if

    @cached_property
    def settings(self) -> Json:
        """The settings that an edit can change."""
        return describe_settings(self.main.target.model)

    def edit(self, data: Any) -> Json:
        """Plan the mixture with changes, as the plan `edited`.

        For a run, the plan is that of the run which adopts the changed mixture at its position.

        Args:
            data: The changes, as `parse_edit` takes them.

        Returns:
            `steps`, and the shares and epochs of all sources `before` and `after` the changes.

        Raises:
            ConfigError: The changes give no valid mixture.
        """
        model = self._apply_edit(data)
        target = open_target(self._path, model, opened=self._opened)
        if self._state is not None:
            target = self._adopt_run(target)
        self._plans[EDITED] = ExploredPlan.of(target, self._steps)
        plan = self._plans[EDITED]
        return {"steps": plan.steps, "unit": target.unit, "plans": self._describe_plans()} | {
            "before": self._sum_amounts(self.main, plan.steps),
            "after": self._sum_amounts(plan, plan.steps),
        }

    def _sum_amounts(self, plan: ExploredPlan, steps: int) -> dict[str, list[float]]:
        """Return the share and the epochs of each source over the first steps of a plan."""
        target = plan.target
        samples = target.rows.counts(step=min(steps, plan.steps))
        amounts = target.tokens(min(steps, plan.steps)) if target.by_tokens else samples
        total = max(1, sum(amounts.values()))
        totals = target.all_tokens if target.packed else target.sizes
        counted = amounts if target.packed else samples
        return {
            name: [
                round(amounts.get(name, 0) / total, 6),
                round(counted.get(name, 0) / max(totals.get(name, 0), 1), 4),
            ]
            for name in samples
        }

    def _apply_edit(self, data: Any) -> MixtureFile:
        return apply_edit(self.main.target.model, parse_edit(data))

    def _adopt_run(self, target: Target) -> Target:
        """Return the target as the run that adopts it at its position."""
        plan = target.plan.for_state(self._load_adopted(target.dataset))
        return replace(target, plan=plan, rows=plan.rows())

    def _load_adopted(self, dataset: Dataset) -> list[dict[str, Any]]:
        """Return the states of the run after it adopted a dataset, one of each rank."""
        assert self._state is not None
        if not self._state.is_dir():
            raise ConfigError(
                f"{self._state}: an edit of a run needs the folder of its states, not one file"
            )
        _, states = read_states(self._state)
        ranks = self.main.target.log.records[-1].ranks
        adopted = list[dict[str, Any]]()
        for rank in range(ranks):
            with Loader(dataset, rank=rank, world_size=ranks) as loader:
                loader.load_state_dict(states, "adopt")
                adopted.append(loader.state_dict())
        return adopted

    def format_edit(self, data: Any) -> Json:
        """Return the mixture file with changes as text.

        Args:
            data: The changes, as `parse_edit` takes them.
        """
        return {"text": format_mixture(self._apply_edit(data), self._path)}

    def save_edit(self, data: Any, name: str) -> Json:
        """Write the mixture file with changes beside the mixture file.

        Args:
            data: The changes, as `parse_edit` takes them.
            name: The name of the new file.

        Returns:
            The `path` of the file.

        Raises:
            ConfigError: The name is no new file name, or the changes give no valid mixture.
        """
        model = self._apply_edit(data)
        path = self._locate_output(name, (".yaml", ".yml"))
        text = format_mixture(model, path)
        with open_output(path) as file:
            file.write(text.encode())
        return {"path": str(path)}

    def save_run(self, data: Any, name: str) -> Json:
        """Write the state of the run that adopts the changes, into a new folder.

        Args:
            data: The changes, as `parse_edit` takes them.
            name: The name of the new folder, beside the folder of states.

        Returns:
            The `path` of the folder.

        Raises:
            ConfigError: There is no run, or the name is no new file name.
        """
        if self._state is None:
            raise ConfigError("there is no run to change; open the explorer with --state")
        target = open_target(self._path, self._apply_edit(data), opened=self._opened)
        states = self._load_adopted(target.dataset)
        path = self._locate_output(name, (), self._state.absolute().parent)
        for rank, state in enumerate(states):
            write_state(path, state, rank, len(states))
        return {"path": str(path)}

    def _locate_output(
        self, name: str, suffixes: tuple[str, ...], folder: Path | None = None
    ) -> Path:
        """Return the path of a new file in the folder of the mixture, or in another folder."""
        if folder is None:
            if is_remote(self._path):
                raise ConfigError(
                    "the mixture file is at a URL: copy the text of the new file instead"
                )
            folder = self._path.absolute().parent
        is_plain = name == Path(name).name and not name.startswith(".") and len(name) < 200
        if not is_plain or not name.isprintable() or "\\" in name or "/" in name:
            raise ConfigError(f"{name[:100]!r}: give a plain file name, without folders")
        if suffixes and not name.endswith(suffixes):
            raise ConfigError(f"{name}: a mixture file ends in .yaml; add it to the name")
        path = folder / name
        if path.exists() or path.is_symlink():
            raise ConfigError(f"{path} exists already; give another name")
        return path
