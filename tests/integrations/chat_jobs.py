"""Jobs of fine-tuning on chats that are killed, for `test_chat_jobs.py`: reads jobs as JSON, does one after the other.

The framework is imported once; each rank is a fork of its own, which may kill itself by SIGKILL after a step. The lines
of a job are those of its page of the docs.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import sys
import traceback
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from docs_page import DOCS, ROOT, blocks


@dataclass
class Job:
    """One job: in which folder, for how many steps, after which step it dies, on how many ranks."""

    name: str
    folder: str
    output: str = "run"
    steps: int = 12
    kill: int = 0
    world: int = 1


def make_files(folder: Path) -> None:
    """Write chats, pairs, and a tiny model with its tokenizer."""
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    from chat_cases import bpe

    def turn(question: str, answer: str) -> list[dict[str, str]]:
        return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]

    chats = [
        {"messages": turn(f"Is it {i}?", "yes " * (1 + i % 7) + f"{i * i}.") * (1 + i % 3)}
        for i in range(60)
    ]
    pairs = [
        {"prompt": turn(f"Is it {i}?", "")[:1], "chosen": turn("", f"yes, {i * i}.")[1:],
         "rejected": turn("", "no " * (1 + i % 5))[1:]}
        for i in range(60)
    ]  # fmt: skip
    for name, rows in (("chats", chats), ("pairs", pairs)):
        Path(folder, f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    tokenizer: Any = PreTrainedTokenizerFast(
        tokenizer_object=bpe(), eos_token="<|im_end|>", pad_token="<|endoftext|>"
    )
    template = ROOT / "src/penstock/text/chat/families/chatml.jinja"
    tokenizer.chat_template = template.read_text(encoding="utf-8")
    tokenizer.save_pretrained(folder / "model")
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1}
    config = LlamaConfig(
        vocab_size=len(tokenizer), num_attention_heads=2, eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id, bos_token_id=None, **sizes,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder / "model")


def settings(job: Job) -> dict[str, Any]:
    return {
        "output_dir": job.output, "max_steps": job.steps, "save_steps": 5, "logging_steps": 1, "report_to": [],
        "use_cpu": True, "bf16": False, "disable_tqdm": True, "learning_rate": 1e-2,
    }  # fmt: skip


def note_losses(job: Job) -> Any:
    """Return a callback that writes the loss of every step, and kills the process after a step."""
    from transformers import TrainerCallback

    class Notes(TrainerCallback):
        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
            if "loss" in logs:
                with Path(job.output + ".jsonl").open("a") as file:
                    file.write(
                        json.dumps([state.global_step, logs["loss"], logs["grad_norm"]]) + "\n"
                    )
            if state.global_step == job.kill:
                os.kill(os.getpid(), signal.SIGKILL)

    return Notes()


def train(job: Job) -> None:
    """Do the job that a page of the docs shows, on the tiny model."""
    import trl  # pyright: ignore[reportMissingImports]
    from transformers import AutoModelForCausalLM, AutoTokenizer

    if not Path("model").exists():
        make_files(Path())
    code = read_job(job.name)
    config = {"sft": trl.SFTConfig, "dpo": trl.DPOConfig}[job.name](**settings(job))
    names: dict[str, Any] = {
        "model": AutoModelForCausalLM.from_pretrained("model"),
        "tokenizer": AutoTokenizer.from_pretrained("model"), "config": config, "notes": [note_losses(job)],
    }  # fmt: skip
    exec(code, names)


def read_job(name: str) -> str:
    """Return the lines of the docs, with the settings of the test in place of theirs."""
    page = DOCS / "tasks" / f"{name}.md"
    (code,) = (
        code for _, language, code in blocks(page) if language == "text" and "MyTrainer" in code
    )
    assert len(code.splitlines()) <= 8
    code, count = re.subn(
        r'(?:SFT|DPO)Config\("run", max_steps=1000\)', "config, callbacks=notes", code
    )
    assert count == 1
    return code.replace("4096", "256").replace("2048", "256")


def held_out(batch_size: int) -> Any:
    """Return batches of 27 chats with labels."""
    import penstock as ps
    from penstock.text import CausalLM, Chat, Padded

    fields = CausalLM(("input_ids", "labels", "attention_mask"))
    chats = (
        ps.read("chats.jsonl")
        .select(range(27))
        .map(Chat("model/tokenizer.json", template="chatml"))
    )
    return chats.batch(batch_size, collate=Padded()).map(fields)


def evaluate(job: Job) -> None:
    """Evaluate the tiny model; write the loss, with the number of batches."""
    from transformers import AutoModelForCausalLM, AutoTokenizer, Trainer, TrainingArguments

    import penstock as ps
    from penstock.integrations.transformers import FromLoader

    model: Any = AutoModelForCausalLM.from_pretrained("model")
    options = {"output_dir": job.output, "report_to": [], "use_cpu": True, "disable_tqdm": True}
    if job.world > 1:
        options["ddp_backend"] = "gloo"
    if job.name == "evaluate trl":
        import trl  # pyright: ignore[reportMissingImports]

        arguments, base = trl.SFTConfig(**options, bf16=False), trl.SFTTrainer
        more = {"processing_class": AutoTokenizer.from_pretrained("model")}
    else:
        arguments, base, more = TrainingArguments(**options), Trainer, {}

    class MyTrainer(FromLoader, base): ...  # pyright: ignore[reportGeneralTypeIssues]

    def loader() -> ps.Loader:
        return ps.Loader(held_out(job.steps), to="torch", remainder="pad")

    trainer: Any = MyTrainer(
        model, arguments, train_loader=loader(), eval_loader={"chats": loader()}, **more
    )
    losses = [trainer.evaluate()["eval_chats_loss"], trainer.evaluate(loader())["eval_loss"]]
    batches = len(trainer.get_eval_dataloader("chats"))
    if os.environ["RANK"] == "0":
        Path(job.output + ".json").write_text(json.dumps([batches, *losses]))


def main() -> None:
    torch.set_num_threads(1)
    jobs = [Job(**asked) for asked in json.load(sys.stdin)]
    for name in ("transformers.trainer", *(["trl"] if jobs[0].name != "evaluate" else [])):
        import_module(name)
    for job in jobs:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        ranks = list[int]()
        for rank in range(job.world):
            if not (process := os.fork()):
                place = {
                    "RANK": rank,
                    "LOCAL_RANK": rank,
                    "WORLD_SIZE": job.world,
                    "MASTER_PORT": port,
                }
                os.environ |= {name: str(value) for name, value in place.items()}
                os.environ["MASTER_ADDR"] = "127.0.0.1"
                try:
                    os.chdir(job.folder)
                    (evaluate if job.name.startswith("evaluate") else train)(job)
                except BaseException:
                    traceback.print_exc()
                    os._exit(1)
                os._exit(0)
            ranks.append(process)
        ends = [os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) for process in ranks]
        assert ends == [-signal.SIGKILL if job.kill else 0] * job.world, (job, ends)


if __name__ == "__main__":
    main()
