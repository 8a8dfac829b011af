"""The tables and figures of the paper as commands: `python -m text2grad_lab paper`."""
