"""Observe a run in training: its steps, and prompts that it answers again and again."""
