"""Add token credit to other trainers, one module per engine; `check_landing` tests them."""

from text2grad.plugins.landing import check_landing as check_landing
