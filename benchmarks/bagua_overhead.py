"""The cost of a step of core-bagua over its algorithms written by hand on torch.distributed.

    torchrun --nproc-per-node 2 benchmarks/bagua_overhead.py

As `two_ranks.py` says. By hand is what the papers say and no more: no names, no options, one kind
of tensor.
"""

import torch
import torch.distributed as dist
from two_ranks import Batches, Contest, Net, Run, Stopwatch, compare

from core_bagua import BaguaStrategy

LEVELS = 255


def mean_of_all(message: torch.Tensor) -> torch.Tensor:
    dist.all_reduce(message)
    return message / dist.get_world_size()


def gradient_allreduce(num_steps: int) -> Run:
    module = Net()
    return train(module, mean_of_all, num_steps)


def bytegrad(num_steps: int) -> Run:
    module, size, rank = Net(), dist.get_world_size(), dist.get_rank()
    rest = torch.zeros(sum(own.numel() for own in module.parameters()))
    width = -(-len(rest) // size)
    rows = torch.zeros(size, width)

    def mean_in_bytes(message: torch.Tensor) -> torch.Tensor:
        rows.flatten()[: len(rest)] = message + rest
        sent = pack(rows)
        received = torch.empty_like(sent)
        dist.all_to_all_single(received, sent)
        mean = unpack(received).mean(0, keepdim=True)
        own = pack(mean)
        gathered = [torch.empty_like(own) for _ in range(size)]
        dist.all_gather(gathered, own)
        left = rows - unpack(sent)
        left[rank] += size * (mean - unpack(own))[0]
        rest.copy_(left.flatten()[: len(rest)])
        return unpack(torch.cat(gathered)).flatten()[: len(rest)]

    return train(module, mean_in_bytes, num_steps)


def pack(rows: torch.Tensor) -> torch.Tensor:
    smallest, largest = rows.aminmax(dim=1, keepdim=True)
    distance = (largest - smallest) / LEVELS
    levels = (
        ((rows - smallest) / distance.clamp(min=torch.finfo(rows.dtype).tiny))
        .round_()
        .clamp_(0, LEVELS)
    )
    return torch.cat(
        [torch.cat([smallest, distance], 1).view(torch.uint8), levels.to(torch.uint8)], 1
    )


def unpack(packed: torch.Tensor) -> torch.Tensor:
    header = packed[:, :8].clone(memory_format=torch.contiguous_format).view(torch.float32)
    return packed[:, 8:].float() * header[:, 1:] + header[:, :1]


def train(module: Net, mean, num_steps: int) -> Run:
    optimizer, parameters = module.configure_optimizers(), list(module.parameters())
    sizes = [own.numel() for own in parameters]
    watch = Stopwatch()
    for batch in Batches(num_steps):
        module(batch).backward()
        message = mean(torch.cat([own.grad.flatten() for own in parameters]))
        for own, part in zip(parameters, message.split(sizes), strict=True):
            own.grad.copy_(part.view_as(own))
        optimizer.step()
        optimizer.zero_grad()
    return watch.stop(module)


if __name__ == "__main__":
    compare(
        {
            "gradient_allreduce": Contest(
                gradient_allreduce, lambda: BaguaStrategy("gradient_allreduce")
            ),
            "bytegrad": Contest(bytegrad, lambda: BaguaStrategy("bytegrad")),
        },
        __doc__.partition("\n\n")[0],
    )
