"""The critics by the names that `critic.kind` has for them: those of the package, and any of the
user's own."""

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
    """The spec of this name: one of `CRITICS`, or as `module:Name` a `CriticSpec` or a class of the
    user's own, which is called without arguments; or the critic at an address (`critics.served`).

    Raises:
        UserError: there is no such module or name.
    """
    if kind in CRITICS:
        return CRITICS[kind]
    if is_address(kind):
        return served_spec(kind)
    found = load_named("critic", kind, kinds=(type, CriticSpec))
    if isinstance(found, CriticSpec):
        return found
    return CriticSpec(kind, make=lambda settings, ready: _instance(kind, found))


def source_kind_of(kind: str) -> SourceKind:
    """Return the kind of the source of a critic's critiques; a server is asked for it.

    Raises:
        UserError: there is no such critic, or no such server.
    """
    return ServedCritic(kind).source.kind if is_address(kind) else spec_of(kind).source


def _instance(name: str, made: type[Any]) -> Critic:
    """The critic that a class of the user's own makes.

    Raises:
        UserError: it raises when it is called, or what it makes is not a `Critic`.
    """
    critic = call_user_code("it is called without arguments", made)
    if not callable(getattr(critic, "critique", None)):
        cure = "it needs a method critique(examples, responses), one Critique or Failure for each"
        raise UserError(f"critic {name!r} is not a Critic: it has no method critique", cure)
    if not isinstance(getattr(critic, "source", None), Source):
        raise UserError(f"critic {name!r} is not a Critic: it has no source", 'source = Source(kind="program")')
    return cast(Critic, critic)
