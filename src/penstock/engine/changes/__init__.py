"""Changes of a run: other weights, another mixture, excluded and skipped samples.

`edits` applies the changes of a state to the steps of a pipeline. `reweigh` and `adopt` find where a
change of a mixture begins. May import the folders of the engine up to `steps`.
"""
