"""Summaries of posts: SLF5K (paper, section 4.2)."""

from __future__ import annotations

from text2grad.data.published import SLF5K
from text2grad.tasks.base import TaskSettings
from text2grad.tasks.data_task import DataTask


class SummarizationTask(DataTask):
    """Summarise a post. Scored by ROUGE-L against the human summary, which is the reference."""

    name = "summarization"
    critic_prompt = "summarization"

    def __init__(self, settings: TaskSettings) -> None:
        super().__init__(settings, "JeremyAlain/SLF5K", SLF5K)
