"""The conformance suite of precisions."""

from __future__ import annotations

import functools
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

import pytest
import torch
from torch import nn

from core import ConfigurationError, Fabric, NumberFormats, Precision
from core_testing.cases import Case
from core_testing.conformance import Conformance
from core_testing.ranks import Backend
from core_testing.training import assert_equal_runs, reference, train

if TYPE_CHECKING:
    from collections.abc import Callable

    from core_testing.ranks import Rank

_PLAIN = (int, float, bool, str, bytes, type(None), torch.Tensor)


class PrecisionConformance(Conformance[Precision]):
    """All that a precision must prove, on one device. Subclass it, and set `alias`.

    Attributes:
        accelerator: on which it computes.
        tolerance: by which training may differ from float32, relative to the largest weight.
        timeout_s: after which a process that hangs fails its test.
    """

    kind = "precision"
    accelerator: ClassVar[str] = "cpu"
    tolerance: ClassVar[float] = 5e-2
    timeout_s: ClassVar[float] = 60

    def test_describes_its_formats(self) -> None:
        """It has a name, and says in `NumberFormats` what a strategy with an engine of its own must
        know.
        """
        precision = self.make()
        assert precision.name
        assert isinstance(precision.formats, NumberFormats)

    def test_converts_modules_in_place(self) -> None:
        """Parameters and buffers get the declared formats and stay the same objects; integers and
        the like are left.
        """
        assert self._run(_convert)

    def test_builds_in_its_format(self) -> None:
        """Inside `init_context`, new parameters have the declared format; afterwards nothing is
        changed.
        """
        assert self._run(_build)

    def test_computes_in_its_format(self) -> None:
        """Inside `forward_context`, a layer computes in the declared format, repeatedly and after
        an exception.
        """
        assert self._run(_compute)

    def test_converts_inputs_that_float(self) -> None:
        """`convert_input` casts one floating tensor to the format of the inputs."""
        assert self._run(_convert_input)

    def test_gradients_have_their_true_size(self) -> None:
        """After `backward` and `unscale_gradients`, gradients are those of the loss."""
        self._need_training()
        assert self._run(_unscaled)

    def test_skips_steps_that_overflow(self) -> None:
        """With a scaled loss, a step with gradients that aren't finite changes nothing, and says
        so.
        """
        if not self.make().formats.scales_loss:
            pytest.skip(f"{self.alias} doesn't scale the loss")
        assert self._run(_skip)

    def test_state_comes_back(self) -> None:
        """`state_dict` holds plain types, and another instance takes it."""
        assert self._run(_restore)

    def test_trains(self) -> None:
        """Training comes as close to float32 as the tolerance says."""
        self._need_training()
        self._need_device()
        case = Case("precision", dtype=torch.float32)
        run = self._backend().run(train, replace(case, precision=self.alias))[0]
        assert_equal_runs(run, reference(case, self.accelerator, 1), self.tolerance)

    def _need_training(self) -> None:
        """Skip what a precision that only evaluates can't do."""
        if not self.make().trains:
            pytest.skip(f"{self.alias} evaluates and predicts only")

    def _need_device(self) -> None:
        """Skip what this precision refuses on this kind of device."""
        if refusal := self._backend().run(functools.partial(_refusal, self.make))[0]:
            pytest.skip(f"{self.alias} on {self.accelerator}: {refusal}")

    def _run(self, function: Callable[..., Any]) -> Any:
        """Run on one device, with an instance that knows its strategy."""
        self._need_device()
        return self._backend().run(functools.partial(_with_precision, self.make), function)[0]

    def _backend(self) -> Backend:
        """One device; in a process of its own, but for the CPU."""
        is_cpu = self.accelerator == "cpu"
        return Backend(
            lambda: "single_device", self.accelerator, timeout_s=self.timeout_s, in_process=is_cpu
        )


def _refusal(make: Any, rank: Rank) -> str:
    try:
        rank.fabric(precision=make())
    except ConfigurationError as error:
        return str(error)
    return ""


def _with_precision(make: Any, rank: Rank, function: Any) -> Any:
    precision = make()
    fabric = rank.fabric(precision=precision)
    fabric.barrier()
    result = function(precision, fabric, make)
    fabric.teardown()
    return result


class _Mixed(nn.Module):
    """Parameters and buffers of several kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.normalization = nn.BatchNorm1d(4)
        self.register_buffer("count", torch.zeros(2, dtype=torch.int64))
        self.phase = nn.Parameter(torch.ones(2, dtype=torch.complex64), requires_grad=False)


def _convert(precision: Precision, fabric: Fabric, make: Any) -> bool:
    module, formats = _Mixed(), precision.formats
    identities = [id(parameter) for parameter in module.parameters()]
    converted = precision.convert_module(module)
    assert isinstance(converted, nn.Module)
    assert [id(parameter) for parameter in module.parameters()] == identities, (
        "parameters were replaced"
    )
    assert module.layer.weight.dtype == (formats.parameter or torch.float32)
    running_mean = module.normalization.running_mean
    assert running_mean is not None
    assert running_mean.dtype == (formats.buffer or torch.float32)
    assert module.state_dict()["count"].dtype == torch.int64
    assert module.phase.is_complex(), "a complex parameter has lost its imaginary part"
    return True


def _build(precision: Precision, fabric: Fabric, make: Any) -> bool:
    before = torch.get_default_dtype()
    context = precision.init_context()
    if context is not None:
        for _ in range(2):
            with context:
                layer = nn.Linear(2, 2)
            assert layer.weight.dtype == (precision.formats.parameter or before)
        with suppress(ZeroDivisionError), context:
            _ = 1 / 0
    assert torch.get_default_dtype() == before
    return True


def _compute(precision: Precision, fabric: Fabric, make: Any) -> bool:
    before, device = torch.get_default_dtype(), fabric.device
    layer = precision.convert_module(nn.Linear(4, 4)).to(device)
    inputs = torch.ones(2, 4, device=device)
    inputs = precision.convert_input(inputs) if precision.converts_input else inputs
    context = precision.forward_context(device.type)
    for _ in range(3):
        if context is None:
            output = layer(inputs)
        else:
            with context:
                output = layer(inputs)
        assert output.dtype == (precision.formats.compute or torch.float32)
    if context is not None:
        with suppress(ZeroDivisionError), context:
            _ = 1 / 0
    assert torch.get_default_dtype() == before
    assert not torch.is_autocast_enabled(device.type), "autocast stays on"
    return True


def _convert_input(precision: Precision, fabric: Fabric, make: Any) -> bool:
    if not precision.converts_input:
        return True
    parameter = precision.formats.parameter
    converted = precision.convert_input(torch.ones(2))
    assert converted.is_floating_point()
    assert parameter is None or converted.dtype in (parameter, precision.formats.compute)
    return True


def _loss(precision: Precision, layer: nn.Module, device: torch.device) -> Any:
    inputs = torch.linspace(0, 1, 8).view(2, 4).to(device)
    inputs = precision.convert_input(inputs) if precision.converts_input else inputs
    context = precision.forward_context(device.type)
    if context is None:
        return layer(inputs).square().mean()
    with context:
        return layer(inputs).square().mean()


def _layer(precision: Precision, device: torch.device) -> nn.Linear:
    torch.manual_seed(2)
    layer = nn.Linear(4, 2)
    precision.convert_module(layer)
    return layer.to(device)


def _unscaled(precision: Precision, fabric: Fabric, make: Any) -> bool:
    plain = _layer(Precision(), fabric.device)
    _loss(Precision(), plain, fabric.device).backward()
    layer = _layer(precision, fabric.device)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    precision.backward(_loss(precision, layer, fabric.device))
    precision.unscale_gradients(optimizer)
    precision.unscale_gradients(optimizer)
    assert layer.weight.grad is not None
    torch.testing.assert_close(layer.weight.grad.float(), plain.weight.grad, rtol=5e-2, atol=5e-3)
    before = layer.weight.detach().clone()
    assert precision.optimizer_step(optimizer) is True
    assert not torch.equal(before, layer.weight)
    return True


def _skip(precision: Precision, fabric: Fabric, make: Any) -> bool:
    layer = _layer(precision, fabric.device)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    before = layer.weight.detach().clone()
    precision.backward(_loss(precision, layer, fabric.device))
    assert layer.weight.grad is not None
    layer.weight.grad[0, 0] = float("inf")
    assert precision.optimizer_step(optimizer) is False
    assert torch.equal(before, layer.weight), (
        "a step with infinite gradients has changed the weights"
    )
    return True


def _restore(precision: Precision, fabric: Fabric, make: Any) -> bool:
    state = precision.state_dict()
    assert all(isinstance(value, _PLAIN) for value in state.values())
    other = make()
    other.connect(fabric.strategy)
    other.load_state_dict(state)
    assert other.state_dict().keys() == state.keys()
    return True
