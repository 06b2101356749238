"""Adapters to frameworks and trainers, one file each, imported on use.

An adapter owns no order, sharding or cursor; those belong to the loader. May import the public API,
`media`, `tasks` and everything below.
"""
