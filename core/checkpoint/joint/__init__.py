"""The work that all ranks do together: agreeing on errors, writing one checkpoint, verifying it."""
