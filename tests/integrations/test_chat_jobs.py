"""Fine-tuning on chats as the docs show it: killed and resumed under TRL, with losses equal to the last bit; evaluation."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

import penstock as ps

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("accelerate")

from integrations.chat_jobs import Job, held_out, make_files

pytestmark = pytest.mark.slow  # trainers in processes that are killed


def do(*jobs: Job) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(Path(__file__).with_name("chat_jobs.py"))],
        input=json.dumps([asdict(job) for job in jobs]),
        env=os.environ
        | {
            "PYTHONPATH": os.pathsep.join(sys.path),
            "OMP_NUM_THREADS": "1",
            "TOKENIZERS_PARALLELISM": "0",
            "HF_HUB_OFFLINE": "1",
        },
        capture_output=True,
        text=True,
        timeout=3000,
    )
    assert done.returncode == 0, done.stderr[-4000:]


@pytest.mark.parametrize("name", ["sft", "dpo"])
def test_the_job_of_the_docs_is_killed_and_resumes_with_equal_losses(
    name: str, tmp_path: Path
) -> None:
    pytest.importorskip("trl")
    full = Job(name, str(tmp_path), "full")
    killed = Job(name, str(tmp_path), "killed", kill=7)
    do(full, killed, Job(name, str(tmp_path), "killed"))
    expected, actual = (
        [json.loads(line) for line in (tmp_path / f"{output}.jsonl").read_text().splitlines()]
        for output in ("full", "killed")
    )
    assert [step for step, *_ in expected] == [*range(1, 13)]
    assert actual == expected[:7] + expected[5:]
    assert len({loss for _, loss, _ in expected}) == 12


@pytest.mark.parametrize("name", ["evaluate", "evaluate trl"])
def test_the_loss_of_an_evaluation_counts_every_token_once_on_any_ranks(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    if name == "evaluate trl":
        pytest.importorskip("trl")
    make_files(tmp_path)
    monkeypatch.chdir(tmp_path)
    model: Any = AutoModelForCausalLM.from_pretrained("model")
    total, count = 0.0, 0
    for row in ps.Loader(held_out(1), to="torch"):
        learned = int((row["labels"][:, 1:] >= 0).sum())
        with torch.no_grad():
            total += float(model(**row).loss) * learned
        count += learned
    cases = [(1, 4, 7), (2, 10, 2), (3, 10, 1)]  # ranks, batch size, batches
    do(
        *(
            Job(name, str(tmp_path), f"run-{ranks}-{size}", size, 0, ranks)
            for ranks, size, _ in cases
        )
    )
    for ranks, size, batches in cases:
        found, *losses = json.loads((tmp_path / f"run-{ranks}-{size}.json").read_text())
        assert found == batches
        assert losses == pytest.approx([total / count] * 2, rel=1e-6)
