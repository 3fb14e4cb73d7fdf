import math
import multiprocessing
import os
import signal
import socket
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
import torch
from torch import nn

from core import Callback, ConfigurationError, Fabric, ModuleError
from core.callbacks import PushWeights
from core.cluster import reserve_port
from core_testing.ranks import Backend
from core_testing.waiting import slowness, wait_until
from core_weights import GroupSink, TransferError, WeightReceiver
from support.tiny import Tiny, loader

TIMEOUT = timedelta(minutes=2)
SOON = timedelta(seconds=math.ceil(slowness()))

# The tiny module can validate, and there is no need to.
pytestmark = pytest.mark.filterwarnings(
    r"ignore:\w+ has a validation_step\(\), and no validation loader was given"
)


@pytest.fixture
def fabric():
    return Fabric(accelerator="cpu", devices=1)


def make_net(num_outputs=1):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, num_outputs))


@pytest.fixture
def stream(fabric):
    return fabric.weights(fabric.setup(make_net()))


@pytest.fixture
def pool():
    with ThreadPoolExecutor(2) as threads:
        yield threads


@pytest.fixture
def connected(pool):
    """A sink, and what a receiver of it makes of a module."""

    def connect(module):
        sink = GroupSink(timeout=TIMEOUT)
        return sink, pool.submit(receive_all, sink.address, module)

    return connect


# processes ----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_receivers_get_each_version_until_one_of_them_dies_which_is_an_error_for_all():
    fork = multiprocessing.get_context("fork")
    at_once_s = 60
    """Far less than the timeout: that a process has died is seen by its connection."""

    def bits(tensors):
        return {name: tensor.reshape(-1).view(torch.uint8).tolist() for name, tensor in tensors}

    def serve(queue, address, dies_after):
        """Put version and bits of each one; at last the error. Dies after a version."""
        model, receiver = Tiny(), WeightReceiver(address, timeout=TIMEOUT)
        try:
            while receiver.load_into(model):
                queue.put((receiver.version, bits(model.state_dict().items())))
                if receiver.version == dies_after:
                    queue.close()
                    queue.join_thread()
                    os.kill(os.getpid(), signal.SIGKILL)
        except TransferError as error:
            queue.put(str(error))

    class States(Callback):
        """Keeps the state that the model has when it is sent."""

        def __init__(self):
            self.states = {}

        def on_train_start(self, trainer, module):
            whole = trainer.strategy.get_module_state_dict(module, layout="full")
            self.states[trainer.global_step] = bits(
                (name, tensor.clone()) for name, tensor in whole.items()
            )

        def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
            self.on_train_start(trainer, module)

    def train(rank, port):
        """The states, and the error."""
        states, push = States(), PushWeights(GroupSink(port, receivers=2, timeout=TIMEOUT))
        with pytest.raises(TransferError) as caught:
            rank.trainer(callbacks=[states, push], max_steps=8, max_epochs=1).fit(
                Tiny(), loader(16)
            )
        return states.states, str(caught.value)

    port, queues = reserve_port(train), [fork.Queue(), fork.Queue()]
    address = f"127.0.0.1:{port}"
    for queue, dies_after in zip(queues, (2, None), strict=True):
        fork.Process(target=serve, args=(queue, address, dies_after), daemon=True).start()
    results = Backend(lambda: "fsdp", num_processes=2).run(train, port)
    for rank, (_, text) in enumerate(results):
        assert text.startswith("On rank 0: Receiver " if rank else "Receiver ")
        assert "of 2 has died, or has not asked for" in text
    states = results[0][0]
    for version in range(3):
        assert [queue.get(timeout=at_once_s * slowness()) for queue in queues] == [
            (version, states[version])
        ] * 2
    last = queues[1].get(timeout=at_once_s * slowness())
    while isinstance(last, tuple):  # it may have asked for the next version earlier
        last = queues[1].get(timeout=at_once_s * slowness())
    assert last.startswith(f"The trainer at {address} has died, or has sent nothing")


# one process --------------------------------------------------------------------------------------


def receive_all(address, module, timeout=TIMEOUT):
    receiver, versions = WeightReceiver(address, timeout=timeout), []
    while receiver.load_into(module):
        versions.append(receiver.version)
    return versions


def await_alone(number):
    """The system counts a thread for a moment after its end."""
    wait_until(lambda: len(os.listdir("/proc/self/task")) <= number, f"state with {number} threads")


def test_close_leaves_no_thread_and_no_port(fabric, stream):
    begun = len(os.listdir("/proc/self/task"))
    sink = GroupSink(timeout=TIMEOUT)
    port = int(sink.address.rpartition(":")[2])
    with ThreadPoolExecutor(1) as pool:
        received = pool.submit(receive_all, sink.address, make_net())
        sink.send(fabric, stream)
        sink.send(fabric, stream)
        sink.close()
        assert received.result() == [1, 2]
    await_alone(begun)
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("127.0.0.1", port))
        server.listen()
    sink.close()


def test_an_error_leaves_none_either(fabric, stream):
    """Not while its traceback lives, and with a receiver that still waits."""
    begun = len(os.listdir("/proc/self/task"))
    sink = GroupSink(receivers=2, timeout=TIMEOUT)

    def receive_one(address):
        receiver = WeightReceiver(address, timeout=TIMEOUT)
        assert len(list(receiver.receive())) == len(make_net().state_dict())
        if receiver.rank == 2:
            receiver.close()
        with pytest.raises(ConfigurationError if receiver.rank == 2 else TransferError):
            next(receiver.receive())

    with ThreadPoolExecutor(2) as pool:
        received = [pool.submit(receive_one, sink.address) for _ in range(2)]
        sink.send(fabric, stream)
        with pytest.raises(
            TransferError, match=r"Receiver 2 of 2 .* has not asked for .* within 0:02:00"
        ) as caught:
            sink.send(fabric, stream)
        for each in received:
            each.result()
    await_alone(begun)
    del caught


def test_a_run_that_fails_is_an_error_for_the_receiver(fabric, stream, connected):
    sink, received = connected(make_net())
    sink.send(fabric, stream)
    sink.close(OSError("no more data"))
    with pytest.raises(TransferError, match="The trainer at"):
        received.result()


def test_nobody_comes(fabric, stream):
    sink = GroupSink(receivers=2, timeout=SOON)
    with pytest.raises(
        TransferError, match=rf"Of 2 receivers, 0 have come to 127\.0\.0\.1:\d+ within {SOON}"
    ):
        sink.send(fabric, stream)
    with pytest.raises(ConfigurationError, match=r"receivers=0\): expected 1 or more"):
        GroupSink(receivers=0)


def test_no_trainer_is_there(pool):
    with pytest.raises(
        TransferError, match=r"The trainer at 127\.0\.0\.1:\d+ has died, or has sent nothing within"
    ):
        WeightReceiver(f"127.0.0.1:{reserve_port(pool)}", timeout=SOON)


def test_who_waits_too_long_ends(fabric, stream, pool):
    sink = GroupSink(timeout=SOON)
    received = pool.submit(WeightReceiver, sink.address, timeout=SOON)
    with pytest.raises(
        TransferError,
        match=f"Receiver 1 of 1 has died, or has not asked for version 1 within {SOON}",
    ):
        sink.send(fabric, stream)
    received.result()
    waiting = pool.submit(receive_all, sink.address, make_net(), SOON)
    sink.send(fabric, stream)  # opens it again
    with pytest.raises(TransferError, match=f"has sent nothing within {SOON}"):
        waiting.result()


def test_one_receiver_too_many_is_refused(fabric, stream, connected):
    sink, received = connected(make_net())
    sink.send(fabric, stream)
    with pytest.raises(
        ConfigurationError, match=r"All 1 receivers of .* have come before: GroupSink\(receivers="
    ):
        WeightReceiver(sink.address, timeout=TIMEOUT)
    sink.close()
    assert received.result() == [1]


@pytest.mark.parametrize(
    ("module", "text"),
    [
        (make_net()[:1], "it has no '1.weight'; it has no '1.bias'; .*; and more"),
        (make_net(2), r"'2.weight' is of shape \(2, 3\), not \(1, 3\)"),
        (make_net().append(nn.Linear(1, 1)), "'3.weight' doesn't come"),
        (make_net().to("meta"), "'0.weight' is on the meta device"),
    ],
    ids=["fewer", "another shape", "more", "meta"],
)
def test_another_module_is_refused(fabric, stream, connected, module, text):
    sink, received = connected(module)
    with pytest.raises(TransferError, match=r"has not asked for '0\.weight' of version 1"):
        sink.send(fabric, stream)
    with pytest.raises(ModuleError, match=f"Sequential isn't what the trainer sends: {text}"):
        received.result()


def test_a_tied_tensor_comes_once_and_the_module_keeps_its_dtypes(fabric, connected):
    served = make_net().append(nn.Linear(3, 1)).double()
    served[3].weight, served[3].bias = served[2].weight, served[2].bias
    (sink, received), own = connected(served), make_net()
    sink.send(fabric, fabric.weights(fabric.setup(own), dtype=torch.bfloat16))
    sink.close()
    assert received.result() == [1]
    assert torch.equal(served[3].weight, own[2].weight.bfloat16().double())


def test_a_version_is_received_to_its_end(fabric, stream, pool):
    sink = GroupSink(timeout=TIMEOUT)

    def leave(address):
        receiver = WeightReceiver(address, timeout=TIMEOUT)
        next(receiver.receive())
        with pytest.raises(ConfigurationError, match=r"receive\(\) was left before its end"):
            next(receiver.receive())

    left = pool.submit(leave, sink.address)
    with pytest.raises(TransferError, match=r"has not asked for '0\.bias' of version 1"):
        sink.send(fabric, stream)
    left.result()
