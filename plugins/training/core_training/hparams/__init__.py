"""The hyperparameters of modules and data modules: kept, saved, and read again."""
