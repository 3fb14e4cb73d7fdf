"""Parts of a module that are frozen at first, and weights that are pruned while training goes on.

from core.callbacks import BackboneFinetuning, BaseFinetuning, ModelPruning
"""

from core_training.finetuning.backbone_finetuning import BackboneFinetuning
from core_training.finetuning.base_finetuning import BaseFinetuning
from core_training.finetuning.model_pruning import ModelPruning

__all__ = ["BackboneFinetuning", "BaseFinetuning", "ModelPruning"]
