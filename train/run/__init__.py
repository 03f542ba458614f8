"""A run on disk: its folder, lock, configuration, checkpoints, state and report."""
