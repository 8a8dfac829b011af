"""TRL's trainer under our recipe: `fields` is what may be passed on, `trainer` the trainer, `run`
its folder."""

STATE = "text2grad.json"
"""The file of our state in a checkpoint, written last; a checkpoint without it is incomplete."""
