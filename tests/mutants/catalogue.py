"""All breaks. To add one:

- find the shortest piece of text that stands once in the file it is in, and what it would read were it wrong: short,
  so that work on the code around it does not disturb the catalogue;
- name what is broken in a sentence, and the promise that breaks with it;
- name the fastest test that fails then. `python -m tests.mutants <a word of the name>` runs that break alone. Where
  no test fails, a test is missing: write it first, where others would look for it.
"""

from tests.mutants.approvals import OF_APPROVALS
from tests.mutants.bodies import OF_BODIES
from tests.mutants.collecting import OF_COLLECTING
from tests.mutants.control import OF_CONTROL
from tests.mutants.dispatcher import OF_THE_DISPATCHER
from tests.mutants.door import OF_THE_DOOR
from tests.mutants.fold import OF_THE_FOLD
from tests.mutants.gateway import OF_THE_GATEWAY
from tests.mutants.library import OF_THE_LIBRARY
from tests.mutants.llm import OF_LLM_CALLS
from tests.mutants.log import OF_THE_LOG
from tests.mutants.mutant import Mutant
from tests.mutants.policy import OF_POLICY
from tests.mutants.projector import OF_THE_PROJECTOR
from tests.mutants.quotas import OF_QUOTAS
from tests.mutants.values import OF_VALUES
from tests.mutants.view import OF_THE_VIEW

MUTANTS: tuple[Mutant, ...] = (
    *OF_THE_FOLD,
    *OF_THE_PROJECTOR,
    *OF_THE_VIEW,
    *OF_THE_DOOR,
    *OF_CONTROL,
    *OF_THE_DISPATCHER,
    *OF_APPROVALS,
    *OF_THE_LOG,
    *OF_VALUES,
    *OF_POLICY,
    *OF_QUOTAS,
    *OF_BODIES,
    *OF_COLLECTING,
    *OF_LLM_CALLS,
    *OF_THE_LIBRARY,
    *OF_THE_GATEWAY,
)
