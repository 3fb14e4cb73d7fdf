"""Lightning's public names on `core`, for programs that import them, and checkpoints in Lightning's
form.

    import core_lightning

    core_lightning.install()  # from here on, `import lightning` means core

Nothing is put in the place of Lightning until `install` is called. A name is imported when it is
first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from core.lazy_exports import lazy_exports
from core_lightning._version import __version__
from core_lightning.script.installing import install, install_trusted

if TYPE_CHECKING:
    from core_lightning.checkpoints.checkpoint_io import LightningCheckpointIO
    from core_lightning.checkpoints.checkpoint_reader import LightningCheckpointReader
    from core_lightning.checkpoints.objects import PickledObjects

__all__ = [
    "LightningCheckpointIO",
    "LightningCheckpointReader",
    "PickledObjects",
    "__version__",
    "install",
    "install_trusted",
]


__getattr__, __dir__ = lazy_exports(__name__)
