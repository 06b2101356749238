"""The frozen description of a pipeline: compiled, described, compared and changed.

`nodes` has the eight kinds of nodes, `build` compiles a tree of them into `ops`, `recipe` describes
it for states and errors, `edits` and `adopt` change it during a run. May import the folders of the
engine up to `ops`. Every other module asks this one for facts about a tree.
"""
