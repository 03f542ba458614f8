"""Fast NumPy on a CPU: row blocks spread over the cores, and the configuration of the process."""
