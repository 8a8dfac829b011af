"""Readers and writers of other tools' files and of published data sets: feedback in, feedback out.

Nothing is guessed: a mark that is not where it says, or has a label that is neither praise nor
criticism, yields no span and is counted in the record's `meta`; so is a quote that is not in the
response or is there more than once. What the person wrote stays in the critique's text in any case.
"""
