"""Fast NumPy on a CPU: work split over the cores in row blocks, and the configuration of the process."""
