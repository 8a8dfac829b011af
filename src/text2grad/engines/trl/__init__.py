"""TRL's trainer under our recipe: `fields` is what may be passed on, `trainer` the trainer, `run` its folder."""
