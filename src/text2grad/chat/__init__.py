"""Chat models: the protocol that critics use, and one client for every OpenAI-compatible server.

`base` defines the protocol and `client` implements it. `questions` builds requests and their ids,
`endpoint` sends one request and returns its `reply`, `transport` wraps the openai SDK with limits,
`pace` limits concurrency, `asking` handles retries and fallbacks, `journal` stores paid answers,
`prices` computes their cost, and `batch` writes requests to a file.
"""

from text2grad.chat.base import Answer as Answer
from text2grad.chat.base import Chat as Chat
from text2grad.chat.base import Completion as Completion
from text2grad.chat.base import Conversation as Conversation
from text2grad.chat.base import GroundedChat as GroundedChat
from text2grad.chat.base import LimitedChat as LimitedChat
from text2grad.chat.base import ScriptedChat as ScriptedChat
from text2grad.chat.client import OpenAIChat as OpenAIChat
from text2grad.chat.settings import EndpointSettings as EndpointSettings
