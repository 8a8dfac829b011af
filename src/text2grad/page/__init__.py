"""Pages for the browser and tables for the terminal, made from the files of a run; no model is
loaded here.

`report` renders the page of runs, `view` serves it while they train, `mark` serves answers to
annotators.
"""
