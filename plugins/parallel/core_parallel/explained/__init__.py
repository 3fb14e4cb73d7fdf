"""The rows of `core explain`: the mesh, the model on it, and what a rank sends."""
