"""A small language model trained on packed rows, and on the same documents padded, for `test_losses.py`.

By torch in forks of one process (arguments are a port and a folder), and by JAX in the processes of
`jax_ranks`. Both report the losses by source of every step, in both forms.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import penstock as ps
from integrations.forked_ranks import fork_ranks
from penstock.integrations.losses import (
    count_loss_tokens,
    mean_by_source,
    reduce_loss_tokens,
    sum_by_source,
)
from penstock.text import CausalLM, Padded

LENGTH, ROWS, STEPS, VOCABULARY, SIZE = 32, 6, 2, 40, 8
"""Few steps: JAX compiles for the shape of every padded one."""
FORMS = ("packed", "padded")
IGNORE = -100
RATE = 0.5
FIELDS = ("input_ids", "labels", "position_ids", "segment_ids")


@cache
def documents() -> tuple[dict[str, ps.Dataset], dict[str, list[np.ndarray[Any, Any]]]]:
    """Return three sources of documents of 2 to 20 tokens, and their documents."""
    rng = np.random.default_rng(7)
    found, texts = dict[str, ps.Dataset](), dict[str, list[np.ndarray[Any, Any]]]()
    for number, name in enumerate(("code", "math", "web")):
        sizes = rng.integers(2, 21, 40)
        low = 10 * number  # sources use tokens of their own, so that their losses differ
        texts[name] = [rng.integers(low, low + 12, size) for size in sizes]
        ends = np.cumsum([0, *sizes])
        found[name] = ps.from_tokens(np.concatenate(texts[name]).astype(np.int32), ends, name=name)
    return found, texts


def packed() -> ps.Dataset:
    sources, _ = documents()
    mixed = ps.mix(
        {name: ds.shuffle().repeat() for name, ds in sources.items()},
        {"code": 3, "math": 1, "web": 2},
        seed=2,
    )
    rows = mixed.limit(500).pack(
        LENGTH, "first_fit", long="truncate", max_segments=8, provenance=True
    )
    return rows.batch(global_batch_size=ROWS).map(CausalLM(FIELDS, shift=True))


def padded(step: int) -> ps.Dataset:
    """Return the documents of a step of the packed run, one a row."""
    sources, _ = documents()
    drawn = packed().plan.at(step=step, world_size=2)
    parts = [
        ds.select([sample.index for sample in drawn if sample.source == name])
        for name, ds in sources.items()
        if any(sample.source == name for sample in drawn)
    ]
    rows = ps.concat(*parts) if len(parts) > 1 else parts[0]
    batch = rows.batch(
        global_batch_size=2 * -(-len(rows) // 2),
        collate=Padded(multiple=LENGTH, provenance=True),
    )
    return batch.map(CausalLM(FIELDS, shift=True))


def iterate(form: str, **options: Any) -> Iterator[tuple[dict[str, Any], tuple[str, ...]]]:
    """Yield the batches of this process and the sources that their ids count."""
    if form == "packed":
        rows = packed()
        for batch, _ in zip(ps.Loader(rows, **options), range(STEPS), strict=False):
            yield batch, rows.sources
        return
    for step in range(STEPS):
        rows = padded(step)
        for batch in ps.Loader(rows, remainder="pad", **options):
            yield batch, rows.sources


def parameters() -> list[np.ndarray[Any, Any]]:
    """Return embeddings of tokens and positions, and the head."""
    rng = np.random.default_rng(0)
    shapes = ((VOCABULARY, SIZE), (LENGTH, SIZE), (SIZE, VOCABULARY))
    return [rng.normal(size=shape) for shape in shapes]


# ---------------------------------------------------------------- torch


def torch_losses(weights: list[Any], batch: dict[str, Any]) -> Any:
    import torch

    from penstock.text import document_mask

    tokens, positions, head = weights
    x = tokens[batch["input_ids"]] + positions[batch["position_ids"].long()]
    x = x + torch.nn.functional.scaled_dot_product_attention(
        x[:, None], x[:, None], x[:, None], attn_mask=document_mask(batch["segment_ids"])
    ).squeeze(1)
    return torch.nn.functional.cross_entropy(
        (x @ head).reshape(-1, VOCABULARY),
        batch["labels"].reshape(-1),
        reduction="none",
        ignore_index=IGNORE,
    )


def by_torch() -> dict[str, Any]:
    import torch
    import torch.distributed as distributed

    distributed.init_process_group("gloo")
    out = dict[str, Any]()
    for form in FORMS:
        weights = [torch.tensor(array, requires_grad=True) for array in parameters()]
        means = list[dict[str, float]]()
        for batch, sources in iterate(form, to="torch"):
            losses = torch_losses(weights, batch)
            sums = sum_by_source(
                losses,
                batch["source_ids"],
                len(sources),
                labels=batch["labels"],
                mask=batch.get("valid"),
            )
            valid = batch["valid"][:, None] if "valid" in batch else torch.tensor(True)
            kept = ((batch["labels"] != IGNORE) & valid).reshape(-1)
            total = torch.stack([(losses * kept).sum(), kept.sum()])
            tokens = total[1].clone().detach()
            distributed.all_reduce(tokens)
            assert reduce_loss_tokens(count_loss_tokens(batch)) == int(tokens)
            (total[0] / tokens).backward()
            for weight in weights:
                grad: Any = weight.grad
                distributed.all_reduce(grad)
                with torch.no_grad():
                    weight -= RATE * grad
                weight.grad = None
            means.append(mean_by_source(sums, sources))
            assert means[-1] == mean_by_source(sums.numpy(), sources)  # gathered instead
        out[form] = means
    distributed.destroy_process_group()
    return out


# ---------------------------------------------------------------- JAX


def by_jax(_: Any) -> dict[str, Any]:
    import jax
    import jax.numpy as jnp
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    mesh = Mesh(np.array(jax.devices()), "data")
    sharding = NamedSharding(mesh, PartitionSpec("data"))
    everywhere = NamedSharding(mesh, PartitionSpec())

    def total(weights: list[Any], batch: dict[str, Any], sources: int) -> tuple[Any, Any]:
        tokens, positions, head = weights
        x = tokens[batch["input_ids"]] + positions[batch["position_ids"]]
        ids = batch["segment_ids"]
        seen = (ids[:, :, None] == ids[:, None, :]) & np.tri(ids.shape[1], dtype=bool)
        scores = jnp.where(seen, x @ x.swapaxes(1, 2) / SIZE**0.5, -jnp.inf)
        x = x + jax.nn.softmax(scores) @ x
        labels = batch["labels"]
        losses = -jnp.take_along_axis(
            jax.nn.log_softmax(x @ head), jnp.maximum(labels, 0)[..., None], -1
        )[..., 0]
        mask = batch.get("valid")
        sums = sum_by_source(losses, batch["source_ids"], sources, labels=labels, mask=mask)
        kept = (labels != IGNORE) & (True if mask is None else mask[:, None])
        return (losses * kept).sum() / kept.sum(), sums

    @jax.jit
    def step(weights: list[Any], batch: dict[str, Any]) -> tuple[list[Any], Any]:
        grads, sums = jax.grad(total, has_aux=True)(weights, batch, 3)
        return [w - RATE * grad for w, grad in zip(weights, grads, strict=True)], sums

    out = dict[str, Any]()
    for form in FORMS:
        weights = [jax.device_put(array.astype(np.float32), everywhere) for array in parameters()]
        means = list[dict[str, float]]()
        for batch, sources in iterate(form, to="jax", device=sharding):
            assert len(sources) == 3
            numbers = {
                name: batch[name] for name in (*FIELDS, "source_ids", "valid") if name in batch
            }
            if not means:
                check_local(
                    jax.jit(total, static_argnums=2),
                    weights,
                    numbers,
                    mean_by_source(step(weights, numbers)[1], sources),
                )
            weights, sums = step(weights, numbers)
            count = reduce_loss_tokens(count_loss_tokens(numbers))
            assert count == reduce_loss_tokens(sums[1].sum())
            means.append(mean_by_source(sums, sources))
        out[form] = means
    return out


def check_local(
    total: Any, weights: list[Any], batch: dict[str, Any], means: dict[str, float]
) -> None:
    """Assert that arrays of one process each, gathered, give the means of global arrays."""
    import jax.numpy as jnp

    here = {name: value.addressable_data(0) for name, value in batch.items()}
    _, sums = total([jnp.asarray(np.asarray(w.addressable_data(0))) for w in weights], here, 3)
    for local in (sums, np.asarray(sums)):
        gathered = mean_by_source(local, ("code", "math", "web"))
        assert gathered.keys() == means.keys()
        np.testing.assert_allclose(
            [*gathered.values()], [means[name] for name in gathered], rtol=1e-5
        )


def main() -> None:
    import torch

    port, folder = sys.argv[1:]
    torch.set_num_threads(1)

    def run(rank: int) -> None:
        place = {"RANK": rank, "WORLD_SIZE": 2, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": 2}
        place |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        os.environ |= {name: str(value) for name, value in place.items()}
        Path(folder, f"{rank}.json").write_text(json.dumps(by_torch()))

    fork_ranks(2, run)


if __name__ == "__main__":
    main()
