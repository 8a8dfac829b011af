"""Token credit in other trainers, one file for each; none needs our own training."""
