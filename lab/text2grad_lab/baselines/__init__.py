"""Baselines of the paper: refinement, imitation, reflection, unit models, scalar reward models,
DPO."""
