"""Unit tests as a critic: what failed, and where in the response, by which evidence.

`extract` finds the program in a response, `reference` compares it with a solution, `suspects` finds
the lines to blame without one, trying the edits of `expressions` and `statements`; `critique` puts
it into words.
"""

from text2grad.critics.program.case import Attempt, run_attempts
from text2grad.critics.program.critic import ProgramCritic, admission, outcome_counts, run_outcomes

__all__ = ["Attempt", "ProgramCritic", "admission", "outcome_counts", "run_attempts", "run_outcomes"]
