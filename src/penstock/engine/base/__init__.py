"""What everything stands on: integers, keyed randomness, trees of arrays, rows, spelling, the seams
to the world."""
