"""ILF-for-code (Chen et al. 2024): people's critiques of a model's programs, and their corrections.

text2grad import surge_annotations.jsonl --kind text2grad_lab.readers.ilf:ILF --out feedback.jsonl
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from text2grad.data.files import Row, optional_text, required_text
from text2grad.data.opinions import Importer, Names, Opinion
from text2grad.data.published import Shape, python_lines, single_turn_example
from text2grad.feedback import DRAFT, HUMAN_FEEDBACK, Example
from text2grad_lab.benchmarks.checks import check_module

CORRECTED = "unedited_annotator_completion"
"""The key of the program as corrected by a person."""


def problem(row: Row, fallback_id: str) -> Example:
    """Return a problem with tests; the correction is its reference, the model's program `draft`."""
    start = required_text(row, "prompt")
    declared = re.findall(r"^def[ \t]+(\w+)", start, re.M)  # Python cannot parse the beginning of a program
    if not declared:
        raise ValueError("the prompt declares no function")
    content = f"Complete this program. Answer with all of it.\n\n```python\n{start.rstrip()}\n```"
    meta = {
        "question": start,
        "tests": check_module(required_text(row, "test"), declared[-1]),
        "entry_point": declared[-1],
        DRAFT: required_text(row, "original_model_completion"),
        HUMAN_FEEDBACK: optional_text(row, "Feedback"),
    }
    return single_turn_example(
        f"mbpp-{row.get('task_id', fallback_id)}", content, python_lines(required_text(row, CORRECTED)), meta
    )


def opinions(row: Row, fallback_id: str, names: Names) -> Iterator[Opinion]:
    """Yield the opinion on the draft of a row; none without feedback."""
    example = problem(row, fallback_id)
    if words := optional_text(row, "Feedback"):
        meta = {name: value for name, value in example.meta.items() if name not in (DRAFT, HUMAN_FEEDBACK)}
        opinion = Opinion(example.id, example.meta[DRAFT], example.prompt, comments=[words], meta=meta)
        opinion.corrected = example.reference
        yield opinion


KEYS = frozenset({"prompt", "test", "original_model_completion", CORRECTED})
SHAPE = Shape("ILF", KEYS, problem)
ILF = Importer("ilf", opinions, KEYS)
