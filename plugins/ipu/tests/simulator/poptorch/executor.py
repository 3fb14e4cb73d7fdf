"""[options] "Model wrapping functions": trainingModel, inferenceModel and what they return."""

import copy

import torch
from torch.utils import _pytree as pytree

from poptorch import optim
from poptorch.device import POOL, Error
from poptorch.enums import OutputMode
from poptorch.options import Options
from poptorch.tracing import Program


def trainingModel(model, options=None, optimizer=None):
    """[options] poptorch.trainingModel: forward, backward and update in one call."""
    return PoplarExecutor(model, options, optimizer, training=True)


def inferenceModel(model, options=None):
    """[options] poptorch.inferenceModel."""
    return PoplarExecutor(model, options, None, training=False)


class PoplarExecutor:
    """[features] "poptorch.PoplarExecutor". Weights are the IPU's own from the compilation on."""

    def __init__(self, model, options, optimizer, training):
        options = options or Options()
        options._freeze()
        self._options = options.clone()
        if not training and self._options.Training.gradient_accumulation != 1:
            # [batching] "poptorch.Options.Training.gradientAccumulation"
            raise Error(
                "You must set poptorch.Options().Training.gradientAccumulation to 1 for an "
                "inferenceModel."
            )
        if self._options.defaultOutputMode():  # [options] poptorch.OutputMode.Default
            self._options.outputMode(OutputMode.Final if training else OutputMode.All)
        # [features]: a shallow copy; `training` isn't followed
        self._user_model, self._model = model, copy.copy(model)
        self._training, self._optimizer = training, None
        self._program = self._device = self._built_in = None
        self._is_attached = False
        if training:
            self.setOptimizer(
                optimizer if optimizer is not None else torch.optim.SGD(model.parameters(), lr=0.01)
            )
        self._options._freeze()

    def __getattr__(self, name):
        raise AttributeError(
            f"PoplarExecutor.{name} isn't documented, or the simulator doesn't have it"
        )

    # one call -------------------------------------------------------------------------------------

    def __call__(self, *args):
        """[options] poptorch.PoplarExecutor.__call__: the first call compiles."""
        if self._program is None:
            self._compile(args)
        if not self._is_attached:
            self.attachToDevice()
        self._check_inputs(args)
        with torch.inference_mode(False):
            if self._training:
                self._write_optimizer_state()
                outputs = self._train(args)
                if isinstance(self._optimizer, optim.Optimizer):
                    self._optimizer.host_state_is_dirty = True
            else:
                outputs = self._infer(args)
        return self._program.rebuild([_cast(output) for output in outputs])

    def _train(self, args):
        options = self._options
        returned = []
        for iteration in range(options.device_iterations):
            total = {}
            for accumulated in range(options.Training.gradient_accumulation):
                for replica in range(options.replication_factor):
                    number = (
                        iteration * options.Training.gradient_accumulation + accumulated
                    ) * options.replication_factor
                    outputs, gradients = self._compute_gradients(
                        replica, self._narrowed(args, number + replica)
                    )
                    returned.append(outputs)
                    for key, gradient in gradients.items():
                        total[key] = total[key] + gradient if key in total else gradient
            # [options] accumulationAndReplicationReductionType: the mean, of accumulated gradients
            # and of replicas'.
            divisor = options.Training.gradient_accumulation * options.replication_factor
            self._built_in.step({key: gradient / divisor for key, gradient in total.items()})
        return self._combine(returned)

    def _compute_gradients(self, replica, tensors):
        weights = self._weights_of(replica)
        trained = {name: weight for name, weight in self._device.items() if weight.requires_grad}
        with torch.enable_grad():
            loss, *outputs = self._program(weights, tensors)
            gradients = torch.autograd.grad(loss.sum(), list(trained.values()), allow_unused=True)
        pairs = zip(trained.values(), gradients, strict=True)
        outputs = [output.detach().clone() for output in outputs]
        return outputs, {id(weight): gradient for weight, gradient in pairs if gradient is not None}

    def _infer(self, args):
        options = self._options
        returned = []
        with torch.no_grad():
            for number in range(options.device_iterations * options.replication_factor):
                weights = self._weights_of(number % options.replication_factor)
                outputs = self._program(weights, self._narrowed(args, number))
                returned.append([output.clone() for output in outputs])
        return self._combine(returned)

    def _weights_of(self, replica):
        """[features] note on buffers: replicas have buffers of their own, not in sync with each
        other.
        """
        return {**self._device, **self._buffers[replica]}

    def _combine(self, returned):
        """[batching] "poptorch.Options.outputMode": each replica returns; scalars become vectors
        where several come.
        """
        mode, replicas = self._options.output_mode, self._options.replication_factor
        if mode == OutputMode.Final:
            returned = returned[-replicas:]
        if len(returned) == 1:
            return returned[0]
        return [
            torch.cat([part if part.dim() else part.unsqueeze(0) for part in parts])
            for parts in zip(*returned, strict=True)
        ]

    def _narrowed(self, args, number):
        tensors = [leaf for leaf in pytree.tree_leaves(args) if isinstance(leaf, torch.Tensor)]
        size = [tensor.shape[0] // self._batch_dims if tensor.dim() else 1 for tensor in tensors]
        return [
            tensor.narrow(0, number * length, length) if tensor.dim() else tensor
            for tensor, length in zip(tensors, size, strict=True)
        ]

    @property
    def _batch_dims(self):
        options = self._options
        return (
            options.device_iterations
            * options.replication_factor
            * options.Training.gradient_accumulation
        )

    def _check_inputs(self, args):
        """[source] python/_args_parser.py, validateInputs: what doesn't fit the compiled program is
        an error.
        """
        leaves, spec = pytree.tree_flatten(args)
        if spec != self._inputs[1] or len(leaves) != len(self._inputs[0]):
            raise Error(
                "The inputs passed at runtime don't match the inputs used to compile the model."
            )
        for found, compiled in zip(leaves, self._inputs[0], strict=True):
            now = (found.shape, found.dtype) if isinstance(found, torch.Tensor) else found
            if now != compiled:
                raise Error(
                    f"Shape mismatch: expected {compiled} but got {now}: the inputs passed at "
                    "runtime don't match."
                )

    # compilation and weights ----------------------------------------------------------------------

    def _compile(self, args):
        for leaf in pytree.tree_leaves(args):
            if isinstance(leaf, torch.Tensor):
                size = leaf.shape[0] if leaf.dim() else 1
                # [source] python/_poplar_executor.py; the rule is [batching]'s.
                assert size % self._batch_dims == 0, (
                    f"Invalid batch dimension: In the input {tuple(leaf.shape)}, the batch "
                    f"dimension ({size}) must be a multiple of Options.deviceIterations * "
                    "Options.replicationFactor * Options.Training.gradientAccumulation = "
                    f"{self._batch_dims}"
                )
        leaves, spec = pytree.tree_flatten(args)
        self._inputs = (
            [
                (leaf.shape, leaf.dtype) if isinstance(leaf, torch.Tensor) else leaf
                for leaf in leaves
            ],
            spec,
        )
        rest = iter(self._narrowed(args, 0))
        filled = [next(rest) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        with torch.inference_mode(False):
            copies = self._copies_of_host()
            self._program = Program(
                self._model, copies, pytree.tree_unflatten(filled, spec), training=self._training
            )
        if (
            self._options.replication_factor > 1
            and self._options.broadcast_buffers
            and self._program.mutates_buffers
        ):
            self._program = None
            # [features] note on buffers, [options] poptorch.Options.broadcastBuffers
            raise Error(
                "PopTorch does not support broadcasting buffers between replicas: "
                "broadcastBuffers(False)."
            )
        self.attachToDevice()

    def _host(self):
        return {
            **dict(self._user_model.named_parameters()),
            **dict(self._user_model.named_buffers()),
        }

    def _copies_of_host(self):
        return {
            name: tensor.detach().clone().requires_grad_(tensor.requires_grad and self._training)
            for name, tensor in self._host().items()
        }

    def copyWeightsToDevice(self):
        """[options] poptorch.PoplarExecutor.copyWeightsToDevice."""
        self._need_executable()
        with torch.inference_mode(False), torch.no_grad():
            for name, tensor in self._host().items():
                for copied in (
                    self._device.get(name),
                    *(buffers.get(name) for buffers in self._buffers),
                ):
                    if copied is not None:
                        copied.copy_(tensor)

    def copyWeightsToHost(self):
        """[options] poptorch.PoplarExecutor.copyWeightsToHost."""
        self._need_executable()
        with torch.no_grad():
            for name, tensor in self._host().items():
                tensor.copy_(self._device[name] if name in self._device else self._buffers[0][name])

    # the optimizer --------------------------------------------------------------------------------

    def setOptimizer(self, optimizer):
        """[features] "Optimizers": changed values take effect by this call alone."""
        if self._optimizer is not None and self._optimizer is not optimizer:
            raise Error("Another optimizer for the same model isn't simulated.")
        self._optimizer = optimizer
        if isinstance(optimizer, optim.Optimizer):
            optimizer._executor = self
        self._told = [
            {name: copy.copy(value) for name, value in group.items() if name != "params"}
            for group in optimizer.param_groups
        ]
        if self._built_in is not None:
            self._built_in.update_attributes(optimizer)

    def _write_optimizer_state(self):
        optimizer = self._optimizer
        if isinstance(optimizer, optim.Optimizer) and optimizer.ipu_state_is_dirty:
            if optimizer.has_state():
                self._built_in.write_state(optimizer._ipu["ipu_state"])
            optimizer.ipu_state_is_dirty = False

    # attach, detach, destroy ----------------------------------------------------------------------

    def isCompiled(self):
        """[options] poptorch.PoplarExecutor.isCompiled."""
        return self._program is not None

    def isAttachedToDevice(self):
        """[options] poptorch.PoplarExecutor.isAttachedToDevice."""
        return self._program is not None and self._is_attached

    def attachToDevice(self):
        """[options] poptorch.PoplarExecutor.attachToDevice: must be detached, and compiled. Uploads
        weights.
        """
        self._need_executable()
        if self._is_attached:
            raise Error("Device is already attached")
        POOL.take(self._options.replication_factor)
        self._is_attached = True
        copies = self._copies_of_host()
        names = dict(self._user_model.named_buffers())
        self._device = {name: tensor for name, tensor in copies.items() if name not in names}
        self._buffers = [
            {name: copies[name].clone() for name in names}
            for _ in range(self._options.replication_factor)
        ]
        if self._training:
            host = {id(parameter): name for name, parameter in self._user_model.named_parameters()}
            self._built_in = optim.BuiltIn(self._optimizer, self._told, self._device, host)
            if isinstance(self._optimizer, optim.Optimizer) and self._optimizer.has_state():
                self._optimizer.ipu_state_is_dirty = True
                self._write_optimizer_state()

    def detachFromDevice(self):
        """[options] poptorch.PoplarExecutor.detachFromDevice; reads everything back ([source]
        _poplar_executor.py).
        """
        self._need_executable()
        if not self._is_attached:
            raise Error("Device is not attached")
        self._read_back()
        self._is_attached, self._device, self._built_in = False, None, None
        POOL.give_back(self._options.replication_factor)

    def destroy(self):
        """[options] poptorch.PoplarExecutor.destroy: releases the IPUs and the executable."""
        if self._program is None:
            return
        if self._is_attached:
            self.detachFromDevice()
        self._program = None

    def _read_back(self):
        """Left out by the simulator: weights. A caller that needs them on the host copies them
        there.
        """
        if self._training and isinstance(self._optimizer, optim.Optimizer):
            self._optimizer.state_dict()

    def _need_executable(self):
        if self._program is None:
            raise Error("Model has not been compiled or has been destroyed.")


def _cast(output):
    """[source] python/_poplar_executor.py: 64-bit outputs come back in 32 bits."""
    return (
        output.int()
        if output.dtype == torch.int64
        else output.float()
        if output.dtype == torch.float64
        else output
    )
