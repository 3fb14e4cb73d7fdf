"""Public bugs of distributed training that nothing reported, rebuilt: each from its own thread, of
which it takes the facts.
"""

from language import MixtureNet
from museum import faults, programs
from museum.exhibit import Exhibit
from museum.programs import step_with, with_attention
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

from core_fsdp import gradients
from core_parallel import conformance
from core_parallel.communication import averages, collectives
from core_parallel.context import losses_of_positions, masks
from core_parallel.context.attention import Caught
from core_parallel.context.gradient_terms import Terms
from core_parallel.experts import expert_modules
from core_parallel.pipeline.scheduled_loss import ScheduledLoss
from core_parallel.pipeline.scheduled_step import ScheduledStep
from core_parallel.tensor import layers, vocabulary
from core_testing import StrategyConformance


class Schedule(StrategyConformance):
    """A pipeline by a schedule."""

    alias, options, data_parallel_size = "pipeline", {"schedule": "1F1B"}, 1


class Gather(StrategyConformance):
    """A context group that gathers keys and values."""

    alias, data_parallel_size, length = "parallel", 1, 4
    options = {"context": 2, "context_attention": "gather"}


class Tensors(StrategyConformance):
    """Layers in a row that are cut by columns and by rows."""

    alias, data_parallel_size = "parallel", 1
    options = {
        "tensor": 2,
        "tensor_plan": {"first": "rowwise_split_input", "last": "colwise_gather_output"},
    }


_CONTEXT = {"context": 2}
_GATHER = {"context": 2, "context_attention": "gather"}
_TENSOR = {"tensor": 2}
_SCHEDULE = {"pipeline": 2, "schedule": "1F1B", "microbatches": 4}
_CLIPPED = {"gradient_clip_val": 0.05}


def _positions(name, thread, wrong, fault, **others):
    """A loss of the model's, in which each rank has its positions."""
    own = losses_of_positions, "of_all", fault
    return Exhibit(
        name,
        thread,
        wrong,
        **{"mesh": _CONTEXT, "make": programs.LossInside, "fault": own, **others},
    )


_OF_SEQUENCES = [
    _positions(
        "local-counts",
        "NVIDIA/Megatron-LM#7452",
        "a loss over all ranks is divided by one rank's number of tokens",
        faults.local_counts,
    ),
    _positions(
        "sum-left-out",
        "open-lm-engine/lm-engine#441",
        "the loss of a rank's positions is returned without a sum over ranks",
        faults.sum_left_out,
    ),
    _positions(
        "mean-of-means",
        "PrimeIntellect-ai/prime-rl#1957",
        "ranks' means are averaged, whatever their numbers of tokens",
        faults.mean_of_means,
    ),
    _positions(
        "data-group",
        "modelscope/ms-swift#9380",
        "a loss is summed over the ranks with other samples, and not over those with other positions",
        faults.summed_over_data,
        mesh={"context": 2, "data": 2},
    ),
    Exhibit(
        "first-rows",
        "axolotl-ai-cloud/axolotl#3608",
        "each rank's queries see the documents of the first rank's",
        _GATHER,
        programs.PackedStep,
        (masks, "of_own_rows", faults.first_rows),
    ),
    Exhibit(
        "mask-dropped",
        "huggingface/accelerate#4177",
        "attention is causal, whatever the mask",
        _CONTEXT,
        programs.PackedStep,
        (Caught, "_attend", faults.mask_dropped),
    ),
    Exhibit(
        "own-positions-only",
        "ByteDance-Seed/VeOmni#1158",
        "attention sees a rank's positions: nothing is exchanged",
        _CONTEXT,
        fault=(Caught, "_by_heads", faults.of_own_positions),
    ),
    Exhibit(
        "places-from-zero",
        "cornstarch-org/Cornstarch#38",
        "a causal mask takes each rank's queries for the first ones",
        _GATHER,
        fault=(Caught, "_by_keys", faults.places_of_own),
        kit=(Gather, "sgd_momentum"),
    ),
    Exhibit(
        "keys-gradient-left-local",
        "NVIDIA/Megatron-LM#1464",
        "the gradient of gathered keys and values lacks what other ranks have for it",
        _GATHER,
        fault=(collectives, "_sum_of_parts", faults.own_share_of_gathered),
        kit=(Gather, "sgd_momentum"),
    ),
    Exhibit(
        "average-for-sum",
        "NVIDIA/Megatron-LM#673",
        "gradients of the ranks' positions are averaged, and are terms of a sum",
        _CONTEXT,
        fault=(Terms, "end", faults.terms_left_averaged),
        kit=(conformance.TestContext, "sgd_momentum"),
    ),
    Exhibit(
        "labels-shifted-in-parts",
        "huggingface/transformers#36607",
        "labels are shifted within a rank's part, whose last one is lost",
        _CONTEXT,
        programs.ShiftsInside,
    ),
    Exhibit(
        "rolled-in-parts",
        "ISEEKYAN/mbridge#138",
        "the words ahead are rolled within a rank's part",
        _CONTEXT,
        step_with(programs.RolledWords),
    ),
    Exhibit(
        "places-of-own-length",
        "vllm-project/speculators#871",
        "places are counted from 0 on each rank",
        _CONTEXT,
        step_with(programs.OwnPlaces),
    ),
    Exhibit(
        "convolution-without-border",
        "open-lm-engine/lm-engine#451",
        "a causal convolution doesn't see the end of the part before",
        _CONTEXT,
        step_with(programs.Convolved),
    ),
    Exhibit(
        "own-denominator",
        "modelscope/ms-swift#9152",
        "a loss by hand is divided by the number of a rank's labels",
        _CONTEXT,
        programs.CountsInside,
    ),
    Exhibit(
        "chances-of-parts",
        "deepspeedai/DeepSpeed#6841",
        "the chance of a sample is that of a rank's part of it",
        _CONTEXT,
        programs.Preferences,
    ),
    Exhibit(
        "own-expert-counts",
        "pytorch/torchtitan#1114",
        "a router's bias follows the tokens of one rank",
        _CONTEXT,
        step_with(programs.CountsExperts),
    ),
    Exhibit(
        "own-penalty",
        "NVIDIA/Megatron-LM#5047",
        "a penalty of a router's logits is a mean over a rank's tokens",
        _CONTEXT,
        step_with(programs.Penalized),
    ),
]
_OF_COLUMNS = [
    Exhibit(
        "norm-over-own-heads",
        "EleutherAI/gpt-neox#1424",
        "queries and keys are normed over the heads of one rank",
        _TENSOR,
        step_with(with_attention(programs.NormsAllHeads)),
    ),
    Exhibit(
        "first-sinks",
        "verl-project/verl#4551",
        "each rank gives its heads the sinks of the first ones",
        _TENSOR,
        step_with(with_attention(programs.Sinks)),
    ),
    Exhibit(
        "own-masks-of-what-is-whole",
        "tenstorrent/tt-metal#55947",
        "ranks drop other places of what all of them have",
        _TENSOR,
        step_with(with_attention(programs.DropsWhole)),
    ),
    Exhibit(
        "slopes-of-own-heads",
        "flashinfer-ai/flashinfer#1606",
        "slopes of a bias by distance follow from the number of one rank's heads",
        _TENSOR,
        step_with(with_attention(programs.OwnSlopes)),
    ),
    Exhibit(
        "norm-gradient-left-local",
        "NVIDIA/Megatron-LM#1446",
        "the gradient of a norm that all ranks call for their part isn't summed",
        _TENSOR,
        step_with(programs.NormsEachHeadNet),
        (layers, "_to_local", faults.parameters_left_local),
    ),
    Exhibit(
        "norm-left-out-of-plan",
        "EleutherAI/gpt-neox#1257",
        "a norm of each head isn't in the plan, and its gradient isn't summed",
        _TENSOR,
        step_with(programs.NormsEachHeadUnplanned),
    ),
    Exhibit(
        "input-gradient-left-local",
        "NovaSky-AI/SkyRL#1886",
        "the gradient of the input of a layer cut by columns isn't summed",
        _TENSOR,
        fault=(ColwiseParallel, "_prepare_input_fn", staticmethod(faults.gradient_left_local)),
        kit=(Tensors, "sgd_momentum"),
    ),
    Exhibit(
        "bias-of-each-rank",
        "Wenyueh/MinivLLM#80",
        "each rank adds the bias of a layer cut by rows, before the sum",
        _TENSOR,
        fault=(RowwiseParallel, "_prepare_output_fn", staticmethod(faults.bias_of_each_rank)),
        kit=(Tensors, "sgd_momentum"),
    ),
    Exhibit(
        "smoothed-by-own-words",
        "NVIDIA/Megatron-LM#737",
        "labels are smoothed over the words of one rank",
        {"tensor": 2, "local_loss": "tensor"},
        programs.Smoothed,
        (vocabulary, "_cross_entropy", faults.smoothed_by_own_words),
    ),
    Exhibit(
        "whole-gradients-counted-twice",
        "NVIDIA-NeMo/RL#3788",
        "the norm counts gradients that all ranks have once for each",
        {"pipeline": 2, "tensor": 2},
        fault=(averages, "norm_of", faults.all_ranks_added),
        options=_CLIPPED,
        kit=(conformance.TestStagesInParts, "clipped_by_norm"),
    ),
]
_OF_MICROBATCHES = [
    Exhibit(
        "means-of-microbatches",
        "pytorch/torchtitan#2206",
        "microbatches with other numbers of tokens count alike",
        _SCHEDULE,
        programs.MeansOfTokens,
    ),
    Exhibit(
        "weights-of-samples",
        "agentscope-ai/Trinity-RFT#336",
        "means over tokens are weighted by numbers of samples",
        _SCHEDULE,
        programs.WeighsBySamples,
    ),
    Exhibit(
        "sums-averaged",
        "agokrani/distillKitPlus#5",
        "sums over microbatches are taken for means",
        _SCHEDULE,
        programs.SumsLosses,
    ),
    Exhibit(
        "divided-twice",
        "unslothai/unsloth-zoo#1023",
        "a mean over tokens is divided by their number again",
        _SCHEDULE,
        programs.DividesTwice,
    ),
    Exhibit(
        "balance-of-microbatches",
        "NVIDIA/Megatron-LM#3768",
        "a loss of balance is that of each microbatch",
        _SCHEDULE,
        programs.BalancesExperts,
    ),
    Exhibit(
        "fewer-negatives",
        "huggingface/sentence-transformers#1822",
        "samples are contrasted with those of their microbatch",
        _SCHEDULE,
        programs.Contrasts,
    ),
    Exhibit(
        "counts-of-microbatches",
        "NVIDIA/Megatron-LM#7213",
        "running counts go on with each microbatch",
        _SCHEDULE,
        step_with(programs.RunningCounts),
    ),
    Exhibit(
        "statistics-of-microbatches",
        "kakaobrain/torchgpipe#14",
        "a batch norm takes its statistics from microbatches",
        _SCHEDULE,
        step_with(programs.BatchNormed),
    ),
    Exhibit(
        "shares-left-out",
        "pytorch/torchtitan#2972",
        "the loss of a microbatch isn't multiplied by its share before backward",
        _SCHEDULE,
        fault=(ScheduledStep, "_loss_of", faults.unweighted),
        kit=(Schedule, "sgd_momentum"),
    ),
    Exhibit(
        "earlier-scaled-again",
        "pytorch/torchtitan#1733",
        "each batch scales the gradients of those before it in its window",
        _SCHEDULE,
        fault=(ScheduledLoss, "backward", staticmethod(faults.scaled_again)),
        options={"accumulate_grad_batches": 2},
        kit=(Schedule, "accumulated"),
    ),
    Exhibit(
        "earlier-forgotten",
        "NVIDIA-NeMo/Automodel#3530",
        "each batch forgets the gradients of those before it in its window",
        _SCHEDULE,
        fault=(ScheduledLoss, "backward", staticmethod(faults.earlier_forgotten)),
        options={"accumulate_grad_batches": 2},
        kit=(Schedule, "accumulated"),
    ),
    Exhibit(
        "norm-of-own-stage",
        "pytorch/torchtitan#596",
        "each stage clips by the norm of its own gradients",
        {"pipeline": 2},
        fault=(averages, "norm_of", faults.of_own_stage),
        options=_CLIPPED,
        kit=(conformance.TestPipeline, "clipped_by_norm"),
    ),
    Exhibit(
        "sinks-outside-the-clip",
        "NVIDIA/Megatron-LM#5916",
        "the norm leaves out parameters by a mark that is wrong for them, such as sinks",
        {"pipeline": 2},
        fault=(averages, "norm_of", faults.without_small),
        options=_CLIPPED,
        kit=(conformance.TestPipeline, "clipped_by_norm"),
    ),
]
_EXPERTS = {"expert": 2, "data": 2, "expert_plan": ["net.blocks.*.experts"]}
_OF_EXPERTS = [
    Exhibit(
        "expert-gradients-multiplied",
        "NVIDIA/Megatron-LM#5956",
        "experts' gradients are sums over ranks, where others are averages",
        _EXPERTS,
        step_with(MixtureNet),
        (expert_modules, "local_part", faults.experts_multiplied),
        kit=(conformance.TestExpert, "sgd_momentum"),
    ),
    Exhibit(
        "router-without-gradient",
        "huggingface/transformers#48687",
        "what experts of other ranks answer gives a router no gradient",
        _EXPERTS,
        step_with(MixtureNet),
        (collectives, "send_rows", faults.factors_without_gradient),
        kit=(conformance.TestExpert, "sgd_momentum"),
    ),
    Exhibit(
        "norms-averaged",
        "deepspeedai/DeepSpeed#8469",
        "norms of ranks with other experts are averaged",
        _EXPERTS,
        step_with(MixtureNet),
        (gradients, "get_total_norm", faults.averaged_over_ranks),
        _CLIPPED,
        kit=(conformance.TestExpert, "clipped_by_norm"),
    ),
]

EXHIBITS = [*_OF_SEQUENCES, *_OF_COLUMNS, *_OF_MICROBATCHES, *_OF_EXPERTS]
