"""Pages for the browser and tables for the terminal, from the files of a run, without models.

`report` renders the page of runs, `view` serves it during training, and `mark` serves answers to
annotators.
"""
