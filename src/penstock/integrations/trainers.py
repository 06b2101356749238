"""What trainers need of a loader beyond a `for`: the states of all ranks together, and passes that
are counted out."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from ..engine.base.sized import where_known
from ..engine.graph.ends import endless
from ..engine.runtime.cursor import unseal
from ..engine.runtime.session import Session
from ..engine.runtime.states import ranks_differ, require_equal_stands, stand_of
from ..errors import ConfigError, StateError
from ..loader import Loader


def states_of_all(state: Mapping[str, Any], ranks: int) -> list[Mapping[str, Any]]:
    """The states of all ranks, for `Loader.load_state_dict`: one where it says everything, else
    each of them.

    Ranks differ in the cursors of lanes, in journals of bad samples and in what they took.
    torch.distributed gathers what they say, so all its processes call this together, peers of one
    rank (tensor parallelism) too.

    Args:
        state: what `state_dict()` of this rank's loader gave.
        ranks: how many ranks the loader is one of.

    Raises:
        ConfigError: where ranks differ and torch.distributed is not initialised.
        StateError: where processes stand at different steps, or read different data.

    >>> import penstock as ps
    >>> loader = ps.Loader(ps.from_sequence(range(10)), rank=0, world_size=2)
    >>> len(states_of_all(loader.state_dict(), loader.world_size))
    1
    """
    differ = ranks_differ(state, ranks)
    told = gathered([differ, stand_of(unseal(state))])
    if told is None and differ:
        raise ConfigError(
            "every rank has a state of its own (lanes, a journal, what it took), and "
            "torch.distributed, which would gather them, is not initialised: keep the "
            "state_dict() of each rank's loader, and load the list of them"
        )
    require_one_step([stand for _, stand in told or []], ranks)
    if told is None or not any(differ for differ, _ in told):
        return [state]
    return list({json.dumps(each): each for each in gathered(state) or []}.values())


def require_one_step(stands: Sequence[Mapping[str, Any]], ranks: int) -> None:
    """Refuse processes that stand at different steps, also those that are one rank, or read
    different data.

    Args:
        stands: what each process says of itself.
        ranks: how many ranks they are.

    Raises:
        StateError: on all processes.

    >>> require_one_step([{"place": [0, 4], "step": 1, "data": {}, "run": {}}] * 2, ranks=1)
    """
    require_equal_stands(dict(enumerate(stands)), "rank" if len(stands) == ranks else "process")


def gathered(told: Any, group: Any = None) -> list[Any] | None:
    """Gather an object from every process of torch.distributed (collective); None if not
    initialised.

    Args:
        told: what this process says, plain JSON.
        group: the `ProcessGroup` of those that are asked; all processes by default.

    >>> gathered({"step": 5}) is None
    True
    """
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not (distributed.is_available() and distributed.is_initialized()):
        return None
    found: list[Any] = [None] * distributed.get_world_size(group)
    distributed.all_gather_object(found, told, group=group)
    return found


class AllRanks:
    """The place of a run on all ranks together, for trainers that keep what one object says of
    itself.

    Saving and loading are calls of all processes, peers of one rank too; a state loads on any
    number of ranks. For
    Accelerate: `accelerator.register_for_checkpointing(AllRanks(loader))`.

    Args:
        loader: of this rank.

    >>> import penstock as ps
    >>> loader = ps.Loader(ps.from_sequence(range(10)))
    >>> place = AllRanks(loader)
    >>> first = next(iter(loader))
    >>> state = place.state_dict()
    >>> again = ps.Loader(ps.from_sequence(range(10)))
    >>> AllRanks(again).load_state_dict(state)
    >>> first, next(iter(again))
    (0, 1)
    """

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def state_dict(self) -> dict[str, Any]:
        """The states of all ranks, plain JSON."""
        return {"ranks": states_of_all(self._loader.state_dict(), self._loader.world_size)}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go where the ranks were.

        Args:
            state_dict: what `state_dict()` gave.

        Raises:
            StateError: for anything else, such as the state of another object of the checkpoint.
        """
        if "ranks" not in state_dict:
            held = ", ".join(map(str, list(state_dict)[:4])) or "nothing"
            raise StateError(
                f"not the state of AllRanks (it holds {held}); another object may have saved it"
            )
        self._loader.load_state_dict(state_dict["ranks"])


def rest_or_next(loader: Iterable[Any]) -> Iterator[Any]:
    """The rest of the pass; where nothing is left of it, the next one.

    Trainers count the items of a pass and never ask for one more, so they begin a pass with a
    loader that stands at the end of the last.

    Args:
        loader: what to iterate over.

    >>> import penstock as ps
    >>> loader = ps.Loader(ps.from_sequence(range(3)))
    >>> [[next(items) for _ in range(3)] for items in (rest_or_next(loader), rest_or_next(loader))]
    [[0, 1, 2], [0, 1, 2]]
    """
    begun = False
    for _ in range(2):
        for item in loader:
            begun = True
            yield item
        if begun:
            return


def require_ranks(loader: Loader, world_size: int) -> None:
    """Refuse a loader that looked for its ranks before they were known, and so would give every
    process everything.

    Args:
        loader: what is trained on.
        world_size: how many processes the trainer has.

    Raises:
        ConfigError: where the loader found other ranks by itself.

    >>> import penstock as ps
    >>> require_ranks(ps.Loader(ps.from_sequence(range(10))), 1)
    """
    found = loader.world_size
    if not loader._placed and found != world_size:  # pyright: ignore[reportPrivateUsage]
        raise ConfigError(
            f"the loader was made for world_size={found}, and the trainer has {world_size} "
            "processes: make it when they are known (after torch.distributed was initialised), or "
            "give it rank= and world_size="
        )


class EvalLoader:
    """A loader for evaluation: every `for` gives the whole first pass, however many items were
    taken before.

    Trainers take a few batches to try the evaluation out, and count those of a pass without asking
    for its end; a bare loader would go on from there. Every evaluation gives the same items in the
    same order.

    Args:
        loader: gives the items of an evaluation. It belongs to this object from then on.

    Raises:
        ConfigError: for a loader whose passes never end.

    >>> import penstock as ps
    >>> loader = EvalLoader(ps.Loader(ps.from_sequence(range(3))))
    >>> next(iter(loader)), list(loader), len(loader)
    (0, [0, 1, 2], 3)
    """

    def __init__(self, loader: Loader) -> None:
        session = loader._session  # pyright: ignore[reportPrivateUsage]
        if loader._epoch_length is None and endless(session.base):  # pyright: ignore[reportPrivateUsage]
            raise ConfigError(
                "the dataset of the eval loader never ends, and an evaluation is a whole pass: "
                "give the dataset an end with .limit(n)"
            )
        first = session if session.changes else Session(session.compiled, session.setting, None)
        self.loader, self._begin = loader, first.state()

    def __iter__(self) -> Iterator[Any]:
        self.loader.load_state_dict(self._begin)
        return iter(self.loader)

    @where_known
    def __len__(self) -> int:
        return len(self.loader)


def require_one_sharder(found: bool, world_size: int) -> None:
    """Refuse data that were shared out by ranks found here, where Accelerate (the Trainer too)
    shares out once more.

    Args:
        found: whether rank and world size were found, and not given.
        world_size: how many shares there are.

    Raises:
        ConfigError: where samples would be lost.

    >>> require_one_sharder(True, 1)
    """
    state = sys.modules.get("accelerate.state")
    if found and world_size > 1 and state is not None and state.PartialState._shared_state:
        raise ConfigError(
            f"the data are shared out between {world_size} ranks, and Accelerate, which runs here, "
            "would share each of their parts out once more: give rank=0, world_size=1 where it "
            "prepares the DataLoader (transformers' and TRL's trainers do), else this process's "
            "rank= and world_size="
        )
