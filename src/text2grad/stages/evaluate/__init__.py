"""Evaluation of a policy, of answers from anywhere, and of a policy during training."""
