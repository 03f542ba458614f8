"""The check for a machine with a GPU: what runs there, how fast, and whether it is right. See __main__.py."""
