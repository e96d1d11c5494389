"""LLM calls as steps: HTTP clients that record what a provider answers, and replay it ever after."""
