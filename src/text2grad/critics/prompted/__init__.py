"""The prompted critic: `messages` builds its questions, `reading` interprets the answers."""

from text2grad.critics.prompted.critic import Pair as Pair
from text2grad.critics.prompted.critic import PromptedCritic as PromptedCritic
from text2grad.critics.prompted.critic import TaggerCritic as TaggerCritic
from text2grad.critics.prompted.messages import CUT as CUT
from text2grad.critics.prompted.messages import PLACES as PLACES
from text2grad.critics.prompted.messages import SPAN_MAP as SPAN_MAP
from text2grad.critics.prompted.messages import AnswerFormat as AnswerFormat
from text2grad.critics.prompted.messages import Prompt as Prompt
from text2grad.critics.prompted.messages import fitted_messages as fitted_messages
from text2grad.critics.prompted.messages import judge_messages as judge_messages
from text2grad.critics.prompted.reading import Reader as Reader
from text2grad.critics.prompted.settings import PromptedSettings as PromptedSettings
