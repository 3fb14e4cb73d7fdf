"""Traps of third parties' libraries: the cure of each in its plugin, and the test that sees it gone."""

from dataclasses import dataclass
from functools import partial


@dataclass(frozen=True)
class Trap:
    """One trap, and how to fall into it again.

    Attributes:
        plugin: folder under plugins/.
        library: whose trap it is.
        what: happens without the cure.
        file: of the plugin's package that has the cure.
        cure: the text there, which stands in it once.
        without: what to put in its place.
        test: that fails then, below the plugin's tests.
        is_slow: it is one of the slow tests.
    """

    plugin: str
    library: str
    what: str
    file: str
    cure: str
    without: str
    test: str
    is_slow: bool = False


_fairscale = partial(Trap, "fairscale", "FairScale")
_horovod = partial(Trap, "horovod", "Horovod")
_colossalai = partial(Trap, "colossalai", "Colossal-AI")
_bagua = partial(Trap, "bagua", "Bagua's algorithms")
_hivemind = partial(Trap, "hivemind", "hivemind")
_ray = partial(Trap, "ray", "Ray")

FAIRSCALE = [
    _fairscale(
        "`zero_grad()` sets gradients to None, and takes them out of the buckets that are sent",
        "sharded_model.py",
        "reduce_buffer_size = 0 ",
        "reduce_buffer_size = 2**23 ",
        "test_strategy.py::test_weights_are_those_of_ddp_however_gradients_are_zeroed[with_none]",
    ),
    _fairscale(
        "the same, and the conformance kit sees it too",
        "sharded_model.py",
        "reduce_buffer_size = 0 ",
        "reduce_buffer_size = 2**23 ",
        "test_conformance.py::TestDDPSharded::test_training_equals_one_device[fabric]",
        is_slow=True,
    ),
    _fairscale(
        "in `eval()` the hooks are gone, and gradients stay on their ranks",
        "sharded_model.py",
        "self.training = True",
        "self.training = mode",
        "test_strategy.py::test_weights_are_those_of_ddp[in eval()]",
    ),
    _fairscale(
        "a gradient that is averaged already is averaged again, with what a second backward adds",
        "sharded_model.py",
        "one: average for one, average in self._averaged.items() if one.grad is average",
        "one: average for one, average in self._averaged.items() if False",
        "test_strategy.py::test_weights_are_those_of_ddp_but_for_the_order_of_sums[every_second]",
    ),
    _fairscale(
        "where ranks use different parameters, gradients of different ones are added up",
        "sharded_model.py",
        "if differing and not self._finds_unused:",
        "if False:",
        "test_strategy.py::test_gradients_that_one_rank_lacks_are_named",
    ),
    _fairscale(
        "ranks begin with weights of their own",
        "strategy.py",
        "        if self.world_size > 1:\n            for tensor in (*module.parameters()",
        "        if False:\n            for tensor in (*module.parameters()",
        "test_conformance.py::TestDDPSharded::test_training_equals_one_device[weights_that_begin_apart]",
        is_slow=True,
    ),
    _fairscale(
        "the scale of float16 shrinks on the rank alone that sees an overflow",
        "strategy.py",
        'if name == "16-mixed":',
        "if False:",
        "test_strategy.py::test_options_that_train_wrongly_are_refused_before_work",
    ),
    _fairscale(
        "its FSDP fails on a CPU in the first forward: KeyError 'all_gather'",
        "fully_sharded.py",
        'if device_type != "cuda":',
        "if False:",
        "test_fully_sharded.py::test_is_refused_without_cuda_and_says_what_to_use[Fabric]",
    ),
    _fairscale(
        "its FSDP casts inputs to float16, whatever the weights are in",
        "fully_sharded.py",
        "refusals.refuse_options(options)",
        "pass",
        "test_fully_sharded.py::test_options_that_are_decided_elsewhere_say_where[options1-doesn't take "
        "mixed_precision=...: precision='bf16-mixed']",
    ),
    _fairscale(
        "its FSDP computes with gathered weights of before the step",
        "fully_sharded.py",
        "            units.let_go()",
        "            pass",
        "test_fully_sharded.py::test_trains_as_ddp_and_goes_on_from_it_on_a_double",
        is_slow=True,
    ),
    _fairscale(
        "its FSDP averages gradients of one element again, in each further backward of a window",
        "fully_sharded.py",
        "            units.set_gradients_aside()",
        "            pass",
        "test_fully_sharded.py::test_gradients_add_up_also_of_parameters_of_one_element",
    ),
    _fairscale(
        "its FSDP adds up gradients of different parameters, where a loss leaves one out on a rank",
        "fully_sharded.py",
        "self._left_out.check(names)",
        "pass",
        "test_fully_sharded.py::test_what_a_loss_leaves_out_on_a_rank_is_named_on_a_double",
        is_slow=True,
    ),
]

HOROVOD = [
    _horovod(
        "guides multiply the learning rate by the number of ranks: here only where that is asked",
        "strategy.py",
        "if self.scale_learning_rate:",
        "if True:",
        "test_exchange.py::test_the_learning_rate_is_scaled_only_where_that_is_asked[False-0.1]",
    ),
    _horovod(
        "parameters without names: gradients of two modules have the same name, and are refused in the middle",
        "exchange.py",
        "            named_parameters=list(parameters.items()),\n",
        "",
        "test_exchange.py::test_two_modules_share_a_backward",
    ),
    _horovod(
        "without a broadcast ranks begin with weights of their own",
        "strategy.py",
        "self._send_from_first([*module.parameters(), *module.buffers()])",
        "pass",
        "test_conformance.py::TestHorovod::test_training_equals_one_device[weights_that_begin_apart]",
    ),
    _horovod(
        "without a broadcast ranks begin with optimizers of their own",
        "strategy.py",
        "self._send_state(optimizer, self._operations)",
        "pass",
        "test_exchange.py::test_an_optimizers_state_is_that_of_rank_0",
    ),
    _horovod(
        "its own broadcast of an optimizer makes a step of zeros where there is no state: weights decay",
        "strategy.py",
        "self._send_state(optimizer, self._operations)",
        "library.load().broadcast_optimizer_state(optimizer, 0)",
        "test_exchange.py::test_an_optimizers_state_is_that_of_rank_0",
    ),
    _horovod(
        "an unused parameter gets a gradient of zeros: weights decay, momenta move",
        "exchange.py",
        "if not number:",
        "if False:",
        "test_exchange.py::test_a_parameter_that_one_rank_uses",
    ),
    _horovod(
        "a sum over ranks is added up again by the next backward",
        "exchange.py",
        "self._refuse_second_sum(one)",
        "pass",
        "test_exchange.py::test_a_second_backward_into_a_sum_is_refused",
    ),
    _horovod(
        "`backward_passes_per_step`: a step before the last backward steps by gradients of one rank",
        "strategy.py",
        "        if self._exchange is not None and closure is None:\n            self._exchange.complete()",
        "        pass",
        "test_exchange.py::test_a_step_exchanges_what_was_held_back",
    ),
    _horovod(
        "Adasum in a build without MPI fails in the first step",
        "strategy.py",
        'if self.options.op == "Adasum":',
        "if False:",
        "test_strategy.py::test_options_that_cannot_work_are_refused",
    ),
    _horovod(
        "no operation on bfloat16: fails in the first backward",
        "strategy.py",
        "if torch.bfloat16 in (formats.parameter, formats.reduce):",
        "if False:",
        "test_strategy.py::test_bfloat16_is_refused_before_work",
    ),
]

COLOSSALAI = [
    _colossalai(
        "`pip install colossalai` takes torch away, or fails: the error has the recipe",
        "library.py",
        "needs Colossal-AI, which is not installed. {RECIPE}",
        "needs Colossal-AI, which is not installed. ",
        "test_strategy.py::test_the_error_has_the_recipe[_not_found-which is not installed]",
    ),
    _colossalai(
        "ZeRO, Gemini and hybrid fail on a CPU when they are set up",
        "refusals.py",
        "if plugin in _NEEDS_GPUS and device_type not in _GPUS:",
        "if False:",
        "test_strategy.py::test_what_needs_gpus_is_refused_before_work",
    ),
    _colossalai(
        "Gemini has no float32",
        "refusals.py",
        'if name == "32-true" and without_fp32:',
        "if False:",
        "test_strategy.py::test_formats_that_a_plugin_lacks_are_refused",
    ),
    _colossalai(
        "TorchDDPPlugin makes SyncBatchNorm of BatchNorm, which fails on a CPU in the first forward",
        "refusals.py",
        "if isinstance(part, nn.modules.batchnorm._BatchNorm):",
        "if False:",
        "test_strategy.py::test_batch_norm_is_refused_on_a_cpu",
    ),
    _colossalai(
        "Gemini asserts its own three optimizers in the middle of set-up (`gemini_optimizer.py`, `_AVAIL_OPTIM_LIST`)",
        "refusals.py",
        "if type(optimizer) not in known:",
        "if False:",
        "test_parallel.py::test_gemini_takes_its_own_optimizers_only",
    ),
    _colossalai(
        'hybrid ignores `sp_size` with `"split_gather"` and `"ring"`; and without a mode its plugin counts ranks for '
        "one, and its ShardConfig takes another",
        "strategy.py",
        "(1 if joint else self.options.sp_size or 1)",
        "(self.options.sp_size or 1)",
        "test_parallel.py::test_data_is_dealt_to_colossalais_replicas",
    ),
    _colossalai(
        "Shardformer knows models by their class, and no wrapper of one",
        "refusals.py",
        "policies.get_autopolicy(module)",
        "pass",
        "test_parallel.py::test_models_that_shardformer_does_not_know_are_refused",
    ),
    _colossalai(
        "its sharded optimizer files can't be loaded on a CPU",
        "native.py",
        "shard=not strategy.saves_whole",
        "shard=True",
        "test_native.py::test_colossalai_reads_what_it_has_written",
    ),
    _colossalai(
        "importing it sets a variable of the process",
        "library.py",
        "os.environ.pop(_CONNECTIONS, None)",
        "pass",
        "test_strategy.py::test_importing_it_leaves_the_environment",
    ),
    _colossalai(
        "ZeRO begins with each rank's own weights",
        "strategy.py",
        "        if self.world_size > 1:\n            for tensor in tensors:",
        "        if False:\n            for tensor in tensors:",
        "test_zero.py::TestZero1::test_training_equals_one_device[weights_that_begin_apart]",
        is_slow=True,
    ),
    _colossalai(
        "the user's `zero_grad` knows parts only, and gradients of earlier steps stay",
        "engine.py",
        'vars(optimizer)["zero_grad"] = self.boosted.zero_grad',
        "pass",
        "test_zero.py::TestZero1::test_training_equals_one_device[fabric]",
        is_slow=True,
    ),
    _colossalai(
        "ZeRO's masters are the weights rounded to 16 bits",
        "zero.py",
        "        self._set_masters(before)\n",
        "",
        "test_zero.py::test_masters_are_the_users_weights",
        is_slow=True,
    ),
    _colossalai(
        "ZeRO adds up gradients of different parameters, where a loss leaves one out on a rank",
        "zero.py",
        "self._left_out.check(names)",
        "pass",
        "test_zero.py::test_a_layer_that_one_rank_leaves_out_is_named",
        is_slow=True,
    ),
]

BAGUA = [
    _bagua(
        "error feedback thrown away: what eight bits leave out of a gradient is lost, and grows",
        "compression.py",
        "compressed_mean(message + flat(known))",
        "compressed_mean(message)",
        "test_conformance.py::TestByteGrad::test_no_gradient_is_lost",
        is_slow=True,
    ),
    _bagua(
        "the same with momenta",
        "compression.py",
        "compressed_mean(message + flat(known))",
        "compressed_mean(message)",
        "test_conformance.py::TestQAdam::test_no_gradient_is_lost",
        is_slow=True,
    ),
    _bagua(
        "feedback of one way of two: what the way back leaves out is lost",
        "compression.py",
        "    rest[rank] += size * (mean - decompress(packed, rows.dtype))[0]\n",
        "",
        "test_conformance.py::TestByteGrad::test_no_gradient_is_lost",
        is_slow=True,
    ),
    _bagua(
        "feedback isn't in checkpoints: a resumed run is another one",
        "centralized.py",
        'return {"rest": self.mean.rest}',
        'return {"rest": {}}',
        "test_conformance.py::TestByteGrad::test_resume_is_bit_exact",
        is_slow=True,
    ),
    _bagua(
        "gradients aren't averaged",
        "centralized.py",
        "return message / dist.get_world_size() if self.average else message",
        "return message",
        "test_strategy.py::test_full_precision_equals_ddp",
    ),
    _bagua(
        "on a ring, what eight bits leave out of a difference is taken for known",
        "decentralized.py",
        "own += decompress(packed, message.dtype)[0]",
        "own = message.clone()",
        "test_strategy.py::test_four_ranks_agree_after_the_stated_rounds",
    ),
    _bagua(
        "ranks are paired with the same one in each round",
        "decentralized.py",
        "self.num_steps // self.communication_interval)",
        "0)",
        "test_strategy.py::test_four_ranks_agree_after_the_stated_rounds",
    ),
    _bagua(
        "eight bits on the way, and whole numbers all the same: more bytes than the theory says",
        "compression.py",
        "    dist.all_gather(gathered, packed)\n",
        "    dist.all_gather(gathered, packed)\n    dist.all_reduce(mean.clone())\n",
        "test_strategy.py::test_bytes_sent_are_those_of_the_theory[bytegrad]",
    ),
]

HIVEMIND = [
    _hivemind(
        "a peer that was to meet others trains alone, without a word",
        "notices.py",
        "    if swarm.is_lonely:",
        "    if False:",
        "test_peers.py::test_a_peer_that_met_nobody_says_so",
    ),
    _hivemind(
        "the first peer trains alone until the others have its state, and quick steps are over by then",
        "swarm.py",
        "self._meeting.await_start(self._hivemind.tracker.report_and_count)",
        "pass",
        "test_peers.py::test_quick_steps_are_made_together",
    ),
    _hivemind(
        "`min_peers`: no peer waits for the others",
        "swarm.py",
        "self._meeting.await_peers()",
        "pass",
        "test_peers.py::test_peers_that_do_not_come_are_an_error",
    ),
    _hivemind(
        "averagers can't be pickled where multiprocessing spawns, and the peer waits for them for ever",
        "averaging.py",
        "    _Popen = staticmethod(_FORK.Process._Popen)\n",
        "",
        "test_strategy.py::test_a_program_whose_processes_are_spawned_is_a_peer_too",
    ),
    _hivemind(
        "the first step is one with zero gradients: weights decay, and Adam counts it",
        "averaging.py",
        "initialize_optimizer=False",
        "initialize_optimizer=True",
        "test_conformance.py::TestHivemind::test_training_equals_one_device[fabric]",
    ),
    _hivemind(
        "a step is made when samples are *estimated* to be enough",
        "averaging.py",
        "if progress.num_peers <= 1 and progress.epoch <= self.local_progress.epoch:",
        "if False:",
        "test_strategy.py::test_a_peer_that_is_alone_counts",
    ),
    _hivemind(
        "a batch that is smaller than the first one counts as a whole one",
        "averaging.py",
        "if even != self.local_samples_accumulated:",
        "if False:",
        "test_strategy.py::test_gradients_are_averaged_over_samples",
    ),
    _hivemind(
        "frozen weights decay, by a gradient of zeros",
        "strategy.py",
        "                parameter.grad = None  # hivemind",
        "                pass  # hivemind",
        "test_strategy.py::test_gradients_are_averaged_over_samples",
    ),
    _hivemind(
        "a peer with another model joins, and both train nonsense",
        "averaging.py",
        "self.refusal = _mismatch(own, tensors[: len(own)]) or _frozen",
        "self.refusal = _frozen",
        "test_peers.py::test_a_peer_with_another_model_is_refused",
    ),
    _hivemind(
        "Ctrl-C is ignored from the first averager on",
        "averaging.py",
        "        self.start()  # type: ignore[attr-defined]\n",
        "        self.start()  # type: ignore[attr-defined]\n        import signal\n\n"
        "        signal.signal(signal.SIGINT, signal.SIG_IGN)\n",
        "test_strategy.py::test_a_loop_by_hand_takes_the_loaders_batch_size",
    ),
    _hivemind(
        "a child that ends in the middle of an answer keeps a lock: the next run never begins",
        "processes.py",
        "    MPFuture.reset_backend()\n",
        "",
        "test_strategy.py::test_a_run_begins_after_a_child_was_killed_in_an_answer",
    ),
    _hivemind(
        "a script that tears nothing down waits for hivemind's threads for ever",
        "swarm.py",
        "            _before_threads_are_awaited(self.leave)\n",
        "",
        "test_strategy.py::test_a_script_that_tears_nothing_down_ends",
    ),
]

RAY = [
    _ray(
        "a lost connection is named, which is the echo of a rank that is gone: answers come in either order",
        "ranks.py",
        "return isinstance(ending, LostWorkerError) or not",
        "return True or not",
        "test_without_ray.py::test_the_cause_is_named_though_its_echo_comes_first",
    ),
    _ray(
        "SPREAD may put two nodes of a run on one machine",
        "launcher.py",
        'placement_strategy: str = "STRICT_SPREAD"',
        'placement_strategy: str = "SPREAD"',
        "test_without_ray.py::test_nodes_are_on_machines_of_their_own_unless_it_is_said",
    ),
    _ray(
        "a lost worker ends the run, whatever `max_failures` says",
        "launcher.py",
        "if attempt == self.max_failures:",
        "if True:",
        "test_cluster.py::test_a_restarted_run_equals_an_undisturbed_one",
    ),
    _ray(
        "Ray's handler of SIGTERM ends the program with code 15, in the middle of its work",
        "cluster.py",
        "signal.signal(signal.SIGTERM, handler)",
        "pass",
        "test_cluster.py::test_a_signal_ends_all_ranks_at_one_step[SIGTERM]",
    ),
    _ray(
        "Ray's workers block SIGINT, and so train on",
        "worker.py",
        "signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})",
        "pass",
        "test_cluster.py::test_a_signal_ends_all_ranks_at_one_step[SIGINT]",
    ),
    _ray(
        "Ray leaves variables of its own in the program",
        "cluster.py",
        "            del os.environ[name]",
        "            pass",
        "test_conformance.py::TestRay::test_leaves_no_process_and_no_variable",
    ),
    _ray(
        "inside Ray Train processes would be made once more",
        "environment.py",
        "priority=95",
        "priority=0",
        "test_without_ray.py::test_inside_ray_train_nothing_is_launched",
    ),
]

TRAPS = [*FAIRSCALE, *HOROVOD, *COLOSSALAI, *BAGUA, *HIVEMIND, *RAY]
