"""The arguments of `Trainer`: their checks, meanings and defaults."""
