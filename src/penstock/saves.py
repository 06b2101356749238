"""Checkpoints in a folder: each rank writes a file of its own, without communication.

The name of a file has the step, the rank, the number of ranks and two digests: of everything that
the states of all ranks share, and of their positions. A checkpoint is complete when the files of
all ranks for one position are there. Therefore files that a crash left behind never complete the
checkpoint of another run, and a complete checkpoint proves that every rank reached it.
"""

from __future__ import annotations

import errno
import json
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from math import gcd
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar, runtime_checkable

from .arguments import check_choice, check_int, validate_arguments
from .engine.runtime.rank_stream import compute_lane_share
from .engine.runtime.states import (
    MISMATCHES,
    OnMismatch,
    SavedState,
    compute_state_tag,
    decode_state,
    describe_position,
    require_equal_positions,
)
from .errors import (
    ConfigError,
    StateError,
    StorageError,
    convert_storage_errors,
    make_storage_error,
)
from .stores import storage
from .stores.limits import RANKS, STATE
from .stores.storage import write_atomically
from .stores.urls import require_local
from .types import MAX_POSITION

T = TypeVar("T")

_LOG = logging.getLogger("penstock")

_OBJECT = re.compile(rb"\s*\{")
_CURRENT = "current.json"
"""The file that names the step which a run went back to, as long as the folder holds later ones."""

_READ_ONLY = (errno.EROFS, errno.EACCES, errno.EPERM)

_NAME = re.compile(
    r"\.?step-(\d{1,20})\.rank-(\d{1,20})-of-(\d{1,20})\.([0-9a-f]{16})\.json(\.\d+\.[0-9a-f]+\.tmp)?"
)


@runtime_checkable
class Savable(Protocol):
    """A loader, an iterator of a dataset, or any object with a state, a rank and a world size."""

    @property
    def rank(self) -> int: ...
    @property
    def world_size(self) -> int: ...
    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(
        self,
        state: Mapping[str, Any] | Sequence[Mapping[str, Any]],
        on_mismatch: OnMismatch = "error",
        /,
    ) -> None: ...


_CheckpointFiles: TypeAlias = "Mapping[_CheckpointId, Mapping[int, str]]"
"""The files of the ranks that have written a state, by checkpoint."""


class _CheckpointId(NamedTuple):
    """The position of a run on a number of ranks."""

    step: int
    digest: str
    ranks: int

    def file(self, rank: int) -> str:
        return f"step-{self.step}.rank-{rank}-of-{self.ranks}.{self.digest}.json"

    @property
    def wherever(self) -> _CheckpointId:
        """Return the position for ranks whose lanes have ended: it completes each of these too."""
        return self._replace(digest=self.digest[:8] + "0" * 8)


@validate_arguments
def save(
    path: str | Path, run: Savable, *, step: int | None = None, keep: int | None = None
) -> int:
    """Save the state of a run in a folder, and return the step. Every rank calls it after a step.

    A crash at any time leaves earlier checkpoints intact. Ranks do not wait for each other: the
    last rank to write completes the checkpoint.

    Args:
        path: the folder, for this run only and the same on all ranks.
        run: a loader, or an iterator of a dataset.
        step: the number of the checkpoint; the number of steps of the run by default.
        keep: how many checkpoints to keep. Older ones are removed when this one is complete, never
            before. All are kept by default.

    Returns:
        The number of the checkpoint.

    Raises:
        ConfigError: the object has no state, the step is negative, or `keep` is 0.
        StateError: the folder holds the checkpoints of another pipeline or a later step, or items
            are leased on several ranks.

    >>> import penstock as ps, tempfile
    >>> folder = tempfile.mkdtemp()
    >>> loader = ps.Loader(ps.from_sequence(range(5)))
    >>> for item in loader:
    ...     if item == 2:
    ...         step = ps.save(folder, loader, keep=3)
    >>> again = ps.Loader(ps.from_sequence(range(5)))
    >>> step, ps.restore(folder, again), list(again)
    (3, 3, [3, 4])
    """
    _check(run)
    folder = require_local(path)
    with convert_storage_errors(folder):
        return write_state(folder, run.state_dict(), run.rank, run.world_size, step, keep)


@validate_arguments
def restore(
    path: str | Path, run: Savable, *, step: int | None = None, on_mismatch: OnMismatch = "error"
) -> int | None:
    """Restore the newest complete checkpoint of a folder, or the one of a step; return its step.

    The number of ranks may differ. Returns None if no checkpoint is complete; the run then starts
    at its present position.

    A given step becomes the current one of the folder. Later checkpoints stay there and are opened
    only by their step; the run saves as if they did not exist. A read-only folder stays as it is.

    Args:
        path: the folder given to `ps.save`.
        run: a loader, or an iterator of a dataset.
        step: the step to restore; by default the current one, usually the newest.
        on_mismatch: "error" refuses the state of another pipeline, "adopt" continues with this
            pipeline and keeps the position of every input.

    Returns:
        The step of the checkpoint, or None if no checkpoint is complete.

    Raises:
        ConfigError: the object has no state, or the step is no whole number.
        StateError: the checkpoint of the step is incomplete, or does not fit; or all ranks saved
            the only step, but from different runs. The run then stays unchanged.

    >>> import penstock as ps, tempfile
    >>> print(ps.restore(tempfile.mkdtemp(), iter(ps.from_sequence(range(5)))))
    None
    """
    _check(run)
    check_choice(on_mismatch, MISMATCHES, "restore(on_mismatch={})")
    folder = require_local(path)
    step = None if step is None else check_int(step, "step={}", 0, MAX_POSITION)
    with convert_storage_errors(folder):
        if step is None and not _complete(files_by_checkpoint := _list_files(folder)):
            if files_by_checkpoint:
                newest = max(files_by_checkpoint).step
                if _is_contradictory(files_by_checkpoint, newest):
                    raise StateError(
                        f"{folder}: {_lacking(files_by_checkpoint, newest)}, and no other step is complete; "
                        "delete the files of this step to start from the beginning"
                    )
                _LOG.warning(
                    "%s: %s, and no other step is complete; nothing is restored",
                    folder,
                    _lacking(files_by_checkpoint, newest),
                )
            return None
        share = (
            None if on_mismatch == "adopt" else (run.rank, run.world_size)
        )  # mixtures are adopted for all lanes
        found, states = read_states(folder, step, share)
    try:
        run.load_state_dict(states, on_mismatch)
    except StateError as error:
        raise StateError(f"{folder}, step {found}: {error}") from error
    if step is not None:
        try:
            with convert_storage_errors(folder / _CURRENT):
                _make_current(folder, found)
        except StorageError as error:
            if error.errno not in _READ_ONLY:
                raise
            _LOG.warning(
                "%s; step %d is restored, but it is not the current one of the folder", error, found
            )
    return found


def _check(run: object) -> None:
    if not isinstance(run, Savable):
        raise ConfigError(
            f"a {type(run).__name__} has no position in its data; give a ps.Loader(ds), or an "
            "iter(ds)"
        )


def write_state(
    folder: Path,
    state: Mapping[str, Any],
    rank: int,
    ranks: int,
    step: int | None = None,
    keep: int | None = None,
) -> int:
    """Write the state of a rank, and remove the files that it replaces."""
    keep = None if keep is None else check_int(keep, "keep={}", 1)
    body = decode_state(state)
    if ranks > 1 and body.sections:
        raise StateError(
            f"items were delivered out of order on {ranks} ranks, and each rank is at another "
            "position, so a folder cannot show which of their states are of one position; gather "
            "the state_dict() of all ranks, and load the list"
        )
    step = body.step if step is None else check_int(step, "step={}", 0, MAX_POSITION)
    checkpoint = _CheckpointId(step, compute_state_tag(body), ranks)
    _looked(folder, lambda files_by_checkpoint: _refuse(folder, files_by_checkpoint, body, step))
    if ranks > 1 and any("files" not in facts for facts in body.data.values()):
        _looked(
            folder,
            lambda files_by_checkpoint: _require_equal_data(
                folder, files_by_checkpoint.get(checkpoint, {}), body, rank
            ),
        )
    if (current := _current(folder)) is not None and step > current:
        _remove_left(folder, checkpoint)
    write_atomically(
        folder / checkpoint.file(rank), json.dumps(state, allow_nan=False).encode() + b"\n"
    )
    done = _complete(files_by_checkpoint := _list_files(folder))
    if whole_now := [one for one in done if checkpoint in (one, one.wherever)]:
        if _current(folder) is not None:
            _make_current(folder, step)
        steps = sorted({one.step for one in done if one.step <= step})
        _remove(
            folder, whole_now[0], files_by_checkpoint[whole_now[0]], steps[-keep:][0] if keep else 0
        )
    return step


def read_states(
    folder: Path, step: int | None = None, share: tuple[int, int] | None = None
) -> tuple[int, list[dict[str, Any]]]:
    """Return the newest complete step, or the given one, with its states.

    The states are those that a rank needs, or those of all ranks.
    """

    def look(files_by_checkpoint: _CheckpointFiles) -> tuple[int, list[dict[str, Any]]]:
        checkpoint = _chosen(folder, files_by_checkpoint, step)
        files = files_by_checkpoint[checkpoint]
        first = _read(folder / files[0])
        others = _needed(checkpoint.ranks, decode_state(first), share)
        return checkpoint.step, [first, *(_read(folder / files[rank]) for rank in others)]

    return _looked(folder, look)


def _needed(ranks: int, first: SavedState, share: tuple[int, int] | None) -> list[int]:
    """Return the ranks whose states a rank needs, beside rank 0 as the reference.

    They are the ranks that share lanes with it; all ranks if it reads all lanes.
    """
    rank, ranks_now = share or (0, 1)
    if first.journal_of is None and first.lanes is not None:
        if first.has_all_lanes:
            return []
        rank, ranks_now = compute_lane_share(first.lanes, rank, ranks_now)
    common = 1 if share is None or first.journal_of is not None else gcd(ranks_now, ranks)
    return [other for other in range(1, ranks) if (other - rank) % common == 0]


def _read(path: Path) -> dict[str, Any]:
    """Read a state from its file; name the file if it is truncated or foreign."""
    try:
        data = storage.world.disk.read(path, STATE)
    except FileNotFoundError:  # another rank may have removed it
        raise
    except OSError as error:
        raise make_storage_error(error, path) from error
    try:
        if not _OBJECT.match(data):  # lists take far more memory than their text
            raise ValueError("it holds no JSON object")
        state = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise StateError(
            f"{path}: the JSON file is incomplete or is not a state ({error}); use an earlier step"
        ) from error
    try:
        decode_state(state)
    except StateError as error:
        raise StateError(f"{path}: {error}") from error
    return state


# ------------------------------------------------------------ what lies in a folder


def _looked(folder: Path, look: Callable[[_CheckpointFiles], T]) -> T:
    """List a folder, and list it again if another rank removed files in the meantime."""
    while True:
        files_by_checkpoint = _list_files(folder)
        try:
            return look(files_by_checkpoint)
        except (FileNotFoundError, StateError):
            if _list_files(folder) == files_by_checkpoint:
                raise


def _list_files(folder: Path) -> _CheckpointFiles:
    """Return the files by position and rank."""
    files_by_checkpoint = dict[_CheckpointId, dict[int, str]]()
    try:
        names = storage.world.disk.list(folder)
    except NotADirectoryError as error:
        raise ConfigError(
            f"{folder} is a file; give the folder that ps.save was given, or pass the state in "
            "your own file to load_state_dict"
        ) from error
    for found in map(_NAME.fullmatch, names):
        if (
            found
            and found[0][0] != "."
            and int(found[2]) < int(found[3]) <= RANKS
            and int(found[1]) < MAX_POSITION
        ):
            files_by_checkpoint.setdefault(_of(found), {})[int(found[2])] = found[0]
    return {
        checkpoint: files_by_checkpoint.get(checkpoint.wherever, {}) | files
        for checkpoint, files in files_by_checkpoint.items()
    }


def _of(name: re.Match[str]) -> _CheckpointId:
    return _CheckpointId(int(name[1]), name[4], int(name[3]))


def _complete(files_by_checkpoint: _CheckpointFiles) -> list[_CheckpointId]:
    return [
        checkpoint
        for checkpoint, files in files_by_checkpoint.items()
        if len(files) == checkpoint.ranks
    ]


def _chosen(folder: Path, files_by_checkpoint: _CheckpointFiles, step: int | None) -> _CheckpointId:
    """Return the position to restore; raise an error if it is incomplete."""
    done = _complete(files_by_checkpoint)
    asked = (
        _up_to_current(folder, done)
        if step is None
        else [checkpoint for checkpoint in done if checkpoint.step == step]
    )
    if not asked:
        newest = f"the newest complete step is {max(done).step}" if done else "no step is complete"
        raise StateError(f"{folder}: {_lacking(files_by_checkpoint, step)}; {newest}")
    found = max(asked)
    if step is None and (last := max(files_by_checkpoint).step) > max(done).step:
        _LOG.warning(
            "%s: %s; step %d is used", folder, _lacking(files_by_checkpoint, last), found.step
        )
    return found


def _current(folder: Path) -> int | None:
    """Return the step that a run went back to; None if the newest is the current one."""
    try:
        return check_int(
            json.loads(storage.world.disk.read(folder / _CURRENT, 1 << 12))["step"],
            "step={}",
            0,
            MAX_POSITION,
        )
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, RecursionError, ConfigError) as error:
        raise StateError(
            f"{folder / _CURRENT}: the file does not name a step ({error}); remove it, so that "
            "the newest step becomes the current one"
        ) from error


def _up_to_current(folder: Path, done: Sequence[_CheckpointId]) -> list[_CheckpointId]:
    current = _current(folder)
    return [checkpoint for checkpoint in done if current is None or checkpoint.step <= current]


def _make_current(folder: Path, step: int) -> None:
    """Make a step the current one of a folder. Ranks do this one after the other."""
    later = [
        checkpoint.step for checkpoint in _complete(_list_files(folder)) if checkpoint.step > step
    ]
    if later and _current(folder) != step:
        write_atomically(folder / _CURRENT, json.dumps({"step": step}).encode() + b"\n")
        _LOG.info("%s: step %d is the current one; open later steps with step=...", folder, step)
    elif not later:
        with suppress(FileNotFoundError):
            storage.world.disk.unlink(folder / _CURRENT)


def _lacking(files_by_checkpoint: _CheckpointFiles, step: int | None) -> str:
    """Say why a step is incomplete."""
    here = {
        checkpoint: ranks
        for checkpoint, ranks in files_by_checkpoint.items()
        if checkpoint.step == step
    }
    if not here:
        return "there is no state" if step is None else f"there is no step {step}"
    if len({checkpoint.digest for checkpoint in here}) > 1:
        return (
            f"the ranks saved step {step} from different positions or runs, or after other changes "
            "(set_weights must be called on all ranks after the same step)"
        )
    checkpoint, files = max(here.items(), key=lambda item: len(item[1]) / item[0].ranks)
    gone = sorted({*range(checkpoint.ranks)} - files.keys())
    named = (
        f"rank {gone[0]} of {checkpoint.ranks} is"
        if len(gone) == 1
        else f"{len(gone)} of {checkpoint.ranks} ranks are"
    )
    return f"{named} missing in step {step}"


def _is_contradictory(files_by_moment: _CheckpointFiles, step: int) -> bool:
    """Return true if all ranks saved a step, but from different positions or runs."""
    here = {m: files for m, files in files_by_moment.items() if m.step == step}
    ranks = {checkpoint.ranks for checkpoint in here}
    return len({*chain(*here.values())}) >= max(ranks) and len({m.digest for m in here}) > 1


def _refuse(
    folder: Path, files_by_checkpoint: _CheckpointFiles, body: SavedState, step: int
) -> None:
    """Raise `StateError` for the folder of another run, or for a step before its newest."""
    if not (done := _up_to_current(folder, _complete(files_by_checkpoint))):
        return
    last = max(done)
    try:
        there = decode_state(_read(folder / files_by_checkpoint[last][0])).fingerprint
    except StateError:  # a damaged file is no reason to write none
        there = body.fingerprint
    if there not in (body.fingerprint, *body.adopted):
        raise StateError(
            f"{folder} holds the states of another pipeline (step {last.step}); save into another "
            "folder, or continue that run with a changed mixture by "
            "ps.restore(on_mismatch='adopt')"
        )
    if last.step > step:
        raise StateError(
            f"{folder} holds step {last.step}, which is later than step {step} and would be "
            "restored instead of it; go back with ps.restore(step=...), restore the later step, "
            "or save into another folder"
        )


def _require_equal_data(
    folder: Path, files: Mapping[int, str], body: SavedState, rank: int
) -> None:
    """Raise `StateError` if ranks read different data, compared with the first writer."""
    if others := sorted(files.keys() - {rank}):
        bodies = {rank: body, others[0]: decode_state(_read(folder / files[others[0]]))}
        require_equal_positions(
            {number: {**describe_position(bodies[number]), "place": 0} for number in sorted(bodies)}
        )


def _remove_left(folder: Path, checkpoint: _CheckpointId) -> None:
    """Remove the later states of a step that the run went back before.

    Beside its new states, a crash would leave both.
    """
    names = [
        other.file(rank)
        for other in _list_files(folder)
        if other.step == checkpoint.step
        and other not in (checkpoint, checkpoint.wherever)
        and other.wherever != checkpoint
        for rank in range(other.ranks)
    ]
    for name in names:
        storage.world.disk.unlink(folder / name)
    if names:
        storage.world.disk.sync(folder)


def _remove(folder: Path, checkpoint: _CheckpointId, files: Mapping[int, str], oldest: int) -> None:
    """Remove the states that a complete step replaces, and those older than the oldest to keep.

    Temporary files of the step itself stay: files of a killed run may complete a step while other
    ranks still write it.
    """
    found = [name for name in map(_NAME.fullmatch, storage.world.disk.list(folder)) if name]
    kept = {*files.values()}
    replaced = [
        name
        for name in found
        if int(name[1]) == checkpoint.step
        and name[0] not in kept
        and not (name[5] and _of(name) in (checkpoint, checkpoint.wherever))
    ]
    for name in (*replaced, *(name for name in found if int(name[1]) < oldest)):
        storage.world.disk.unlink(folder / name[0])
    if replaced:
        storage.world.disk.sync(folder)
