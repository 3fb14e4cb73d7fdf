"""An average of the weights that training passes through."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from core.callbacks.callback import Callback
from core.contract import Capability, CheckpointError, ConfigurationError, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch.optim.swa_utils import AveragedModel


class WeightAveraging(Callback):
    """The base of `EMA` and `StochasticWeightAveraging`. Meant to be subclassed: a subclass calls `update`.

    The average is torch's `AveragedModel`; of weights in shards (DTensors) each rank keeps that of its own part. It is
    saved in its own section of the checkpoint, beside the weights with which training goes on:
    `callbacks/<state_key>/section/average`, by parameter name. When fit ends, after the last checkpoint, the module
    gets the average. Evaluating a checkpoint with this callback in the trainer uses it too.
    """

    def __init__(
        self,
        average_fn: Callable[..., None] | None,
        *,
        use_buffers: bool = False,
        device: torch.device | str | None = None,
        evaluates_in_fit: bool = False,
        evaluates: bool = True,
    ) -> None:
        """Say how to average.

        Args:
            average_fn: torch's `multi_avg_fn`, such as `get_ema_multi_avg_fn(0.999)`; None weighs all equally.
            use_buffers: average buffers too; else they are the model's newest.
            device: where the average is kept; None is the model's.
            evaluates_in_fit: validation runs of fit use the average.
            evaluates: `validate`, `test` and `predict` with a checkpoint use the average in it.
        """
        self._average_fn, self._use_buffers, self._device = average_fn, use_buffers, device
        self._evaluates_in_fit, self._evaluates = evaluates_in_fit, evaluates
        self._average: AveragedModel | None = None
        self._source: _Tensors | None = None
        self._is_exchanged = False

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_average": None, "_source": None}

    @property
    def num_averaged(self) -> int:
        """How many states of the weights are in the average."""
        return int(self._average.n_averaged) if self._average is not None else 0

    def update(self) -> None:
        """All ranks. Take the present weights into the average."""
        assert self._average is not None
        assert self._source is not None
        self._average.update_parameters(self._source)

    # life -----------------------------------------------------------------------------------------------------------

    def on_fit_start(self, trainer: Any, module: nn.Module) -> None:
        """Make room for the average.

        Raises:
            UnsupportedError: the strategy spreads the weights over ranks in a way of its own.
        """
        self._build(trainer, module)

    def on_fit_end(self, trainer: Any, module: nn.Module) -> None:
        """Give the module its average."""
        if self.num_averaged:
            self._exchange()
            self._is_exchanged = False

    def on_exception(self, trainer: Any, module: nn.Module, exception: BaseException) -> None:
        """Give the module its own weights back, before anybody saves them."""
        self._return()

    def teardown(self, trainer: Any, module: nn.Module, stage: str) -> None:
        """Forget the average: the module has it, or a checkpoint."""
        self._return()
        self._average = self._source = None

    # checkpoints ----------------------------------------------------------------------------------------------------

    def on_save_checkpoint(self, trainer: Any, module: nn.Module, checkpoint: dict[str, Any]) -> None:
        """Add the average.

        Raises:
            ConfigurationError: the module has the average at this moment, so that its weights would be saved wrongly.
        """
        if self._is_exchanged:
            raise ConfigurationError(
                f"A checkpoint was asked for while {type(self).__name__} lends its average to a validation run. "
                "Save after the run, in on_validation_end of a callback that comes later, or in a training hook."
            )
        if self._average is not None and self._source is not None:
            checkpoint["num_averaged"] = self.num_averaged
            is_whole = trainer.strategy.checkpoint_io.layout == "full"
            checkpoint["average"] = self._source.placed(_tensors_of(self._average.module), whole=is_whole)

    def on_load_checkpoint(self, trainer: Any, module: nn.Module, checkpoint: dict[str, Any]) -> None:
        """Take the average.

        Raises:
            CheckpointError: it belongs to another model.
        """
        if "average" not in checkpoint:
            return
        average = self._average or self._build(trainer, module)
        assert self._source is not None
        saved = checkpoint["average"]
        if differing := saved.keys() ^ set(self._source.names):
            raise CheckpointError(
                f"The checkpoint's average of {type(self).__name__} doesn't fit the model: only one of "
                f"the two has {min(differing)!r}. Build the model as it was, or leave the callback out."
            )
        average.n_averaged.fill_(checkpoint["num_averaged"])
        with torch.no_grad():
            for name, own, tensor in zip(
                self._source.names, self._source.originals(), _tensors_of(average.module), strict=True
            ):
                tensor.copy_(_part_of(saved[name], own))

    # evaluation -----------------------------------------------------------------------------------------------------

    def on_validation_start(self, trainer: Any, module: nn.Module) -> None:
        """Lend the module the average."""
        self._lend(trainer)

    def on_validation_end(self, trainer: Any, module: nn.Module) -> None:
        """Take it back."""
        self._return()

    def on_test_start(self, trainer: Any, module: nn.Module) -> None:
        """Lend the module the average."""
        self._lend(trainer)

    def on_test_end(self, trainer: Any, module: nn.Module) -> None:
        """Take it back."""
        self._return()

    def on_predict_start(self, trainer: Any, module: nn.Module) -> None:
        """Lend the module the average."""
        self._lend(trainer)

    def on_predict_end(self, trainer: Any, module: nn.Module) -> None:
        """Take it back."""
        self._return()

    def _lend(self, trainer: Any) -> None:
        wanted = self._evaluates_in_fit if trainer.stage == "fit" else self._evaluates
        if wanted and self.num_averaged and not self._is_exchanged:
            self._exchange()

    def _return(self) -> None:
        if self._is_exchanged:
            self._exchange()

    # the tensors ----------------------------------------------------------------------------------------------------

    def _build(self, trainer: Any, module: nn.Module) -> AveragedModel:
        from torch.optim.swa_utils import AveragedModel

        is_spread = Capability.SHARDED_STATE in trainer.strategy.capabilities
        if is_spread and not any(map(_is_sharded, module.parameters())):
            raise UnsupportedError(
                f"{type(self).__name__} averages weights that are whole or DTensors, and "
                f"{type(trainer.strategy).__name__} spreads them over ranks in another way. Use a strategy such as "
                "'ddp' or 'fsdp'.",
                capability=Capability.SHARDED_STATE,
            )
        self._source = _Tensors(module)
        self._average = AveragedModel(
            self._source,
            device=torch.device(self._device) if self._device is not None else None,
            multi_avg_fn=self._average_fn,
            use_buffers=self._use_buffers,
        )
        self._is_exchanged = False
        return self._average

    def _exchange(self) -> None:
        """Swap the module's tensors and the average, in place, one at a time."""
        assert self._average is not None
        assert self._source is not None
        # The hooks of a validation run are called in inference mode, whose tensors must not stay.
        with torch.inference_mode(False), torch.no_grad():
            for own, other in zip(_tensors_of(self._source), _tensors_of(self._average.module), strict=True):
                kept = own.clone()
                own.copy_(other)
                other.copy_(kept)
        self._is_exchanged = not self._is_exchanged


class _Tensors(nn.Module):
    """The parameters and buffers of a module, without anything else that a copy would copy too.

    What `parameters()` and `buffers()` yield, and what a copy consists of, are this rank's parts of those in shards.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.names: list[str] = []
        for index, (name, parameter) in enumerate(module.named_parameters()):
            self.register_parameter(f"parameter_{index}", parameter)
            self.names.append(name)
        for index, (name, buffer) in enumerate(module.named_buffers()):
            self.register_buffer(f"buffer_{index}", buffer)
            self.names.append(name)

    def __deepcopy__(self, memo: dict[int, Any]) -> _Tensors:
        copied = _Tensors(nn.Module())
        for name, parameter in self._parameters.items():
            assert parameter is not None
            part = nn.Parameter(_local(parameter).clone(), requires_grad=parameter.requires_grad)
            copied.register_parameter(name, part)
        for name, buffer in self._buffers.items():
            assert buffer is not None
            copied.register_buffer(name, _local(buffer).clone())
        return copied

    def originals(self) -> list[Tensor]:
        """Parameters, then buffers, in the order of their names."""
        return [*super().parameters(), *super().buffers()]

    def parameters(self, recurse: bool = True) -> Iterator[Any]:
        """This rank's parts."""
        return map(_local, super().parameters(recurse))

    def buffers(self, recurse: bool = True) -> Iterator[Tensor]:
        """This rank's parts."""
        return map(_local, super().buffers(recurse))

    def placed(self, parts: list[Tensor], *, whole: bool) -> dict[str, Tensor]:
        """All ranks. Parts by name, those of tensors in shards as DTensors, or gathered one after the other."""
        pairs = zip(self.names, self.originals(), parts, strict=True)
        return {name: _placed(part, own, whole=whole) for name, own, part in pairs}


def _tensors_of(tensors: nn.Module) -> list[Tensor]:
    """Parameters, then buffers, in the order of their names."""
    return [tensor.detach() for tensor in (*tensors.parameters(), *tensors.buffers())]


def _is_sharded(tensor: Tensor) -> bool:
    """Whether it is a DTensor, which tells so by torch's own protocol."""
    return hasattr(type(tensor), "__create_chunk_list__")


def _local(tensor: Any) -> Tensor:
    """This rank's part, in the tensor's own memory."""
    local: Tensor = tensor.detach().to_local() if _is_sharded(tensor) else tensor.detach()
    return local


def _part_of(whole: Tensor, own: Any) -> Tensor:
    """What of a whole tensor this rank has of `own`."""
    if not _is_sharded(own) or _is_sharded(whole):
        return _local(whole)
    (box,) = own.__create_chunk_list__()
    return whole[tuple(slice(start, start + size) for start, size in zip(box.offsets, box.sizes, strict=True))]


def _placed(part: Tensor, own: Any, *, whole: bool) -> Tensor:
    if not _is_sharded(own):
        return part
    placed = type(own.detach()).from_local(
        part, own.device_mesh, own.placements, run_check=False, shape=own.shape, stride=own.stride()
    )
    gathered: Tensor = placed.full_tensor().cpu() if whole else placed
    return gathered
