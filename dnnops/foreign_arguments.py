"""What arguments of other libraries, and their values, are called here."""

from __future__ import annotations

__all__ = ["ARGUMENTS", "REMARKS", "VALUES"]

_STRIDES = ("subsample", "stride", "input_dilation", "dt, dw, dh", "dw, dh", "dw", "neib_step")
_PADS = ("border_mode", "pad", "pad_t, pad_w, pad_h", "pad_w, pad_h", "pad_w")
_DILATIONS = (
    "filter_dilation",
    *("dilation_t, dilation_w, dilation_h", "dilation_w, dilation_h", "dilation_w"),
)
_KERNELS = ("ws", "neib_shape", "filters", "kt, kw, kh", "kw, kh", "kw", "size", "n")
_INPUTS = ("input", "x", "inputs", "activations", "img", "indices", "ten4", "output")
_FEATURES = (
    *("n_input_plane", "input_size", "input_frame_size", "n_feature", "features", "shape"),
    *("channels", "groups, channels"),
)
_OUTPUTS = ("n_output_plane", "output_size", "output_frame_size", "hidden_size", "features")
_GAMMAS, _BETAS = ("gamma", "affine"), ("beta", "b")
_RATES = ("learning_rate", "rate")
_FILTERS = ("filters", "gamma", "table", "W")

#: Arguments here, by those of other libraries. The first whose names a function has is meant;
#: several names in one text belong together.
ARGUMENTS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("stride", "strides", "window_strides", "downsample"), _STRIDES),
    **dict.fromkeys(("padding", "pad", "paddings", "pads", "border_mode"), _PADS),
    **dict.fromkeys(("dilation", "dilations", "dilation_rate", "rhs_dilation"), _DILATIONS),
    **dict.fromkeys(
        (
            *("kernel_size", "pool_size", "window_shape", "ksize", "filter_size", "kernel_shape"),
            "kernel",
        ),
        _KERNELS,
    ),
    **dict.fromkeys(
        ("groups", "feature_group_count", "group", "number_of_groups"), ("num_groups", "groups")
    ),
    **dict.fromkeys(("input", "x", "inputs", "image", "images", "lhs"), _INPUTS),
    **dict.fromkeys(("logits", "log_probs"), ("x", "activations", "output")),
    **dict.fromkeys(("weight", "w", "weights", "rhs", "scale"), _FILTERS),
    **dict.fromkeys(("target", "targets", "y_true"), ("labels", "target", "true_dist")),
    **dict.fromkeys(("output", "y_pred", "predictions"), ("output", "coding_dist", "x")),
    **dict.fromkeys(("bias", "use_bias", "offset", "shift"), ("bias", "beta", "b", "affine")),
    **dict.fromkeys(("in_channels", "in_features", "num_features", "num_channels"), _FEATURES),
    **dict.fromkeys(("out_channels", "out_features", "units", "num_filters"), _OUTPUTS),
    **dict.fromkeys(("normalized_shape",), ("shape", "axes")),
    **dict.fromkeys(("num_embeddings", "input_dim"), ("rows", "input_size")),
    **dict.fromkeys(("embedding_dim", "output_dim"), ("features", "output_size")),
    **dict.fromkeys(("embed_dim", "d_model"), ("features",)),
    **dict.fromkeys(("num_heads", "nhead"), ("heads",)),
    **dict.fromkeys(("dim_feedforward", "mlp_dim"), ("hidden",)),
    **dict.fromkeys(("dim", "dims", "axis", "normalized_axes"), ("axis", "axes")),
    **dict.fromkeys(("eps", "epsilon", "variance_epsilon"), ("eps", "epsilon")),
    **dict.fromkeys(("elementwise_affine", "elementwise_scale"), ("affine",)),
    **dict.fromkeys(("momentum",), ("running_average_factor", "betas", "momentum")),
    **dict.fromkeys(("negative_slope", "slope", "alpha"), ("alpha", "negative_slope")),
    **dict.fromkeys(("size",), ("n", "ws", "ratio", "out_shape")),
    **dict.fromkeys(("scale_factor",), ("ratio",)),
    **dict.fromkeys(("attn_mask", "attention_mask", "bias_mask"), ("mask",)),
    **dict.fromkeys(("causal", "use_causal_mask"), ("is_causal",)),
    **dict.fromkeys(("dropout", "dropout_rate", "drop", "prob", "rate"), ("dropout_p", "p")),
    **dict.fromkeys(("lr", "learning_rate", "step_size", "initial_learning_rate"), _RATES),
    **dict.fromkeys(("beta1", "beta2", "beta_1", "beta_2", "b1", "b2"), ("betas",)),
    **dict.fromkeys(("rho", "decay"), ("alpha", "betas")),
    **dict.fromkeys(("gamma", "decay_rate"), ("factor",)),
    **dict.fromkeys(("params", "var_list"), ("parameters",)),
    **dict.fromkeys(("loss_or_grads", "grads"), ("loss", "gradients")),
    **dict.fromkeys(("weight_decay", "l2", "decay_weight"), ("weight_decay",)),
    **dict.fromkeys(("T_max", "decay_steps", "total_steps", "transition_steps"), ("steps",)),
    **dict.fromkeys(("warmup_steps", "num_warmup_steps"), ("warmup",)),
    **dict.fromkeys(("eta_min", "end_value", "end_lr"), ("end",)),
    **dict.fromkeys(("step_size", "every_steps"), ("every", "learning_rate")),
    **dict.fromkeys(("milestones",), ("boundaries",)),
    **dict.fromkeys(("max_grad_norm", "clip_norm"), ("max_norm",)),
    **dict.fromkeys(("hidden_dim", "num_units", "n_hidden"), ("hidden_size", "hidden")),
    **dict.fromkeys(("W", "kernel_initializer", "init"), ("initializer", "filters")),
    "output_padding": ("adj_t, adj_w, adj_h", "adj_w, adj_h", "output_shape"),
    **dict.fromkeys(("num_groups",), ("groups",)),
    **dict.fromkeys(("target_lengths",), ("label_lengths",)),
    **dict.fromkeys(("layer_norm_eps",), ("eps",)),
    **dict.fromkeys(("max_lr", "peak_value", "init_value"), ("rate", "learning_rate")),
    **dict.fromkeys(("total_iters",), ("steps",)),
    **dict.fromkeys(("output_size",), ("out_shape", "output_size")),
}

#: Arguments of other libraries that no function has, and what does the same.
REMARKS = {
    "keepdims": "results keep their axes; sum with pytensor.tensor if you need another shape",
    "keepdim": "results keep their axes; sum with pytensor.tensor if you need another shape",
    "bias": "add it to the result, as in y + b[:, None, None]",
    "padding_mode": "pad the images first, with pytensor.tensor.pad",
    "ignore_index": "multiply the costs by a mask",
    "blank": "the blank label is 0",
    "align_corners": "the corners of an image are aligned",
    "track_running_stats": "running averages are the updates of a training step",
    "batch_first": "the batch is the first axis",
    "key_padding_mask": "call the layer with a mask or lengths",
    "attn_mask": "call the layer with a mask or lengths",
    "data_format": "arrays are batch, channel, spatial axes",
    "activation": "apply a function such as nnet.relu to the result",
    "nonlinearity": "apply a function such as nnet.relu to the result",
    "training": "net.train() and net.eval() switch layers; functions have two names",
    "reduction": "take the mean or the sum of the result",
    "ceil_mode": "functions round up with ignore_border=False, layers with the method ceil()",
    "count_include_pad": "nnet.pool_2d has modes 'average_inc_pad' and 'average_exc_pad'",
    "return_indices": "indices are not returned",
    "device": "the mode of a function or transfer() selects the device",
    "inplace": "rewrites decide what is overwritten",
    "amsgrad": "it is not available",
    "dampening": "it is not available",
    "maximize": "minimize -loss",
    "bias_initializer": "biases start as in PyTorch; set_value() changes them",
    "padding_idx": "set the row to zero",
    "label_smoothing": "mix the one-hot labels yourself with categorical_crossentropy",
}

#: Values of arguments here, by those of other libraries.
VALUES = {
    ("border_mode", "same"): "'half'",
    ("mode", "avg"): "'average_exc_pad'",
    ("mode", "mean"): "'average_exc_pad'",
}
