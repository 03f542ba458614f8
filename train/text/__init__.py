"""Text: lines, tokenizer, pairs of sentences as arrays, batches."""
