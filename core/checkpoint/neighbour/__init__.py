"""A checkpoint in the memory of nodes. It imports public names only, as another package would."""
