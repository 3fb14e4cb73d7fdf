"""Text that would move a terminal's cursor, colour it or turn its writing round, if it were printed
as it is.
"""

SPOOF = "\x1b[2K\rddp  ok\x9b2J\x07\u202e\u200b"
"""An escape sequence, a carriage return, a C1 control, a bell, a bidi override and a blank without
width.
"""

LOOK_ALIKES = {
    "d\u0435epspeed": r"'\u0435'",
    "\uff44dp": r"'\uff44'",
    "ddp\u200b": r"'\u200b'",
    "\u202epdd": r"'\u202e'",
}
"""Aliases that read as a well-known one, each with what isn't ASCII in it."""


def assert_tame(*texts):
    for text in texts:
        assert text.replace("\n", "").isprintable(), ascii(text)
