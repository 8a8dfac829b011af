"""The critic that a configuration names. What needs torch is imported only for the critic that needs it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from text2grad.chat.client import OpenAIChat
from text2grad.config import Config, CriticKind
from text2grad.critics.noise import NoisyCritic
from text2grad.critics.program import ProgramCritic
from text2grad.critics.prompted import Prompt, PromptedCritic
from text2grad.critics.reference import ReferenceCritic
from text2grad.durable.identity import digest_of_texts, flatten, sha256
from text2grad.errors import UserError
from text2grad.feedback import Critic, Source
from text2grad.sandbox import Runner
from text2grad.tasks.base import Task, load_task, prompt_version, read_prompt

if TYPE_CHECKING:
    from text2grad.policy.model import Policy

REWARD_MODEL_PROMPT = "reward_model"
ADAPTER = "reward_model"
ANCHOR = "anchor"
TESTED = {"code": "code_tested", "code_plain": "code_plain_tested"}
"""Prompts that show the tests' outcome, by those that do not."""


def runner_of(config: Config) -> Runner:
    """Where programs are run; it starts when the first program comes."""
    settings = config.sandbox
    return Runner(settings.seconds, settings.workers, settings.tier, memory_mb=settings.memory_mb)


@contextmanager
def open_critic(
    config: Config,
    kind: CriticKind,
    task: Task,
    runner: Runner,
    policy: Policy | None = None,
    journal: Path | None = None,
) -> Iterator[Critic]:
    """`make_critic`, with an endpoint's answers in its own journal, which is closed at the end."""
    endpoint = kind == "prompted"
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
    """The critic named by `kind`, with `critic.noise`. Callers need not tell them apart.

    `task` has the annotator's prompt (None: looked up by `task.name`), `policy` is the one in training, whose base
    weights the reward model may share (`reward_model.shared`), `chat` the endpoint of a prompted critic.
    """
    makers: dict[CriticKind, Callable[[], Critic]] = {
        "human": lambda: human_critic(config),
        "program": lambda: ProgramCritic(runner, **config.critic.program.model_dump()),
        "prompted": lambda: prompted_critic(config, chat or OpenAIChat(config.critic.prompted), task),
        "reference": ReferenceCritic,
        "reward_model": lambda: reward_model_critic(config, policy),
    }
    critic = makers[kind]()
    return NoisyCritic(critic, config.critic.noise, config.run.seed) if config.critic.noise else critic


def human_critic(config: Config) -> Critic:
    """What people said, as this run has imported it."""
    from text2grad.critics.human import HumanCritic
    from text2grad.stages.folder import read_feedback

    return HumanCritic(read_feedback(config.run.folder / "feedback.jsonl"))


def prompted_critic(
    config: Config, chat: OpenAIChat, task: Task | None = None, known: bool = False
) -> PromptedCritic:
    """The prompted critic over an endpoint.

    With `known`, what is known about the very responses is used: the outcome of their tests is shown, and where a
    person wrote about one, that feedback is anchored instead of a second opinion.
    """
    settings = config.critic.prompted
    refuse_equal_votes(settings.votes, settings.temperature, "critic.prompted.temperature")
    name = settings.prompt or (task.critic_prompt if task else annotator_prompt(config))
    source = Source(kind="llm", model=settings.model, prompt_version=prompt_version(name))
    tested = TESTED.get(name) if known else None
    return PromptedCritic(
        chat,
        read_prompt(name),
        source,
        settings,
        tested=Prompt(read_prompt(tested), prompt_version(tested)) if tested else None,
        # The version keeps the name the file had at first: the ids of questions that were paid for hold it.
        anchor=Prompt(read_prompt(ANCHOR), prompt_version(ANCHOR).replace(ANCHOR, "ground")) if known else None,
    )


def annotator_prompt(config: Config) -> str:
    """The prompt of the task's annotator, without loading the task's data where it is one of ours."""
    ours = {"summarization": "summarization", "qa": "qa", "code": "code", "demo": "code"}
    return ours.get(config.task.name) or load_task(config.task).critic_prompt


def refuse_equal_votes(votes: int, temperature: float | None, setting: str) -> None:
    """Several greedy critiques are one, paid for several times."""
    if votes > 1 and temperature == 0:
        raise UserError(f"{votes} votes at temperature 0 are the same critique", f"--{setting} 0.7")


def reward_model_folder(config: Config) -> Path:
    """Where the reward model is: the one named, or this run's own."""
    return config.critic.reward_model.folder or config.run.folder / "reward_model" / "policy"


def critic_inputs(config: Config) -> dict[str, str]:
    """What the critic's judgements depend on, by name: its settings, and the files it reads as digests."""
    kinds = ("prompted", "program", "reward_model")
    manner = {f"critic.prompted.{name}" for name in ("concurrency", "retries", "timeout", "prices", "budget_usd")}
    found = flatten({f"critic.{kind}" for kind in kinds}, critic=config.critic)
    if config.critic.kind in kinds:
        found |= flatten(manner, **{f"critic.{config.critic.kind}": getattr(config.critic, config.critic.kind)})
    if config.critic.kind == "program":
        found |= flatten({"sandbox.workers"}, sandbox=config.sandbox)
    if config.critic.kind == "human":
        found["the feedback"] = sha256(config.run.folder / "feedback.jsonl")
    if config.critic.kind == "reward_model":
        settings = config.reward_model
        found |= flatten((), **{"reward_model.generation": settings.generation})
        found |= {
            "reward_model.grounded": settings.grounded,
            "reward_model.whole_quotes": str(settings.whole_quotes),
        }
        files = sorted(path for path in reward_model_folder(config).rglob("*") if path.is_file())
        found["the reward model"] = digest_of_texts(f"{path.name} {sha256(path)}" for path in files)
    return found


def reward_model_critic(config: Config, policy: Policy | None = None) -> PromptedCritic:
    """The trained reward model: the prompted critic over a local model, or over an adapter beside `policy`'s."""
    return critic_over(config, load_reward_model(config, policy), str(reward_model_folder(config)))


def load_reward_model(config: Config, policy: Policy | None = None) -> Policy:
    """The trained reward model, as an adapter beside `policy`'s where the settings say so.

    Raises:
        UserError: there is none, or it cannot stand on the base weights of `policy`.
    """
    from text2grad.policy.adapters import beside
    from text2grad.policy.load import load_frozen
    from text2grad.policy.settings import PolicySettings

    folder = reward_model_folder(config)
    if not folder.is_dir():
        raise UserError(f"no reward model in {folder}", f"text2grad train-reward --run.folder {config.run.folder}")
    if config.reward_model.shared and policy is not None:
        return beside(policy, folder, ADAPTER)
    return load_frozen(PolicySettings(model=str(folder), dtype=config.policy.dtype, device=config.policy.device))


def critic_over(config: Config, model: Policy, name: str) -> PromptedCritic:
    """A reward model as a critic."""
    from text2grad.policy.generate import LocalChat
    from text2grad.policy.grounded import vocabulary_for

    settings, reading = config.reward_model, config.critic.reward_model
    refuse_equal_votes(reading.votes, settings.generation.temperature, "reward_model.generation.temperature")
    vocabulary = vocabulary_for(model, settings.grounded)
    chat = LocalChat(model, settings.generation, name, vocabulary, settings.whole_quotes)
    version = prompt_version(REWARD_MODEL_PROMPT)
    source = Source(kind="reward_model", model=name, prompt_version=version)
    return PromptedCritic(chat, read_prompt(REWARD_MODEL_PROMPT), source, reading)


def judge_of(config: Config) -> Critic | None:
    """The critic of answers to prompts held out, where that is wanted (`evaluate.token_reward`).

    The reward model of this run, if there is one; where a program compares with references, that program.
    """
    if config.critic.kind == "reference":
        return ReferenceCritic() if config.evaluate.token_reward else None
    found = config.critic.reward_model.folder or (config.run.folder / "reward_model" / "policy").is_dir()
    wanted = config.evaluate.token_reward and config.critic.kind == "reward_model"
    return reward_model_critic(config) if wanted and found else None
