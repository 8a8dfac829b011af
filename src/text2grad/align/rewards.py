"""Token rewards for any trainer: sampled ids and feedback in, one number per sampled id out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from text2grad.align.credit import CreditSettings, credit
from text2grad.align.tokens import Aligned, TokenTable
from text2grad.errors import UserError
from text2grad.feedback import Critic, Critique, Example, Failure, Feedback, Judgement, judgements_of

if TYPE_CHECKING:
    from text2grad.align.pieces import AnyTokenizer

DEFAULTS = CreditSettings()
PADDED = 16_384
"""Models pad their output layer (Qwen by some 400 rows, Phi by 900) and sample such ids: tokens without text. Ids
further beyond the vocabulary are of another tokenizer."""


def token_rewards(
    feedback: Critique | Feedback | Failure,
    tokenizer: AnyTokenizer | TokenTable,
    ids: Sequence[int],
    settings: CreditSettings = DEFAULTS,
) -> list[float]:
    """The pseudo-reward delta of every sampled id (paper, section 3.3): as many numbers as `ids`, in their order.

    `ids` are of the response alone, as they were sampled, special tokens included; they are never re-tokenised.
    Those beyond the vocabulary, which a model with a padded output layer samples, have no text. The critique must
    be of the text that `TokenTable(tokenizer).align(ids).text` reads off them; of a record, the response is
    compared with it. `tokenizer` is one of transformers or of the package tokenizers; for many calls, make one
    `TokenTable` of it and hand that in.

    Raises:
        UserError: the feedback is a failure, or has no score where `settings.scheme` pays nothing else (neither is
            a reward of 0: leave the response out of the loss); the critique is of another text; or the ids are not
            of this tokenizer.
    """
    aligned = _aligned(_table(tokenizer), ids)
    if isinstance(feedback, Feedback) and feedback.response != aligned.text:
        read, judged = _shown(aligned.text), _shown(feedback.response)
        raise _of_another_text(f"the ids read {read}, the record's response is {judged}")
    judgement = scored(feedback.judgement() if isinstance(feedback, Feedback) else feedback, settings)
    if isinstance(judgement, Failure):
        raise UserError(
            f"the critique failed ({judgement.kind}): {judgement.message}", "leave the response out of the loss"
        )
    return _rewards(judgement, aligned, settings)


def critic_token_rewards(
    critic: Critic,
    examples: Sequence[Example],
    tokenizer: AnyTokenizer | TokenTable,
    ids: Sequence[Sequence[int]],
    settings: CreditSettings = DEFAULTS,
) -> list[list[float] | None]:
    """`token_rewards` of a batch judged in one call: `ids[i]` answer `examples[i]`, and the critic sees their text.

    None stands where the critique failed: leave that response out of the loss.

    Raises:
        UserError: as `token_rewards`; or the critic did not give one judgement for each response.
    """
    table = _table(tokenizer)
    aligned = [_aligned(table, each) for each in ids]
    said = judgements_of(critic, examples, [each.text for each in aligned])
    judgements = [scored(judgement, settings) for judgement in said]
    return [
        None if isinstance(judgement, Failure) else _rewards(judgement, each, settings)
        for judgement, each in zip(judgements, aligned, strict=True)
    ]


def scored(judgement: Judgement, settings: CreditSettings) -> Judgement:
    """The judgement; where the score is all that is rewarded, a critique without one is a failure and not a 0."""
    if not settings.by_score or isinstance(judgement, Failure) or judgement.score is not None:
        return judgement
    return Failure(kind="invalid", message="it has no score, and this credit.scheme rewards nothing else")


def _table(tokenizer: AnyTokenizer | TokenTable) -> TokenTable:
    return tokenizer if isinstance(tokenizer, TokenTable) else TokenTable(tokenizer)


def _aligned(table: TokenTable, ids: Sequence[int]) -> Aligned:
    strange = next((index for index in ids if not 0 <= index < table.vocabulary + PADDED), None)
    if strange is not None:
        raise UserError(
            f"ids of another tokenizer: {strange} is not among the {table.vocabulary:,} ids of this one",
            "hand in the tokenizer of the policy that sampled them",
        )
    return table.align(ids)


def _rewards(critique: Critique, aligned: Aligned, settings: CreditSettings) -> list[float]:
    try:
        return [float(reward) for reward in credit(critique, aligned, settings).delta]
    except ValueError as error:
        raise _of_another_text(str(error)) from error


def _of_another_text(detail: str) -> UserError:
    message = f"a critique of another text, or ids of another tokenizer: {detail}"
    return UserError(message, "show the critic the text of the ids: TokenTable(tokenizer).align(ids).text")


def _shown(text: str) -> str:
    return repr(text if len(text) <= 60 else f"{text[:60]}…")
