"""TRL's trainers for this recipe: `fields` (arguments), `trainer`, `run` (folder), `supervised`."""

STATE = "text2grad.json"
"""The file of our state in a checkpoint. It is written last, so a checkpoint without it is
incomplete."""
