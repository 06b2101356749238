"""The demo's journal: torn lines, comparison, and that a difference is found."""

from __future__ import annotations

from pathlib import Path

from penstock.cli.demo.journal import JournalReader, Record, compare_runs, write


def record(step: int, digest: str | None = None) -> Record:
    return Record(
        step, digest or f"d{step}", [["code", 0, step]], {"code": 1}, {"code": 8}, 0.1 * step, 1
    )


def test_tail_reads_what_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    tail = JournalReader(path)
    assert tail.more() == []
    with path.open("a") as file:
        write(file, record(1))
        write(file, record(2))
        file.write('{"step": 3, "dig')
    assert [found.step for found in tail.more()] == [1, 2]
    assert tail.more() == []
    with path.open("a") as file:
        file.write(
            'est": "d3", "keys": [], "samples": {}, "by_source": {}, "seconds": 1.0, "memory": 0}\n'
        )
    assert [found.step for found in tail.more()] == [3]
    assert [found.step for found in tail.records] == [1, 2, 3]


def test_equal_runs_are_equal() -> None:
    whole = [record(step) for step in range(1, 11)]
    proof = compare_runs(whole[:7], whole[4:], whole, 10)
    assert proof.holds
    assert (proof.equal, proof.again, proof.first, proof.last) == (10, 3, "d1", "d10")


def test_a_difference_is_found_wherever_it_is() -> None:
    whole = [record(step) for step in range(1, 11)]
    for wrong in range(1, 8):
        before = [record(step, "x" if step == wrong else None) for step in range(1, 8)]
        assert compare_runs(before, whole[4:], whole, 10).different == (wrong,)
    for wrong in range(5, 11):
        after = [record(step, "x" if step == wrong else None) for step in range(5, 11)]
        assert compare_runs(whole[:7], after, whole, 10).different == (wrong,)


def test_a_missing_step_is_found() -> None:
    whole = [record(step) for step in range(1, 11)]
    assert compare_runs(whole[:3], whole[4:], whole, 10).missing == (4,)
    assert compare_runs(whole[:7], whole[4:9], whole, 10).missing == (10,)
    assert not compare_runs([], [], [], 0).holds
