"""What is asked of the real model."""

from __future__ import annotations

from text2grad.feedback import Message
from text2grad.policy.encode import encode_prompt
from text2grad.policy.model import Policy


def ask(policy: Policy, text: str) -> list[int]:
    return encode_prompt(policy.tokenizer, (Message(role="user", content=text),))
