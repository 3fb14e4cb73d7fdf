"""The contents of a checkpoint: which types it holds, as JSON, and a rank's part of each tensor."""
