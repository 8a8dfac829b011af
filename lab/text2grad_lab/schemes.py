"""Credit schemes of our experiments, named `text2grad_lab.schemes:NAME` in `credit.scheme`."""

from __future__ import annotations

import numpy as np

from text2grad.align import Aligned, Credit, CreditSettings, credit
from text2grad.feedback import Critique


def verdict_signs(critique: Critique, aligned: Aligned, settings: CreditSettings) -> Credit:
    """Reward every marked token with the sign of the score; the labels of the spans are ignored.

    The spans of a critique without a score, or with a score of 0, earn nothing.
    """
    sign = int(np.sign(critique.score or 0.0))
    spans = [span.model_copy(update={"label": sign}) for span in critique.spans if span.label and sign]
    signed = critique.model_copy(update={"spans": tuple(spans)})
    return credit(signed, aligned, settings.model_copy(update={"scheme": "spans"}))


def poor_spans(critique: Critique, aligned: Aligned, settings: CreditSettings) -> Credit:
    """Pay the poor spans and the verdict; praise earns nothing."""
    spans = tuple(span for span in critique.spans if span.label < 0)
    poor = critique.model_copy(update={"spans": spans})
    return credit(poor, aligned, settings.model_copy(update={"scheme": "spans"}))
