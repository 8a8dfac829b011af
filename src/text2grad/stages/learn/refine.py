"""`refine`: the policy rewrites answers by their critiques, and the critic judges what it wrote (ILF).

Imitation learning from language feedback (Scheurer et al. 2023; for programs Chen et al. 2024): several revisions
of each answer given the question, the answer and its critique. `sft --records FILE --best` then learns question ->
best revision, which the policy never sees together with the critique again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from text2grad.config import Config
from text2grad.critics.revision import finds_nothing
from text2grad.durable.progress import counting
from text2grad.errors import UserError
from text2grad.eval.metrics import mean
from text2grad.eval.reflection import Case, Revision, revise
from text2grad.feedback import OF_A_JUDGEMENT, Critique, Example, Feedback, read_jsonl
from text2grad.formats.responses import Item
from text2grad.policy.load import load_frozen
from text2grad.policy.local_chat import LocalChat
from text2grad.stages.judge.critics import open_critic, runner_of
from text2grad.stages.judge.records import criticise
from text2grad.stages.judge.revise import revision_prompt
from text2grad.stages.learn.logged import answers_in, refuse_transcripts
from text2grad.stages.run.folder import prepare
from text2grad.stages.run.policies import start_policy
from text2grad.stages.run.prompts import task_of
from text2grad.stages.run.sampling import TOKEN_IDS
from text2grad.stages.run.summary import Summary, inlined
from text2grad.tasks.base import question_of, words_of

OF_THE_ANSWER = {*OF_A_JUDGEMENT, TOKEN_IDS, "outcome", "tier", "test_output", "evidence"}
"""Keys of `meta` that do not hold for a revision."""


@dataclass(frozen=True, kw_only=True)
class RefineSummary(Summary):
    """Answers of the file, those that left nothing to mend, and those that were to be revised; revisions that were
    written, refused by reason, and judged; those that passed, and the tokens they took."""

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
    """Have a policy (`start`: a run's name or a folder; "": the SFT policy) revise the answers in `source` that its
    critic found fault with, `refine.samples` times each; writes what the critic says of the revisions.

    Raises:
        UserError: there is nothing to revise (`logged.answers_in`), or no revision is of use.
    """
    folder, task = prepare(config), task_of(config)
    kind = config.annotate.critic or config.critic.kind
    if kind == "human":
        raise UserError("people have said nothing of revisions yet", "--annotate.critic program, prompted, ...")
    prompt = revision_prompt(config)
    records, left_out = answers_in(source, config, task)
    refuse_transcripts(records, "refine")
    cases = list(first_of_each(cases_of(records), config.refine.answers_per_prompt))
    if not cases:
        raise UserError(
            f"{source}: no critique of {len(records)} leaves anything to mend", "annotate other answers"
        )
    policy = load_frozen(start_policy(config, start))
    chat = LocalChat(policy, config.generation, start or "sft", counted=counting("revisions"))
    wanted = [case for case in cases for _ in range(config.refine.samples)]
    found = revise(chat, prompt, wanted)
    refused = Counter(each.refused for each in found if each.refused)
    target = out or folder / "refined.jsonl"
    items = [
        Item(case.example, each.text, ours=True) for case, each in zip(wanted, found, strict=True) if useful(each)
    ]
    if not items:
        raise UserError(
            f"no revision of {len(found)} is of use: {_counted(refused)}", "take a stronger policy, --from"
        )
    journal = target.with_name(target.name + ".journal")
    with runner_of(config) as runner, open_critic(config, kind, task, runner, policy, journal) as critic:
        tally = criticise(critic, lambda: items, target, critic.source.kind)
    return RefineSummary(
        answers=len(records),
        nothing_to_mend=len(records) - len(cases_of(records)),
        answers_revised=len(cases),
        left_out=left_out,
        revisions=len(found),
        refused=dict(refused),
        records=len(items),
        passed=sum((record.score or 0.0) > 0 for record in read_jsonl(target, Feedback)),
        mean_score=mean(tally.scores),
        input_tokens=chat.usage["input_tokens"],
        output_tokens=chat.usage["output_tokens"],
        out=str(target),
    )


def useful(revision: Revision) -> bool:
    """Whether it may become a target."""
    return not revision.refused


def cases_of(records: Sequence[Feedback]) -> list[Case]:
    """The answers whose critique leaves something to mend."""
    judged = [(record, record.judgement()) for record in records]
    return [
        Case(asked_again(record), record.response, said)
        for record, said in judged
        if isinstance(said, Critique) and not finds_nothing(said)
    ]


def first_of_each(cases: Sequence[Case], most: int | None) -> Iterator[Case]:
    """At most so many cases of each question, in their order."""
    seen: Counter[str] = Counter()
    for case in cases:
        question = words_of(question_of(case.example))
        seen[question] += 1
        if most is None or seen[question] <= most:
            yield case


def asked_again(record: Feedback) -> Example:
    """The example of a record, without what holds for the answer on record alone."""
    example = record.example()
    meta = {name: value for name, value in example.meta.items() if name not in OF_THE_ANSWER}
    return example.model_copy(update={"meta": meta})


def _counted(refused: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {reason}" for reason, count in sorted(refused.items()))
