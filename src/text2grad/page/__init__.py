"""Pages in the browser that one works on: a small server on this machine alone, what `view` shows and `mark` keeps.

`report` makes the pages from files; here they are served, kept up to date, and what a person marks is written down.
"""
