"""The core: which sample comes at which position, and how it is delivered.

- `base`: keyed randomness, integers and provenance.
- `orders` and `grouping`: pure functions that users add to.
- `mixing` and `packing`: arithmetic.
- `steps` and `streams`: the steps of a pipeline, described, compiled and run.
- `changes`: changes of a run.
- `runtime`: runs, states and executors.
- `plan`: answers to questions about a run before it runs.

The engine may import `types`, `errors` and `schedule`; `test_house` lists the exceptions.
"""
