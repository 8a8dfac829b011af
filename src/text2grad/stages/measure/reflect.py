"""`evaluate --reflect`: no training; a policy answers, a critic judges, and the policy revises, round after round.

The critic must know no more than a reader would: no reference and no tests of the prompt are shown to it, and
critics that consist of these are refused, for the answers are measured by them. What it all took is counted in
tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace

from text2grad.config import Config
from text2grad.critics.prompted import Prompt
from text2grad.critics.table import CRITICS, spec_of
from text2grad.durable.state import seed_everything
from text2grad.errors import UsageError
from text2grad.eval.measures import Measure, Row, TextMeasures, by_problem, mean_scores, measure_with, word_figures
from text2grad.eval.reflection import Reflection, reflected
from text2grad.feedback import Critic, Example
from text2grad.policy.load import load_frozen
from text2grad.policy.local_chat import LocalChat
from text2grad.policy.model import Policy
from text2grad.policy.settings import GenerationSettings
from text2grad.stages.judge.critics import open_critic, runner_of
from text2grad.stages.judge.revise import revision_prompt
from text2grad.stages.measure.answers import text_measures
from text2grad.stages.measure.evaluate import target_name
from text2grad.stages.run.folder import prepare
from text2grad.stages.run.policies import named_policy
from text2grad.stages.run.prompts import heldout_prompts, task_of
from text2grad.stages.run.results import SCORES, measured_on, write_json, write_results
from text2grad.stages.run.sampling import sample
from text2grad.stages.run.summary import Summary, inlined
from text2grad.tasks.base import environment_of

BLIND = tuple(sorted(kind for kind, spec in CRITICS.items() if spec.blind))
"""Critics that judge by the prompt and the answer alone."""


@dataclass(frozen=True, kw_only=True)
class ReflectSummary(Summary):
    """Mean scores of greedy and sampled answers, before (`greedy_*`) and after each round (`greedy_reflected_1_*`):
    with what the critic left alone at some point; of answers in words all that `evaluate` measures them by, and by
    which models (`measured_by`). How many answers it let stand, critiques that failed, revisions
    that were of no use, and tokens by who wrote or read them."""

    prompts: int
    rounds: int
    figures: Mapping[str, float] = inlined()
    measured_by: Mapping[str, str] | None = None
    let_stand: int
    failed_critiques: int
    refused: Mapping[str, int]
    tokens: Mapping[str, int] = inlined()
    out: str | None = None


def run_reflect(config: Config, target: str, rounds: int) -> ReflectSummary:
    """Measure a policy that revises its greedy and its sampled answers to held-out prompts, `rounds` times at most.

    Raises:
        UsageError: the critic of this run is one that knows the reference or the tests.
        UserError: there are no held-out prompts.
    """
    refuse_knowing_critic(config)
    folder, task, prompt = prepare(config), task_of(config), revision_prompt(config)
    if environment_of(task):
        raise UsageError("--reflect revises single answers, and this task has an environment", "leave it out")
    heldout = heldout_prompts(config, task)
    policy = load_frozen(named_policy(config, target))
    name, journal = f"{target_name(target)}_reflect_{rounds}", folder / "reflect.journal"
    seed_everything(config.run.seed)
    with ExitStack() as stack:
        runner, texts = stack.enter_context(runner_of(config)), stack.enter_context(text_measures(config))
        critic = stack.enter_context(open_critic(config, config.critic.kind, task, runner, None, journal))
        reflector = Reflector(policy, critic, prompt, rounds, measure_with(task, runner), texts)
        greedy = reflector.answer("greedy", heldout, config.generation.model_copy(update={"temperature": 0.0}))
        repeated = [example for example in heldout for _ in range(config.evaluate.samples)]
        reflector.answer("sampled", repeated, config.generation)
    state = reflector.total
    summary = ReflectSummary(
        prompts=len(heldout),
        rounds=rounds,
        figures=reflector.figures,
        measured_by=texts.named or None,
        let_stand=state.let_stand,
        failed_critiques=state.failed,
        refused=dict(state.refused),
        tokens=dict(state.tokens),
    )
    on = measured_on(config)
    place = write_results(folder, on, name, summary.as_dict(), greedy)
    write_json(place.with_name(f"{name}{SCORES}"), reflector.scores)
    return replace(summary, out=str(place))


@dataclass
class Reflector:
    """A policy that revises by what a critic says, and what it reached so far: its figures, the scores of each way
    to answer by problem, and the counts."""

    policy: Policy
    critic: Critic
    prompt: Prompt
    rounds: int
    measure: Measure
    texts_by: TextMeasures | None = None
    total: Reflection = field(default_factory=lambda: Reflection([], []))
    figures: dict[str, float] = field(default_factory=dict)
    scores: dict[str, dict[str, dict[str, float]]] = field(default_factory=dict)

    def answer(self, way: str, examples: Sequence[Example], generation: GenerationSettings) -> list[Row]:
        """Answer and revise; the last answers."""
        answers = sample(self.policy, examples, generation)
        state = Reflection([text for _, text in answers], list(range(len(answers))))
        chat = LocalChat(self.policy, generation, "policy")
        known = self._measured(way, examples, state)
        for number, _ in enumerate(
            reflected(examples, state, self.critic, chat, self.prompt, self.rounds), start=1
        ):
            known = self._measured(f"{way}_reflected_{number}", examples, state)
        state.tokens["policy_output_tokens"] += sum(len(ids) for ids, _ in answers)
        state.tokens.update({f"policy_{key}": count for key, count in chat.usage.items()})
        self.total.count(state)
        told = zip(examples, state.responses, known, strict=True)
        rows: list[Row] = [{"id": example.id, "response": text, **each} for example, text, each in told]
        self.scores[way] = by_problem(rows)
        return rows

    def _measured(self, name: str, examples: Sequence[Example], state: Reflection) -> list[Row]:
        known = self.measure(examples, state.responses)
        found = mean_scores(known)  # a measure of the task keeps its name
        found = {**word_figures(self.texts_by, examples, state.responses), **found}
        self.figures |= {f"{name}_{measure}": value for measure, value in found.items()}
        return known


def refuse_knowing_critic(config: Config) -> None:
    """A critic that reads the reference or runs the tests would hand the policy what it is measured by."""
    if not spec_of(config.critic.kind).blind:
        raise UsageError(
            f"the critic {config.critic.kind} knows what the answers are measured by",
            f"--critic.kind {' or '.join(BLIND)}",
        )
