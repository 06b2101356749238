"""Check that `penstock convert` is silent about no key of the YAML files of trainers.

    python tools/check_conversions.py FOLDER... [--ranks N] [--keys] [--verbose]

Every YAML file below the folders is parsed here by `yaml.safe_load`, and converted. The check
covers each key at the top of a converted file, and each key of an entry of a list of datasets. The
converter must list it as carried, harmless or reported. The tool prints a table with a row for each
folder, and exits with 1 if a key is missing.
"""

from __future__ import annotations

import argparse
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from penstock.compat.mixtures import convert_with_keys
from penstock.errors import PenstockError

_DATA = re.compile(
    r"(train_)?data(sets?|_path|_paths)?(_name|_mixture|_mixer|_mixer_list)?|pretraining_dataset|streams"
)
"""Keys by which a file names training data."""


@dataclass
class ConversionCounts:
    """Counts of the files and keys of a folder, by outcome."""

    files: int = 0
    training: int = 0
    converted: int = 0
    fates: Counter[str] = field(default_factory=Counter[str])
    refused: Counter[str] = field(default_factory=Counter[str])
    silent: list[str] = field(default_factory=list[str])
    keys: dict[str, Counter[str]] = field(default_factory=dict[str, Counter[str]])


def keys_of(value: Any) -> Iterator[str]:
    """The keys at the top of a file, and those of each entry of each list of settings, however deep
    it lies."""
    for name, child in value.items():
        yield str(name)
        yield from _entries(child, str(name))


def _entries(value: Any, at: str) -> Iterator[str]:
    if isinstance(value, dict):
        for name, child in value.items():
            yield from _entries(child, f"{at}.{name}")
    elif isinstance(value, list):
        for number, item in enumerate(value):
            place = f"{at}[{number}]"
            if isinstance(item, dict):
                yield from (f"{place}.{name}" for name in item)
            yield from _entries(item, place)


def fate_of(key: str, fates: dict[str, str]) -> str | None:
    """Return the outcome of a key: its own, or the outcome of an enclosing key that is harmless or
    reported."""
    if key in fates:
        return fates[key]
    around = key
    while match := re.match(r"(.*)(\.[^.\[]*|\[\d+\])$", around):
        around = match[1]
        if fates.get(around) in ("harmless", "reported"):
            return fates[around]
    return None


def check(path: Path, tally: ConversionCounts, ranks: int | None) -> None:
    """Convert a file, and compare its keys with what the converter says of them."""
    tally.files += 1
    try:
        value = yaml.safe_load(path.read_text())
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        tally.refused[f"not YAML ({type(error).__name__})"] += 1
        return
    table = value if isinstance(value, dict) else {}
    tally.training += any(
        _DATA.fullmatch(str(name).replace("-", "_")) and child for name, child in table.items()
    )
    try:
        found = convert_with_keys(path, ranks=ranks)
    except PenstockError as error:
        reason = str(error).splitlines()[0].replace(f"{path}: ", "")
        tally.refused[re.sub(r"\S*/\S*|: one of .*", "...", reason)[:110]] += 1
        return
    tally.converted += 1
    same = str(path)
    fates = {
        key.key: fate
        for fate in ("carried", "harmless", "reported")
        for key in getattr(found.keys, fate)
        if key.file == same
    }
    for key in keys_of(table):
        fate = fate_of(key, fates)
        if fate is None:
            tally.silent.append(f"{path}: {key}")
        else:
            tally.fates[fate] += 1
            tally.keys.setdefault(fate, Counter())[re.sub(r"\[\d+\]", "[]", key)] += 1


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument(
        "--ranks", type=int, help="how many ranks the runs have (default: not said)"
    )
    parser.add_argument("--keys", action="store_true", help="list the keys by what became of them")
    given = parser.parse_args()
    tallies = dict[str, ConversionCounts]()
    for folder in given.folders:
        tally = tallies.setdefault(folder.name, ConversionCounts())
        for path in sorted([*folder.rglob("*.yaml"), *folder.rglob("*.yml")]):
            if not any(part.startswith(".") for part in path.relative_to(folder).parts):
                check(path, tally, given.ranks)
    print(f"{'folder':32}{'files':>7}{'training':>10}{'converted':>11}{'refused':>9}", end="")
    print(f"{'keys':>8}{'carried':>9}{'harmless':>10}{'reported':>10}{'silent':>8}")
    for name, tally in tallies.items():
        fates = [tally.fates[fate] for fate in ("carried", "harmless", "reported")]
        counts = [tally.files, tally.training, tally.converted, sum(tally.refused.values())]
        counts += [sum(fates) + len(tally.silent), *fates, len(tally.silent)]
        widths = (7, 10, 11, 9, 8, 9, 10, 10, 8)
        print(
            f"{name:32}"
            + "".join(f"{count:>{width}}" for count, width in zip(counts, widths, strict=True))
        )
    for name, tally in tallies.items():
        for reason, count in tally.refused.most_common():
            print(f"{name}: {count} refused: {reason}")
        for fate, keys in tally.keys.items() if given.keys else ():
            print(
                f"{name}: {fate}: "
                f"{', '.join(f'{key} {count}' for key, count in keys.most_common())}"
            )
        for key in tally.silent:
            print(f"silent: {key}")
    return int(any(tally.silent for tally in tallies.values()))


if __name__ == "__main__":
    raise SystemExit(main())
