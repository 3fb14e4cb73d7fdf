"""Progress bars, and the displays that draw them: a terminal, a notebook, plain lines, the process
of another rank.
"""
