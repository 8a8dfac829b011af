"""Token credit in other trainers, one file for each; none needs our own training. `check_landing`
tests them."""

from text2grad.plugins.landing import check_landing as check_landing
