"""The frozen description of a pipeline: compiled, described, compared and changed.

`nodes` has the nodes that are not in `steps`, `build` compiles a tree into ops, `recipe` describes
it for states and errors, `edits` and `adopt` change it during a run. May import the folders of the
engine up to `steps`. Every other module asks this one for facts about a tree.
"""
