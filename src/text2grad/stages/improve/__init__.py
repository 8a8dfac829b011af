"""`improve`: a spreadsheet of people's feedback in, a better model out.

A thin stage over `import`, `sft`, `train --offline`, `evaluate` and `report`. It reads the file,
proposes what its columns hold, chooses the steps by the kind of feedback, runs them, and keeps the
new policy only if it is better on held-out questions. Every step is a command that can be run by
hand with the settings in `improve.yaml` of the run.
"""
