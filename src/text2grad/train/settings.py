"""Define the settings of supervised training (docs/method.md). No torch."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field

from text2grad.named import check_name
from text2grad.settings import Settings

ADAMW = "adamw"


class SupervisedSettings(Settings):
    """Settings of training on a fixed set of examples.

    Settings shared by all stages are in `durable.settings.CourseSettings`.
    """

    epochs: float = Field(default=2.0, gt=0, description="passes over the data")
    batch_size: int = Field(default=8, ge=1, description="sequences per optimizer step")
    micro_batch_size: int = Field(default=8, ge=1, description="sequences per forward pass")
    lr: float = Field(default=1e-5, gt=0, description="peak learning rate")


def _known_optimizer(name: str) -> str:
    return check_name(name, (ADAMW,), "module:name")


class NextTokenSettings(SupervisedSettings):
    """Settings of next-token training: SFT on responses, the reward model on z (section 3.4)."""

    optimizer: Annotated[str, AfterValidator(_known_optimizer)] = Field(
        default=ADAMW, description="adamw, or module:name of a function (model, lr, weight_decay) -> optimizer"
    )


class SFTSettings(NextTokenSettings):
    """Settings of fine-tuning on reference answers."""

    least_loss: float | None = Field(
        default=None,
        gt=0,
        description="training ends once the mean loss over a quarter of a pass is below this, in nats a token:"
        " beyond it samples would hardly differ, with little to compare; null: all passes",
    )


class OfflineSettings(SupervisedSettings):
    """Settings of training on annotated answers, without sampling (`train --offline`)."""

    epochs: float = Field(default=3.0, gt=0, description="passes over the answers")
