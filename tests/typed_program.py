"""A user's program that `make wheel` type-checks against the installed wheel: py.typed is in it."""

import text2grad

critique = text2grad.Critique.from_quotes("Due next week", poor=["next week"], score=-1.0, text="Due on Friday.")
start: int = critique.spans[0].start
text: str = critique.spans[0].start  # type: ignore[assignment]  # an unused ignore if the types are not seen
