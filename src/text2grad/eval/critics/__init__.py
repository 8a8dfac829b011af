"""How good a critic is: against annotations, on preference pairs, by people, and fit to train
against."""
