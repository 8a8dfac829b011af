"""Chat models: one client for every endpoint, and what any chat model is to a critic.

`base` says what a chat is; `client` is the one for OpenAI-compatible servers: `questions` are the
requests and their ids, `endpoint` one request and its `reply`, `transport` the openai SDK with
limits, `pace` how many at a time, `asking` all requests of one question, `journal` the paid
answers, `prices` what they cost, `batch` the requests as a file.
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
