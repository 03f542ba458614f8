"""The checks that need a GPU: what runs, how fast, and whether the numbers match the CPU. See __main__.py."""
