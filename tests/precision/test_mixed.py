import copy
import pickle

import pytest
import torch
from torch import nn
from torch.amp import GradScaler

from core.accelerators import CPUAccelerator
from core.contract import ConfigurationError, DeviceError, Strategy
from core.precision import MixedPrecision, mixed, uniform

BIG = 1e30
"""A factor with which a scaled loss overflows."""


def small_scaler():
    """A scaler for the CPU that grows after each good step, so that each step shows in its scale."""
    return GradScaler("cpu", init_scale=8.0, growth_interval=1)


@pytest.fixture
def precision():
    return MixedPrecision(torch.float16, scaler=small_scaler())


def linear(seed=0):
    torch.manual_seed(seed)
    return nn.Linear(4, 2, bias=False)


def on(device_type):
    device = torch.device(device_type, 0)
    return Strategy(accelerator=CPUAccelerator(), parallel_devices=[device])


def backward(precision, module, factor=1.0):
    precision.backward((module(torch.ones(3, 4)) * factor).square().mean())


# Autocast.


def test_matrix_products_are_in_bfloat16_and_weights_in_float32():
    precision, module = mixed.bfloat16(), linear()
    with precision.forward_context("cpu"):
        output = precision.convert_module(module)(torch.ones(3, 4))
    assert output.dtype == torch.bfloat16
    assert module.weight.dtype == torch.float32
    assert precision.name == "bf16-mixed"
    assert precision.scaler is None
    assert precision.state_dict() == {}
    assert not precision.converts_input


def test_formats_describe_it():
    formats = mixed.float16().formats
    assert (formats.parameter, formats.compute, formats.reduce) == (torch.float32, torch.float16, torch.float32)
    assert formats.scales_loss
    assert not mixed.bfloat16().formats.scales_loss


def test_one_context_serves_every_batch_and_validation_inside_of_training():
    precision, module = mixed.bfloat16(), linear()
    training, validation = precision.forward_context("cpu"), precision.forward_context("cpu")
    for _ in range(3):
        with training:
            assert module(torch.ones(1, 4)).dtype == torch.bfloat16
            with validation:
                assert module(torch.ones(1, 4)).dtype == torch.bfloat16
            assert torch.is_autocast_enabled("cpu")
        assert not torch.is_autocast_enabled("cpu")
        assert module(torch.ones(1, 4)).dtype == torch.float32


def test_weights_that_changed_between_batches_are_cast_anew():
    precision, module = mixed.bfloat16(), linear()
    context = precision.forward_context("cpu")
    for value in (1.0, 2.0):
        with torch.no_grad():
            module.weight.fill_(value)
        with context:
            assert module(torch.ones(1, 4)).tolist() == [[4 * value, 4 * value]]


def test_a_compiled_step_is_cast_as_well():
    precision, module = mixed.bfloat16(), linear()
    step = torch.compile(module, backend="aot_eager", fullgraph=True)
    context = precision.forward_context("cpu")
    for _ in range(2):
        with context:
            output = step(torch.ones(1, 4))
        output.sum().backward()
        assert output.dtype == torch.bfloat16
        assert module.weight.grad.dtype == torch.float32


def test_a_device_that_cannot_autocast_is_an_error_and_not_float32_in_silence():
    with pytest.raises(DeviceError, match=r"'bf16-mixed' can't be had on 'meta'.*Use precision='32-true'"):
        mixed.bfloat16().forward_context("meta")


# Which device.


def test_float16_on_a_cpu_names_bfloat16():
    with pytest.raises(ConfigurationError, match=r"'16-mixed' is for GPUs.*on a CPU.*Use precision='bf16-mixed'"):
        mixed.float16().connect(on("cpu"))


def test_what_fits_the_device_connects():
    mixed.bfloat16().connect(on("cpu"))
    mixed.float16().connect(on("cuda"))
    uniform.double().connect(on("cpu"))


@pytest.mark.parametrize("make", [mixed.float16, mixed.bfloat16, uniform.single, uniform.double])
def test_a_sketch_connects_an_ellipsis(make):
    make().connect(...)


def test_the_default_scaler_is_torchs_own_for_the_device_of_the_run():
    precision, module = mixed.float16(), linear()
    precision.forward_context("cpu")
    backward(precision, module)
    assert precision.scaler.get_scale() == 2**16
    assert precision.optimizer_step(torch.optim.SGD(module.parameters(), lr=0.1))


def test_float16_parameters_are_refused_when_the_module_is_set_up(precision):
    with pytest.raises(ConfigurationError, match=r"keeps parameters in float32, and 'weight' of Linear is float16"):
        precision.convert_module(linear().half())


# Scaling the loss.


def reference_step(module, optimizer):
    module(torch.ones(3, 4)).square().mean().backward()
    optimizer.step()


@pytest.mark.parametrize("optimizer_class", [torch.optim.SGD, torch.optim.AdamW])
def test_a_scaled_step_is_the_plain_step(precision, optimizer_class):
    scaled, plain = linear(), linear()
    scaled_optimizer, plain_optimizer = (optimizer_class(m.parameters(), lr=0.1) for m in (scaled, plain))
    for _ in range(3):
        backward(precision, scaled)
        assert precision.optimizer_step(scaled_optimizer) is True
        reference_step(plain, plain_optimizer)
        assert torch.equal(scaled.weight, plain.weight)
        for optimizer in (scaled_optimizer, plain_optimizer):
            optimizer.zero_grad()


def test_unscaling_twice_is_unscaling_once(precision):
    module, plain = linear(), linear()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    plain(torch.ones(3, 4)).square().mean().backward()
    backward(precision, module)
    assert torch.equal(module.weight.grad, 8 * plain.weight.grad)
    precision.unscale_gradients(optimizer)
    precision.unscale_gradients(optimizer)
    assert torch.equal(module.weight.grad, plain.weight.grad)
    assert precision.optimizer_step(optimizer)


@pytest.mark.parametrize("fused", [False, True])
def test_an_overflow_skips_the_step_and_says_so(precision, fused):
    module = linear()
    optimizer = torch.optim.Adam(module.parameters(), lr=0.1, fused=fused)
    before = module.weight.clone()
    outcomes = []
    for factor in (BIG, 1.0, BIG, 1.0):
        backward(precision, module, factor)
        outcomes.append(precision.optimizer_step(optimizer))
        optimizer.zero_grad()
    assert outcomes == [False, True, False, True]
    assert torch.isfinite(module.weight).all()
    assert not torch.equal(module.weight, before)


def test_two_optimizers_share_one_backward(precision):
    """Both gradients carry the scale of that backward, also after the first optimizer has stepped."""
    first, second, plain_first, plain_second = linear(1), linear(2), linear(1), linear(2)
    optimizers = [torch.optim.SGD(module.parameters(), lr=0.1) for module in (first, second)]
    plain = [torch.optim.SGD(module.parameters(), lr=0.1) for module in (plain_first, plain_second)]
    for _ in range(3):
        loss = (first(torch.ones(3, 4)) + second(torch.ones(3, 4))).square().mean()
        precision.backward(loss)
        for optimizer in optimizers:
            precision.unscale_gradients(optimizer)
        assert [precision.optimizer_step(optimizer) for optimizer in optimizers] == [True, True]
        (plain_first(torch.ones(3, 4)) + plain_second(torch.ones(3, 4))).square().mean().backward()
        for optimizer in plain:
            optimizer.step()
        for optimizer in (*optimizers, *plain):
            optimizer.zero_grad()
    assert torch.equal(first.weight, plain_first.weight)
    assert torch.equal(second.weight, plain_second.weight)


def test_only_the_optimizer_that_overflowed_is_skipped(precision):
    generator, critic = linear(1), linear(2)
    optimizers = [torch.optim.SGD(module.parameters(), lr=0.1) for module in (generator, critic)]
    backward(precision, generator, BIG)
    backward(precision, critic)
    assert [precision.optimizer_step(optimizer) for optimizer in optimizers] == [False, True]


def test_a_gan_steps_one_after_the_other(precision):
    generator, critic = linear(1), linear(2)
    for _ in range(2):
        for module in (generator, critic):
            optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
            backward(precision, module)
            assert precision.optimizer_step(optimizer)
            optimizer.zero_grad()
    assert precision.state_dict()["scale"] == 8 * 2**4


def test_gradients_accumulate_over_a_window(precision):
    module, plain = linear(), linear()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    for _ in range(2):
        backward(precision, module)
        plain(torch.ones(3, 4)).square().mean().backward()
    assert precision.optimizer_step(optimizer)
    torch.optim.SGD(plain.parameters(), lr=0.1).step()
    assert torch.equal(module.weight, plain.weight)


def test_an_optimizer_without_gradients_steps_as_it_would_without_a_scale(precision):
    frozen = torch.optim.SGD(linear().parameters(), lr=0.1)
    precision.unscale_gradients(frozen)
    assert precision.optimizer_step(frozen)


def test_no_hook_stays_on_the_users_optimizer(precision):
    module = linear()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    backward(precision, module)
    precision.optimizer_step(optimizer)
    assert not optimizer._optimizer_step_post_hooks


# What goes wrong.


def test_a_closure_is_refused(precision):
    optimizer = torch.optim.LBFGS(linear().parameters())
    with pytest.raises(ConfigurationError, match=r"LBFGS evaluates the loss itself.*Use precision='bf16-mixed'"):
        precision.optimizer_step(optimizer, lambda: None)


def test_a_closure_is_fine_without_a_scaler():
    module, precision = linear(), mixed.bfloat16()
    optimizer = torch.optim.LBFGS(module.parameters())
    before = module.weight.clone()

    def closure():
        optimizer.zero_grad()
        loss = module(torch.ones(3, 4)).square().mean()
        loss.backward()
        return loss

    assert precision.optimizer_step(optimizer, closure)
    assert not torch.equal(module.weight, before)


def test_a_loss_that_was_not_scaled_is_noticed(precision):
    module = linear()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    module(torch.ones(3, 4)).sum().backward()
    for misuse in (precision.unscale_gradients, precision.optimizer_step):
        with pytest.raises(ConfigurationError, match=r"a loss that wasn't scaled.*call backward\(loss\) of Fabric"):
            misuse(optimizer)


def test_two_steps_after_one_backward_are_noticed(precision):
    module = linear()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
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
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    backward(precision, module)
    precision.optimizer_step(optimizer)
    state = copy.deepcopy(precision.state_dict())
    assert state["scale"] == 16.0

    resumed = MixedPrecision(torch.float16, scaler=small_scaler())
    resumed.load_state_dict(state)
    assert resumed.state_dict() == state
    backward(resumed, linear())
    assert resumed.scaler.get_scale() == 16.0


def test_the_state_of_another_precision_changes_nothing(precision):
    precision.load_state_dict(mixed.bfloat16().state_dict())
    assert precision.state_dict()["scale"] == 8.0
    mixed.bfloat16().load_state_dict(precision.state_dict())


@pytest.mark.parametrize("make", [mixed.float16, mixed.bfloat16, uniform.single, uniform.double])
def test_a_precision_can_be_sent_to_a_worker(make):
    copied = pickle.loads(pickle.dumps(make()))
    assert (copied.name, copied.formats) == (make().name, make().formats)
