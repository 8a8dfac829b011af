"""`evaluate --answers`: files of answers by any system, measured without the system. No torch unless a model reads.

A file is JSON Lines, JSON or CSV. A row has `response` (or `output`), and either `reference` (and `prompt`), or the
`id` of a held-out prompt of the task. `evaluate` itself writes such files (`<name>.answers.json`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from text2grad.config import Config
from text2grad.errors import UsageError, UserError, optional_packages
from text2grad.eval.benchmarks.letters import choice_figures, has_choices, letter_rows
from text2grad.eval.judge import AnswerPair
from text2grad.eval.metrics import mean
from text2grad.eval.texts import Figure, no_bert_figures, text_figures
from text2grad.feedback import Example, Message
from text2grad.stages.judging import REFERENCES, judged_against, pair_with, refuse_no_judge
from text2grad.stages.prompts import task_of
from text2grad.stages.results import measured_on, refuse_unwritable, write_results
from text2grad.stages.summary import Summary, inlined
from text2grad.tasks.base import question_of, refuse_shared_ids
from text2grad.tasks.loaders import Row, bad_record, load_rows, reference_of

if TYPE_CHECKING:
    from text2grad.eval.bertscore import Encoder
    from text2grad.policy.model import Policy

RESPONSE_COLUMNS = ("response", "output")
PROMPT_COLUMNS = ("prompt", "instruction")
Known = Callable[[], Mapping[str, Example]]
"""The held-out prompts of the task by id; read only where a file needs them."""


class Answered(NamedTuple):
    """The answers of one system: a text to each example, and how many prompts of the task it did not answer."""

    name: str
    examples: list[Example]
    texts: list[str]
    missing: int | None


class TextMeasures:
    """What texts are measured by: always ROUGE and BLEU, and by the models that the settings name."""

    def __init__(self, encoder: Encoder | None, reader: Policy | None, config: Config) -> None:
        self._encoder, self._reader, self._config = encoder, reader, config

    @property
    def named(self) -> dict[str, str]:
        """The models that measure, by figure."""
        found = {"bertscore": self._encoder.name} if self._encoder else {}
        return found | ({"perplexity_of": self._config.evaluate.perplexity} if self._reader else {})

    def __call__(self, examples: Sequence[Example], texts: Sequence[str]) -> dict[str, Figure]:
        """All figures of texts, each against the reference of its example; None where no model measures."""
        references = [example.reference for example in examples]
        found = text_figures(references, texts)
        if self._encoder:
            from text2grad.eval.bertscore import bert_figures

            found |= bert_figures(self._encoder, references, texts)
        else:
            found |= no_bert_figures()
        return found | {"perplexity": self.perplexity(examples, texts)}

    def perplexity(self, examples: Sequence[Example], texts: Sequence[str]) -> float | None:
        """Of texts given their prompts, under `evaluate.perplexity`; None without it."""
        if self._reader is None:
            return None
        from text2grad.eval.perplexity import perplexity

        return perplexity(self._reader, examples, texts, self._config.generation.batch_size)


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


def name_of(file: Path) -> str:
    """What the answers of a file are called."""
    return file.name.partition(".")[0]


@contextmanager
def text_measures(config: Config) -> Iterator[TextMeasures]:
    """The measures of texts that the settings name; their models are loaded here, and only if named."""
    settings = config.evaluate
    encoder = reader = None
    with optional_packages():
        if settings.bertscore.model:
            from text2grad.eval.bertscore import Encoder
            from text2grad.policy.load import choose_device

            encoder = Encoder(settings.bertscore, str(choose_device(config.policy.device)))
        if settings.perplexity:
            from text2grad.policy.load import load_frozen
            from text2grad.stages.folder import policy_name, prepare

            prepare(config)
            model = policy_name(config, settings.perplexity)
            reader = load_frozen(config.policy.model_copy(update={"model": model}))
    yield TextMeasures(encoder, reader, config)


def heldout_of(config: Config) -> dict[str, Example]:
    """The prompts of the task that are measured on, by id.

    Raises:
        UserError: there are none.
    """
    found = task_of(config).examples("heldout")[: config.evaluate.limit]
    if not found:
        raise UserError("no held-out prompts to evaluate on", "raise task.heldout_share")
    refuse_shared_ids(found, config.task.name)
    return {example.id: example for example in found}


def read_answers(file: Path, known: Known) -> Answered:
    """The answers in a file, each with the example that it answers.

    Where rows bring no `reference`, the examples are those of the task with their ids.

    Raises:
        UserError: the file cannot be read, or a row has no response, an empty reference or an unknown id (which).
    """
    rows = load_rows(str(file))
    if "tests" in rows[0] or "solution" in rows[0] or "completion" in rows[0]:
        raise UserError(f"{file} holds programs", f"text2grad evaluate --samples {file}")
    own = "reference" in rows[0]
    examples, texts = [], []
    for number, row in enumerate(rows, start=1):
        try:
            texts.append(_response(row))
            examples.append(_own_example(row, f"{file.stem}-{number}") if own else _known_example(row, known()))
        except ValueError as error:
            raise bad_record(file, number, error) from error
    answered = {example.id for example in examples}
    return Answered(name_of(file), examples, texts, None if own else len(known().keys() - answered))


def theirs_of(against: str, examples: Sequence[Example], known: Known) -> dict[str, str]:
    """What answers are compared with, by id: the references, or the answers in a file.

    Raises:
        UserError: see `read_answers`; or an id occurs twice.
    """
    if against == REFERENCES:
        refuse_shared_ids(examples, "answers")
        return {example.id: example.reference for example in examples if example.reference.strip()}
    other = read_answers(Path(against), known)
    found = dict(zip([example.id for example in other.examples], other.texts, strict=True))
    if len(found) < len(other.texts):
        raise UserError(f"{against} answers a prompt twice", "one answer to a prompt, to compare")
    return found


def pairs_with(config: Config, ours: Answered, against: str, known: Known) -> list[AnswerPair]:
    """A system's answers beside those it is compared with."""
    return pair_with(ours.name, against, ours.examples, ours.texts, theirs_of(against, ours.examples, known))


def _response(row: Row) -> str:
    found = next((row[name] for name in RESPONSE_COLUMNS if name in row), None)
    if found is None:
        raise ValueError(f"no column {RESPONSE_COLUMNS[0]!r}")
    if not isinstance(found, str):
        raise ValueError("the response is not text")
    return found


def _own_example(row: Row, fallback: str) -> Example:
    reference = reference_of(row, "reference")
    if not reference:
        raise ValueError("the reference is empty")
    prompt: Any = next((row[name] for name in PROMPT_COLUMNS if row.get(name)), "")
    turns = [Message(role="user", content=prompt)] if isinstance(prompt, str) else prompt
    return Example.model_validate({"id": str(row.get("id") or fallback), "prompt": turns, "reference": reference})


def _known_example(row: Row, known: Mapping[str, Example]) -> Example:
    if row.get("id") in (None, ""):
        raise ValueError("neither a 'reference' nor the 'id' of a prompt")
    example = known.get(str(row["id"]))
    if example is None:
        first = next(iter(known), "none")
        raise ValueError(f"no held-out prompt {str(row['id'])[:60]!r}, such as {first!r}: answers of another task?")
    if "tests" in example.meta:
        raise ValueError("its prompt has tests: programs are measured by --samples FILE")
    if not example.reference.strip():
        raise ValueError(f"the reference of prompt {example.id!r} is empty")
    return example


def _check_prompts(systems: Sequence[Answered], files: Sequence[Path]) -> None:
    for each, file in zip(systems, files, strict=True):
        for number, example in enumerate(each.examples, start=1):
            if not question_of(example).strip():
                cure = "a judge and a model that measures perplexity read the prompt, too"
                raise bad_record(file, number, ValueError(f"no column 'prompt': {cure}"))


def _figures(each: Answered, measure: TextMeasures) -> dict[str, Any]:
    """The figures of one file: of texts, or of letters where the questions have given answers."""
    counts: dict[str, Any] = {"answers": len(each.texts)}
    counts |= {} if each.missing is None else {"missing": each.missing}
    if has_choices(each.examples[0]):
        return {"likelihood": None, **choice_figures(letter_rows(each.examples, each.texts)), **counts}
    lengths = {"length_characters": mean([len(text) for text in each.texts])}
    return {**counts, **measure(each.examples, each.texts), **lengths, **measure.named}


def _written(config: Config, file: Path, each: Answered, figures: Mapping[str, Any]) -> Path | None:
    """Where the figures went; an evaluation's own answers have theirs already, and more of them."""
    folder = config.run.folder
    if file.absolute().is_relative_to((folder / "evaluation").absolute()):
        return None
    rows = [
        {"id": example.id, "response": text, "scores": {}}
        for example, text in zip(each.examples, each.texts, strict=True)
    ]
    return write_results(folder, measured_on(config), each.name, figures, rows)
