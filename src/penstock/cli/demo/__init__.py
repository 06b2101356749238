"""The demo behind `penstock demo`: kill and resume a run, and compare the streams.

It uses the public API as a user does. May import everything but `cli`.
"""
