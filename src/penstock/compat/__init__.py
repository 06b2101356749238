"""The documented APIs of other libraries on Penstock, and converters for their mixture files.

A compatibility package owns names, defaults and foreign formats, never an order, a buffer or a
cursor. May import everything but `report`, `demo` and `cli`.
"""
