"""Build the critic that a configuration names. Torch is imported for trained models only."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from importlib.metadata import version
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import BaseModel

from text2grad.chat.client import OpenAIChat
from text2grad.config import Config, CriticKind, RewardModelSettings, extra_settings
from text2grad.critics.program import Attempt, admission
from text2grad.critics.prompted import Prompt, PromptedCritic, TaggerCritic
from text2grad.critics.spec import CriticSpec, Ready
from text2grad.critics.table import CRITICS, spec_of
from text2grad.durable.identity import digest_of_texts, flatten, own_code, sha256
from text2grad.durable.progress import counting
from text2grad.errors import UserError
from text2grad.feedback import Critic, Example, Source
from text2grad.json_text import from_json
from text2grad.named import is_own_name, load_named
from text2grad.policy.settings import SamplingSettings
from text2grad.sandbox import Gate, Runner, SandboxSettings
from text2grad.settings import Settings
from text2grad.stages.run_folder import RunFolder, write_json
from text2grad.tasks.base import Task, TaskSettings, load_task, prompt_version, read_prompt
from text2grad.tasks.prompt_files import version_of

if TYPE_CHECKING:
    from text2grad.policy.model import Policy

REWARD_MODEL_PROMPT = "reward_model"
ADAPTER = "reward_model"
ANCHOR = "anchor"
GATES_FILE = "gates.json"
"""In the folder of a run: why a task may not judge a program, "" where it may, by a digest of the task."""
TESTED = {"code": "code_tested", "code_plain": "code_plain_tested"}
"""Prompts that show the tests' outcome, by those that do not."""


def runner_of(settings: SandboxSettings) -> Runner:
    """The sandbox; its workers start with the first program."""
    return Runner(settings.seconds, settings.workers, settings.tier)


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
    """The critic named by `kind`. Callers need not tell critics apart.

    `task` has the annotator's prompt (None: looked up by `task.name`), `policy` is the one in training, whose base
    weights the reward model may share (`reward_model.shared`), `chat` the endpoint of a prompted critic.
    """
    spec = spec_of(kind)
    return spec.make(critic_settings(config, spec), _ready(config, spec, task, runner, policy, chat))


def _ready(
    config: Config,
    spec: CriticSpec,
    task: Task | None,
    runner: Runner,
    policy: Policy | None,
    chat: OpenAIChat | None,
) -> Ready:
    run = RunFolder.of(config)
    critic: Critic | None = None
    if spec.kind == "prompted":
        chat = chat or OpenAIChat(config.critic.prompted)
        critic = prompted_critic(chat, prompt_name(config, task))
    elif spec.kind == "reward_model":
        shared = policy if config.reward_model.shared else None
        critic = reward_model_critic(
            run, config.reward_model, config.generation.batch_size, shared, config.credit.by_score
        )
    return Ready(run, config.run.seed, runner, critic)


def judge_of(config: Config) -> Critic | None:
    """The critic of held-out answers, where there is one and it is wanted (`evaluate.token_reward`)."""
    spec = spec_of(config.critic.kind)
    if spec.measures_with is None or not config.evaluate.token_reward:
        return None
    named, run = config.critic.reward_model.folder, RunFolder.of(config)
    if spec.kind == "reward_model" and not named and not run.reward_model_folder.is_dir():
        return None
    return spec.measures_with(_ready(config, spec, None, runner_of(config.sandbox), None, None))


def critic_settings(config: Config, spec: CriticSpec) -> Settings | None:
    """The settings of a critic: `critic.<kind>`, or `extra.<kind>` for a critic of the user's own.

    Raises:
        UsageError: `extra.<kind>` does not fit the class that the spec names.
    """
    settings: Settings | None = getattr(config.critic, spec.kind, None)
    if settings is None and spec.settings is not None:
        settings = extra_settings(config, spec.kind, spec.settings)
    return settings


def critic_inputs(config: Config) -> dict[str, str]:
    """Return the inputs of a critic by name: its settings, and digests of the files that it reads."""
    spec = spec_of(config.critic.kind)
    settings = critic_settings(config, spec)
    inputs = flatten({f"critic.{kind}" for kind in CRITICS}, critic=config.critic)
    if settings is not None:
        section = f"critic.{spec.kind}" if hasattr(config.critic, spec.kind) else f"extra.{spec.kind}"
        inputs |= flatten({f"{section}.{key}" for key in spec.manner}, **{section: settings})
    for name in spec.reads:
        value = attrgetter(name)(config)
        inputs |= flatten(**{name: value}) if isinstance(value, BaseModel) else {name: str(value)}
    files = spec.files(settings, config.run.folder)
    digests = {name: digest_of_path(path) for name, path in files.items()}
    prompt = (config.critic.prompted.prompt or "") if spec.kind == "prompted" else ""
    code = own_code("the critic", config.critic.kind) | own_code("the critic's prompt", prompt)
    return {**inputs, **code, **digests}


def digest_of_path(path: Path) -> str:
    """A digest of a file, or of all files in a folder and below."""
    if path.is_file():
        return sha256(path)
    files = sorted(file for file in path.rglob("*") if file.is_file())
    return digest_of_texts(f"{file.name} {sha256(file)}" for file in files)


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


def prompt_name(config: Config, task: Task | None = None) -> str:
    """The prompt of an annotator: the one in the settings, else that of the task."""
    return config.critic.prompted.prompt or (task.critic_prompt if task else annotator_prompt(config.task))


def annotator_prompt(task: TaskSettings) -> str:
    """The annotator prompt of a task; for the package's own tasks without loading the data."""
    prompts = {"summarization": "summarization", "qa": "qa", "code": "code", "demo": "code"}
    return prompts.get(task.name) or load_task(task).critic_prompt


def load_prompt(name: str) -> Prompt:
    """Return a critic's prompt: a prompt file by its stem or path, or a `Prompt` written as `module:NAME`.

    Raises:
        UserError: there is no such prompt.
    """
    if not is_own_name(name):
        return Prompt(read_prompt(name), prompt_version(name))
    prompt: Prompt = load_named("prompt", name, kinds=(Prompt,))
    version = prompt.version or version_of(name.rpartition(":")[2], prompt.text)
    return replace(prompt, version=version)


def prompted_critic(chat: OpenAIChat, prompt: str, known: bool = False) -> PromptedCritic:
    """The prompted critic over an endpoint, with a prompt by its name (`load_prompt`).

    With `known`, what is known about the very responses is used: the outcome of their tests is shown, and where a
    person wrote about one, that feedback is anchored instead of a second opinion.
    """
    asked, anchor = load_prompt(prompt), load_prompt(ANCHOR)
    tested = TESTED.get(prompt) if known else None
    return PromptedCritic(
        chat,
        asked,
        Source(kind="llm", model=chat.name, prompt_version=asked.version),
        annotator=True,
        tested=load_prompt(tested) if tested else None,
        # The version keeps the name the file had at first: the ids of questions that were paid for hold it.
        anchor=replace(anchor, version=anchor.version.replace(ANCHOR, "ground")) if known else None,
    )


def reward_model_critic(
    run: RunFolder,
    settings: RewardModelSettings,
    batch_size: int,
    shared: Policy | None = None,
    by_score: bool = False,
) -> PromptedCritic | TaggerCritic:
    """The trained reward model as a critic, on the base weights of the policy `shared` if there is one.

    It judges `batch_size` answers at a time. With `by_score` only the score is paid, and a model with a score head
    writes nothing else.

    Raises:
        UserError: there is no reward model, or it cannot stand on these weights.
    """
    model = load_reward_model(run, shared)
    verdict_only = by_score and model.score_head is not None
    return critic_over(settings, model, str(run.reward_model_folder), batch_size, verdict_only)


def load_reward_model(run: RunFolder, shared: Policy | None = None) -> Policy:
    """The trained reward model, as an adapter beside that of `shared` if given.

    Raises:
        UserError: there is none, or it cannot stand on the base weights of `shared`.
    """
    from text2grad.policy.adapters import beside

    folder = run.reward_model()
    return run.load_model(folder) if shared is None else beside(shared, folder, ADAPTER)


def critic_over(
    settings: RewardModelSettings, model: Policy, name: str, batch_size: int, verdict_only: bool = False
) -> PromptedCritic | TaggerCritic:
    """A reward model as the critic of its kind: it writes z, of it the verdict alone, or labels tokens.

    Raises:
        UserError: the model was trained as the other kind.
    """
    from text2grad.policy.grounded import vocabulary_for
    from text2grad.policy.heads.tagger import Tagger
    from text2grad.policy.local_chat import LocalChat

    kind = "generative" if model.span_head is None else "tagger"
    if settings.kind != kind:
        problem = f"the reward model in {name} is {kind}"
        raise UserError(problem, f"--reward_model.kind {kind}, or train-reward again")
    prompt = read_prompt(REWARD_MODEL_PROMPT)
    source = Source(kind="reward_model", model=name, prompt_version=prompt_version(REWARD_MODEL_PROMPT))
    if settings.tags:
        return TaggerCritic(Tagger(model, batch_size), prompt, source)
    tokens = 1 if verdict_only else settings.max_new_tokens
    greedy = SamplingSettings(max_new_tokens=tokens, temperature=0.0, batch_size=batch_size)
    vocabulary = None if verdict_only else vocabulary_for(model, settings.grounded)
    chat = LocalChat(model, greedy, name, vocabulary, counting("verdicts" if verdict_only else "critiques"))
    return PromptedCritic(chat, prompt, source, verdict_only=verdict_only)
