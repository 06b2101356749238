"""Foundations: integers, keyed randomness, trees of arrays, provenance rows, and I/O interfaces."""
