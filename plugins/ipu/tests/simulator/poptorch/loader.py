"""[options] poptorch.DataLoader; [batching] "poptorch.DataLoader"."""

import torch
from torch.utils import _pytree as pytree


class DataLoader(torch.utils.data.DataLoader):
    """Combines as many batches as one call of the model consumes: iterations x replicas x
    accumulation.
    """

    def __init__(
        self, options, dataset, batch_size=1, drop_last=True, batch_sampler=None, **kwargs
    ):
        options._freeze()
        self._number = (
            options.device_iterations
            * options.replication_factor
            * options.Training.gradient_accumulation
        )
        self._has_batch_sampler = batch_sampler is not None
        self._drops_last = drop_last
        if self._has_batch_sampler:
            super().__init__(dataset, batch_sampler=batch_sampler, **kwargs)
        else:
            super().__init__(
                dataset, batch_size=batch_size * self._number, drop_last=drop_last, **kwargs
            )

    def __iter__(self):
        if self._has_batch_sampler and self._number != 1:
            return self._combined(super().__iter__())
        return super().__iter__()

    def _combined(self, batches):
        """[source] python/_utils.py, combined_batch_generator: consecutive batches, concatenated
        along dimension 0.
        """
        held = []
        for batch in batches:
            held.append(batch)
            if len(held) == self._number:
                yield _concatenate(held)
                held = []
        if held and not self._drops_last:
            yield _concatenate(held)


def _concatenate(batches):
    flat = [pytree.tree_flatten(batch) for batch in batches]
    leaves = [
        torch.cat(parts) if isinstance(parts[0], torch.Tensor) else parts[0]
        for parts in zip(*(f for f, _ in flat), strict=True)
    ]
    return pytree.tree_unflatten(leaves, flat[0][1])
