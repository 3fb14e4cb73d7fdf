"""The meanings of options, durations and names, which need no other room."""
