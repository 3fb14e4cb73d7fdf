"""The parts of a first day with a GPU: see `gpu.py` and `gpu_steps.py` beside this folder."""
