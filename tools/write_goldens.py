"""Write tests/goldens/VERSION: data, states with their next items, stores and indexes of a release.

    PYTHONPATH=src:tests python tools/write_goldens.py 0.1

Run it once for a release, with the code of that release. A folder that exists is never written
again: it shows what that release wrote. `tests/test_goldens.py` reads all folders.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from pathlib import Path

import golden_pipelines as goldens
import penstock as ps

FOLDER = Path(__file__).resolve().parent.parent / "tests" / "goldens"


def write_goldens(version: str, parent: Path = FOLDER) -> Path:
    """Write the folder of a release.

    Args:
        version: The release, the beginning of `penstock.__version__`.
        parent: The folder of all releases.

    Returns:
        The new folder.

    Raises:
        SystemExit: The folder exists, or another version of Penstock is imported.
    """
    folder = parent / version
    if folder.exists():
        raise SystemExit(f"{folder} exists. Goldens of a release are never written again.")
    if not f"{ps.__version__}.".startswith(f"{version}."):
        raise SystemExit(f"this is Penstock {ps.__version__}, not {version}")
    with tempfile.TemporaryDirectory() as temporary:  # complete, or nothing
        made = Path(temporary, version)
        data = made / "data"
        goldens.write_data(data)
        goldens.write_made(data)
        runs = {name: goldens.save_run(name, data) for name in goldens.PIPELINES}
        text = ",\n".join(
            f"{json.dumps(name)}: {json.dumps(run, separators=(',', ':'))}"
            for name, run in runs.items()
        )
        (made / "states.json").write_text(f"{{\n{text}\n}}\n", encoding="utf-8")
        # Beside the data they have hidden names, which git ignores.
        for number, index in enumerate(sorted(data.rglob(".*.penstock-*"))):
            place = made / "indexes" / f"{number:02}"
            place.parent.mkdir(exist_ok=True)
            index.rename(place)
            name = index.relative_to(data).as_posix()
            place.with_suffix(".name").write_text(f"{name}\n", encoding="utf-8")
        shutil.copytree(made, folder)
    return folder


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    print(write_goldens(sys.argv[1]))
