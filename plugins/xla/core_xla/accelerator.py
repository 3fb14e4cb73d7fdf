"""The devices of torch_xla: TPUs, and those that the processor plays."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

import torch

from core import Accelerator, ConfigurationError, DeviceError
from core_xla import detection, library

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from core_xla.detection import Detection

_STATS = (
    ("allocated_bytes", "bytes_used"),
    ("peak_allocated_bytes", "peak_bytes_used"),
    ("limit_bytes", "bytes_limit"),
)


class XLAAccelerator(Accelerator):
    """The devices that torch_xla's runtime has: TPUs, or with `PJRT_DEVICE=CPU` any number that the
    processor plays.
    """

    name = "xla"

    @classmethod
    def detect(cls) -> Detection:
        """Look at the environment and at the bus; torch_xla isn't imported."""
        return detection.detect()

    def torch_devices(self, indices: Sequence[int]) -> list[torch.device]:
        """One device an index. torch knows the type without torch_xla."""
        return [torch.device("xla", index) for index in indices]

    def parse_devices(self, devices: int | str | Sequence[int]) -> list[int]:
        """Number the devices; those that the processor plays can be any number, unless
        `CPU_NUM_DEVICES` counts them.

        Raises:
            DeviceError: more devices, or other ones, than are here; or several, and not all of
                them.
        """
        is_number = isinstance(devices, int) and devices > 0
        if is_number and detection.plays_devices() and not detection.counts_cpu_devices():
            return list(range(int(devices)))  # type: ignore[arg-type]  # looked at in the line before
        indices = super().parse_devices(devices)
        num_here = self.default_num_devices()
        if not detection.plays_devices() and len(indices) not in (1, num_here):
            raise DeviceError(
                f"devices={devices!r} asks for {len(indices)} of the {num_here} TPUs that are "
                "here, and torch_xla uses one of them or all. Pass devices=1 or "
                f"devices={num_here}."
            )
        return indices

    def default_strategy(self, num_devices: int, num_nodes: int) -> str:
        """One device by itself, or one process over all of them: the form that torch_xla's authors
        recommend.
        """
        return "single_xla" if num_devices * num_nodes == 1 else "xla_spmd"

    def adapt_strategy(self, alias: str, num_devices: int) -> str:
        """A generic strategy means the one of XLA that trains alike.

        Raises:
            ConfigurationError: a strategy that no process of XLA can run.
        """
        if alias == "single_device":
            return "single_xla"
        if alias.startswith("ddp"):
            return "xla"
        if alias.startswith("fsdp"):
            return "xla_fsdp"
        if alias.startswith(_OF_OTHER_DEVICES):
            raise ConfigurationError(
                f"strategy={alias!r} can't run on devices of XLA. Use 'single_xla' for one device, "
                "'xla_spmd' for several in one process (data and model axes, sharded parameters), "
                "or 'xla' for a process a device."
            )
        return alias

    def setup(self) -> None:
        """All ranks; idempotent. Import torch_xla."""
        library.torch_xla()

    def setup_device(self, device: torch.device) -> None:
        """All ranks. Seed the device by what `torch.manual_seed` has set: nothing else would."""
        drawn_so_far = torch.get_rng_state().numpy().tobytes()
        library.torch_xla("core.xla_model").set_rng_state(zlib.crc32(drawn_so_far), str(device))

    def synchronize(self, device: torch.device) -> None:
        """Cut the graph, and wait until `device` has computed it."""
        library.torch_xla().sync(wait=True)
        library.torch_xla("core.xla_model").wait_device_ops()

    def memory_stats(self, device: torch.device) -> Mapping[str, float]:
        """Memory of the device; nothing from those that the processor plays."""
        try:
            found = library.torch_xla("core.xla_model").get_memory_info(device)
        except RuntimeError:
            return {}
        return {name: float(found[key]) for name, key in _STATS if key in found}

    def get_rng_state(self, device: torch.device) -> torch.Tensor:
        """The seed from which the next graph draws. Kept on the host: reading it waits for
        nothing.
        """
        seed = library.torch_xla("core.xla_model").get_rng_state(str(device))
        return torch.tensor(list(int(seed).to_bytes(8, "little")), dtype=torch.uint8)

    def set_rng_state(self, state: torch.Tensor, device: torch.device) -> None:
        """Restore what `get_rng_state` returned."""
        if state.numel() == 8:
            seed = int.from_bytes(bytes(state.tolist()), "little")
            library.torch_xla("core.xla_model").set_rng_state(seed, str(device))


_OF_OTHER_DEVICES = ("deepspeed", "dp", "model_parallel")


class TPUAccelerator(XLAAccelerator):
    """TPUs, by their own name."""

    name = "tpu"

    @classmethod
    def detect(cls) -> Detection:
        """Look at the environment and at the bus; torch_xla isn't imported."""
        return detection.detect_tpus()
