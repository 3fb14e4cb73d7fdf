"""A bit of a tensor, flipped."""

import torch

INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def flip(tensor, place, bit):
    """Flip one bit of one element, in place."""
    words = tensor.detach().view(INTEGERS[tensor.element_size()])
    mask = torch.ones((), dtype=torch.int64) << bit
    index = tuple(int(each) for each in torch.unravel_index(torch.tensor(place), words.shape))
    words[index] ^= mask.to(words.dtype)
