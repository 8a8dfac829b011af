"""Observe a run in training: its steps, and its answers to the same prompts over time."""
