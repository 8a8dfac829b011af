"""Look up critics by their name in `critic.kind`, built-in or user-defined."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from text2grad.critics.human import HUMAN
from text2grad.critics.program.critic import PROGRAM
from text2grad.critics.prompted.critic import PROMPTED, REWARD_MODEL
from text2grad.critics.reference import REFERENCE
from text2grad.critics.served import ServedCritic, is_address, served_spec
from text2grad.critics.spec import CriticSpec
from text2grad.errors import UserError
from text2grad.feedback import Critic, Source, SourceKind
from text2grad.named import call_user_code, load_named

CRITICS: Mapping[str, CriticSpec] = {
    spec.kind: spec for spec in (REWARD_MODEL, PROGRAM, REFERENCE, PROMPTED, HUMAN)
}


def spec_of(kind: str) -> CriticSpec:
    """Return the spec of a critic.

    `kind` is a name in `CRITICS`; the `module:Name` of a `CriticSpec`, or of a class without
    arguments; or the address of a server (`critics.served`).

    Raises:
        UserError: there is no such module or name.
    """
    if kind in CRITICS:
        return CRITICS[kind]
    if is_address(kind):
        return served_spec(kind)
    target = load_named("critic", kind, kinds=(type, CriticSpec))
    if isinstance(target, CriticSpec):
        return target
    return CriticSpec(kind, make=lambda settings, ready: _make_user_critic(kind, target))


def source_kind_of(kind: str) -> SourceKind:
    """Return the source kind of a critic, which a server reports.

    Raises:
        UserError: there is no such critic, or no such server.
    """
    return ServedCritic(kind).source.kind if is_address(kind) else spec_of(kind).source


def _make_user_critic(name: str, critic_class: type[Any]) -> Critic:
    """Instantiate a user-defined critic class.

    Raises:
        UserError: the class raises, or its instances are not critics.
    """
    critic = call_user_code("it is called without arguments", critic_class)
    if not callable(getattr(critic, "critique", None)):
        cure = "it needs a method critique(examples, responses), one Critique or Failure for each"
        raise UserError(f"critic {name!r} is not a Critic: it has no method critique", cure)
    if not isinstance(getattr(critic, "source", None), Source):
        raise UserError(f"critic {name!r} is not a Critic: it has no source", 'source = Source(kind="program")')
    return cast(Critic, critic)
