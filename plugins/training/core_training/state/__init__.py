"""The state of a run: saved, found, loaded, and brought back from other processes."""
