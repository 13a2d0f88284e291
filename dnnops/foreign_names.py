"""What names of other libraries are called here.

The tables have what PyTorch, Keras, Lasagne, JAX with Flax and Optax, and TensorFlow call the
things that dnnops has, and what comes closest to things that it does not have. Names of arguments
are in `dnnops.foreign_arguments`.
"""

from __future__ import annotations

from dnnops.foreign_layers import INITIALIZERS, LAYERS
from dnnops.foreign_optimizers import OPTIMIZERS

__all__ = ["NAMES", "PATTERNS"]

_OWN = "a function of a variable that you write with pytensor.tensor"
_EXPRESSION = "an expression of pytensor.tensor"
_POOL = "nnet.pool_2d(x, (2, 2), ignore_border=True"

#: Names of functions, by what to use.
_FUNCTIONS = {
    # Convolution
    "nnet.conv1d, conv2d or conv3d": "conv_general_dilated convolution dnn_conv2d conv_tbc",
    "nnet.conv2d_transpose on images of one row": "conv_transpose1d conv1d_transpose",
    "nnet.conv2d_transpose": "conv_transpose2d conv_transpose conv2d_transposed deconv2d",
    "nnet.conv3d_transpose": "conv_transpose3d",
    "nnet.conv2d with num_groups": "depthwise_conv2d depthwise_conv",
    "nnet.conv2d with filter_dilation": "atrous_conv2d",
    "nnet.separable_conv2d": "separable_conv",
    # Pooling and resampling
    f"{_POOL})": "max_pool2d max_pool max_pool_2d max_pool1d",
    f"{_POOL}, mode='average_inc_pad')": "avg_pool2d avg_pool avg_pool_2d avg_pool1d average_pool",
    "nnet.pool_3d": "max_pool3d avg_pool3d max_pool_3d pool3d",
    "nnet.pool_2d": "pool2d",
    "the expression x.mean(axis=(2, 3))": "adaptive_avg_pool2d",
    "the expression x.max(axis=(2, 3))": "adaptive_max_pool2d",
    "nnet.bilinear_upsampling": "interpolate upsample resize",
    "nnet.images2neibs": "unfold erosion2d dilation2d",
    "nnet.neibs2images": "fold",
    "reshape and transpose": "space_to_depth depth_to_space native_channel_shuffle",
    # Activation
    "nnet.swish": "silu",
    "nnet.relu": "rectify",
    "nnet.relu(x, 0.01)": "leaky_relu leaky_rectify",
    "nnet.relu(x, 1 / 3)": "very_leaky_rectify",
    "nnet.relu(x @ w + b)": "relu_layer",
    "nnet.clipped_relu(x, 6)": "relu6",
    "nnet.hard_sigmoid": "hardsigmoid",
    "nnet.softsign": "soft_sign",
    "nnet.softplus": "soft_plus",
    "-nnet.softplus(-x)": "logsigmoid log_sigmoid",
    "nnet.softmax(-x)": "softmin",
    f"nnet.relu(x, slope), nnet.elu, or {_OWN}": "celu prelu rrelu",
    _OWN: (
        "hardswish hard_swish hard_silu hardshrink hard_shrink softshrink soft_shrink tanhshrink "
        "tanh_shrink threshold squareplus sparse_plus sparse_sigmoid sparsemax crelu gumbel_softmax"
    ),
    "pytensor.tensor.clip(x, -1, 1)": "hardtanh hard_tanh",
    "x itself": "identity",
    "pytensor.tensor.exp": "exponential",
    "x * nnet.tanh(nnet.softplus(x))": "mish",
    "a * nnet.sigmoid(b) for the two halves": "glu",
    # Normalization
    "nnet.layer_norm or an expression": "normalize standardize",
    "nnet.batch_normalization_train or batch_normalization_test": "batch_norm fused_batch_norm",
    "nnet.layer_norm": "layer_normalization",
    "nnet.group_norm": "group_normalization",
    "nnet.group_norm with a group for each channel": "instance_norm",
    "nnet.local_response_normalization": "local_response_norm lrn",
    "nnet.rms_norm": "rms_normalization",
    "the expression x / x.norm(2, axis=-1, keepdims=True)": "l2_normalize",
    "x.mean(...) and x.var(...)": "moments",
    # Losses
    "nnet.cross_entropy": (
        "nll_loss sparse_categorical_crossentropy softmax_cross_entropy "
        "sparse_softmax_cross_entropy_with_logits softmax_cross_entropy_with_logits "
        "softmax_cross_entropy_with_integer_labels"
    ),
    "the expression nnet.cross_entropy(x @ w, labels)": "linear_cross_entropy",
    "nnet.binary_crossentropy": "binary_cross_entropy",
    "nnet.sigmoid_binary_crossentropy": (
        "binary_cross_entropy_with_logits sigmoid_binary_cross_entropy "
        "sigmoid_cross_entropy_with_logits weighted_cross_entropy_with_logits"
    ),
    "nnet.categorical_crossentropy of nnet.softmax": (
        "safe_softmax_cross_entropy poly_loss_cross_entropy"
    ),
    "nnet.ctc": "ctc_loss",
    "the expression ((y - target) ** 2).mean()": "mse_loss l2_loss mean_squared_error",
    "the expression (y - target) ** 2": "squared_error",
    "the expression abs(y - target).mean()": "l1_loss mean_absolute_error",
    "the expression pytensor.tensor.eq(y.argmax(axis=1), labels).mean()": (
        "binary_accuracy categorical_accuracy in_top_k"
    ),
    "the expression cost.mean()": "aggregate",
    _EXPRESSION: (
        "cosine_similarity cosine_distance pairwise_distance pdist log_cosh kl_divergence "
        "convex_kl_divergence kullback_leibler_divergence smooth_labels psnr multi_hot"
    ),
    "NumPy after the call": "ctc_decode ctc_greedy_decoder ctc_beam_search_decoder",
    # Others
    "nnet.scaled_dot_product_attention": (
        "dot_product_attention flash_attention dot_product_attention_weights"
    ),
    "the argument is_causal of nnet.scaled_dot_product_attention": "make_causal_mask",
    "a boolean mask in nnet.scaled_dot_product_attention": "make_attention_mask combine_masks",
    "the result of a layers.MultiHeadAttention": "multi_head_attention_forward",
    "the expression x @ w + b, or layers.Linear": "linear dense",
    "the expression x + b": "bias_add",
    "the expression x @ w": "scaled_matmul scaled_mm grouped_mm scaled_grouped_mm",
    "nnet.dropout": "dropout1d dropout2d dropout3d",
    "nnet.embedding": "embedding_lookup",
    "nnet.embedding(...).sum(axis=1), or mean": "embedding_bag embedding_lookup_sparse",
    "pytensor.tensor.einsum": "bilinear",
    "pytensor.tensor.extra_ops.to_one_hot": "one_hot",
    "pytensor.tensor.pad": "pad",
    "pytensor.tensor.logsumexp": "logsumexp logmeanexp",
    "pytensor.tensor.log1mexp": "log1mexp",
    "dnnops.layers, such as layers.he_normal": "initializers",
    "dnnops.layers": "modules",
}

_OF_THE_PACKAGE = {
    "dnnops.layers, or dnnops.nnet for functions": "nn",
    "dnnops.nnet": "functional ops F",
    "dnnops.optim": "optimizers updates lr_scheduler",
    "pytensor.function": "compile",
    "pytensor.grad": "grad",
    "net.save(path)": "save",
    "net.load(path)": "load",
    "layers.seed": "manual_seed",
}

#: What to use in place of names of other libraries, by the package in which they are looked for.
NAMES = {
    package: {name: hint for hint, names in table.items() for name in names.split()}
    for package, table in {
        "layers": {**LAYERS, **INITIALIZERS},
        "nnet": _FUNCTIONS,
        "optim": OPTIMIZERS,
        "dnnops": _OF_THE_PACKAGE,
    }.items()
}

#: What to use in place of names of a kind, by a pattern of the whole name.
PATTERNS = {
    r"(Reflection|Replication|Constant|Zero|Circular)Pad(ding)?[123][dD]|PadLayer|Padding[123]D": (
        "the function pytensor.tensor.pad"
    ),
    r"(Adaptive|Global)A\w*Pool\w*|adaptive_avg_pool\w*": "x.mean(...) over the spatial axes",
    r"(Adaptive|Global)Max\w*Pool\w*|adaptive_max_pool\w*": "x.max(...) over the spatial axes",
    r"Upsampling\w+|UpSampling\w+|upsample_\w+": "nnet.bilinear_upsampling",
    r"MaxUnpool\w+|max_unpool\w+|Fractional\w+|fractional_\w+|LPPool\w+|lp_pool\w+": (
        "an expression: nnet.pool_2d has maxima, averages and sums"
    ),
    r"max_pool\w+": "nnet.pool_2d or pool_3d",
    r"\w+Loss(2d)?|\w+_loss|kl_div|\w+Crossentropy": (
        "an expression of pytensor.tensor; nnet has cross_entropy, binary_crossentropy, "
        "sigmoid_binary_crossentropy and ctc"
    ),
    r"(Alpha|Feature|Gaussian|alpha_|feature_)\w*[dD]ropout|GaussianNoise\w*": "nnet.dropout",
    r"PixelShuffle|PixelUnshuffle|ChannelShuffle|pixel_\w+|channel_shuffle": (
        "reshape and transpose"
    ),
}
