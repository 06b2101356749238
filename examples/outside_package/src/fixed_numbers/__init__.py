"""A format, an order, a mixing rule and a fold for Penstock."""
