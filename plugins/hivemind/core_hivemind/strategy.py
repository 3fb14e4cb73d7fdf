"""Training with peers that come and go: gradients are summed until all peers together have seen
enough samples.

Ryabinin and Gusev, "Towards Crowdsourced Training of Large Neural Networks using Decentralized
Mixture-of-Experts", NeurIPS 2020; Diskin et al., "Distributed Deep Learning in Open
Collaborations", NeurIPS 2021; Ryabinin et al., "Moshpit SGD", NeurIPS 2021.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch

from core import Capability, ConfigurationError
from core.data import is_ambiguous, size_of
from core.strategies import SingleDeviceStrategy
from core_hivemind import library, notices
from core_hivemind.endpoint import Endpoint, ask, split
from core_hivemind.options import AveragingOptions, SwarmOptions
from core_hivemind.schedules import Schedules
from core_hivemind.streams import PeerSamples, addresses_in, draw
from core_hivemind.swarm import Swarm

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import Tensor, nn
    from torch.optim import Optimizer
    from torch.utils.hooks import RemovableHandle

    from core import GradientClipping, SetupHost, Stage, StepOutput, TrainingStep

_STEP = "collaborative_step"
_LONE_STEPS = 3
_LOOPBACK = ("/ip4/127.0.0.1/tcp/0",)


class HivemindStrategy(SingleDeviceStrategy):
    """Trains on one device, together with the peers of a run: programs like this one, here and
    elsewhere.

    There is no process group and no world: each peer is a world of one to the core, and knows the
    others by the run's name. Gradients are summed until `target_batch_size` samples have been seen
    by all peers together; then they are averaged, and everybody makes the same step.
    `trainer.global_step` counts those.
    """

    def __init__(
        self,
        *,
        target_batch_size: int | None = None,
        run_id: str = "core",
        batch_size: int | None = None,
        initial_peers: str | Sequence[str] | None = None,
        min_peers: int = 1,
        peers_timeout: timedelta = timedelta(minutes=5),
        stream: int | None = None,
        host_maddrs: Sequence[str] = _LOOPBACK,
        client_mode: bool = False,
        dht_options: Mapping[str, Any] | None = None,
        endpoint: str | None = None,
        peer_endpoint: str | None = None,
        averaging: AveragingOptions | None = None,
        scheduler_fn: Callable[[Optimizer], Any] | None = None,
        verbose: bool = False,
        **parts: Any,
    ) -> None:
        """Create the strategy of one peer of a run.

        Args:
            target_batch_size: samples that all peers together have seen when a step is made. It
                must be given.
            run_id: name of the run, the same for all of its peers.
            batch_size: samples of a batch of this peer. None counts those of each batch in a
                Trainer, and takes the loader's `batch_size` in a loop by hand.
            initial_peers: addresses of peers that run, or one string with commas between; None is
                the variable `CORE_INITIAL_PEERS`, and without it the first peer of a run.
            min_peers: peers, this one included, that have to be here before the first step. If none
                of the first three steps could be made with another peer then, that is an error, and
                so is a shorter run's end.
            peers_timeout: after which a peer that waits for others, or for their state, gives up
                with an error.
            stream: number of this peer's own order of the data. 0 is the order of a run on one
                device, and that of the first peer. None draws one for every other peer.
            host_maddrs: where to listen for other peers. The default reaches peers on this machine
                only; `["/ip4/0.0.0.0/tcp/0"]` all.
            client_mode: this peer takes no connections from others, as behind a firewall: it makes
                them itself.
            dht_options: further options of `hivemind.DHT`, such as `identity_path`,
                `announce_maddrs`.
            endpoint: `"host:port"` at which this peer serves its addresses by HTTP.
            peer_endpoint: `"host:port"` of another peer's `endpoint`, which is asked for the
                initial peers.
            averaging: when and how peers average; None is `AveragingOptions()`.
            scheduler_fn: makes a learning-rate scheduler of the optimizer, for a loop by hand. It
                is stepped with the run's steps, as those of a module's `configure_optimizers` are.
            verbose: let hivemind tell what it does.
            parts: `accelerator`, `precision_plugin`, `checkpoint_io`, as every strategy takes them.

        Raises:
            ConfigurationError: `peers_timeout` is no duration.
        """
        super().__init__(None, **parts)
        if getattr(peers_timeout, "total_seconds", float)() <= 0:
            raise ConfigurationError(
                f"peers_timeout={peers_timeout!r}: expected a positive datetime.timedelta."
            )
        self.batch_size = batch_size
        self._stream = stream
        self.scheduler_fn = scheduler_fn
        self.endpoint = endpoint
        self.peer_endpoint = peer_endpoint
        self.initial_peers = addresses_in(initial_peers)
        self.options = SwarmOptions(
            target_batch_size=target_batch_size or 0,
            run_id=run_id,
            min_peers=min_peers,
            peers_timeout_s=peers_timeout.total_seconds(),
            host_maddrs=tuple(host_maddrs),
            client_mode=client_mode or bool((dht_options or {}).get("client_mode")),
            dht_options=dict(dht_options or {}),
            averaging=averaging or AveragingOptions(),
            verbose=verbose,
        )
        self._forget_swarm()

    def _forget_swarm(self) -> None:
        self._swarm: Swarm | None = None
        self._endpoint: Endpoint | None = None
        self._hook: RemovableHandle | None = None
        self._data: PeerSamples | None = None
        self._schedules = Schedules(())
        self._clipping: GradientClipping | None = None
        self._samples = self._loader_batch_size = self._epoch = 0

    @property
    def capabilities(self) -> Capability:
        """A world that grows and shrinks, of one module and one optimizer. Averaged gradients are
        clipped in the step.

        Resuming alone is bit-exact; what peers do in between is not repeated.
        """
        return (
            Capability.ELASTIC
            | Capability.MANUAL_OPTIMIZATION
            | Capability.OWNS_CLIPPING
            | Capability.OWNS_GRADIENTS
            | Capability.OWNS_SCHEDULER
            | Capability.CLIP_BY_VALUE
            | Capability.INFERENCE_MODE
            | Capability.BIT_EXACT_RESUME
        )

    def check(self) -> None:
        """Refuse what can't work, and a machine without hivemind.

        Raises:
            ConfigurationError: what was asked, and what can be.
            PluginLoadError: hivemind isn't installed, or can't be imported.
        """
        super().check()
        notices.refuse(self.options, self.batch_size, self.precision_plugin.name)
        if self.peer_endpoint is not None and self.initial_peers:
            raise ConfigurationError(
                f"peer_endpoint={self.peer_endpoint!r} asks for the initial peers, and "
                "initial_peers="
                f"{list(self.initial_peers)} names them. Pass one of the two."
            )
        if self.options.client_mode and not self.initial_peers and self.peer_endpoint is None:
            raise ConfigurationError(
                "client_mode=True takes no connections, so that a run can't begin with this peer. "
                "Pass initial_peers, or peer_endpoint of one that listens."
            )
        for name in ("endpoint", "peer_endpoint"):
            if (place := getattr(self, name)) is not None:
                split(place, name)
        library.load()

    # the run --------------------------------------------------------------------------------------

    @property
    def addresses(self) -> list[str]:
        """Addresses of this peer, which others take as their `initial_peers`; none before an
        optimizer is set up.
        """
        return [] if self._swarm is None else self._swarm.addresses

    @property
    def stream(self) -> int:
        """Number of this peer's own order of the data."""
        if self._stream is None:
            is_first = not self.initial_peers and self.peer_endpoint is None
            self._stream = 0 if is_first else draw()
        return self._stream

    @property
    def num_peers(self) -> int:
        """Number of peers that train, as far as this one knows, itself included."""
        return 1 if self._swarm is None else self._swarm.num_peers

    @property
    def num_joint_steps(self) -> int:
        """Steps of this peer that were made with others; the rest it has made alone."""
        return 0 if self._swarm is None else self._swarm.joint_steps

    def setup(self, trainer: SetupHost) -> None:
        """This process. Set up as every strategy does; gradients are clipped by the Trainer's
        arguments.
        """
        self._clipping = trainer.clipping
        super().setup(trainer)

    def setup_optimizer(self, optimizer: Optimizer) -> Optimizer:
        """This process. Become a peer: known to the others from here on, and not training yet.

        Raises:
            ConfigurationError: the optimizer, or a scheduler of it, can't be shared.
            PeersError: none of the initial peers can be reached.
        """
        self._check_optimizer(optimizer)
        made = [self.scheduler_fn(optimizer)] if self.scheduler_fn is not None else []
        self._schedules = Schedules([*self.lr_schedulers, *made])
        peers = self.initial_peers
        if self.peer_endpoint is not None:
            peers = ask(self.peer_endpoint, timeout_s=self.options.peers_timeout_s)
        options = replace(self.options, initial_peers=peers)
        module = self.session.handle_of().module
        self._swarm = Swarm(options, optimizer, module, keeps_rates=bool(self._schedules))
        if self.endpoint is not None:
            self._endpoint = Endpoint(self.endpoint, self._swarm.addresses)
        self._hook = optimizer.register_step_pre_hook(self._prepare_step)
        if self.options.averaging.reuse_grad_buffers:
            vars(optimizer)["zero_grad"] = _keep_gradients
        if self._swarm.addresses:
            notices.announce(self.options.run_id, self._swarm.addresses)
        return optimizer

    @staticmethod
    def _check_optimizer(optimizer: Optimizer) -> None:
        if isinstance(optimizer, torch.optim.LBFGS):
            raise ConfigurationError(
                "LBFGS evaluates the loss several times a step, and peers make a step together "
                "once. Use another."
            )

    def setup_dataloader(self, loader: Any, stage: Stage) -> Any:
        """This process. For training, a loader in an order of this peer's own."""
        if stage != "fit":
            return loader
        if isinstance(size := getattr(loader, "batch_size", None), int):
            self._loader_batch_size = size
        if self._data is None:
            self._data = PeerSamples(self.stream)
        return self._data.take(loader)

    def step_callable(self, name: str, module: nn.Module | None = None) -> Callable[..., Any]:
        """This process, once a stage. Before the first training step, meet the others and take the
        newest state.
        """
        if name == "training_step":
            self._join()
        return super().step_callable(name, module)

    def _join(self) -> Swarm:
        if self._swarm is None:
            raise ConfigurationError(
                "HivemindStrategy has no optimizer of this module yet. Call fabric.setup(model, "
                "optimizer) first."
            )
        if not self._swarm.is_joined:
            if self._data is not None:
                self._data.restore()
            self._swarm.join(self._epoch)
            self._schedules.advance(self.optimizers[0], self._epoch, self._swarm.epoch)
        return self._swarm

    # steps ----------------------------------------------------------------------------------------

    def run_training_step(self, batch: Any, batch_idx: int, step: TrainingStep) -> StepOutput:
        """This process, each batch. One step, after the batch's samples were counted."""
        self._samples += self.batch_size or _count(batch)
        return super().run_training_step(batch, batch_idx, step)

    def clip_gradients(
        self, module: nn.Module, optimizer: Optimizer, clipping: GradientClipping
    ) -> Tensor | None:
        """This process. Note how to clip: it is done in the step, where gradients are those of all
        peers.

        Returns:
            None: the norm isn't known yet.
        """
        self._clipping = clipping
        return None

    def _prepare_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        for parameter in (one for group in optimizer.param_groups for one in group["params"]):
            if not parameter.requires_grad:
                # hivemind makes one of zeros, with which frozen weights would decay
                parameter.grad = None
        if self._clipping is not None:
            super().clip_gradients(self.model, optimizer, self._clipping)

    def optimizer_step(self, optimizer: Optimizer, closure: Callable[[], Any] | None = None) -> int:
        """This process. Hand over gradients, and make the run's step if it is due.

        Returns:
            Number of steps that the run has made since it was asked last: none until enough samples
            were seen, several where others made some without this peer.

        Raises:
            ConfigurationError: the number of samples of the gradients is unknown.
            PeersError: a peer trains something else under this name, or `min_peers` were asked for,
                and none averages.
        """
        swarm = self._join()
        if closure is not None:
            with torch.enable_grad():
                closure()
        before = swarm.epoch
        swarm.step(self._take_samples())
        self._schedules.advance(optimizer, before, swarm.epoch)
        if swarm.missed:
            notices.warn_of_missed_peers(swarm)
        if swarm.lone_steps >= _LONE_STEPS:
            notices.refuse_loneliness(swarm)
        num_steps, self._epoch = swarm.epoch - self._epoch, swarm.epoch
        return num_steps

    def _take_samples(self) -> int:
        samples, self._samples = self._samples or self.batch_size or self._loader_batch_size, 0
        if samples < 1:
            raise ConfigurationError(
                "Nothing tells how many samples these gradients are of, by which peers weigh them. "
                "Pass HivemindStrategy(batch_size=...)."
            )
        return samples

    def synchronize_model(self) -> None:
        """This process, between two steps. Take in weights that are averaged in the background."""
        if self._swarm is not None:
            self._swarm.await_averaging()

    # state ----------------------------------------------------------------------------------------

    def get_optimizer_state_dict(self, optimizer: Optimizer) -> dict[str, Any]:
        """This process. The optimizer's state, with the number of steps that the run has made."""
        state = super().get_optimizer_state_dict(optimizer)
        first, *others = state["param_groups"]
        return {**state, "param_groups": [{**first, _STEP: self._epoch}, *others]}

    def load_optimizer_state_dict(self, optimizer: Optimizer, state: Mapping[str, Any]) -> None:
        """This process. Put back what `get_optimizer_state_dict` gave; what another strategy gave
        is step 0.
        """
        groups = [dict(group) for group in state["param_groups"]]
        self._epoch = int(groups[0].pop(_STEP, 0))
        super().load_optimizer_state_dict(optimizer, {**state, "param_groups": groups})

    # end ------------------------------------------------------------------------------------------

    def release(self) -> None:
        """This process; idempotent. Leave the run: no process, port or thread stays.

        Raises:
            PeersError: `min_peers` were asked for, and no step was made with another peer.
        """
        swarm, hook, endpoint = self._swarm, self._hook, self._endpoint
        for optimizer in getattr(self, "optimizers", ()):
            vars(optimizer).pop("zero_grad", None)
        super().release()
        self._forget_swarm()
        if hook is not None:
            hook.remove()
        if endpoint is not None:
            endpoint.close()
        if swarm is not None:
            swarm.leave()
            if self.session.ends_together:
                notices.refuse_loneliness(swarm)
            if swarm.options.initial_peers:
                notices.warn_of_loneliness(swarm)


def _keep_gradients(set_to_none: bool = True) -> None:
    """Keep what is summed in `.grad`."""


def _count(batch: Any) -> int:
    size = size_of(batch)
    if size is None or is_ambiguous(batch):
        raise ConfigurationError(
            f"The number of samples of a {type(batch).__name__} can't be told, by which peers "
            "weigh gradients. Pass HivemindStrategy(batch_size=...)."
        )
    return size
