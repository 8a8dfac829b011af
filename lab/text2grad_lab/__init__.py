"""Baselines, benchmarks and experiments around text2grad.

Everything here is loaded through the same extension points as a user's code: tasks, critics,
credit schemes, importers and commands by `module:Name`, presets by `--config text2grad_lab:name`.
"""
