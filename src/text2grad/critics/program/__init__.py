"""Unit tests as a critic: what failed, and where in the response, by which evidence.

`extract` finds the program in a response, `reference` compares it with a solution, `spectrum` and `repair` find
suspicious lines without one, `suspects` puts the evidence together, `brief` and `full` write the critique.
"""

from text2grad.critics.program.critic import ProgramCritic, outcome_counts, run_outcomes
from text2grad.critics.program.extract import Program, extract_program, wanted_names
from text2grad.critics.program.pairs import PreferencePair, preference_pairs
from text2grad.critics.program.reference import Difference, compare
from text2grad.critics.program.source import read_code
from text2grad.critics.program.spectrum import Ran, ochiai
from text2grad.critics.program.suspects import Suspect, localise

__all__ = [
    "Difference",
    "PreferencePair",
    "Program",
    "ProgramCritic",
    "Ran",
    "Suspect",
    "compare",
    "extract_program",
    "localise",
    "ochiai",
    "outcome_counts",
    "preference_pairs",
    "read_code",
    "run_outcomes",
    "wanted_names",
]
