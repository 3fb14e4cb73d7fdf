"""The stages and their loops: fit, validate, test and predict, from the process group's beginning
to its end.
"""
