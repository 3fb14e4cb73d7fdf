"""Functions that stand in the place of core-parallel's, each wrong in one way."""

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel
from torch.nn import functional

from core_parallel.communication import averages, collectives
from core_parallel.context import losses_of_positions as positions
from core_parallel.context.attention import Caught
from core_parallel.following import exchanges
from core_parallel.mesh.placements import own_part
from core_parallel.pipeline.scheduled_loss import ScheduledLoss
from core_parallel.pipeline.scheduled_step import ScheduledStep

_send_rows, _norm_of = collectives.send_rows, averages.norm_of
_attend = Caught._attend
_prepared, _finished = ColwiseParallel._prepare_input_fn, RowwiseParallel._prepare_output_fn
_backward, _loss_of = ScheduledLoss.backward, ScheduledStep._loss_of


# losses of positions ----------------------------------------------------------------------------


def local_counts(loss, given, group):
    """The sum of all ranks, by the number of this rank."""
    summed, dtype = positions._summed(loss, given, group)
    return (collectives.add_up(summed, group) / positions._number(given)).to(dtype)


def sum_left_out(loss, given, group):
    """The loss of this rank's positions."""
    return loss(**given)


def mean_of_means(loss, given, group):
    """The mean of the ranks' means."""
    return collectives.add_up(loss(**given), group) / group.size()


def summed_over_data(loss, given, group):
    """The loss over the ranks that have other samples, and the same positions."""
    own, size = dist.get_rank(), group.size()
    groups = [dist.new_group(list(range(one, dist.get_world_size(), size))) for one in range(size)]
    return _of_all(loss, given, groups[own % size])


_of_all = positions.of_all


# attention --------------------------------------------------------------------------------------


def first_rows(mask, length, group):
    """The rows of the first rank's queries."""
    return mask if mask.shape[-2] in (1, length) else mask.narrow(-2, 0, length)


def mask_dropped(self, query, key, value, attn_mask=None, **others):
    """Causal attention, whatever the mask."""
    return _attend(self, query, key, value, None, **{**others, "is_causal": True})


def of_own_positions(self, query, key, value, mask, options):
    """Attention between the positions of this rank."""
    return functional.scaled_dot_product_attention(query, key, value, attn_mask=mask, **options)


def places_of_own(self, query, key, value, mask, options):
    """All keys, behind a causal mask that counts queries from 0 on each rank."""
    length = self._group.size() * self.length
    key, value = (collectives.gather(one, -2, self._group) for one in (key, value))
    mask = torch.ones(self.length, length, dtype=torch.bool).tril()
    return functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)


# gradients of exchanges -------------------------------------------------------------------------


def own_share_of_gathered(dim, gradient, group):
    """This rank's part of its own gradient, without what others have for it."""
    return gradient.chunk(group.size(), dim)[group.rank()]


def terms_left_averaged(self, modules):
    """The average over a context group in the place of the sum."""
    self._held.difference_update(modules)


class _Unsummed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, tensor, mesh):
        return DTensor.from_local(tensor.detach(), mesh, [Replicate()], run_check=False)

    @staticmethod
    def backward(ctx, gradient):
        return gradient.to_local(), None


def gradient_left_local(layouts, desired, module, inputs, mesh):
    """A layer cut by columns, whose input's gradient is this rank's own."""
    return _prepared(layouts, desired, module, (_Unsummed.apply(inputs[0], mesh),), mesh)


def parameters_left_local(parameter):
    """A layer that all ranks call for their parts, whose gradient is this rank's own."""
    return parameter.to_local()


def bias_of_each_rank(layouts, use_local, module, outputs, mesh):
    """A layer cut by rows, to which each rank adds the bias."""
    found = _finished(layouts, use_local, module, outputs, mesh)
    return found + (mesh.size() - 1) * module.bias.full_tensor()


def experts_multiplied(parameter):
    """Experts whose gradients are sums over ranks, where others are averages."""
    return parameter.to_local()


def factors_without_gradient(rows, sent, received, group):
    """Factors of a router that have no gradient."""
    return _send_rows(rows.detach() if rows.ndim == 1 else rows, sent, received, group)


# a vocabulary -----------------------------------------------------------------------------------


def smoothed_by_own_words(logits, group, number, given):
    """Smoothing by the mean over this rank's words."""
    largest = collectives.largest(logits.detach().amax(-1), group)
    shifted = logits - largest.unsqueeze(-1)
    place = given["target"] - group.rank() * logits.shape[-1]
    is_own = (place >= 0) & (place < logits.shape[-1])
    of_target = shifted.gather(-1, place.where(is_own, 0).unsqueeze(-1)).squeeze(-1)
    of_target = of_target.where(is_own, 0.0)
    exchanges.declare_terms(of_target, group)
    of_target = collectives.add_up(of_target, group)
    smoothing = given["label_smoothing"]
    of_target = of_target * (1 - smoothing) + shifted.mean(-1) * smoothing
    return (collectives.add_up(shifted.exp().sum(-1), group).log() - of_target).mean()


# norms ------------------------------------------------------------------------------------------


def averaged_over_ranks(counted, norm_type=2.0, *options):
    """The average of the ranks' norms, of experts too, which each rank has others of."""
    own = torch.stack([own_part(one).norm() ** 2 for one in counted]).sum().sqrt()
    dist.all_reduce(own)
    return own / dist.get_world_size()


def all_ranks_added(counted, norm_type, line):
    """The norms of all ranks added up, of what all have too."""
    total = torch.stack([own_part(one).norm() ** 2 for one in counted]).sum()
    dist.all_reduce(total)
    return total.sqrt()


def of_own_stage(counted, norm_type, line):
    """The norm of what this rank has, without the other stages."""
    return _norm_of(counted, norm_type, None)


def without_small(counted, norm_type, line):
    """The norm of matrices: numbers of a head, such as its sink, are outside."""
    return _norm_of([one for one in counted if one.ndim > 1], norm_type, line)


# a schedule -------------------------------------------------------------------------------------


def unweighted(self, run, index, answer):
    """The loss of a microbatch, unless it doesn't count, without its share of the batch."""
    loss, weight = _loss_of(self, run, index, answer), run.weights[-1]
    return loss * (run.reference / (run.scale * weight)) if weight else loss


def scaled_again(ctx, *incoming):
    """Backward of a scheduled loss, which scales earlier gradients as well."""
    for parameter in ctx.gradients:
        if parameter.grad is not None:
            parameter.grad = parameter.grad / 2
    return _backward(ctx, *incoming)


def earlier_forgotten(ctx, *incoming):
    """Backward of a scheduled loss, which forgets earlier gradients."""
    for parameter in ctx.gradients:
        parameter.grad = None
    return _backward(ctx, *incoming)


def stages_left_apart(self):
    """Gradients of parameters that several stages have, each stage's own."""
    yield
