"""How the values of tensors lie over the ranks of a group, followed from operation to operation."""
