"""Local disks and stores: paths, locks, names of what is being written, and the texts of errors."""
