"""Training with several processes: dividing an update, reducing gradients, synchronizing ranks."""
