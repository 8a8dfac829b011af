"""Chat models: the protocol that critics use, and one client for every OpenAI-compatible server.

`base` defines the protocol and `client` implements it. `questions` builds requests and their ids,
`endpoint` sends one request and returns its `reply`, `transport` wraps the openai SDK with limits,
`pace` limits concurrency, `asking` handles retries and fallbacks, `journal` stores paid answers,
`prices` computes their cost, and `batch` writes requests to a file.
"""

from text2grad.chat.base import Answer, Chat, Completion, Conversation, GroundedChat, LimitedChat, ScriptedChat
from text2grad.chat.client import OpenAIChat
from text2grad.chat.settings import EndpointSettings

__all__ = [
    "Answer",
    "Chat",
    "Completion",
    "Conversation",
    "EndpointSettings",
    "GroundedChat",
    "LimitedChat",
    "OpenAIChat",
    "ScriptedChat",
]
