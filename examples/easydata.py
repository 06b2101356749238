"""Mixing as EasyData's documentation shows it, with a state: only the import differs. Needs `penstock-data[hf]`."""

from collections import Counter
from itertools import islice

from datasets import Dataset
from datasets.distributed import split_dataset_by_node

from penstock.compat.easydata import (
    MixedShardedSource,
    WeightSchedulePoint,
    WeightScheduler,
    block_mixture_interleave,
)

code = Dataset.from_dict({"text": [f"code {i}" for i in range(2_000)]})
wiki = Dataset.from_dict({"text": [f"wiki {i}" for i in range(5_000)]}).to_iterable_dataset(
    num_shards=4
)
math = Dataset.from_dict({"text": [f"math {i}" for i in range(50)]})

mixed = block_mixture_interleave(
    datasets={"code": code, "wiki": wiki, "math": math},
    weights={"code": 0.4, "wiki": 0.5998, "math": 0.0002},
    block_size=1000,
    seed=42,
)
counts = Counter(row["text"].split()[0] for row in mixed.take(10_000))
print("10,000 rows:", dict(sorted(counts.items())))

rows = iter(mixed)
before = list(islice(rows, 1_234))
state = mixed.state_dict()  # a Hugging Face state: what trainers and StatefulDataLoader keep
expected = next(rows)
mixed.load_state_dict(state)
print("resumed at row 1,234:", next(iter(mixed)) == expected)

tables = block_mixture_interleave({"code": code, "math": math}, seed=42)
ranks = [
    [row["text"] for row in split_dataset_by_node(tables, rank, 4).take(3)] for rank in range(4)
]
expected = [row["text"] for row in tables.take(12)]
print(
    "four ranks share one sequence:",
    [text for turn in zip(*ranks, strict=True) for text in turn] == expected,
)

scheduler = WeightScheduler(
    schedule=[
        WeightSchedulePoint(step=0, weights={"code": 0.2, "math": 0.8}),
        WeightSchedulePoint(step=10_000, weights={"code": 0.5, "math": 0.5}),
    ],
    interpolation="linear",
)
print("weights at 5,000:", scheduler.get_weights(5_000))
source = MixedShardedSource({"code": [*code], "math": [*math]}, weight_scheduler=scheduler)
late = Counter(
    row["__source__"] for row in islice(source.open_shard_at_row("mixed_shard_0", 20_000), 1_000)
)
print("rows 20,000 to 20,999:", dict(sorted(late.items())))
