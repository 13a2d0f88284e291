"""List, time, store and report the plans of convolutions.

A plan is one way to run one convolution. `dnnops.plans.cpu` and `dnnops.plans.gpu` query the
libraries for them.
"""

from dnnops.plans import stored  # noqa: F401 - registers with the runtime library
from dnnops.plans.listing import (
    FlagChoice,
    Progress,
    Survey,
    conv_plans,
    flag_choices,
    survey,
)
from dnnops.plans.plan import ConvPlan, conv_flops
from dnnops.plans.table import ConvPlans

__all__ = [
    "ConvPlan",
    "ConvPlans",
    "FlagChoice",
    "Progress",
    "Survey",
    "conv_flops",
    "conv_plans",
    "flag_choices",
    "survey",
]
