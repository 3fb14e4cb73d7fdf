"""The models and random data sets that reports of bugs begin with."""
