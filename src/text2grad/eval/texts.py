"""Compare texts with their references by ROUGE and BLEU. No torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from text2grad.errors import EXTRAS, warn_once
from text2grad.eval.metrics import mean, rouge
from text2grad.unicode_words import units, unspaced

Figure = float | str | None
BLEU_FIGURES = ("bleu", "sentence_bleu", "bleu_signature")


def text_figures(references: Sequence[str], texts: Sequence[str]) -> dict[str, Figure]:
    """Return ROUGE-1, 2 and L (mean F1, stemmed), BLEU, and `empty`, the number of empty texts.

    `bleu` is over the corpus, `sentence_bleu` the mean over texts; without sacrebleu both are None,
    with one warning. Its tokenizer (13a) splits words at spaces. If a reference has a script
    without spaces, `bleu_unicode` and `sentence_bleu_unicode` count the words and characters of all
    scripts. All scores are in [0, 1]; empty texts score 0 and are included.

    Raises:
        ValueError: no texts, lists of different lengths, or an empty reference, with which any text
            would score 0.
    """
    if any(not reference.strip() for reference in references):
        raise ValueError("a reference is empty")
    empty = float(sum(not text.strip() for text in texts))
    figures = {**rouge(references, texts), **bleu(references, texts)}
    return {**figures, **_unicode_bleu(references, texts), "empty": empty}


def _unicode_bleu(references: Sequence[str], texts: Sequence[str]) -> dict[str, Figure]:
    """Return BLEU over words and characters; empty unless a reference has an unspaced script."""
    reference_units = [[text[start:end] for start, end in units(text)] for text in references]
    if not any(unspaced(unit) for reference in reference_units for unit in reference):
        return {}
    spaced = [" ".join(text[start:end] for start, end in units(text)) for text in texts]
    figures = bleu([" ".join(reference) for reference in reference_units], spaced, tokenize="none", force=True)
    return {f"{name}_unicode": figures[name] for name in BLEU_FIGURES[:2]}


def bleu(references: Sequence[str], texts: Sequence[str], **options: Any) -> dict[str, Figure]:
    """Return BLEU (Papineni et al. 2002) by sacrebleu; `options` are those of its class `BLEU`.

    Returns:
        `bleu`: n-gram counts summed over the corpus; `sentence_bleu`: the mean over texts, each
        with the n-gram orders that it has (`effective_order`); both in [0, 1], not in percent.
        `bleu_signature`: sacrebleu's options and version.
    """
    try:
        from sacrebleu.metrics.bleu import BLEU
    except ModuleNotFoundError:
        warn_once(f"no BLEU without sacrebleu: pip install 'text2grad[{EXTRAS['sacrebleu']}]'")
        return dict.fromkeys(BLEU_FIGURES)
    corpus = BLEU(**options)
    score = corpus.corpus_score(list(texts), [list(references)]).score / 100
    sentence = BLEU(**{**options, "effective_order": True})
    scores = [
        sentence.sentence_score(text, [reference]).score / 100
        for text, reference in zip(texts, references, strict=True)
    ]
    return {"bleu": score, "sentence_bleu": mean(scores), "bleu_signature": str(corpus.get_signature())}
