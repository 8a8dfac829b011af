"""Evaluation: of a policy, of answers from anywhere, and of a policy on the way."""
