"""TRL's trainer under our recipe: `fields` is what may be passed on, `trainer` the trainer, `run` its folder."""

STATE = "text2grad.json"
"""In a checkpoint, written last: our part of the state. One without it is not complete."""
