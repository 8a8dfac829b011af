"""`evaluate --reflect`: no training; a policy answers, a critic judges, and the policy revises, round after round.

The critic must know no more than a reader would: no reference and no tests of the prompt are shown to it, and
critics that consist of these are refused, for the answers are measured by them. What it all took is counted in
tokens.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from text2grad.chat.client import OpenAIChat
from text2grad.config import Config
from text2grad.critics.prompted import Prompt, PromptedCritic
from text2grad.critics.revision import finds_nothing
from text2grad.durable.state import seed_everything
from text2grad.errors import UsageError, UserError
from text2grad.feedback import Critic, Critique, Example, Failure
from text2grad.policy.generate import LocalChat
from text2grad.policy.load import load_frozen
from text2grad.stages.critics import open_critic, runner_of
from text2grad.stages.evaluate import Measure, Row, mean_scores, measure_with, target_name
from text2grad.stages.folder import policy_name, prepare, task_of
from text2grad.stages.results import measured_on, write_results
from text2grad.stages.revise import Case, revise, revision_prompt
from text2grad.stages.sampling import sample
from text2grad.stages.summary import Summary, inlined

BLIND = ("prompted", "reward_model")
"""Critics that judge by the prompt and the answer alone."""


@dataclass(frozen=True, kw_only=True)
class ReflectSummary(Summary):
    """Mean scores of greedy answers, before (`greedy_*`) and after each round (`reflected_1_*`, ...): with what the
    critic left alone at some point. How many answers it let stand, critiques that failed, revisions that were of
    no use, and tokens by who wrote or read them."""

    prompts: int
    rounds: int
    figures: Mapping[str, float] = inlined()
    let_stand: int
    failed_critiques: int
    refused: Mapping[str, int]
    tokens: Mapping[str, int] = inlined()
    out: str | None = None


@dataclass
class Reflection:
    """The answers as they are; `open` are the places of those that are revised further."""

    responses: list[str]
    open: list[int]
    let_stand: int = 0
    failed: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    tokens: Counter[str] = field(default_factory=Counter)


def run_reflect(config: Config, target: str, rounds: int) -> ReflectSummary:
    """Measure a policy that revises its greedy answers to held-out prompts, in `rounds` rounds at most.

    Raises:
        UsageError: the critic of this run is one that knows the reference or the tests.
        UserError: there are no held-out prompts.
    """
    refuse_knowing_critic(config)
    folder, task, prompt = prepare(config), task_of(config), revision_prompt(config)
    heldout = task.examples("heldout")[: config.evaluate.limit]
    if not heldout:
        raise UserError("no held-out prompts to evaluate on", "raise task.heldout_share")
    policy = load_frozen(config.policy.model_copy(update={"model": policy_name(config, target)}))
    greedy = config.generation.model_copy(update={"temperature": 0.0})
    quiet = config.model_copy(update={"critic": config.critic.model_copy(update={"noise": None})})
    name = target_name(target)
    journal = folder / "reflect.journal"
    seed_everything(config.run.seed)
    answers = sample(policy, heldout, greedy)
    state = Reflection([text for _, text in answers], list(range(len(heldout))))
    state.tokens["policy_output_tokens"] += sum(len(ids) for ids, _ in answers)
    chat = LocalChat(policy, greedy, name)
    with runner_of(config) as runner, open_critic(quiet, config.critic.kind, task, runner, None, journal) as critic:
        measure = measure_with(task, runner)
        figures = measured("greedy", heldout, state, measure)
        for number, _ in enumerate(reflected(heldout, state, critic, chat, prompt, rounds), start=1):
            figures |= measured(f"reflected_{number}", heldout, state, measure)
        rows: list[Row] = [
            {"id": example.id, "response": text, **known}
            for example, text, known in zip(
                heldout, state.responses, measure(heldout, state.responses), strict=True
            )
        ]
    for key, count in chat.usage.items():
        state.tokens[f"policy_{key}"] += count
    summary = ReflectSummary(
        prompts=len(heldout),
        rounds=rounds,
        figures=figures,
        let_stand=state.let_stand,
        failed_critiques=state.failed,
        refused=dict(state.refused),
        tokens=dict(state.tokens),
    )
    place = write_results(folder, measured_on(config), f"{name}_reflect_{rounds}", summary.as_dict(), rows)
    return replace(summary, out=str(place))


def refuse_knowing_critic(config: Config) -> None:
    """A critic that reads the reference or runs the tests would hand the policy what it is measured by."""
    if config.critic.kind not in BLIND:
        raise UsageError(
            f"the critic {config.critic.kind} knows what the answers are measured by",
            f"--critic.kind {' or '.join(BLIND)}",
        )


def measured(way: str, examples: Sequence[Example], state: Reflection, measure: Measure) -> dict[str, float]:
    """Mean scores of the answers as they are."""
    found = mean_scores(measure(examples, state.responses))
    return {f"{way}_{name}": value for name, value in found.items()}


def reflected(
    examples: Sequence[Example], state: Reflection, critic: Critic, chat: LocalChat, prompt: Prompt, rounds: int
) -> Iterator[Reflection]:
    """The state after each round. An answer is left as it is once the critic finds nothing, its critique fails, or
    its revision is of no use: asked again, a greedy policy would say the same."""
    asked = [Example(id=example.id, prompt=example.prompt) for example in examples]
    for _ in range(rounds):
        cases = judged(asked, state, critic)
        revisions = revise(chat, prompt, list(cases.values()))
        state.open = []
        for place, revision in zip(cases, revisions, strict=True):
            if revision.refused:
                state.refused[revision.refused] += 1
            else:
                state.responses[place] = revision.text
                state.open.append(place)
        yield state


def judged(asked: Sequence[Example], state: Reflection, critic: Critic) -> dict[int, Case]:
    """What the critic says of the answers that are open, by place; those it finds fault with."""
    examples, responses = [asked[i] for i in state.open], [state.responses[i] for i in state.open]
    before = spent(critic, [])
    said = critic.critique(examples, responses) if examples else []
    after = spent(critic, list(zip(examples, responses, strict=True)))
    for name, count in after.items():
        state.tokens[f"critic_{name}"] += count - before.get(name, 0)
    cases = {}
    for place, example, response, judgement in zip(state.open, examples, responses, said, strict=True):
        if isinstance(judgement, Failure):
            state.failed += 1
        elif finds_nothing(judgement):
            state.let_stand += 1
        else:
            assert isinstance(judgement, Critique)
            cases[place] = Case(example, response, judgement)
    return cases


def spent(critic: Critic, pairs: Sequence[tuple[Example, str]]) -> dict[str, int]:
    """Tokens: all that a local model has read and written so far, or what an endpoint's answers about `pairs`
    took."""
    chat = critic.chat if isinstance(critic, PromptedCritic) else None
    if isinstance(chat, LocalChat):
        return dict(chat.usage)
    total: Counter[str] = Counter()
    if isinstance(critic, PromptedCritic) and isinstance(chat, OpenAIChat):
        for record in critic.feedback(pairs):
            total.update({name: int(n) for name, n in record.usage.items() if name.endswith("tokens")})
    return dict(total)
