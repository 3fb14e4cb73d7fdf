"""The user's model as the Trainer knows it: its steps, hooks, arguments, optimizers and
callbacks.
"""
