"""Pictures of what a model does: files to draw (`npx-transformer draw`) and a page to look around in (`serve`)."""
