"""The answers to arguments and attributes that a Trainer doesn't have."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from core.contract import ConfigurationError, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

P = ParamSpec("P")
R = TypeVar("R")

ARGUMENTS: Mapping[str, str] = {
    "gpus": "Write accelerator='gpu', devices=2.",
    "num_processes": "Write devices=2.",
    "tpu_cores": "Write accelerator='tpu', devices=8.",
    "ipus": "Write accelerator='ipu', devices=4.",
    "distributed_backend": "Write strategy='ddp'.",
    "amp_backend": "Write precision='16-mixed' or 'bf16-mixed'.",
    "amp_level": "Write precision='16-mixed' or 'bf16-mixed'.",
    "auto_lr_find": "Write callbacks=[LearningRateFinder()], or Tuner(trainer).lr_find(module, ...).",
    "auto_scale_batch_size": "Write callbacks=[BatchSizeFinder()], or Tuner(trainer).scale_batch_size(module, ...).",
    "auto_select_gpus": "devices=2 takes the first two; core.accelerators.find_usable_cuda_devices(2) finds free ones.",
    "checkpoint_callback": "Write enable_checkpointing=..., and a ModelCheckpoint in callbacks=[...].",
    "resume_from_checkpoint": "Write trainer.fit(module, ckpt_path='last.ckpt').",
    "weights_summary": "Write enable_model_summary=..., and a ModelSummary in callbacks=[...].",
    "weights_save_path": "Write default_root_dir=..., or ModelCheckpoint(dirpath=...).",
    "progress_bar_refresh_rate": "Write callbacks=[ProgressBar(...)], or enable_progress_bar=False.",
    "process_position": "Write callbacks=[ProgressBar(...)].",
    "replace_sampler_ddp": "Write use_distributed_sampler=...",
    "truncated_bptt_steps": "There is none: use manual optimization.",
    "stochastic_weight_avg": "Write callbacks=[StochasticWeightAveraging(...)].",
    "prepare_data_per_node": "Set the attribute prepare_data_per_node of the module or data module.",
    "track_grad_norm": "Write self.log_dict(...) of the norms in on_before_optimizer_step.",
    "log_gpu_memory": "Write callbacks=[DeviceStatsMonitor()].",
    "flush_logs_every_n_steps": "It is an option of the loggers.",
    "multiple_trainloader_mode": "Write CombinedLoader(loaders, mode=...).",
    "enable_autolog_hparams": "Write self.save_hyperparameters(logger=False) in the module.",
    "model_registry": "There is none.",
}
"""Arguments of `Trainer`, by name, that people know from other trainers; each with what to write instead."""

ATTRIBUTES: Mapping[str, str] = {
    "accelerator": "It is trainer.strategy.accelerator.",
    "precision_plugin": "It is trainer.strategy.precision_plugin.",
    "lr_scheduler_configs": "They are trainer.strategy.lr_schedulers.",
    "is_last_batch": "It is batch_idx + 1 == trainer.num_training_batches.",
    "fit_loop": "What it knows is in trainer.progress; limits are arguments of Trainer.",
    "root_device": "It is trainer.strategy.root_device.",
    "device": "It is trainer.strategy.root_device.",
    "tuner": "Write Tuner(trainer), from core import Tuner.",
    "tune": "Write Tuner(trainer).lr_find(module, ...) or .scale_batch_size(module, ...).",
    "gpus": "It is trainer.num_devices.",
    "root_gpu": "It is trainer.strategy.root_device.",
    "checkpoint_connector": "Checkpoints are written by trainer.save_checkpoint(path).",
}
"""Attributes of a `Trainer`, by name, that people know from other trainers; each with what to write instead."""


def answers_unknown(function: Callable[P, R]) -> Callable[P, R]:
    """Wrap an `__init__`, so that an argument that it doesn't take is answered by what to write instead."""
    code = function.__code__
    names = code.co_varnames[1 : code.co_argcount + code.co_kwonlyargcount]

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        for name in kwargs:
            if name not in names:
                answer = ARGUMENTS.get(name) or did_you_mean(name, names).strip() or "See help(Trainer)."
                raise ConfigurationError(f"Trainer has no argument {name!r}. {answer}")
        return function(*args, **kwargs)

    return call


def answer_attribute(owner: object, name: str) -> object:
    """Raise for an attribute that a Trainer doesn't have, and say what to ask instead.

    Raises:
        AttributeError: there is no such attribute, or what its property raised.
    """
    if any(name in vars(kind) for kind in type(owner).__mro__):
        return object.__getattribute__(owner, name)  # a property that raised an AttributeError: raise it again
    if name.startswith("__"):
        raise AttributeError(name)
    answer = ATTRIBUTES.get(name) or did_you_mean(name, (n for n in dir(type(owner)) if n[0] != "_")).strip()
    raise AttributeError(f"Trainer has no attribute {name!r}. {answer}".strip(), name=name, obj=owner)
