"""Weights of a model that trains, as a stream of whole tensors, and sent to what serves it: by a
callback, to a folder or to other processes.

from core.callbacks import PushWeights
"""

from typing import TYPE_CHECKING

from core.lazy_exports import lazy_exports
from core_weights._version import __version__

if TYPE_CHECKING:
    from core_weights.folder_sink import FolderSink
    from core_weights.group_sink import GroupSink
    from core_weights.push_weights import PushWeights
    from core_weights.safetensors_file import SafetensorsFile
    from core_weights.sink import Sink, TransferError, WeightSource
    from core_weights.weight_receiver import WeightReceiver
    from core_weights.weight_stream import WeightDescription, WeightStream, WholeTensors

__all__ = [
    "FolderSink",
    "GroupSink",
    "PushWeights",
    "SafetensorsFile",
    "Sink",
    "TransferError",
    "WeightDescription",
    "WeightReceiver",
    "WeightSource",
    "WeightStream",
    "WholeTensors",
    "__version__",
]

__getattr__, __dir__ = lazy_exports(__name__)
