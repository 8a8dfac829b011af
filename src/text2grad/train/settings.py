"""Settings of the training loops, with the paper's choice available for each (docs/method.md).

Plain settings; importing this module imports no torch.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field

from text2grad.named import check_name
from text2grad.settings import Settings

ADAMW = "adamw"


class SupervisedSettings(Settings):
    """Training on a fixed set of examples. What all of it shares is
    `durable.settings.CourseSettings`."""

    epochs: float = Field(default=2.0, gt=0, description="passes over the data")
    batch_size: int = Field(default=8, ge=1, description="sequences per optimizer step")
    micro_batch_size: int = Field(default=8, ge=1, description="sequences per forward pass")
    lr: float = Field(default=1e-5, gt=0, description="learning rate at its peak")


def _known_optimizer(name: str) -> str:
    return check_name(name, (ADAMW,), "module:name")


class NextTokenSettings(SupervisedSettings):
    """Masked next-token training: SFT on responses, and the reward model on z (paper, section
    3.4)."""

    optimizer: Annotated[str, AfterValidator(_known_optimizer)] = Field(
        default=ADAMW, description="adamw, or module:name of a function (model, lr, weight_decay) -> optimizer"
    )


class SFTSettings(NextTokenSettings):
    """Fine-tuning on reference answers."""

    least_loss: float | None = Field(
        default=None,
        gt=0,
        description="loss in nats a token, mean over a quarter of a pass, below which training ends: after more of"
        " it samples would hardly differ, and leave little to compare; null: all passes",
    )


class OfflineSettings(SupervisedSettings):
    """Training on annotated answers alone, no reward model and no sampling (`train --offline`)."""

    epochs: float = Field(default=3.0, gt=0, description="passes over the answers")
