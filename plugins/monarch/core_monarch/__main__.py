"""The program of a rank's process: Monarch runs in a thread, and the main thread is the
function's.
"""

import os
import sys
import threading
from importlib import import_module

from core_monarch.main_thread import MAIN_THREAD


def _serve_monarch() -> None:
    code = 1
    try:
        import_module("monarch._src.actor.bootstrap_main").invoke_main()
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 0
    finally:
        if MAIN_THREAD.is_busy:  # it was given its time by the launcher
            os._exit(code)
        MAIN_THREAD.leave(code)


if __name__ == "__main__":
    thread = threading.Thread(target=_serve_monarch, name="monarch", daemon=True)
    thread.start()
    exit_code = MAIN_THREAD.serve()
    thread.join()
    sys.exit(exit_code)
