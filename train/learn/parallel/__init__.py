"""Training with several processes: the plan of an update, gradient reduction and agreement between ranks."""
