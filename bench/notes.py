"""Notes that a reader needs to read the tables fairly."""

INTRO = """# Results

Written by `make bench`. All figures are from one run on one machine; elsewhere only the ratios mean anything.

- Every row runs in a process of its own, rows in turn, round after round. Inside each process the floor and the row
  alternate in slices, and the ratio is taken between neighbouring slices, so that a busy machine disturbs both alike.
- *Of the floor* compares CPU time (all threads of the process), *by wall time* the clock. The rate leaves out building
  the pipeline and its first batch; those have a column of their own.
- The floors are measured, never assumed: for samples, the plain loop `[fn(data[i]) for i in order]`, 32 at a time, in
  an order drawn beforehand; for packing, a NumPy loop that copies documents into rows.
- Peers are driven by one process without workers unless the row says otherwise: this is what the library itself costs a
  sample. Workers hide such costs behind more cores; they do not remove them."""

STREAMS = (
    "Streams with a shuffle buffer (datasets streaming, webdataset) do less work than a full "
    "shuffle. A `BatchSampler` "
    "and map-style `datasets` with whole batches call the function once for 32 samples instead of "
    "once for each. Where "
    "a library reads only files of its own (mosaicml-streaming, litdata), they lie in memory, "
    "written beforehand."
)
MIXED = (
    "*Off at n* is the largest distance of any source's count from what its weight asks, in "
    "samples, over all prefixes "
    "of the first n samples (a dash: not reached in the time given). *Distinct* is below 1 where "
    "samples are drawn "
    "with replacement. Penstock's mixture is random and within 2 at every sample; permuted in "
    "blocks of 1,000 it is so "
    "at the ends of blocks only."
)
NOTES = {
    "overhead": STREAMS,
    **dict.fromkeys(
        ("move64", "move1000", "tokenize", "pictures", "waiting"),
        "By wall time, as the work is done in other processes or threads. The machine's two cores "
        "are those of the "
        "workers and of whoever takes their batches.",
    ),
    **{f"mix{n}": MIXED for n in (3, 50, 500)},
    **{
        f"pack{n}": "Real tokens count, padding does not. Penstock and Grain also write segment "
        "ids and positions, the "
        "others do not. TRL packs offline in an Arrow table: its reading and shuffling are not in "
        "its time, and its "
        "documents are cut to the row, as are those of Grain's fit packers (Penstock splits them). "
        "litdata reads "
        "blocks of joined documents that were written beforehand: no document boundaries, no "
        "copying of documents."
        for n in (2048, 8192)
    },
    **{
        f"tokens{n}": "The floor copies documents of an order drawn beforehand into rows. Penstock "
        "and Grain also "
        "write segment ids and positions. The indexes of Megatron are made in NumPy as its helpers "
        "make them: every "
        "row is of one source. torchtitan's loop is a list of tokens that grows and is cut."
        for n in (1, 3, 60)
    },
    "resume": "Milliseconds from an open pipeline and a state in memory to the first batch, in a "
    "new process; *wrong "
    "batch* where it is not the one that the uninterrupted run gave. Nobody runs 10^9 steps: there "
    "the position in a "
    "state is written over, and the batch is compared with random access at that step. Rows with "
    "one source do less "
    "work than mixtures.",
    "memory": "Resident memory after 1,000 batches: in all, over an interpreter that has imported "
    "nothing, and over "
    "what the process held after its imports and a first small pipeline. Streams without a full "
    "shuffle are not in "
    "this table.",
    "index_lines": "By wall time: we work on all cores, `wc -l` on one.",
    "count_tokens": "By wall time; both use all cores.",
    "chats": "By wall time. The floor makes no masks, so its encoding needs no offsets.",
    "workers": "The end is `close()`, or where there is none the iterator let go of.",
    "start": "A new process each; the import, then the pipeline and its first batch, without "
    "workers. "
    "mosaicml-streaming imports torchvision, for which it is given an empty stand-in: its import "
    "time is a bound from "
    "below.",
}
