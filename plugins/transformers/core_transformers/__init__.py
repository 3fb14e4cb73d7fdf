"""Models of transformers in any strategy of core: made without weights, loaded in parts, saved for
`from_pretrained`.

from core_transformers import from_config, load_pretrained, save_pretrained
"""

from core_transformers._version import __version__
from core_transformers.callbacks import LoadPretrained, SavePretrained
from core_transformers.checkpoint_io import TransformersCheckpointIO
from core_transformers.pretrained import config_of, from_config, load_pretrained, save_pretrained
from core_transformers.pretrained_weights import PretrainedWeights

__all__ = [
    "LoadPretrained",
    "PretrainedWeights",
    "SavePretrained",
    "TransformersCheckpointIO",
    "__version__",
    "config_of",
    "from_config",
    "load_pretrained",
    "save_pretrained",
]
