"""Faces: the documented APIs of other libraries, on Penstock."""
