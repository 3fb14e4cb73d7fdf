"""Text that comes from others: made fit for a terminal, compared with what it may have meant, read
within bounds.
"""

from core.text.docstrings import first_paragraph
from core.text.plain_file import NotAFileError, open_file, read_file
from core.text.printable import printable
from core.text.spelling import did_you_mean, near_names

__all__ = [
    "NotAFileError",
    "did_you_mean",
    "first_paragraph",
    "near_names",
    "open_file",
    "printable",
    "read_file",
]
