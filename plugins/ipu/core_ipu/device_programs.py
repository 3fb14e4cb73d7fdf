"""The compiled programs of one module: called, fed with what the host changes, and one at a time on
the IPUs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from core import ConfigurationError
from core_ipu import library
from core_ipu import optimizers as conversion
from core_ipu.host_changes import HostChanges
from core_ipu.program import CompiledProgram
from core_ipu.program_options import ProgramOptions, num_joined

if TYPE_CHECKING:
    from torch import nn


class DevicePrograms(ProgramOptions):
    """Base of `IPUStrategy`: compiles the user's methods, runs them and moves weights."""

    def _forget(self) -> None:
        """No module, no program, and nothing on a device."""
        self._optimizer: Any = None
        self._given_optimizer: Any = None
        self._programs: dict[tuple[Any, ...], CompiledProgram] = {}
        self._attached: Any = None
        self._sent: list[dict[str, Any]] = []
        self._watch: HostChanges | None = None
        self._num_updates = 0
        self._is_ahead = self._trains = False

    def synchronize_model(self) -> None:
        """Copy the weights from the device to the user's module, if a step was made since the last
        time.
        """
        program = self._programs.get(("training_step",))
        if self._is_ahead and program is not None and program.executor is not None:
            program.executor.copyWeightsToHost()
            self._is_ahead = False
            assert self._watch is not None
            self._watch.note()

    def refresh_modules(self) -> bool:
        """Compile anew if other parameters require gradients than those that were compiled. The
        wrapper stays.
        """
        if self._watch is not None and self._watch.has_other_flags:
            self._destroy(("training_step",))
            self._watch = None
        return False

    def _train(self, batch: Any, *numbers: int) -> Any:
        program = self._program("training_step", ())
        if (tensors := program.prepare(batch, numbers)) is None:
            raise program.refuse(batch)
        self._attach(program.executor)
        if program.executor.isCompiled():
            self._update_device(program.executor)
        output = program.run(tensors)
        self._is_ahead = True
        # the device has stepped: torch's schedulers look here, and would warn
        self._given_optimizer._opt_called = True
        return output

    def _update_device(self, executor: Any) -> None:
        """Bring to the device what was changed on the host since the last call: the optimizer's
        options, weights.

        Raises:
            ConfigurationError: what can't be brought there.
        """
        values = conversion.values_of(self._optimizer)
        watch = self._watch
        if values != self._sent:
            executor.setOptimizer(self._optimizer)
            self._sent = values
        assert watch is not None
        watch.refuse_other_flags()
        if (changed := watch.find_change()) is None:
            return
        if self._is_ahead:
            raise ConfigurationError(
                f"{changed!r} was changed on the host, and the device has trained since the "
                "weights were copied there. Call trainer.strategy.synchronize_model() before you "
                "change weights in a hook."
            )
        executor.copyWeightsToDevice()
        watch.note()

    def _evaluate(self, name: str, args: tuple[Any, ...]) -> Any:
        batch, *numbers = args
        program = self._program(name, tuple(numbers[1:]))
        tensors = program.prepare(batch, tuple(numbers))
        if tensors is None:  # a last batch that is smaller: rather here than not at all
            self.synchronize_model()
            module = self._require_module()
            method = module if name == "forward" else getattr(module, name)
            return method(*args)
        self._attach(program.executor)
        return program.run(tensors)

    def _program(self, name: str, loader: tuple[int, ...]) -> CompiledProgram:
        key = (name, *loader)
        if key not in self._programs:
            trains = name == "training_step"
            options = self.training_options() if trains else self.inference_options()
            poptorch = library.load()
            optimizer = self._optimizer

            def make(traced: nn.Module) -> Any:
                if trains:
                    self._sent = conversion.values_of(optimizer)
                    self._watch = HostChanges(self._require_module())
                    traced.train()
                    return poptorch.trainingModel(traced, options=options, optimizer=optimizer)
                traced.training = False
                return poptorch.inferenceModel(traced, options=options)

            mark = poptorch.identity_loss if trains else None
            self._programs[key] = CompiledProgram(
                self._require_module(), name, make=make, num_joined=num_joined(options), mark=mark
            )
        return self._programs[key]

    def _require_module(self) -> nn.Module:
        return self.session.handle_of().module

    def _attach(self, executor: Any) -> None:
        """Give the IPUs to one program. It begins with the weights that the host has."""
        if self._attached is executor:
            return
        self._detach()
        if executor.isCompiled():
            executor.attachToDevice()
            executor.copyWeightsToDevice()
        self._attached = executor

    def _detach(self) -> None:
        self.synchronize_model()
        if self._attached is not None and self._attached.isAttachedToDevice():
            self._attached.detachFromDevice()
        self._attached = None

    def _destroy(self, key: tuple[Any, ...]) -> None:
        program = self._programs[key]
        if self._attached is not None and self._attached is program.executor:
            self._detach()  # with the weights, while the program is known
        del self._programs[key]
        program.destroy()
