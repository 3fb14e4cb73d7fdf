"""The capabilities of a strategy: what it can do, or insists on doing itself."""

from __future__ import annotations

import enum


class Capability(enum.Flag):
    """A property of a strategy's instance (it may depend on options), read by Fabric, Trainer and
    the conformance kit.

    A declared capability that fails is a bug of the strategy. One that isn't declared is never used
    by the core.
    """

    NONE = 0
    COLLECTIVES = enum.auto()
    """`reduce`, `all_gather`, `broadcast` and `barrier` connect all ranks. Without it, the strategy
    is a world of one to the core, and gives its shard of the data itself."""
    JOINT_SETUP = enum.auto()
    """Module, optimizers and scheduler are set up together. Protocol: `SetsUpJointly`."""
    OWNS_STEP = enum.auto()
    """`run_training_step` is overridden as a whole; hooks around backward and the optimizer run
    where it calls them.
    """
    COMPILED_STEP = enum.auto()
    """Forward, backward and update are one call of a compiled program, in which the user's step is
    traced once. What would run between them, hooks and overrides, is refused before work, and so is
    training in a loop by hand. Each batch that the core hands over holds whole accumulation
    windows, see `setup_dataloader`; between two calls the weights of the user's module may be old
    ones, until `synchronize_model()`."""
    OWNS_ACCUMULATION = enum.auto()
    """The strategy divides the loss and counts the accumulation window; the core hands it every
    batch alike.
    """
    OWNS_CLIPPING = enum.auto()
    """Gradients are clipped inside the strategy's optimizer step, by what `SetupHost.clipping`
    says.
    """
    OWNS_SCHEDULER = enum.auto()
    """The strategy steps the learning-rate scheduler; the core doesn't."""
    SHARDED_STATE = enum.auto()
    """State is spread over ranks; a checkpoint of layout `sharded` never gathers it."""
    MANUAL_OPTIMIZATION = enum.auto()
    """`automatic_optimization = False` works: several backwards and optimizer steps within one
    training step.
    """
    SEVERAL_MODULES = enum.auto()
    """`setup_module` may be called for more than one module."""
    SEVERAL_OPTIMIZERS = enum.auto()
    """More than one optimizer may be set up."""
    CLIP_BY_VALUE = enum.auto()
    """`clip_gradients` knows the algorithm `"value"` besides `"norm"`."""
    NO_SYNC = enum.auto()
    """`no_backward_sync` really leaves out the exchange of gradients."""
    REPLICATED_PARAMETERS = enum.auto()
    """Parameters, and what optimizers keep for them, are the same on all ranks, bit for bit: ranks
    share the work of writing them."""
    WEIGHTED_LOSSES = enum.auto()
    """Losses may say what they weigh: the gradients that an optimizer gets are a mean over shards
    of the data, and `scale_gradients` multiplies them, so that a window's are those of the mean
    over all its items.
    """
    INFERENCE_MODE = enum.auto()
    """Weights that were used under `torch.inference_mode` can be trained afterwards. Without it,
    the Trainer evaluates under `torch.no_grad` as a whole: hooks, metrics and steps share their
    tensors."""
    MAKES_OPTIMIZERS = enum.auto()
    """The strategy makes optimizers without the module: an engine's own configuration names them.
    Protocol: `MakesOptimizers`."""
    COMPUTES_LOSS = enum.auto()
    """The user's step runs in pieces, such as once a microbatch. Protocol: `ComputesLoss`."""
    BIT_EXACT_RESUME = enum.auto()
    """Stopping and resuming under the same strategy and world size gives bit-equal losses."""
    ELASTIC = enum.auto()
    """There is no fixed number of processes: others join and leave while the run goes on, and make
    steps too. `optimizer_step` answers with the number of steps that the run has made since it was
    asked last.
    """
    OWNS_GRADIENTS = enum.auto()
    """Before the optimizer's step `parameter.grad` isn't what ranks have computed together: it is
    None, a part of that, or this rank's own, and not as a DTensor. A user's
    `on_before_optimizer_step` is warned of."""
