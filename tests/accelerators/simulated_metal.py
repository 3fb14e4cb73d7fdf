"""The device type `mps` in a torch that was built without Metal: the host computes, and float64 is refused as there.

`build` compiles what torch keeps in C++ of a device, for some seconds. `register` makes `torch.device("mps")` usable in
this process, for good; call it before the first backward. A tensor there is a wrapper around one on the CPU, on which
every operation runs; what torch documents under `torch.mps` and `torch.backends.mps` answers.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

COMPILER = shutil.which("c++")
_CPU, _MPS = torch.device("cpu"), torch.device("mps", 0)
_aten = torch.ops.aten
# These take tensors of two devices, as on any other kind of device.
_CROSSES_DEVICES = {_aten.copy_.default, _aten.index.Tensor, _aten.index_put_.default, _aten._index_put_impl_.default}
_libraries: list[Any] = []


def build(folder: Path) -> Path:
    """Compile the library into a folder."""
    torch_folder, library = Path(torch.__file__).parent, folder / "metal.so"
    places = ["-I", torch_folder / "include", "-L", torch_folder / "lib"]
    source = Path(__file__).with_name("metal.cpp")
    options = ["-std=c++20", "-fPIC", "-shared", *places, source, "-o", library, "-lc10", "-ltorch_cpu"]
    subprocess.run([COMPILER, *options], check=True, capture_output=True)
    return library


def register(library: Path) -> None:
    """Teach this process the device."""
    _libraries.append(ctypes.CDLL(str(library)))
    torch.backends.mps.is_built = lambda: True
    operations = torch.library.Library("_", "IMPL")
    operations.fallback(_run, "MPS")
    # `torch.tensor(..., device="mps")` copies while Python's dispatch is off, where the fallback can't be called.
    copies = torch.library.Library("aten", "IMPL")
    copies.impl("_copy_from", _copy_from, "MPS")
    _libraries.extend([operations, copies])


class MPSTensor(torch.Tensor):
    """A tensor on `mps:0`, of the same shape and dtype as the one on the CPU that it wraps."""

    @staticmethod
    def __new__(cls, raw: torch.Tensor) -> MPSTensor:
        if raw.dtype in (torch.float64, torch.complex128):
            raise TypeError(
                f"Cannot convert a MPS Tensor to {str(raw.dtype).removeprefix('torch.')} dtype as the MPS framework "
                "doesn't support float64. Please use float32 instead."
            )
        place = {"strides": raw.stride(), "storage_offset": raw.storage_offset()}
        tensor = torch.Tensor._make_wrapper_subclass(cls, raw.size(), dtype=raw.dtype, device=_MPS, **place)
        tensor.raw = raw
        return tensor

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(operation, *args, **(kwargs or {}))

    # With these two, `module.to("mps")` swaps parameters and keeps their identity.
    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["raw"], None

    @staticmethod
    def __tensor_unflatten__(tensors: dict[str, torch.Tensor], context: None, size: Any, stride: Any) -> MPSTensor:
        return MPSTensor(tensors["raw"])

    def tolist(self) -> Any:
        return self.raw.tolist()  # torch's own refuses subclasses, which tensors of a real device aren't

    def __repr__(self) -> str:
        return f"MPSTensor({self.raw})"


def _run(operation: Any, *args: Any, **kwargs: Any) -> Any:
    """Unwrap, compute on the CPU, wrap."""
    ours = _ours(operation, (args, kwargs))
    target, is_here = kwargs.get("device"), bool(ours)
    if target is not None:
        kwargs["device"], is_here = _CPU, torch.device(target).type != "cpu"
    raw_args, raw_kwargs = pytree.tree_map_only(MPSTensor, lambda tensor: tensor.raw, (args, kwargs))
    output = operation(*raw_args, **raw_kwargs)
    if operation is _aten.copy_.default:
        return args[0]

    def wrap(tensor: torch.Tensor) -> torch.Tensor:
        if (same := ours.get(id(tensor))) is not None:  # an operation in place
            return same
        return MPSTensor(tensor) if is_here else tensor

    return pytree.tree_map_only(torch.Tensor, wrap, output)


def _copy_from(source: torch.Tensor, target: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    raw_source, raw_target = (each.raw if isinstance(each, MPSTensor) else each for each in (source, target))
    raw_target.copy_(raw_source)
    return target


def _ours(operation: Any, inputs: Any) -> dict[int, MPSTensor]:
    """The tensors of this device, by the identity of what they wrap."""
    tensors = [leaf for leaf in pytree.tree_leaves(inputs) if isinstance(leaf, torch.Tensor)]
    ours = {id(tensor.raw): tensor for tensor in tensors if isinstance(tensor, MPSTensor)}
    strangers = [tensor for tensor in tensors if not isinstance(tensor, MPSTensor) and tensor.dim() > 0]
    if ours and strangers and operation not in _CROSSES_DEVICES:
        raise RuntimeError(f"{operation}: expected all tensors on one device, and one is on {strangers[0].device}.")
    return ours
