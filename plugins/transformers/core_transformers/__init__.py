"""Models of transformers in any strategy of core: made without weights, loaded in parts, saved for `from_pretrained`.

from core_transformers import from_config, load_pretrained, save_pretrained
"""

from core_transformers._version import __version__
from core_transformers.callbacks import LoadPretrained, SavePretrained
from core_transformers.pretrained import from_config, load_pretrained, save_pretrained

__all__ = [
    "LoadPretrained",
    "SavePretrained",
    "__version__",
    "from_config",
    "load_pretrained",
    "save_pretrained",
]
