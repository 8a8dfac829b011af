"""Feedback: critics, the answers they judge, and the records that are kept (`import`, `annotate`)."""
