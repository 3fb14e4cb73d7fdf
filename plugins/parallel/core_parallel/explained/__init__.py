"""The rows of `core explain`: the mesh, and the model on it."""
