"""Two sources, a schedule and a cap: what comes when, and how often each source is repeated."""

from collections import Counter

import penstock as ps

wiki = ps.from_sequence([{"text": f"wiki {i}"} for i in range(3_000)])
code = ps.from_sequence([{"text": f"code {i}"} for i in range(1_000)])

train = ps.mix(
    {"wiki": wiki.shuffle(), "code": code.shuffle()},
    ps.Schedule(
        [(0, {"wiki": 0.9, "code": 0.1}), (8_000, {"wiki": 0.5, "code": 0.5})],
        interpolation="linear",
    ),
    max_epochs={"code": 2},
    seed=42,
).with_source()

for start in range(0, 10_000, 1_000):
    block = train[start : start + 1_000]
    counts = Counter(sample["__source__"] for sample in block)
    newest = max(sample["__epoch__"] for sample in block if sample["__source__"] == "wiki")
    print(
        f"samples {start:>5} to {start + 999:>5}: {counts['wiki']:>4} wiki (pass {newest}), {counts['code']:>3} code"
    )
