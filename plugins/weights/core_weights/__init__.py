"""Weights of a model that trains, sent to what serves it: by a callback, to a folder or to other
processes.

from core.callbacks import PushWeights
"""

from core_weights._version import __version__
from core_weights.folder_sink import FolderSink
from core_weights.group_sink import GroupSink
from core_weights.push_weights import PushWeights
from core_weights.safetensors_file import SafetensorsFile
from core_weights.sink import Sink, TransferError, WeightSource
from core_weights.weight_receiver import WeightReceiver

__all__ = [
    "FolderSink",
    "GroupSink",
    "PushWeights",
    "SafetensorsFile",
    "Sink",
    "TransferError",
    "WeightReceiver",
    "WeightSource",
    "__version__",
]
