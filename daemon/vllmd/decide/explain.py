"""From a failure to what helps, without a daemon: the policies' wish where no guard holds."""

from collections.abc import Sequence

from vllmd.decide.propose import Policy, propose
from vllmd.decide.vllm_defaults import chunked_prefill_default
from vllmd.model.decision import Domain, Proposal, Situation, Wish
from vllmd.model.failure import Failure
from vllmd.model.launch_end import LaunchEnd, ProcessState


def remedy_of(failure: Failure, end: LaunchEnd, policies: Sequence[Policy]) -> Proposal:
    """Return what helps against a failure, also where a supervisor's guards would hold it back."""
    version = end.version or failure.words.get("version")
    situation = Situation(
        baseline=end.flags,
        flags=end.flags,
        failure=failure,
        repeats=end.host.earlier_same_failures or 0,
        chunked_prefill_default=chunked_prefill_default(version),
        supervised=False,
        running=end.state is not ProcessState.EXITED,
        version=version,
        host=end.host,
    )
    wish = propose(situation, policies)
    return wish or Proposal("", Domain.MEMORY, Wish.RETRY_UNCHANGED, failure.summary, trigger=failure.kind)
