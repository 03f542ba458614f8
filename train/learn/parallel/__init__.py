"""Training with several processes: divide the work of an update, sum the gradients and synchronize the ranks."""
