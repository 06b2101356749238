"""Documents of many lengths in rows of one length: how full the rows are, by method."""

import numpy as np

import penstock as ps

rng = np.random.default_rng(0)
lengths = np.clip(rng.lognormal(np.log(600) - 0.5, 1, 3_000), 1, 2_048).astype(int)
documents = ps.from_sequence([np.full(n, 7, np.int32) for n in lengths])

for method in ("concat_split", "first_fit", "best_fit"):
    rows = list(documents.pack(2_048, method=method))
    tokens = sum(int((row["segment_ids"] > 0).sum()) for row in rows)
    assert tokens == lengths.sum(), "packing never loses a token"
    print(f"{method:<12} {len(rows):>4} rows, {tokens / (len(rows) * 2_048):.1%} full")
