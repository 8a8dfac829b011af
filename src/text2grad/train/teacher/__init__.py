"""The policy as its own teacher: SDPO (arXiv 2601.20802), RLSD (2604.03128) and span routing (TRACE, 2605.10194).

The same model reads an answer twice: after its prompt, and after a prompt whose last turn also holds the critique
and the first right answer to the same prompt. The feedback bears on the tokens where the two readings differ. The
ids are those that were sampled: the answer is never tokenised again, and a critique is encoded as text, never as
control tokens (`policy.encode`). A row without feedback to show, or too long with it, has no lesson and is counted.

`prompt` is what the teacher is shown, `model` what it says, `loss` what is learned from it.
"""
