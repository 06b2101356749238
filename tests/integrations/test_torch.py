"""Through torch's own loaders: every sample once, in one order for all numbers of workers, and states."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import pytest

import penstock as ps
from example_counts import pick_cases
from helpers import through_json
from integrations.forked_ranks import run_script
from integrations.torch_flows import FLOWS, plain
from penstock.integrations.torch import IterableDataset, MapDataset, Sampler

pytestmark = pytest.mark.slow  # processes with workers of torch

HERE = Path(__file__).parent
Job = dict[str, Any]


def done(jobs: list[Job]) -> list[Any]:
    """Run jobs in one process of their own, which forks, and return their results."""
    found = subprocess.run(
        [sys.executable, "-W", "ignore", str(HERE / "torch_flows.py")],
        input=json.dumps(jobs), capture_output=True, text=True, check=False, timeout=900,
    )  # fmt: skip
    assert found.returncode == 0, found.stderr
    return [json.loads(line) for line in found.stdout.splitlines()]


@cache
def wanted(name: str, rank: int = 0, world: int = 1) -> list[Any]:
    """Two passes of a loader."""
    make, indexed = FLOWS[name]
    loader = ps.Loader(
        make(), rank=rank, world_size=world, remainder="drop" if indexed or world == 1 else "keep"
    )
    return [[plain(item) for item in loader] for _ in range(2)]


def kinds(name: str) -> list[str]:
    return ["iterable", "map"] if FLOWS[name][1] else ["iterable"]


FORKED = [
    {"do": "passes", "name": name, "workers": workers, "how": "fork", "kind": kind}
    for name in FLOWS
    for workers in ((0, 1, 2, 4) if name in ("batches", "packed") else (2, 4))
    for kind in kinds(name)
]
SPAWNED = [
    {"do": "passes", "name": name, "workers": 2, "how": "spawn", "kind": kind, "persistent": True}
    for name, kind in pick_cases([("filtered", "iterable"), ("planned", "map")], 2)
]
RANKED = [
    {
        "do": "passes",
        "name": name,
        "workers": 2,
        "how": "fork",
        "kind": kind,
        "rank": rank,
        "world": 2,
    }
    for name, rank in product(("batches", "planned", "packed"), (0, 1))
    for kind in kinds(name)
]


@pytest.mark.parametrize(
    "jobs", pick_cases([SPAWNED, FORKED, RANKED], 2), ids=pick_cases(["spawn", "fork", "ranks"], 2)
)
def test_every_number_of_workers_gives_what_the_loader_gives(jobs: list[Job]) -> None:
    for job, found in zip(jobs, done([{**job} for job in jobs]), strict=True):
        assert found == wanted(job["name"], job.get("rank", 0), job.get("world", 1)), job


def test_a_saved_state_goes_on_with_the_next_item() -> None:
    pytest.importorskip("torchdata")
    jobs = [
        {"do": "stateful", "name": name, "workers": workers, "how": "fork", "kind": kind, "at": at}
        for name, ats in [("batches", (6, 13)), ("filtered", (5,)), ("packed", (4,))]
        for workers, at in product((0, 3), ats)
        for kind in kinds(name)
    ]
    for job, (before, rest, after) in zip(jobs, done([{**job} for job in jobs]), strict=True):
        first, second = wanted(job["name"])
        if job["at"] == len(first):  # the pass was over
            rest = [] if rest == second else rest
            after = second if not rest else after
        assert before + rest == first, job
        assert after == second, job


def test_a_saved_state_where_the_loader_makes_batches_of_the_sampler_s_steps() -> None:
    pytest.importorskip("torchdata")
    jobs = [
        {
            "do": "stateful",
            "name": "samples",
            "workers": workers,
            "how": "fork",
            "kind": "batches",
            "at": 5,
        }
        for workers in (0, 2)
    ]
    for before, rest, after in done(jobs):
        first, second = wanted("samples")
        assert [x for batch in before + rest for x in batch] == first
        assert [x for batch in after for x in batch] == second


BARE = [
    {"do": "bare", "name": name, "workers": workers, "how": how, "loader": loader}
    for name, (workers, how), loader in product(FLOWS, [(2, "fork")], (False, True))
] + [
    {"do": "bare", "name": name, "workers": 2, "how": "spawn", "loader": True}
    for name in ("batches",)
]


def test_a_bare_dataset_or_loader_does_the_right_thing_or_names_the_wrapper() -> None:
    for job, found in zip(BARE, done([{**job} for job in BARE]), strict=True):
        if FLOWS[job["name"]][1] and not job["loader"]:
            assert found == wanted(job["name"])[0], job
        else:
            assert "penstock.integrations.torch.IterableDataset(ds)" in found, job


def test_the_data_parallel_group_of_a_mesh_has_the_ranks(tmp_path: Path) -> None:
    run_script(HERE / "torch_mesh.py", tmp_path)
    found = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(4)]
    ds = ps.from_sequence(range(32)).shuffle(seed=1).batch(2)
    for rank, given in enumerate(found):
        for name, place, size in [
            ("dp", rank // 2, 2),
            ("tp", rank % 2, 2),
            ("both", rank, 4),
            ("whole", rank, 4),
        ]:
            assert given[name][0] == [
                batch.tolist() for batch in ps.Loader(ds, rank=place, world_size=size)
            ]
            assert f"rank {place} of {size}" in given[name][1]
        assert given["group"][0] == given["iterable"][0] == given["map"][0] == given["dp"][0]
        assert given["none"] == [given["both"][0], ""]
    assert found[0]["dp"] == found[1]["dp"] != found[2]["dp"]
    assert "no member" in found[2]["other"][1]


def test_a_mesh_and_ranks_are_not_given_both() -> None:
    with pytest.raises(ps.ConfigError, match="the mesh gives both"):
        ps.Loader(ps.from_sequence("ab"), mesh=object(), rank=0, world_size=1)
    with pytest.raises(ps.ConfigError, match="a DeviceMesh or a ProcessGroup of torch"):
        ps.Loader(ps.from_sequence("ab"), mesh=object())


def test_a_length_is_there_exactly_where_there_is_one() -> None:
    ds = ps.from_sequence(range(10)).batch(3)
    streamed = ps.from_sequence(range(10)).filter(bool)
    with_length: list[Any] = [
        ds,
        ps.Loader(ds),
        IterableDataset(ds),
        MapDataset(ds),
        ps.Loader(ds.repeat(), epoch_length=4),
    ]
    assert [len(x) for x in with_length] == [4, 4, 4, 4, 4]
    assert all(hasattr(x, "__len__") for x in with_length)
    for flow in (streamed, ds.repeat()):
        for x in (flow, ps.Loader(flow), IterableDataset(flow)):
            assert not hasattr(x, "__len__")
            with pytest.raises(TypeError):
                len(x)  # pyright: ignore[reportArgumentType]
    assert list(streamed) == list(range(1, 10))


def test_what_a_wrapper_cannot_do_is_refused() -> None:
    endless = IterableDataset(ps.from_sequence(range(3)).repeat())
    assert [x for x, _ in zip(endless, range(4), strict=False)] == [0, 1, 2, 0]
    with pytest.raises(ps.ConfigError, match="a second `for` over an endless dataset"):
        iter(endless)
    with pytest.raises(ps.IndexedError, match="IterableDataset"):
        MapDataset(ps.from_sequence(range(3)).filter(bool))
    with pytest.raises(ps.IndexedError, match="endless"):
        MapDataset(ps.from_sequence(range(3)).repeat())
    with pytest.raises(ps.ConfigError, match="the ranks would end at different steps"):
        IterableDataset(ps.from_sequence(range(3)).filter(bool), rank=0, world_size=2)
    with pytest.raises(ps.StateError, match="the same number of workers"):
        iter(IterableDataset(ps.from_sequence(range(3)))).load_state_dict(
            {"worker": [0, 2], "run": {}}
        )


def test_a_map_dataset_of_ranks_that_end_apart_is_an_error() -> None:
    ds = ps.from_sequence(range(17)).batch(2)
    remainder: Any = "keep"
    with pytest.raises(
        ps.ConfigError, match=r"MapDataset\(remainder='keep'\): choose 'drop' or 'pad'"
    ):
        MapDataset(ds, rank=1, world_size=2, remainder=remainder)


def test_padding_of_a_map_style_dataset_is_marked() -> None:
    ds = ps.from_sequence([{"x": i} for i in range(7)]).batch(2)
    data = [MapDataset(ds, rank=rank, world_size=2, remainder="pad") for rank in range(2)]
    assert [len(each) for each in data] == [2, 2]
    marked = [
        x
        for each in data
        for i in range(2)
        for x, ok in zip(each[i]["x"], each[i]["valid"], strict=True)
        if ok
    ]
    assert sorted(marked) == list(range(7))


def test_a_broken_off_pass_is_not_gone_on_with() -> None:
    data = MapDataset(ps.from_sequence(range(6)).batch(2))
    sampler = Sampler(data)
    steps = iter(sampler)
    assert next(steps) == 0
    assert list(sampler) == [3, 4, 5]
    assert sampler.state_dict()["step"] == 6


def test_a_loader_is_a_node() -> None:
    nodes = pytest.importorskip("torchdata.nodes")
    from penstock.integrations.torch.nodes import LoaderNode

    def chain(loader: ps.Loader) -> Any:
        mapped = nodes.ParallelMapper(LoaderNode(loader), plain, num_workers=2)
        return nodes.Loader(nodes.Prefetcher(mapped, prefetch_factor=2))

    with (
        ps.Loader(FLOWS["mixed"][0](), workers=2) as one,
        ps.Loader(FLOWS["mixed"][0](), workers=2) as other,
    ):
        first, second = chain(one), chain(other)
        items = iter(first)
        before = [next(items) for _ in range(4)]
        second.load_state_dict(through_json(first.state_dict()))
        assert before + list(second) == wanted("mixed")[0]
        assert list(second) == wanted("mixed")[1]
        del items, first, second


def test_the_state_of_a_sampler_is_of_its_data_steps_and_ranks_alone() -> None:
    def made(first: int = 0, size: int = 2, ranks: int = 1) -> MapDataset:
        ds = ps.from_sequence(range(first, first + 24)).shuffle(seed=1).batch(size)
        return MapDataset(ds, rank=0, world_size=ranks)

    sampler = Sampler(made())
    steps = iter(sampler)
    _ = next(steps), next(steps)
    state = json.loads(json.dumps(sampler.state_dict()))
    again = Sampler(made())
    again.load_state_dict(state)
    assert list(again) == list(range(2, 12))
    for data in (made(first=1), made(size=3), made(ranks=2)):
        with pytest.raises(ps.StateError):
            Sampler(data).load_state_dict(state)
    wrong: list[Any] = [{"step": 2}, {}, [2], None]
    for other in wrong:
        with pytest.raises(ps.StateError, match="not a state of"):
            Sampler(made()).load_state_dict(other)
