"""The IPUs of the simulated machine, and who has them."""

import os


class Error(RuntimeError):
    """[features] "Application and other errors": a misuse of the API, found below the Python
    layer.
    """


def _num_ipus():
    return int(os.environ.get("POPTORCH_SIMULATED_IPUS", "16"))


def ipuHardwareIsAvailable(num_ipus=1):
    """[options] "Helpers": whether hardware with so many IPUs is in the system; not whether it is
    free.
    """
    return 0 < num_ipus <= _num_ipus()


class IpuPool:
    """The IPUs that executors are attached to."""

    def __init__(self):
        self.in_use = 0

    def take(self, number):
        """[features] "Multi-IPU execution strategies": a power of two; "Wait for an IPU": all in
        use is an error.
        """
        if number & (number - 1):
            raise Error(
                f"The number of IPUs must be a power of 2, and {number} are asked for: see "
                "autoRoundNumIPUs."
            )
        if self.in_use + number > _num_ipus():
            raise Error(
                f"{number} IPUs are asked for, and {_num_ipus() - self.in_use} of {_num_ipus()} "
                "are free."
            )
        self.in_use += number

    def give_back(self, number):
        self.in_use -= number


POOL = IpuPool()
