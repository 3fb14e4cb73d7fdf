"""One rank of a world that doesn't exist trains two steps with tensors that have no memory."""
