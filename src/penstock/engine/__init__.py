"""The core: which sample comes at which position, and how it is delivered.

- `base`: keyed randomness, integers and provenance.
- `orders` and `grouping`: pure functions that users add to.
- `mixing` and `packing`: arithmetic.
- `graph`, `ops` and `streams`: the tree of a dataset, compiled and run.
- `runtime`: runs, states and executors.
- `plan`: answers to questions about a run before it runs.

The engine may import `types`, `errors` and `schedule`; `test_house` lists the exceptions.
"""
