"""The embedded task of an agent: look a thing up, compute with it, answer. No network, no data
files.

A question asks for a number that stands in a table only the environment has, changed by a sum. The
policy writes one call a line as plain text (`lookup stock of lamp`, `compute 12*7+5`,
`answer lamp 89`), so no chat template has to know tools. As in `tasks.demo`, a problem is made of
parts, held-out problems use combinations that no training problem has, and demonstrations are
written by a simulated agent with habits that are wrong.
"""

from text2grad_lab.tasks.lookup.critic import LookupCritic
from text2grad_lab.tasks.lookup.problems import LookupTask
from text2grad_lab.tasks.lookup.tools import Tools

__all__ = ["LookupCritic", "LookupTask", "Tools"]
