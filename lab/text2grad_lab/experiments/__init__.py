"""Experiments on learning from feedback, one module per question (README.md)."""
