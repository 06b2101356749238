"""One run: where it stands, what it saved, how it goes on."""
