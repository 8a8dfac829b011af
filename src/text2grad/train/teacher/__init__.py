"""The policy as its own teacher: SDPO (arXiv 2601.20802), RLSD (2604.03128) and span routing (TRACE, 2605.10194).

An answer is read twice by the same model: as it was asked, and with what its critique says, and the first right
answer to the same prompt, in the last turn of the question. Where the two readings differ, the feedback has
something to say about a token. The ids are those that were sampled: the answer is never tokenised again, and what
stands in a critique is text (`policy.encode`). A row with nothing to show, or too long to show it, has no lesson
and is counted.
"""
