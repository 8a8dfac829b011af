"""An agent task of five or seven turns: fill in a form from a record, through tools.

The question names the fields of a form and a rule for each. The policy reads a field of the record,
writes its value by the rule, and submits the form: one call per turn as plain text (`read due`,
`set due to 2024-03-07`, `submit`). Whole kinds of form are held out, with all their fields.
Demonstrations are by a simulated agent with bad habits.
"""

from text2grad_lab.tasks.forms.critic import FormCritic
from text2grad_lab.tasks.forms.problems import FormTask
from text2grad_lab.tasks.forms.tools import Desk

__all__ = ["Desk", "FormCritic", "FormTask"]
