"""The steps of a pipeline, one file each.

`step` has their base: a step describes itself, derives facts from its inputs, and binds itself to an
op, its compiled form. `op` is the base of ops. An op answers which samples are at a position, their
values, the inverse, and the counts of a stretch, vectorised over positions. It streams its items
where positions do not determine them.

A step and its op share a file. A large op has its own, named after the step: `mix_op`,
`reorder_gaps`, `group_stream`. Of a function step, the file also has the bound function (`MapCall`).
`compiled` keeps what was derived from a tree. No other module checks for the class of a step. May
import `streams` and the folders below it.
"""
