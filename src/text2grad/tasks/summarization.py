"""Summaries of posts: SLF5K (paper, section 4.2)."""

from __future__ import annotations

from text2grad.feedback import DRAFT, HUMAN_FEEDBACK, Example
from text2grad.tasks.base import TaskSettings
from text2grad.tasks.loaders import DataTask, Row, Shape, one_turn, optional_text, text_of


class SummarizationTask(DataTask):
    """Summarise a post. Scored by ROUGE-L against the human summary, which is the reference."""

    name = "summarization"
    critic_prompt = "summarization"

    def __init__(self, settings: TaskSettings) -> None:
        super().__init__(settings, "JeremyAlain/SLF5K", SHAPES)


def _slf5k(row: Row, fallback_id: str) -> Example:
    title, post = optional_text(row, "title"), text_of(row, "post")
    return _example(str(row.get("id") or row.get("idx") or fallback_id), title, post, row)


def _published_code(row: Row, fallback_id: str) -> Example:
    """The input file of the paper's own code: post and generated summary by post id, no reference."""
    return _example(str(row.get("id") or fallback_id), "", text_of(row, "Post"), row)


def _example(id: str, title: str, post: str, row: Row) -> Example:
    heading = f"Title: {title}\n\n" if title else ""
    content = f"Write a short summary of this post.\n\n{heading}{post}"
    feedback, draft = optional_text(row, "feedback"), optional_text(row, "generated_summary_for_feedback")
    reference = optional_text(row, "ideal_human_summary", "tldr_human_reference_summary")
    return one_turn(id, content, reference, {HUMAN_FEEDBACK: feedback, DRAFT: draft})


SHAPES = (
    Shape("SLF5K", frozenset({"title", "post"}), _slf5k),
    Shape("Text2Grad's SLF5K file", frozenset({"Post"}), _published_code),
)
