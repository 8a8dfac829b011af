"""Settings of prompted critics: endpoint, prompt, and how answers are read."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from text2grad.chat.settings import EndpointSettings
from text2grad.settings import Settings
from text2grad.wire import Ambiguity, LocateSettings

Validation = Literal["keep", "ask", "drop"]


class VoteSettings(Settings):
    """How many critiques one is made of, and which of its quotes count."""

    votes: int = Field(
        default=1,
        ge=1,
        description="critiques per response, at a temperature above 0; majority spans stay, weighted by votes",
    )
    ambiguity: Ambiguity = Field(
        default="skip", description="what to do with a quote that occurs more than once without saying which"
    )


class ReadingSettings(VoteSettings):
    """How answers are read. The defaults are those for a model that was trained to write z."""

    validation: Validation = Field(
        default="keep",
        description="quotes that are not in the response: keep the other spans; ask once more, then keep; drop the"
        " critique if the second answer is no better (only an endpoint is asked again)",
    )
    repair: bool = Field(
        default=False, description="repair invalid JSON, if all quotes of the result are in the response"
    )
    locate: LocateSettings | None = Field(
        default=None, description="tolerance when a quote is looked up in the response; null: exact"
    )


AS_WRITTEN = ReadingSettings()


class PromptedSettings(ReadingSettings, EndpointSettings):
    """The prompted critic: a chat model behind an endpoint, its prompt, and how its answers are read."""

    prompt: str | None = Field(default=None, description="file that replaces the task's critic prompt")
    validation: Validation = Field(
        default="drop", description=str(ReadingSettings.model_fields["validation"].description)
    )
    repair: bool = Field(default=True, description=str(ReadingSettings.model_fields["repair"].description))
    locate: LocateSettings | None = Field(
        default=LocateSettings(), description=ReadingSettings.model_fields["locate"].description
    )


class RewardModelCriticSettings(VoteSettings):
    """The trained reward model as a critic; its answers are read as it was trained to write them."""

    folder: Path | None = Field(default=None, description="of the model; null: this run's own")
    second: Path | None = Field(
        default=None,
        description="folder of another reward model: what the two disagree about pays nothing; null: one alone",
    )
    gate: bool = Field(
        default=True, description="train refuses a reward model that train-reward found unfit; false: trains"
    )
    words: bool | None = Field(
        default=None,
        description="false: in the training loop what heads give alone, which is several times as fast: the verdict"
        " (reward_model.verdict head), for a credit.scheme that pays nothing else, or spans too (spans head); null:"
        " false where both come from heads",
    )
