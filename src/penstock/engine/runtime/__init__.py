"""One run: its session, iterators, state and executors.

`session` holds the position of a run and applies changes to it. `cursor` seals and checks states;
`executors` has threads, processes and Ray behind one interface. May import every folder of the
engine except `plan`.
"""
