"""Beyond the kit: models built in parts, offloading, gradients that are dropped, and refusals."""

import functools
import logging
import re
import sys
from datetime import timedelta
from unittest.mock import Mock

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset
from zero_ranks import (
    CUT,
    STAGES,
    end,
    loss_of,
    make_batch,
    make_model,
    on_one_device,
    on_two_ranks,
    share_of,
)

from core import (
    CheckpointError,
    ConfigurationError,
    Fabric,
    Module,
    ModuleError,
    Trainer,
    UnsupportedError,
    WorkerError,
)
from core.checkpoint import TorchCheckpointIO
from core_deepspeed import DeepSpeedStrategy
from core_testing import Backend
from core_testing.waiting import slowness

NEAR = {"rtol": 1e-5, "atol": 1e-6}


# formats ------------------------------------------------------------------------------------------


@STAGES
def test_buffers_are_kept_in_float32_and_a_line_says_which_parameters_are_not(stage):
    def keep(rank):
        """A buffer that no state has, and a layer that is named; the formats that they have after a
        step, and warnings.
        """
        handler, fabric, model = logging.Handler(), rank.fabric(), make_model()
        handler.emit = Mock()
        logging.getLogger("core_deepspeed").addHandler(handler)
        model.register_buffer("frequencies", torch.tensor([1.001]), persistent=False)
        model.keep_in_float32 = ("0",)
        model, optimizer = fabric.setup(model, torch.optim.AdamW(model.parameters(), lr=0.02))
        fabric.backward(loss_of(model, make_batch(0, rank.number)).float())
        optimizer.step()
        found = model.module.frequencies, {one.dtype for one in model.module.parameters()}
        fabric.teardown()
        return *found, "".join(call.args[0].getMessage() for call in handler.emit.call_args_list)

    found = on_two_ranks(keep, stage=stage, config=None, trainer={"precision": "bf16-true"})
    for frequencies, dtypes, _ in found:
        assert torch.equal(frequencies, torch.tensor([1.001]))
        assert dtypes == {torch.bfloat16}
    line = (
        r"keeps parameters in float32 \(0\.weight.*\), and DeepSpeed's engine computes with all "
        r"of them in bfloat16"
    )
    assert [bool(re.search(line, said)) for *_, said in found] == [True, False]


# gradients ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stage", "offload"),
    [(stage, offload) for stage in range(4) for offload in (False, True)[: stage + 1]],
)
def test_gradients_are_dropped_and_accumulated(stage, offload):
    def accumulate_and_drop(rank):
        """Drops what backward has accumulated, then accumulates two batches, without a word about the
        window.
        """
        fabric = rank.fabric()
        model = make_model()
        model, optimizer = fabric.setup(model, torch.optim.AdamW(model.parameters(), lr=0.02))
        for step in range(4):
            fabric.backward(loss_of(model, share_of(rank, 100 + step)) * 1000)
            optimizer.zero_grad()
            for batch in (2 * step, 2 * step + 1):
                fabric.backward(loss_of(model, share_of(rank, batch)) / 2)
            optimizer.step()
            optimizer.zero_grad()
            optimizer.step()  # without gradients: nothing to do
        weights = end(fabric, model.module)
        return weights

    expected = on_one_device(accumulate_and_drop)
    found = on_two_ranks(accumulate_and_drop, stage=stage, offload_optimizer=offload)[0]
    torch.testing.assert_close(found, expected, **NEAR)


def norm_and_clip(rank, **limit):
    fabric, model = rank.fabric(), make_model()
    model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))
    fabric.backward(loss_of(model, share_of(rank, 0)))
    norm = fabric.clip_gradients(model, optimizer, **limit)
    optimizer.step()
    weights = end(fabric, model.module)
    return norm, weights


@STAGES
def test_clipping_by_hand_gives_the_norm(stage):
    clip = functools.partial(norm_and_clip, max_norm=0.1)
    torch.testing.assert_close(on_two_ranks(clip, stage=stage)[0], on_one_device(clip), **NEAR)


def autocast(rank):
    """Two steps; what the forward computes in, what weights are in, and them; and what is left of
    it in the process.
    """
    fabric = rank.fabric()
    model = make_model()
    user_model, formats = model, []
    model, optimizer = fabric.setup(model, torch.optim.AdamW(model.parameters(), lr=0.02))
    first = next(part for part in user_model.modules() if isinstance(part, nn.Linear))
    first.register_forward_hook(lambda layer, inputs, output: formats.append(str(output.dtype)))
    for step in range(2):
        fabric.backward(loss_of(model, share_of(rank, step)))
        formats.append(str(next(user_model.parameters()).dtype))
        optimizer.step()
        optimizer.zero_grad()
    weights = end(fabric, model.module)
    marked = [
        name
        for name, parameter in user_model.named_parameters()
        if hasattr(parameter, "comm_dtype")
    ]
    of_library = sys.modules.get("deepspeed.runtime.torch_autocast")
    return (
        formats,
        weights,
        (marked, of_library is not None and of_library.is_autocast_initialized()),
    )


@STAGES
def test_the_block_of_autocast_computes_in_bfloat16_from_float32(stage):
    """As `bf16-mixed` does on one device, and nothing of it stays on the user's parameters or in
    the process.
    """
    options = {"precision": "bf16-mixed"}
    expected = on_one_device(autocast, **options)
    config = {"torch_autocast": {"enabled": True}, **(CUT if stage == 3 else {})}
    formats, weights, left = on_two_ranks(autocast, stage=stage, config=config, trainer=options)[0]
    assert formats == expected[0] == ["torch.bfloat16", "torch.float32"] * 2
    torch.testing.assert_close(weights, expected[1], rtol=0, atol=0.01)
    assert left == ([], False)


@pytest.mark.parametrize("stage", [0, 3])
def test_a_forward_stays_in_the_autocast_that_is_around_it(stage):
    def autocast_on_a_gpu(rank):
        torch.set_autocast_enabled("cuda", True)  # where DeepSpeed looks, whatever the device is
        return autocast(rank)

    ranks = Backend(
        functools.partial(DeepSpeedStrategy, stage=stage), options={"precision": "bf16-mixed"}
    )
    assert ranks.run(autocast_on_a_gpu)[0][0] == ["torch.bfloat16"] * 4


def test_clipping_by_value_is_refused():
    with pytest.raises(WorkerError, match="clips gradients by their 2-norm only"):
        on_two_ranks(functools.partial(norm_and_clip, clip_val=0.1))
    with pytest.raises(UnsupportedError, match="can't clip gradients by value"):
        Trainer(
            strategy="deepspeed",
            accelerator="cpu",
            gradient_clip_val=1.0,
            gradient_clip_algorithm="value",
        )


# parameters and buffers ---------------------------------------------------------------------------


class Uncommon(nn.Module):
    """A factor, weights that do not lie row after row, a buffer, and beside a scalar a parameter of
    no size.
    """

    def __init__(self, factor):
        super().__init__()
        self.factor = nn.Parameter(factor)
        self.weight = nn.Parameter(torch.linspace(-1, 1, 15).reshape(5, 3).t())
        if not factor.dim():
            self.nothing = nn.Parameter(torch.zeros(0))
        self.register_buffer("shift", torch.ones(5))

    def forward(self, inputs):
        return (inputs @ self.weight * self.factor + self.shift).square().sum(1, keepdim=True)


def step_uncommon(rank, factor):
    fabric, model = rank.fabric(), Uncommon(factor + rank.number)
    model.shift.add_(rank.number)  # as if each rank had begun with its own
    model, optimizer = fabric.setup(model, torch.optim.AdamW(model.parameters(), lr=0.02))
    for step in range(3):
        fabric.backward(model(make_batch(step, None)[:, :3]).mean())
        optimizer.step()
        optimizer.zero_grad()
    state = fabric.strategy.get_module_state_dict(model.module, layout="full")
    shift = model.module.shift.clone()
    fabric.teardown()
    return state, shift, model.module.factor.shape


@STAGES
def test_uncommon_parameters_train_as_on_one_device(stage):
    factor = torch.tensor([1.5] if stage == 3 else 1.5)
    expected, *_ = on_one_device(step_uncommon, factor)
    results = on_two_ranks(step_uncommon, factor, stage=stage)
    torch.testing.assert_close(results[0][0], expected, **NEAR)
    for _, shift, shape in results:
        assert shift.tolist() == [1.0] * 5
        assert shape == factor.shape


def test_a_scalar_at_stage_3():
    with pytest.raises(
        WorkerError, match=r"'factor' of Uncommon is a parameter of shape \(\), .* or use stage=2"
    ):
        on_two_ranks(step_uncommon, torch.tensor(1.5), stage=3)


class Apart(Module):
    """Does what others don't, or what all do, in its last batch on rank 1."""

    def __init__(self, returns_none, is_alone):
        super().__init__()
        self.layers, self.returns_none, self.is_alone = make_model(), returns_none, is_alone

    def training_step(self, batch, batch_idx):
        hidden, is_apart = self.layers[0](batch[0]).tanh(), batch_idx == 2
        if not is_apart or (self.is_alone and self.trainer.global_rank == 0):
            return functional.mse_loss(self.layers[2](hidden), batch[0].sum(1, keepdim=True).sin())
        return None if self.returns_none else hidden.square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def fit_apart(rank, *how):
    data = TensorDataset(torch.cat([make_batch(step, None) for step in range(3)]))
    trainer, module = rank.trainer(max_epochs=1), Apart(*how)
    trainer.fit(module, DataLoader(data, batch_size=8 // rank.backend.data_parallel_size))
    return module.state_dict()


# a rank waits a third of it for others that don't come
SOON = timedelta(seconds=6 * slowness())


# one optimizer of DeepSpeed makes stages 1 and 2
@pytest.mark.parametrize("stage", [2, 3])
def test_parameters_that_one_rank_alone_leaves_out_are_named(stage):
    message = (
        r"^Rank 1 failed with .*ModuleError: The loss does not depend on '\w+.2.weight', "
        r"'\w+.2.bias' on rank 1, and on rank 0 it does, or leaves out others: DeepSpeedStrategy "
        r"exchanges gradients of the same parameters on"
    )
    with pytest.raises(WorkerError, match=message):
        on_two_ranks(fit_apart, False, True, stage=stage, timeout=SOON)


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_parameters_that_all_ranks_leave_out_stay(stage):
    assert_left_out_as_on_one_device(stage=stage)


@pytest.mark.parametrize("stage", [1, 2])
def test_parameters_that_all_ranks_leave_out_stay_when_offloaded(stage):
    config = {"zero_force_ds_cpu_optimizer": False}
    assert_left_out_as_on_one_device(stage=stage, offload_optimizer=True, config=config)


def assert_left_out_as_on_one_device(**options):
    single = on_one_device(fit_apart, False, False)
    found = on_two_ranks(fit_apart, False, False, timeout=SOON, **options)[0]
    torch.testing.assert_close(found, single, **NEAR)


def test_parameters_that_one_rank_leaves_out_count_as_zeros_at_stage_0():
    first, second = on_two_ranks(fit_apart, False, True, stage=0)
    assert all(torch.equal(value, second[name]) for name, value in first.items())


@pytest.mark.parametrize("stage", [0, 2, 3])
def test_a_step_without_a_loss_on_one_rank_alone_is_named(stage):
    message = (
        r"^Rank 1 failed with .*ModuleError: Apart.training_step returned None for batch 2 "
        r"of epoch 0 on rank 1, and"
    )
    with pytest.raises(WorkerError, match=message):
        on_two_ranks(fit_apart, True, True, stage=stage, timeout=SOON)


# stage 3 ------------------------------------------------------------------------------------------


class BuiltLate(Module):
    """Its layers are made in `configure_model`, where stage 3 cuts each as soon as it is there."""

    def configure_model(self):
        if not hasattr(self, "layers"):
            self.layers = make_model()
            self.sizes = [parameter.numel() for parameter in self.layers.parameters()]

    def training_step(self, batch, batch_idx):
        return loss_of(self.layers, batch[0])

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.02)


def make_loader(rank):
    data = TensorDataset(torch.cat([make_batch(step, None) for step in range(4)]))
    return DataLoader(data, batch_size=8 // rank.backend.data_parallel_size)


def test_what_configure_model_builds_is_cut_at_once():
    def fit_built_late(rank):
        module = BuiltLate()
        rank.trainer(max_epochs=2).fit(module, make_loader(rank))
        return module.sizes, module.state_dict()

    whole, weights = on_one_device(fit_built_late)
    assert sum(whole) > 0
    for sizes, found in on_two_ranks(fit_built_late, stage=3):
        assert sizes == [0] * len(whole)  # as DeepSpeed leaves them between uses
        torch.testing.assert_close(found, weights, **NEAR)


@STAGES
def test_a_checkpoint_is_evaluated(tmp_path, stage):
    class Judged(BuiltLate):
        def validation_step(self, batch, batch_idx):
            self.log("loss", loss_of(self.layers, batch[0]), sync_dist=True)

        test_step = validation_step

        def predict_step(self, batch, batch_idx):
            return self.layers(batch[0])

    def evaluate_a_checkpoint(rank, path):
        """Losses by `validate` and `test`, and predictions, of modules that have never been trained
        here.
        """
        loader, trainer = make_loader(rank), rank.trainer(max_epochs=1)
        trainer.fit(Judged(), loader, loader)
        trainer.save_checkpoint(path, weights_only=True)
        (validated,) = rank.trainer().validate(Judged(), loader, ckpt_path=path)
        (tested,) = rank.trainer().test(Judged(), loader, ckpt_path=path)
        predicted = rank.trainer().predict(Judged(), loader, ckpt_path=path)
        return torch.tensor([validated["loss"], tested["loss"]]), torch.cat(
            [part.float() for part in predicted]
        )

    expected, predictions = on_one_device(evaluate_a_checkpoint, tmp_path / "one")
    results = on_two_ranks(evaluate_a_checkpoint, tmp_path / "two", stage=stage)
    for found, _ in results:
        torch.testing.assert_close(found, expected, **NEAR)
    torch.testing.assert_close(results[0][1], predictions, **NEAR)


def test_an_evaluation_in_16_bits_rounds_no_weight():
    """Without an optimizer an engine has no masters, and would leave the weights as it has computed
    with them.
    """

    def evaluate_twice(rank):
        """A module that is evaluated with its parameters cut, twice, and the weights that it has
        then.
        """
        layers = make_model()
        before = {name: value.clone() for name, value in layers.state_dict().items()}
        outputs = []
        for _ in range(2):
            fabric = rank.fabric()
            model = fabric.setup(layers)
            with torch.no_grad():
                outputs.append(model(make_batch(0, rank.number)).float())
            fabric.teardown()
        return before, layers.state_dict(), outputs

    results = on_two_ranks(evaluate_twice, stage=3, trainer={"precision": "bf16-mixed"})
    for before, after, (first, second) in results:
        torch.testing.assert_close(after, before, rtol=0, atol=0)
        torch.testing.assert_close(second, first, rtol=0, atol=0)


def test_a_fabric_that_is_collected_on_one_rank_gathers_nothing():
    def drop_a_fabric(rank):
        """Lets Fabric go on one rank, while the other still trains with its own."""
        torch.manual_seed(0)
        fabric, layer = rank.fabric(), nn.Linear(4, 4)
        model, optimizer = fabric.setup(layer, torch.optim.SGD(layer.parameters(), lr=0.1))
        weights = fabric.strategy.get_module_state_dict(layer, layout="full")
        strategy = fabric.strategy
        strategy.barrier()
        if rank.number:
            strategy.session.release_alone()  # what a Fabric that is collected calls
        found = strategy.all_gather(torch.tensor(float(rank.number))).tolist()
        strategy.barrier()
        del model, optimizer, weights
        return found

    assert on_two_ranks(drop_a_fabric, stage=3) == [[0.0, 1.0], [0.0, 1.0]]


def test_weights_that_are_loaded_after_an_evaluation_are_used():
    def load_after_an_evaluation(rank):
        """Trains, evaluates, which leaves parameters gathered, and again with other weights."""
        fabric = rank.fabric()
        model = make_model()
        model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))
        batch, outputs = make_batch(0, rank.number), []
        for _ in range(2):
            fabric.backward(loss_of(model, batch))
            optimizer.step()
        for factor in (1.0, 0.0):
            with torch.no_grad():
                outputs.append(model(batch))
            state = fabric.strategy.get_module_state_dict(model.module, layout="full")
            state = fabric.broadcast({name: value * factor for name, value in state.items()})
            fabric.strategy.load_module_state_dict(model.module, state)
        with torch.no_grad():
            outputs.append(model(batch))
        with pytest.raises(CheckpointError, match="lacks"):
            fabric.strategy.load_module_state_dict(model.module, {})
        fabric.teardown()
        return outputs

    for first, second, third in on_two_ranks(load_after_an_evaluation, stage=3):
        assert torch.equal(first, second)
        assert second.any()
        assert not third.any()


def test_the_summary_counts_what_is_cut(caplog, capfd):
    def fit_with_summary(rank):
        loader = DataLoader(TensorDataset(make_batch(0, None)), batch_size=4)
        rank.trainer(max_epochs=1, enable_model_summary=True).fit(BuiltLate(), loader)

    on_two_ranks(fit_with_summary, stage=3)
    assert re.search(r"50\s+trainable parameters", capfd.readouterr().out)


# offloading ---------------------------------------------------------------------------------------


def test_an_adam_keeps_its_weight_decay_when_it_is_offloaded(monkeypatch):
    # Its kernels are for the memory of a GPU: they are compiled when it is made, and aren't called.
    def step_offloaded(rank, make_optimizer):
        torch.manual_seed(0)
        fabric, model = rank.fabric(), make_model()
        model, optimizer = fabric.setup(model, make_optimizer(model.parameters()))
        for step in range(5):
            fabric.backward(loss_of(model, make_batch(step, None)))
            optimizer.step()
            optimizer.zero_grad()
        kind = type(fabric.strategy.optimizers[0]).__name__
        weights = end(fabric, model.module)
        return kind, weights

    def a_fused_adam(parameters):
        from deepspeed.ops.adam import FusedAdam

        return FusedAdam(parameters, lr=0.02, weight_decay=0.3, adam_w_mode=False)

    monkeypatch.setattr("deepspeed.ops.adam.fused_adam.FusedAdamBuilder.load", lambda self: Mock())
    decoupled = functools.partial(
        torch.optim.Adam, lr=0.02, weight_decay=0.3, decoupled_weight_decay=True
    )
    coupled = functools.partial(torch.optim.Adam, lr=0.02, weight_decay=0.3)
    for offloaded, alone in ((decoupled, decoupled), (coupled, coupled), (a_fused_adam, coupled)):
        _, expected = on_one_device(step_offloaded, alone)
        kind, found = on_two_ranks(step_offloaded, offloaded, offload_optimizer=True)[0]
        assert kind == "DeepSpeedCPUAdam"
        torch.testing.assert_close(found, expected, **NEAR)


# refusals -----------------------------------------------------------------------------------------


def set_up(rank, kind, dtype=torch.float32):
    fabric, model = rank.fabric(), make_model().to(dtype)
    fabric.setup(model, getattr(torch.optim, kind)(model.parameters()))


def set_up_deepspeeds_own(rank, what):
    fabric, model = rank.fabric(), make_model()
    if what == "experts":
        from deepspeed.moe.layer import MoE

        model = torch.nn.Sequential(MoE(4, torch.nn.Linear(4, 4), num_experts=2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if what == "Muon":
        from deepspeed.runtime.zero.muon.muon_optimizer import MuonWithAuxAdam

        optimizer = MuonWithAuxAdam(
            [{"params": [one], "use_muon": one.ndim == 2} for one in model.parameters()]
        )
    fabric.setup(model, optimizer)


def set_up_embedding(rank):
    fabric, model = rank.fabric(), torch.nn.Embedding(4, 3, sparse=True)
    fabric.setup(torch.nn.Sequential(model), torch.optim.SGD(model.parameters(), lr=0.1))


@pytest.mark.parametrize(
    ("function", "arguments", "options", "message"),
    [
        (set_up, ("Adafactor",), {}, "Adafactor looks at whole tensors"),
        (set_up, ("Adagrad",), {}, "DeepSpeed makes another Adagrad"),
        (set_up, ("AdamW", torch.float64), {}, r"are of torch\.float64"),
        (
            set_up,
            ("LBFGS",),
            {"stage": 0},
            "LBFGS evaluates the loss several times in a step, .* strategy='ddp'",
        ),
        (
            set_up,
            ("AdamW",),
            {"config": {"gradient_accumulation_steps": 4}},
            "your own loop decides when the optimizer",
        ),
        (
            set_up_deepspeeds_own,
            ("Muon",),
            {},
            "MuonWithAuxAdam looks at whole tensors.* return torch.optim.Muon, under "
            "strategy='fsdp'",
        ),
        (
            set_up_deepspeeds_own,
            ("experts",),
            {},
            "'0' of Sequential is deepspeed.moe.layer.MoE, which .* isn't supported. "
            "strategy='parallel'",
        ),
        (set_up_embedding, (), {}, "'0' of Sequential gives sparse gradients.* sparse=False"),
    ],
)
def test_what_no_engine_trains_is_refused(function, arguments, options, message):
    with pytest.raises(WorkerError, match=message):
        on_two_ranks(function, *arguments, **options)


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_what_an_optimizer_does_not_take_any_more(stage):
    def unfreeze_and_add(rank):
        fabric, model = rank.fabric(), make_model()
        model[0].requires_grad_(False)
        made = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        wrapped, optimizer = fabric.setup(model, made)
        with pytest.raises(
            ConfigurationError, match=r"steps no others\. Give it all groups before"
        ):
            optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(1))]})
        fabric.backward(loss_of(wrapped, make_batch(0, rank.number)))
        optimizer.step()
        model[0].requires_grad_(True)
        with pytest.raises(
            ConfigurationError, match=r"parameter '0\.\w+' gets gradients, and was frozen when"
        ):
            fabric.backward(loss_of(wrapped, make_batch(0, rank.number)))
        model[2].requires_grad_(False)
        kept = fabric.strategy.get_optimizer_state_dict(fabric.strategy.optimizers[0])
        fabric.teardown()
        loss_of(model, make_batch(0, None)).backward()
        made.add_param_group({"params": [torch.nn.Parameter(torch.ones(1))]})
        return "2.weight" in kept["state"] or rank.number > 0

    assert all(on_two_ranks(unfreeze_and_add, stage=stage))


def test_at_stage_0_an_optimizer_is_the_users_own():
    """It may be one that looks at whole tensors, be given another group, and parameters may be
    unfrozen.
    """

    def unfreeze_and_go_on(rank):
        fabric, model = rank.fabric(), make_model()
        model[0].bias.requires_grad_(False)
        model[2].requires_grad_(False)
        wrapped, optimizer = fabric.setup(
            model, torch.optim.RMSprop(model[:2].parameters(), lr=0.1)
        )
        for step, group in enumerate((model[2].parameters(), None, None)):
            fabric.backward(loss_of(wrapped, share_of(rank, step)))
            optimizer.step()
            optimizer.zero_grad()
            if group is not None:
                optimizer.add_param_group({"params": group, "lr": 0.05})
            model.requires_grad_(True)
        kept = fabric.strategy.get_optimizer_state_dict(fabric.strategy.optimizers[0])
        weights = end(fabric, model)
        return {
            **weights,
            **{f"{name}.square_avg": entry["square_avg"] for name, entry in kept["state"].items()},
        }

    expected = on_one_device(unfreeze_and_go_on)
    found = on_two_ranks(unfreeze_and_go_on, stage=0)[0]
    torch.testing.assert_close(found, expected, **NEAR)


def test_running_statistics_in_another_format_than_weights():
    def set_up_statistics(rank):
        fabric, model = rank.fabric(), torch.nn.Sequential(make_model(), torch.nn.BatchNorm1d(1))
        model, _ = fabric.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))
        loss = model(make_batch(0, None)).square().mean()
        fabric.teardown()
        return loss.isfinite().item()

    mixed = {"precision": "bf16-mixed"}
    with pytest.raises(
        WorkerError, match=r"'1' is a BatchNorm1d: .*'buffer_dtype': 'bf16'.* precision='bf16-true'"
    ):
        on_two_ranks(set_up_statistics, trainer=mixed)
    buffers = {"data_types": {"buffer_dtype": "bf16"}}
    assert on_two_ranks(set_up_statistics, config=buffers, trainer=mixed) == [True, True]
    assert on_two_ranks(set_up_statistics, trainer={"precision": "bf16-true"}) == [True, True]


def test_modules_that_differ_are_refused_and_a_loss_of_several_says_whose_it_is():
    def backward_of_nobody(rank):
        fabric = rank.fabric()
        unlike = nn.Linear(*((4, 6) if rank.number else (6, 4)), bias=False)  # as many elements
        with pytest.raises(
            ModuleError,
            match=r"'weight', \(4, 6\) float32 on rank 0\n  'weight', \(6, 4\) float32 on rank 1",
        ):
            fabric.setup(unlike, torch.optim.SGD(unlike.parameters(), lr=0.1))
        for _ in range(2):
            model = make_model()
            model, _ = fabric.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))
        fabric.backward(loss_of(model, make_batch(0, rank.number)))

    with pytest.raises(WorkerError, match=r"fabric\.backward\(loss, model=model\)"):
        on_two_ranks(backward_of_nobody)


@pytest.mark.parametrize(
    ("config", "arguments", "message"),
    [
        (
            {"gradient_accumulation_steps": 4},
            {"accumulate_grad_batches": 2},
            "= 4, and accumulate_grad_batches=2",
        ),
        (
            {"gradient_clipping": 1.0},
            {"gradient_clip_val": 0.5},
            "= 1.0, and gradient_clip_val=0.5",
        ),
        ({"train_micro_batch_size_per_gpu": 3}, {}, "= 3, and the loader's batch_size=4"),
    ],
)
def test_a_config_that_contradicts_the_trainer(config, arguments, message):
    def fit_contradicted(rank):
        rank.trainer(max_epochs=1).fit(BuiltLate(), make_loader(rank))

    with pytest.raises(WorkerError, match=f"ConfigurationError.*{message}"):
        on_two_ranks(fit_contradicted, config=config, trainer=arguments)


def test_another_optimizer_than_zeros():
    strategy = DeepSpeedStrategy(1, config={"data_types": {"grad_accum_dtype": "fp32"}})
    with pytest.raises(ConfigurationError, match="an optimizer of another make at stage 1"):
        Fabric(strategy=strategy, accelerator="cpu", devices=1, precision="bf16-mixed")


def test_unknown_options_are_refused():
    with pytest.raises(ConfigurationError, match="Did you mean 'offload_optimizer'"):
        DeepSpeedStrategy(offload_optimiser=True)
    with pytest.raises(ConfigurationError, match="expected 'canonical' or 'native'"):
        DeepSpeedStrategy(deepspeed_checkpoint="other")
    with pytest.raises(ConfigurationError, match="Leave the option out"):
        DeepSpeedStrategy(load_full_weights=False)
    native = DeepSpeedStrategy(1, deepspeed_checkpoint="native", checkpoint_io=TorchCheckpointIO())
    with pytest.raises(
        ConfigurationError, match="engine write the checkpoints, and TorchCheckpointIO was given to"
    ):
        Fabric(strategy=native, accelerator="cpu", devices=1)
    assert Fabric(strategy="deepspeed_stage_1", accelerator="cpu", devices=1).strategy.stage == 1


@pytest.mark.parametrize(("stage", "number"), [(0, 8), (1, 2), (3, 2)])
def test_moments_are_filled_where_they_are(stage, number, tmp_path):
    def moments_of(engine):
        # at stage 0 nothing is around the user's optimizer
        own = getattr(engine.zero, "optimizer", engine.zero)
        return [entry[key] for entry in own.state.values() for key in ("exp_avg", "exp_avg_sq")]

    def load_in_place(rank, path):
        """True if the optimizer's tensors are the same ones after a load, and hold what was saved."""
        fabric, module = rank.fabric(), make_model()
        model, optimizer = fabric.setup(module, torch.optim.Adam(module.parameters()))
        fabric.backward(loss_of(model, make_batch(0, rank.number)), model=model)
        optimizer.step()
        optimizer.zero_grad()
        fabric.save(path, {"model": model, "optimizer": optimizer})
        (engine,) = fabric.strategy.engines
        moments = moments_of(engine)
        expected = [moment.clone() for moment in moments]
        torch._foreach_zero_(moments)
        fabric.load(path, {"model": model, "optimizer": optimizer})
        after = moments_of(engine)
        fabric.teardown()
        assert all(map(torch.equal, after, expected))
        return all(one is other for one, other in zip(moments, after, strict=True)), len(moments)

    assert on_two_ranks(load_in_place, tmp_path / "last.ckpt", stage=stage) == [(True, number)] * 2
