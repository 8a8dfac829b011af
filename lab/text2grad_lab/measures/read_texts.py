"""`texts`: BERTScore and perplexity of files of answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from text2grad.config import Config
from text2grad.errors import UserError
from text2grad.eval.answers import SystemAnswers, read_answers
from text2grad.policy.load import choose_device, load_frozen
from text2grad.policy.model import Policy
from text2grad.stages import Summary, inlined
from text2grad.stages.evaluate.answers import load_heldout
from text2grad.stages.run_folder import ANSWERS, RunFolder, write_json
from text2grad.stages.training import prepare
from text2grad.tasks.base import question_text
from text2grad_lab.measures.bertscore import Encoder, bert_figures
from text2grad_lab.measures.perplexity import perplexity

Figures = dict[str, float | str | None]


@dataclass(frozen=True, kw_only=True)
class TextsSummary(Summary):
    """Figures by the name of the answers file, with the models that measured them."""

    figures: Mapping[str, Figures] = inlined()


def run_texts(config: Config, source: Path, encoder: str, reader: str) -> TextsSummary:
    """Measure the answers of a file, or of every `*.answers.json` of a folder.

    Raises:
        UserError: there are no answers, they cannot be read, or a model cannot be loaded.
    """
    files = sorted(source.glob(f"*{ANSWERS}")) if source.is_dir() else [source]
    if not files:
        raise UserError(f"{source} has no *{ANSWERS}", "text2grad evaluate NAME writes them")
    prompts = cache(lambda: load_heldout(RunFolder.of(config), config.evaluate.limit))
    systems = {file: read_answers(file, prompts) for file in files}
    policy = bert = None
    if reader:
        _refuse_no_prompts(systems)
        policy = load_frozen(prepare(config).policy(reader))
    if encoder:
        bert = Encoder(encoder, str(choose_device(config.policy.device)))
    summary: dict[str, Figures] = {}
    for file, answers in systems.items():
        figures = _figures(answers, bert, policy, config.generation.batch_size)
        summary[answers.name] = figures | ({"perplexity_of": reader} if reader else {})
        write_json(file.with_name(f"{answers.name}.texts.json"), summary[answers.name])
    return TextsSummary(figures=summary)


def _figures(answers: SystemAnswers, bert: Encoder | None, policy: Policy | None, batch_size: int) -> Figures:
    figures: Figures = {"answers": float(len(answers.texts))}
    if bert is not None:
        references = [example.reference for example in answers.examples]
        figures |= {**bert_figures(bert, references, answers.texts), "bertscore": bert.name}
    if policy is not None:
        figures["perplexity"] = perplexity(policy, answers.examples, answers.texts, batch_size)
    return figures


def _refuse_no_prompts(systems: Mapping[Path, SystemAnswers]) -> None:
    for file, answers in systems.items():
        if not all(question_text(example).strip() for example in answers.examples):
            raise UserError(f"{file}: an answer has no 'prompt'", "perplexity needs the prompt of every answer")
