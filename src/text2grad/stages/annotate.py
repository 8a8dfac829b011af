"""`annotate`: any critic over any responses, from a file or from the policy.

Judging a file imports no torch.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path

from text2grad.chat.journal import STATE_OF, STATES
from text2grad.config import Config, CriticKind
from text2grad.critics.program import outcome_counts
from text2grad.data.records import write_feedback
from text2grad.data.responses import Item, Items, check_items, read_items
from text2grad.errors import UsageError, UserError
from text2grad.eval.metrics import mean
from text2grad.feedback import Critic, Example, Failure, Feedback, judgements_of
from text2grad.jsonl import refuse_folder
from text2grad.sandbox import Runner
from text2grad.stages import Summary, inlined
from text2grad.stages.critics import admitted, make_critic, refuse_unfit, runner_of
from text2grad.stages.intake import writer_of
from text2grad.stages.paid import (
    AnnotateOptions,
    PaidSummary,
    annotate_paid,
    left,
    plan_for,
    refuse_endpoint_options,
)
from text2grad.tasks.base import feedback_split

AT_A_TIME = 8192
"""Items that a critic is shown at once: their judgements are held until all of them are judged."""


@dataclass(frozen=True, kw_only=True)
class JudgedSummary(Summary):
    """Counts of the judgements by outcome, and of the records written, for a critic that costs nothing."""

    requested: int
    ended: Mapping[str, int] = inlined()
    usd: float = 0.0
    records: int
    heldout_records: int | None = None
    kept_records: int
    spans: int
    failed_records: int
    mean_score: float
    outcomes: Mapping[str, int] | None = None
    out: str


@dataclass
class Tally:
    """Counts of the records that were written."""

    ended: Counter[str] = field(default_factory=Counter)
    scores: list[float] = field(default_factory=list)
    outcomes: Counter[str] = field(default_factory=Counter)
    spans: int = 0
    kept: int = 0

    def counted(self, records: Iterable[Feedback]) -> Iterator[Feedback]:
        """The records, counted on their way."""
        for record in records:
            judgement = record.judgement()
            self.ended[STATE_OF[judgement.kind] if isinstance(judgement, Failure) else "ok"] += 1
            self.scores += [record.score] if record.score is not None else []
            self.outcomes.update(outcome_counts([record]))
            self.spans += len(record.spans)
            yield record


def run_annotate(
    config: Config,
    responses: Path | None = None,
    out: Path | None = None,
    options: AnnotateOptions = AnnotateOptions(),  # noqa: B008 - frozen
) -> Summary:
    """Have responses judged: those of the file `responses`, else the policy's own, which are sampled first.

    Writes `out` (by default `feedback.jsonl` of the run) and, of held-out prompts,
    `feedback_heldout.jsonl` beside it, so that a reward model can be measured on responses to
    prompts it has never seen.

    Raises:
        UsageError: options that contradict each other, or are of no use with this critic.
        UserError: an item is bad (before any is judged), or a mistake that fails every critique.
    """
    kind, target = config.annotate.critic or config.critic.kind, out or config.run.folder / "feedback.jsonl"
    if out is not None:
        refuse_folder(out)
    if kind != "prompted":
        refuse_endpoint_options(options)
    if options.start and (responses is not None or options.anchor):
        raise UsageError("--from names the policy that answers, and none is sampled", "leave out --from")
    if options.budget_usd is None:
        options = replace(options, budget_usd=config.critic.prompted.budget_usd)
    with runner_of(config.sandbox) as runner:
        if responses is None:
            return annotate_samples(config, kind, target, options, runner)
        return annotate_file(config, kind, responses, target, options, runner)


def annotate_file(
    config: Config, kind: CriticKind, responses: Path, target: Path, options: AnnotateOptions, runner: Runner
) -> Summary:
    """Have the critic `kind` judge the responses in a file."""
    write = writer_of(config.policy)

    def items() -> Iterator[Item]:
        return islice(read_items(responses, options.anchor, write), options.limit)

    refuse_none(items)
    if options.plan:
        return plan_for(config, items, target, options)
    if kind == "prompted":
        return annotate_paid(config, items, target, options)
    if kind == "reward_model":
        from text2grad.stages.training import prepare

        prepare(config)
    judged: Items = items
    if kind == "program":
        warn_without_reference(items)
        judged = _admitted(config, items, runner)
    return summary_of(target, criticise(make_critic(config, kind, None, runner), judged, target))


def _admitted(config: Config, items: Items, runner: Runner) -> Items:
    """The responses to tasks whose tests may judge a program."""
    tasks = {_task_key(item.example): item.example for item in items()}
    keys = set(map(_task_key, admitted(config, "program", list(tasks.values()), runner)))
    return lambda: (item for item in items() if _task_key(item.example) in keys)


def _task_key(example: Example) -> tuple[str, ...]:
    """Return the key of a task in the gate; responses with different ids may share a task."""
    return tuple(map(str, (example.meta.get("tests"), example.meta.get("entry_point"), example.reference)))


def refuse_none(items: Items) -> None:
    """Refuse a bad item before any is judged, and a job without items."""
    if not check_items(items()):
        raise UserError("there are no responses to judge", "check the file")


def warn_without_reference(items: Items) -> None:
    """Warn on stderr about programs that the program critic cannot compare with a reference solution."""
    references = [bool(item.example.reference) for item in items()]
    if lacking := references.count(False):
        counted = f"{lacking} of {len(references)} programs come without a reference solution"
        cure = "a column reference makes the blame smaller"
        print(f"{counted}: faults are found by tests alone ({cure})", file=sys.stderr)


def annotate_samples(
    config: Config, kind: CriticKind, target: Path, options: AnnotateOptions, runner: Runner
) -> Summary:
    """Have the critic `kind` judge samples of the policy, or with `options.anchor` the data set's own drafts."""
    from text2grad.stages.sampling import sources_of
    from text2grad.stages.training import note_settings, prepare

    run = prepare(config)
    task, heldout = run.task(), target.with_name("feedback_heldout.jsonl")
    refuse_unfit(kind, task.examples(feedback_split(config.task)))
    critic = None if kind == "prompted" else make_critic(config, kind, task, runner)
    tested = runner if critic is None and config.annotate.run_tests else None
    admit = list if options.plan else partial(admitted, config, kind, runner=runner)
    items, held = sources_of(config, run, task, tested, options, admit)
    if options.plan:
        refuse_none(lambda: [*items, *held])
        return plan_for(config, lambda: [*items, *held], target, options)
    note_settings(config, run.path)
    if critic is None:
        return _paid_samples(config, (items, target), (held, heldout), options)
    tally = criticise(critic, lambda: items, target, replaces=critic.source.kind)
    others = criticise(critic, lambda: held, heldout, replaces=critic.source.kind)
    return summary_of(target, tally, others)


def _paid_samples(
    config: Config, train: tuple[list[Item], Path], held: tuple[list[Item], Path], options: AnnotateOptions
) -> PaidSummary:
    """Both files of a run out of one budget."""
    (items, target), (others, heldout) = train, held
    refuse_none(lambda: items)
    check_items(others)
    summary = annotate_paid(config, lambda: items, target, options)
    if not others:
        return summary
    unspent = left(options.budget_usd, summary.spent + (summary.canaries.get("canaries_usd") or 0.0))
    again = replace(options, budget_usd=unspent, canaries=False, add_requests=True)
    return summary.with_heldout(annotate_paid(config, lambda: others, heldout, again))


def criticise(critic: Critic, items: Items, target: Path, replaces: str = "") -> Tally:
    """Have a critic that answers at once judge all items; `replaces` as in `write_feedback`."""
    tally = Tally()
    _, tally.kept = write_feedback(target, tally.counted(_judged(critic, items())), replaces)
    return tally


def _judged(critic: Critic, items: Iterable[Item]) -> Iterator[Feedback]:
    waiting = iter(items)
    while chunk := list(islice(waiting, AT_A_TIME)):
        judgements = judgements_of(critic, [item.example for item in chunk], [item.response for item in chunk])
        for item, judgement in zip(chunk, judgements, strict=True):
            yield Feedback.of(item.example, item.response, judgement, critic.source)


def summary_of(out: Path, tally: Tally, heldout: Tally | None = None) -> JudgedSummary:
    """Return the summary of the stage; its counts include judgements of held-out prompts."""
    others = heldout or Tally()
    ended, outcomes = tally.ended + others.ended, tally.outcomes + others.outcomes
    return JudgedSummary(
        requested=ended.total(),
        ended={state: ended[state] for state in STATES},
        records=tally.ended.total(),
        heldout_records=heldout.ended.total() if heldout else None,
        kept_records=tally.kept,
        spans=tally.spans,
        failed_records=ended.total() - ended["ok"],
        mean_score=mean(tally.scores),
        outcomes=dict(outcomes.most_common()) or None,
        out=str(out),
    )
