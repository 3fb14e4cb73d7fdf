import copy
import pickle
from unittest.mock import Mock

import pytest
import torch
from torch import nn
from torch.amp import GradScaler

from core.accelerators import CPUAccelerator
from core.contract import ConfigurationError, DeviceError, Strategy
from core.precision import MixedPrecision, mixed, uniform


def small_scaler():
    """A scaler for the CPU that grows after each good step, so that each step shows in its
    scale.
    """
    return GradScaler("cpu", init_scale=8.0, growth_interval=1)


@pytest.fixture
def precision():
    return MixedPrecision(torch.float16, scaler=small_scaler())


def linear(seed=0):
    torch.manual_seed(seed)
    return nn.Linear(4, 2, bias=False)


def sgd(module):
    return torch.optim.SGD(module.parameters(), lr=0.1)


def on(device_type):
    device = torch.device(device_type, 0)
    return Strategy(accelerator=CPUAccelerator(), parallel_devices=[device])


def backward(precision, module, factor=1.0):
    precision.backward((module(torch.ones(3, 4)) * factor).square().mean())


# Autocast.


def test_formats_describe_it():
    formats = mixed.float16().formats
    assert (formats.parameter, formats.compute, formats.reduce) == (
        torch.float32,
        torch.float16,
        torch.float32,
    )
    assert formats.scales_loss
    plain = mixed.bfloat16()
    assert (plain.name, plain.formats.compute, plain.scaler) == ("bf16-mixed", torch.bfloat16, None)
    assert not plain.formats.scales_loss
    assert not plain.converts_input


def test_one_context_serves_every_batch_and_validation_inside_of_training():
    precision, module, batch = mixed.bfloat16(), linear(), torch.ones(1, 4)
    training, validation = precision.forward_context("cpu"), precision.forward_context("cpu")
    for _ in range(2):
        with training:
            with validation:
                assert module(batch).dtype == torch.bfloat16
            assert module(batch).dtype == torch.bfloat16
        assert module(batch).dtype == torch.float32


def test_weights_that_changed_between_batches_are_cast_anew():
    module, context = linear(), mixed.bfloat16().forward_context("cpu")
    for value in (1.0, 2.0):
        torch.nn.init.constant_(module.weight, value)
        with context:
            assert module(torch.ones(1, 4)).tolist() == [[4 * value, 4 * value]]


def test_a_device_that_cannot_autocast_is_an_error_and_not_float32_in_silence():
    with pytest.raises(
        DeviceError, match=r"'bf16-mixed' can't be had on 'meta'.*Use precision='32-true'"
    ):
        mixed.bfloat16().forward_context("meta")


# Which device.


def test_float16_on_a_cpu_names_bfloat16():
    with pytest.raises(
        ConfigurationError, match=r"'16-mixed' is for GPUs.*on a CPU.*Use precision='bf16-mixed'"
    ):
        mixed.float16().connect(on("cpu"))


def test_what_fits_the_device_connects():
    mixed.bfloat16().connect(on("cpu"))
    mixed.float16().connect(on("cuda"))
    uniform.double().connect(on("cpu"))


@pytest.mark.parametrize("make", [mixed.float16, mixed.bfloat16, uniform.single, uniform.double])
def test_a_sketch_connects_an_ellipsis(make):
    make().connect(...)


def test_the_default_scaler_is_torchs_own_for_the_device_of_the_run():
    precision = mixed.float16()
    precision.forward_context("cpu")
    backward(precision, linear())
    assert precision.scaler.get_scale() == 2**16


def test_float16_parameters_are_refused_when_the_module_is_set_up(precision):
    with pytest.raises(
        ConfigurationError, match=r"keeps parameters in float32, and 'weight' of Linear is float16"
    ):
        precision.convert_module(linear().half())


# Scaling the loss.


def loss_of(*modules):
    return sum(module(torch.ones(3, 4)) for module in modules).square().mean()


@pytest.mark.parametrize("optimizer_class", [torch.optim.SGD, torch.optim.AdamW])
def test_a_scaled_step_is_the_plain_step(precision, optimizer_class):
    scaled, plain = linear(), linear()
    scaled_optimizer, plain_optimizer = (
        optimizer_class(m.parameters(), lr=0.1) for m in (scaled, plain)
    )
    for _ in range(3):
        for _ in range(2):
            backward(precision, scaled)
            loss_of(plain).backward()
        assert precision.optimizer_step(scaled_optimizer) is True
        plain_optimizer.step()
        assert torch.equal(scaled.weight, plain.weight)
        for optimizer in (scaled_optimizer, plain_optimizer):
            optimizer.zero_grad()


def test_unscaling_twice_is_unscaling_once(precision):
    module, plain = linear(), linear()
    optimizer = sgd(module)
    loss_of(plain).backward()
    backward(precision, module)
    for factor in (8, 1, 1):
        assert torch.equal(module.weight.grad, factor * plain.weight.grad)
        precision.unscale_gradients(optimizer)
    assert precision.optimizer_step(optimizer)


@pytest.mark.parametrize("fused", [False, True])
def test_an_overflow_skips_the_step_and_says_so(precision, fused):
    module = linear()
    optimizer = torch.optim.Adam(module.parameters(), lr=0.1, fused=fused)
    weights = [module.weight.clone()]
    # A factor with which a scaled loss overflows.
    big = 1e30
    for factor, steps in ((big, False), (1.0, True), (big, False)):
        backward(precision, module, factor)
        assert precision.optimizer_step(optimizer) is steps
        optimizer.zero_grad()
        assert torch.equal(module.weight, weights[-1]) is not steps
        weights.append(module.weight.clone())


def test_two_optimizers_share_one_backward(precision):
    """Both gradients carry the scale of that backward, also after the first optimizer has
    stepped.
    """
    scaled, plain = [linear(1), linear(2)], [linear(1), linear(2)]
    scaled_optimizers, plain_optimizers = (
        [sgd(module) for module in modules] for modules in (scaled, plain)
    )
    for _ in range(3):
        precision.backward(loss_of(*scaled))
        loss_of(*plain).backward()
        for optimizer in scaled_optimizers:
            precision.unscale_gradients(optimizer)
        for optimizer, other in zip(scaled_optimizers, plain_optimizers, strict=True):
            assert precision.optimizer_step(optimizer) is True
            other.step()
            optimizer.zero_grad()
            other.zero_grad()
    assert [
        torch.equal(one.weight, other.weight) for one, other in zip(scaled, plain, strict=True)
    ] == [True, True]


def test_an_optimizer_without_gradients_steps_as_it_would_without_a_scale(precision):
    frozen = sgd(linear())
    precision.unscale_gradients(frozen)
    assert precision.optimizer_step(frozen)


def test_no_hook_stays_on_the_users_optimizer(precision):
    module = linear()
    optimizer = sgd(module)
    backward(precision, module)
    precision.optimizer_step(optimizer)
    assert not optimizer._optimizer_step_post_hooks


# What goes wrong.


def test_a_closure_is_refused(precision):
    optimizer = torch.optim.LBFGS(linear().parameters())
    with pytest.raises(
        ConfigurationError, match=r"LBFGS evaluates the loss itself.*Use precision='bf16-mixed'"
    ):
        precision.optimizer_step(optimizer, lambda: None)


def test_a_closure_is_fine_without_a_scaler():
    optimizer, closure = Mock(), Mock()
    assert mixed.bfloat16().optimizer_step(optimizer, closure)
    optimizer.step.assert_called_once_with(closure)


def test_a_loss_that_was_not_scaled_is_noticed(precision):
    module = linear()
    optimizer = sgd(module)
    module(torch.ones(3, 4)).sum().backward()
    for misuse in (precision.unscale_gradients, precision.optimizer_step):
        with pytest.raises(
            ConfigurationError, match=r"a loss that wasn't scaled.*call backward\(loss\) of Fabric"
        ):
            misuse(optimizer)


def test_two_steps_after_one_backward_are_noticed(precision):
    module = linear()
    optimizer = sgd(module)
    backward(precision, module)
    precision.optimizer_step(optimizer)
    with pytest.raises(ConfigurationError, match="steps twice after a backward"):
        precision.optimizer_step(optimizer)


def test_other_formats_are_refused():
    with pytest.raises(ConfigurationError, match=r"expected torch.float16 or torch.bfloat16"):
        MixedPrecision(torch.float64)


# State.


def test_the_scale_survives_a_restart(precision):
    module = linear()
    backward(precision, module)
    precision.optimizer_step(sgd(module))
    state = copy.deepcopy(precision.state_dict())
    resumed = MixedPrecision(torch.float16, scaler=small_scaler())
    resumed.load_state_dict(state)
    assert resumed.state_dict() == state
    backward(resumed, linear())
    assert resumed.scaler.get_scale() == state["scale"] == 16.0


def test_the_state_of_another_precision_changes_nothing(precision):
    precision.load_state_dict(mixed.bfloat16().state_dict())
    assert precision.state_dict()["scale"] == 8.0
    mixed.bfloat16().load_state_dict(precision.state_dict())


@pytest.mark.parametrize("make", [mixed.float16, mixed.bfloat16, uniform.single, uniform.double])
def test_a_precision_can_be_sent_to_a_worker(make):
    copied = pickle.loads(pickle.dumps(make()))
    assert (copied.name, copied.formats) == (make().name, make().formats)
