"""`python -m bench`: measure, and write bench/RESULTS.md; `--quick` prints one JSON object of
ratios."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from .machine import machine
from .measure import Scale
from .run import Results, Runner, absent, chosen, full, quick, ratios
from .table import CASES, peers
from .work import scratch

HERE = Path(__file__).resolve().parent


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument(
        "--quick",
        action="store_true",
        help="small sizes, the main rows, one line of JSON at the end",
    )
    parser.add_argument("--rounds", type=int, default=3)
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
    scratch("")  # made here, so that all children share it
    if options.quick:
        runner = Runner(Scale.quick(), 30.0, quiet=False)
        quick(runner, list(chosen(only, who, absent(list(peers()), try_import=False))))
        for (peer, case, how), reason in runner.results.failed.items():
            print(f"{case}, {peer}: {how}: {reason}", file=sys.stderr)
        print(json.dumps(ratios(runner.results)))
        return
    raw = options.out / "results.json"
    if options.report:
        data = json.loads(raw.read_text())
    else:
        runner = Runner(Scale(slice_s=options.slice), options.timeout, quiet=False)
        runner.results.absent = absent(list(peers()), try_import=True)
        full(runner, list(chosen(only, who, runner.results.absent)), options.rounds)
        data = {"machine": machine(), "rounds": options.rounds, **runner.results.to_json()}
        raw.write_text(json.dumps(data, indent=0) + "\n")
    from .report import write

    print(write(Results.from_json(data), data["machine"], data["rounds"], options.out))


if __name__ == "__main__":
    main()
