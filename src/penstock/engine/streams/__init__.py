"""The execution of user functions: lanes, assignment to ranks, quarantine, prefetch hints.

A stream yields items and a cursor. `execution` is the loop that every unit of work passes, inline
or in workers; `job` has what it computes and the protocol of executors. `lanes` divides a stream
among ranks, `deal` assigns the rows of a global step, `quarantine` replaces bad samples. May import
the arithmetic folders (`base` to `packing`). Nothing here knows the tree of steps.
"""
