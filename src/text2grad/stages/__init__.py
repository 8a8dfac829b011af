"""The stages of a run. Between them there are only files: JSON Lines, checkpoints, metrics.

Each stage takes a `Config`, reads what earlier stages left in `run.folder`, writes its own part, and returns
a `Summary`. Nothing here computes: it opens files, builds the parts and hands them to the layer below.

A room imports from itself and from those before it: `run`, `judge`, `measure`, `learn`.
"""
