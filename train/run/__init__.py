"""What a run is on disk: its folder, configuration, checkpoints, state and report."""
