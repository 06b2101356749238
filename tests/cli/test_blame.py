"""`penstock blame`, for machines and for people."""

from __future__ import annotations

import json
from pathlib import Path

from cli_world import Penstock


def test_a_source_that_ends_is_named(mixture: Path, penstock: Penstock) -> None:
    mixture.write_text(
        mixture.read_text().replace("weight: 0.1, max_epochs: 0.5", "weight: 0.1, max_epochs: 0.1")
    )
    found = json.loads(penstock("blame", mixture, "--steps", "0:30", "--json").output)
    assert [one["source"] for one in found["findings"]][:1] == ["math"] and found["version"] == 1
    assert (
        "math: gives 9.58% of these steps, usually 0.00%"
        in penstock("blame", mixture, "--steps", "0:30").output
    )
    assert (
        penstock("blame", mixture, "--steps", "100:130").output
        == "nothing unusual in steps 100 to 130\n"
    )
    refused = penstock("blame", mixture, "--steps", "100:1300")
    assert refused.exit_code == 2 and "the run ends after 300" in refused.stderr
