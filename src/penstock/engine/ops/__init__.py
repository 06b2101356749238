"""The nodes of a compiled tree, one file each.

An op answers every question about its step, vectorised over positions: which samples are at a
position, their values, the inverse, and the counts of a stretch. It streams its items where
positions do not determine them. An op saves no state. May import `streams` and the folders below
it.
"""
