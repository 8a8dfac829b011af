"""`annotate` with an endpoint: every answer is paid for once, through a journal beside the
records."""

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
"""Share of the canaries that a critic may misjudge."""


@dataclass(frozen=True)
class AnnotateOptions:
    """What the command line says beside the settings: how far to go this time.

    All but `limit`, `start` (the policy that answers; "": the SFT policy) and `sheet` (of a
    workbook) are for a critic behind an endpoint.
    `canaries` None: wherever it is asked now, not where requests or answers are a file.
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
        """Whether a server is asked now, so that a key may be needed."""
        return not self.plan and self.requests is None and self.answers is None

    @property
    def with_canaries(self) -> bool:
        """Whether the critic is tried on canaries first."""
        return self.requests is None and self.answers is None if self.canaries is None else self.canaries


@dataclass(frozen=True, kw_only=True)
class PaidSummary(Summary):
    """How the questions of a job ended, what they cost (`OpenAIChat.tally`), and the records that
    were written."""

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
        """USD used of the job's budget: answers, and requests that may cost without an answer."""
        return (self.tally["usd"] or 0.0) + (self.tally["usd_without_answer"] or 0.0)

    def with_heldout(self, other: PaidSummary) -> PaidSummary:
        """Together with the job for held-out prompts. `usd_without_answer` stays that of the
        first."""
        names = (*STATES, "requested", "pending", "usd")
        both = {name: (self.tally[name], other.tally[name]) for name in names}
        sums = {name: None if a is None or b is None else a + b for name, (a, b) in both.items()}
        return replace(
            self,
            tally={**self.tally, **sums},
            heldout_records=other.records,
            sent=self.sent + other.sent,
            exit_code=max(self.exit_code, other.exit_code),
        )


@dataclass(frozen=True, kw_only=True)
class PlanSummary(Summary):
    """What a job would still cost (`OpenAIChat.plan`)."""

    records: int
    cost: Mapping[str, Any] = inlined()


def refuse_endpoint_options(options: AnnotateOptions) -> None:
    """A critic that answers at once has no journal and no price: it must not seem to have planned
    anything."""
    given, usual = asdict(options), asdict(AnnotateOptions(limit=options.limit, start=options.start))
    words = {"requests": "write-requests", "answers": "read-answers", "resume": "no-resume"}
    if options.canaries is False:
        words["canaries"] = "no-canaries"
    odd = [f"--{words.get(name, name.replace('_', '-'))}" for name in given if given[name] != usual[name]]
    if odd:
        raise UsageError(f"{', '.join(odd)}: only where a chat model is asked", "--annotate.critic prompted")


@dataclass(frozen=True)
class PaidJob:
    """Questions to a chat model behind an endpoint, each paid for once, out of the budget of the
    endpoint."""

    endpoint: EndpointSettings
    prompt: str
    options: AnnotateOptions

    def annotate(self, items: Items, target: Path) -> PaidSummary:
        """Have every item judged once, and write the records to `target`.

        Answers go to the journal beside it first (`<target>.journal`). Whatever happens, what was
        answered is kept and the same command asks only for the rest. `exit_code` of the summary: 3
        not all ok, 4 budget, 75 batch pending.

        Raises:
            UserError: a mistake that fails every question.
        """
        if not self.options.with_canaries:
            return self._annotate(items, target)
        canaries = self._try_canaries(target)
        return self._after(canaries.pop("canaries_spent"))._annotate(items, target, canaries)

    def annotate_both(self, train: Sequence[Item], heldout: Sequence[Item], target: Path) -> PaidSummary:
        """Have both parts of a run judged out of one budget: records of held-out prompts are beside
        `target`."""
        summary = self.annotate(lambda: train, target)
        if not heldout:
            return summary
        job = self._after(summary.spent + (summary.canaries.get("canaries_usd") or 0.0))
        others = job._annotate(lambda: heldout, target.with_name(HELDOUT_FEEDBACK), add_requests=True)
        return summary.with_heldout(others)

    def plan(self, items: Items, target: Path) -> PlanSummary:
        """Return the cost of what is still to be asked; nothing is sent, and nothing is written."""
        journal = journal_of(target)
        stored = journal if journal.is_file() and self.options.resume else None
        with self._with_budget(None)._chat(stored) as chat:
            critic = prompted_critic(chat, self.prompt, known=True)
            records = sum(1 for _ in self._asked(items))
            return PlanSummary(records=records, cost=chat.plan(self._questions(critic, items)))

    def _asked(self, items: Items) -> Iterator[Item]:
        """Return the items to ask about: with `--anchor`, those with a person's words to place."""
        return (item for item in items() if item.comment or not self.options.anchor)

    def _questions(self, critic: PromptedCritic, items: Items) -> Iterator[Question]:
        return (critic.question(item.example, item.response) for item in self._asked(items))

    def _records(self, critic: PromptedCritic, items: Items) -> Iterator[Feedback]:
        """Yield the records of the answers so far, in the order of the items; others of a file are
        unchanged."""
        for item in items():
            is_asked = item.comment or not self.options.anchor
            judged = list(critic.feedback([(item.example, item.response)])) if is_asked else []
            yield from map(item.with_spans, judged)
            if item.original is not None and not judged:
                yield item.original

    def _annotate(
        self, items: Items, target: Path, canaries: Mapping[str, Any] | None = None, add_requests: bool = False
    ) -> PaidSummary:
        """Annotate without trying canaries; with `add_requests` the file of requests keeps those it
        holds."""
        journal = journal_of(target)
        if not self.options.resume:
            _set_aside(journal)
        with self._chat(journal) as chat:
            critic = prompted_critic(chat, self.prompt, known=True)
            try:
                done = self._ask(chat, critic, items, add_requests)
            finally:
                written, _ = write_feedback(target, self._records(critic, items))
            tally = chat.tally(self._questions(critic, items))
            return PaidSummary(
                tally=tally,
                canaries=canaries or {},
                records=written,
                sent=chat.asker.sent,
                left_out=sorted(chat.asker.questioner.refused),
                price=chat.price_status,
                journal=str(journal),
                out=str(target),
                exit_code=_exit_code(chat, tally, done),
            )

    def _ask(self, chat: OpenAIChat, critic: PromptedCritic, items: Items, add_requests: bool) -> bool:
        """Ask as the options say; False while answers are still to come from elsewhere."""
        options = self.options

        def questions() -> Iterator[Question]:
            return self._questions(critic, items)

        if options.requests is not None:
            count = write_requests(chat, questions, options.requests, add=add_requests)
            more = " more" if add_requests else ""
            _say(f"{count}{more} requests in {options.requests}: run them, then --read-answers FILE")
            return not count
        if options.answers is not None:
            with reading(options.answers), options.answers.open(encoding="utf-8", errors="replace") as lines:
                read_answers(chat, questions, critic.verdict, lines)
            return True
        if options.batch:
            return not run_batch(chat, questions, critic.verdict, _say)
        chat.settle(questions(), critic.verdict)
        return True

    def _chat(self, journal: Path | None) -> OpenAIChat:
        options = self.options
        return OpenAIChat(self.endpoint, journal, again=options.again, asks=options.asks, progress=True)

    def _with_budget(self, usd: float | None) -> PaidJob:
        return replace(self, endpoint=self.endpoint.model_copy(update={"budget_usd": usd}))

    def _after(self, spent: float) -> PaidJob:
        """The same job with what is left of the budget."""
        budget = self.endpoint.budget_usd
        return self if budget is None else self._with_budget(max(0.0, budget - spent))

    def _try_canaries(self, target: Path) -> dict[str, Any]:
        """Have the canaries judged into a file beside `target`: how many, how many have moved, and
        what they cost.

        A critic that misjudges more than `MOST_MOVED` of them, or all, is not asked anything else.
        The same command asks it about all of them again: the server may have been repaired.
        """
        known = canary_items(self.prompt.rpartition(":")[2], self.options.anchor)
        canaries = [Item(*pair) for pair in known]
        place, options = canaries_path(target), self.options
        once = replace(self, options=AnnotateOptions(resume=options.resume, again=options.again))
        summary = once._annotate(lambda: canaries, place)
        figures = measure((), read_jsonl(place, Feedback))
        moved, judged = figures["canaries_moved"], figures["canaries"]
        cure = f"read {place}; another model or prompt, or --no-canaries"
        unreadable, misjudged = not judged and not summary.tally["pending"], moved > MOST_MOVED * judged
        if unreadable or misjudged:
            _set_aside(journal_of(place))
        if unreadable:
            raise UserError("this critic gave no readable answer to any canary", cure)
        if misjudged:
            problem = f"{moved} of {judged} canaries moved: this critic misses plain faults, or obeys them"
            raise UserError(problem, cure)
        if moved:
            _say(f"{moved} of {len(canaries)} canaries moved: read {place} before you trust this critic")
        return {
            "canaries": judged,
            "canaries_moved": moved,
            "canaries_usd": summary.tally["usd"],
            "canaries_spent": summary.spent,
            "canaries_out": str(place),
        }


def journal_of(target: Path) -> Path:
    """Where the answers are kept of which the records of `target` are made."""
    return target.with_name(target.name + ".journal")


def _exit_code(chat: OpenAIChat, tally: Mapping[str, float | None], done: bool) -> int:
    if not done:
        return EXIT_BATCH_PENDING
    if chat.asker.budget.reached:
        return EXIT_BUDGET
    return 0 if tally["ok"] == tally["requested"] and not tally["pending"] else EXIT_SOME_RECORDS_FAILED


def _set_aside(place: Path) -> None:
    """Start afresh; paid answers are renamed, never deleted."""
    if place.is_file():
        number = next(n for n in range(1, 1_000_000) if not place.with_name(f"{place.name}.{n}").exists())
        place.rename(place.with_name(f"{place.name}.{number}"))


def _say(line: str) -> None:
    print(line, file=sys.stderr)
