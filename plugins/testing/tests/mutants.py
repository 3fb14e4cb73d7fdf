"""All mutants, in the order of the table."""

import mutants_cluster
import mutants_differing
import mutants_exchange
import mutants_life
import mutants_parts
import mutants_shapes
import mutants_state
import mutants_training
import mutants_uneven
from table import MUTANTS

PARTS = (
    *(mutants_training, mutants_exchange, mutants_state, mutants_parts),
    *(mutants_cluster, mutants_life, mutants_differing, mutants_uneven, mutants_shapes),
)

__all__ = ["MUTANTS", "PARTS"]
