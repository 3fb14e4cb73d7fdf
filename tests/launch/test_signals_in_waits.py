"""A signal that comes just before the main process begins to wait interrupts no system call, and is
heard all the same.

`interrupt_main` is such a signal wherever it comes: it only makes the handler due.
"""


def test_while_it_waits_for_the_ranks_of_core_run(program):
    done = program("""
        import _thread, signal, threading
        from core.cli.ranks import run_here

        threading.Timer(1, _thread.interrupt_main, [signal.SIGTERM]).start()
        run_here(2, ["-c", "import time\\nwhile True: time.sleep(0.05)"])
        """).finish(timeout_s=30)
    assert done.code == 143, done.errors
