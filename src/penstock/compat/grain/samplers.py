"""Samplers of a `DataLoader`."""

from .data_loader import IndexSampler, SequentialSampler

__all__ = ["IndexSampler", "SequentialSampler"]
