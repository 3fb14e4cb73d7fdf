"""Training and inference on Graphcore's IPUs: PopTorch compiles the user's steps, and runs them
whole.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any, Literal

import torch

from core import Capability, ConfigurationError, StepOutput, UnsupportedError
from core_ipu import library, loading
from core_ipu import optimizers as conversion
from core_ipu.device_programs import DevicePrograms
from core_ipu.program_options import num_joined

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import nn
    from torch.optim import Optimizer

    from core import GradientClipping, SetupHost, Stage, TrainingStep

_PRECISIONS = ("32-true", "16-true")
_ENGINE_OPTIONS = "POPLAR_ENGINE_OPTIONS"
_HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")
_METHODS = {"validation_step", "test_step", "predict_step", "forward"}


class IPUStrategy(DevicePrograms):
    """Compiles the user's steps for IPUs, and replicates the model over them.

    A call of the training program is forward, backward and update for `device_iterations`
    accumulation windows on all replicas. What the core hands over as one batch is all that such a
    call takes: `device_iterations` x replicas x accumulated batches of the user's loader, whose
    `batch_size` is what one replica computes at once. Weights live on the device while it trains,
    and are copied to the host when the host needs them; see `synchronize_model`.
    """

    def __init__(
        self,
        *given: Any,
        device_iterations: int = 1,
        ipus_per_replica: int = 1,
        training_opts: Any = None,
        inference_opts: Any = None,
        autoreport: bool = False,
        autoreport_dir: str | os.PathLike[str] | None = None,
        **parts: Any,
    ) -> None:
        """Options of the programs, and of every strategy.

        Args:
            given: parts without their names, as every strategy takes them.
            device_iterations: updates of the parameters in one call of the training program, and
                batches in one call of a program for inference, before control returns to the host.
            ipus_per_replica: IPUs of one copy of the model, which its `poptorch.Block`s divide
                among them.
            training_opts: `poptorch.Options` in the place of those that are made here. Their
                replication must agree with `devices`; accumulation stands there or in the Trainer's
                `accumulate_grad_batches`, not in both.
            inference_opts: the same for validation, test and prediction.
            autoreport: write PopVision's reports of what is compiled.
            autoreport_dir: where; the current folder if it is None.
            parts: `accelerator`, `parallel_devices`, `checkpoint_io`, `precision_plugin`.

        Raises:
            ConfigurationError: a number below 1, or two places that say how many iterations there
                are.
        """
        super().__init__(*given, **parts)
        for name, number in (
            ("device_iterations", device_iterations),
            ("ipus_per_replica", ipus_per_replica),
        ):
            if type(number) is not int or number < 1:
                raise ConfigurationError(
                    f"IPUStrategy({name}={number!r}): expected an integer of at least 1."
                )
        if (
            device_iterations != 1
            and training_opts is not None
            and training_opts.device_iterations != device_iterations
        ):
            raise ConfigurationError(
                f"IPUStrategy(device_iterations={device_iterations}), and training_opts say "
                f"{training_opts.device_iterations}. Leave one of them out."
            )
        self.device_iterations = self.updates_per_batch = device_iterations
        self.ipus_per_replica = ipus_per_replica
        self.training_opts = training_opts
        self.inference_opts = inference_opts
        self.autoreport = autoreport
        self.autoreport_dir = autoreport_dir
        self._engine_options: str | None = None
        self._clipping: GradientClipping | None = None
        self._forget()

    # composition ----------------------------------------------------------------------------------

    @property
    def capabilities(self) -> Capability:
        """One module and one optimizer, whose steps are compiled as a whole: windows and clipping
        are inside.

        `INFERENCE_MODE` isn't among them: PopTorch writes into the module's own tensors.
        """
        return (
            Capability.COMPILED_STEP
            | Capability.JOINT_SETUP
            | Capability.OWNS_ACCUMULATION
            | Capability.OWNS_CLIPPING
        )

    @property
    def root_device(self) -> torch.device:
        """The host, whose tensors PopTorch takes and gives back."""
        return torch.device("cpu")

    def check(self) -> None:
        """Refuse what IPUs can't do, and a machine on which PopTorch can't be imported.

        Raises:
            ConfigurationError: with what fits.
            PluginLoadError: PopTorch isn't installed, or can't be imported.
        """
        if self.accelerator.name != "ipu":
            raise ConfigurationError(
                f"IPUStrategy trains on IPUs, and accelerator={self.accelerator.name!r} was asked "
                "for. Use accelerator='ipu', or another strategy."
            )
        if self.num_nodes > 1:
            raise ConfigurationError(
                f"num_nodes={self.num_nodes}: IPUStrategy trains in one process. Use num_nodes=1."
            )
        if len(self.parallel_devices) % self.ipus_per_replica:
            raise ConfigurationError(
                f"devices={len(self.parallel_devices)} are no multiple of "
                f"ipus_per_replica={self.ipus_per_replica}. Change one of the two."
            )
        if self.precision_plugin.name not in _PRECISIONS:
            raise ConfigurationError(
                f"precision={self.precision_plugin.name!r}: on IPUs use one of "
                f"{', '.join(map(repr, _PRECISIONS))}."
            )
        poptorch = library.load()
        self._check_options("training_opts", self.training_opts, poptorch)
        self._check_options("inference_opts", self.inference_opts, poptorch)
        self.updates_per_batch = int(self.training_options().device_iterations)

    def setup_environment(self) -> None:
        """Make Poplar write reports, if that was asked for."""
        super().setup_environment()
        if self.autoreport and self._engine_options is None:
            self._engine_options = os.environ.get(_ENGINE_OPTIONS, "")
            report = {"autoReport.all": "true"}
            if self.autoreport_dir is not None:
                report["autoReport.directory"] = os.fspath(self.autoreport_dir)
            os.environ[_ENGINE_OPTIONS] = json.dumps(
                {**json.loads(self._engine_options or "{}"), **report}
            )

    # module and optimizer -------------------------------------------------------------------------

    def setup(self, trainer: SetupHost) -> None:
        """Set up as every strategy does, and keep what the Trainer says of a step."""
        self._accumulated = trainer.accumulate_grad_batches
        self._clipping = trainer.clipping
        self._trains = trainer.trains
        if self._trains:
            self.training_options()  # refuses what contradicts itself, before data is asked for
        super().setup(trainer)

    def setup_module(self, module: nn.Module) -> nn.Module:
        """Convert the module; it stays on the host, and goes to the device as part of a program.

        Raises:
            UnsupportedError: it is to be compiled by torch too, or a parameter has hooks.
            ConfigurationError: parameters of 64 bits.
        """
        if self.session.compiles:
            raise UnsupportedError(
                "PopTorch compiles the steps itself, and not what torch.compile gives: leave out "
                "compile."
            )
        super().setup_module(module)
        if name := next(
            (name for name, each in module.named_parameters() if each.dtype == torch.float64), None
        ):
            raise ConfigurationError(
                f"Parameter {name!r} is of float64, which IPUs don't have: build the module in "
                "float32."
            )
        if name := next(
            (name for name, each in module.named_parameters() if _has_hooks(each)), None
        ):
            raise UnsupportedError(
                f"Parameter {name!r} has a hook, which a compiled program wouldn't call: its "
                "gradients stay on the device. Mask and scale in forward, as in weight * mask + "
                "(weight * (1 - mask)).detach()."
            )
        return module

    def setup_module_and_optimizers(
        self, module: nn.Module, optimizers: list[Optimizer], scheduler: Any = None
    ) -> tuple[nn.Module, list[Optimizer], Any]:
        """Set up the module, and put PopTorch's optimizer in the place of torch's.

        Raises:
            UnsupportedError: no optimizer, or one that IPUs don't have.
        """
        module = self.setup_module(module)
        if not optimizers and self._trains:
            raise UnsupportedError(
                "configure_optimizers returned no optimizer, and a training program on IPUs needs "
                "one. Return one."
            )
        if not optimizers:
            return module, [], scheduler
        self._given_optimizer = optimizers[0]
        self._optimizer = conversion.convert(library.load(), optimizers[0], self._clipping)
        return module, [self._optimizer], scheduler

    # data -----------------------------------------------------------------------------------------

    def setup_dataloader(self, loader: Any, stage: Stage) -> Any:
        """PopTorch's loader, which joins batches; a DataLoader of PopTorch's own stays what it
        is.
        """
        trains = stage == "fit"
        options = self.training_options() if trains else self.inference_options()
        return loading.join(library.load(), loader, options, num_joined(options), trains=trains)

    # steps ----------------------------------------------------------------------------------------

    def step_callable(self, name: str, module: nn.Module | None = None) -> Callable[..., Any]:
        """The user's method as a compiled program; compiled when it is called first."""
        if name == "training_step":
            return self._train
        if name not in _METHODS:
            return super().step_callable(name, module)

        def evaluate(*args: Any) -> Any:
            return self._evaluate(name, args)

        return evaluate

    def run_training_step(self, batch: Any, batch_idx: int, step: TrainingStep) -> StepOutput:
        """One call of the training program: forward, backward and update, as often as its options
        say.
        """
        loss = step.compute_loss(batch, batch_idx)
        self._num_updates += self.updates_per_batch
        return StepOutput(loss, num_optimizer_steps=self.updates_per_batch)

    def backward(
        self, loss: torch.Tensor, module: nn.Module | None, *, manual: bool = False, **kwargs: Any
    ) -> None:
        """Not here: the program runs it.

        Raises:
            UnsupportedError: always.
        """
        raise UnsupportedError(
            "On IPUs backward is a part of the compiled training program, which core.Trainer runs.",
            capability=Capability.COMPILED_STEP,
        )

    # state ----------------------------------------------------------------------------------------

    def get_module_state_dict(
        self, module: nn.Module, *, layout: Literal["full", "sharded"] | None = None
    ) -> dict[str, Any]:
        """The module's state, with the weights of the device."""
        self.synchronize_model()
        return super().get_module_state_dict(module, layout=layout)

    def load_module_state_dict(
        self, module: nn.Module, state: Mapping[str, Any], *, strict: bool = True
    ) -> None:
        """Load a state into the module, and from there onto the device."""
        self.synchronize_model()
        super().load_module_state_dict(module, state, strict=strict)

    def get_optimizer_state_dict(self, optimizer: Optimizer) -> dict[str, Any]:
        """The optimizer's state by parameter names, as torch's own optimizer has it."""
        return conversion.to_canonical(
            optimizer, self.parameter_names(optimizer), self._num_updates
        )

    def load_optimizer_state_dict(self, optimizer: Optimizer, state: Mapping[str, Any]) -> None:
        """Restore a state by parameter names, of this strategy or of another one."""
        names = self.parameter_names(optimizer)
        order = {name: index for index, name in enumerate(names)}
        groups = [
            {**group, "params": [order[name] for name in group["params"]]}
            for group in state["param_groups"]
        ]
        conversion.load_canonical(optimizer, state["state"], groups)
        steps = [float(entry["step"]) for entry in state["state"].values() if "step" in entry]
        self._num_updates = int(max(steps, default=0))

    # end ------------------------------------------------------------------------------------------

    def release(self) -> None:
        """Destroy the programs: the IPUs are free, and the user's module has its weights."""
        try:
            for key in list(self._programs):
                self._destroy(key)
        finally:
            self._forget()
            super().release()

    def teardown(self) -> None:
        """Idempotent. Release everything, and give Poplar's options back."""
        super().teardown()
        if self._engine_options is not None:
            previous, self._engine_options = self._engine_options, None
            if previous:
                os.environ[_ENGINE_OPTIONS] = previous
            else:
                os.environ.pop(_ENGINE_OPTIONS, None)


def _has_hooks(parameter: torch.Tensor) -> bool:
    """True if it has hooks other than those by which core refuses a gradient where nothing may
    learn.
    """
    hooks = [hook for name in _HOOKS for hook in (getattr(parameter, name, None) or {}).values()]
    return any(not str(getattr(hook, "__module__", "")).startswith("core.") for hook in hooks)
