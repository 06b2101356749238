"""Writes the stores of this folder with the tools that they are of: run by hand, once, with one tool installed at a time.

    python tests/sources/stores/write.py megatron|datatrove|olmo|levanter

They were written with megatron-core 0.16.1, datatrove 0.10.1, ai2-olmo-core 3.0.0 and, as Levanter (of Marin) opens its arrays,
with tensorstore 0.1.86. `documents.json` holds what they are of: lists of ids, each ending with EOS, one of them empty where the tool can say so.
"""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false
from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
DOCUMENTS: list[list[int]] = json.loads((HERE / "documents.json").read_bytes())
EOS = 0


def megatron() -> None:
    import torch
    from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder

    for name, dtype, modes in (
        ("short", np.uint16, False),
        ("wide", np.int32, False),
        ("modes", np.int32, True),
    ):
        builder = IndexedDatasetBuilder(str(HERE / f"megatron-{name}.bin"), dtype, multimodal=modes)
        for number, ids in enumerate(DOCUMENTS):
            if name == "wide" and len(ids) > 2:  # a document of two sequences
                builder.add_item(torch.tensor(ids[:2]))
                builder.add_item(torch.tensor(ids[2:]))
                builder.end_document()
            else:
                builder.add_document(torch.tensor(ids), [len(ids)], [number % 2] if modes else None)
        builder.finalize(str(HERE / f"megatron-{name}.idx"))


def datatrove() -> None:
    from datatrove.pipeline.tokens.megatron_tokenizer import MegatronTokenizedFile
    from datatrove.pipeline.tokens.tokenizer import TokenizedFile

    for size in (2, 4):
        file = TokenizedFile(
            str(HERE), f"datatrove-{size}.ds", save_final_metadata=True, token_size=size
        )
        other = MegatronTokenizedFile(str(HERE), f"datatrove-megatron-{size}", token_size=size)
        for ids in DOCUMENTS:
            file.write(ids, None)
            other.write(ids)
        file.close()
        other.close()


def olmo() -> None:
    from olmo_core.data.utils import memmap_to_write, write_document_indices

    joined = np.concatenate([np.asarray(ids, np.uint32) for ids in DOCUMENTS])
    with memmap_to_write(HERE / "olmo.npy", shape=joined.shape, dtype=np.uint32) as out:
        out[:] = joined
    write_document_indices(HERE / "olmo.npy", dtype=np.uint32, eos_token_id=EOS)


def levanter() -> None:
    """As `JaggedArrayStore` and `SerialCacheWriter` do it, whose package is not published by itself."""
    import tensorstore as ts

    def opened(path: Path, dtype: str) -> Any:
        inner = {"name": "blosc", "configuration": {"clevel": 5}}
        shards = {
            "name": "sharding_indexed",
            "configuration": {"chunk_shape": [1 << 18], "codecs": [inner]},
        }
        grid = {"name": "regular", "configuration": {"chunk_shape": [1 << 27]}}
        spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": str(path)}}
        spec |= {"metadata": {"chunk_grid": grid, "codecs": [shards]}}
        return ts.open(
            spec, dtype=ts.dtype(dtype), shape=[2**54], create=True, delete_existing=True
        ).result()

    def cache(folder: Path, documents: list[list[int]], shard: str) -> dict[str, Any]:
        flat = np.concatenate([np.asarray(ids, np.int32) for ids in documents])
        data, offsets = (
            opened(folder / "input_ids" / name, kind)
            for name, kind in (("data", "int32"), ("offsets", "int64"))
        )
        data[: len(flat)].write(flat).result()
        offsets[1 : len(documents) + 1].write(np.cumsum([len(ids) for ids in documents])).result()
        offsets[0].write(len(documents)).result()
        return ledger(folder, {shard: len(documents)}, "consolidated")

    def ledger(folder: Path, rows: dict[str, int], layout: str) -> dict[str, Any]:
        said = {
            "total_num_rows": sum(rows.values()),
            "shard_rows": rows,
            "is_finished": True,
            "finished_shards": list(rows),
        }
        said |= {
            "field_counts": {},
            "field_counts_by_shard": {},
            "layout": layout,
            "metadata": {"preprocessor_metadata": {}},
        }
        (folder / "shard_ledger.json").write_text(json.dumps(said))
        return said

    cache(HERE / "levanter", DOCUMENTS, "train")
    half = len(DOCUMENTS) // 2
    parts = {"00000_a": DOCUMENTS[:half], "00001_b": DOCUMENTS[half:]}
    for name, documents in parts.items():
        cache(HERE / "levanter-sharded" / name, documents, name)
    ledger(
        HERE / "levanter-sharded",
        {name: len(documents) for name, documents in parts.items()},
        "sharded",
    )


if __name__ == "__main__":
    globals()[sys.argv[1]]()
