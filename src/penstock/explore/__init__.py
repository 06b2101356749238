"""Look at a dataset, summarise its columns, and convert it to tables of other libraries.

`Look` has `head`, `take`, `sample`, `schema`, `columns` and `describe`. `Tables` has `to_arrow`,
`to_pandas`, `to_polars`, `to_hf` and `to_list`. `penstock.Dataset` inherits both. Optional
libraries are imported where they are used. May import everything below `explore` in the
architecture, but not `dataset`.
"""
