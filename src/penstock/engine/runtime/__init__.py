"""One run: its session, iterators, state, saves and executors.

`session` holds the position of a run and applies changes to it. `cursor` seals and checks states;
`saves` writes checkpoints. `executors` has threads, processes and Ray behind one interface. `forms`
turns items into tensors and device arrays. May import every folder of the engine except `plan`.
"""
