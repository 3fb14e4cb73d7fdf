"""A CUDA device that does what it is told as late as it may: when something waits for it, or not at
all.

Tensors are on the CPU and say that they are elsewhere. Copies from them to memory, and what is
written to them in place, go to the queue of the current stream. The queue of the main stream runs
at once, or late; others always late: so a copy that isn't waited for finds what was written after
it, and one that doesn't wait finds what was there before.
"""

import contextlib
import threading

import torch

MAIN_LATE, MAIN_EARLY = "the main stream is late", "the main stream is early"
_IN_PLACE = {
    torch.Tensor.add_,
    torch.Tensor.mul_,
    torch.Tensor.fill_,
    torch.Tensor.sub_,
    torch.Tensor.addcdiv_,
}


class LateTensor(torch.Tensor):
    """A tensor that says that it is on `cuda:0`."""

    @property
    def device(self):
        return torch.device("cuda", 0)

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        call = super().__torch_function__
        if function in _IN_PLACE:
            CUDA.now.enqueue(torch.no_grad()(lambda: call(function, types, args, kwargs)))
            return args[0]
        if function is torch.Tensor.copy_:
            CUDA.copies += 1
            target, source = (each.as_subclass(torch.Tensor) for each in args[:2])
            CUDA.now.enqueue(lambda: target.copy_(source))
            if not (kwargs or {}).get("non_blocking"):
                CUDA.now.synchronize()
            return args[0]
        if function is torch.Tensor.tolist:
            CUDA.now.synchronize()
        result = call(function, types, args, kwargs)
        # has its shape now, and its values in its turn
        if function in (torch.Tensor.sum, torch.stack):
            plain = result.as_subclass(torch.Tensor)
            CUDA.now.enqueue(
                lambda: plain.copy_(call(function, types, args, kwargs).as_subclass(torch.Tensor))
            )
        return result


class Stream:
    """A queue."""

    def __init__(self, device=None, *, is_early=False):
        self.queue, self.num_done, self.is_early = [], 0, is_early
        CUDA.streams.append(self)

    def enqueue(self, work):
        self.queue.append(work)
        if self.is_early:
            self.synchronize()

    def synchronize(self, until=None):
        while self.num_done < (len(self.queue) if until is None else until):
            self.num_done += 1
            self.queue[self.num_done - 1]()

    def record_event(self):
        event = Event()
        event.record(self)
        return event

    def wait_event(self, event):
        self.enqueue(event.synchronize)

    def wait_stream(self, other):
        self.wait_event(other.record_event())


class Event:
    """A point in a queue."""

    def record(self, stream=None):
        self.stream = stream or CUDA.now
        self.end = len(self.stream.queue)

    def synchronize(self):
        if threading.current_thread() is not threading.main_thread():
            CUDA.gate.wait(60)
        CUDA.num_waits += 1
        self.stream.synchronize(self.end)


class CUDA:
    """The device, from `simulate` on. Threads beside the main one find nothing done until `gate` is
    set.
    """

    streams, locked = [], {}
    copies = num_waits = 0

    @classmethod
    def cudaHostRegister(cls, address, num_bytes, flags):  # the library's
        cls.locked[address] = num_bytes
        return 0

    @classmethod
    def cudaHostUnregister(cls, address):
        cls.locked.pop(address, None)  # an earlier test may have left its memory
        return 0


def simulate(monkeypatch, order):
    """Let `torch.cuda` be this."""
    CUDA.streams, CUDA.locked, CUDA.copies, CUDA.num_waits = [], {}, 0, 0
    CUDA.gate = threading.Event()
    CUDA.main = CUDA.now = Stream(is_early=order == MAIN_EARLY)

    @contextlib.contextmanager
    def stream(chosen):
        before, CUDA.now = CUDA.now, chosen
        yield
        CUDA.now = before

    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: CUDA.now)
    monkeypatch.setattr(torch.cuda, "stream", stream)
    monkeypatch.setattr(torch.cuda, "device", lambda _: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "cudart", lambda: CUDA)


def late(tensor):
    """A copy of a tensor on that device."""
    return tensor.detach().clone().as_subclass(LateTensor)
