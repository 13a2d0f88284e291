"""Convert the CTC loss to ``torch.nn.functional.ctc_loss``."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from dnnops.link.pytorch.register import converts
from dnnops.nnet import CTC


@converts(CTC)
@torch.compiler.disable
def ctc(op: CTC, activations: Any, labels: Any, *lengths: Any) -> tuple:
    """Compute costs and gradients.

    Labels are checked as in the Op, on the host, so PyTorch can't compile this function.
    """
    steps, batch, _ = activations.shape
    arrays = [x.cpu().numpy() for x in (labels, *lengths)]
    op.check_shapes([tuple(activations.shape), *(x.shape for x in arrays)])
    found = [torch.from_numpy(label) for label in op.checked_labels(activations.shape, *arrays)]
    device = activations.device
    targets = torch.cat([*found, labels.new_zeros(0).cpu()]).long().to(device)
    target_lengths = torch.tensor([len(label) for label in found], dtype=torch.int64)
    input_lengths = lengths[0].long().cpu()
    used = (torch.arange(steps)[:, None] < input_lengths).to(device)[..., None]
    with torch.enable_grad():
        inside = torch.where(used, activations.detach(), 0.0).requires_grad_(op.with_gradients)
        if 0 in (steps, batch):
            costs = inside.sum(dim=(0, 2))
        else:
            costs = functional.ctc_loss(
                functional.log_softmax(inside, dim=2),
                targets,
                input_lengths,
                target_lengths,
                reduction="none",
            )
    has_nan = torch.isnan(functional.log_softmax(inside.detach(), dim=2)) & used
    values = torch.where(has_nan.any(dim=2).any(dim=0), torch.nan, costs.detach())
    values = torch.where(input_lengths.to(device) == 0, 0.0, values)
    if not op.with_gradients:
        return (values,)
    (gradients,) = torch.autograd.grad(costs.sum(), inside)
    gradients = torch.where(torch.isfinite(values)[:, None], gradients, torch.nan)
    return values, torch.where(used, gradients, 0.0)
