"""Critic prompts of the paper's comparisons, named `text2grad_lab.prompts:NAME` in
`critic.prompted.prompt`.

`dense` asks for a label of every word (Tables 2 and 11), `steps` for labelled steps (appendix N) in
our format z. `summarization_b1`, `qa_b2` and `code_b3` are the prompts of appendix B and use its
keys.
"""

from pathlib import Path

from text2grad.critics.prompted import SPAN_MAP, AnswerFormat, Prompt
from text2grad.tasks.base import read_prompt
from text2grad_lab.prompts.published import CODE, TEXT
from text2grad_lab.prompts.words import WORDS


def _prompt(name: str, format: AnswerFormat) -> Prompt:
    return Prompt(read_prompt(str(Path(__file__).with_name(f"{name}.txt"))), format=format)


dense = _prompt("dense", WORDS)
steps = _prompt("steps", SPAN_MAP)
summarization_b1 = _prompt("summarization_b1", TEXT)
qa_b2 = _prompt("qa_b2", TEXT)
code_b3 = _prompt("code_b3", CODE)
