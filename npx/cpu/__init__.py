"""Fast NumPy on a CPU: work split across the cores in row blocks, and the process configuration."""
