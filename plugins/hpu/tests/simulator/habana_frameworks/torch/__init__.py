"""The simulated PyTorch bridge of Gaudi devices. To import it is to register the device `hpu` and
the group `hccl`.

"Importing PyTorch Models Manually",
docs.habana.ai/en/latest/PyTorch/PyTorch_Model_Porting/Importing_PyTorch_Models_Manually.html:
scripts import `habana_frameworks.torch.core`, and with it the package, which imports
`distributed.hccl` too, as the vendor's published source does
(github.com/HabanaAI/gaudi-pytorch-bridge 1.19, habana_frameworks/torch/__init__.py:55). There is no
`habana_frameworks/__init__.py`: others of the vendor's packages share it.
"""

import habana_frameworks.torch.core
import habana_frameworks.torch.distributed.hccl
import habana_frameworks.torch.hpu  # noqa: F401
from simulated_gaudi import undocumented

__getattr__ = undocumented(__name__)
