"""The demo behind `penstock demo`: real data, a run that is killed and resumed, and the proof that
nothing changed."""
