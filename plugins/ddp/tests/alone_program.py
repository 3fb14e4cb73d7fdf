"""A run of two processes, and one of one process before or after it.

python alone_program.py WHAT
"""

import sys

from core import Callback
from support.tiny import Tiny, loader, make_trainer


class Beginning(Callback):
    def on_train_start(self, trainer, module):
        print("a run of one process begins", flush=True)


def main(what):
    if what == "alone-before":
        make_trainer(None).validate(Tiny(), loader())
    make_trainer(None, max_epochs=1, strategy="ddp", devices=2, enable_checkpointing=False).fit(
        Tiny(), loader()
    )
    make_trainer(None, Beginning(), max_epochs=1, enable_checkpointing=False).fit(Tiny(), loader())


if __name__ == "__main__":
    main(sys.argv[1])
