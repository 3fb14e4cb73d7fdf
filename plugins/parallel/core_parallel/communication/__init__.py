"""Collectives with gradients, tensors from rank to rank, averages, and overflows."""
