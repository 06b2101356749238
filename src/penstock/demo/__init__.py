"""The demo behind `penstock demo`: kill and resume a run, and compare the streams."""
