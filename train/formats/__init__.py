"""Models in the formats of other programs: import to a run folder, and export from one."""
