"""Build the critic that a configuration names. Torch is imported for trained models only."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from importlib.metadata import version
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING

from text2grad.chat.client import OpenAIChat
from text2grad.config import Config, CriticKind, extra_settings
from text2grad.critics.program import Attempt, admission
from text2grad.critics.prompted import Prompt, PromptedCritic, TaggerCritic
from text2grad.critics.spec import CriticSpec, Materials
from text2grad.critics.table import CRITICS, spec_of
from text2grad.durable.identity import digest_of_texts, flatten, own_code, sha256
from text2grad.durable.progress import counting
from text2grad.errors import UserError
from text2grad.feedback import Critic, Example, Feedback, Source
from text2grad.jsonl import from_json
from text2grad.sandbox import Gate, Runner
from text2grad.settings import Settings
from text2grad.stages.run_folder import write_json
from text2grad.tasks.base import Task, load_task, prompt_version, read_prompt

if TYPE_CHECKING:
    from text2grad.policy.model import Policy


REWARD_MODEL_PROMPT = "reward_model"
ADAPTER = "reward_model"
ANCHOR = "anchor"
GATES_FILE = "gates.json"
"""In the folder of a run: why a task may not judge a program, "" where it may, by a digest of the task."""
TESTED = {"code": "code_tested", "code_plain": "code_plain_tested"}
"""Prompts that show the tests' outcome, by those that do not."""


def runner_of(config: Config) -> Runner:
    """The sandbox; its workers start with the first program."""
    settings = config.sandbox
    return Runner(settings.seconds, settings.workers, settings.tier)


def materials_of(
    config: Config,
    spec: CriticSpec,
    runner: Runner | None = None,
    task: Task | None = None,
    policy: Policy | None = None,
    chat: OpenAIChat | None = None,
) -> Materials:
    """What a run has to make a critic of this kind.

    `task` has the annotator's prompt (None: looked up by `task.name`), `policy` is the one in training, whose base
    weights the reward model may share (`reward_model.shared`), `chat` the endpoint of a prompted critic.
    """
    opened: dict[str, Callable[[], Critic]] = {
        "prompted": lambda: prompted_critic(config, chat or OpenAIChat(config.critic.prompted), task),
        "reward_model": lambda: reward_model_critic(config, policy),
    }
    return Materials(
        settings=critic_settings(config, spec),
        seed=config.run.seed,
        folder=config.run.folder,
        runner=runner or runner_of(config),
        feedback=lambda: imported_feedback(config),
        opened=lambda: opened[spec.kind](),
        model=model_folder(config, spec.kind),
        section=lambda name, without=(): flatten(
            {f"{name}.{key}" for key in without}, **{name: attrgetter(name)(config)}
        ),
        load_model=lambda folder: _frozen(config, folder),
        digest=digest_of_path,
    )


def critic_settings(config: Config, spec: CriticSpec) -> Settings | None:
    """Return the settings of a critic: `critic.<kind>`, or `extra.<kind>` for a critic of the user's own.

    Raises:
        UsageError: `extra.<kind>` does not fit the class that the spec names.
    """
    settings: Settings | None = getattr(config.critic, spec.kind, None)
    if settings is None and spec.settings is not None:
        settings = extra_settings(config, spec.kind, spec.settings)
    return settings


def imported_feedback(config: Config) -> list[Feedback]:
    """The records that this run has imported."""
    from text2grad.stages.run_folder import read_feedback

    return read_feedback(config.run.folder / "feedback.jsonl")


def model_folder(config: Config, kind: str) -> Path:
    """Where the model of a trained critic is: the one named, or this run's own."""
    settings = getattr(config.critic, kind, None)
    return getattr(settings, "folder", None) or config.run.folder / kind / "policy"


def digest_of_path(path: Path) -> str:
    """A digest of a file, or of all files in a folder and below."""
    if path.is_file():
        return sha256(path)
    files = sorted(each for each in path.rglob("*") if each.is_file())
    return digest_of_texts(f"{each.name} {sha256(each)}" for each in files)


def _frozen(config: Config, folder: Path) -> Policy:
    """Load a trained model with the policy's dtype and device."""
    from text2grad.policy.load import load_frozen
    from text2grad.policy.settings import PolicySettings

    return load_frozen(PolicySettings(model=str(folder), dtype=config.policy.dtype, device=config.policy.device))


@contextmanager
def open_critic(
    config: Config,
    kind: CriticKind,
    task: Task | None,
    runner: Runner,
    policy: Policy | None = None,
    journal: Path | None = None,
) -> Iterator[Critic]:
    """`make_critic`, with an endpoint's answers in its own journal, which is closed at the end."""
    endpoint = spec_of(kind).kind == "prompted"
    with OpenAIChat(config.critic.prompted, journal) if endpoint else nullcontext() as chat:
        yield make_critic(config, kind, task, runner, policy, chat)


def make_critic(
    config: Config,
    kind: CriticKind,
    task: Task | None,
    runner: Runner,
    policy: Policy | None = None,
    chat: OpenAIChat | None = None,
) -> Critic:
    """The critic named by `kind` (`materials_of` says what the others are). Callers need not tell critics apart."""
    spec = spec_of(kind)
    return spec.make(materials_of(config, spec, runner, task, policy, chat))


def refuse_unfit(kind: CriticKind, examples: Sequence[Example]) -> None:
    """Refuse a critic that can say nothing of these prompts: not one has what it judges by.

    Raises:
        UserError: not one has what the critic needs.
    """
    spec = spec_of(kind)
    if not spec.needs or not examples or any(map(spec.needs.has, examples)):
        return
    others = ", ".join(each for each in ("reference", "prompted", "reward_model") if each != spec.kind)
    message = f"no prompt has {spec.needs.what}, which the {kind} critic judges by"
    raise UserError(message, f"choose another critic ({others}), or data with {spec.needs.what}")


def admitted(config: Config, kind: CriticKind, examples: Sequence[Example], runner: Runner) -> list[Example]:
    """The examples whose tests may judge a program, for the critic that judges by tests; one line says how many are
    left out, and why.

    Raises:
        UserError: none is left.
    """
    if spec_of(kind).kind != "program" or not config.critic.program.gate:
        return list(examples)
    reasons = _reasons(config, examples, runner)
    kept = [each for each, reason in zip(examples, reasons, strict=True) if not reason]
    if len(kept) < len(examples):
        common = ", ".join(f"{count} where {why}" for why, count in Counter(filter(None, reasons)).most_common(3))
        said = (
            f"{len(examples) - len(kept)} of {len(examples)} tasks are left out, their tests tell nothing: {common}"
        )
        if not kept:
            raise UserError(said, "choose data with stricter tests; --critic.program.gate false judges by these")
        print(said, file=sys.stderr)
    return kept


def _reasons(config: Config, examples: Sequence[Example], runner: Runner) -> list[str]:
    """Why each task may not judge a program, "" where it may; kept in the folder of the run."""
    file = config.run.folder / GATES_FILE
    known: dict[str, str] = from_json(file.read_text(encoding="utf-8")) if file.is_file() else {}
    judge = (version("text2grad"), *flatten({"sandbox.workers"}, sandbox=config.sandbox).values())
    found = []
    try:
        for task in (Attempt(each, "") for each in examples):
            key = digest_of_texts((*judge, task.tests, task.reference, *task.names))
            if key in known:
                runner.gates[task.tests, task.names, task.reference] = Gate(not known[key], known[key])
            elif task.tests:
                known[key] = admission(runner, task).reason
            found.append(known.get(key, ""))
    finally:  # a run that is stopped goes on from here
        if config.run.folder.is_dir():
            write_json(file, known)
    return found


def prompted_critic(
    config: Config, chat: OpenAIChat, task: Task | None = None, known: bool = False
) -> PromptedCritic:
    """The prompted critic over an endpoint.

    With `known`, what is known about the very responses is used: the outcome of their tests is shown, and where a
    person wrote about one, that feedback is anchored instead of a second opinion.
    """
    settings = config.critic.prompted
    name = settings.prompt or (task.critic_prompt if task else annotator_prompt(config))
    source = Source(kind="llm", model=settings.model, prompt_version=prompt_version(name))
    tested = TESTED.get(name) if known else None
    return PromptedCritic(
        chat,
        read_prompt(name),
        source,
        annotator=True,
        tested=Prompt(read_prompt(tested), prompt_version(tested)) if tested else None,
        # The version keeps the name the file had at first: the ids of questions that were paid for hold it.
        anchor=Prompt(read_prompt(ANCHOR), prompt_version(ANCHOR).replace(ANCHOR, "ground")) if known else None,
    )


def annotator_prompt(config: Config) -> str:
    """The annotator prompt of the task; for our tasks without loading the data."""
    ours = {"summarization": "summarization", "qa": "qa", "code": "code", "demo": "code"}
    return ours.get(config.task.name) or load_task(config.task).critic_prompt


def reward_model_folder(config: Config) -> Path:
    """Where the reward model is: the one named, or this run's own."""
    return model_folder(config, "reward_model")


def critic_inputs(config: Config) -> dict[str, str]:
    """What the critic's judgements depend on, by name: its settings, and the files it reads as digests."""
    spec = spec_of(config.critic.kind)
    materials = materials_of(config, spec)
    found = flatten({f"critic.{kind}" for kind in CRITICS}, critic=config.critic)
    if materials.settings is not None:
        section = f"critic.{spec.kind}" if hasattr(config.critic, spec.kind) else f"extra.{spec.kind}"
        found |= flatten({f"{section}.{key}" for key in spec.manner}, **{section: materials.settings})
    return {**found, **own_code("the critic", config.critic.kind), **spec.inputs(materials)}


def reward_model_critic(config: Config, policy: Policy | None = None) -> Critic:
    """The trained reward model as a critic; one with a score head writes nothing where only the score is paid."""
    model, name = load_reward_model(config, policy), str(reward_model_folder(config))
    if model.score_head is not None and config.credit.by_score:
        return _score_critic(config, model, name)
    return critic_over(config, model, name)


def _score_critic(config: Config, model: Policy, name: str) -> PromptedCritic:
    from text2grad.policy.local_chat import LocalChat

    settings = config.reward_model.generation.model_copy(update={"max_new_tokens": 1})
    chat = LocalChat(model, settings, name, counted=counting("verdicts"))
    return PromptedCritic(chat, read_prompt(REWARD_MODEL_PROMPT), _source(name), verdict_only=True)


def load_reward_model(config: Config, policy: Policy | None = None) -> Policy:
    """The trained reward model, as an adapter beside `policy`'s where the settings say so.

    Raises:
        UserError: there is none, or it cannot stand on the base weights of `policy`.
    """
    from text2grad.policy.adapters import beside

    folder = reward_model_folder(config)
    refuse_missing(config, folder)
    if config.reward_model.shared and policy is not None:
        return beside(policy, folder, ADAPTER)
    return _frozen(config, folder)


def refuse_missing(config: Config, folder: Path | None) -> None:
    """Raises UserError: a reward model is named, and not there."""
    if folder is not None and not folder.is_dir():
        raise UserError(f"no reward model in {folder}", f"text2grad train-reward --run.folder {config.run.folder}")


def critic_over(config: Config, model: Policy, name: str) -> PromptedCritic | TaggerCritic:
    """A reward model as the critic of its kind (`reward_model.kind`).

    Raises:
        UserError: the model was trained as the other kind.
    """
    settings, kind = config.reward_model, "generative" if model.span_head is None else "tagger"
    if settings.kind != kind:
        problem = f"the reward model in {name} is {kind}"
        raise UserError(problem, f"--reward_model.kind {kind}, or train-reward again")
    make = tagger_critic if settings.tags else generative_critic
    return make(config, model, name)


def generative_critic(config: Config, model: Policy, name: str) -> PromptedCritic:
    """A reward model as a critic that writes z."""
    from text2grad.policy.grounded import vocabulary_for
    from text2grad.policy.local_chat import LocalChat

    settings = config.reward_model
    vocabulary = vocabulary_for(model, settings.grounded)
    chat = LocalChat(model, settings.generation, name, vocabulary, counting("critiques"))
    return PromptedCritic(chat, read_prompt(REWARD_MODEL_PROMPT), _source(name))


def tagger_critic(config: Config, model: Policy, name: str) -> TaggerCritic:
    """A reward model as a critic that labels tokens and writes nothing."""
    from text2grad.policy.heads.tagger import Tagger

    tagger = Tagger(model, config.reward_model.generation.batch_size)
    return TaggerCritic(tagger, read_prompt(REWARD_MODEL_PROMPT), _source(name))


def _source(name: str) -> Source:
    """Who speaks where the reward model of this name does."""
    return Source(kind="reward_model", model=name, prompt_version=prompt_version(REWARD_MODEL_PROMPT))


def judge_of(config: Config) -> Critic | None:
    """The critic of held-out answers, where there is one and it is wanted (`evaluate.token_reward`)."""
    spec = spec_of(config.critic.kind)
    return spec.measures_with(materials_of(config, spec)) if config.evaluate.token_reward else None
