"""Sizes of the mesh's axes, the mesh, and where tensors lie on it."""
