"""The nodes of a compiled tree, a file each: what each can be asked about positions, and how it
streams."""
