"""The tables and figures of the paper as commands: `python -m text2grad_lab paper`."""

GROUPS = ["slf5k", "kodcode", "ultrafeedback", "mistral"]
"""Parts of the list in the order in which they run: the names of steps up to the slash."""
