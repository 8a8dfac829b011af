"""The questions of a review of the paper: cells with their commands, figures and costs."""
