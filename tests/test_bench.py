"""The benchmark: its tables are whole, its floors are measured, its words for failures are true."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from example_counts import pick_cases
from helpers import through_json

ROOT = Path(__file__).resolve().parent.parent
pytestmark = pytest.mark.skipif(
    not (ROOT / "bench").is_dir(), reason="the benchmark is not part of this copy"
)
if str(ROOT) not in sys.path:
    sys.path.append(str(ROOT))

np = pytest.importorskip("numpy")
from bench import measure, run, table, work  # noqa: E402
from bench.kit import CHECKS, conformance  # noqa: E402
from bench.promises import promises  # noqa: E402
from bench.report import write  # noqa: E402

TINY = measure.Scale(slice_s=0.02, slices=1, share_s=0.05, docs=500, reach_s=0.2)


def row(case: str, make: object, **facts: object) -> table.Row:
    return table.Row("mine", case, "as it is", make, True, dict(facts))  # pyright: ignore[reportArgumentType]


def test_every_row_is_of_a_case_and_has_a_name_of_its_own() -> None:
    names = [(r.peer, r.case, r.how) for peer in table.peers().values() for r in peer.rows]
    assert len(set(names)) == len(names) > 50
    assert {case for _, case, _ in names} == set(table.CASES)
    assert list(table.peers())[:2] == ["floor", "penstock"]


def test_listing_the_peers_imports_none_of_them() -> None:
    lines, said, ended = run.child({"rows": [], "scale": {}}, 30)
    assert (ended, lines) == (0, []), said
    code = "import sys, bench.table as t; t.peers(); print([m for m in ('torch', 'grain', 'numpy') if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True
    )
    assert done.stdout.strip() == "[]"


def test_the_floor_is_measured_beside_the_row() -> None:
    """A row that is the floor comes out at about one; one that sleeps on its work comes out below; no figure is fixed."""

    def twice(given: work.Ints) -> Iterator[list[int]]:
        for batch in given.floor():
            for _ in range(8):
                sorted(batch)
            yield batch

    same = measure.stream(row("overhead", lambda given: given.floor()), TINY)
    slow = measure.stream(row("overhead", twice), TINY)
    assert 0.3 < same["ratio"] < 3 and slow["ratio"] < same["ratio"]
    for found in (same, slow):
        assert found["ratio"] == found["per_cpu_s"] / found["floor_per_cpu_s"]
    assert same["floor_per_s"] != slow["floor_per_s"]


def test_quick_prints_ratios_for_what_is_installed() -> None:
    runner = run.Runner(TINY, 60, quiet=True)
    run.quick(runner, list(run.chosen(["overhead", "start"], ["penstock"], {})))
    found = through_json(run.ratios(runner.results))
    assert not runner.results.failed
    assert found["overhead"]["penstock"] > 0 and found["start import_s"]["penstock"] > 0


@pytest.mark.slow  # processes of rows
def test_every_row_of_ours_runs() -> None:
    """Two rows of headlines failed for a hundred commits. One case of six in a usual run, all take 30 s of CPU."""
    cases = pick_cases(table.CASES, 6)
    every = [r for name in ("floor", "penstock") for r in table.peers()[name].rows]
    ours = [r for r in every if r.case in cases]
    assert ours
    done = subprocess.run(
        [sys.executable, "-m", "bench", "--tiny", "--peers", "penstock", "--only", ",".join(cases)],
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == f"{len(ours)} rows ran, 0 failed"


def test_a_run_goes_on_behind_the_last_task(tmp_path: Path) -> None:
    kept = tmp_path / "unfinished.json"
    rows = list(run.chosen(["overhead"], ["penstock"], {}))
    tasks = run.make_tasks(rows, 2)
    first = run.Runner(TINY, 60, True, kept, "one")
    first.run(tasks[:2])
    again = run.Runner(TINY, 60, True, kept, "one")
    asked: list[str] = []
    again.ask = lambda rows, **more: asked.append(rows[0].name)  # pyright: ignore[reportAttributeAccessIssue]
    again.run(tasks)
    assert asked == [task.rows[0].name for task in tasks[2:]]
    assert again.results.to_json() == first.results.to_json() and first.results.numbers
    assert not run.Runner(TINY, 60, True, kept, "another commit").done


def test_later_rounds_end_at_the_deadline() -> None:
    runner, asked = run.Runner(TINY, 60, quiet=True), list[str]()
    runner.ask = lambda rows, **more: asked.append(rows[0].name)  # pyright: ignore[reportAttributeAccessIssue]
    rows = list(run.chosen(["overhead"], ["penstock"], {}))
    runner.run(run.make_tasks(rows, 3), deadline=0.0)
    assert asked == [row.name for row in rows]


def test_the_worst_deviation_is_that_of_every_prefix() -> None:
    rng = np.random.default_rng(0)
    sources = rng.choice(3, 400, p=[0.5, 0.3, 0.2])
    weights = [0.5, 0.3, 0.2]
    counts = np.stack([np.cumsum(sources == i) for i in range(3)], 1)
    slow = np.abs(counts - np.arange(1, 401)[:, None] * np.asarray(weights)).max()
    assert measure.worst(sources, weights) == pytest.approx(slow, abs=1e-9)
    assert measure.worst(np.zeros(10, int), [0.5, 0.5]) == 5


def test_documents_are_copied_whole_by_the_floor() -> None:
    docs = work.Docs(64, 50)
    first = next(docs.floor())
    assert first.shape == (8, 64)
    joined = np.concatenate([docs.document(i) for i in docs.order])[: first.size]
    assert first.reshape(-1).tolist() == joined.tolist()


def test_the_kit_tells_a_loader_that_forgets_from_one_that_does_not() -> None:
    from bench.savable import SavablePipeline

    class Counter:
        def __init__(self, forgets: bool) -> None:
            self.at, self.forgets = 0, forgets

        def __iter__(self) -> Iterator[int]:
            while self.at < 30:
                self.at += 1
                yield self.at

        def state_dict(self) -> dict[str, int]:
            return {"at": self.at}

        def load_state_dict(self, state: dict[str, int]) -> None:
            self.at = 0 if self.forgets else state["at"]

    def subject(forgets: bool) -> dict[str, object]:
        return {
            "resume": lambda: SavablePipeline(Counter(forgets)),
            "mixture": lambda: iter("abacabcaba" * 1000),
        }

    good, bad = (conformance(row("kit", lambda f=f: subject(f)), TINY) for f in (False, True))
    assert set(good) == set(CHECKS)
    assert good["resume"] == "yes" and bad["resume"].startswith("no: resumed at position")
    assert good["mixture"] == "yes" and good["covers"] == "none: not offered"


def test_a_row_that_fails_is_told_and_not_run_again() -> None:
    runner = run.Runner(TINY, 60, quiet=True)
    missing = table.Row("floor", "overhead", "no such row", lambda given: given)
    runner.ask([missing])
    assert "no such row" not in str(runner.results.numbers) and runner.results.failed
    runner.ask([missing])
    assert len(runner.results.failed) == 1


def test_the_report_names_what_is_absent_and_what_does_not_hold(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    results = run.Results(absent={"grain": "not installed"})
    for peer, ratio in (("penstock", 0.5), ("floor", 1.0), ("torch", 0.6)):
        results.add(
            {"peer": peer, "case": "overhead", "how": "so", "found": {"ratio": ratio, "per_s": 1.0}}
        )
    assert run.Results.from_json(through_json(results.to_json())).middle(
        ("torch", "overhead", "so"), "ratio"
    ) == pytest.approx(0.6)
    text = write(results, {"line": "one core", "versions": {}}, 1, tmp_path).read_text()
    assert "grain: not measured here: not installed" in text and "pictures/overhead.svg" in text
    verdicts = {promise: verdict for promise, *_, verdict in promises(results)}
    assert next(v for p, v in verdicts.items() if "best peer (torch" in p) == "**does not hold**"
    assert verdicts["Per-sample overhead: times grain"] == "?"


@pytest.mark.slow
def test_every_case_has_a_table_in_the_report(tmp_path: Path) -> None:
    """Those of reading had none: the benchmark failed after its last row."""
    pytest.importorskip("matplotlib")
    results = run.Results()
    for case in table.CASES:
        results.add({"peer": "penstock", "case": case, "how": "so", "found": {"ratio": 0.125}})
    text = write(results, {"line": "one core", "versions": {}}, 1, tmp_path).read_text()
    assert all(f"## {case.title}\n" in text for case in table.CASES.values() if case.kind != "kit")
    assert text.count("| 0.125 |") >= len(
        [case for case in table.CASES if case.startswith("read_")]
    )


def test_the_state_of_a_far_step_leads_to_its_batch() -> None:
    """It was one that was saved at the start with another position, which is refused by now."""
    from bench.peers.penstock import PEER

    far = [each for each in PEER.rows if each.case == "resume" and each.make().jump]
    for each in far:
        held, other = each.make(), each.make()
        other.load_state_dict(held.jump(held, 10**9))
        assert np.array_equal(next(other), held.want(10**9))
    assert far
