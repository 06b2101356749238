"""Frames: what a framework or a trainer wants to be handed, a file each, imported when it is used.

Nothing in here orders, shares out or keeps a cursor; that is the loader's.
"""
