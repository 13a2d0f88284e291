"""Plans of convolutions: listed, timed, stored, and shown after use.

A plan is one way to run one convolution. `dnnops.plans.cpu` and `dnnops.plans.gpu` ask the
libraries for theirs.
"""

from dnnops.plans import stored  # noqa: F401 - registers with the runtime library
from dnnops.plans.listing import (
    ConvPlan,
    FlagChoice,
    Progress,
    Survey,
    conv_flops,
    conv_plans,
    flag_choices,
    survey,
)

__all__ = [
    "ConvPlan",
    "FlagChoice",
    "Progress",
    "Survey",
    "conv_flops",
    "conv_plans",
    "flag_choices",
    "survey",
]
