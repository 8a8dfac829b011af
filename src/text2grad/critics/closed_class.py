"""English function words: a closed class, so a list is complete."""

from __future__ import annotations

_LIST = """
a an the this that these those such each every either neither both all any some no none few
i me my mine myself we us our ours ourselves you your yours yourself yourselves
he him his himself she her hers herself it its itself they them their theirs themselves
who whom whose which what whoever whatever one ones someone anyone everyone nobody
something anything everything nothing other others another
and or but nor so yet for if unless until while when whenever where wherever because since although
though whereas whether than as lest once
about above across after against along among around at before behind below beneath beside besides
between beyond by despite down during except from in inside into like near of off on onto out outside
over past per through throughout till to toward towards under up upon via with within without
be am is are was were been being have has had having do does did doing done
can could may might must shall should will would ought need dare
not also too very just only even then there here thus hence how why again ever never now still
i'm i've i'll i'd you're you've you'll you'd he's he'll he'd she's she'll she'd it's it'll it'd
we're we've we'll we'd they're they've they'll they'd that's there's here's what's who's let's
isn't aren't wasn't weren't haven't hasn't hadn't don't doesn't didn't can't cannot couldn't mayn't
mightn't mustn't shan't shouldn't won't wouldn't needn't
"""
CLOSED_CLASS = frozenset(_LIST.split())
