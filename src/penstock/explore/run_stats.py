"""Stats files of runs: one JSON object a line, appended by loaders and followed by readers.

A file records what `loader.stats()` returns about once a second, so that `penstock top` shows a
running job and its history from another terminal. Lines are appended in one write. A kill can tear
the last line only; readers skip such a line, and the next writer ends it.
"""

from __future__ import annotations

import json
import logging
import platform
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO, cast

from ..engine.base.machine import get_pid, measure_resident_memory
from ..engine.base.seams import world
from ..errors import ConfigError, convert_storage_errors
from ..stores.urls import require_local

STATS_FORMAT = "penstock-stats"
STATS_VERSION = 1
_INTERVAL = 1.0  # seconds between two records, at least
_BYTES_PER_SECOND = 1_000  # mean size of what is appended, at most
_WINDOW = 10.0  # seconds over which rates are averaged
_STALE = 30.0  # seconds without a record after which a run counts as stale
_MAX_RECORDS = 2_000  # records of a rank that a reader keeps
_MAX_BACKLOG = 1 << 25  # bytes of a file of which every line is parsed
_CHUNK = 1 << 20
_MAX_WORK_ROWS, _MAX_WARNINGS, _MAX_WARNING = 20, 10, 300
_TOTALS = ("worker_deaths", "retries", "cache_hits", "cache_misses", "stalls", "bytes")


def read_clock() -> float:
    """Return the time in seconds since 1970."""
    return datetime.now(UTC).timestamp()


def name_rank_file(path: Path, rank: int) -> Path:
    """Return the stats file of a rank: the named file for rank 0, else one beside it.

    >>> name_rank_file(Path("run/stats.jsonl"), 3).as_posix()
    'run/stats.rank3.jsonl'
    """
    return path if not rank else path.with_name(f"{path.stem}.rank{rank}{path.suffix}")


# ---------------------------------------------------------------- records


class RunRecorder:
    """Records of one loader: makes lines, keeps the newest, and appends them to a file.

    Args:
        path: the stats file of this rank; None only keeps records, for a display.
        facts: the facts of the loader for its start line.
    """

    def __init__(self, path: Path | None, facts: Mapping[str, Any]) -> None:
        self._file = None if path is None else StatsFile(path)
        time, self._pid = read_clock(), get_pid()
        host = platform.node()
        self._session = f"{host}-{self._pid}-{int(time * 1000)}-{id(self) % 9973}"
        head = {"kind": "start", "format": STATS_FORMAT, "version": STATS_VERSION, "time": time}
        start = {**head, "session": self._session, "pid": self._pid, "host": host, **facts}
        self.rank = RankStats()
        self._interval = self._append(start)
        self._began = self._last = world.sched.now()

    def is_due(self) -> bool:
        """Return True if the next record is due."""
        return world.sched.now() - self._last >= self._interval and get_pid() == self._pid

    @property
    def is_empty(self) -> bool:
        """True if nothing was recorded yet."""
        return not self.rank.records

    def record(self, stats: Mapping[str, Any], more: Mapping[str, Any], reason: str = "") -> None:
        """Record the figures of `loader.stats()`, and `more` of the loader.

        Args:
            stats: the result of `loader.stats()`.
            more: step, rows, tokens and warnings.
            reason: why the run ends here, for its last record.
        """
        if get_pid() != self._pid:
            return  # a forked child has the file of its parent
        now = world.sched.now()
        line = _make_record(stats, more, self._session, reason)
        before = self.rank.records[-1] if self.rank.records else None
        line |= _compute_rates(line, before, max(now - self._last, 1e-9))
        self._last = now
        self._interval = self._append(line)

    def preview(self, stats: Mapping[str, Any], more: Mapping[str, Any]) -> RankStats:
        """Return the lines so far and one of the present figures, which is not written."""
        line = _make_record(stats, more, self._session, "")
        records = [*self.rank.records[-64:], line]
        return RankStats(self.rank.start, self.rank.starts, records, {self._session: line})

    def _append(self, line: Mapping[str, Any]) -> float:
        """Append a line; return the seconds until the next one is due."""
        self.rank.take(line)
        size = 0 if self._file is None else self._file.append(line)
        return max(_INTERVAL, size / _BYTES_PER_SECOND)

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()


class StatsFile:
    """Append-only file of JSON lines. A failed write is logged once and never stops the run."""

    def __init__(self, path: Path) -> None:
        self._path, self._failed = path, False
        with convert_storage_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.is_dir():
                raise ConfigError(
                    f"Loader(stats={str(path)!r}): this is a folder; name a file in it, such as "
                    f"{str(path / 'stats.jsonl')!r}"
                )
            self._file: BinaryIO = path.open("ab", buffering=0)
            if self._file.tell() and not _ends_with_newline(path):
                self._file.write(b"\n")  # a kill tore the last line

    def append(self, line: Mapping[str, Any]) -> int:
        """Append a line in one write; return its size in bytes."""
        data = json.dumps(line, separators=(",", ":"), default=str).encode() + b"\n"
        try:
            self._file.write(data)
        except (OSError, ValueError) as error:
            if not self._failed:
                logging.getLogger("penstock").warning(
                    "%s: the stats of the run cannot be written (%s); the run continues without "
                    "them", self._path, error,
                )  # fmt: skip
            self._failed = True
        return len(data)

    def close(self) -> None:
        """Close the file; closing twice does nothing."""
        with suppress(OSError):
            self._file.close()


def _ends_with_newline(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, 2)
        return file.read(1) == b"\n"


def _make_record(
    stats: Mapping[str, Any], more: Mapping[str, Any], session: str, reason: str
) -> dict[str, Any]:
    warnings = [text[:_MAX_WARNING] for text in more["warnings"][:_MAX_WARNINGS]]
    work = [
        {**row, "seconds": round(row["seconds"], 4), "processor": round(row["processor"], 4)}
        for row in stats["time"][:_MAX_WORK_ROWS]
    ]
    return {
        "kind": "end" if reason else "record",
        "session": session,
        "time": round(read_clock(), 3),
        "elapsed_s": round(stats["elapsed_s"], 4),
        "step": more["step"],
        "epoch": stats["epoch"],
        "items": stats["items"],
        "rows": more["rows"],
        "samples": dict(stats["samples"]),
        "tokens": more["tokens"],
        "bytes": stats["bytes"],
        "waited_s": round(stats["waited_s"], 4),
        "first_s": round(stats["first_s"], 4),
        "stalls": stats["stalls"],
        "longest_stall_s": round(stats["longest_stall_s"], 4),
        "work": work,
        "under_way": stats["under_way"],
        "under_way_bytes": stats["under_way_bytes"],
        "resident_bytes": {str(pid): size for pid, size in stats["resident_bytes"].items()},
        "cache_hits": stats["cache_hits"],
        "cache_misses": stats["cache_misses"],
        "retries": stats["retries"],
        "errors": stats["errors"],
        "quarantined": {name: n for name, n in stats["quarantined"].items() if n},
        "worker_deaths": stats["worker_deaths"],
        "cropped": {name: n for name, n in stats["cropped"].items() if n},
        "warnings": warnings,
        **({"reason": reason} if reason else {}),
    }


def _compute_rates(
    line: Mapping[str, Any], before: Mapping[str, Any] | None, seconds: float
) -> dict[str, Any]:
    """Return the rates since the record before."""
    samples = sum(line["samples"].values()) - sum((before or {"samples": {}})["samples"].values())
    waited = line["waited_s"] - (before["waited_s"] if before else 0.0)
    tokens = line["tokens"]
    if tokens is not None and before is not None:
        tokens -= before["tokens"] or 0
    return {
        "samples_per_s": round(samples / seconds, 1),
        "tokens_per_s": None if tokens is None else round(tokens / seconds, 1),
        "waited": round(min(1.0, max(0.0, waited / seconds)), 4),
    }


# ---------------------------------------------------------------- reading


@dataclass
class RankStats:
    """Lines of one rank, from the newest loader and those before it.

    Attributes:
        start: the newest start line; empty before the first.
        starts: all start lines.
        records: records and ends in the order of the file. Of a long run older records are
            thinned: every second, fourth and so on.
        last_by_session: the last record of every session.
    """

    start: dict[str, Any] = field(default_factory=dict[str, Any])
    starts: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    records: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    last_by_session: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])

    @property
    def is_closed(self) -> bool:
        """True if the newest loader was closed."""
        last = self.last_by_session.get(self.start.get("session", ""))
        return last is not None and last["kind"] == "end"

    @property
    def session_records(self) -> list[dict[str, Any]]:
        """The records of the newest loader."""
        session = self.start.get("session")
        return [record for record in self.records if record["session"] == session]

    def take(self, line: Mapping[str, Any]) -> None:
        """Add a line; unknown and corrupted lines are ignored."""
        kind = line.get("kind")
        if kind == "start" and isinstance(line.get("session"), str):
            self.start = dict(line)
            self.starts.append(self.start)
        elif kind in ("record", "end") and _is_record(line):
            self.records.append(dict(line))
            self.last_by_session[line["session"]] = self.records[-1]
            if len(self.records) > _MAX_RECORDS:
                recent = _MAX_RECORDS // 4
                self.records = self.records[:-recent:2] + self.records[-recent:]


def _is_record(line: Mapping[str, Any]) -> bool:
    numbers = ("time", "elapsed_s", "step", "items", "waited_s", "first_s", "epoch")
    samples = line.get("samples")
    return (
        isinstance(line.get("session"), str)
        and all(isinstance(line.get(name), int | float) for name in numbers)
        and isinstance(samples, dict)
        and all(isinstance(n, int) for n in cast("dict[Any, Any]", samples).values())
    )


@dataclass(frozen=True)
class RunStats:
    """Stats of a run: the lines of all its ranks.

    Attributes:
        path: the file of rank 0.
        ranks: the lines of each rank.
    """

    path: Path
    ranks: Mapping[int, RankStats]

    def summary(self) -> dict[str, Any]:
        """Return the state of the run now, as `penstock top --json` prints it."""
        return summarize(self.ranks, str(self.path))


class StatsFollower:
    """Reader of the stats of a run; each `poll` reads only what was appended since the last.

    Args:
        path: a stats file, or a folder that holds some. In a folder the newest run is followed.

    Raises:
        ConfigError: if the path does not exist or is no stats file.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = find_stats_file(require_local(path))
        self._files = dict[int, _FollowedFile]()

    def poll(self) -> RunStats:
        """Read new lines; return the stats of the run."""
        for rank, path in _find_rank_files(self.path):
            self._files.setdefault(rank, _FollowedFile(path)).poll()
        ranks = {rank: file.rank for rank, file in sorted(self._files.items()) if file.rank.start}
        return RunStats(self.path, ranks)


def read_stats(path: str | Path) -> RunStats:
    """Read the stats of a run.

    Args:
        path: a stats file, or a folder that holds some.

    Raises:
        ConfigError: if the path does not exist or is no stats file.
    """
    return StatsFollower(path).poll()


class _FollowedFile:
    """Position of a reader in one file."""

    def __init__(self, path: Path) -> None:
        self.rank, self._path, self._offset = RankStats(), path, 0

    def poll(self) -> None:
        with suppress(FileNotFoundError), convert_storage_errors(self._path):
            size = self._path.stat().st_size
            if size < self._offset:  # another file took its place
                self.rank, self._offset = RankStats(), 0
            stride = 1 + (size - self._offset) // _MAX_BACKLOG
            skipped = b""
            for number, line in enumerate(self._read_lines(size)):
                is_record = line.startswith(b'{"kind":"record"')
                if is_record and number % stride and size - self._offset > _CHUNK:
                    skipped = line
                    continue
                if skipped and not is_record:  # the last record of a session counts
                    self._take(skipped)
                skipped = b""
                self._take(line)
            if skipped:
                self._take(skipped)

    def _read_lines(self, size: int) -> Iterator[bytes]:
        """Yield complete lines; the offset follows the last one."""
        with self._path.open("rb") as file:
            file.seek(self._offset)
            rest = b""
            while self._offset + len(rest) < size and (chunk := file.read(_CHUNK)):
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    self._offset += len(line) + 1
                    yield line

    def _take(self, line: bytes) -> None:
        with suppress(ValueError, RecursionError):
            parsed = json.loads(line)
            if isinstance(parsed, dict):
                self.rank.take(cast("dict[str, Any]", parsed))


def find_stats_file(path: Path) -> Path:
    """Return the stats file of rank 0: the file itself, or the newest of a folder.

    Raises:
        ConfigError: if there is none.
    """
    if path.is_dir():
        with convert_storage_errors(path):
            files = [file for file in path.glob("*.jsonl") if is_stats_file(file)]
        base = {_strip_rank(file): file.stat().st_mtime for file in files}
        if not base:
            raise ConfigError(
                f"{path}: no stats file in this folder; a loader writes one with "
                f"Loader(stats={str(path / 'stats.jsonl')!r})"
            )
        return max(base, key=lambda file: base[file])
    if not path.exists():
        raise ConfigError(f"{path}: no such file or folder; give the path of Loader(stats=...)")
    if path.is_file() and path.stat().st_size and not is_stats_file(path):
        raise ConfigError(
            f"{path}: not a stats file of a loader; give the path of Loader(stats=...)"
        )
    return _strip_rank(path)


def is_stats_file(path: Path) -> bool:
    """Return True if the first line of a file is the start of a run."""
    with suppress(OSError, ValueError, RecursionError), path.open("rb") as file:
        line = json.loads(file.readline(_CHUNK))
        return isinstance(line, dict) and cast("dict[str, Any]", line).get("format") == STATS_FORMAT
    return False


def _strip_rank(path: Path) -> Path:
    """Return the file of rank 0 of the run that a rank's file belongs to."""
    stem, _, rank = path.stem.rpartition(".rank")
    return path.with_name(f"{stem}{path.suffix}") if stem and rank.isdecimal() else path


def _find_rank_files(path: Path) -> Iterator[tuple[int, Path]]:
    """Yield the stats files of the ranks of a run, and their ranks."""
    yield 0, path
    prefix = f"{path.stem}.rank"
    for file in path.parent.glob(f"*{path.suffix}"):
        number = file.stem.removeprefix(prefix)
        if file.suffix == path.suffix and file.stem.startswith(prefix) and number.isdecimal():
            yield int(number), file


# ---------------------------------------------------------------- the present state


def summarize(ranks: Mapping[int, RankStats], path: str | None = None) -> dict[str, Any]:
    """Return the present state of a run as JSON values.

    Counts are totals over all loaders and ranks, so steps that a resume repeated count twice.
    Rates are of the last ten seconds of the newest loaders.
    """
    newest = max(ranks.values(), key=lambda rank: rank.start.get("time", 0), default=RankStats())
    start = newest.start
    size = start.get("world_size", 1)
    active = {rank: stats for rank, stats in ranks.items() if rank < size}
    last = {
        rank: record
        for rank, stats in active.items()
        if (record := stats.last_by_session.get(stats.start.get("session", "")))
    }
    rates = {rank: _measure_window(stats) for rank, stats in active.items()}
    samples = Counter[str](dict.fromkeys(start.get("sources", ()), 0))
    cropped = Counter[str]()
    totals = Counter[str]()
    for stats in ranks.values():
        for record in stats.last_by_session.values():
            samples.update(record["samples"])
            cropped.update(record.get("cropped", {}))
            totals.update({name: record.get(name) or 0 for name in _TOTALS})
    resident = {rank: sum(record["resident_bytes"].values()) for rank, record in last.items()}
    quarantined = Counter[str]()
    for record in last.values():
        quarantined.update(record.get("quarantined", {}))
    time = max((record["time"] for record in last.values()), default=start.get("time"))
    age = None if time is None else max(0.0, read_clock() - time)
    total = sum(samples.values())
    known = [rate["tokens"] for rate in rates.values() if rate["tokens"] is not None]
    waits = {str(rank): round(rate["waited"], 4) for rank, rate in rates.items() if rank in last}
    return {
        "path": path,
        "time": time,
        "age_s": None if age is None else round(age, 1),
        "status": _name_status(list(active.values()), last, age),
        "ranks": len(last),
        "world_size": size,
        "sessions": max((len(stats.starts) for stats in ranks.values()), default=0),
        "run": start.get("run"),
        "step": max((record["step"] for record in last.values()), default=0),
        "steps": start.get("steps"),
        "epoch": max((record["epoch"] for record in last.values()), default=0),
        "samples_per_s": round(sum(rate["samples"] for rate in rates.values()), 1),
        "tokens_per_s": round(sum(known), 1) if known else None,
        "steps_per_s": round(max((rate["steps"] for rate in rates.values()), default=0.0), 4),
        "waited": round(sum(waits.values()) / max(1, len(waits)), 4),
        "waited_by_rank": waits,
        "samples": dict(samples),
        "shares": {name: n / max(1, total) for name, n in samples.items()},
        "work": _merge_work([record.get("work") for record in last.values()]),
        "resident_bytes": sum(resident.values()),
        "resident_by_rank": {str(rank): size for rank, size in resident.items()},
        "under_way": sum(record.get("under_way", 0) for record in last.values()),
        "under_way_bytes": sum(record.get("under_way_bytes", 0) for record in last.values()),
        **{name: totals[name] for name in _TOTALS},
        "errors": sum(record.get("errors", 0) for record in last.values()),
        "quarantined": dict(quarantined),
        "cropped": dict(cropped),
        "warnings": list(dict.fromkeys(w for r in last.values() for w in r.get("warnings", ()))),
    }


def _measure_window(rank: RankStats) -> dict[str, Any]:
    """Return the rates of the newest loader of a rank over the last seconds."""
    records = rank.session_records[-64:]
    if not records:
        return {"samples": 0.0, "tokens": None, "waited": 0.0, "steps": 0.0}
    last = records[-1]
    before = next((r for r in reversed(records) if last["time"] - r["time"] >= _WINDOW), records[0])
    if before is last:
        before = dict[str, Any](samples={}, items=0, tokens=0, waited_s=0.0)
        seconds = last["elapsed_s"] + last["first_s"]
    else:
        seconds = last["time"] - before["time"]
    if seconds <= 0:
        seconds = last["elapsed_s"] + last["first_s"] or 1e-9
    tokens = last.get("tokens")
    drawn = sum(last["samples"].values()) - sum(before["samples"].values())
    waited = max(0.0, (last["waited_s"] - before["waited_s"]) / seconds)
    return {
        "samples": drawn / seconds,
        "tokens": None if tokens is None else (tokens - (before.get("tokens") or 0)) / seconds,
        "waited": min(1.0, waited),
        "steps": (last["items"] - before["items"]) / seconds,
    }


def _name_status(
    active: Sequence[RankStats], last: Mapping[int, Mapping[str, Any]], age: float | None
) -> str:
    if not last or age is None:
        return "no data"
    if all(stats.is_closed for stats in active):
        return "closed"
    here = [stats for stats in active if stats.start.get("host") == platform.node()]
    ended = [
        stats
        for stats in here
        if not stats.is_closed and not measure_resident_memory(stats.start.get("pid") or 0)
    ]
    if ended and age > _INTERVAL * 3 and Path("/proc/self").exists():
        return "ended"
    return "running" if age <= _STALE or len(here) == len(active) else "stale"


def _merge_work(works: Sequence[Any]) -> list[dict[str, Any]]:
    """Return the sums of the work of all ranks by step and source, the longest first."""
    sums = dict[tuple[str, str], list[float]]()
    for row in (row for rows in works if isinstance(rows, list) for row in cast("list[Any]", rows)):
        total = sums.setdefault((row["step"], row["source"]), [0, 0.0, 0.0])
        for i, name in enumerate(("items", "seconds", "processor")):
            total[i] += row[name]
    rows = [
        {"step": step, "source": source, "items": n, "seconds": seconds, "processor": processor}
        for (step, source), (n, seconds, processor) in sums.items()
    ]
    return sorted(rows, key=lambda row: -cast("float", row["seconds"]))
