"""Download, verify, clean and prepare the corpora of the paper."""
