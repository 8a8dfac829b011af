"""The embedded agent task: look up a number, compute with it, answer.

A question asks for a computation with a number from a table that only the environment has. The
policy writes one call per turn as plain text (`lookup stock of lamp`, `compute 12*7+5`, `answer
lamp 89`), so the chat template needs no tools. As in `tasks.demo`, problems are combinations of
parts, held-out combinations do not occur in training, and demonstrations are by a simulated agent
with bad habits.
"""

from text2grad_lab.tasks.lookup.critic import LookupCritic
from text2grad_lab.tasks.lookup.problems import LookupTask
from text2grad_lab.tasks.lookup.tools import Tools

__all__ = ["LookupCritic", "LookupTask", "Tools"]
