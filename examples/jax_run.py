"""Train in JAX on a mixture of packed text, stop, go on from the checkpoint: the same losses. Run it on many processes
after `jax.distributed.initialize()`: each loads its own rows.
"""

from itertools import islice
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import penstock as ps
from penstock.integrations.orbax import Restore, Save

mesh = Mesh(jax.devices(), "data")
rows, replicated = NamedSharding(mesh, PartitionSpec("data")), NamedSharding(mesh, PartitionSpec())


def batches() -> ps.Loader:
    code = ps.from_sequence([f"def f{i}(x): return x + {i}\n" for i in range(300)])
    text = ps.from_sequence([f"Page {i} says a little. " * (1 + i % 3) for i in range(900)])
    train = ps.mix(
        {"code": code.shuffle(), "text": text.shuffle()}, {"code": 0.3, "text": 0.7}, seed=42
    )
    tokens = train.map(lambda text: np.frombuffer(text.encode(), np.uint8).astype(np.int32))
    return ps.Loader(tokens.pack(64).batch(8), to="jax", device=rows)


def loss(model: dict[str, jax.Array], row: dict[str, jax.Array]) -> jax.Array:
    """Return the mean cross entropy of pairs of letters, each pair inside one document."""
    known = (row["segment_ids"][:, 1:] == row["segment_ids"][:, :-1]) & (
        row["segment_ids"][:, 1:] > 0
    )
    said = jax.nn.log_softmax(model["w"][row["tokens"][:, :-1]])
    return (
        -(jnp.take_along_axis(said, row["tokens"][:, 1:, None], -1)[..., 0] * known).sum()
        / known.sum()
    )


@jax.jit
def step(
    model: dict[str, jax.Array], row: dict[str, jax.Array]
) -> tuple[dict[str, jax.Array], jax.Array]:
    value, slope = jax.value_and_grad(loss)(model, row)
    return jax.tree.map(lambda w, dw: w - 3 * dw, model, slope), value


model, losses = {"w": jax.device_put(np.zeros((128, 128), np.float32), replicated)}, []
with ocp.CheckpointManager(Path.cwd() / "checkpoints") as manager, batches() as data:
    for number, row in enumerate(islice(data, 40)):
        model, value = step(model, row)
        losses.append(float(value))
        if number == 19:
            manager.save(
                20, args=ocp.args.Composite(model=ocp.args.StandardSave(model), data=Save(data))
            )
print(f"{losses[0]:.3f} -> {losses[-1]:.3f}")

with ocp.CheckpointManager(Path.cwd() / "checkpoints") as manager, batches() as data:
    like = {"w": jax.ShapeDtypeStruct((128, 128), np.float32, sharding=replicated)}
    args = ocp.args.Composite(model=ocp.args.StandardRestore(like), data=Restore(data))
    model = manager.restore(20, args=args)["model"]
    for number, row in enumerate(islice(data, 20), 20):
        model, value = step(model, row)
        assert float(value) == losses[number], number
print("20 steps after the checkpoint have the same losses")
