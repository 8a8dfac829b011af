"""`evaluate --answers`: files of answers by any system, measured without it. No torch unless a model reads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from text2grad.config import Config
from text2grad.data.files import bad_record
from text2grad.data.published import refuse_shared_ids
from text2grad.errors import UsageError, optional_packages
from text2grad.eval.answers import Known, SystemAnswers, name_of, pair_with, read_answers, theirs_of
from text2grad.eval.judge import AnswerPair
from text2grad.eval.measures import TextMeasures
from text2grad.eval.metrics import mean
from text2grad.feedback import Example
from text2grad.stages.measure.judging import judged_against, refuse_no_judge
from text2grad.stages.run.prompts import heldout_prompts, task_of
from text2grad.stages.run.results import measured_on, refuse_unwritable, write_results
from text2grad.stages.run.summary import Summary, inlined
from text2grad.tasks.base import question_of

if TYPE_CHECKING:
    pass


@dataclass(frozen=True, kw_only=True)
class AnswersSummary(Summary):
    """The figures of a file of answers; of several files, `systems` has those of each by its name.

    `failed_records`: pairs of answers, or ratings, of which the judge said nothing readable.
    """

    figures: Mapping[str, Any] = inlined()
    failed_records: int | None = None
    out: str | None = None


def run_evaluate_answers(config: Config, files: Sequence[Path], against: str | None = None) -> AnswersSummary:
    """Measure files of answers, and have each compared with `against`: a file like them, or "references".

    Figures are written to `evaluation/<task>/<file's name>.json` of the run.

    Raises:
        UsageError: two files of one name, or a comparison without a judge.
        UserError: a file cannot be read, a column is missing, a reference is empty, answers of another task.
    """
    names = [name_of(file) for file in files]
    if repeated := next((name for name in names if names.count(name) > 1), None):
        raise UsageError(f"two files of answers are called {repeated!r}", "rename one: the name is that of the row")
    if against is not None:
        refuse_no_judge(config, "--against")
    refuse_unwritable(config.run.folder)
    known = cache(lambda: heldout_of(config))
    systems = [read_answers(file, known) for file in files]
    if against is not None or config.evaluate.perplexity:
        _check_prompts(systems, files)
    pairs = {each.name: pairs_with(config, each, against, known) for each in systems} if against else {}
    with text_measures(config) as measure:
        found = {each.name: _figures(each, measure) for each in systems}
    for each in systems:
        if against is not None:
            found[each.name] |= judged_against(config, against, pairs[each.name])
    outs = [_written(config, file, each, found[each.name]) for file, each in zip(files, systems, strict=True)]
    failed = sum(int(figures.get("judge_failed") or 0) for figures in found.values())
    summary = found[names[0]] if len(names) == 1 else {"systems": found}
    out = str(outs[0]) if len(outs) == 1 and outs[0] else None
    return AnswersSummary(figures=summary, failed_records=failed if against else None, out=out)


@contextmanager
def text_measures(config: Config) -> Iterator[TextMeasures]:
    """The measures of texts that the settings name; their models are loaded here, and only if named."""
    settings = config.evaluate
    encoder = reader = None
    with optional_packages():
        if settings.bertscore.model:
            from text2grad.eval.bertscore import Encoder
            from text2grad.policy.load import choose_device

            encoder = Encoder(settings.bertscore.model, str(choose_device(config.policy.device)))
        if settings.perplexity:
            from text2grad.policy.load import load_frozen
            from text2grad.stages.run.folder import prepare
            from text2grad.stages.run.policies import named_policy

            prepare(config)
            reader = load_frozen(named_policy(config, settings.perplexity))
    yield TextMeasures(encoder, reader, settings.perplexity, config.generation.batch_size)


def heldout_of(config: Config) -> dict[str, Example]:
    """The prompts of the task that are measured on, by id.

    Raises:
        UserError: there are none.
    """
    found = heldout_prompts(config, task_of(config))
    refuse_shared_ids(found, config.task.name)
    return {example.id: example for example in found}


def pairs_with(config: Config, ours: SystemAnswers, against: str, known: Known) -> list[AnswerPair]:
    """A system's answers beside those it is compared with."""
    return pair_with(ours.name, against, ours.examples, ours.texts, theirs_of(against, ours.examples, known))


def _check_prompts(systems: Sequence[SystemAnswers], files: Sequence[Path]) -> None:
    for each, file in zip(systems, files, strict=True):
        for number, example in enumerate(each.examples, start=1):
            if not question_of(example).strip():
                cure = "a judge and a model that measures perplexity read the prompt, too"
                raise bad_record(file, number, ValueError(f"no column 'prompt': {cure}"))


def _figures(each: SystemAnswers, measure: TextMeasures) -> dict[str, Any]:
    """Return the figures of one file."""
    counts: dict[str, Any] = {"answers": len(each.texts)}
    counts |= {} if each.missing is None else {"missing": each.missing}
    lengths = {"length_characters": mean([len(text) for text in each.texts])}
    return {**counts, **measure(each.examples, each.texts), **lengths, **measure.named}


def _written(config: Config, file: Path, each: SystemAnswers, figures: Mapping[str, Any]) -> Path | None:
    """Where the figures went; an evaluation's own answers have theirs already, and more of them."""
    folder = config.run.folder
    if file.absolute().is_relative_to((folder / "evaluation").absolute()):
        return None
    rows = [
        {"id": example.id, "response": text, "scores": {}}
        for example, text in zip(each.examples, each.texts, strict=True)
    ]
    return write_results(folder, measured_on(config), each.name, figures, rows)
