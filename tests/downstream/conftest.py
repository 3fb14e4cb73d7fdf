"""The distributions below this folder have tests of their own, which run on their wheels and not on
this checkout.
"""

collect_ignore_glob = ["*/tests/*"]
