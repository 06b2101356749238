"""Array trees: dtypes that keep every value, stacking of samples into batches, samples as columns.

May import `errors` and `types`.
"""
