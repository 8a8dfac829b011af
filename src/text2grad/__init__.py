"""text2grad: train language models from natural-language feedback (Text2Grad, arXiv 2505.22338).

Everything in `__all__` can be imported from here. A name is loaded when it is first asked for: importing text2grad
imports nothing else, and what needs no torch loads without it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from text2grad.errors import optional_packages

if TYPE_CHECKING:
    from text2grad.align import (
        Aligned,
        Credit,
        CreditSettings,
        TokenTable,
        credit,
        critic_token_rewards,
        token_rewards,
    )
    from text2grad.chat import OpenAIChat, ScriptedChat
    from text2grad.config import Config, find_config, load_config
    from text2grad.critics.human import HumanCritic
    from text2grad.critics.noise import NoiseSettings, NoisyCritic
    from text2grad.critics.program import ProgramCritic
    from text2grad.critics.prompted import PromptedCritic
    from text2grad.critics.reference import ReferenceCritic
    from text2grad.durable.run import RunOptions
    from text2grad.errors import UserError
    from text2grad.feedback import (
        Critic,
        Critique,
        Example,
        Failure,
        Feedback,
        Message,
        Source,
        Span,
        read_records,
        write_records,
    )
    from text2grad.formats.export import export
    from text2grad.formats.intake import import_feedback
    from text2grad.formats.published import responses_of
    from text2grad.policy.generate import LocalChat
    from text2grad.policy.load import load_policy
    from text2grad.policy.model import Policy
    from text2grad.policy.settings import GenerationSettings, LoraSettings, PolicySettings, TinySettings
    from text2grad.policy.tiny import make_tiny_model
    from text2grad.sandbox import Runner
    from text2grad.tasks.base import Task, TaskSettings, load_task, read_prompt
    from text2grad.train.pairs import Pair
    from text2grad.train.ppo import train_ppo
    from text2grad.train.settings import PPOSettings, SupervisedSettings
    from text2grad.train.supervised import train_supervised
    from text2grad.wire import parse, render

__all__ = [
    "Aligned",
    "Config",
    "Credit",
    "CreditSettings",
    "Critic",
    "Critique",
    "Example",
    "Failure",
    "Feedback",
    "GenerationSettings",
    "HumanCritic",
    "LocalChat",
    "LoraSettings",
    "Message",
    "NoiseSettings",
    "NoisyCritic",
    "OpenAIChat",
    "PPOSettings",
    "Pair",
    "Policy",
    "PolicySettings",
    "ProgramCritic",
    "PromptedCritic",
    "ReferenceCritic",
    "RunOptions",
    "Runner",
    "ScriptedChat",
    "Source",
    "Span",
    "SupervisedSettings",
    "Task",
    "TaskSettings",
    "TinySettings",
    "TokenTable",
    "UserError",
    "credit",
    "critic_token_rewards",
    "export",
    "find_config",
    "import_feedback",
    "load_config",
    "load_policy",
    "load_task",
    "make_tiny_model",
    "parse",
    "read_prompt",
    "read_records",
    "render",
    "responses_of",
    "token_rewards",
    "train_ppo",
    "train_supervised",
    "write_records",
]

_MODULES = {
    "align": "Aligned Credit CreditSettings TokenTable credit critic_token_rewards token_rewards",
    "chat": "OpenAIChat ScriptedChat",
    "config": "Config find_config load_config",
    "critics.human": "HumanCritic",
    "critics.noise": "NoiseSettings NoisyCritic",
    "critics.program": "ProgramCritic",
    "critics.prompted": "PromptedCritic",
    "critics.reference": "ReferenceCritic",
    "durable.run": "RunOptions",
    "errors": "UserError",
    "feedback": "Critic Critique Example Failure Feedback Message Source Span read_records write_records",
    "formats.export": "export",
    "formats.intake": "import_feedback",
    "formats.published": "responses_of",
    "policy.generate": "LocalChat",
    "policy.load": "load_policy",
    "policy.model": "Policy",
    "policy.settings": "GenerationSettings LoraSettings PolicySettings TinySettings",
    "policy.tiny": "make_tiny_model",
    "sandbox": "Runner",
    "tasks.base": "Task TaskSettings load_task read_prompt",
    "train.ppo": "train_ppo",
    "train.settings": "PPOSettings SupervisedSettings",
    "train.pairs": "Pair",
    "train.supervised": "train_supervised",
    "wire": "parse render",
}
"""Where each name is; the imports above say the same to type checkers."""
_HOMES = {name: module for module, names in _MODULES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    """Load a name of `__all__`, or `__version__`.

    Raises:
        MissingPackageError: it needs a package that only an extra brings.
    """
    if name == "__version__":
        from importlib.metadata import version

        return version("text2grad")
    if name not in _HOMES:
        raise AttributeError(f"module 'text2grad' has no attribute {name!r}")
    with optional_packages():
        found = getattr(import_module(f"text2grad.{_HOMES[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "__version__"})
