"""What a run of training depends on, by name (`durable.run`): large things as digests."""

from __future__ import annotations

from collections.abc import Iterable

from text2grad.durable.identity import digest_of_reference, digest_of_texts, flatten
from text2grad.feedback import Message
from text2grad.policy.encode import rendering_of
from text2grad.policy.model import Policy
from text2grad.train.settings import SupervisedSettings


def digest_of_data(policy: Policy, records: Iterable[str], messages: Iterable[Message]) -> str:
    """Of records, and of how the tokenizer reads their messages."""
    return digest_of_texts([*records, *rendering_of(policy.tokenizer, messages)])


def supervised_identity(
    policy: Policy, settings: SupervisedSettings, section: str, data: dict[str, str]
) -> dict[str, str]:
    """That of a supervised run, whose `settings` stand in a section; `data` has the digests of what it learns."""
    return {
        **flatten(**{section: settings}),
        "the starting model": digest_of_reference(policy),
        **data,
    }
