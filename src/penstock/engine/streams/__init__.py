"""The execution of user functions: lanes, assignment to ranks, retries, quarantine.

A stream yields items and a cursor. `lanes` divides a stream among ranks, `deal` assigns the rows of
a global step, `job` runs functions in an executor, `quarantine` replaces bad samples. May import
the arithmetic folders (`base` to `packing`). Nothing here knows the tree of steps.
"""
