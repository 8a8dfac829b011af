"""Question answering: UltraFeedback (paper, section 4.4) and data with human feedback."""

from __future__ import annotations

from text2grad.data.published import QUESTIONS
from text2grad.errors import UserError
from text2grad.feedback import Example
from text2grad.settings import TinyShape
from text2grad.tasks.base import TaskSettings
from text2grad.tasks.data_task import DataTask

DEFAULT_DATA = "HuggingFaceH4/ultrafeedback_binarized"


class QATask(DataTask):
    """Answer a question. Scored by ROUGE-L against the reference answer."""

    name = "qa"
    critic_prompt = "qa"
    # Quotes start and end at any word. Two layers save time; their quality was not compared.
    tiny_model = TinyShape(layers=2, longest=20, phrases=False)

    def __init__(self, settings: TaskSettings) -> None:
        super().__init__(settings, DEFAULT_DATA, QUESTIONS, _answerable)


def _answerable(examples: list[Example], data: str) -> list[Example]:
    """Drop human feedback without a corrected answer; other data is unchanged.

    A SQuALITY review, for example, has its question but not the story that answers it.
    """
    reviewed = [example for example in examples if "dataset" in example.meta]
    answerable = [example for example in examples if "corrected" in example.meta]
    if reviewed and not answerable:
        raise UserError(
            f"{data} has no corrected answers",
            "text2grad import a file with corrected answers in its column 'corrected'",
        )
    return answerable or examples
