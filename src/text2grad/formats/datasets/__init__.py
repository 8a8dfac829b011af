"""Readers of published data sets with people's feedback."""
