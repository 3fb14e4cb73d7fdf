"""The aliases that are `DeepSpeedStrategy` with options: the stage, and what is offloaded."""

from __future__ import annotations

from functools import partial

from core_deepspeed.strategy import DeepSpeedStrategy

deepspeed_stage_1 = partial(DeepSpeedStrategy, stage=1)
deepspeed_stage_2 = partial(DeepSpeedStrategy, stage=2)
deepspeed_stage_3 = partial(DeepSpeedStrategy, stage=3)

deepspeed_stage_1_offload = partial(DeepSpeedStrategy, stage=1, offload_optimizer=True)
deepspeed_stage_2_offload = partial(DeepSpeedStrategy, stage=2, offload_optimizer=True)
deepspeed_stage_3_offload = partial(
    DeepSpeedStrategy, stage=3, offload_optimizer=True, offload_parameters=True
)

deepspeed_stage_3_offload_nvme = partial(
    DeepSpeedStrategy,
    stage=3,
    offload_optimizer=True,
    offload_parameters=True,
    remote_device="nvme",
    offload_params_device="nvme",
    offload_optimizer_device="nvme",
)
