"""Measure critics: against annotations, on preferences, by people, and for fitness to train."""
