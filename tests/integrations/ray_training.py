"""A run of Ray Train whose workers are killed once: Ray begins them anew, and they go on from its checkpoint."""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

STEPS, EVERY, DEATH = 20, 4, 11


def work(config: dict[str, Any]) -> None:
    """Train on one worker.

    Args:
        config: the folder of the logs, and a flag that makes the worker die.
    """
    import ray.train
    import torch
    from ray.train import Checkpoint
    from ray.train.torch import prepare_model

    from integrations.training import Model, Run, opened
    from penstock.integrations.trainers import AllRanks

    context = ray.train.get_context()
    rank, world = context.get_world_rank(), context.get_world_size()
    os.environ["RANK"] = str(rank)
    loader = opened("lanes", world)
    place, model = AllRanks(loader), Model(Run("ray", "lanes", world, config["folder"]))
    optimizer, done = torch.optim.SGD(model.parameters(), 0.1), 0
    began = ray.train.get_checkpoint()
    trained = prepare_model(model)
    if began:
        with began.as_directory() as folder:
            state = torch.load(Path(folder, "model.pt"))
            model.load_state_dict(state["model"])
            place.load_state_dict(json.loads(Path(folder, "penstock.json").read_text()))
            done = state["done"]
    for batch in loader:
        trained(**batch)["loss"].backward()
        optimizer.step()
        optimizer.zero_grad()
        done += 1
        if done == config["death"] and not began:
            os.kill(os.getpid(), signal.SIGKILL)
        if done % EVERY == 0 or done == STEPS:
            state = place.state_dict()  # of all ranks: every worker asks
            with tempfile.TemporaryDirectory() as folder:
                if rank == 0:
                    torch.save(
                        {"model": model.state_dict(), "done": done}, Path(folder, "model.pt")
                    )
                    Path(folder, "penstock.json").write_text(json.dumps(state))
                ray.train.report(
                    {"done": done}, checkpoint=Checkpoint(folder) if rank == 0 else None
                )
        if done == STEPS:
            return


def main() -> None:
    import ray
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer

    [folder] = sys.argv[1:]
    paths = os.environ["PYTHONPATH"]
    ray.init(
        "local",
        num_cpus=3,
        include_dashboard=False,
        runtime_env={"env_vars": {"PYTHONPATH": paths}},
        log_to_driver=False,
    )  # fmt: skip - local: a cluster of another test on this machine is none of ours
    for name, world, death in (("full", 1, 0), ("dying", 2, DEATH)):
        Path(folder, name).mkdir()
        trainer = TorchTrainer(
            work, train_loop_config={"folder": str(Path(folder, name)), "death": death},
            scaling_config=ScalingConfig(num_workers=world), torch_config=TorchConfig(backend="gloo"),
            run_config=RunConfig(name=name, storage_path=folder + "/ray", failure_config=FailureConfig(max_failures=1)),
        )  # fmt: skip
        result: Any = trainer.fit()
        assert result.metrics["done"] == STEPS, result
    ray.shutdown()


if __name__ == "__main__":
    main()
