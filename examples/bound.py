"""Is a run bound by its data? A slow function over one of three sources, found by the loader that waits for it."""

import penstock as ps


def clean(text: str) -> str:
    return text.strip().lower()


def tokenize(text: str) -> list[int]:
    return [sum(map(ord, text * 40)) % 50_000 for _ in range(20)]


web = ps.from_sequence([f" Page {i} " for i in range(300)]).map(clean).map(tokenize)
code = ps.from_sequence([f"def f{i}(): pass" for i in range(300)]).map(clean)
math = ps.from_sequence([f"{i} + {i} = {2 * i}" for i in range(300)]).map(clean)
train = ps.mix({"web": web, "code": code, "math": math}, stop="all_exhausted").batch(
    8, collate=list
)

with ps.Loader(train, profile=True) as loader:
    for _ in loader:
        pass  # a training step
    print(loader.verdict())
    for row in loader.stats()["time"][:3]:
        print(f"{row['seconds']:8.4f} s  {row['items']:4d} items  {row['step']} {row['source']}")

choice = ps.autotune(train, seconds=0.5, max_workers=2)
print(choice)
with ps.Loader(train, **choice.options) as loader:  # the same batches in the same order, sooner
    print(sum(map(len, loader)), "samples")
