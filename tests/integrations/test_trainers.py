"""Trainers are killed in the middle of an epoch, and go on as if they had not been: their own loops, real processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import penstock as ps
from example_counts import is_soak
from penstock.engine.runtime.states import decode_state, describe_position
from penstock.integrations.trainers import (
    AllRanks,
    EvalLoader,
    gather_states,
    iter_rest_or_next,
    require_one_step,
    require_ranks,
)

pytest.importorskip("torch")

from integrations.training import BATCHES, Run

pytestmark = pytest.mark.slow  # trainers in processes that are killed

HERE = Path(__file__).parent
SAMPLE = [("lightning", "lanes"), ("transformers", "rows")]
NIGHTLY = [
    ("accelerate", "lanes"),
    ("lightning", "rows"),
    ("accelerate", "rows"),
    ("transformers", "lanes"),
    ("torchtitan", "lanes"),
    ("olmo_core", "lanes"),
]


RUNS = {"full": 1, "dying": 2}
"""Of Ray Train: on how many workers."""


def train(runs: list[Run]) -> None:
    """Do the runs, one after the other, in a process that forks a process for each rank."""
    for run in runs:
        Path(run.folder).mkdir()
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(HERE / "training.py")],
        input=json.dumps([asdict(run) for run in runs]),
        env=os.environ
        | {
            "PYTHONPATH": os.pathsep.join(sys.path),
            "OMP_NUM_THREADS": "1",
            "TOKENIZERS_PARALLELISM": "0",
        },
        capture_output=True,
        text=True,
        timeout=3000,
    )
    assert done.returncode == 0, done.stderr[-4000:]


def saved(trainer: str, step: int) -> str:
    """Where a trainer writes what it had after so many steps of two batches each."""
    return {"torchtitan": f"checkpoint/step-{step}", "olmo_core": f"step{2 * step}"}.get(
        trainer, f"checkpoint-{step}"
    )


def told(run: Run) -> list[list[tuple[Any, float]]]:
    """Return what each rank trained: the samples of each batch, and the loss."""
    files = [Path(run.folder, f"rank-{rank}.jsonl") for rank in range(run.world)]
    return [[tuple(json.loads(line)) for line in file.read_text().splitlines()] for file in files]


def global_steps(run: Run) -> tuple[list[list[Any]], list[float]]:
    """The samples that all ranks trained together in each batch, sorted, and their mean loss."""
    batches = list(zip(*told(run), strict=True))
    ids = [sorted(row for rows, _ in batch for row in rows) for batch in batches]
    return ids, [sum(loss for _, loss in batch) / len(batch) for batch in batches]


@pytest.mark.parametrize(("trainer", "flow"), [*SAMPLE, *NIGHTLY])
def test_killed_in_the_middle_of_an_epoch_and_resumed(
    trainer: str, flow: str, tmp_path: Path
) -> None:
    pytest.importorskip(trainer)
    if (trainer, flow) in NIGHTLY and not is_soak():
        pytest.skip("two trainers in a usual run; the rest in `make soak`")

    def run(name: str, world: int, kill: int = 0, begin: Path | str = "") -> Run:
        return Run(trainer, flow, world, str(tmp_path / name), str(begin), kill)

    third, sixth = (
        tmp_path / "killed" / saved(trainer, 3),
        tmp_path / "two-killed" / saved(trainer, 6),
    )
    full, killed, again, on_two = (
        run("full", 1),
        run("killed", 1, 9),
        run("again", 1, 0, third),
        run("two", 2, 0, third),
    )
    two_killed, on_one, back = (
        run("two-killed", 2, 17),
        run("one", 1, 0, sixth),
        run("back", 2, 0, sixth),
    )
    runs = [full, killed, again]
    alone = trainer == "torchtitan"  # its FSDP reduces by an operation that gloo lacks
    if not alone:
        runs.append(on_two)
    # Two ranks that are killed, and one or two that go on: of one trainer in a usual run.
    both = not alone and (trainer == "transformers" or is_soak())
    train([*runs, two_killed, on_one, back] if both else runs)

    [expected] = told(full)
    assert len(expected) == BATCHES and len({json.dumps(ids) for ids, _ in expected}) == BATCHES
    assert told(killed) == [expected[:9]]
    assert told(again) == [expected[6:]]  # the third step was saved, of two batches each
    if alone:
        return
    ids, losses = global_steps(full)
    resumed = [(on_two, 6), (on_one, 12), (back, 12)] if both else [(on_two, 6)]
    for other, done in resumed:
        there, lost = global_steps(other)
        assert there == ids[done:]
        assert lost == pytest.approx(losses[done:], rel=1e-5)
    if both:
        assert [len(part) for part in told(two_killed)] == [17, 17]
        assert told(back)[0][: 17 - 12] == told(two_killed)[0][12:]


@pytest.mark.parametrize("trainer", ["transformers", *(["lightning"] if is_soak() else [])])
def test_saved_at_any_batch_of_passes_without_a_length(trainer: str, tmp_path: Path) -> None:
    pytest.importorskip(trainer)
    full = Run(trainer, "ends", 1, str(tmp_path / "full"), step=1, every=1)
    steps = (7, 8) if not is_soak() else (1, 6, 7, 8, 13, 14, 21)  # 7 batches make a pass
    kept = [tmp_path / "full" / f"checkpoint-{step}" for step in steps]
    rests = [
        Run(trainer, "ends", 1, str(tmp_path / path.name), str(path), step=1, every=99)
        for path in kept
    ]
    train([full, *rests])
    [expected] = told(full)
    assert len(expected) == BATCHES
    assert [told(rest) for rest in rests] == [[expected[int(path.name[11:]) :]] for path in kept]


def test_a_pass_that_was_counted_out_is_followed_by_the_next() -> None:
    loader = ps.Loader(ps.from_sequence(range(3)).shuffle())
    passes = [
        [next(items) for _ in range(3)]
        for items in [iter_rest_or_next(loader), iter_rest_or_next(loader)]
    ]
    assert [sorted(part) for part in passes] == [[0, 1, 2]] * 2
    assert len(list(iter_rest_or_next(loader))) == 3
    items = iter_rest_or_next(loader)
    first = next(items)
    assert sorted([first, *iter_rest_or_next(loader)]) == [0, 1, 2]
    assert list(iter_rest_or_next(ps.Loader(ps.from_sequence([])))) == []


@pytest.mark.parametrize("drop", [False, True])
def test_an_eval_loader_gives_what_was_taken_before_too(drop: bool) -> None:
    ds = ps.from_sequence(range(20)).shuffle(seed=1)
    ds = (ds.filter(lambda x: x % 3) if drop else ds).batch(3, collate=list)
    loader = ps.Loader(ds)
    _ = [next(iter(loader)) for _ in range(2)]
    assert list(EvalLoader(loader)) == list(EvalLoader(loader)) == list(ds)
    changed = ps.Loader(ps.mix({"a": ds, "b": ds}, stop="all_exhausted"))
    changed.set_weights({"a": 1, "b": 9})
    ours, theirs = (
        EvalLoader(changed),
        EvalLoader(ps.Loader(ps.mix({"a": ds, "b": ds}, stop="all_exhausted"))),
    )
    assert list(ours) == list(ours) != list(theirs)


@pytest.mark.parametrize("keep", [lambda x: True, lambda x: x % 2])
def test_every_evaluation_is_a_whole_pass_after_a_few_items_and_after_all_of_them(
    keep: Any,
) -> None:
    ds = ps.from_sequence(range(6)).shuffle()
    ds = ds.filter(keep) if keep(0) != 1 else ds
    loader = EvalLoader(ps.Loader(ds, lanes=2, workers=1))
    assert hasattr(loader, "__len__") == hasattr(ds, "__len__")
    expected = list(loader)
    for items in (1, len(expected), len(expected) + 1):
        assert [x for _, x in zip(range(items), loader, strict=False)] == expected[:items]
        assert list(loader) == expected
    with pytest.raises(ps.ConfigError, match=r"endless.*\.limit\(n\)"):
        EvalLoader(ps.Loader(ds.repeat()))


def test_an_eval_loader_is_made_at_its_first_use_once_the_ranks_are_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows, made = ps.from_sequence(range(5)), list[ps.Loader]()
    early = EvalLoader(ps.Loader(rows, remainder="pad"))

    def make() -> ps.Loader:
        made.append(ps.Loader(rows, rank=1, world_size=2, remainder="pad"))
        return made[-1]

    late = EvalLoader(make)
    assert not made
    monkeypatch.setattr("penstock.integrations.trainers.detect_rank", lambda: (1, 2))
    assert len(late) == len(list(late)) == len(list(late)) == 3 and made == [late.loader]
    with pytest.raises(ps.ConfigError, match="has world_size=1, but the trainer has 2"):
        next(iter(early))
    with pytest.raises(ps.ConfigError, match="Dataset is not a loader"):
        len(EvalLoader(lambda: rows))  # pyright: ignore[reportArgumentType]
    with pytest.raises(ps.ConfigError, match="endless"):
        next(iter(EvalLoader(lambda: ps.Loader(rows.repeat()))))


def test_ranks_that_differ_are_gathered_or_the_call_refused() -> None:
    rows = ps.from_sequence(range(100)).repeat()
    alike = ps.Loader(rows, rank=0, world_size=2).state_dict()
    assert gather_states(alike, 2) == [alike]
    lanes = ps.Loader(rows.filter(lambda x: x % 2), rank=0, world_size=2)
    with pytest.raises(ps.ConfigError, match="not initialised: save the state_dict"):
        AllRanks(lanes).state_dict()
    alone = ps.Loader(rows.filter(lambda x: x % 2)).state_dict()
    assert gather_states(alone, 1) == [alone]
    many = ps.Loader(rows.filter(lambda x: x % 2), lanes=128)
    assert len(AllRanks(many).state_dict()["ranks"]) == 1
    taken = ps.Loader(rows, rank=0, world_size=2)
    taken.lease(3)
    with pytest.raises(ps.ConfigError, match="leases"):
        AllRanks(taken).state_dict()


def test_processes_of_one_share_that_stand_apart_are_refused() -> None:
    """In lanes that have ended, and where items were taken, no place tells; merged, one state won silently."""
    rows = ps.from_sequence(range(40), name="n")
    lanes, taken = [list[Any](), list[Any]()]
    for items in (36, 37):
        loader = ps.Loader(rows.filter(lambda x: x != 7), lanes=4)
        _ = list(zip(range(items), loader, strict=False))
        lanes.append(loader.state_dict())
        loader = ps.Loader(rows.repeat(), rank=0, world_size=2)
        loader.lease(items)
        taken.append(loader.state_dict())
    for states in (lanes, taken):
        stands = [describe_position(decode_state(state)) for state in states]
        require_one_step([stands[0], stands[0]], 1)
        with pytest.raises(ps.StateError, match="process 0 was at step .*, process 1 at step"):
            require_one_step(stands, 1)
        with pytest.raises(ps.StateError, match="from different positions"):
            ps.Loader(rows).load_state_dict(states)


def test_processes_of_different_runs_are_refused_at_equal_steps() -> None:
    """One of the states won silently: other weights, skips, seeds or batches on some ranks."""
    rows, more = ps.from_sequence(range(40), name="a"), ps.from_sequence(range(40), name="b")
    mixed = ps.mix({"a": rows, "b": more}, {"a": 1, "b": 1})

    def state_of(
        dataset: ps.Dataset, steps: int, weights: dict[str, float] | None = None, **options: Any
    ) -> Any:
        loader = ps.Loader(dataset, **options)
        _ = list(zip(range(steps), loader, strict=False))
        if weights:
            loader.set_weights(weights)
        return loader.state_dict()

    one = state_of(mixed.batch(2), 2)
    skipped = mixed.batch(2).plan.for_state(one).skip(range(5, 6)).state
    filtered = rows.filter(lambda x: x != 7).repeat()
    for first, other, named in (
        (one, state_of(mixed.batch(2), 2, {"a": 1, "b": 3}), "changes"),
        (one, skipped, "changes"),
        (state_of(rows.shuffle(seed=0), 4), state_of(rows.shuffle(seed=1), 4), "pipelines"),
        (one, state_of(mixed.batch(4), 1), "steps"),
        (one, state_of(mixed.batch(2), 2, remainder="pad"), "steps"),
        (state_of(filtered, 4, lanes=4), state_of(filtered, 4, lanes=8), "lanes"),
    ):
        with pytest.raises(ps.StateError, match=f"are of different runs, with other {named}"):
            require_one_step(
                [describe_position(decode_state(first)), describe_position(decode_state(other))], 2
            )


def test_what_is_no_state_of_all_ranks_is_refused() -> None:
    loader = ps.Loader(ps.from_sequence(range(10)))
    with pytest.raises(ps.StateError, match="not a state of AllRanks"):
        AllRanks(loader).load_state_dict(loader.state_dict())


def test_a_checkpoint_of_lightning_without_a_state_of_the_loader_is_refused() -> None:
    pytest.importorskip("lightning")
    from penstock.integrations.lightning import TrainLoader

    train = TrainLoader(lambda: ps.Loader(ps.from_sequence(range(10))))
    trainer: Any = SimpleNamespace(world_size=1)
    other: dict[str, Any] = {"global_step": 5, "callbacks": {"Other": {"ranks": []}}}
    train.setup(trainer, None, "validate")
    train.on_load_checkpoint(trainer, None, other)
    train.setup(trainer, None, "fit")
    train.on_load_checkpoint(trainer, None, {**other, "global_step": 0})
    train.on_load_checkpoint(
        trainer, None, {**other, "callbacks": {"TrainLoader": train.state_dict()}}
    )
    with pytest.raises(ps.StateError, match="of step 5 holds no state of this loader"):
        train.on_load_checkpoint(trainer, None, other)


def test_a_loader_made_before_the_ranks_were_known_is_refused() -> None:
    rows = ps.from_sequence(range(100))
    with pytest.raises(ps.ConfigError, match="has world_size=1, but the trainer has 2"):
        require_ranks(ps.Loader(rows), 2)
    require_ranks(ps.Loader(rows, rank=0, world_size=1), 2)  # peers of one data-parallel group


@pytest.mark.parametrize("take", [AllRanks, EvalLoader, lambda loader: require_ranks(loader, 1)])
@pytest.mark.parametrize("given", [ps.from_sequence(range(3)), [1, 2]])
def test_an_object_that_is_no_loader_is_named(take: Any, given: Any) -> None:
    with pytest.raises(
        ps.ConfigError, match=r"(Dataset|list) is not a loader; give a? ?ps\.Loader"
    ):
        take(given)


def test_lightning_takes_a_function_that_makes_a_loader() -> None:
    lightning = pytest.importorskip("penstock.integrations.lightning")
    with pytest.raises(ps.ConfigError, match=r"give a function .* TrainLoader\(lambda: ps.Loader"):
        lightning.TrainLoader(ps.Loader(ps.from_sequence(range(3))))
    made = lightning.TrainLoader(lambda: ps.from_sequence(range(3)))
    with pytest.raises(ps.ConfigError, match="Dataset is not a loader"):
        made.setup(SimpleNamespace(world_size=1), None, "fit")


@pytest.mark.skipif(not is_soak(), reason="minutes of clusters: `make soak`")
def test_ray_train_begins_killed_workers_anew(tmp_path: Path) -> None:
    pytest.importorskip("ray.train", exc_type=ImportError)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(HERE / "ray_training.py"), str(tmp_path)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=3000,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    full, dying = [Run("ray", "lanes", world, str(tmp_path / name)) for name, world in RUNS.items()]
    ids, losses = global_steps(full)
    there, lost = global_steps(dying)
    assert there[:11] == ids[:11]
    again = len(ids) - len(
        there[11:]
    )  # Ray may not have taken in the last checkpoint before the death
    assert again in (4, 8)
    assert there[11:] == ids[again:] and lost[11:] == pytest.approx(losses[again:], rel=1e-5)
