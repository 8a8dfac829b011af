"""What servers say against a request: bodies in the shapes of their providers, and what each is about."""

from __future__ import annotations

import json
from typing import Any

import pytest

from text2grad.chat.api_errors import error_in, read_error

OLD, NEW, HEAT, FORM = "max_tokens", "max_completion_tokens", "temperature", "json_schema"


def openai(message: str, **more: Any) -> dict[str, Any]:
    return {"error": {"message": message, "type": "invalid_request_error", "param": None, "code": None, **more}}


def extra(name: str) -> dict[str, Any]:
    return {"type": "extra_forbidden", "loc": ["body", name], "msg": "Extra inputs are not permitted", "input": 800}


NOT_MAX = f"Unsupported parameter: '{OLD}' is not supported with this model. Use '{NEW}' instead."
ONLY_1 = "gpt-5 models don't support temperature=0.0. Only temperature=1 is supported. To drop unsupported params"
ANTHROPIC = {"type": "error", "error": {"type": "invalid_request_error", "message": "`temperature` is deprecated."}}
TAKEN: dict[str, tuple[Any, set[str]]] = {
    "openai": (openai(NOT_MAX, param=OLD, code="unsupported_parameter"), {OLD}),
    "openai, the name in param alone": (openai("Unsupported parameter.", param=HEAT), {HEAT}),
    "the code alone": (openai("Bad request", param=HEAT, code="unsupported_value"), {HEAT}),
    "nothing but 1": (openai("Invalid value for 'temperature': expected 1"), {HEAT}),
    "fixed": (openai("temperature is fixed at 1.0 for thinking models"), {HEAT}),
    "must go": (openai("Temperature must be omitted for reasoning models"), {HEAT}),
    "isn't": (openai("Setting temperature isn't supported"), {HEAT}),
    "xai": (
        {
            "code": "Client specified an invalid argument",
            "error": "Argument not supported on this model: temperature",
        },
        {HEAT},
    ),
    "requires": (openai("This model requires max_completion_tokens"), {OLD}),
    "copilot": ({"error": {"message": NOT_MAX, "code": "invalid_request_body"}}, {OLD}),
    "openai temperature": (
        openai(
            "Unsupported value: 'temperature' does not support 0 with this model. Only the default (1) value is"
            " supported.",
            param=HEAT,
            code="unsupported_value",
        ),
        {HEAT},
    ),
    "azure": (
        {"error": {"code": 400, "message": f"Validation error at #/{NEW}: Extra inputs are not permitted"}},
        {NEW},
    ),
    "azure serverless": (
        openai(f"Extra parameters ['{NEW}'] are not allowed when extra-parameters is not set"),
        {NEW},
    ),
    "vllm": (
        {"object": "error", "message": str([extra(NEW)]), "type": "BadRequestError", "param": None, "code": 400},
        {NEW},
    ),
    "mistral": ({"object": "error", "message": {"detail": [extra(NEW)]}, "type": "invalid_request_error"}, {NEW}),
    "mistral, a text": (
        {"object": "error", "message": json.dumps({"detail": [extra(NEW)]}), "code": "1000"},
        {NEW},
    ),
    "fastapi": ({"detail": [extra(OLD), extra(HEAT)]}, {OLD, HEAT}),
    "groq": (openai(f"property '{NEW}' is unsupported, did you mean '{OLD}'?"), {OLD, NEW}),
    "groq form": (
        openai("This model does not support response format `json_schema`. See supported models"),
        {FORM},
    ),
    "gemini": (
        [
            {
                "error": {
                    "code": 400,
                    "status": "INVALID_ARGUMENT",
                    "message": 'Invalid JSON payload received. Unknown name "temperature": Cannot find field.',
                }
            }
        ],
        {HEAT},
    ),
    "anthropic": (ANTHROPIC, {HEAT}),
    "anthropic thinking": (openai("temperature may only be set to 1 when thinking is enabled."), {HEAT}),
    "anthropic limit": ({"type": "error", "error": {"message": f"{OLD}: Field required"}}, {NEW}),
    "litellm": (
        openai(
            f"litellm.UnsupportedParamsError: {ONLY_1} set `litellm.drop_params = True`. Received Model"
            " Group=gpt-5\nAvailable Model Group Fallbacks=None",
            code="400",
        ),
        {HEAT},
    ),
    "litellm, two": (
        openai(
            "litellm.UnsupportedParamsError: azure does not support parameters: {'temperature': 0.0,"
            " 'response_format': {}}, for model=o1"
        ),
        {HEAT, FORM},
    ),
    "litellm inside": (openai("litellm.BadRequestError: AnthropicException - " + json.dumps(ANTHROPIC)), {HEAT}),
    "openrouter": (
        {
            "error": {
                "message": "Provider returned error",
                "code": 400,
                "metadata": {"raw": json.dumps(openai(NOT_MAX)), "provider_name": "OpenAI"},
            }
        },
        {OLD},
    ),
    "kimi": (openai("invalid temperature: only 1 is allowed for this model"), {HEAT}),
    "bedrock": (
        {
            "message": "The model returned the following errors: Malformed input request: #: extraneous key"
            f" [{NEW}] is not permitted"
        },
        {NEW},
    ),
    "bedrock temperature": ({"message": "This model doesn’t support the temperature field. Remove it."}, {HEAT}),
    "deepseek": (openai("This response_format type is unavailable now"), {FORM}),
    "ollama": ({"error": "'response_format.json_schema.schema' must be an object"}, {FORM}),
    "a plain text": (f"unknown field `{NEW}`", {NEW}),
}
"""What servers say who do not take an option, and which it is."""
A_VALUE: dict[str, Any] = {
    "too large": openai("max_tokens is too large: 99999. This model supports at most 4096 completion tokens."),
    "a range": openai("Invalid value: temperature must be between 0 and 1, only such values are allowed"),
    "strictly positive": openai("`temperature` must be strictly positive, 0 is not allowed"),
    "a valid range": openai("Invalid max_tokens value, the valid range of max_tokens is [1, 8192]"),
    "a value of a param": openai("Invalid value", param=HEAT, code="invalid_value"),
    "below": {"detail": [{"type": "less_than_equal", "loc": ["body", HEAT], "msg": "Input should be less than 1"}]},
    "another option": openai("Unsupported parameter: 'max_tokens_to_sample' is not supported"),
    "of a message": {
        "detail": [
            {
                "type": "extra_forbidden",
                "loc": ["body", "messages", 0, "name"],
                "msg": "Extra",
                "input": {"content": "temperature is not supported"},
            }
        ]
    },
    "an echo": {"object": "error", "message": "[{'type': 'x', 'msg': 'Extra inputs', 'input': 'temperature'}]"},
}
"""What is said of a value, of something else, or only repeated: no option is refused by it."""
CAUSES: dict[str, tuple[Any, str]] = {
    "openai length": (openai("too long", code="context_length_exceeded"), "too_long"),
    "vllm length": (
        {
            "object": "error",
            "message": "This model's maximum context length is 2048 tokens. However, you"
            " requested 2100 tokens. Please reduce the length of the messages.",
        },
        "too_long",
    ),
    "vllm, both named": (
        openai(
            "'max_tokens' or 'max_completion_tokens' is too large: 1024. This model's maximum"
            " context length is 2048 tokens"
        ),
        "too_long",
    ),
    "anthropic length": ({"error": {"message": "prompt is too long: 210000 tokens > 200000 maximum"}}, "too_long"),
    "gemini length": ([{"error": {"message": "The input token count (9) exceeds the maximum number"}}], "too_long"),
    "mistral length": (openai("Prompt contains 40000 tokens, too large for model with 32768"), "too_long"),
    "litellm length": (openai("litellm.ContextWindowExceededError: OpenAIException - too many"), "too_long"),
    "openai tokens": (openai("Input tokens exceed the configured limit of 272000 tokens"), "too_long"),
    "openai filter": (openai("no", code="content_filter"), "moderated"),
    "azure filter": (
        openai(
            "The response was filtered due to the prompt triggering Azure OpenAI's content management policy.",
            innererror={"code": "ResponsibleAIPolicyViolation"},
        ),
        "moderated",
    ),
    "alibaba": (
        openai("Input data may contain inappropriate content.", code="data_inspection_failed"),
        "moderated",
    ),
    "openrouter flagged": (openai("Your chosen model requires moderation and your input was flagged"), "moderated"),
    "gemini key": ([{"error": {"message": "API key not valid. Please pass a valid API key.", "code": 400}}], "key"),
    "anthropic credit": (openai("Your credit balance is too low to access the Anthropic API."), "credit"),
    "mistral model": ({"object": "error", "message": "Invalid model: mistral-huge"}, "model"),
    "azure deployment": (openai("The API deployment does not exist.", code="DeploymentNotFound"), "model"),
    "overloaded": ({"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}, "busy"),
    "anything": (openai("Something is wrong with your request"), ""),
}


def test_the_capabilities_that_a_server_does_not_have_are_recognised() -> None:
    """Of those that the request uses: an error may name the alternative, too."""
    wrong = {}
    for name, (body, options) in TAKEN.items():
        error = read_error(body if isinstance(body, str) else json.dumps(body))
        if not options <= error.refused or error.refused & {HEAT, FORM} != options & {HEAT, FORM} or error.reason:
            wrong[name] = error
    assert not wrong


def test_an_error_about_a_value_or_something_else_refuses_no_capability() -> None:
    wrong = {name: read_error(json.dumps(body)) for name, body in A_VALUE.items()}
    assert not {name: error for name, error in wrong.items() if error.refused}


def test_the_cause_of_an_error() -> None:
    errors = {name: (read_error(json.dumps(body)).reason, reason) for name, (body, reason) in CAUSES.items()}
    assert not {name: pair for name, pair in errors.items() if pair[0] != pair[1]}


def test_the_message_of_the_provider_follows_that_of_the_proxy() -> None:
    inner = json.dumps({"error": {"message": "Model supports at most 1 image", "code": "bad"}})
    body = {"error": {"message": "Provider returned error", "code": 400, "metadata": {"raw": inner}}}
    error = read_error(json.dumps(body))
    assert (error.message, error.status) == ("Provider returned error: Model supports at most 1 image", 400)
    assert read_error("<html>\n busy</html>").message == "<html> busy</html>"
    assert read_error('{"odd": 1}').message == '{"odd": 1}' and read_error("").message == ""


def test_a_message_has_no_control_or_invisible_characters() -> None:
    error = read_error(json.dumps(openai("\x1b[31mred\x1b[0m\u202e\u2028two\r\nlines sk-\u200bplanted")))
    assert error.message == "[31mred[0m two lines sk-planted", "so that the key is redacted after this"


CHOICE = {"finish_reason": "stop", "message": {"content": "Fine."}}


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"error": {"message": "no provider", "code": 502}}, "no provider"),
        ({"error": "model is loading"}, "model is loading"),
        ({"object": "error", "message": "out of memory"}, "out of memory"),
        ([{"error": {"message": "quota", "code": 429}}], "quota"),
        ({"error": {"message": "x"}, "choices": []}, "x"),
        ({"choices": [{"error": {"message": "cut off", "code": 502}, "message": {"content": "Fi"}}]}, "cut off"),
        ({"choices": [{**CHOICE, "finish_reason": "error"}]}, "the answer ended in an error"),
        ({"error": {"message": "x"}, "choices": [{"message": {"content": None}}]}, "x"),
        ({"error": None, "choices": [CHOICE]}, None),
        ({"error": {}, "choices": [CHOICE]}, None),
        ({"error": {"message": "a warning"}, "choices": [CHOICE]}, None),
        ({"choices": []}, None),
        ([], None),
        ("text", None),
        ({"choices": ["text"]}, None),
    ],
)
def test_an_error_that_came_as_an_answer(body: Any, words: str | None) -> None:
    error = error_in(body)
    assert (error.message if error else None) == words
