"""One file for each peer; see `bench/table.py`."""
