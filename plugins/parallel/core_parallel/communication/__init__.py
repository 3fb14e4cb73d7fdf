"""What ranks send each other: collectives with gradients, tensors from rank to rank, averages, overflows."""
