"""The critic that a configuration names."""

from __future__ import annotations

from pathlib import Path

from text2grad.config import Config, CriticKind
from text2grad.critics.noise import NoisyCritic
from text2grad.critics.program import ProgramCritic
from text2grad.critics.prompted import PromptedCritic
from text2grad.critics.reference import ReferenceCritic
from text2grad.errors import UserError
from text2grad.feedback import Critic, Source
from text2grad.policy.adapters import beside
from text2grad.policy.generate import LocalChat
from text2grad.policy.grounded import vocabulary_for
from text2grad.policy.model import Policy, load_policy
from text2grad.policy.settings import PolicySettings
from text2grad.sandbox import Runner
from text2grad.stages.folder import read_feedback
from text2grad.tasks.base import Task, prompt_version, read_prompt
from text2grad.train.checkpoint import sha256
from text2grad.train.state import digest_of_texts, flatten

REWARD_MODEL_PROMPT = "reward_model"
ADAPTER = "reward_model"


def runner_of(config: Config) -> Runner:
    """Where programs are run; it starts when the first program comes."""
    settings = config.sandbox
    return Runner(settings.seconds, settings.workers, settings.tier, memory_mb=settings.memory_mb)


def make_critic(
    config: Config, kind: CriticKind, task: Task, runner: Runner, policy: Policy | None = None
) -> Critic:
    """The critic named by `kind`, with `critic.noise`. All of them are the same to whoever calls them.

    `policy` is the one in training, whose base weights the reward model may share (`reward_model.shared`).
    """
    critic = _critic_of(config, kind, task, runner, policy)
    return NoisyCritic(critic, config.critic.noise, config.run.seed) if config.critic.noise else critic


def _critic_of(config: Config, kind: CriticKind, task: Task, runner: Runner, policy: Policy | None) -> Critic:
    if kind == "program":
        settings = config.critic
        return ProgramCritic(runner, brief=settings.brief, repairs=settings.repairs, gate=settings.gate)
    if kind == "reference":
        return ReferenceCritic()
    if kind == "human":
        from text2grad.critics.human import HumanCritic

        return HumanCritic(read_feedback(config.run.folder / "feedback.jsonl"))
    if kind == "reward_model":
        return reward_model_critic(config, policy)
    from text2grad.chat import OpenAIChat

    prompt = read_prompt(config.critic.prompt or task.critic_prompt)
    chat = OpenAIChat(
        config.critic.model,
        base_url=config.critic.base_url,
        max_tokens=config.critic.max_tokens,
        temperature=config.critic.temperature,
        concurrency=config.critic.concurrency,
        grounded=config.critic.grounded,
    )
    version = prompt_version(config.critic.prompt or task.critic_prompt)
    source = Source(kind="llm", model=config.critic.model, prompt_version=version)
    _refuse_equal_votes(config.critic.votes, config.critic.temperature, "critic.temperature")
    return PromptedCritic(chat, prompt, source, config.critic.ambiguity, config.critic.votes)


def _refuse_equal_votes(votes: int, temperature: float | None, setting: str) -> None:
    if votes > 1 and temperature == 0:
        raise UserError(f"critic.votes {votes}: greedy critiques are all the same", f"--{setting} 0.7")


def reward_model_folder(config: Config) -> Path:
    """Where the reward model is: the one named, or this run's own."""
    return Path(config.critic.model) if config.critic.model else config.run.folder / "reward_model" / "policy"


def critic_inputs(config: Config) -> dict[str, str]:
    """What the critic's judgements depend on, by name: its settings, and the files it reads as digests."""
    found = flatten({"critic.concurrency"}, critic=config.critic)
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
    folder = reward_model_folder(config)
    if not folder.is_dir():
        raise UserError(f"no reward model in {folder}", f"text2grad train-reward --run.folder {config.run.folder}")
    if config.reward_model.shared and policy is not None:
        return critic_over(config, beside(policy, folder, ADAPTER), str(folder))
    alone = PolicySettings(model=str(folder), dtype=config.policy.dtype, device=config.policy.device)
    return critic_over(config, load_policy(alone), str(folder))


def critic_over(config: Config, model: Policy, name: str) -> PromptedCritic:
    """A reward model as a critic."""
    temperature = config.reward_model.generation.temperature
    _refuse_equal_votes(config.critic.votes, temperature, "reward_model.generation.temperature")
    vocabulary = vocabulary_for(model, config.reward_model.grounded)
    whole = config.reward_model.whole_quotes
    chat = LocalChat(model, config.reward_model.generation, name, vocabulary, whole)
    prompt = read_prompt(REWARD_MODEL_PROMPT)
    version = prompt_version(REWARD_MODEL_PROMPT)
    source = Source(kind="reward_model", model=name, prompt_version=version)
    return PromptedCritic(chat, prompt, source, config.critic.ambiguity, config.critic.votes)


def judge_of(config: Config) -> Critic | None:
    """Who judges answers to prompts held out, where that is wanted (`evaluate.token_reward`).

    The reward model of this run, if there is one; where a program compares with references, that program.
    """
    if config.critic.kind == "reference":
        return ReferenceCritic() if config.evaluate.token_reward else None
    folder = config.run.folder / "reward_model" / "policy"
    wanted = config.evaluate.token_reward and (folder.is_dir() or config.critic.model)
    return reward_model_critic(config) if wanted and config.critic.kind == "reward_model" else None
