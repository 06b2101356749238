"""The steps of a pipeline, one file each.

A file has the frozen description of a step (`Map`) and its bound function (`MapCall`), with an op
if the step changes positions. Their class variables tell other modules whether a step drops
samples, needs their index or is random. `function_step` is the base of the steps that call a
function once a sample. May import `ops` and the folders below it.
"""
