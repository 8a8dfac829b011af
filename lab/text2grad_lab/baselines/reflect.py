"""`reflect`: no training; the policy answers, the critic judges, the policy revises once.

The critic sees neither reference nor tests, and critics based on these are refused, since they
measure the answers. Tokens are counted by reader and writer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from text2grad.config import Config
from text2grad.critics.prompted import Prompt, PromptedCritic
from text2grad.durable.state import seed_everything
from text2grad.errors import UsageError
from text2grad.eval.measures import Row, TaskMeasure, by_problem, mean_scores, word_figures
from text2grad.feedback import Critic, Critique, Example, Failure
from text2grad.policy.load import load_frozen
from text2grad.policy.local_chat import LocalChat
from text2grad.policy.model import Policy
from text2grad.policy.settings import GenerationSettings
from text2grad.stages import Summary, inlined
from text2grad.stages.critics import critic_factory
from text2grad.stages.run_folder import (
    SCORES,
    heldout_prompts,
    target_name,
    write_json,
)
from text2grad.stages.sampling import sample
from text2grad.stages.training import prepare
from text2grad.tasks.base import get_environment_factory
from text2grad_lab.baselines.revision import Case, asks_no_change, refuse_informed_critic, revise, revision_prompt


@dataclass(frozen=True, kw_only=True)
class ReflectSummary(Summary):
    """Mean scores of greedy and sampled answers, before (`greedy_*`) and after
    (`greedy_reflected_*`).

    `let_stand` counts answers the critic accepted, `refused` unusable revisions by reason.
    """

    prompts: int
    figures: Mapping[str, float] = inlined()
    let_stand: int
    failed_critiques: int
    refused: Mapping[str, int]
    tokens: Mapping[str, int] = inlined()
    out: str | None = None


def run_reflect(config: Config, target: str) -> ReflectSummary:
    """Measure a policy that revises its greedy and its sampled answers to held-out prompts.

    Raises:
        UsageError: the critic of this run knows the reference or the tests.
        UserError: there are no held-out prompts.
    """
    refuse_informed_critic(config)
    run = prepare(config)
    task = run.task()
    if get_environment_factory(task):
        raise UsageError("reflect revises single answers, and this task has an environment", "another task")
    heldout = heldout_prompts(task, config.evaluate.limit)
    policy = load_frozen(run.policy(target))
    name, journal = f"{target_name(target)}_reflect", run.path / "reflect.journal"
    seed_everything(config.run.seed)
    with critic_factory(config) as factory, factory.open(task, journal=journal) as critic:
        reflector = Reflector(policy, critic, revision_prompt(), TaskMeasure(task, factory.runner))
        greedy = reflector.answer("greedy", heldout, config.generation.model_copy(update={"temperature": 0.0}))
        repeated = [example for example in heldout for _ in range(config.evaluate.samples)]
        reflector.answer("sampled", repeated, config.generation)
    counts = reflector.counts
    summary = ReflectSummary(
        prompts=len(heldout),
        figures=reflector.figures,
        let_stand=counts.let_stand,
        failed_critiques=counts.failed,
        refused=dict(counts.refused),
        tokens=dict(counts.tokens),
    )
    place = run.write_results(name, summary.as_dict(), greedy)
    write_json(place.with_name(f"{name}{SCORES}"), reflector.scores)
    return replace(summary, out=str(place))


@dataclass
class Counts:
    """Numbers of accepted answers, failed critiques, and unusable revisions by reason; tokens of
    the policy and the critic."""

    let_stand: int = 0
    failed: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    tokens: Counter[str] = field(default_factory=Counter)


@dataclass
class Reflector:
    """Revises the answers of a policy by a critic; collects figures, scores and counts."""

    policy: Policy
    critic: Critic
    prompt: Prompt
    measure: TaskMeasure
    counts: Counts = field(default_factory=Counts)
    figures: dict[str, float] = field(default_factory=dict)
    scores: dict[str, dict[str, dict[str, float]]] = field(default_factory=dict)

    def answer(self, way: str, examples: Sequence[Example], generation: GenerationSettings) -> list[Row]:
        """Answer and revise; return a row per final answer."""
        sampled = sample(self.policy, examples, generation)
        responses = [text for _, text in sampled]
        chat = LocalChat(self.policy, generation, "policy")
        self._measured(way, examples, responses)
        self.revise(examples, responses, chat)
        scores = self._measured(f"{way}_reflected", examples, responses)
        self.counts.tokens["policy_output_tokens"] += sum(len(ids) for ids, _ in sampled)
        self.counts.tokens.update({f"policy_{key}": count for key, count in chat.usage.items()})
        final = zip(examples, responses, scores, strict=True)
        rows: list[Row] = [{"id": example.id, "response": text, **values} for example, text, values in final]
        self.scores[way] = by_problem(rows)
        return rows

    def revise(self, examples: Sequence[Example], responses: list[str], chat: LocalChat) -> None:
        """Revise criticised responses in place; unusable revisions change nothing."""
        cases = self._criticised(examples, responses)
        revisions = revise(chat, self.prompt, list(cases.values()))
        for index, revision in zip(cases, revisions, strict=True):
            if revision.refused:
                self.counts.refused[revision.refused] += 1
            else:
                responses[index] = revision.text

    def _criticised(self, examples: Sequence[Example], responses: Sequence[str]) -> dict[int, Case]:
        """Return the criticised answers by index; the critic does not see the reference."""
        bare_examples = [Example(id=example.id, prompt=example.prompt) for example in examples]
        before = Counter(tokens_used(self.critic))
        judgements = self.critic.critique(bare_examples, responses)
        for name, count in (Counter(tokens_used(self.critic)) - before).items():
            self.counts.tokens[f"critic_{name}"] += count
        cases = {}
        for index, (example, judgement) in enumerate(zip(bare_examples, judgements, strict=True)):
            if isinstance(judgement, Failure):
                self.counts.failed += 1
            elif asks_no_change(judgement):
                self.counts.let_stand += 1
            else:
                assert isinstance(judgement, Critique)
                cases[index] = Case(example, responses[index], judgement)
        return cases

    def _measured(self, name: str, examples: Sequence[Example], responses: Sequence[str]) -> list[Row]:
        rows = self.measure(examples, responses)
        figures = {**word_figures(examples, responses), **mean_scores(rows)}  # a task's measure wins
        self.figures |= {f"{name}_{measure}": value for measure, value in figures.items()}
        return rows


def tokens_used(critic: Critic) -> Mapping[str, int]:
    """Return the tokens that a critic has read and written so far, by name."""
    return critic.usage if isinstance(critic, PromptedCritic) else {}
