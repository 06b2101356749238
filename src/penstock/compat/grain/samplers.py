"""Samplers of a `DataLoader`."""

from .data_loader import IndexSampler, Sampler, SequentialSampler

__all__ = ["IndexSampler", "Sampler", "SequentialSampler"]
