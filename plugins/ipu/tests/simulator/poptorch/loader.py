"""[options] poptorch.DataLoader; [batching] "poptorch.DataLoader"."""

import torch
from torch.utils import _pytree as pytree

from poptorch.enums import DataLoaderMode
from poptorch.options import Options


class DataLoader(torch.utils.data.DataLoader):
    """Combines as many batches as one call of the model consumes: iterations x replicas x accumulation."""

    def __init__(
        self,
        options,
        dataset,
        batch_size=1,
        shuffle=None,
        num_workers=0,
        drop_last=True,
        persistent_workers=None,
        mode=DataLoaderMode.Sync,
        batch_sampler=None,
        **kwargs,
    ):
        assert isinstance(options, Options)
        options._freeze()
        self._options = options
        self._number = options.device_iterations * options.replication_factor * options.Training.gradient_accumulation
        self._has_batch_sampler = batch_sampler is not None
        self._drops_last = drop_last
        if persistent_workers is None:
            persistent_workers = num_workers > 0
        common = {"num_workers": num_workers, "persistent_workers": persistent_workers, **kwargs}
        if self._has_batch_sampler:
            # [options]: `batch_sampler` is mutually exclusive with `batch_size` and `shuffle`.
            if batch_size != 1 or shuffle:
                raise RuntimeError("`batch_sampler` option is mutually exclusive with batch_size, shuffle.")
            super().__init__(dataset, batch_sampler=batch_sampler, **common)
        else:
            super().__init__(
                dataset, batch_size=batch_size * self._number, shuffle=bool(shuffle), drop_last=drop_last, **common
            )

    def __iter__(self):
        if self._has_batch_sampler and self._number != 1:
            return self._combined(super().__iter__())
        return super().__iter__()

    def _combined(self, batches):
        """[source] python/_utils.py, combined_batch_generator: consecutive batches, concatenated along dimension 0."""
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
