"""Which features of a run can be combined: every pair, validated by the rules that runs are validated by.

`python -m parallel_core.combinations docs/combinations.md` writes the page; a test checks that it is up to date, and
`tests/parallel_core/test_combinations.py` runs the pairs that it marks as running.
"""

from parallel_core.combinations.features import FEATURES as FEATURES
from parallel_core.combinations.features import KINDS as KINDS
from parallel_core.combinations.features import SUBJECTS as SUBJECTS
from parallel_core.combinations.page import page as page
from parallel_core.combinations.pairs import Combination as Combination
from parallel_core.combinations.pairs import ends as ends
from parallel_core.combinations.pairs import one_device as one_device
from parallel_core.combinations.pairs import proof as proof
from parallel_core.combinations.pairs import repeats_tokens as repeats_tokens
from parallel_core.combinations.pairs import running as running
from parallel_core.combinations.pairs import spec_of as spec_of
from parallel_core.combinations.pairs import together as together
from parallel_core.combinations.pairs import unfaulted as unfaulted
from parallel_core.combinations.pairs import verdict as verdict
