"""The shapes in which annotation tools keep people's feedback: each is read into records, and written back.

Nothing is guessed: a mark that is not where it says, or has a label that is neither praise nor criticism, yields no
span and is counted in the record's `meta`, as everywhere (`critics.human`).
"""
