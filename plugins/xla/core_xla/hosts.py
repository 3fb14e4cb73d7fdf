"""Several hosts that run one program over the devices of all: what they know of each other, and
have in common.
"""

from __future__ import annotations

import zlib
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from core import Capability, ConfigurationError
from core.checkpoint import collect_random_state, restore_random_state
from core.data import map_leaves
from core.strategies import ParallelStrategy, refuse_unlike_modules
from core_xla import library
from core_xla.host_copies import on_host
from core_xla.metrics import as_it_is, exchange_by


class Hosts(ParallelStrategy):
    """One process on each host. Every host runs the program of one device, and all of them together
    compute it once.

    So all have one share of the data: each host's loader gives the batch of all devices, of which
    torch_xla sends to a host's devices their parts (`ShardingUtil::ShardTensor`, without
    `minibatch`). Weights, random numbers, positions and logged values are the same on all hosts. A
    tensor of the device is of all hosts, and is computed by all: none may read one alone.

    What hosts tell each other, objects and tensors, goes over gloo: reductions are over processes,
    as everywhere. Of what all have in common a mean is the same, and a sum is that many times as
    large.
    """

    launcher_name: str = "in_place"
    start_methods: tuple[str, ...] = ("in_place",)

    def __init__(self, *given: Any, **parts: Any) -> None:
        """Create the strategy from the arguments of every parallel one; hosts talk over gloo."""
        super().__init__(*given, **{"process_group_backend": "gloo", **parts})
        self._metrics: list[Any] = []

    @property
    def capabilities(self) -> Capability:
        """Collectives on several hosts."""
        # Parameters aren't declared to be replicated: a state is handed over on the host, and rank
        # 0 has all of it.
        found = super().capabilities & ~Capability.REPLICATED_PARAMETERS
        return found if self.num_nodes > 1 else found & ~Capability.COLLECTIVES

    @property
    def num_processes_per_node(self) -> int:
        """One, for all devices of the host."""
        return 1

    @property
    def root_device(self) -> torch.device:
        """The device behind which torch_xla has all others."""
        return self._device_at(0)

    @property
    def data_parallel_size(self) -> int:
        """One: all hosts have the same batches."""
        return 1

    @property
    def data_parallel_rank(self) -> int:
        """The first, and only, share."""
        return 0

    def check_runtime(self) -> None:
        """This host. See that torch_xla's runtime has the devices of all hosts, before a mesh is
        laid over them.

        Raises:
            ConfigurationError: it has others.
        """
        seen = library.torch_xla("runtime").global_runtime_device_count()
        if seen != self.num_devices:
            raise ConfigurationError(
                f"The run has {self.num_devices} devices on {self.num_nodes} host(s), and "
                f"torch_xla's runtime sees {seen}. Start the script on every host of the slice, "
                "with num_nodes=... the number of hosts."
            )

    def setup_distributed(self) -> None:
        """All hosts; idempotent. Meet the others, if there are any."""
        if self.num_nodes > 1:
            super().setup_distributed()

    def share(self, module: nn.Module) -> None:
        """All hosts. Give a module host 0's weights, and this process host 0's random state.

        Raises:
            ModuleError: hosts have built different modules.
        """
        if self.num_nodes == 1:
            return
        refuse_unlike_modules(self, module)
        state = collect_random_state(self.accelerator, self.root_device)
        restore_random_state(self.broadcast(state), self.accelerator, self.root_device)
        with torch.no_grad():
            for tensor in (*module.parameters(), *module.buffers()):
                host = tensor.detach().cpu().contiguous()
                if host.numel():  # as bytes: gloo doesn't know every dtype
                    dist.broadcast(host.view(-1).view(torch.uint8), src=0)
                tensor.copy_(host)
        self._metrics += exchange_by(as_it_is, module)

    def refuse_unlike_batches(self, batch: Any) -> None:
        """All hosts, with a batch of each. Compare them.

        Raises:
            ConfigurationError: they differ: each host's devices would take their parts of another
                batch.
        """
        digests = self.broadcast(self.gather_objects(_digest(batch)))
        if len(set(digests)) > 1:
            raise ConfigurationError(
                f"The hosts' loaders give different first batches (checksums {digests}). Under "
                f"{type(self).__name__} each host loads the batch of all devices, and all have to "
                "load the same: give random generators the same seed on all hosts, don't divide "
                "the data by hosts yourself, and read the same files."
            )

    # collectives ----------------------------------------------------------------------------------

    def all_gather(self, tensor: Tensor, group: Any = None, sync_grads: bool = False) -> Tensor:
        """All hosts. Stack over hosts. A tensor of the device through which gradients flow is the
        same on all.
        """
        if (
            self.num_nodes > 1
            and sync_grads
            and tensor.requires_grad
            and tensor.device.type == "xla"
        ):
            return torch.stack([tensor] * self.world_size)
        return super().all_gather(tensor, group, sync_grads)

    def broadcast(self, obj: Any, src: int = 0) -> Any:
        """All hosts. A tensor, or any picklable object, of host `src`.

        Raises:
            ConfigurationError: `src` has a tensor of the device in it, and not all have: it is
                computed by all or none.
        """
        if not self._is_connected():
            return obj
        counts = self._counts_on_device(obj)
        if counts[src] and len(set(counts)) > 1:
            raise ConfigurationError(
                f"broadcast of tensors of the device: the hosts have {counts} of them. All hosts "
                "compute such a tensor together, so each has to pass its own; or pass a copy on "
                "the CPU, made on all hosts: tensor.cpu()."
            )
        return super().broadcast(on_host(obj) if counts[src] else obj, src)

    def gather_objects(self, obj: Any, dst: int = 0) -> list[Any] | None:
        """All hosts. On host `dst` everyone's picklable object, in the order of hosts; None
        elsewhere.
        """
        return super().gather_objects(on_host(obj), dst)

    def reduce_boolean_decision(self, decision: bool, all: bool = True) -> bool:
        """All hosts. True if all say so, or with `all=False` if any does. Nothing of it is on a
        device.
        """
        return bool(self.reduce(torch.tensor(int(decision)), reduce_op="min" if all else "max"))

    def _counts_on_device(self, obj: Any) -> list[int]:
        num_found = 0

        def count(leaf: Any) -> Any:
            nonlocal num_found
            num_found += isinstance(leaf, Tensor) and leaf.device.type == "xla"
            return leaf

        map_leaves(count, obj)
        counts: list[int] = super().all_gather(torch.tensor(num_found)).tolist()
        return counts

    def release(self) -> None:
        """All hosts; idempotent. Forget the modules, and give their metrics back as they were."""
        super().release()
        for metric in self._metrics:
            metric.dist_sync_fn = None
        self._metrics = []


def _digest(batch: Any) -> int:
    """A checksum of a batch's tensors and numbers. Not of texts: paths of files may differ from
    host to host.
    """
    total = 0

    def add(leaf: Any) -> Any:
        nonlocal total
        if isinstance(leaf, Tensor) and leaf.layout == torch.strided and not leaf.is_nested:
            content = leaf.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
            total = zlib.crc32(content, zlib.crc32(repr((leaf.dtype, leaf.shape)).encode(), total))
        elif isinstance(leaf, int | float):
            total = zlib.crc32(repr(leaf).encode(), total)
        return leaf

    map_leaves(add, batch)
    return total
