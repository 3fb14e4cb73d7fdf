"""Which strategy a training program fits under, and what it does under each: `core plan` and
`core compare`.
"""

from core_plan._version import __version__
from core_plan.contender import Contender, parse_contenders
from core_plan.planner import MemoryPlan, plan
from core_plan.prover import ProgramProof, prove

__all__ = [
    "Contender",
    "MemoryPlan",
    "ProgramProof",
    "__version__",
    "parse_contenders",
    "plan",
    "prove",
]
