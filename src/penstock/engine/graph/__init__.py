"""What was asked for: a tree of nodes, how it is compiled into ops, described, and changed during a
run."""
