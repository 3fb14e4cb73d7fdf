"""The configuration as DeepSpeed reads it: every option where it should be, and no key that isn't
known here.
"""

import inspect
import json
import logging
from operator import attrgetter

import pytest
from deepspeed.runtime.config import DeepSpeedConfig

from core import ConfigurationError, Fabric
from core_deepspeed import DeepSpeedOptions, DeepSpeedStrategy
from core_deepspeed.config import RunArguments, fit_to_run, merge
from core_deepspeed.user_config import TOP_LEVEL_KEYS

STAGE_3 = {"stage": 3}
PARAMETERS = {**STAGE_3, "offload_parameters": True}
OPTIMIZER = {**STAGE_3, "offload_optimizer": True}
DISK = {
    **PARAMETERS,
    **OPTIMIZER,
    "offload_params_device": "nvme",
    "offload_optimizer_device": "nvme",
}

READ = [
    ("stage", 1, {}, "zero_config.stage"),
    ("offload_parameters", True, STAGE_3, "zero_config.offload_param.device", "cpu"),
    ("offload_params_device", "nvme", PARAMETERS, "zero_config.offload_param.device"),
    ("params_buffer_count", 7, PARAMETERS, "zero_config.offload_param.buffer_count"),
    ("params_buffer_size", 70, PARAMETERS, "zero_config.offload_param.buffer_size"),
    ("max_in_cpu", 71, PARAMETERS, "zero_config.offload_param.max_in_cpu"),
    ("pin_memory", True, PARAMETERS, "zero_config.offload_param.pin_memory"),
    ("pin_memory", True, OPTIMIZER, "zero_config.offload_optimizer.pin_memory"),
    ("offload_optimizer", True, {}, "zero_config.offload_optimizer.device", "cpu"),
    ("offload_optimizer_device", "nvme", OPTIMIZER, "zero_config.offload_optimizer.device"),
    ("optimizer_buffer_count", 6, OPTIMIZER, "zero_config.offload_optimizer.buffer_count"),
    ("block_size", 4096, DISK, "aio_config.block_size"),
    ("queue_depth", 9, DISK, "aio_config.queue_depth"),
    ("single_submit", True, DISK, "aio_config.single_submit"),
    ("overlap_events", False, DISK, "aio_config.overlap_events"),
    ("thread_count", 2, DISK, "aio_config.intra_op_parallelism"),
    ("allgather_partitions", False, {}, "zero_config.allgather_partitions"),
    ("reduce_scatter", False, {}, "zero_config.reduce_scatter"),
    ("allgather_bucket_size", 11, {}, "zero_config.allgather_bucket_size"),
    ("reduce_bucket_size", 12, {}, "zero_config.reduce_bucket_size"),
    ("overlap_comm", False, {}, "zero_config.overlap_comm"),
    ("contiguous_gradients", False, {}, "zero_config.contiguous_gradients"),
    ("sub_group_size", 13, {}, "zero_config.sub_group_size"),
    ("zero_allow_untested_optimizer", False, {}, "zero_allow_untested_optimizer"),
    ("cpu_checkpointing", True, {}, "activation_checkpointing_config.cpu_checkpointing"),
    (
        "synchronize_checkpoint_boundary",
        True,
        {},
        "activation_checkpointing_config.synchronize_checkpoint_boundary",
    ),
    ("loss_scale", 128.0, {}, "float16_config.loss_scale"),
    ("initial_scale_power", 5, {}, "float16_config.initial_scale_power"),
    ("loss_scale_window", 50, {}, "float16_config.loss_scale_window"),
    ("hysteresis", 3, {}, "float16_config.hysteresis"),
    ("min_loss_scale", 4, {}, "float16_config.min_loss_scale"),
]

# As a well-known trainer has them.
DEFAULTS = {
    "remote_device": None,
    "offload_optimizer": False,
    "offload_parameters": False,
    "offload_params_device": "cpu",
    "nvme_path": None,
    "params_buffer_count": 5,
    "params_buffer_size": 100_000_000,
    "max_in_cpu": 1_000_000_000,
    "offload_optimizer_device": "cpu",
    "optimizer_buffer_count": 4,
    "block_size": 1_048_576,
    "queue_depth": 8,
    "single_submit": False,
    "overlap_events": True,
    "thread_count": 1,
    "config": None,
    "logging_level": logging.WARNING,
    "parallel_devices": None,
    "cluster_environment": None,
    "checkpoint_io": None,
    "precision_plugin": None,
    "process_group_backend": None,
}


def told(tmp_path, **given):
    if "nvme" in given.values():
        given["nvme_path"] = tmp_path
    run = RunArguments(world_size=1, device_type="cuda", precision="16-mixed")
    return fit_to_run(merge(DeepSpeedOptions(**given), given.keys()), run)


@pytest.mark.parametrize("case", READ, ids=lambda case: case[0])
def test_an_option_is_read(tmp_path, case):
    option, value, others, place, *expected = case
    block, *path = place.split(".")
    holder = getattr(DeepSpeedConfig(told(tmp_path, **others, **{option: value})), block)
    found = (
        holder[path[0]]
        if isinstance(holder, dict)
        else attrgetter(".".join(path))(holder)
        if path
        else holder
    )
    assert found == (expected[0] if expected else value)


def test_the_folder_on_the_disk_is_read(tmp_path):
    config = told(tmp_path, **DISK)
    json.dumps(config)  # DeepSpeed writes it into checkpoints
    zero = DeepSpeedConfig(config).zero_config
    assert zero.offload_param.nvme_path == zero.offload_optimizer.nvme_path == tmp_path


@pytest.mark.parametrize("config", [{}, {"zero_optimization": {}}])
def test_a_stage_that_is_not_named_is_deepspeeds_own_default(config):
    alone = DeepSpeedConfig({**config, "train_micro_batch_size_per_gpu": 1})
    assert DeepSpeedStrategy(config=config).stage == alone.zero_config.stage == 0


def test_defaults():
    parameters = inspect.signature(DeepSpeedStrategy).parameters
    assert {name: parameters[name].default for name in DEFAULTS} == DEFAULTS
    assert DeepSpeedStrategy().stage == 2


def test_every_key_that_deepspeed_looks_for_is_known():
    class Noting(dict):
        """Notes which keys somebody looks for."""

        def __init__(self, *args):
            super().__init__(*args)
            self.asked = set()

        def get(self, key, default=None):
            self.asked.add(key)
            return super().get(key, default)

        def __getitem__(self, key):
            self.asked.add(key)
            return super().__getitem__(key)

        def __contains__(self, key):
            self.asked.add(key)
            return super().__contains__(key)

        def keys(self):
            return self

    config = Noting({"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3}})
    DeepSpeedConfig(config)
    assert len(config.asked) > 40
    assert config.asked - TOP_LEVEL_KEYS == {"bfloat16"}  # the older name of bf16, taken as that


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            {"zero_optimization": {"stage": 3, "stage3_max_live_parametres": 1}},
            "stage3_max_live_parametres",
        ),
        ({"zero_optimization": {"stage": 2, "reduce_bucket_size": "large"}}, "reduce_bucket_size"),
        (
            {"activation_checkpointing": {"cpu_checkpoint": True}},
            "config says activation_checkpointing.cpu_checkpoint, which DeepSpeed would ignore "
            "without a word",
        ),
        (
            {"aio": {"blocksize": 1}},
            "config says aio.blocksize, .* What it knows there: block_size, intra_op",
        ),
    ],
)
def test_what_stands_in_a_block_is_checked_before_work_starts(config, message):
    with pytest.raises(ConfigurationError, match=message):
        Fabric(strategy=DeepSpeedStrategy(config=config), accelerator="cpu", devices=2)


def test_a_total_batch_size_is_no_obstacle():
    Fabric(strategy=DeepSpeedStrategy(config={"train_batch_size": 8}), accelerator="cpu", devices=2)
