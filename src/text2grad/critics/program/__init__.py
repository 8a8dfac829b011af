"""Unit tests as a critic: it names the failed test and marks the faulty code.

`extract` finds the program in a response. `reference` compares it with a solution. `suspects`
locates faults without a solution, by trying the edits of `expressions` and `statements`. `critique`
writes the critique.
"""

from text2grad.critics.program.case import Attempt, run_attempts
from text2grad.critics.program.critic import ProgramCritic, check_tests, outcome_counts, run_outcomes

__all__ = ["Attempt", "ProgramCritic", "check_tests", "outcome_counts", "run_attempts", "run_outcomes"]
