"""A profile: which policies are heard, in which order, by which numbers they judge. Files: config/profiles.py."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from vllmd.decide.propose import Policy
from vllmd.model.thresholds import Thresholds
from vllmd_policies import BUILT_IN

# The profile that is taken where none is named. Its file says what the code's defaults are.
DEFAULT = "default"

POLICIES: Mapping[str, Policy] = {policy.__name__: policy for policy in BUILT_IN}


@dataclass(frozen=True, slots=True)
class Profile:
    """The policies in the order in which they are heard, and their thresholds."""

    policies: tuple[Policy, ...] = BUILT_IN
    thresholds: Thresholds = field(default_factory=Thresholds)


def in_order(names: Sequence[str]) -> tuple[Policy, ...]:
    """Return the policies of these names. KeyError: there is none of a name."""
    return tuple(POLICIES[name] for name in names)
