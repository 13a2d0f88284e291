"""What names of other libraries are called here.

The tables have what PyTorch, Keras, Lasagne, JAX with Flax and Optax, and TensorFlow call the
things that dnnops has, and what comes closest to things that it does not have. Names of arguments
are in `dnnops.foreign_arguments`.
"""

from __future__ import annotations

__all__ = ["NAMES", "PATTERNS"]

_SPATIAL_MEAN = "the function lambda x: x.mean(axis=(2, 3))"
_SPATIAL_MAX = "the function lambda x: x.max(axis=(2, 3))"
_STEPS = "optim.sgd, adam, adamw or rmsprop, or updates that you write"
_PLATEAU = "a shared scalar as learning rate, which the program sets"

_ACTIVATIONS = "nnet.relu(x, slope), nnet.elu"
_OWN = "a function of a variable that you write with pytensor.tensor"

_CONVOLUTION = "layers.SpatialConvolution"
_TRANSPOSED = "layers.SpatialFullConvolution"

#: Names of layers and modules.
_LAYERS = {
    # Convolution
    **dict.fromkeys(("Conv1d", "Conv1D", "Conv1DLayer"), "layers.TemporalConvolution"),
    **dict.fromkeys(("Conv", "Conv2d", "Conv2D", "Conv2DLayer", "Convolution2D"), _CONVOLUTION),
    **dict.fromkeys(("Conv3d", "Conv3D", "Conv3DLayer"), "layers.VolumetricConvolution"),
    **dict.fromkeys(
        ("DepthwiseConv2D", "DilatedConv2DLayer", "SpatialDilatedConvolution"),
        f"{_CONVOLUTION} with its arguments groups, dilation_w and dilation_h",
    ),
    **dict.fromkeys(("SeparableConv2D", "SeparableConv1D"), "nnet.separable_conv2d"),
    **dict.fromkeys(
        (
            *("ConvTranspose2d", "Conv2DTranspose", "ConvTranspose", "Deconvolution2D"),
            *("TransposedConv2DLayer", "Deconv2DLayer"),
        ),
        _TRANSPOSED,
    ),
    **dict.fromkeys(
        ("ConvTranspose3d", "Conv3DTranspose", "TransposedConv3DLayer"),
        "layers.VolumetricFullConvolution",
    ),
    **dict.fromkeys(("ConvTranspose1d", "Conv1DTranspose"), f"{_TRANSPOSED} on images of one row"),
    # Pooling
    **dict.fromkeys(
        ("MaxPool1d", "MaxPooling1D", "MaxPool1D", "MaxPool1DLayer", "Pool1DLayer"),
        "layers.TemporalMaxPooling",
    ),
    **dict.fromkeys(
        ("MaxPool2d", "MaxPooling2D", "MaxPool2D", "MaxPool2DLayer", "Pool2DLayer"),
        "layers.SpatialMaxPooling",
    ),
    **dict.fromkeys(
        ("MaxPool3d", "MaxPooling3D", "MaxPool3D", "MaxPool3DLayer", "Pool3DLayer"),
        "layers.VolumetricMaxPooling",
    ),
    **dict.fromkeys(
        ("AvgPool2d", "AveragePooling2D", "AvgPool2D", "AveragePool2D"),
        "layers.SpatialAveragePooling",
    ),
    **dict.fromkeys(("AvgPool1d", "AveragePooling1D"), "layers.SpatialAveragePooling"),
    **dict.fromkeys(
        ("AvgPool3d", "AveragePooling3D", "AvgPool3D"), "layers.VolumetricAveragePooling"
    ),
    **dict.fromkeys(
        ("AdaptiveAvgPool2d", "GlobalAveragePooling2D", "GlobalAvgPool2D", "GlobalPoolLayer"),
        _SPATIAL_MEAN,
    ),
    **dict.fromkeys(("AdaptiveMaxPool2d", "GlobalMaxPooling2D", "GlobalMaxPool2D"), _SPATIAL_MAX),
    **dict.fromkeys(
        ("AdaptiveAvgPool1d", "GlobalAveragePooling1D"), "the function lambda x: x.mean(axis=2)"
    ),
    **dict.fromkeys(("Upsample", "UpSampling2D", "Upscale2DLayer"), "nnet.bilinear_upsampling"),
    # Normalization
    **dict.fromkeys(("BatchNorm1d", "BatchNorm", "BatchNormLayer"), "layers.BatchNormalization"),
    **dict.fromkeys(("BatchNorm2d", "SyncBatchNorm"), "layers.SpatialBatchNormalization"),
    "BatchNorm3d": "layers.VolumetricBatchNormalization",
    **dict.fromkeys(
        ("InstanceNorm2d", "InstanceNorm1d", "InstanceNorm3d", "InstanceNormLayer"),
        "layers.GroupNorm with a group for each channel",
    ),
    **dict.fromkeys(("LayerNormalization", "LayerNormLayer"), "layers.LayerNorm"),
    "GroupNormalization": "layers.GroupNorm",
    "RMSNormalization": "layers.RMSNorm",
    **dict.fromkeys(
        ("LocalResponseNorm", "LocalResponseNormalization2DLayer"), "layers.SpatialCrossMapLRN"
    ),
    # Dense layers and shapes
    **dict.fromkeys(("Dense", "DenseLayer", "LazyLinear"), "layers.Linear"),
    **dict.fromkeys(("Embed", "EmbeddingLayer"), "layers.Embedding"),
    **dict.fromkeys(("Flatten", "FlattenLayer"), "layers.View(-1)"),
    **dict.fromkeys(("Reshape", "ReshapeLayer", "Unflatten"), "layers.View"),
    **dict.fromkeys(
        ("Identity", "Permute"), "a function of a variable: lambda x: x, x.transpose(...)"
    ),
    # Dropout
    **dict.fromkeys(
        ("Dropout1d", "Dropout2d", "Dropout3d", "SpatialDropout2D", "DropoutLayer"),
        "layers.Dropout",
    ),
    # Activation
    **dict.fromkeys(("Softmax", "Softmax2d"), "layers.SoftMax"),
    "LogSoftmax": "layers.LogSoftMax",
    **dict.fromkeys(("SiLU", "Swish"), "the function nnet.swish"),
    "ELU": "the function nnet.elu",
    "SELU": "the function nnet.selu",
    "Softplus": "the function nnet.softplus",
    "Softsign": "the function nnet.softsign",
    "Hardsigmoid": "the function nnet.hard_sigmoid",
    "LeakyReLU": "the function lambda x: nnet.relu(x, 0.01)",
    "ReLU6": "layers.ClippedReLU",
    "Hardtanh": "the function lambda x: pytensor.tensor.clip(x, -1, 1)",
    **dict.fromkeys(
        ("Activation", "NonlinearityLayer", "Lambda", "ExpressionLayer"),
        "the function itself, such as nnet.elu, in place of a layer",
    ),
    **dict.fromkeys(("CELU", "PReLU", "RReLU", "ThresholdedReLU"), f"{_ACTIVATIONS}, or {_OWN}"),
    **dict.fromkeys(("Hardswish", "Hardshrink", "Softshrink", "Tanhshrink", "Threshold"), _OWN),
    "Mish": "the function lambda x: x * nnet.tanh(nnet.softplus(x))",
    "LogSigmoid": "the function lambda x: -nnet.softplus(-x)",
    "Softmin": "the function lambda x: nnet.softmax(-x)",
    "GLU": "a function: a * nnet.sigmoid(b) for the two halves",
    # Recurrent networks and attention
    "LSTMLayer": "layers.LSTM",
    "GRULayer": "layers.GRU",
    **dict.fromkeys(("SimpleRNN", "RecurrentLayer"), "layers.RNN"),
    "Bidirectional": "layers.LSTM or layers.GRU with bidirectional=True",
    **dict.fromkeys(("LSTMCell", "GRUCell", "RNNCell"), "layers.LSTM, layers.GRU or layers.RNN"),
    **dict.fromkeys(
        (
            *("MultiheadAttention", "MultiHeadDotProductAttention", "SelfAttention"),
            "Attention",
        ),
        "layers.MultiHeadAttention",
    ),
    "TransformerEncoder": "layers.Sequential of layers.TransformerEncoderLayer",
    **dict.fromkeys(
        ("Transformer", "TransformerDecoder", "TransformerDecoderLayer"),
        "layers.TransformerEncoderLayer and layers.MultiHeadAttention in a layer of your own",
    ),
    # Containers and bases
    **dict.fromkeys(("Module", "Model", "Parameter", "MergeLayer"), "layers.Layer"),
    **dict.fromkeys(
        ("get_output", "get_output_shape", "get_all_layers"),
        "the network itself: net(x), net.modules()",
    ),
    "get_all_params": "net.parameters()",
    **dict.fromkeys(("get_all_param_values", "state_dict"), "net.state_dict()"),
    **dict.fromkeys(("set_all_param_values", "load_state_dict"), "net.load_state_dict(...)"),
    **dict.fromkeys(
        ("ModuleList", "ModuleDict", "ParameterList", "ParameterDict"),
        "a list or dict as an attribute of a layer",
    ),
    **dict.fromkeys(("Concatenate", "ConcatLayer"), "layers.Concat"),
    **dict.fromkeys(("Add", "ElemwiseSumLayer"), "layers.Residual, or + in a layer's forward"),
    **dict.fromkeys(("Input", "InputLayer"), "a variable, such as pytensor.tensor.tensor4('x')"),
    # Losses
    **dict.fromkeys(
        ("CrossEntropyLoss", "NLLLoss", "SparseCategoricalCrossentropy"),
        "layers.CrossEntropyCriterion",
    ),
    "BCELoss": "nnet.binary_crossentropy",
    "BCEWithLogitsLoss": "nnet.sigmoid_binary_crossentropy",
    "CTCLoss": "nnet.ctc",
    **dict.fromkeys(("MSELoss", "MeanSquaredError"), "the expression ((y - target) ** 2).mean()"),
    **dict.fromkeys(("L1Loss", "MeanAbsoluteError"), "the expression abs(y - target).mean()"),
    # Initial values
    **dict.fromkeys(
        ("xavier_uniform", "xavier_uniform_", "GlorotUniform"), "layers.glorot_uniform"
    ),
    **dict.fromkeys(("xavier_normal", "xavier_normal_", "GlorotNormal"), "layers.glorot_normal"),
    **dict.fromkeys(("kaiming_uniform", "kaiming_uniform_", "HeUniform"), "layers.he_uniform"),
    **dict.fromkeys(("kaiming_normal", "kaiming_normal_", "HeNormal"), "layers.he_normal"),
    **dict.fromkeys(("orthogonal_", "Orthogonal"), "layers.orthogonal"),
    **dict.fromkeys(("normal_", "trunc_normal_", "Normal"), "layers.normal"),
    **dict.fromkeys(("uniform_", "Uniform"), "layers.uniform"),
    **dict.fromkeys(("zeros_", "ones_", "constant_", "Constant"), "layers.constant"),
    "manual_seed": "layers.seed",
}

_POOL = "nnet.pool_2d"
#: Names of functions.
_FUNCTIONS = {
    # Convolution
    **dict.fromkeys(
        ("conv_general_dilated", "convolution", "dnn_conv2d"),
        "nnet.conv1d, conv2d or conv3d",
    ),
    "conv_transpose1d": "nnet.conv2d_transpose on images of one row",
    **dict.fromkeys(
        ("conv_transpose2d", "conv_transpose", "conv2d_transposed", "deconv2d"),
        "nnet.conv2d_transpose",
    ),
    "conv_transpose3d": "nnet.conv3d_transpose",
    "depthwise_conv2d": "nnet.conv2d with num_groups",
    "atrous_conv2d": "nnet.conv2d with filter_dilation",
    # Pooling
    **dict.fromkeys(
        ("max_pool2d", "max_pool", "max_pool_2d", "max_pool1d"),
        f"{_POOL}(x, (2, 2), ignore_border=True)",
    ),
    **dict.fromkeys(
        ("avg_pool2d", "avg_pool", "avg_pool_2d", "avg_pool1d"),
        f"{_POOL}(x, (2, 2), ignore_border=True, mode='average_inc_pad')",
    ),
    **dict.fromkeys(("max_pool3d", "avg_pool3d", "max_pool_3d"), "nnet.pool_3d"),
    **dict.fromkeys(("pool2d",), _POOL),
    "pool3d": "nnet.pool_3d",
    "adaptive_avg_pool2d": "the expression x.mean(axis=(2, 3))",
    "adaptive_max_pool2d": "the expression x.max(axis=(2, 3))",
    **dict.fromkeys(("interpolate", "upsample", "resize"), "nnet.bilinear_upsampling"),
    "unfold": "nnet.images2neibs",
    "fold": "nnet.neibs2images",
    # Activation
    "silu": "nnet.swish",
    "leaky_relu": "nnet.relu(x, 0.01)",
    "relu6": "nnet.clipped_relu(x, 6)",
    **dict.fromkeys(("hardsigmoid",), "nnet.hard_sigmoid"),
    "soft_sign": "nnet.softsign",
    "soft_plus": "nnet.softplus",
    **dict.fromkeys(("logsigmoid", "log_sigmoid"), "-nnet.softplus(-x)"),
    "softmin": "nnet.softmax(-x)",
    **dict.fromkeys(("celu", "prelu", "rrelu"), f"{_ACTIVATIONS}, or {_OWN}"),
    **dict.fromkeys(
        (
            *("hardswish", "hard_swish", "hard_silu", "hardshrink", "softshrink", "tanhshrink"),
            *("threshold", "squareplus", "sparse_plus"),
        ),
        _OWN,
    ),
    **dict.fromkeys(("hardtanh", "hard_tanh"), "pytensor.tensor.clip(x, -1, 1)"),
    "identity": "x itself",
    **dict.fromkeys(("normalize", "standardize"), "nnet.layer_norm or an expression"),
    "linear_cross_entropy": "nnet.cross_entropy(x @ w, labels)",
    "logsumexp": "pytensor.tensor.logsumexp",
    "initializers": "dnnops.layers, such as layers.he_normal",
    "mish": "x * nnet.tanh(nnet.softplus(x))",
    "glu": "a * nnet.sigmoid(b) for the two halves",
    # Normalization
    **dict.fromkeys(
        ("batch_norm", "fused_batch_norm"),
        "nnet.batch_normalization_train or batch_normalization_test",
    ),
    "layer_normalization": "nnet.layer_norm",
    "group_normalization": "nnet.group_norm",
    "instance_norm": "nnet.group_norm with a group for each channel",
    **dict.fromkeys(("local_response_norm", "lrn"), "nnet.local_response_normalization"),
    "rms_normalization": "nnet.rms_norm",
    # Losses
    **dict.fromkeys(
        (
            *("nll_loss", "sparse_categorical_crossentropy", "softmax_cross_entropy"),
            *("sparse_softmax_cross_entropy_with_logits", "softmax_cross_entropy_with_logits"),
            "softmax_cross_entropy_with_integer_labels",
        ),
        "nnet.cross_entropy",
    ),
    "binary_cross_entropy": "nnet.binary_crossentropy",
    **dict.fromkeys(
        (
            *("binary_cross_entropy_with_logits", "sigmoid_binary_cross_entropy"),
            "sigmoid_cross_entropy_with_logits",
        ),
        "nnet.sigmoid_binary_crossentropy",
    ),
    "ctc_loss": "nnet.ctc",
    **dict.fromkeys(("mse_loss", "l2_loss"), "the expression ((y - target) ** 2).mean()"),
    "l1_loss": "the expression abs(y - target).mean()",
    # Others
    **dict.fromkeys(
        ("dot_product_attention", "flash_attention"), "nnet.scaled_dot_product_attention"
    ),
    "multi_head_attention_forward": "layers.MultiHeadAttention",
    **dict.fromkeys(("linear", "dense"), "the expression x @ w + b, or layers.Linear"),
    **dict.fromkeys(("dropout1d", "dropout2d", "dropout3d"), "nnet.dropout"),
    "embedding_lookup": "nnet.embedding",
    "one_hot": "pytensor.tensor.extra_ops.to_one_hot",
    "pad": "pytensor.tensor.pad",
}

#: Names of optimizers and schedules.
_OPTIMIZERS = {
    "SGD": "optim.sgd",
    "Adam": "optim.adam",
    "AdamW": "optim.adamw",
    **dict.fromkeys(("RMSprop", "RMSProp"), "optim.rmsprop"),
    "momentum": "optim.sgd with momentum",
    **dict.fromkeys(("nesterov_momentum", "apply_nesterov_momentum"), "optim.sgd with nesterov"),
    **dict.fromkeys(
        (
            *("Adagrad", "Adadelta", "Adamax", "NAdam", "Nadam", "RAdam", "LBFGS", "Rprop", "ASGD"),
            *("SparseAdam", "Adafactor", "Lion", "Ftrl", "Lamb", "Muon", "adagrad", "adadelta"),
            *("adamax", "amsgrad", "lion", "lamb", "adafactor", "nadam", "radam", "lbfgs"),
        ),
        _STEPS,
    ),
    "lr_scheduler": "a schedule as learning rate: optim.linear, cosine, exponential or piecewise",
    **dict.fromkeys(
        ("StepLR", "ExponentialLR", "ExponentialDecay", "exponential_decay"), "optim.exponential"
    ),
    **dict.fromkeys(
        ("MultiStepLR", "PiecewiseConstantDecay", "piecewise_constant_schedule"),
        "optim.piecewise",
    ),
    **dict.fromkeys(
        (
            *("CosineAnnealingLR", "CosineDecay", "cosine_decay_schedule", "OneCycleLR"),
            *("CosineAnnealingWarmRestarts", "warmup_cosine_decay_schedule"),
        ),
        "optim.cosine, which has a warmup",
    ),
    **dict.fromkeys(("LinearLR", "PolynomialLR", "linear_schedule"), "optim.linear"),
    **dict.fromkeys(("ConstantLR", "constant_schedule"), "a number as learning rate"),
    **dict.fromkeys(("LambdaLR", "LRScheduler"), "a function of the step as learning rate"),
    "ReduceLROnPlateau": _PLATEAU,
    **dict.fromkeys(
        ("SequentialLR", "ChainedScheduler", "CyclicLR", "MultiplicativeLR", "join_schedules"),
        "a function of the step as learning rate",
    ),
    **dict.fromkeys(
        ("chain", "add_decayed_weights", "scale_by_adam"),
        "the arguments weight_decay of the optimizers, and optim.clip_by_norm",
    ),
    **dict.fromkeys(
        (
            *("clip_by_global_norm", "clip_grad_norm", "clip_grad_norm_", "clipnorm"),
            "total_norm_constraint",
        ),
        "optim.clip_by_norm",
    ),
    **dict.fromkeys(
        ("apply_updates", "Optimizer"), "the updates of optim.sgd(...) in pytensor.function"
    ),
}

#: What to use in place of names of other libraries, by the package in which they are looked for.
NAMES = {
    "layers": _LAYERS,
    "nnet": _FUNCTIONS,
    "optim": _OPTIMIZERS,
    "dnnops": {
        "nn": "dnnops.layers, or dnnops.nnet for functions",
        **dict.fromkeys(("functional", "ops", "F"), "dnnops.nnet"),
        **dict.fromkeys(("optimizers", "updates", "lr_scheduler"), "dnnops.optim"),
        "compile": "pytensor.function",
        "grad": "pytensor.grad",
    },
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
