"""Parts of a module that are frozen at first, and weights that are pruned while training goes on.

from core.callbacks import BackboneFinetuning, BaseFinetuning, ModelPruning
"""

from core_finetuning._version import __version__
from core_finetuning.backbone_finetuning import BackboneFinetuning
from core_finetuning.base_finetuning import BaseFinetuning
from core_finetuning.model_pruning import ModelPruning

__all__ = ["BackboneFinetuning", "BaseFinetuning", "ModelPruning", "__version__"]
