"""Training equals that of one device."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from core import Capability, CoreError, ReplicasDifferError
from core_testing.cases import ADAMW, CASES, SGD, Case
from core_testing.marks import needs, of_several, of_trainer, unless
from core_testing.networks import (
    GLOBAL_BATCH_SIZE,
    Hooked,
    LooksUp,
    Perceptron,
    Stopped,
    StoppedAmidst,
    Thawed,
    ThawedAmidst,
    Validated,
    make_data,
    make_loader,
)
from core_testing.strategy.base import StrategySuite
from core_testing.training import (
    TrainingRecord,
    assert_equal_tensors,
    reference,
    set_up,
    train,
    whole,
)

if TYPE_CHECKING:
    from torch import Tensor

    from core_testing.ranks import Rank

_THAWED = {"between two epochs": Thawed, "between two steps": ThawedAmidst}
_STOPPED = {"between two epochs": Stopped, "between two steps": StoppedAmidst}
_FORMATS = {
    "32-true": torch.float32,
    "64-true": torch.float64,
    "16-true": torch.float16,
    "bf16-true": torch.bfloat16,
    "16-mixed": torch.float16,
    "bf16-mixed": torch.bfloat16,
}


class TrainingTests(StrategySuite):
    """Losses and weights, step by step, against `single_device` on whole batches."""

    @pytest.mark.parametrize("case", CASES, ids=str)
    def test_training_equals_one_device(self, case: Case) -> None:
        """Losses of all steps and weights at the end are those of one device: not merely alike
        between ranks.
        """
        case, num_copies = self.adapted(case), self.shares
        runs = self.run(partial(train, num_copies=num_copies), case)
        expected = reference(case, self.reference_accelerator, num_copies)
        if Capability.COMPILED_STEP in self.declared():
            expected = expected.by_windows(case.accumulate)
        if case.equal_shares:  # its estimate depends on the size of a share
            for run in (*runs, expected):
                run.weights = {
                    name: value for name, value in run.weights.items() if "running_var" not in name
                }
        is_rounded = case.in_bfloat16 and case.dtype != torch.float64
        self.assert_like_one_device(
            runs[0], expected, self.precision_tolerance if is_rounded else None
        )

    @pytest.mark.parametrize(
        "precision", ["32-true", "64-true", "16-true", "bf16-true", "16-mixed", "bf16-mixed"]
    )
    def test_trains_in_precision(self, precision: str) -> None:
        """It computes in the format that was asked for, and comes as close to one device as that
        format allows.
        """
        if precision not in self.precisions:
            pytest.skip(f"{self.alias} is not tested in {precision}")
        case = Case(precision, precision=precision, optimizer=partial(SGD, lr=0.05))
        case = self.adapted(case).with_dtype(torch.float32)
        run, expected = self.run(train, case)[0], reference(case, self.reference_accelerator, 1)
        assert run.formats == {_FORMATS[precision]}
        self.assert_like_one_device(run, expected, self.precision_tolerance)

    @pytest.mark.parametrize("moment", list(_THAWED))
    def test_unfrozen_weights_are_trained_or_refused(self, moment: str) -> None:
        """Weights that a hook unfreezes are trained as on one device from then on, or refused by
        name.
        """
        case = self.adapted(Case(f"unfrozen {moment}", network=_THAWED[moment]))
        for rank, found in enumerate(self.run(_train_or_refuse, case)):
            if isinstance(found, str):
                assert "'first." in found, f"rank {rank} refuses, and does not say what: {found}"
            elif rank == 0:
                self.assert_like_one_device(
                    found, reference(case, self.reference_accelerator, self.shares)
                )

    @pytest.mark.parametrize("moment", list(_STOPPED))
    def test_weights_frozen_within_a_run_stay_or_are_refused(self, moment: str) -> None:
        """Weights that a hook freezes stay as they are from then on, as on one device, or are
        refused by name.
        """
        case = self.adapted(Case(f"frozen {moment}", network=_STOPPED[moment]))
        for rank, found in enumerate(self.run(_train_or_refuse, case)):
            if isinstance(found, str):
                assert "'first." in found, f"rank {rank} refuses, and does not say what: {found}"
            elif rank == 0:
                self.assert_like_one_device(
                    found, reference(case, self.reference_accelerator, self.shares)
                )

    def test_sparse_gradients_are_trained_or_refused(self) -> None:
        """A table with sparse gradients and other layers are trained as on one device, or an error
        names the reason.
        """
        case = self.adapted(Case("sparse", network=LooksUp, optimizer=partial(SGD, momentum=0.0)))
        for rank, found in enumerate(self.run(_train_or_refuse, case, Exception)):
            if isinstance(found, str):
                cure = "Call core.strategies.refuse_sparse_layers in setup_module."
                assert "sparse" in found, (
                    f"rank {rank} fails, and does not name the sparse gradients: {found}\n{cure}"
                )
            elif rank == 0:
                self.assert_like_one_device(
                    found, reference(case, self.reference_accelerator, self.shares)
                )

    def test_hooks_of_parameters_are_kept_or_refused(self) -> None:
        """A hook on a weight masks its gradient as on one device, or the weight is refused by
        name.
        """
        case = self.adapted(Case("hooked", network=Hooked))
        for rank, found in enumerate(self.run(_train_or_refuse, case)):
            if isinstance(found, str):
                assert "'first." in found, f"rank {rank} refuses, and does not say what: {found}"
            elif rank == 0:
                self.assert_like_one_device(
                    found, reference(case, self.reference_accelerator, self.shares)
                )

    def test_optimizer_state_equals_one_device(self) -> None:
        """Moments are those of one device, under the parameters' names."""
        case = self.adapted(Case("adamw", optimizer=ADAMW))
        found, expected = (
            self.run(train, case)[0].optimizer,
            reference(case, self.reference_accelerator, self.shares).optimizer,
        )
        assert sorted(found) == sorted(expected)
        for name, entry in expected.items():
            assert_equal_tensors(found[name], entry, self.tolerance)

    @unless(Capability.COMPILED_STEP)
    def test_ranks_compute_the_same_model(self) -> None:
        """After training, every rank's forward gives the same outputs for the same inputs."""
        outputs = self.run(_outputs_after_training, self.adapted(Case("ranks")))
        for rank, output in enumerate(outputs):
            torch.testing.assert_close(
                output, outputs[0], msg=f"rank {rank} and rank 0 have different models"
            )

    @unless(Capability.COMPILED_STEP)
    @of_several
    def test_ranks_that_part_are_found(self) -> None:
        """A rank with another learning rate ends the run in its first steps, unless `replicas_of`
        promises nothing.
        """
        assert all(self.run(_parting_is_found, self.adapted(Case("parting"))))

    def test_parameters_are_on_the_device(self) -> None:
        """After set-up, parameters and what `forward` returns are on the rank's device."""
        assert all(self.run(_devices_agree, self.adapted(Case("device"))))

    @of_trainer
    def test_the_user_keeps_the_module(self) -> None:
        """The user's own module holds the trained weights, under its own names, with its own
        methods.
        """
        assert all(self.run(_module_is_itself, self.adapted(Case("module"))))

    def test_gradient_clipping_returns_the_norm(self) -> None:
        """`clip_gradients` returns the norm of the whole gradient, before it was clipped."""
        if Capability.OWNS_CLIPPING in self.declared():
            pytest.skip(f"{self.alias} clips inside its own step")
        case = self.adapted(Case("norm"))
        norms, expected = (
            self.run(_norm_of_first_step, case),
            self.one_device.run(_norm_of_first_step, case)[0],
        )
        assert norms == pytest.approx([expected] * len(norms), rel=max(self.tolerance, 1e-6))

    @needs(Capability.NO_SYNC)
    @of_several
    def test_no_backward_sync_keeps_gradients_local(self) -> None:
        """Inside the context, a rank has the gradients of its own batch; after the next backward,
        the ranks' mean.
        """
        if Capability.SHARDED_STATE in self.declared():
            pytest.skip(
                f"{self.alias} shards gradients, and doesn't show those that it keeps for a while"
            )
        assert all(
            self.run(
                _gradients_without_sync, self.adapted(Case("no_sync")), self.exchange_tolerance
            )
        )

    @needs(Capability.SEVERAL_MODULES)
    def test_trains_several_modules(self) -> None:
        """Two modules with an optimizer each, set up one after the other, train as on one
        device.
        """
        case = self.adapted(Case("several"))
        found, expected = self.run(_train_two, case)[0], self.one_device.run(_train_two, case)[0]
        self.assert_weights_like_one_device(found, expected, self.tolerance)

    @needs(Capability.JOINT_SETUP)
    @unless(Capability.COMPILED_STEP)
    def test_sets_up_everything_at_once(self) -> None:
        """`fabric.setup(model, optimizer)` works, and optimizers alone are refused with the right
        call.
        """
        assert all(self.run(_sets_up_jointly, self.adapted(Case("joint"))))

    @of_trainer
    def test_validates(self) -> None:
        """`validate` gives the mean of all samples, as on one device."""
        case = self.adapted(Case("validation"))
        found, expected = self.run(_validate, case)[0], self.one_device.run(_validate, case)[0]
        assert found == pytest.approx(expected, rel=max(self.tolerance, 1e-6))


def _train_or_refuse(
    rank: Rank, case: Case, refusals: type[Exception] = CoreError
) -> TrainingRecord | str:
    try:
        return train(rank, case)
    except refusals as error:
        return str(error)


def _outputs_after_training(rank: Rank, case: Case) -> Tensor:
    fabric = rank.fabric()
    model = _first_steps(fabric, case)
    model.eval()
    inputs = make_data(case)[:GLOBAL_BATCH_SIZE][0].to(fabric.device)
    with torch.no_grad():
        outputs: Tensor = model(inputs)
    fabric.teardown()
    return outputs


def _parting_is_found(rank: Rank, case: Case) -> bool:
    fabric = rank.fabric()
    promises = fabric.strategy.replicas_of() is not None
    try:
        _first_steps(fabric, case, own_rate=True)
    except ReplicasDifferError as error:
        return promises and "'lr' of optimizer 0" in str(error)
    finally:
        fabric.teardown()
    return not promises


def _first_steps(fabric: Any, case: Case, *, own_rate: bool = False) -> Any:
    module = case.network(case)
    model, optimizer = fabric.setup(module, case.optimizer(module))
    if own_rate:
        for group in optimizer.param_groups:
            group["lr"] *= 1 + fabric.global_rank
    size, number = fabric.strategy.data_parallel_size, fabric.strategy.data_parallel_rank
    for step in range(3):
        inputs, targets = _share_of(case, step, size, number)
        loss = nn.functional.mse_loss(model(inputs.to(fabric.device)), targets.to(fabric.device))
        fabric.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
    return model


def _share_of(case: Case, step: int, size: int, number: int) -> tuple[Tensor, Tensor]:
    data, share = make_data(case), GLOBAL_BATCH_SIZE // size
    begin = step * GLOBAL_BATCH_SIZE + number * share
    inputs, targets = data[begin : begin + share]
    return inputs, targets


def _devices_agree(rank: Rank, case: Case) -> bool:
    fabric = rank.fabric()
    module = case.network(case)
    model = set_up(fabric, module, case.optimizer(module))
    device = fabric.strategy.root_device
    assert {parameter.device for parameter in module.parameters()} == {device}
    inputs, _ = _share_of(case, 0, 1, 0)
    output = model(inputs.to(device))
    assert output.device == device
    assert fabric.session.handle_of(module).module is module
    fabric.teardown()
    return True


def _module_is_itself(rank: Rank, case: Case) -> bool:
    module = case.network(case)
    forward, names = type(module).forward, [name for name, _ in module.named_parameters()]
    before = module.state_dict()["last.weight"].clone()
    trainer = rank.trainer(max_epochs=1)
    trainer.fit(module, make_loader(case, rank.backend.data_parallel_size))
    assert type(module).forward is forward
    assert "forward" not in vars(module), "a patched forward stays on the user's module"
    assert [name for name, _ in module.named_parameters()] == names
    found = module.state_dict()["last.weight"]
    # A rank may have a stage of the module, and nothing but shapes of the others.
    if not found.is_meta:
        assert not torch.equal(before, whole(found, trainer.strategy)), (
            "the user's module was not trained"
        )
    return True


def _norm_of_first_step(rank: Rank, case: Case) -> float:
    fabric = rank.fabric()
    module = case.network(case)
    model, optimizer = fabric.setup(module, case.optimizer(module))
    inputs, targets = _share_of(
        case, 0, fabric.strategy.data_parallel_size, fabric.strategy.data_parallel_rank
    )
    loss = nn.functional.mse_loss(model(inputs.to(fabric.device)), targets.to(fabric.device))
    fabric.backward(loss)
    norm = fabric.clip_gradients(model, optimizer, max_norm=0.01)
    assert norm is not None
    fabric.teardown()
    return float(norm)


def _gradients_without_sync(rank: Rank, case: Case, tolerance: float) -> bool:
    fabric = rank.fabric()
    module, alone = Perceptron(case), Perceptron(case).to(fabric.device)
    model, _ = fabric.setup(module, case.optimizer(module))
    share = _share_of(
        case, 0, fabric.strategy.data_parallel_size, fabric.strategy.data_parallel_rank
    )
    inputs, targets = (part.to(fabric.device) for part in share)
    with fabric.no_backward_sync(model):
        fabric.backward(nn.functional.mse_loss(model(inputs), targets))
    nn.functional.mse_loss(alone(inputs), targets).backward()
    found, own = module.last.weight, alone.last.weight.grad
    assert found.grad is not None
    assert own is not None
    torch.testing.assert_close(found.grad.cpu(), own.cpu(), msg="gradients are not local")
    fabric.backward(nn.functional.mse_loss(model(inputs), targets))
    # Accumulated twice, and averaged over ranks.
    expected = 2 * fabric.all_reduce(own).cpu()
    name = "everybody's mean gradient"
    assert_equal_tensors({name: found.grad.cpu()}, {name: expected}, tolerance)
    fabric.teardown()
    return True


def _train_two(rank: Rank, case: Case) -> dict[str, Tensor]:
    fabric = rank.fabric()
    modules = [case.network(case), Perceptron(case)]
    prepared = [fabric.setup(module, case.optimizer(module)) for module in modules]
    for step in range(4):
        inputs, targets = _share_of(
            case, step, fabric.strategy.data_parallel_size, fabric.strategy.data_parallel_rank
        )
        for model, optimizer in prepared:
            loss = nn.functional.mse_loss(
                model(inputs.to(fabric.device)), targets.to(fabric.device)
            )
            fabric.backward(loss, model=model)
            optimizer.step()
            optimizer.zero_grad()
            targets = targets * 2
    states = [fabric.strategy.get_module_state_dict(module) for module in modules]
    weights = {
        f"{index}.{name}": whole(value, fabric.strategy)
        for index, state in enumerate(states)
        for name, value in state.items()
    }
    fabric.teardown()
    return weights


def _sets_up_jointly(rank: Rank, case: Case) -> bool:
    fabric = rank.fabric()
    module = case.network(case)
    with pytest.raises(CoreError, match="setup"):
        fabric.setup_optimizers(case.optimizer(module))
    model, optimizer = fabric.setup(module, case.optimizer(module))
    assert model is not None
    assert optimizer is not None
    assert len(fabric.strategy.optimizers) == 1
    fabric.teardown()
    return True


def _validate(rank: Rank, case: Case) -> float:
    trainer = rank.trainer()
    metrics = trainer.validate(Validated(case), make_loader(case, rank.backend.data_parallel_size))
    return float(metrics[0]["error"])
