"""Feedback in and out: other tools' files, tables, and published data sets.

Nothing is guessed: a mark that does not fit its text, or whose label is neither praise nor
criticism, yields no span and is counted in the record's `meta`, as is a quote that is missing or
ambiguous. The person's own words stay in the critique.
"""
