"""`python -m bench`: measure, and write bench/RESULTS.md; `--quick` prints one JSON object of
ratios; `--tiny` only looks whether every row runs; `--growth` measures cost over size.

A run that was stopped continues behind its last row when it is started again on the same commit.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

from .machine import machine
from .measure import Scale
from .run import (
    Results,
    Runner,
    absent,
    chosen,
    make_tasks,
    make_tiny_tasks,
    quick,
    ratios,
)
from .table import CASES, peers
from .work import TINY, scratch

HERE = Path(__file__).resolve().parent


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument(
        "--quick",
        action="store_true",
        help="small sizes, the main rows, one line of JSON at the end",
    )
    parser.add_argument(
        "--tiny", action="store_true", help="run every row once on little data; exit 1 if one fails"
    )
    parser.add_argument(
        "--growth", action="store_true", help="write GROWTH.md: cost over size; exit 1 if one grows"
    )
    parser.add_argument("--rounds", type=int, default=3, help="rounds at most (3)")
    parser.add_argument(
        "--minutes", type=float, default=40.0, help="no row of a later round begins after these"
    )
    parser.add_argument(
        "--slice", type=float, default=0.5, help="seconds of a row between two looks at the floor"
    )
    parser.add_argument("--only", default="", help=f"cases, by comma: {', '.join(CASES)}")
    parser.add_argument("--peers", default="", help=f"peers, by comma: {', '.join(peers())}")
    parser.add_argument("--timeout", type=float, default=240.0, help="seconds for one process")
    parser.add_argument(
        "--out",
        type=Path,
        default=HERE,
        help="the folder for RESULTS.md, results.json and pictures",
    )
    parser.add_argument(
        "--report", action="store_true", help="write the report again from results.json"
    )
    options = parser.parse_args()
    only, who = (list(filter(None, text.split(","))) for text in (options.only, options.peers))
    if unknown := [name for name in only if name not in CASES] + [
        name for name in who if name not in peers()
    ]:
        parser.error(f"no case or peer is called {', '.join(unknown)}")
    if options.growth:
        from .growth import write as write_growth

        sys.exit(not write_growth(options.out, machine()["line"]))
    scratch("")  # made here, so that all children share it
    if options.quick:
        runner = Runner(Scale.quick(), 30.0, quiet=False)
        quick(runner, list(chosen(only, who, absent(list(peers()), try_import=False))))
        for (peer, case, how), reason in runner.results.failed.items():
            print(f"{case}, {peer}: {how}: {reason}", file=sys.stderr)
        print(json.dumps(ratios(runner.results)))
        return
    if options.tiny:
        os.environ[TINY] = "1"
        runner = Runner(Scale.tiny(), options.timeout, quiet=False)
        missing = absent(who or list(peers()), try_import=False)
        runner.run(make_tiny_tasks(list(chosen(only, who, missing))))
        ran = runner.results.numbers.keys() | runner.results.words.keys()
        failed = runner.results.failed
        for (peer, case, how), reason in failed.items():
            print(f"{case}, {peer}: {how}: {reason}")
        print(f"{len(ran)} rows ran, {len(failed)} failed")
        sys.exit(bool(failed))
    raw = options.out / "results.json"
    if options.report:
        data = json.loads(raw.read_text())
    else:
        began, kept = time.perf_counter(), options.out / "unfinished.json"
        stamp = [find_commit(), only, who, options.slice]
        runner = Runner(Scale(slice_s=options.slice), options.timeout, False, kept, stamp)
        runner.results.absent = absent(list(peers()), try_import=True)
        rows = list(chosen(only, who, runner.results.absent))
        runner.run(make_tasks(rows, options.rounds), began + 60 * options.minutes)
        data = {"machine": machine(), "rounds": options.rounds, **runner.results.to_json()}
        raw.write_text(json.dumps(data, indent=0) + "\n")
        kept.unlink(missing_ok=True)
    from .report import write

    print(write(Results.from_json(data), data["machine"], data["rounds"], options.out))


def find_commit() -> str:
    """Return the commit of this checkout, and whether files differ from it."""
    args = ["git", "describe", "--always", "--dirty", "--exclude=*"]
    return subprocess.run(args, cwd=HERE, capture_output=True, text=True).stdout.strip()


if __name__ == "__main__":
    main()
