"""The prompt with which answers are revised by their critiques: for `refine` (ILF) and `evaluate --reflect`."""

from __future__ import annotations

from text2grad.config import Config
from text2grad.critics.prompted import Prompt
from text2grad.errors import UserError
from text2grad.tasks.base import prompt_version, read_prompt


def revision_prompt(config: Config) -> Prompt:
    """The prompt file of `refine.prompt`.

    Raises:
        UserError: there is none, or it has no place for the critique.
    """
    name = config.refine.prompt
    prompt = Prompt(read_prompt(name), prompt_version(name))
    if "{{meta.critique}}" not in prompt.text:
        raise UserError(f"the prompt {name} has no {{{{meta.critique}}}}", "say where the critique goes")
    return prompt
