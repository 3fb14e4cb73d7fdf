"""Several models in one process: with an optimizer each, and without."""

import pytest
import torch
from torch import nn
from zero_ranks import STAGES, make_model, on_one_device, on_two_ranks, share_of

from core import WorkerError

WAYS = ("kept", "dropped", "frozen")


@STAGES
def test_a_loss_that_goes_through_two_models(stage):
    """Gradients that the second model gets from it stay until they are dropped, as everywhere."""

    def generate_and_judge(fabric, rank, way):
        """Losses of two models with an optimizer each; that of the first goes through the second."""
        torch.manual_seed(0)
        models = [
            nn.Sequential(nn.Linear(size, 6), nn.Tanh(), nn.Linear(6, 6 - size)) for size in (1, 5)
        ]
        prepared = [
            fabric.setup(model, torch.optim.SGD(model.parameters(), lr=0.2)) for model in models
        ]
        (generator, its), (judge, others) = prepared
        losses = []
        for step in range(4):
            real, noise = share_of(rank, step), share_of(rank, 9 + step)
            made = generator(noise[:, :1])
            judged = (judge(real) - 1).square().mean() + judge(made.detach()).square().mean()
            fabric.backward(judged, model=judge)
            others.step()
            others.zero_grad()
            judge.requires_grad_(way != "frozen")
            generated = (judge(made) - 1).square().mean() + (judge(made * 2) - 1).square().mean()
            fabric.backward(generated, model=generator)
            judge.requires_grad_(True)
            its.step()
            its.zero_grad()
            if way == "dropped":
                others.zero_grad()
            losses.append(
                fabric.all_reduce(torch.stack([judged, generated]).detach(), reduce_op="mean")
            )
        fabric.teardown()
        return torch.stack(losses)

    def generate_and_judge_in_all_ways(rank):
        return [generate_and_judge(rank.fabric(), rank, way) for way in WAYS]

    expected = on_one_device(generate_and_judge_in_all_ways)
    for found in on_two_ranks(generate_and_judge_in_all_ways, stage=stage):
        for losses, alone, way in zip(found, expected, WAYS, strict=True):
            torch.testing.assert_close(losses, alone, rtol=1e-5, atol=1e-6, msg=way)


@STAGES
@pytest.mark.parametrize("frozen", [True, False])
def test_a_model_without_an_optimizer(stage, frozen):
    def learn_from_a_teacher(rank, frozen):
        """Losses of a model whose loss goes through another, which has no optimizer; sizes of the
        latter's parameters.
        """
        fabric = rank.fabric()
        torch.manual_seed(0)
        teacher, pupil = make_model().requires_grad_(not frozen), nn.Linear(5, 5)
        teacher = fabric.setup_module(teacher)
        pupil, optimizer = fabric.setup(pupil, torch.optim.SGD(pupil.parameters(), lr=0.2))
        losses = []
        for step in range(3):
            batch = share_of(rank, step)
            with torch.inference_mode():
                wanted = teacher(batch)
            loss = (teacher(pupil(batch)) - wanted.clone() - 1).square().mean()
            fabric.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(fabric.all_reduce(loss.detach(), reduce_op="mean"))
        sizes = [parameter.numel() for parameter in teacher.module.parameters()]
        fabric.teardown()
        return torch.stack(losses), sizes

    expected, sizes = on_one_device(learn_from_a_teacher, frozen)
    for found, own in on_two_ranks(learn_from_a_teacher, frozen, stage=stage):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
        assert own == ([0] * len(sizes) if stage == 3 else sizes)


def test_gradients_that_another_models_loss_scales_otherwise():
    def scale_otherwise(rank):
        fabric = rank.fabric()
        prepared = [
            fabric.setup(model := nn.Linear(2, 2), torch.optim.SGD(model.parameters(), lr=0.1))
            for _ in range(2)
        ]
        (first, _), (second, _) = prepared
        # as after an overflow in one of the two
        fabric.strategy.engines[1].zero.loss_scaler.cur_scale = 8.0
        fabric.backward(second(first(torch.ones(1, 2))).sum(), model=first)

    message = (
        r"goes through a Linear .* gradients scaled by 1 instead of 8\. Call "
        r"requires_grad_\(False\) on the latter"
    )
    with pytest.raises(WorkerError, match=message):
        on_two_ranks(scale_otherwise)
