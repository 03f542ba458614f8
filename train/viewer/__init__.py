"""Pictures of a model as files (`npx-transformer draw`) and an interactive page in the browser (`serve`)."""
