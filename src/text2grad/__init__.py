"""text2grad: train language models from natural-language feedback (Text2Grad, arXiv 2505.22338).

Every name in `__all__` is loaded on first use: importing text2grad imports nothing else, and parts
that do not need torch load without it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from text2grad.errors import optional_packages

if TYPE_CHECKING:
    from text2grad.align import Aligned as Aligned
    from text2grad.align import CreditScheme as CreditScheme
    from text2grad.align import CreditSettings as CreditSettings
    from text2grad.align.rewards import Aligner as Aligner
    from text2grad.align.rewards import ScoredTrajectory as ScoredTrajectory
    from text2grad.align.rewards import TokenCredit as TokenCredit
    from text2grad.align.trajectory import Trajectory as Trajectory
    from text2grad.chat import OpenAIChat as OpenAIChat
    from text2grad.chat import ScriptedChat as ScriptedChat
    from text2grad.config import Config as Config
    from text2grad.config import find_config as find_config
    from text2grad.config import load_config as load_config
    from text2grad.critics.human import HumanCritic as HumanCritic
    from text2grad.critics.program import ProgramCritic as ProgramCritic
    from text2grad.critics.prompted import PromptedCritic as PromptedCritic
    from text2grad.critics.reference import ReferenceCritic as ReferenceCritic
    from text2grad.critics.served import ServedCritic as ServedCritic
    from text2grad.critics.spec import CriticSpec as CriticSpec
    from text2grad.data.export import export as export
    from text2grad.data.published import responses_of as responses_of
    from text2grad.data.records import import_feedback as import_feedback
    from text2grad.durable.run import RunOptions as RunOptions
    from text2grad.durable.state import seed_everything as seed_everything
    from text2grad.errors import UserError as UserError
    from text2grad.feedback import Critic as Critic
    from text2grad.feedback import Critique as Critique
    from text2grad.feedback import Example as Example
    from text2grad.feedback import Failure as Failure
    from text2grad.feedback import Feedback as Feedback
    from text2grad.feedback import Message as Message
    from text2grad.feedback import Source as Source
    from text2grad.feedback import Span as Span
    from text2grad.feedback import Transcript as Transcript
    from text2grad.feedback import conversation_of as conversation_of
    from text2grad.jsonl import read_records as read_records
    from text2grad.jsonl import write_records as write_records
    from text2grad.policy.load import load_frozen as load_frozen
    from text2grad.policy.load import load_policy as load_policy
    from text2grad.policy.local_chat import LocalChat as LocalChat
    from text2grad.policy.model import Policy as Policy
    from text2grad.policy.settings import GenerationSettings as GenerationSettings
    from text2grad.policy.settings import LoraSettings as LoraSettings
    from text2grad.policy.settings import PolicySettings as PolicySettings
    from text2grad.policy.tiny import make_tiny_model as make_tiny_model
    from text2grad.sandbox import Runner as Runner
    from text2grad.settings import TinyShape as TinyShape
    from text2grad.tasks.base import Task as Task
    from text2grad.tasks.base import TaskSettings as TaskSettings
    from text2grad.tasks.base import load_task as load_task
    from text2grad.tasks.base import read_prompt as read_prompt
    from text2grad.train.pairs import Pair as Pair
    from text2grad.train.ppo import train_ppo as train_ppo
    from text2grad.train.ppo_settings import PPOSettings as PPOSettings
    from text2grad.train.settings import SupervisedSettings as SupervisedSettings
    from text2grad.train.supervised import train_supervised as train_supervised
    from text2grad.wire import parse as parse
    from text2grad.wire import render as render

_MODULES = {
    "align": "Aligned CreditScheme CreditSettings",
    "align.rewards": "Aligner ScoredTrajectory TokenCredit",
    "align.trajectory": "Trajectory",
    "chat": "OpenAIChat ScriptedChat",
    "config": "Config find_config load_config",
    "critics.human": "HumanCritic",
    "critics.spec": "CriticSpec",
    "critics.program": "ProgramCritic",
    "critics.prompted": "PromptedCritic",
    "critics.reference": "ReferenceCritic",
    "critics.served": "ServedCritic",
    "durable.run": "RunOptions",
    "durable.state": "seed_everything",
    "errors": "UserError",
    "feedback": "Critic Critique Example Failure Feedback Message Source Span Transcript conversation_of",
    "jsonl": "read_records write_records",
    "data.export": "export",
    "data.records": "import_feedback",
    "data.published": "responses_of",
    "policy.load": "load_frozen load_policy",
    "policy.local_chat": "LocalChat",
    "policy.model": "Policy",
    "policy.settings": "GenerationSettings LoraSettings PolicySettings",
    "policy.tiny": "make_tiny_model",
    "sandbox": "Runner",
    "settings": "TinyShape",
    "tasks.base": "Task TaskSettings load_task read_prompt",
    "train.ppo": "train_ppo",
    "train.ppo_settings": "PPOSettings",
    "train.settings": "SupervisedSettings",
    "train.pairs": "Pair",
    "train.supervised": "train_supervised",
    "wire": "parse render",
}
"""The names of each module; the imports above tell type checkers the same."""
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names.split()}
__all__ = sorted(_MODULE_OF)


def __getattr__(name: str) -> Any:
    """Load a name of `__all__`, or `__version__`.

    Raises:
        MissingPackageError: the name needs a package of an extra that is not installed.
    """
    if name == "__version__":
        from importlib.metadata import version

        return version("text2grad")
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'text2grad' has no attribute {name!r}")
    with optional_packages():
        value = getattr(import_module(f"text2grad.{_MODULE_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "__version__"})
