"""Readers and writers of the annotation tools' own files."""
