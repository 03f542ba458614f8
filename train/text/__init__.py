"""Text: reading lines, tokenizers, corpora of token arrays, batches."""
