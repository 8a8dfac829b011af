"""Evaluation of policies, of answer files, and of policies during training."""
