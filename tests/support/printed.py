"""The lines that a program with several processes printed, for tests that say
`from printed import lines_of`.
"""


def lines_of(output):
    """The lines that the program wrote itself: torch 2.9's gloo tells there, too, to whom it is
    connected.
    """
    return [line for line in output.splitlines() if not line.startswith("[Gloo] ")]
