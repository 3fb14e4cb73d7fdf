"""The alias that is `FSDPStrategy` with an option."""

from functools import partial

from core_fsdp.strategy import FSDPStrategy

fsdp_cpu_offload = partial(FSDPStrategy, cpu_offload=True)
