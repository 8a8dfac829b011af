"""Texts against their references, by formulas that need no model: ROUGE and BLEU. No torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from text2grad.errors import EXTRAS, warn_once
from text2grad.eval.metrics import mean, rouge
from text2grad.unicode_words import units, unspaced

Figure = float | str | None
BLEU_FIGURES = ("bleu", "sentence_bleu", "bleu_signature")


def text_figures(references: Sequence[str], texts: Sequence[str]) -> dict[str, Figure]:
    """ROUGE-1, 2 and L (mean F1 in [0, 1], stemmed), BLEU in [0, 1], and `empty`: how many texts
    are.

    `bleu` is that of the whole corpus, `sentence_bleu` the mean over texts; both are None where
    sacrebleu is not installed, which is said once. Their tokenizer (13a) takes what stands between
    spaces for a word: where a reference is of a script without spaces, `bleu_unicode` and
    `sentence_bleu_unicode` are of the words and signs of all scripts. An empty text scores 0 and is
    not left out.

    Raises:
        ValueError: no texts, lists of different lengths, or an empty reference: it would score 0
            for any text.
    """
    if any(not reference.strip() for reference in references):
        raise ValueError("a reference is empty")
    empty = float(sum(not text.strip() for text in texts))
    found = {**rouge(references, texts), **bleu(references, texts)}
    return {**found, **_of_units(references, texts), "empty": empty}


def _of_units(references: Sequence[str], texts: Sequence[str]) -> dict[str, Figure]:
    """BLEU of texts cut into words and signs; none where every reference has spaces between its
    words."""
    apart = [[text[start:end] for start, end in units(text)] for text in references]
    if not any(unspaced(unit) for each in apart for unit in each):
        return {}
    said = [" ".join(text[start:end] for start, end in units(text)) for text in texts]
    found = bleu([" ".join(each) for each in apart], said, tokenize="none", force=True)
    return {f"{name}_unicode": found[name] for name in BLEU_FIGURES[:2]}


def bleu(references: Sequence[str], texts: Sequence[str], **options: Any) -> dict[str, Figure]:
    """BLEU (Papineni et al. 2002) by sacrebleu, with `options` of its `BLEU` (`tokenize`,
    `smooth_method`, ...).

    Returns:
        All in [0, 1], where sacrebleu itself has percentages.
        `bleu`: counts of n-grams are summed over the corpus; `sentence_bleu`: the mean over texts,
        each of the orders that it has (`effective_order`); `bleu_signature`: how sacrebleu counted,
        with its version.
    """
    try:
        from sacrebleu.metrics.bleu import BLEU
    except ModuleNotFoundError:
        warn_once(f"no BLEU without sacrebleu: pip install 'text2grad[{EXTRAS['sacrebleu']}]'")
        return dict.fromkeys(BLEU_FIGURES)
    corpus = BLEU(**options)
    found = corpus.corpus_score(list(texts), [list(references)]).score / 100
    single = BLEU(**{**options, "effective_order": True})
    each = [single.sentence_score(text, [ref]).score / 100 for text, ref in zip(texts, references, strict=True)]
    return {"bleu": found, "sentence_bleu": mean(each), "bleu_signature": str(corpus.get_signature())}
