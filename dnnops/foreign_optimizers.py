"""What optimizers and learning rates of other libraries are called here.

The keys say what to use, the values are names in PyTorch, Keras, Lasagne, and Optax.
"""

from __future__ import annotations

__all__ = ["OPTIMIZERS"]

#: Names of optimizers and schedules.
OPTIMIZERS = {
    "optim.sgd": "SGD",
    "optim.adam": "Adam",
    "optim.adamw": "AdamW",
    "optim.rmsprop": "RMSprop RMSProp",
    "optim.sgd with momentum": "momentum apply_momentum trace",
    "optim.sgd with nesterov": "nesterov_momentum apply_nesterov_momentum",
    "optim.sgd, adam, adamw or rmsprop, or updates that you write": (
        "Adagrad Adadelta Adamax NAdam Nadam RAdam LBFGS Rprop ASGD SparseAdam Adafactor Lion Ftrl "
        "Lamb Muon adagrad adadelta adamax adamaxw amsgrad adabelief adafactor adan fromage lamb "
        "lars lbfgs lion nadam nadamw noisy_sgd novograd optimistic_gradient_descent polyak_sgd "
        "radam rprop sign_sgd sm3 yogi lookahead sam"
    ),
    "the updates of optim.sgd(...) in pytensor.function": (
        "apply_updates Optimizer GradientTransformation swap_in_optimizer_params_and_state"
    ),
    "the arguments weight_decay of the optimizers, and optim.clip_by_norm": (
        "chain add_decayed_weights scale_by_adam scale_by_rms scale_by_learning_rate "
        "scale_by_schedule scale"
    ),
    "an optimizer for each list of parameters, as in sgd(...) | adam(...)": (
        "masked multi_transform"
    ),
    # Gradients and averages
    "optim.clip_by_norm": (
        "clip_by_global_norm clip_grad_norm clip_grad_norm_ clipnorm total_norm_constraint "
        "clip_by_block_rms adaptive_grad_clip norm_constraint clip_grads_with_norm_"
    ),
    "pytensor.tensor.clip of the gradients": "clip clip_grad_value clip_grad_value_ clipvalue",
    "the root of sum((g**2).sum() for g in gradients)": "global_norm get_total_norm",
    "updates that you write, beside those of an optimizer": (
        "ema add_noise apply_every MultiSteps AveragedModel swa_utils update_bn SWALR "
        "get_ema_avg_fn get_ema_multi_avg_fn get_swa_avg_fn get_swa_multi_avg_fn"
    ),
    "a factor of the loss, or the flag dnn.mixed_precision": "LossScaleOptimizer",
    # Learning rates
    "a schedule as learning rate: optim.linear, cosine, exponential or piecewise": (
        "lr_scheduler LearningRateSchedule"
    ),
    "optim.exponential": "StepLR ExponentialLR ExponentialDecay exponential_decay",
    "optim.piecewise": "MultiStepLR PiecewiseConstantDecay piecewise_constant_schedule",
    "optim.cosine, which has a warmup": (
        "CosineAnnealingLR CosineDecay cosine_decay_schedule OneCycleLR "
        "CosineAnnealingWarmRestarts CosineDecayRestarts warmup_cosine_decay_schedule "
        "cosine_onecycle_schedule sgdr_schedule"
    ),
    "optim.linear": (
        "LinearLR PolynomialLR PolynomialDecay linear_schedule polynomial_schedule "
        "linear_onecycle_schedule warmup_constant_schedule piecewise_interpolate_schedule"
    ),
    "a number as learning rate": "ConstantLR constant_schedule",
    "a function of the step as learning rate": (
        "LambdaLR LRScheduler SequentialLR ChainedScheduler CyclicLR MultiplicativeLR "
        "join_schedules InverseTimeDecay warmup_exponential_decay_schedule"
    ),
    "a shared scalar as learning rate, which the program sets": (
        "ReduceLROnPlateau inject_hyperparams"
    ),
}
