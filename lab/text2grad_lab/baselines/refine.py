"""`refine`: the policy revises answers by their critiques, and the critic judges the revisions
(ILF).

Imitation learning from language feedback (Scheurer et al. 2023; for programs Chen et al. 2024):
several revisions of each answer, given the question, the answer and its critique.
`imitate FILE --best` then learns question -> best revision, without the critique.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from text2grad.config import Config
from text2grad.data.responses import Item
from text2grad.durable.progress import progress_reporter
from text2grad.errors import UserError
from text2grad.eval.metrics import mean
from text2grad.feedback import JUDGEMENT_KEYS, Critique, Example, Feedback
from text2grad.jsonl import read_jsonl
from text2grad.policy.load import load_frozen
from text2grad.policy.local_chat import LocalChat
from text2grad.stages import Summary, inlined
from text2grad.stages.annotate import criticise
from text2grad.stages.critics import critic_factory
from text2grad.stages.run_folder import RunFolder
from text2grad.stages.sampling import TOKEN_IDS
from text2grad.stages.train import read_training_records
from text2grad.stages.training import prepare
from text2grad.tasks.base import question_key
from text2grad_lab.baselines.records import refuse_transcripts
from text2grad_lab.baselines.revision import Case, asks_no_change, refine_settings, revise, revision_prompt

ANSWER_KEYS = {*JUDGEMENT_KEYS, TOKEN_IDS, "outcome", "tier", "test_output", "evidence"}
"""Keys of `meta` that describe the recorded answer, not the prompt."""


@dataclass(frozen=True, kw_only=True)
class RefineSummary(Summary):
    """Counts of a run of `refine`.

    `answers` in the file, those with `nothing_to_mend` and those revised; `revisions` written,
    `refused` by reason, and judged (`records`); those that `passed`, and the tokens of the policy.
    """

    answers: int
    nothing_to_mend: int
    answers_revised: int
    left_out: Mapping[str, int] = inlined()
    revisions: int
    refused: Mapping[str, int]
    records: int
    passed: int
    mean_score: float
    input_tokens: int
    output_tokens: int
    out: str


def run_refine(config: Config, source: Path, out: Path | None = None, start: str = "") -> RefineSummary:
    """Revise the criticised answers in `source`, `extra.refine.samples` times each, and write the
    judged revisions.

    `start` names the policy (a run's name or a folder; "": the SFT policy).

    Raises:
        UserError: there is nothing to revise (`read_training_records`), or no usable revision.
    """
    run, settings = prepare(config), refine_settings(config)
    task = run.task()
    kind = config.annotate.critic or config.critic.kind
    if kind == "human":
        raise UserError("people cannot judge revisions during a run", "--annotate.critic program, prompted, ...")
    records, left_out = read_training_records(source, run)
    refuse_transcripts(records, "refine")
    cases = cases_of(records)
    selected = list(first_of_each(cases, settings.answers_per_prompt))
    if not selected:
        raise UserError(f"{source}: no critique of {len(records)} asks for a change", "annotate other answers")
    policy = load_frozen(RunFolder.of(config).policy(start))
    chat = LocalChat(policy, config.generation, start or "sft", make_progress=progress_reporter("revisions"))
    repeated = [case for case in selected for _ in range(settings.samples)]
    revisions = revise(chat, revision_prompt(), repeated)
    refused: Counter[str] = Counter(revision.refused for revision in revisions if revision.refused)
    pairs = zip(repeated, revisions, strict=True)
    items = [Item(case.example, revision.text, shares_id=True) for case, revision in pairs if not revision.refused]
    if not items:
        reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(refused.items()))
        raise UserError(
            f"no revision of {len(revisions)} is usable: {reasons}", "use a stronger policy with --from"
        )
    target = out or run.path / "refined.jsonl"
    journal = target.with_name(target.name + ".journal")
    with critic_factory(config, kind) as factory, factory.open(task, policy, journal) as critic:
        judged_records, _ = criticise(critic, items, target, critic.source.kind)
    return RefineSummary(
        answers=len(records),
        nothing_to_mend=len(records) - len(cases),
        answers_revised=len(selected),
        left_out=left_out,
        revisions=len(revisions),
        refused=dict(refused),
        records=len(items),
        passed=sum((record.score or 0.0) > 0 for record in read_jsonl(target, Feedback)),
        mean_score=mean([record.score for record in judged_records if record.score is not None]),
        input_tokens=chat.usage["input_tokens"],
        output_tokens=chat.usage["output_tokens"],
        out=str(target),
    )


def cases_of(records: Sequence[Feedback]) -> list[Case]:
    """Return the answers whose critique asks for a change."""
    return [
        Case(example_to_revise(record), record.response, critique)
        for record in records
        if isinstance(critique := record.judgement(), Critique) and not asks_no_change(critique)
    ]


def first_of_each(cases: Sequence[Case], limit: int | None) -> Iterator[Case]:
    """Yield at most `limit` cases per question, in their order."""
    counts: Counter[str] = Counter()
    for case in cases:
        question = question_key(case.example)
        counts[question] += 1
        if limit is None or counts[question] <= limit:
            yield case


def example_to_revise(record: Feedback) -> Example:
    """Return the example of a record without the metadata of its recorded answer."""
    example = record.example()
    meta = {name: value for name, value in example.meta.items() if name not in ANSWER_KEYS}
    return example.model_copy(update={"meta": meta})
