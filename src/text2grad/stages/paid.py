"""`annotate` with an endpoint: a journal next to the records makes every answer cost money once."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from text2grad.chat.batch import read_answers, run_batch, write_requests
from text2grad.chat.client import OpenAIChat
from text2grad.chat.journal import STATES
from text2grad.chat.questions import Question
from text2grad.chat.settings import EndpointSettings
from text2grad.critics.canaries import canaries_path, canary_items
from text2grad.critics.prompted import PromptedCritic
from text2grad.data.records import write_feedback
from text2grad.data.responses import Item, Items
from text2grad.errors import EXIT_BATCH_PENDING, EXIT_BUDGET, EXIT_SOME_RECORDS_FAILED, UsageError, UserError
from text2grad.feedback import Feedback
from text2grad.jsonl import read_jsonl, reading
from text2grad.page.quality import measure
from text2grad.stages import Summary, inlined
from text2grad.stages.critics import prompted_critic
from text2grad.stages.run_folder import HELDOUT_FEEDBACK

MOST_MOVED = 0.5
"""The largest share of the canaries that a critic may misjudge."""


@dataclass(frozen=True)
class AnnotateOptions:
    """Command-line options of `annotate` that are not settings.

    All but `limit`, `start` (the policy to sample; "": the SFT policy) and `sheet` (of a workbook)
    apply to a critic behind an endpoint only. `canaries` None: canaries are judged, unless requests
    or answers are files.
    """

    plan: bool = False
    budget_usd: float | None = None
    limit: int | None = None
    resume: bool = True
    again: bool = False
    anchor: bool = False
    batch: bool = False
    requests: Path | None = None
    answers: Path | None = None
    canaries: bool | None = None
    start: str = ""
    sheet: str = ""

    @property
    def asks(self) -> bool:
        """True if a server is called now, so that a key may be needed."""
        return not self.plan and self.requests is None and self.answers is None

    @property
    def with_canaries(self) -> bool:
        """True if the critic has to judge canaries first."""
        return self.requests is None and self.answers is None if self.canaries is None else self.canaries


@dataclass(frozen=True, kw_only=True)
class PaidSummary(Summary):
    """Outcomes and cost of a job's questions (`OpenAIChat.tally`), and counts of its records."""

    tally: Mapping[str, float | None] = inlined()
    canaries: Mapping[str, Any] = inlined()
    records: int
    heldout_records: int | None = None
    sent: int
    left_out: Sequence[str]
    price: str
    journal: str
    out: str
    exit_code: int

    @property
    def spent(self) -> float:
        """The USD used of the job's budget, including requests that may cost without an answer."""
        return (self.tally["usd"] or 0.0) + (self.tally["usd_without_answer"] or 0.0)

    def with_heldout(self, other: PaidSummary) -> PaidSummary:
        """Add the summary of the job for held-out prompts; `usd_without_answer` is not added."""
        names = (*STATES, "requested", "pending", "usd")
        pairs = {name: (self.tally[name], other.tally[name]) for name in names}
        sums = {name: None if a is None or b is None else a + b for name, (a, b) in pairs.items()}
        return replace(
            self,
            tally={**self.tally, **sums},
            heldout_records=other.records,
            sent=self.sent + other.sent,
            exit_code=max(self.exit_code, other.exit_code),
        )


@dataclass(frozen=True, kw_only=True)
class PlanSummary(Summary):
    """The remaining cost of a job (`OpenAIChat.plan`)."""

    records: int
    cost: Mapping[str, Any] = inlined()


def refuse_endpoint_options(options: AnnotateOptions) -> None:
    """Refuse options for endpoints with a critic that has no endpoint.

    Raises:
        UsageError: such an option is set.
    """
    values, defaults = asdict(options), asdict(AnnotateOptions(limit=options.limit, start=options.start))
    flags = {"requests": "write-requests", "answers": "read-answers", "resume": "no-resume"}
    if options.canaries is False:
        flags["canaries"] = "no-canaries"
    unused = [f"--{flags.get(name, name.replace('_', '-'))}" for name in values if values[name] != defaults[name]]
    if unused:
        raise UsageError(f"{', '.join(unused)}: only for a chat model", "--annotate.critic prompted")


@dataclass(frozen=True)
class PaidJob:
    """A job that asks a chat model behind an endpoint, within the endpoint's budget.

    Every question is paid for once.
    """

    endpoint: EndpointSettings
    prompt: str
    options: AnnotateOptions

    def annotate(self, items: Items, target: Path) -> PaidSummary:
        """Have every item judged once, and write the records to `target`.

        Answers are first written to the journal `<target>.journal`. Whatever happens, they are
        kept, and the same command asks only the remaining questions. The summary's `exit_code` is 3
        if some questions failed, 4 if the budget is spent, 75 if a batch is pending.

        Raises:
            UserError: every question would fail.
        """
        if not self.options.with_canaries:
            return self._annotate(items, target)
        canaries = self._judge_canaries(target)
        return self._after(canaries.pop("canaries_spent"))._annotate(items, target, canaries)

    def annotate_both(self, train: Sequence[Item], heldout: Sequence[Item], target: Path) -> PaidSummary:
        """Have the training and held-out parts of a run judged within one budget.

        Records of held-out prompts are written to the folder of `target`.
        """
        summary = self.annotate(lambda: train, target)
        if not heldout:
            return summary
        job = self._after(summary.spent + (summary.canaries.get("canaries_usd") or 0.0))
        heldout_target = target.with_name(HELDOUT_FEEDBACK)
        return summary.with_heldout(job._annotate(lambda: heldout, heldout_target, add_requests=True))

    def plan(self, items: Items, target: Path) -> PlanSummary:
        """Return the cost of the remaining questions, without sending or writing anything."""
        journal = journal_of(target)
        stored = journal if journal.is_file() and self.options.resume else None
        with self._with_budget(None)._chat(stored) as chat:
            critic = prompted_critic(chat, self.prompt, use_evidence=True)
            records = sum(1 for item in items() if self._is_question(item))
            return PlanSummary(records=records, cost=chat.plan(self._questions(critic, items)))

    def _is_question(self, item: Item) -> bool:
        """True if the critic is asked about the item; with `--anchor`, if a comment needs marks."""
        return bool(item.comment) or not self.options.anchor

    def _questions(self, critic: PromptedCritic, items: Items) -> Iterator[Question]:
        return (critic.question(item.example, item.response) for item in items() if self._is_question(item))

    def _records(self, critic: PromptedCritic, items: Items) -> Iterator[Feedback]:
        """Yield a record per answer so far, in the order of the items; others stay unchanged."""
        for item in items():
            records = list(critic.feedback([(item.example, item.response)])) if self._is_question(item) else []
            yield from map(item.with_spans, records)
            if item.original is not None and not records:
                yield item.original

    def _annotate(
        self, items: Items, target: Path, canaries: Mapping[str, Any] | None = None, add_requests: bool = False
    ) -> PaidSummary:
        """Annotate without canaries; with `add_requests`, append to the file of requests."""
        journal = journal_of(target)
        if not self.options.resume:
            _set_aside(journal)
        with self._chat(journal) as chat:
            critic = prompted_critic(chat, self.prompt, use_evidence=True)
            try:
                done = self._ask(chat, critic, items, add_requests)
            finally:
                count, _ = write_feedback(target, self._records(critic, items))
            tally = chat.tally(self._questions(critic, items))
            return PaidSummary(
                tally=tally,
                canaries=canaries or {},
                records=count,
                sent=chat.asker.sent,
                left_out=sorted(chat.asker.questioner.refused),
                price=chat.price_status,
                journal=str(journal),
                out=str(target),
                exit_code=_exit_code(chat, tally, done),
            )

    def _ask(self, chat: OpenAIChat, critic: PromptedCritic, items: Items, add_requests: bool) -> bool:
        """Ask the questions as the options require; return False while answers are pending."""
        options = self.options

        def questions() -> Iterator[Question]:
            return self._questions(critic, items)

        if options.requests is not None:
            count = write_requests(chat, questions, options.requests, add=add_requests)
            more = " more" if add_requests else ""
            line = f"{count}{more} requests written to {options.requests}: run them, then use --read-answers FILE"
            _print_status(line)
            return not count
        if options.answers is not None:
            with reading(options.answers), options.answers.open(encoding="utf-8", errors="replace") as lines:
                read_answers(chat, questions, critic.verdict, lines)
            return True
        if options.batch:
            return not run_batch(chat, questions, critic.verdict, _print_status)
        chat.settle(questions(), critic.verdict)
        return True

    def _chat(self, journal: Path | None) -> OpenAIChat:
        options = self.options
        return OpenAIChat(self.endpoint, journal, again=options.again, asks=options.asks, progress=True)

    def _with_budget(self, usd: float | None) -> PaidJob:
        return replace(self, endpoint=self.endpoint.model_copy(update={"budget_usd": usd}))

    def _after(self, spent: float) -> PaidJob:
        """Return the job with the remaining budget."""
        budget = self.endpoint.budget_usd
        return self if budget is None else self._with_budget(max(0.0, budget - spent))

    def _judge_canaries(self, target: Path) -> dict[str, Any]:
        """Have the canaries judged, and return their counts and cost for the summary.

        A critic that misjudges more than `MOST_MOVED` of the canaries is refused. The same command
        asks about all canaries again, since the server may have been fixed.

        Raises:
            UserError: the critic misjudges too many canaries, or no answer is readable.
        """
        pairs = canary_items(self.prompt.rpartition(":")[2], self.options.anchor)
        canaries = [Item(*pair) for pair in pairs]
        path, options = canaries_path(target), self.options
        job = replace(self, options=AnnotateOptions(resume=options.resume, again=options.again))
        summary = job._annotate(lambda: canaries, path)
        figures = measure((), read_jsonl(path, Feedback))
        moved, judgements = figures["canaries_moved"], figures["canaries"]
        cure = f"read {path}; try another model or prompt, or --no-canaries"
        unreadable, misjudged = not judgements and not summary.tally["pending"], moved > MOST_MOVED * judgements
        if unreadable or misjudged:
            _set_aside(journal_of(path))
        if unreadable:
            raise UserError("this critic gave no readable answer to any canary", cure)
        if misjudged:
            problem = f"{moved} of {judgements} canaries were misjudged"
            raise UserError(f"{problem}: this critic misses obvious faults, or obeys the answers", cure)
        if moved:
            _print_status(
                f"{moved} of {len(canaries)} canaries were misjudged: read {path} before you trust this critic"
            )
        return {
            "canaries": judgements,
            "canaries_moved": moved,
            "canaries_usd": summary.tally["usd"],
            "canaries_spent": summary.spent,
            "canaries_out": str(path),
        }


def journal_of(target: Path) -> Path:
    """Return the path of the journal with the answers behind the records in `target`."""
    return target.with_name(target.name + ".journal")


def _exit_code(chat: OpenAIChat, tally: Mapping[str, float | None], done: bool) -> int:
    if not done:
        return EXIT_BATCH_PENDING
    if chat.asker.budget.reached:
        return EXIT_BUDGET
    return 0 if tally["ok"] == tally["requested"] and not tally["pending"] else EXIT_SOME_RECORDS_FAILED


def _set_aside(journal: Path) -> None:
    """Rename a journal, so that the job starts over without deleting paid answers."""
    if journal.is_file():
        number = next(n for n in range(1, 1_000_000) if not journal.with_name(f"{journal.name}.{n}").exists())
        journal.rename(journal.with_name(f"{journal.name}.{number}"))


def _print_status(line: str) -> None:
    print(line, file=sys.stderr)
