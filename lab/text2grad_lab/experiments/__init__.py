"""Experiments: what is learned from feedback, one module per question (README.md)."""
